"""Answers about runs, findings, and events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import numpy as np
from msgspec.structs import replace

from hookcore.findings import Course, Finding, Reading, Scope
from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.records import text_of
from hookcore.store import TapList, of_all_values

from ..formats import plain
from .joint import ranks_in, summary_of
from .query import Traits
from .run import Run


def tap_list(answered: Iterable[answers.Tap]) -> TapList:
    """Return the taps of answers, for what computes with the columns of a store."""
    taps = tuple(answered)
    return TapList(np.array([tap.number for tap in taps], np.int64), tuple(tap.record for tap in taps))


def taps_of_all_values(latest: answers.Latest) -> tuple[answers.LatestTap, ...]:
    """Return the taps of an answer with all stats: NaN or infinite if a tensor has such values, as charts show it."""
    rows = of_all_values(latest.values, latest.stats)
    return tuple(replace(tap, values=values) for tap, values in zip(latest.taps, rows, strict=True))


def samples_of(run: Run, step: int) -> answers.Samples:
    """Return which samples a step had; of a training with several ranks, those of each rank."""
    joint = ranks_in(run)
    if joint is None:
        return run.reader.samples(step)
    members, shift = joint.members_at(step)
    batches, why = list[answers.SampleBatch](), None if members else "none of the ranks is known"
    for member in members:
        found, rank = member.run.reader.samples(step - shift), member.place.rank
        batches += (replace(batch, rank=rank) for batch in found.batches)
        why = why or (f"rank {rank}: {found.why}" if found.why else None)
    return answers.Samples(run.id, step, why, tuple(batches))


def run_of(run: Run) -> answers.Run:
    """Return the description and progress of a run, without its key."""
    info, steps = run.info, run.store.steps()
    return answers.Run(
        id=run.id,
        name=run.name,
        notes=run.edits.notes,
        state=run.state,
        failure=run.end.failure,
        partial=run.partial or "",
        in_memory=run.loaded,
        folder="" if run.saved.folder is None else text_of(str(run.saved.folder)),
        first_step=steps.first,
        newest_step=steps.newest,
        steps=steps.count,
        ended_at_step=run.end.step,
        taps=run.store.taps_announced,
        started_s=Number(info.started_s),
        ranks=summary_of(run),
        rank=None if run.joint is None or info.place is None else info.place.rank,
        joint=None if run.joint is None else run.joint.id,
        host=info.host,
        pid=plain(info.pid),
        script=info.script,
        versions=plain(info.versions),
        settings=plain(info.settings),
        config=plain(info.config),
        config_cut=info.config_cut,
        facts=plain(info.facts),
        facts_cut=info.facts_cut,
        results={name: Number(value) for name, value in Traits(run).result_values().items()},
        tags=run.edits.tags,
        group=run.edits.group,
        archived=run.edits.archived,
        labels=run.store.labels(),
        counters=run.received.counters,
        usage=run.store.usage(),
    )


def incidents_of(run: Run, version: int = 0) -> tuple[answers.Incident, ...]:
    """Return the incidents that have changed since a version of them."""
    return run.reader.incidents_of(incident for incident in run.store.incidents() if incident.version > version)


def findings_of(run: Run, findings: Iterable[Finding]) -> tuple[answers.Finding, ...]:
    """Return findings, each with the class of its module."""
    types, muting = run.store.module_types(), run.edits.quiet.muting(run.store)
    return tuple(
        _finding_of(run, finding, muting(finding.rule, finding.module) is not None, types.get(finding.module, ""))
        for finding in findings
    )


def _finding_of(run: Run, finding: Finding, muted: bool, type_: str) -> answers.Finding:
    return answers.Finding(
        key=finding.key,
        rule=finding.rule,
        severity=finding.severity,
        acknowledged=run.has_seen(finding),
        muted=muted,
        tap=answers.Tap.of(finding.number, finding.tap),
        type=type_,
        stat=finding.stat,
        value=Number(finding.value),
        usual=Number(finding.usual),
        since_step=finding.since_step,
        until_step=finding.until_step,
        message=finding.message,
        spark=np.array(finding.spark, np.float64),
        downstream=finding.downstream,
        last_step=finding.last_step,
        earliest_step=finding.earliest_step,
        culprit_known=finding.culprit_known,
        incident=finding.incident,
    )


def scope_of(scope: Scope) -> answers.Scope:
    """Return how much the findings are based on."""
    unjudged = tuple(answers.Unjudged(**asdict(rule), sentence=rule.sentence) for rule in scope.unjudged)
    return answers.Scope(**{**asdict(scope), "unjudged": unjudged})


def course_of(course: Course) -> answers.Course:
    """Return where the training goes."""
    first, newest, lowest = (Number(value) for value in (course.first, course.newest, course.lowest))
    return answers.Course(course.word, course.sentence, course.loss, first, newest, lowest, course.since_step)


def reading_of(reading: Reading | None) -> answers.Reading | None:
    """Return a value and its source."""
    if reading is None:
        return None
    tap = None if reading.tap is None else answers.Tap.of(reading.number, reading.tap)
    first = reading.first_step if reading.is_mean else reading.step
    return answers.Reading(reading.name, Number(reading.value), reading.step, tap, first)

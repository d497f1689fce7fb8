"""Answers about runs, findings and events, and the tables of several answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookcore import answers
from hookcore.answers import Number
from hookcore.records import Event, text_of
from hookcore.store import Histograms, Series, TapList

from ..findings import Finding, Reading, Scope, key_of_event
from ..formats import Table, plain
from .run import Run


def taps_of(found: TapList) -> tuple[answers.Tap, ...]:
    """Return the answers for taps."""
    return tuple(map(answers.Tap.of, found.numbers.tolist(), found.taps))


def run_of(run: Run) -> answers.Run:
    """Return what a run is and how far; its key stays here."""
    info, steps = run.info, run.store.steps()
    return answers.Run(
        id=run.id,
        name=run.name,
        notes=run.notes,
        state=run.state,
        failure=run.failure,
        in_memory=run.loaded,
        folder="" if run.folder is None else text_of(str(run.folder)),
        first_step=steps.first,
        newest_step=steps.newest,
        steps=steps.count,
        ended_at_step=run.ended_at_step,
        taps=run.store.taps_announced,
        started_s=Number(info.started_s),
        host=info.host,
        pid=plain(info.pid),
        script=info.script,
        versions=plain(info.versions),
        settings=plain(info.settings),
        labels=run.store.labels(),
        books=run.books,
        usage=run.store.usage(),
    )


def events_of(run: Run, events: Iterable[Event]) -> tuple[answers.Event, ...]:
    """Return events, oldest first, and whether each was acknowledged."""
    return tuple(_event_of(run, event) for event in events)


def _event_of(run: Run, event: Event) -> answers.Event:
    key = key_of_event(event)
    about = event.name, event.message, event.severity, event.module, event.count
    return answers.Event(event.step, Number(event.time_s), *about, key, key in run.acknowledgements)


def finding_of(run: Run, finding: Finding, type_: str = "") -> answers.Finding:
    """Return a finding, with the class of its module."""
    return answers.Finding(
        key=finding.key,
        rule=finding.rule,
        severity=finding.severity,
        acknowledged=run.has_seen(finding),
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
    )


def scope_of(scope: Scope) -> answers.Scope:
    """Return how much the findings are based on."""
    unjudged = tuple(answers.Unjudged(**asdict(each), sentence=each.sentence) for each in scope.unjudged)
    return answers.Scope(**{**asdict(scope), "unjudged": unjudged})


def reading_of(reading: Reading | None) -> answers.Reading | None:
    """Return a value and its source."""
    if reading is None:
        return None
    tap = None if reading.tap is None else answers.Tap.of(reading.number, reading.tap)
    return answers.Reading(reading.name, Number(reading.value), reading.step, tap)


def series_table(
    many: Sequence[Series], labels: Sequence[str], columns: Sequence[str], *, stats: bool = False
) -> Table:
    """Return many series one below the other; `tap` is -1 for a scalar. `stats` adds which stat each is of."""
    sizes = [len(series.first_step) for series in many]
    numbers = np.array([-1 if series.tap is None else series.tap for series in many], np.int64)
    names = [label for label, size in zip(labels, sizes, strict=True) for _ in range(size)]
    table: dict[str, Any] = {"tap": np.repeat(numbers, sizes), "label": names}
    if stats:
        table["stat"] = [series.name for series, size in zip(many, sizes, strict=True) for _ in range(size)]
    for name in columns:
        parts = [getattr(series, name) for series in many]
        table[name] = np.concatenate(parts) if parts else np.empty(0, np.int64 if "step" in name else np.float64)
    return Table(table)


def histograms_table(many: Sequence[Histograms]) -> Table:
    """Return a row for each bin of each column that holds something: taps have edges of their own."""
    parts: list[dict[str, NDArray[Any]]] = []
    for each in many:
        column, place = np.nonzero(each.counts)
        parts.append(
            {
                "tap": np.full(len(column), each.tap, np.int64),
                "first_step": each.first_step[column],
                "last_step": each.last_step[column],
                "from": each.edges[place],
                "to": each.edges[place + 1],
                "count": each.counts[column, place],
            }
        )
    return Table({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

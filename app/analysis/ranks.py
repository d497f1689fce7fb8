"""How far the ranks of a training are, and how long they wait. Pure; no web."""

from __future__ import annotations

from collections.abc import Mapping

from hookcore.findings import limits_of
from hookcore.findings.stragglers import Waits, waits_of
from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.records.vocabulary import LATE_RANK

from ..runs import JointRun
from ..runs.ranked import shift_of, summary_of
from ..runs.rounds import Member
from .rankstores import stores_of
from .speed import run_rates


def ranks_of(joint: JointRun, first: int | None = None, last: int | None = None) -> answers.Ranks:
    """Return all ranks of the newest attempt, and how long they wait in these steps, or the newest."""
    assembly, current = joint.assembly, joint.current()
    newest = {each.place.rank: each.run.store.steps().newest for each in current}
    farthest = max((step for step in newest.values() if step is not None), default=None)
    waits = waits_of(stores_of(joint), first, last)
    ranks = tuple(_rank_of(joint, each, newest[each.place.rank], farthest, waits) for each in current)
    counts = assembly.steps, assembly.absences.incomplete, assembly.partial, len(assembly.backlog), assembly.compared
    unread = tuple(each.place.rank for each in current if each.run.id in joint.unread)
    unlisted = len(joint.unlisted_folders())
    return answers.Ranks(
        joint.id,
        summary_of(joint),
        *counts,
        unread,
        unlisted,
        _waits_of(waits, limits_of(joint.store, LATE_RANK)),
        ranks,
    )


def _waits_of(waits: Waits | None, limits: Mapping[str, float]) -> answers.RankWaits | None:
    if waits is None:
        return None
    seconds = Number(waits.elapsed_s)
    return answers.RankWaits(waits.name, waits.steps, waits.first, waits.last, seconds, waits.latest(limits))


def _rank_of(
    joint: JointRun, member: Member, newest: int | None, farthest: int | None, waits: Waits | None
) -> answers.Rank:
    place, run, shift = member.place, member.run, shift_of(joint, member)
    progress = joint.assembly.ranks.get(place.rank) if run.id in joint.joined else None
    at = None if waits is None else waits.of(place.rank)

    def waited(name: str) -> Number:
        return Number("nan" if at is None else getattr(waits, name)[at])

    rates = run_rates(run)

    return answers.Rank(
        rank=place.rank,
        run=run.id,
        state=run.state,
        host=run.info.host,
        device=place.device,
        local_rank=place.local_rank,
        axes=dict(place.axes),
        newest_step=None if newest is None or shift is None else newest + shift,
        behind=None if newest is None or farthest is None else farthest - newest,
        seconds_per_step=Number("nan" if rates.steps is None else 1 / rates.steps),
        wait_s=waited("wait_s"),
        wait_share=waited("share"),
        after_first_s=waited("after_first_s"),
        was_last=0 if at is None or waits is None else int(waits.was_last[at]),
        late=0 if progress is None else progress.late,
        missed=0 if progress is None else progress.missed,
        unknown_rows=0 if progress is None else progress.unknown_rows,
        samples_per_second=_number(rates.samples),
        tokens_per_second=_number(rates.tokens),
    )


def _number(value: float | None) -> Number | None:
    return None if value is None else Number(value)

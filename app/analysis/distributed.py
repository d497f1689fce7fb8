"""The ranks of a training: how far each is, how long it waits, and how far its values are from those of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.findings import limits_of
from hookcore.findings.times import Waits, waits_of
from hookcore.reading import answers
from hookcore.reading.answers import Number, RankSpread
from hookcore.records import Tap
from hookcore.records.vocabulary import LATE_RANK
from hookcore.store import MAX_ROWS, RowsOf, Store, TapList, rows_of_all
from hookcore.store.rows import Rows

from ..runs import Joint
from ..runs.rounds import Member
from .cost import run_rates

# The stores of the ranks of a training.

NO_LANE: Final = np.iinfo(np.int64).max  # of a tap that the run of all ranks doesn't have


@dataclass(frozen=True, slots=True)
class OfRank:
    """The store of a rank, and by how much its steps are shifted in the run of all ranks."""

    rank: int
    store: Store
    shift: int = 0
    lanes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # of its taps in the run of all


def stores_of(joint: Joint) -> list[OfRank]:
    """Return the stores of the ranks of the newest attempt, by rank, as far as the sum of all ranks has begun it."""
    # First: until a rank's new run has joined, what is known of the rank is about its last one.
    joined = joint.sum.joined
    known = joint.sum.assembly.ranks
    return [
        OfRank(rank, each.run.store, shift, known[rank].lanes)
        for each in joint.rounds.current()
        if each.run.loaded and each.run.id in joined and (rank := each.place.rank) in known
        if (shift := joint.shift_of(each)) is not None
    ]


def stores_at(joint: Joint, step: int) -> list[OfRank]:
    """Return the stores of the ranks of the attempt that a step of the run of all ranks belongs to, by rank."""
    members, shift = joint.members_at(step)
    if members == joint.rounds.current():
        return stores_of(joint)
    numbers = {tap: number for number, tap in joint.run.store.taps()}
    found = []
    for member in members:
        if member.run.loaded:
            lanes = [numbers.get(tap, NO_LANE) for tap in member.run.store.taps().taps]
            found.append(OfRank(member.place.rank, member.run.store, shift, np.array(lanes, np.int64)))
    return found


def every_store_of(joint: Joint) -> list[OfRank]:
    """Return the stores of all ranks of all attempts, the newest last."""
    members = sorted(joint.rounds.members.values(), key=lambda each: (each.round, each.place.rank))
    shifts = joint.sum.shifts
    return [
        OfRank(member.place.rank, member.run.store, shifts[member.round])
        for member in members
        if member.run.loaded and member.round in shifts
    ]


def ranks_of(joint: Joint, first: int | None = None, last: int | None = None) -> answers.Ranks:
    """Return all ranks of the newest attempt, and how long they wait in these steps, or the newest."""
    assembly, current = joint.sum.assembly, joint.rounds.current()
    newest = {each.place.rank: each.run.store.steps().newest for each in current}
    farthest = max((step for step in newest.values() if step is not None), default=None)
    waits = waits_of(stores_of(joint), first, last)
    ranks = tuple(_rank_of(joint, each, newest[each.place.rank], farthest, waits) for each in current)
    counts = assembly.steps, assembly.absences.incomplete, assembly.partial, len(assembly.backlog), assembly.compared
    unread = tuple(each.place.rank for each in current if each.run.id in joint.sum.unread)
    unlisted = len(joint.unlisted_folders())
    return answers.Ranks(
        joint.run.id,
        joint.summary(),
        *counts,
        unread,
        unlisted,
        _waits_of(waits, limits_of(joint.run.store, LATE_RANK)),
        ranks,
    )


def _waits_of(waits: Waits | None, limits: Mapping[str, float]) -> answers.RankWaits | None:
    if waits is None:
        return None
    seconds = Number(waits.elapsed_s)
    return answers.RankWaits(waits.name, waits.steps, waits.first, waits.last, seconds, waits.latest(limits))


def _rank_of(
    joint: Joint, member: Member, newest: int | None, farthest: int | None, waits: Waits | None
) -> answers.Rank:
    place, run, shift = member.place, member.run, joint.shift_of(member)
    progress = joint.sum.assembly.ranks.get(place.rank) if run.id in joint.sum.joined else None
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


# How far the ranks are apart: the least, the median, and the largest of their values, and the odd one out. Pure.

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
SpreadSort = Literal["model", "apart", "high", "low", "median"]
SORTS: Final[tuple[SpreadSort, ...]] = get_args(SpreadSort)
APART: Final = 2.0  # the odd one out is so many times as far from the median as every other rank


@dataclass(frozen=True, slots=True, eq=False)
class Spreads:
    """One for each column of a matrix of values [rank, column]."""

    low: Floats  # of the finite values; NaN if there is none
    median: Floats
    high: Floats
    odd: Integers  # the place of the rank that stands apart from all others; -1 if none does
    finite: Integers  # ranks with a finite value
    present: Integers  # ranks with a value

    @property
    def apart(self) -> Floats:
        """How far the largest and the least are apart, relative to the median; infinite if some rank isn't finite."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            apart = np.where(self.high == self.low, 0.0, (self.high - self.low) / np.abs(self.median))
        return np.where(self.finite < self.present, np.inf, apart)


def spreads_in(values: Floats) -> Spreads:
    """Return the spread of each column. NaN is no value, and an infinity stands for a value that isn't finite."""
    finite, present = np.isfinite(values), ~np.isnan(values)
    some = finite.any(axis=0)
    known = np.where(finite, values, np.nan)
    low, median, high = (np.full(values.shape[1], np.nan) for _ in range(3))
    if some.any():
        low[some], high[some] = np.nanmin(known[:, some], axis=0), np.nanmax(known[:, some], axis=0)
        median[some] = 2 * np.nanmedian(known[:, some] / 2, axis=0)  # the sum of two large values would be infinite
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.where(finite, np.abs(known - median), np.where(present, np.inf, -1.0))
    odd = np.full(values.shape[1], -1, np.int64)
    if len(values):
        most, rest = off.max(axis=0), np.sort(off, axis=0)[-2:][0]
        with np.errstate(invalid="ignore", over="ignore"):
            found = (most > 0) & (rest >= 0) & (most >= APART * rest) & (rest < np.inf)
        odd[found] = off.argmax(axis=0)[found]
    return Spreads(low, median, high, odd, finite.sum(axis=0), present.sum(axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """The values of all ranks of some taps in one step, and their spreads."""

    first_step: int  # another one than `step` if some value is the mean of merged steps
    step: int
    ranks: tuple[int, ...]
    taps: TapList  # of the run of all ranks; those that some rank has a value of
    values: Floats  # [rank, tap]
    spreads: Spreads

    def order(self, sort: SpreadSort) -> list[int]:
        """Return the places of the taps: in the model's order, or with the largest first."""
        if sort == "model":
            return list(range(len(self.taps.taps)))
        keys = getattr(self.spreads, sort)
        return [int(place) for place in np.argsort(-np.where(np.isnan(keys), -np.inf, keys), kind="stable")]


def layers_of(
    all_: Store,
    stores_at: Callable[[int], Sequence[OfRank]],
    wanted: TapList,
    stat: str,
    first: int | None,
    last: int | None,
) -> Layers | None:
    """Return the spread of one stat of taps over the ranks, in the newest of these steps that all ranks have sent.

    Of steps that are merged by now, values are means, and the answer has the first and the last of these steps.
    `all_` is the store of the run of all ranks, whose taps they are, and `stores_at` returns those of the ranks that a
    step is of. None if no such step was captured.
    """
    newest = all_.latest(wanted, first=first, last=last, merged=True)
    if not len(newest.steps):
        return None
    step = int(newest.steps.max())
    step = step if last is None else min(step, last)  # merged steps may end after those that are asked for
    ranks = stores_at(step)
    values, ends = np.full((len(ranks), len(wanted.taps)), np.nan), [(step, step)]
    asked = [_asked_of(rank, wanted, stat, step) for rank in ranks]
    for place, (each, rows) in enumerate(zip(ranks, rows_of_all([rows for _, rows in asked]), strict=True)):
        if len(rows.first):
            mean = np.where(rows.nonfinite[-1] > 0, np.inf, rows.mean[-1])
            values[place, asked[place][0]] = np.where(rows.present[-1] > 0, mean, np.nan)
            ends.append((int(rows.first[-1]) + each.shift, int(rows.last[-1]) + each.shift))
    some = np.flatnonzero(~np.isnan(values).all(axis=0)) if len(ranks) else np.empty(0, np.intp)
    values = values[:, some]
    begin, end = min(begin for begin, _ in ends), max(end for _, end in ends)
    numbers = tuple(rank.rank for rank in ranks)
    return Layers(begin, end, numbers, wanted.at(some.tolist()), values, spreads_in(values))


def _asked_of(each: OfRank, wanted: TapList, stat: str, step: int) -> tuple[NDArray[np.bool_], RowsOf]:
    """Return which of the taps a rank has, and what to ask its store."""
    numbers = np.full(int(wanted.numbers.max(initial=-1)) + 1, -1, np.int64)
    fit = each.lanes < len(numbers)
    numbers[each.lanes[fit]] = np.flatnonzero(fit)
    found = numbers[wanted.numbers]
    here = found >= 0
    return here, RowsOf(each.store, found[here], stat, (step - each.shift, step - each.shift))


def spreads_of(found: Layers, places: Sequence[int]) -> tuple[answers.LayerSpread, ...]:
    spreads, apart = found.spreads, found.spreads.apart
    shown = []
    for place in places:
        odd = int(spreads.odd[place])
        each = answers.LayerSpread(
            tap=answers.Tap.of(int(found.taps.numbers[place]), found.taps.taps[place]),
            low=Number(spreads.low[place]),
            median=Number(spreads.median[place]),
            high=Number(spreads.high[place]),
            apart=Number(apart[place]),
            odd=None if odd < 0 else found.ranks[odd],
            odd_value=Number("nan" if odd < 0 else found.values[odd, place]),
            finite=int(spreads.finite[place]),
            present=int(spreads.present[place]),
        )
        shown.append(each)
    return tuple(shown)


# A value by rank and span of steps, and how far the ranks are apart in one of them. Pure; no web.

Steps = NDArray[np.int64]
ROWS_PER_COLUMN: Final = 4  # at least, of a rank, since a merged row counts in one column only


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """Values by rank and column."""

    ranks: tuple[int, ...]
    first: Steps
    last: Steps
    values: Floats

    def spread(self, column: int) -> RankSpread | None:
        """Return the spread of a column; None if no rank has a value."""
        found = spreads_in(self.values[:, column : column + 1])
        if not found.finite[0]:
            return None
        odd = None if found.odd[0] < 0 else self.ranks[int(found.odd[0])]
        low, median, high = (Number(each[0]) for each in (found.low, found.median, found.high))
        return RankSpread(int(self.first[column]), int(self.last[column]), low, median, high, odd, int(found.finite[0]))

    def newest(self) -> RankSpread | None:
        """Return the spread of the last column in which as many ranks have a value as in any other near the end."""
        counts = (~np.isnan(self.values)).sum(axis=0)
        if not len(counts) or not counts.max():
            return None
        most = counts[-8:].max()
        return self.spread(int(np.flatnonzero(counts[-8:] == most)[-1]) + max(0, len(counts) - 8))


def map_of(
    ranks: Sequence[OfRank], what: Tap | str, stat: str, first: int | None, last: int | None, columns: int
) -> Map:
    """Return the mean of a tap's stat, or of a logged value, by rank and equal spans of steps."""
    asked = [(rank, one) for rank in ranks if (one := _asked_for_map(rank, what, stat, first, last)) is not None]
    if not asked:
        name = what if isinstance(what, str) else what.label
        raise ArgumentError(f"no rank has {name!r}: name a tap or a logged value that some rank captured")
    answers = rows_of_all([one for _, one in asked], max(MAX_ROWS, ROWS_PER_COLUMN * columns))
    rows = [
        (each, replace(found, first=found.first + each.shift, last=found.last + each.shift))
        for (each, _), found in zip(asked, answers, strict=True)
    ]
    known = [(found.first, found.last) for _, found in rows if len(found.first)]
    begin = min((int(starts[0]) for starts, _ in known), default=0) if first is None else first
    end = max((int(ends[-1]) for _, ends in known), default=0) if last is None else last
    width = max(1, -(-(end - begin + 1) // columns))
    many = (end - begin) // width + 1 if known else 0
    starts = begin + width * np.arange(many, dtype=np.int64)
    numbers = sorted({rank.rank for rank in ranks})
    values = np.full((len(numbers), many), np.nan)
    for each, found in rows:  # of a rank that was restarted, there are several
        binned = _binned(found, begin, width, many)
        place = numbers.index(each.rank)
        values[place] = np.where(np.isnan(binned), values[place], binned)
    ends = np.minimum(starts + width - 1, end)
    return Map(tuple(numbers), starts, ends, values)


def _asked_for_map(each: OfRank, what: Tap | str, stat: str, first: int | None, last: int | None) -> RowsOf | None:
    """Return what to ask the store of a rank; None if it doesn't have that."""
    store, shift = each.store, each.shift
    span = None if first is None else first - shift, None if last is None else last - shift
    if isinstance(what, str):
        return RowsOf(store, what, span=span) if what in store.scalar_names() else None
    try:
        number = store.find_tap(what)[0]
    except ArgumentError:
        return None
    return RowsOf(store, np.array([number], np.int64), stat, span)


def _binned(rows: Rows, begin: int, width: int, columns: int) -> Floats:
    """Return the mean of each column: NaN without a value, infinite if none is finite.

    A merged row counts in the column of its middle.
    """
    place = ((rows.first + rows.last) // 2 - begin) // width
    inside = (place >= 0) & (place < columns) & (rows.present[:, 0] > 0)
    place, mean = place[inside], rows.mean[inside, 0]
    weight = np.where(np.isfinite(mean), rows.finite[inside, 0], 0).astype(np.float64)
    total = np.bincount(place, weight, columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.bincount(place, np.nan_to_num(mean, nan=0.0, posinf=0.0, neginf=0.0) * weight, columns) / total
    bad = np.bincount(place, rows.nonfinite[inside, 0].astype(np.float64), columns) > 0
    found[bad & (total == 0)] = np.inf
    return found

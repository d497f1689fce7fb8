"""Rows that ranks have stored, added up step by step, in the form in which a store reads them. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import HookcoreError
from hookcore.records import STAT_COLUMN, SketchBlock
from hookcore.records.sketch import places_of, rows_of
from hookcore.records.vocabulary import ELAPSED, GRAD_SCALE, MICRO_BATCHES, TIME
from hookcore.store import STAT_NAMES
from hookcore.store.rankstep import Repeated, StepOfRanks
from hookcore.store.rows import Cells, Rows, down_sample
from hookcore.store.segments import STAT_SCHEMA, Floats, Steps
from hookcore.store.sketches import SketchRows, narrow

from .native import Answer
from .questions import begins_of
from .schema import BOTH, MERGED, PART

# Rows that the ranks of a training have stored, added up step by step as the run of all ranks does it. Pure.

Places = NDArray[np.int64]
_COUNT: Final = STAT_COLUMN["count"]
_BAD: Final = [STAT_COLUMN[name] for name in ("nan", "inf")]
_LARGEST: Final = frozenset({TIME, ELAPSED, MICRO_BATCHES})  # of all ranks; other scalars are the mean


@dataclass(frozen=True, slots=True, eq=False)
class RankRows:
    """Rows as the ranks of one attempt sent them. `lane` is a tap's place among those that are asked for."""

    rank: Places
    lane: Places
    step: Steps
    number: Places  # of the frame among the items of its rank
    owner: NDArray[np.int32]
    role: NDArray[np.uint8]
    stats: Floats  # [row, stat]; NaN in columns that weren't read

    def take(self, rows: NDArray[np.intp]) -> RankRows:
        """Return some rows, in this order."""
        return RankRows(**{each.name: getattr(self, each.name)[rows] for each in fields(RankRows)})

    @classmethod
    def join(cls, parts: Sequence[RankRows]) -> RankRows:
        """Return the rows of all parts by step, lane, rank, and frame: those that a store would have taken, each once.

        ClickHouse may have a block twice.
        """
        joined = cls(
            **{each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)}
        )
        order = np.lexsort((joined.role, joined.number, joined.rank, joined.lane, joined.step))
        joined = joined.take(order)
        joined = joined.take(begins_of(joined.step, joined.lane, joined.rank, joined.number, joined.role))
        return joined.take(_real(joined))


def _real(rows: RankRows) -> NDArray[np.intp]:
    """Return which rows aren't late: whole steps, and parts up to the last one that was merged with the others."""
    is_part = (rows.role == PART) & ~np.isnan(rows.stats[:, _COUNT])
    if not (rows.role == MERGED).any():
        return np.flatnonzero(rows.role == BOTH)
    begins = begins_of(rows.step, rows.lane, rows.rank)
    lengths = np.diff(begins, append=len(rows.step))
    until = np.maximum.reduceat(np.where(rows.role == MERGED, rows.number, -1), begins)
    return np.flatnonzero((rows.role == BOTH) | (is_part & (rows.number <= np.repeat(until, lengths))))


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Which ranks captured other steps than the rest, and of which lanes each rank has values of its own."""

    skipped: Mapping[int, Steps] = field(default_factory=dict)  # by rank, of those that others captured
    own: Mapping[int, NDArray[np.bool_]] = field(default_factory=dict)  # by rank [lane]

    def lacking(self, step: Steps, lane: Places, rows: RankRows) -> NDArray[np.bool_]:
        """Return which sums of rows would be parts that look like the whole."""
        found = np.zeros(len(step), bool)
        for rank, steps in self.skipped.items():
            of_rank = (rows.rank == rank) & ((rows.owner == rank) | (rows.owner < 0))
            is_own = self.own[rank][lane] if rank in self.own else np.zeros(len(step), bool)
            found |= (is_own | np.isin(lane, rows.lane[of_rank])) & np.isin(step, steps)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """One row for each step and lane, by step and lane."""

    step: Steps
    lane: Places
    stats: Floats  # [row, stat]
    block: SketchBlock

    def some(self, wanted: NDArray[np.bool_]) -> Sums:
        rows = np.flatnonzero(wanted)
        return Sums(self.step[rows], self.lane[rows], self.stats[rows], rows_of(self.block, rows))


def add_up(rows: RankRows, shares: Shares, block: SketchBlock | None = None) -> Sums:
    """Return the sums of joined rows, with those of their sketches."""
    begins = begins_of(rows.step, rows.lane)
    group = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(rows.step)))
    turn = _turns(rows, group)
    # All steps at once: for a sum, a lane of some step is what a lane is in memory, where steps come one by one.
    sum_ = StepOfRanks(Repeated(known=True))
    for rank in np.unique(rows.rank).tolist():
        mine = np.flatnonzero(rows.rank == rank)
        for number in range(int(turn[mine].max()) + 1):
            part = mine[turn[mine] == number]
            sketches = SketchBlock.empty(len(part)) if block is None else rows_of(block, part)
            sum_.add(rank, group[part], rows.stats[part], sketches, rows.owner[part])
    found = sum_.finish()
    sums = Sums(rows.step[begins][found.lanes], rows.lane[begins][found.lanes], found.stats, found.block)
    is_bad = found.stats[:, _BAD].sum(axis=1) > 0
    return sums.some(is_bad | ~shares.lacking(sums.step, sums.lane, rows))


def lacking(rows: RankRows, has: Mapping[int, NDArray[np.bool_]]) -> dict[int, Steps]:
    """Return in which steps each rank has no row of a lane that it knows, and others have one. `has` is [lane]."""
    begins = begins_of(rows.step, rows.lane)
    group = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(rows.step)))
    step, lane = rows.step[begins], rows.lane[begins]
    found = {}
    for rank, lanes in has.items():
        lacks = lanes[lane]
        lacks[group[rows.rank == rank]] = False
        if lacks.any():
            found[rank] = np.unique(step[lacks])
    return found


def _turns(rows: RankRows, group: Places) -> Places:
    """Return how many rows of the same rank and group come before each row."""
    begins = begins_of(group, rows.rank)
    return np.arange(len(group)) - np.repeat(begins, np.diff(begins, append=len(group)))


@dataclass(frozen=True, slots=True, eq=False)
class Logged:
    """The values of one scalar by step and rank; each pair has one value."""

    rank: Places
    step: Steps
    value: Floats

    @classmethod
    def of(cls, rank: Places, step: Steps, value: Floats) -> Logged:
        """Return the values in order, without duplicates."""
        order = np.lexsort((rank, step))
        order = order[begins_of(step[order], rank[order])]
        return cls(rank[order], step[order], value[order])

    def some(self, wanted: NDArray[np.bool_]) -> Logged:
        return Logged(self.rank[wanted], self.step[wanted], self.value[wanted])


def merge_scalar(name: str, said: Logged, ranks_in: tuple[Steps, Places]) -> tuple[Steps, Floats]:
    """Return a scalar of all ranks by step. `ranks_in` has the steps, ascending, and how many ranks had a frame."""
    begins = begins_of(said.step)
    if not len(begins):
        return said.step, said.value
    steps, counts = said.step[begins], np.diff(begins, append=len(said.step))
    low, high = np.fmin.reduceat(said.value, begins), np.fmax.reduceat(said.value, begins)
    if name in _LARGEST:
        return steps, high
    same = (low == high) & ~np.isnan(np.add.reduceat(said.value, begins))
    if name == GRAD_SCALE:  # what isn't the same in all ranks isn't known of the step
        known = same & (counts == ranks_in[1][np.searchsorted(ranks_in[0], steps)])
        return steps[known], low[known]
    total = said.value[begins].copy()
    for place in range(1, int(counts.max())):  # one after the other, so that the sum is rounded as in memory
        more = np.flatnonzero(counts > place)
        total[more] += said.value[begins[more] + place]
    # Equal values stay as they are: their sum may be rounded.
    return steps, np.where(same, low, total / counts)


# Sums over ranks in the form in which a store reads them. Pure.


def nbytes_of(found: Rows | Cells | list[SketchRows] | HookcoreError) -> int:
    """Return the memory of an answer, or about that of the reason why there is none."""
    if isinstance(found, HookcoreError):
        rest = getattr(found, "rest", None)
        return sys.getsizeof(str(found)) + (0 if rest is None else nbytes_of(rest))
    if isinstance(found, list):
        return sum(each.nbytes for each in found)
    return sum(getattr(found, each.name).nbytes for each in fields(found))


def placed(rows: Rows, places: NDArray[np.int64], lanes: int, shift: int) -> Rows:
    """Return rows of some lanes as those of all, at later steps."""
    shape = len(rows.first), lanes
    floats = [np.full(shape, np.nan) for _ in range(3)]
    counts = [np.zeros(shape, np.uint32) for _ in range(3)]
    for into, values in zip(floats, (rows.mean, rows.low, rows.high), strict=True):
        into[:, places] = values
    for into, numbers in zip(counts, (rows.finite, rows.present, rows.nonfinite), strict=True):
        into[:, places] = numbers
    return Rows(rows.first + shift, rows.last + shift, *floats, *counts)


def add_cells(cells: Cells, found: Cells, places: NDArray[np.int64]) -> None:
    cells.low[:, places] = np.fmin(cells.low[:, places], found.low)
    cells.high[:, places] = np.fmax(cells.high[:, places], found.high)
    cells.nonfinite[:, places] += found.nonfinite
    cells.present[:, places] += found.present


def moved(entry: SketchRows, taps: NDArray[np.uint32], shift: int) -> SketchRows:
    """Return a rank's sketches as those of a tap of all ranks, at later steps."""
    return replace(entry, first=entry.first + shift, last=entry.last + shift, taps=taps)


def sketches_over(
    found: Answer, newest: NDArray[np.intp], taps: Mapping[int, int], ends: Sequence[int], shift: int
) -> list[SketchRows]:
    """Return rows of stored sums as sketches of taps, which are given by lane. The last buckets end at their ends."""
    level, bucket, steps = (found.numbers(name)[newest].astype(np.int64) for name in ("level", "bucket", "present"))
    known = np.array(sorted(taps), np.uint64)
    of_lane = np.array([taps[lane] for lane in known.tolist()], np.uint32)
    tap = of_lane[np.searchsorted(known, found.numbers("lane")[newest])]
    (bins, counts), first = found.histograms(), bucket << level
    order = np.lexsort((tap, first))
    last_ends, made = np.sort(np.array(ends, np.int64)), []
    for rows in np.split(order, np.flatnonzero(np.diff(first[order])) + 1) if len(order) else ():
        start, places = places_of(bins.starts, newest[rows])
        begin, at = int(first[rows[0]]), int(level[rows[0]])
        last = min(begin + (1 << at) - 1, int(last_ends[np.searchsorted(last_ends, begin)]))
        # Taps may be captured in different steps; there are at least as many as of one of them.
        about = begin + shift, last + shift, int(steps[rows].max()), tap[rows], start.astype(np.uint32)
        made.append(SketchRows(*about, bins.values[places], narrow(counts[places])))
    return made


def sketches_in(sums: Sums, taps: NDArray[np.uint32]) -> Iterator[SketchRows]:
    """Yield the sketches of each step."""
    begins = sums.block.start.astype(np.int64)
    has = np.flatnonzero(np.diff(begins))
    for rows in np.split(has, np.flatnonzero(np.diff(sums.step[has])) + 1) if len(has) else ():
        start, places = places_of(begins, rows)
        step = int(sums.step[rows[0]])
        values = sums.block.bins[places], sums.block.counts[places]
        yield SketchRows(step, step, 1, taps[sums.lane[rows]], start.astype(np.uint32), *values)


def rows_in(sums: Sums, stat: str, lanes: int) -> Rows:
    """Return one stat of sums [row, lane]."""
    steps, row = np.unique(sums.step, return_inverse=True)
    at, shape = (row, sums.lane), (len(steps), lanes)
    values = np.full(shape, np.nan)
    present, nonfinite = np.zeros(shape, np.uint32), np.zeros(shape, np.uint32)

    def stored(column: int) -> Floats:
        return sums.stats[:, column]

    values[at], present[at] = STAT_SCHEMA.read(STAT_NAMES.index(stat), stored), 1
    nonfinite[at] = STAT_SCHEMA.count_nonfinite(stored)
    return Rows(steps, steps, values, values, values, (~np.isnan(values)).astype(np.uint32), present, nonfinite)


def rows_over(rows: Rows, width: int) -> Rows:
    """Return rows that each stand for about so many steps, with every extreme and count."""
    if width <= 1 or not len(rows.first):
        return rows
    return down_sample(rows, -(-int(rows.last[-1] - rows.first[0] + 1) // width))


def in_time(parts: Sequence[Rows], lanes: int) -> Rows:
    """Return rows of parts in the order of their steps."""
    if not parts:
        return Rows.empty(lanes)
    rows = Rows.stack(parts)
    order = np.argsort(rows.first, kind="stable")
    return Rows(*(getattr(rows, each.name)[order] for each in fields(rows)))


def rows_of_scalar(step: Steps, value: Floats) -> Rows:
    """Return the values of a scalar as rows."""
    finite = np.isfinite(value)[:, None]
    values = np.where(finite, value[:, None], np.nan)
    counts = finite.astype(np.uint32), np.ones(finite.shape, np.uint32), (~finite).astype(np.uint32)
    return Rows(step, step, values, values, values, *counts)

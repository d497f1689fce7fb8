"""Rows that the ranks of a training have stored, added up step by step as the run of all ranks does it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, SketchBlock
from hookcore.records.sketch import rows_of
from hookcore.records.vocabulary import ELAPSED, GRAD_SCALE, MICRO_BATCHES, TIME
from hookcore.store.rankstep import Repeated, StepOfRanks
from hookcore.store.segments import Floats, Steps

from .groups import begins_of
from .tables import BOTH, MERGED, PART

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

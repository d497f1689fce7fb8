"""One step of a distributed training: the rows of its ranks are added up as they arrive, and each value counts once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, STATS, SketchBlock
from hookcore.records.sketch import rows_of
from hookcore.store.copies import MAX_DIFFERENCES, TURNS, Copies, Difference, Lanes, Rows
from hookcore.store.schemas import merge_stats
from hookcore.store.segments import Floats, lanes_of
from hookcore.store.sketches import SketchRows, sum_up

MAX_WORLD: Final = 2**15 - 1
_SKETCHES_AT_ONCE: Final = 16
_COUNT, _NORM, _RATIO = (STAT_COLUMN[name] for name in ("count", "norm", "ratio"))
_SAME: Final = [column for column in range(len(STATS)) if column != _RATIO]
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)

Owners = NDArray[np.int32]
Digests = NDArray[np.uint64]
Number = TypeVar("Number", bound=np.generic)


@dataclass(slots=True)
class Repeated:
    """Learned facts about a training: which taps have rows that several ranks share."""

    lanes: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    known: bool = False  # a whole step was seen

    def note(self, lanes: Lanes) -> None:
        """Add taps."""
        if len(lanes):
            self.lanes = _longer(self.lanes, int(lanes.max()) + 1)
            self.lanes[lanes] = True

    def of(self, lanes: Lanes) -> NDArray[np.bool_]:
        """Return which rows to keep, so that those of other ranks can be compared with them."""
        if not self.known:
            return np.ones(len(lanes), bool)
        found = np.zeros(len(lanes), bool)
        fit = lanes < len(self.lanes)
        found[fit] = self.lanes[lanes[fit]]
        return found


class StepOfRanks:
    """The sum of one step's rows. See `Frame.owners` for whose values a row is.

    An owner's rows count, and those of others are compared with them. If an owner sends none of a tap, another rank's
    rows count when the step is finished.
    """

    def __init__(self, repeated: Repeated) -> None:
        self._repeated = repeated
        self._stats = np.empty((len(STATS), 0))
        self._here = np.zeros(0, bool)
        self._turns: dict[int, NDArray[np.uint8]] = {}  # by rank: how often each tap has come
        self._copies: dict[int, Copies] = {}  # by owner
        self._stand_ins: dict[tuple[int, int], int] = {}  # by owner and tap: the rank whose rows count instead
        self._unowned: Digests = np.empty(0, np.uint64)  # of rows without an owner, ascending
        self._sketches: list[SketchRows] = []
        self._base = np.zeros(0)  # of ratios: the sum of squares of their reference
        self._no_base = np.zeros(0, bool)
        self._rows = np.zeros(0, np.int32)
        self._is_finished = False

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        copies = sum(each.nbytes for each in self._copies.values())
        sketches = sum(each.nbytes for each in self._sketches)
        turns = len(self._turns) * len(self._here)  # at most
        return int(self._stats.nbytes + copies + sketches + turns + self._unowned.nbytes)

    @property
    def compared(self) -> int:
        """The number of rows of which another rank had the same values to compare with."""
        return sum(each.compared for each in self._copies.values())

    def differences(self) -> list[Difference]:
        """Return what ranks should have in common, and don't."""
        found = [each for copies in self._copies.values() for each in copies.differences(self._ranks_with)]
        return sorted(found, key=lambda each: each.lane)[:MAX_DIFFERENCES]

    def add(self, rank: int, lanes: Lanes, stats: Floats, block: SketchBlock, owners: Owners) -> Rows:
        """Add the rows of a rank; return those that count so far. Ranks may come in any order, and in several parts."""
        absent = np.isnan(stats[:, _COUNT])
        if np.count_nonzero(absent) or not (lanes[1:] >= lanes[:-1]).all():
            here = np.flatnonzero(~absent)
            here = here[np.argsort(lanes[here], kind="stable")]
            lanes, stats, owners, block = lanes[here], stats[here], owners[here], rows_of(block, here)
        self._grow(int(lanes[-1]) + 1 if len(lanes) else 0)
        turn = self._turn_of(rank, lanes)
        keys = lanes * TURNS + turn
        rows = Rows(lanes, stats, block)
        counts = owners == rank
        shared = ~counts & (owners >= 0)
        unowned = owners < 0
        self._repeated.note(lanes[shared])
        if unowned.any():
            counts[unowned] = self._are_new(keys[unowned], stats[unowned])
        kept = counts & ~unowned & self._repeated.of(lanes)
        if self._is_finished:
            self._count_late(rank, lanes, owners, counts, shared)
        for owner in np.unique(owners[kept | shared]).tolist():
            these = (owners == owner) & (kept | shared)
            copies = self._copies.setdefault(owner, Copies(owner))
            copies.take(rank, keys[these], rows.some(these), with_sketches=owner != rank)
        taken = rows.some(counts)
        self._sum(taken)
        return taken

    def finish(self) -> Rows:
        """Return the sum of all rows so far."""
        if not self._is_finished:
            self._is_finished = True
            for owner, copies in self._copies.items():
                for rank, rows in copies.stand_ins(partial(_have_come, self._turns.get(owner))):
                    self._sum(rows)
                    self._stand_ins |= {(owner, lane): rank for lane in rows.lanes.tolist()}
        lanes = np.flatnonzero(self._here)
        stats = self._stats[:, lanes].T.copy()
        self._fill_ratios(lanes, stats)
        block = self._sum_of_sketches()
        if block is None:
            return Rows(lanes, stats, SketchBlock.empty(len(lanes)))
        start = np.zeros(len(lanes) + 1, np.int64)
        start[np.searchsorted(lanes, block.taps) + 1] = np.diff(block.start.astype(np.int64))
        # More than four billion values in one bin are too many for a frame.
        counts = np.minimum(block.counts, np.iinfo(np.uint32).max).astype(np.uint32)
        return Rows(lanes, stats, SketchBlock(np.cumsum(start).astype(np.uint32), block.bins, counts))

    def _count_late(
        self, rank: int, lanes: Lanes, owners: Owners, counts: NDArray[np.bool_], shared: NDArray[np.bool_]
    ) -> None:
        """Decide about rows that come after the sum was taken: another rank's may count instead of the owner's."""
        for row in np.flatnonzero(counts | shared).tolist():
            owner, lane = int(owners[row]), int(lanes[row])
            if owner < 0:
                continue
            has_owner = owner != rank and _have_come(self._turns.get(owner), lanes[row : row + 1])[0]
            counts[row] = not has_owner and self._stand_ins.setdefault((owner, lane), rank) == rank

    def _grow(self, lanes: int) -> None:
        more = lanes - len(self._here)
        if more <= 0:
            return
        self._here = _longer(self._here, lanes)
        self._base, self._no_base, self._rows = (
            _longer(each, lanes) for each in (self._base, self._no_base, self._rows)
        )
        self._stats = np.concatenate([self._stats, np.full((len(STATS), more), np.nan)], axis=1)

    def _turn_of(self, rank: int, lanes: Lanes) -> NDArray[np.int64]:
        """Return how often each tap came from this rank before, and count it."""
        turns = self._turns[rank] = _longer(self._turns.get(rank, np.zeros(0, np.uint8)), len(self._here))
        before = turns[lanes].astype(np.int64)
        turns[lanes] = np.minimum(before + 1, TURNS - 1)
        return before

    def _ranks_with(self, lane: int) -> set[int]:
        return {rank for rank, turns in self._turns.items() if lane < len(turns) and turns[lane]}

    def _are_new(self, keys: Lanes, stats: Floats) -> NDArray[np.bool_]:
        """Return which rows without an owner differ from those of all other ranks. Equal ones are one value."""
        digests = _digests(keys, stats)
        place = np.searchsorted(self._unowned, digests)
        new = np.ones(len(digests), bool)
        if len(self._unowned):
            new = self._unowned[np.minimum(place, len(self._unowned) - 1)] != digests
        order = np.flatnonzero(new)[np.argsort(digests[new])]
        self._unowned = np.insert(self._unowned, place[order], digests[order])
        return new

    def _sum(self, rows: Rows) -> None:
        lanes, stats = rows.lanes, rows.stats.T
        again = self._here[lanes]
        if again.all():  # as of all ranks but the first
            old = lanes_of(lanes)
            self._stats[:, old] = merge_stats(self._stats[:, old], stats)
        else:
            self._stats[:, lanes[~again]] = stats[:, ~again]
            old = lanes[again]
            self._stats[:, old] = merge_stats(self._stats[:, old], stats[:, again])
        self._here[lanes] = True
        self._rows[lanes] += 1
        has_ratio = ~np.isnan(stats[_RATIO])
        if has_ratio.any():
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                base = (stats[_NORM] / stats[_RATIO]) ** 2
            usable = has_ratio & np.isfinite(base) & (base > 0)
            self._base[lanes[usable]] += base[usable]
            self._no_base[lanes[has_ratio & ~usable]] = True
        if rows.block.bins.size:
            block, taps = rows.block, lanes.astype(np.uint32)
            self._sketches.append(SketchRows(0, 0, 1, taps, block.start, block.bins, block.counts))
            if len(self._sketches) >= _SKETCHES_AT_ONCE:
                self._sketches = [sum_up(self._sketches)]

    def _fill_ratios(self, lanes: Lanes, stats: Floats) -> None:
        """The update of a split parameter, relative to the whole of it. Unknown if some part didn't change."""
        many = (self._rows[lanes] > 1) & ~np.isnan(stats[:, _RATIO])
        if not many.any():
            return
        base, unknown, norm = self._base[lanes], self._no_base[lanes], stats[:, _NORM]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(unknown, np.nan, norm / np.sqrt(base))
        ratio[norm == 0] = 0.0
        stats[many, _RATIO] = ratio[many]

    def _sum_of_sketches(self) -> SketchRows | None:
        if len(self._sketches) > 1:
            self._sketches = [sum_up(self._sketches)]
        return self._sketches[0] if self._sketches else None


def _have_come(turns: NDArray[np.uint8] | None, lanes: Lanes) -> NDArray[np.bool_]:
    """Return which taps a rank has sent."""
    found = np.zeros(len(lanes), bool)
    if turns is not None:
        fit = lanes < len(turns)
        found[fit] = turns[lanes[fit]] > 0
    return found


def _digests(keys: Lanes, stats: Floats) -> NDArray[np.uint64]:
    """Return a number for each row that is the same for the same key and statistics."""
    values = stats[:, _SAME] + 0.0  # a negative zero is a zero
    values[np.isnan(values)] = np.nan
    digest: NDArray[np.uint64] = keys.astype(np.uint64) * _FACTOR
    for column in values.view(np.uint64).T:
        digest ^= column
        digest *= _FACTOR
        digest ^= digest >> np.uint64(29)
    return digest


def _longer(array: NDArray[Number], length: int) -> NDArray[Number]:
    """Return the array with zeros at its end."""
    if len(array) >= length:
        return array
    return np.concatenate([array, np.zeros(length - len(array), array.dtype)])

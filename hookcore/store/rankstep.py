"""One step of a distributed training: rows of its ranks are added up as they arrive, or compared if they are copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, STATS, SketchBlock
from hookcore.records.sketch import rows_of
from hookcore.store.segments import Floats, lanes_of, merge_stats
from hookcore.store.sketches import SketchRows, sum_up

# Rows of which several ranks should have the same values: kept until they are compared, and the ranks that differ.

Lanes = NDArray[np.int64]
MAX_DIFFERENCES: Final = 256  # taps of a step
TURNS: Final = 256
# Counts and extremes of the same values are the same. Sums may have been rounded in another order, on another machine.
_EXACT: Final = tuple(STAT_COLUMN[name] for name in ("count", "nan", "inf", "zero", "min", "max"))
_CLOSE: Final = tuple(STAT_COLUMN[name] for name in ("mean", "std", "rms", "norm"))
_TOLERANCE: Final = 1e-6  # of the root mean square, or of the norm
_NORM_COLUMN, _RMS = STAT_COLUMN["norm"], STAT_COLUMN["rms"]
_COLUMNS: Final = np.array([*_EXACT, *_CLOSE])


@dataclass(frozen=True, slots=True)
class Difference:
    """Values that several ranks should have in common, and don't. `lane` is a tap's number.

    Ranks with the same value are a group. The largest group is first, and of equally large ones that of the lowest
    rank, so that the order in which ranks arrive doesn't matter.
    """

    lane: int
    stat: str
    groups: tuple[tuple[tuple[int, ...], float], ...]

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that differ from the most of them; nothing if no group is larger than all others."""
        first, *others = self.groups
        return tuple(sorted(rank for ranks, _ in others for rank in ranks)) if len(first[0]) > len(others[0][0]) else ()


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one rank that count, or may count: taps ascending."""

    lanes: Lanes
    stats: Floats  # [lane, stat]
    block: SketchBlock

    def some(self, wanted: NDArray[np.bool_]) -> Rows:
        if wanted.all():
            return self
        rows = np.flatnonzero(wanted)
        return Rows(self.lanes[rows], self.stats[rows], rows_of(self.block, rows))


@dataclass(frozen=True, slots=True)
class _Copy:
    """Rows of one rank, with which those of other ranks are compared."""

    rank: int
    keys: Lanes  # tap and turn, ascending
    rows: Rows

    @property
    def nbytes(self) -> int:
        block = self.rows.block
        return int(self.keys.nbytes + self.rows.stats.nbytes + block.bins.nbytes + block.counts.nbytes)


@dataclass(slots=True)
class _Apart:
    """A tap of which some rank differs from the one that was first."""

    first: tuple[int, Floats]
    others: dict[int, Floats] = field(default_factory=dict)


@dataclass(slots=True)
class Copies:
    """Those of one owner in one step."""

    owner: int
    compared: int = 0  # rows
    _copies: list[_Copy] = field(default_factory=list)
    _ranks: set[int] = field(default_factory=set)  # that have sent any
    _apart: dict[int, _Apart] = field(default_factory=dict)  # by tap

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return sum(copy.nbytes for copy in self._copies)

    def take(self, rank: int, keys: Lanes, rows: Rows, with_sketches: bool) -> None:
        """Compare rows with those of the first rank, and keep those that are the first of their tap."""
        self._ranks.add(rank)
        is_new = np.ones(len(keys), bool)
        for copy in self._copies:
            if copy.rank != rank and len(copy.keys):
                place = np.minimum(np.searchsorted(copy.keys, keys), len(copy.keys) - 1)
                again = np.flatnonzero(is_new & (copy.keys[place] == keys))
                is_new[again] = False
                self._compare(copy, place[again], rank, rows.stats[again])
        if is_new.any():
            kept = rows.some(is_new)
            if not with_sketches:  # its owner's values count already
                kept = Rows(kept.lanes, kept.stats, SketchBlock.empty(len(kept.lanes)))
            self._copies.append(_Copy(rank, keys[is_new], kept))

    def _compare(self, copy: _Copy, place: Lanes, rank: int, stats: Floats) -> None:
        self.compared += len(place)
        expected = copy.rows.stats[place]
        for row in np.flatnonzero(_are_apart(stats, expected).any(axis=1)).tolist():
            lane = int(copy.rows.lanes[place[row]])
            if lane not in self._apart and len(self._apart) >= MAX_DIFFERENCES:
                return
            apart = self._apart.setdefault(lane, _Apart((copy.rank, expected[row].copy())))
            apart.others.setdefault(rank, stats[row].copy())

    def stand_ins(self, has_come: Callable[[Lanes], NDArray[np.bool_]]) -> Iterator[tuple[int, Rows]]:
        """Yield the rows that count because the owner has sent none of their taps, with the ranks they are from."""
        taken = np.empty(0, np.int64)
        for copy in self._copies:
            if copy.rank == self.owner:
                continue
            rows = copy.rows.some(~has_come(copy.rows.lanes) & ~np.isin(copy.rows.lanes, taken))
            if len(rows.lanes):
                taken = np.append(taken, rows.lanes)
                yield copy.rank, rows

    def differences(self, holders: Callable[[int], set[int]]) -> Iterator[Difference]:
        """Yield what differs, by tap. `holders` returns the ranks that have sent a tap."""
        for lane, apart in sorted(self._apart.items()):
            rank, first = apart.first
            alike = (self._ranks & holders(lane)) - apart.others.keys() | {rank}
            values = [(rank, first), *sorted(apart.others.items())]
            column = next(each for each in _COLUMNS.tolist() if any(_apart_in(each, first, row) for _, row in values))
            groups: list[tuple[Floats, list[int]]] = [(first, sorted(alike))]
            for other, row in values[1:]:
                group = next((ranks for known, ranks in groups if not _apart_in(column, known, row)), None)
                if group is None:
                    groups.append((row, [other]))
                else:
                    group.append(other)
            every = [(tuple(sorted(ranks)), float(row[column])) for row, ranks in groups]
            every.sort(key=lambda each: (-len(each[0]), each[0]))
            yield Difference(lane, STATS[column], tuple(every))


def _apart_in(column: int, first: Floats, row: Floats) -> bool:
    place = _COLUMNS.tolist().index(column)
    return bool(_are_apart(row[None], first[None])[0, place])


def _are_apart(values: Floats, expected: Floats) -> NDArray[np.bool_]:
    """Return which statistics of which rows differ [row, place in _COLUMNS]."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart: NDArray[np.bool_] = ~((values == expected) | (np.isnan(values) & np.isnan(expected)))
        scale = np.maximum(np.abs(expected[:, _RMS]), np.abs(values[:, _RMS]))
        for column in _CLOSE:
            size = np.maximum(np.abs(expected[:, column]), scale if column != _NORM_COLUMN else 0.0)
            apart[:, column] &= ~(np.abs(values[:, column] - expected[:, column]) <= _TOLERANCE * size)
    return apart[:, _COLUMNS]


MAX_WORLD: Final = 2**15 - 1
_SKETCHES_AT_ONCE: Final = 16
_COUNT, _NORM, _SKETCHED, _RATIO = (STAT_COLUMN[name] for name in ("count", "norm", "sketched", "ratio"))
_SAME: Final = [column for column in range(len(STATS)) if column not in (_SKETCHED, _RATIO)]
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)

Owners = NDArray[np.int32]
Digests = NDArray[np.uint64]
Number = TypeVar("Number", bound=np.generic)


@dataclass(slots=True)
class Repeated:
    """Learned facts about a training: which taps have rows that several ranks share."""

    lanes: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    known: bool = False  # a whole step was seen

    def add(self, lanes: Lanes) -> None:
        """Add taps."""
        if len(lanes):
            self.lanes = _longer(self.lanes, int(lanes.max()) + 1)
            self.lanes[lanes] = True

    def keeps(self, lanes: Lanes) -> NDArray[np.bool_]:
        """Return which rows to keep, so that those of other ranks can be compared with them."""
        if not self.known:
            return np.ones(len(lanes), bool)
        kept = np.zeros(len(lanes), bool)
        fit = lanes < len(self.lanes)
        kept[fit] = self.lanes[lanes[fit]]
        return kept


class StepOfRanks:
    """The sum of one step's rows. See `Frame.owners` for whose values a row is.

    An owner's rows count, and those of others are compared with them. If an owner sends none of a tap, another rank's
    rows count when the step is finished.

    A tap has a histogram if all ranks whose rows count have one in this step: without some of its values, it would be
    that of other values.
    """

    def __init__(self, repeated: Repeated) -> None:
        self._repeated = repeated
        self._stats = np.empty((len(STATS), 0))
        self._here = np.zeros(0, bool)
        self._lacks_sketch = np.zeros(0, bool)  # taps of which some rank has no histogram
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
        copies = sum(copy.nbytes for copy in self._copies.values())
        sketches = sum(sketch.nbytes for sketch in self._sketches)
        turns = len(self._turns) * len(self._here)  # at most
        return int(self._stats.nbytes + copies + sketches + turns + self._unowned.nbytes)

    @property
    def compared(self) -> int:
        """The number of rows of which another rank had the same values to compare with."""
        return sum(copy.compared for copy in self._copies.values())

    def differences(self) -> list[Difference]:
        """Return what ranks should have in common, and don't."""
        differences = [
            difference for copies in self._copies.values() for difference in copies.differences(self._ranks_with)
        ]
        return sorted(differences, key=lambda one: one.lane)[:MAX_DIFFERENCES]

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
        self._repeated.add(lanes[shared])
        if unowned.any():
            self._note_sketches(rows.some(unowned))
            counts[unowned] = self._are_new(keys[unowned], stats[unowned])
        kept = counts & ~unowned & self._repeated.keeps(lanes)
        if self._is_finished:
            self._count_late(rank, lanes, owners, counts, shared)
        for owner in np.unique(owners[kept | shared]).tolist():
            these = (owners == owner) & (kept | shared)
            copies = self._copies.setdefault(owner, Copies(owner))
            copies.take(rank, keys[these], rows.some(these), with_sketches=owner != rank)
        taken = rows.some(counts)
        self._sum(taken)
        return self._with_whole_sketches(taken) if self._is_finished else taken

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
        every = Rows(lanes, stats, SketchBlock(np.cumsum(start).astype(np.uint32), block.bins, counts))
        return self._with_whole_sketches(every)

    def _note_sketches(self, rows: Rows) -> None:
        """Note which taps have rows without a histogram."""
        lacks = (rows.stats[:, _COUNT] > 0) & (rows.block.start[1:] == rows.block.start[:-1])
        self._lacks_sketch[rows.lanes[lacks]] = True

    def _with_whole_sketches(self, rows: Rows) -> Rows:
        """Return the rows without the histograms of taps of which some rank has none."""
        lacks = self._lacks_sketch[rows.lanes] & (np.diff(rows.block.start.astype(np.int64)) > 0)
        if not lacks.any():
            return rows
        lengths = np.where(lacks, 0, np.diff(rows.block.start.astype(np.int64)))
        block = rows_of(rows.block, np.flatnonzero(~lacks))
        stats = rows.stats.copy()
        stats[lacks, _SKETCHED] = 0
        return Rows(rows.lanes, stats, replace(block, start=np.append(0, np.cumsum(lengths)).astype(np.uint32)))

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
            _longer(sums, lanes) for sums in (self._base, self._no_base, self._rows)
        )
        self._lacks_sketch = _longer(self._lacks_sketch, lanes)
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
        self._note_sketches(rows)
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
    came = np.zeros(len(lanes), bool)
    if turns is not None:
        fit = lanes < len(turns)
        came[fit] = turns[lanes[fit]] > 0
    return came


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

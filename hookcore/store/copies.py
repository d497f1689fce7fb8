"""Rows of which several ranks should have the same values: kept until they are compared, and the ranks that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, STATS, SketchBlock
from hookcore.records.sketch import rows_of
from hookcore.store.segments import Floats

Lanes = NDArray[np.int64]
MAX_DIFFERENCES: Final = 256  # taps of a step
TURNS: Final = 256
# Counts and extremes of the same values are the same. Sums may have been rounded in another order, on another machine.
_EXACT: Final = tuple(STAT_COLUMN[name] for name in ("count", "nan", "inf", "zero", "min", "max"))
_CLOSE: Final = tuple(STAT_COLUMN[name] for name in ("mean", "std", "rms", "norm"))
_TOLERANCE: Final = 1e-6  # of the root mean square, or of the norm
_NORM, _RMS = STAT_COLUMN["norm"], STAT_COLUMN["rms"]
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
        return sum(each.nbytes for each in self._copies)

    def take(self, rank: int, keys: Lanes, rows: Rows, with_sketches: bool) -> None:
        """Compare rows with those of the first rank, and keep those that are the first of their tap."""
        self._ranks.add(rank)
        is_new = np.ones(len(keys), bool)
        for copy in self._copies:
            if copy.rank != rank and len(copy.keys):
                place = np.minimum(np.searchsorted(copy.keys, keys), len(copy.keys) - 1)
                found = np.flatnonzero(is_new & (copy.keys[place] == keys))
                is_new[found] = False
                self._compare(copy, place[found], rank, rows.stats[found])
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


def _are_apart(found: Floats, expected: Floats) -> NDArray[np.bool_]:
    """Return which statistics of which rows differ [row, place in _COLUMNS]."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart: NDArray[np.bool_] = ~((found == expected) | (np.isnan(found) & np.isnan(expected)))
        scale = np.maximum(np.abs(expected[:, _RMS]), np.abs(found[:, _RMS]))
        for column in _CLOSE:
            size = np.maximum(np.abs(expected[:, column]), scale if column != _NORM else 0.0)
            apart[:, column] &= ~(np.abs(found[:, column] - expected[:, column]) <= _TOLERANCE * size)
    return apart[:, _COLUMNS]

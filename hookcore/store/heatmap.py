"""The worst value of many taps over time, in cells of data space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.store.rows import Rows
from hookcore.store.segments import Counts, Floats, Steps

_SHORT: Final = 8


@dataclass(frozen=True, slots=True)
class Columns:
    """Equal spans of the steps from first to last."""

    first: int
    last: int
    number: int

    def of(self, steps: Steps) -> Steps:
        """Return the column of each step; steps outside count for the nearest column."""
        inside = np.minimum(np.maximum(steps, self.first), self.last) - self.first
        return inside * self.number // (self.last - self.first + 1)

    def first_steps(self) -> Steps:
        span = self.last - self.first + 1
        return self.first - (-np.arange(self.number, dtype=np.int64) * span) // self.number

    def last_steps(self) -> Steps:
        return np.append(self.first_steps()[1:] - 1, self.last)


def columns_over(
    parts: Sequence[Rows], first: int | None, last: int | None, most: int, before: tuple[int, int] | None = None
) -> Columns | None:
    """Return at most this many columns over the steps that exist between first and last; None if there are none.

    `before` are steps before those of the parts.
    """
    ends = [int(parts[0].first[0]), int(parts[-1].last[-1])] if parts else []
    ends += before or ()
    if not ends:
        return None
    start, end = min(ends), max(ends)
    start = start if first is None else max(start, first)
    end = end if last is None else min(end, last)
    return Columns(start, end, min(most, end - start + 1))


@dataclass(frozen=True, slots=True)
class Cells:
    """The values of each cell [column, lane]."""

    low: Floats
    high: Floats
    nonfinite: Counts
    present: Counts

    @classmethod
    def make(cls, columns: int, lanes: int) -> Cells:
        """Return empty cells."""
        shape = columns, lanes
        counts = np.zeros(shape, np.uint32), np.zeros(shape, np.uint32)
        return cls(np.full(shape, np.nan), np.full(shape, np.nan), *counts)

    def add(self, columns: Columns, rows: Rows, streaks: Streaks) -> None:
        """Put the values of rows into every cell whose steps they touch, and count each of their steps in one cell."""
        begin_column, end_column = columns.of(rows.first), columns.of(rows.last)
        touched = np.arange(begin_column[0], end_column[-1] + 1)
        begin = np.searchsorted(end_column, touched, side="left").tolist()
        end = np.searchsorted(begin_column, touched, side="right").tolist()
        for column, rows_from, rows_to in zip(touched.tolist(), begin, end, strict=True):
            if rows_from < rows_to:
                _combine(np.fmin, self.low[column], rows.low[rows_from:rows_to])
                _combine(np.fmax, self.high[column], rows.high[rows_from:rows_to])
                whole = _within(column, begin_column, end_column, slice(rows_from, rows_to))
                if whole.start < whole.stop:
                    _combine(np.add, self.nonfinite[column], rows.nonfinite[whole])
                    _combine(np.add, self.present[column], rows.present[whole])
        for row in np.flatnonzero(begin_column < end_column).tolist():
            self._spread(columns, rows, row, streaks)

    def _spread(self, columns: Columns, rows: Rows, row: int, streaks: Streaks) -> None:
        """Distribute the steps of a row over the columns that it touches, in whole numbers that add up.

        Non-finite steps go to the columns of their streaks. Other steps are assumed to be evenly spaced.
        """
        ends = np.array([rows.first[row], rows.last[row]])
        begin, end = columns.of(ends).tolist()
        touched = slice(begin, end + 1)
        borders = np.append(np.maximum(columns.first_steps()[touched], ends[0]), ends[1] + 1)
        borders[0] = ends[0]  # steps outside count for the nearest column
        bad = streaks.steps_before(borders)
        room = bad[-1]
        nonfinite = rows.nonfinite[row].astype(np.int64)
        unknown = room < nonfinite  # more streaks than the ledger keeps: those steps may be anywhere in the row
        bad[:, unknown] = (borders - ends[0])[:, None]
        shared = _share(nonfinite, bad)
        fine = (borders - ends[0])[:, None] - bad * ~unknown
        self.nonfinite[touched] += shared
        self.present[touched] += shared + _share(rows.present[row] - nonfinite, fine)

    def group(self, most: int) -> tuple[Cells, Steps]:
        """Merge neighboring lanes into at most this many; return them with the first lane of each."""
        lanes = self.low.shape[1]
        number = min(most, lanes)
        starts = -(-np.arange(number, dtype=np.int64) * lanes // number)
        if number == lanes:
            return self, starts
        low, high = _fold(np.fmin, self.low, starts), _fold(np.fmax, self.high, starts)
        counts = (_fold(np.add, each, starts) for each in (self.nonfinite, self.present))
        return Cells(low, high, *counts), starts

    def valued(self) -> Counts:
        """Return the number of steps in cells with a value: a stat may have none, such as a share of zero."""
        return np.where((self.nonfinite == 0) & np.isnan(self.high), 0, self.present)

    def worst(self) -> Floats:
        """Return the value with the largest magnitude; NaN if a tensor was non-finite, or if there is none."""
        worst: Floats = self.high.copy()
        np.copyto(worst, self.low, where=-self.low > self.high)
        np.copyto(worst, np.nan, where=(self.nonfinite > 0) | (self.present == 0))
        return worst


@dataclass(frozen=True, slots=True)
class Streaks:
    """The steps between which each lane was non-finite [streak, lane], ascending; (0, -1) is none."""

    first: Steps
    last: Steps

    def steps_before(self, borders: Steps) -> Steps:
        """Return how many steps of streaks lie between the first border and each [border, lane]."""
        passed = np.minimum(borders[:, None, None], self.last + 1) - np.maximum(borders[0], self.first)
        steps: Steps = np.maximum(passed, 0).sum(axis=1)
        return steps


def _within(column: int, begin_column: Steps, end_column: Steps, rows: slice) -> slice:
    """Return which of the rows that touch a column touch no other. Only the first and the last can reach further."""
    start, stop = rows.start, rows.stop
    start += int(begin_column[start] < column or end_column[start] > column)
    stop -= int(stop > start and end_column[stop - 1] > column)
    return slice(start, stop)


def _share(steps: NDArray[Any], passed: Steps) -> Counts:
    """Return the share of steps [lane] between two borders, proportional to `passed` [border, lane]."""
    total = np.maximum(passed[-1], 1)
    until = steps * passed // total
    shared: Counts = np.diff(until, axis=0).astype(np.uint32)
    return shared


def _fold(operation: np.ufunc, cells: NDArray[Any], starts: Steps) -> NDArray[Any]:
    """Merge the lanes of cells [column, lane] from each start to the next.

    For short groups, a loop over lanes is 5 times as fast as `reduceat`.
    """
    sizes = np.diff(starts, append=cells.shape[1])
    if sizes.max() > _SHORT:
        folded: NDArray[Any] = operation.reduceat(cells, starts, axis=1, dtype=cells.dtype)
        return folded
    folded = cells[:, starts]
    for place in range(1, int(sizes.min())):
        operation(folded, cells[:, starts + place], out=folded)
    longer = np.flatnonzero(sizes > sizes.min())  # by one
    folded[:, longer] = operation(folded[:, longer], cells[:, starts[longer] + sizes.min()])
    return folded


def _combine(operation: np.ufunc, cells: NDArray[Any], values: NDArray[Any]) -> None:
    """Combine rows [row, lane] into cells [lane]. A loop over them is ten times as fast as `reduceat` over axis 0."""
    added = values[0] if len(values) == 1 else operation.reduce(values, axis=0, dtype=values.dtype)
    operation(cells, added, out=cells)

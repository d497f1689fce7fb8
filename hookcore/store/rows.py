"""The rows of a query, which are one column of some lanes, and their down-sampling; also for many taps in cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.store.segments import Counts, ExactRows, Floats, Lanes, MergedRows, Scalar, Schema, Steps


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in time [row] and their values [row, lane]. MergedRows defines the values."""

    first: Steps
    last: Steps
    mean: Floats
    low: Floats
    high: Floats
    finite: Counts
    present: Counts
    nonfinite: Counts

    @classmethod
    def empty(cls, lanes: int) -> Rows:
        """Return no rows."""
        ends, floats, counts = np.empty(0, np.int64), np.empty((0, lanes)), np.empty((0, lanes), np.uint32)
        return cls(ends, ends, floats, floats, floats, counts, counts, counts)

    def of_lanes(self, lanes: NDArray[np.intp]) -> Rows:
        """Return some lanes, in this order."""
        return Rows(self.first, self.last, *(getattr(self, item.name)[:, lanes] for item in fields(self)[2:]))

    def some(self, rows: slice | NDArray[np.intp]) -> Rows:
        """Return some rows, in this order."""
        return Rows(*(getattr(self, item.name)[rows] for item in fields(self)))

    @classmethod
    def stack(cls, parts: Sequence[Rows]) -> Rows:
        """Return the rows of parts with the same lanes, in the given order."""
        joined: dict[tuple[int, ...], NDArray[Any]] = {}  # of exact rows, several arrays are one
        columns = []
        for item in fields(cls):
            arrays = [getattr(part, item.name) for part in parts]
            key = tuple(map(id, arrays))
            if key not in joined:
                joined[key] = np.concatenate(arrays)
            columns.append(joined[key])
        return cls(*columns)

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Join all rows of one lane in which it was present, in the given order."""
        if not parts:
            return cls.empty(1)
        present = np.concatenate([part.present[:, 0] for part in parts]) > 0
        return cls(*(np.concatenate([getattr(part, item.name) for part in parts])[present] for item in fields(cls)))


def overlap(first_steps: Steps, last_steps: Steps, first: int | None, last: int | None) -> slice:
    """Return the range of rows that overlap the steps; rows are ascending and disjoint, and there is at least one."""
    if (first is not None and last_steps[-1] < first) or (last is not None and first_steps[0] > last):
        return slice(0, 0)  # most segments, and much faster than a search
    low = 0 if first is None else int(last_steps.searchsorted(first))
    high = len(first_steps) if last is None else int(first_steps.searchsorted(last, side="right"))
    return slice(low, max(low, high))


def pick_exact(
    schema: Schema, part: ExactRows, column: int, lanes: Lanes, first: int | None, last: int | None
) -> Rows | None:
    """Copy rows of a segment of single steps."""
    steps = part.steps[: part.used]
    rows = overlap(steps, steps, first, last)
    if rows.start == rows.stop:
        return None

    read = partial(stored, part, rows, lanes)
    values = schema.read(column, read)
    present = (~np.isnan(read(0))).astype(np.uint32)
    nonfinite = schema.count_nonfinite(read).astype(np.uint32)
    finite = (~np.isnan(values)).astype(np.uint32)
    ends = steps[rows].copy()
    return Rows(ends, ends, values, values, values, finite, present, nonfinite)


def stored(part: ExactRows, rows: slice, lanes: Lanes, column: int) -> Floats:
    """Return a stored column of some rows, in float64; missing lanes are NaN."""
    return pick(part.values[column], rows, lanes, np.nan).astype(np.float64, copy=False)


def pick_merged(part: MergedRows, column: int, lanes: Lanes, first: int | None, last: int | None) -> Rows | None:
    """Return rows of a merged segment."""
    rows = overlap(part.first, part.last, first, last)
    if rows.start == rows.stop:
        return None
    floats = (pick(values[column], rows, lanes, np.nan) for values in (part.mean, part.low, part.high))
    counts = (pick(values, rows, lanes, 0) for values in (part.finite[column], part.present, part.nonfinite))
    return Rows(part.first[rows], part.last[rows], *floats, *counts)


def pick(values: NDArray[Scalar], rows: slice, lanes: Lanes, fill: float) -> NDArray[Scalar]:
    """Return some lanes of some rows; missing lanes are filled."""
    width = values.shape[1]
    if isinstance(lanes, slice):
        if lanes.stop <= width:
            return values[rows, lanes]
        lanes = np.arange(lanes.start, lanes.stop)
    elif not len(lanes) or lanes[-1] < width:
        return values[rows, lanes]
    known = lanes < width
    picked = np.full((rows.stop - rows.start, len(lanes)), fill, values.dtype)
    picked[:, known] = values[rows][:, lanes[known]]
    return picked


def norm_of(rows: Rows) -> Rows:
    """Return the root of the sum of squares over all lanes as one lane; the counts are the largest of any lane."""
    mean, low, high = (
        np.sqrt(np.nansum(np.square(values), axis=1, keepdims=True)) for values in (rows.mean, rows.low, rows.high)
    )
    finite, present, nonfinite = (
        counts.max(axis=1, keepdims=True) for counts in (rows.finite, rows.present, rows.nonfinite)
    )
    return Rows(rows.first, rows.last, mean, low, high, finite, present, nonfinite)


def down_sample(rows: Rows, points: int) -> Rows:
    """Reduce one lane to at most `points` rows with equal spans of steps; every extreme and count is kept."""
    if len(rows.first) <= points:
        return rows
    span = int(rows.first[-1]) - int(rows.first[0]) + 1
    place = (rows.first - rows.first[0]) * points // span
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    ends = np.append(starts[1:], len(place)) - 1
    weight = rows.finite.astype(np.float64)
    total = np.add.reduceat(weight, starts)
    scale = np.maximum(total, 1.0)
    share = weight / np.repeat(scale, ends - starts + 1, axis=0)
    mean = np.add.reduceat(np.where(weight > 0, rows.mean * share, 0.0), starts)
    return Rows(
        rows.first[starts],
        rows.last[ends],
        np.where(total > 0, mean, np.nan),
        np.fmin.reduceat(rows.low, starts),
        np.fmax.reduceat(rows.high, starts),
        np.add.reduceat(rows.finite, starts, dtype=np.uint32),
        np.add.reduceat(rows.present, starts, dtype=np.uint32),
        np.add.reduceat(rows.nonfinite, starts, dtype=np.uint32),
    )


# The worst value of many taps over time, in cells of data space.

_SHORT: Final = 8


@dataclass(frozen=True, slots=True)
class Columns:
    """Equal spans of the steps from first to last."""

    first: int
    last: int
    number: int

    def columns_of(self, steps: Steps) -> Steps:
        """Return the column of each step; steps outside count for the nearest column."""
        inside = np.minimum(np.maximum(steps, self.first), self.last) - self.first
        return inside * self.number // (self.last - self.first + 1)

    def first_steps(self) -> Steps:
        span = self.last - self.first + 1
        return self.first - (-np.arange(self.number, dtype=np.int64) * span) // self.number

    def last_steps(self) -> Steps:
        return np.append(self.first_steps()[1:] - 1, self.last)

    def captured(self, spans: Sequence[tuple[Steps, Steps]]) -> tuple[Steps, Steps]:
        """Return the first and the last step of each column that was captured, or both ends if none was.

        So the reader of a heatmap knows which steps were captured, also if a column spans several steps. `spans`: the
        first and the last steps of rows, oldest first.
        """
        firsts, lasts = self.first_steps(), self.last_steps()
        if not any(len(span[0]) for span in spans):
            return firsts, lasts
        begin, end = (np.concatenate([span[place] for span in spans]) for place in (0, 1))
        one, other = end.searchsorted(firsts), begin.searchsorted(lasts, side="right") - 1
        there = one <= other
        one, other = np.minimum(one, len(begin) - 1), np.maximum(other, 0)
        return (
            np.where(there, np.maximum(firsts, begin[one]), firsts),
            np.where(there, np.minimum(lasts, end[other]), lasts),
        )


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
        begin_column, end_column = columns.columns_of(rows.first), columns.columns_of(rows.last)
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
        begin, end = columns.columns_of(ends).tolist()
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

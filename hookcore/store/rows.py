"""The rows of a query, which are one column of some lanes, and their down-sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

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

    def take(self, lanes: NDArray[np.intp]) -> Rows:
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

    def stored(number: int) -> Floats:
        return pick(part.values[number], rows, lanes, np.nan)

    values = schema.read(column, stored)
    present = (~np.isnan(stored(0))).astype(np.uint32)
    nonfinite = schema.count_nonfinite(stored).astype(np.uint32)
    finite = (~np.isnan(values)).astype(np.uint32)
    ends = steps[rows].copy()
    return Rows(ends, ends, values, values, values, finite, present, nonfinite)


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

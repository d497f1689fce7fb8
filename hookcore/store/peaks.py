"""The largest values of lanes in columns of several steps each: what rules read, with as few copies as possible."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hookcore.store.rows import overlap, pick
from hookcore.store.segments import ExactRows, Floats, Lanes, MergedRows, Schema, Steps


@dataclass(frozen=True, slots=True)
class Peaks:
    """Columns [column, lane] of some steps each, on a fixed grid. A row of several steps counts for its last one."""

    width: int
    begin: int  # the grid position of the first column
    span: tuple[int, int]  # first and last step
    lanes: Lanes
    suspects: NDArray[np.intp]  # the places of the lanes that may have been non-finite in these steps
    suspected: NDArray[np.intp]  # their lanes
    seen: NDArray[np.bool_]  # which columns have a row
    high: Floats  # the largest finite value; NaN if there is none
    bad: NDArray[np.bool_]  # whether a value was non-finite

    @classmethod
    def make(
        cls, span: tuple[int, int], width: int, lanes: NDArray[np.intp], some: Lanes, suspects: NDArray[np.intp]
    ) -> Peaks:
        """Return columns to fill, of the steps of a span. `some` are the lanes in the fastest form."""
        begin = span[0] // width
        columns = max(0, span[1] // width - begin + 1)
        high, bad = np.full((columns, len(lanes)), np.nan), np.zeros((columns, len(lanes)), bool)
        return cls(width, begin, span, some, suspects, lanes[suspects], np.zeros(columns, bool), high, bad)

    def found(self) -> tuple[Steps, Floats, NDArray[np.bool_]]:
        """Return the grid positions of the columns that have a row, and these columns."""
        at = np.flatnonzero(self.seen)
        if len(at) == len(self.seen):
            return at + self.begin, self.high, self.bad
        return at + self.begin, self.high[at], self.bad[at]

    def add_exact(self, schema: Schema, part: ExactRows, column: int) -> None:
        """Add the rows of a segment of single steps."""
        steps = part.steps[: part.used]
        for place, rows in self._groups(steps, steps):
            stored = column < len(schema.columns)
            read = partial(_read, part, rows, self.lanes)
            self._add(place, read(column) if stored else schema.read(column, read))
            if len(self.suspects):
                is_bad = schema.count_nonfinite(partial(_read, part, rows, self.suspected))
                self.bad[place, self.suspects] |= is_bad.any(axis=0)

    def add_merged(self, part: MergedRows, column: int) -> None:
        """Add the rows of a merged segment."""
        for place, rows in self._groups(part.first, part.last):
            self._add(place, pick(part.high[column], rows, self.lanes, np.nan))
            if len(self.suspects):
                self.bad[place, self.suspects] |= pick(part.nonfinite, rows, self.suspected, 0).any(axis=0)

    def _add(self, place: int, values: Floats) -> None:
        peak = np.fmax.reduce(values, axis=0) if len(values) > 1 else values[0]
        if np.isinf(peak).any():  # it may hide a finite one
            peak = np.fmax.reduce(np.where(np.isfinite(values), values, np.nan), axis=0)
        np.fmax(self.high[place], peak, out=self.high[place])
        self.seen[place] = True

    def _groups(self, first: Steps, last: Steps) -> list[tuple[int, slice]]:
        """Return the rows that overlap the span, by column."""
        rows = overlap(first, last, *self.span)
        if rows.start == rows.stop:
            return []
        places = last[rows] // self.width - self.begin
        starts = [0, *(np.flatnonzero(places[1:] != places[:-1]) + 1).tolist(), len(places)]
        return [
            (int(places[start]), slice(rows.start + start, rows.start + end))
            for start, end in pairwise(starts)
            if places[start] < len(self.seen)  # else it arrived just now
        ]


def _read(part: ExactRows, rows: slice, lanes: Lanes, column: int) -> Floats:
    return pick(part.values[column], rows, lanes, np.nan)

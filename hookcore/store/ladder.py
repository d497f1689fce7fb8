"""A whole run in bounded memory: the newest steps exact, older ones merged 8 to 1 from tier to tier."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookcore.store.rows import Rows, overlap, pick, pick_exact, pick_merged, stored
from hookcore.store.segments import ExactRows, Floats, Lanes, MergedRows, Schema, Steps, condense, merge


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
            read = partial(stored, part, rows, self.lanes)
            self._add(place, read(column) if column < len(schema.columns) else schema.read(column, read))
            if len(self.suspects):
                is_bad = schema.count_nonfinite(partial(stored, part, rows, self.suspected))
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


FACTOR: Final = 8
SHARES: Final = (0.30, 0.15, 0.15, 0.40)  # of the limit: exact rows, 8 to 1, 64 to 1, and the rest of the run
FAR: Final = 2**62  # later than any step
_SEGMENTS: Final = 32  # segments per level: fewer cause pauses, more make every query slower
_MAX_ROWS: Final = 4096
_GRANULE: Final = 8  # lanes are allotted in multiples of this

Seen = TypeVar("Seen")
Segment = TypeVar("Segment", ExactRows, MergedRows)
Merge = Callable[[Floats, Floats], Floats]  # [column, lane] of two parts of one step -> that of both


class Ladder:
    """Rows of one schema. One thread writes; readers hold `lock` only while they copy data that can still change.

    Merged segments never change; of an exact one, only the newest row does. So slow work (merging) happens outside, and
    `lock` is held only to swap in the result.
    """

    def __init__(self, schema: Schema, max_bytes: int, lock: threading.Lock) -> None:
        self.schema = schema
        self.max_bytes = max_bytes
        self.max_lanes = _most_lanes(schema, max_bytes)
        self.merged_rows = 0  # rows that were merged away so far
        self._lock = lock
        self.level_limits = [int(max_bytes * share) for share in SHARES]  # the exact level first
        self.level_bytes = [0] * len(SHARES)
        self._exact: list[ExactRows] = []
        self._merged: list[list[MergedRows]] = [[] for _ in SHARES[1:]]
        self._lanes = 0  # the width of new segments
        # The newest step of each lane that is no longer in the exact rows.
        self._fallen_steps: Steps = np.empty(0, np.int64)
        self._fallen: Floats = np.empty((len(schema.columns), 0))

    @property
    def nbytes(self) -> int:
        """The size of all segments in bytes."""
        return sum(self.level_bytes) + self._fallen.nbytes + self._fallen_steps.nbytes

    @property
    def newest(self) -> int | None:
        """The newest exact step."""
        return int(self._exact[-1].steps[self._exact[-1].used - 1]) if self._exact else None

    def exact_since(self, whole_since: int) -> int | None:
        """Return the step since which all rows are here, and exact; None if all are.

        Before `whole_since`, some are missing.
        """
        with self._lock:
            if not any(self._merged):
                return whole_since or None
            return max(whole_since, next((int(part.steps[0]) for part in self._exact if part.used), FAR))

    def recall_latest(self, steps: Steps, values: Floats) -> None:
        """Take the newest step of each lane, and its values [column, lane], from before the exact rows to come."""
        with self._lock:
            self._fallen_steps, self._fallen = steps.copy(), values.copy()

    def grow(self, lanes: int) -> None:
        """Set the number of lanes, at most `max_lanes`."""
        if lanes > self._lanes:
            ahead = lanes if self._lanes == 0 else max(lanes, self._lanes + self._lanes // 8)
            self._lanes = min(self.max_lanes, -(-ahead // _GRANULE) * _GRANULE)

    @property
    def least_bytes(self) -> int:
        """Return the smallest limit in which the existing lanes fit."""
        return _least_bytes(self.schema, self._lanes)

    def shrink(self, max_bytes: int) -> None:
        """Lower the limit, and merge rows until they fit."""
        if max_bytes >= self.max_bytes:
            return
        self.max_bytes, self.max_lanes = max_bytes, _most_lanes(self.schema, max_bytes)
        self.level_limits = [int(max_bytes * share) for share in SHARES]
        if self._exact:
            self._end(self._exact[-1])
        while self._exact_bytes() > self.level_limits[0] and len(self._exact) > 1:
            self._promote_exact(keep=1)
        for tier in range(len(self._merged)):
            self._make_room(tier, 0)

    def append(self, steps: Sequence[int], lanes: Lanes, values: Floats) -> None:
        """Append new steps, in ascending order; `values` is [column, row, lane]."""
        done, many = 0, len(steps)
        while done < many:
            segment = self._room_for_row()
            row, fit = segment.used, min(many - done, segment.rows - segment.used)
            view = _open(segment)[:, row : row + fit]
            if isinstance(lanes, slice):  # NumPy lets go of the interpreter to write more than 500 values
                view[:, :, : lanes.start] = view[:, :, lanes.stop :] = np.nan
            elif values.shape[2] < segment.lanes:
                view.fill(np.nan)
            view[:, :, lanes] = values if fit == many else values[:, done : done + fit]
            with self._lock:
                segment.steps[row : row + fit] = steps if fit == many else steps[done : done + fit]
                segment.used = row + fit
            done += fit

    def merge_newest(self, lanes: Lanes, values: Floats, both: Merge) -> None:
        """Merge another part of the newest step: repeated lanes are merged, others are added."""
        segment = self._exact[-1]
        if segment.lanes < self._lanes or isinstance(segment.values, tuple):
            segment = self._reopen_newest()
        with self._lock:
            view = _open(segment)[:, segment.used - 1]
            known = view[:, lanes]
            merged = np.where(np.isnan(known[0]), values, both(known, values))
            view[:, lanes] = np.where(np.isnan(values[0]), known, merged)

    def gather(self, column: int, lanes: Lanes, first: int | None, last: int | None) -> list[Rows]:
        """Return one column of some lanes over the rows that overlap the steps, oldest first, in parts."""
        found = self._visit(
            (first, last),
            lambda part: pick_exact(self.schema, part, column, lanes, first, last),
            lambda part: pick_merged(part, column, lanes, first, last),
        )
        return [part for part in found if part is not None]

    def peaks(self, column: int, into: Peaks) -> Peaks:
        """Add the rows of one column to peaks."""
        self._visit(
            into.span,
            lambda part: into.add_exact(self.schema, part, column),
            lambda part: into.add_merged(part, column),
        )
        return into

    def _visit(
        self,
        span: tuple[int | None, int | None],
        exact: Callable[[ExactRows], Seen],
        merged: Callable[[MergedRows], Seen],
    ) -> list[Seen]:
        """Read every segment that may have steps of a span. Return the results, oldest first."""
        with self._lock:
            old = self._old()
            parts = [part for part in self._exact if part.used]
            tail = [exact(parts.pop())] if parts else []  # the only one that may change
        return [*map(merged, _between(old, *span)), *map(exact, _between(parts, *span)), *tail]

    def exact(self, lanes: Sequence[int], first: int, before: int) -> tuple[Steps, Floats]:
        """Return the unmerged rows from a step on, and up to `before` rows before it: steps, [column, row, lane]."""
        chosen, found, missing = np.array(lanes, np.intp), [], before
        with self._lock:
            for part in reversed(self._exact):
                steps = part.steps[: part.used]
                at = int(np.searchsorted(steps, first))
                start = max(0, at - missing)
                missing -= at - start
                found.append((steps[start:].copy(), _of_lanes(part, slice(start, part.used), chosen)))
                if not missing and at:
                    break
        if not found:
            return np.empty(0, np.int64), np.empty((len(self.schema.columns), 0, len(chosen)))
        parts = found[::-1]
        return np.concatenate([each for each, _ in parts]), np.concatenate([each for _, each in parts], axis=1)

    def latest(self, first: int | None = None, last: int | None = None) -> tuple[Steps, Floats]:
        """Return every lane's newest step (-1 if it has none) and its exact values there, [column, lane].

        With bounds, use the newest step between them. Only the rows of these steps are read.
        """
        with self._lock:
            parts = [ExactRows(part.steps, part.values, part.used) for part in reversed(self._exact) if part.used]
            if parts:  # the newest row may still change, so it is copied
                row = slice(parts[0].used - 1, parts[0].used)
                parts.insert(0, ExactRows(parts[0].steps[row].copy(), parts[0].read(slice(None), row), 1))
                parts[1].used -= 1
            old_steps, old_values = self._fallen_steps, self._fallen
        lanes = max([len(old_steps), *(part.lanes for part in parts)])
        steps, values = np.full(lanes, -1, np.int64), np.full((len(self.schema.columns), lanes), np.nan)
        for part in parts:
            _note_latest(part.view(first, last), steps, values, np.flatnonzero(steps[: part.lanes] < 0))
            if (steps >= 0).all():
                return steps, values
        fallen = np.flatnonzero((steps[: len(old_steps)] < 0) & (old_steps >= (0 if first is None else first)))
        if last is not None:
            fallen = fallen[old_steps[fallen] <= last]
        steps[fallen], values[:, fallen] = old_steps[fallen], old_values[:, fallen]
        return steps, values

    def merged(self, first: int | None, last: int | None) -> Sequence[MergedRows]:
        """Return the merged segments that may have rows of these steps, oldest first. They never change."""
        with self._lock:
            old = self._old()
        return _between(old, first, last)

    def _old(self) -> list[MergedRows]:
        return [segment for level in reversed(self._merged) for segment in level]

    def rows_between(self, first: int | None, last: int | None) -> tuple[Steps, Steps]:
        """Return the first and the last step of every row that overlaps the steps, oldest first."""
        parts = self._visit((first, last), _ends_of, _ends_of)
        begin, end = (np.concatenate([part[place] for part in parts] or [np.empty(0, np.int64)]) for place in (0, 1))
        inside = overlap(begin, end, first, last) if len(begin) else slice(0, 0)
        return begin[inside], end[inside]

    def _room_for_row(self) -> ExactRows:
        if self._exact:
            newest = self._exact[-1]
            if newest.used < newest.rows and newest.lanes >= self._lanes:
                return newest
            self._end(newest)
        return self._open_segment(keep=0)

    def _open_segment(self, keep: int) -> ExactRows:
        row = self.schema.exact_row_bytes(self._lanes)
        rows = _power_of_two(self.level_limits[0] // (_SEGMENTS * row))
        segment = ExactRows.make(self.schema, rows, self._lanes)
        while self._exact_bytes() + segment.nbytes > self.level_limits[0] and len(self._exact) > keep:
            self._promote_exact(keep)
        with self._lock:
            self._exact.append(segment)
            self.level_bytes[0] += segment.nbytes
        return segment

    def _exact_bytes(self) -> int:
        ahead = self._lanes * (8 * len(self.schema.columns) + 8)  # what `_fallen` may grow to
        return self.level_bytes[0] + ahead

    def _end(self, segment: ExactRows) -> None:
        """Release unwritten rows and bytes that its values don't need, before another segment follows."""
        if not isinstance(segment.values, tuple):
            packed = segment.pack(slice(segment.used))
            with self._lock:
                self._exact[-1:] = [packed] if packed.used else []
                self.level_bytes[0] += (packed.nbytes if packed.used else 0) - segment.nbytes

    def _reopen_newest(self) -> ExactRows:
        """Move the newest row to a segment that has all lanes and can be written."""
        old = self._exact[-1]
        new = self._open_segment(keep=1)
        values, row = _open(new), old.used - 1
        values[:, 0] = np.nan
        values[:, 0, : old.lanes] = old.read(slice(None), slice(row, row + 1))[:, 0]
        older = old.pack(slice(row))
        with self._lock:
            new.steps[0], new.used = old.steps[row], 1
            self._exact[-2:] = [older, new] if row else [new]
            self.level_bytes[0] += (older.nbytes if row else 0) - old.nbytes
        return new

    def _promote_exact(self, keep: int) -> None:
        taken: list[ExactRows] = []
        while len(taken) < len(self._exact) - keep and sum(part.used for part in taken) < FACTOR:
            taken.append(self._exact[len(taken)])
        merged = condense(self.schema, taken, FACTOR)
        fallen = self._grow_fallen()
        for part in taken:
            _note_latest(part, *fallen, np.arange(part.lanes))
        self._make_room(0, merged.nbytes)
        joined = self._join(0, merged)
        self.merged_rows += sum(part.used for part in taken) - merged.used
        with self._lock:
            self._fallen_steps, self._fallen = fallen
            del self._exact[: len(taken)]
            self.level_bytes[0] -= sum(part.nbytes for part in taken)
            self._put(0, *joined)

    def _grow_fallen(self) -> tuple[Steps, Floats]:
        missing = self._lanes - self._fallen.shape[1]
        steps = np.concatenate([self._fallen_steps, np.full(missing, -1, np.int64)])
        more = np.full((len(self._fallen), missing), np.nan)
        return steps, np.concatenate([self._fallen, more], axis=1)

    def _make_room(self, tier: int, wanted: int) -> None:
        """Merge rows of a tier until `wanted` more bytes fit."""
        while self._merged[tier] and self.level_bytes[tier + 1] + wanted > self.level_limits[tier + 1]:
            if tier + 1 < len(self._merged):
                self._promote(tier)
            elif sum(part.used for part in self._merged[tier]) > 1:
                self._halve()
            else:
                break

    def _promote(self, tier: int) -> None:
        level = self._merged[tier]
        taken: list[MergedRows] = []
        while len(taken) < len(level) and sum(part.used for part in taken) < FACTOR:
            taken.append(level[len(taken)])
        merged = merge(taken, FACTOR)
        self._make_room(tier + 1, merged.nbytes)
        joined = self._join(tier + 1, merged)
        self.merged_rows += sum(part.used for part in taken) - merged.used
        with self._lock:
            del level[: len(taken)]
            self.level_bytes[tier + 1] -= sum(part.nbytes for part in taken)
            self._put(tier + 1, *joined)

    def _halve(self) -> None:
        """Merge the rows of two neighbors of the last tier in pairs, the oldest of the least merged first."""
        level = self._merged[-1]
        at = min(range(len(level) - 1), key=lambda i: max(level[i].level, level[i + 1].level), default=0)
        pair = level[at : at + 2]
        merged = merge(pair, 2)
        merged.level += 1
        self.merged_rows += sum(part.used for part in pair) - merged.used
        with self._lock:
            level[at : at + 2] = [merged]
            self.level_bytes[-1] += merged.nbytes - sum(part.nbytes for part in pair)

    def _join(self, tier: int, merged: MergedRows) -> tuple[MergedRows, int]:
        """Prepend the tier's last segment if both are short. Return the rows, and how many segments they replace."""
        level = self._merged[tier]
        most = _power_of_two(self.level_limits[tier + 1] // (_SEGMENTS * self.schema.merged_row_bytes(merged.lanes)))
        if level and _fits(level[-1], merged, most):
            return merge([level[-1], merged], 1), 1
        return merged, 0

    def _put(self, tier: int, joined: MergedRows, replaced: int) -> None:
        """Publish the result of `_join` (the lock must be held)."""
        level = self._merged[tier]
        gone = level[len(level) - replaced :]
        self.level_bytes[tier + 1] += joined.nbytes - sum(part.nbytes for part in gone)
        level[len(level) - replaced :] = [joined]


def _between(parts: Sequence[Segment], first: int | None, last: int | None) -> Sequence[Segment]:
    """Return the segments that may have steps between first and last."""
    begin = 0 if first is None else bisect_left(parts, first, key=lambda part: part.last[part.used - 1])
    end = len(parts) if last is None else bisect_right(parts, last, key=lambda part: part.first[0])
    return parts[begin:end]


def _ends_of(part: ExactRows | MergedRows) -> tuple[Steps, Steps]:
    return part.first[: part.used].copy(), part.last[: part.used].copy()


def _fits(old: MergedRows, new: MergedRows, most: int) -> bool:
    return old.lanes == new.lanes and old.level == new.level and old.used + new.used <= most


def _power_of_two(number: int) -> int:
    """Return the largest power of two within the limit of a segment."""
    return 1 << (max(1, min(number, _MAX_ROWS)).bit_length() - 1)


def _most_lanes(schema: Schema, max_bytes: int) -> int:
    """Return the most lanes that leave room for two rows in every level, in addition to each lane's newest values."""
    exact = (max_bytes * SHARES[0] - 16) / (schema.exact_row_bytes(1) * 3 + 8)
    merged = (max_bytes * min(SHARES[1:]) - 32) / (2 * (schema.merged_row_bytes(1) - 16))
    return max(0, int(min(exact, merged)) // _GRANULE * _GRANULE)


def _least_bytes(schema: Schema, lanes: int) -> int:
    """Return the bytes that this many lanes need; the inverse of `_most_lanes`."""
    lanes += _GRANULE
    exact = (lanes * (schema.exact_row_bytes(1) * 3 + 8) + 16) / SHARES[0]
    merged = (lanes * 2 * (schema.merged_row_bytes(1) - 16) + 32) / min(SHARES[1:])
    return int(max(exact, merged)) + 1


def _open(segment: ExactRows) -> Floats:
    """Return the values of a segment that can be written."""
    assert not isinstance(segment.values, tuple)
    return segment.values


def _of_lanes(part: ExactRows, rows: slice, lanes: NDArray[np.intp]) -> Floats:
    """Copy some lanes; those that are newer than the values are NaN."""
    known = lanes < part.lanes
    found = np.full((len(part.values), rows.stop - rows.start, len(lanes)), np.nan)
    found[:, :, known] = part.read(slice(None), rows, lanes[known])
    return found


def _note_latest(part: ExactRows, steps: Steps, values: Floats, lanes: NDArray[np.intp]) -> None:
    """Note the newest row of some lanes in a segment, if it is newer than the known one."""
    if not part.used:
        return
    present: NDArray[np.bool_] = ~np.isnan(part.values[0][: part.used, lanes])
    row = part.used - 1 - np.argmax(present[::-1], axis=0)
    newer = present.any(axis=0) & (part.steps[row] > steps[lanes])
    row, lanes = row[newer], lanes[newer]
    steps[lanes] = part.steps[row]
    values[:, lanes] = part.read(slice(None), row, lanes)

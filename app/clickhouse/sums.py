"""Rollups: a row for 8 steps of each lane, for 32, and so on. ClickHouse adds up those of several segments. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records.sketch import BINS, places_of
from hookcore.store import STAT_NAMES
from hookcore.store.schemas import STAT_SCHEMA
from hookcore.store.segments import Floats

from .groups import begins_of
from .sketched import Sketched
from .steprows import Numbers, StepRows
from .tables import LEVELS, PART, SKETCH_LEVELS

_GROUPS_AT_ONCE: Final = 64  # dense rows (2 MB) that are summed at a time, to stay in the cache
Counts = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """Sums, extremes, and counts of finite values [stat, bucket], for all stats of a store."""

    level: int
    lane: Numbers
    bucket: Numbers
    steps: Counts
    bad_steps: Counts
    sums: Floats
    finite: Counts
    low: Floats  # NaN if there is no finite value
    high: Floats

    def coarser(self, level: int) -> Buckets:
        """Return the same values on a higher level."""
        bucket = self.bucket >> np.uint64(level - self.level)
        begins = begins_of(self.lane, bucket)
        return Buckets(
            level,
            self.lane[begins],
            bucket[begins],
            _sum(self.steps, begins),
            _sum(self.bad_steps, begins),
            np.add.reduceat(self.sums, begins, axis=1) if len(begins) else self.sums,
            _sum(self.finite, begins),
            np.fmin.reduceat(self.low, begins, axis=1) if len(begins) else self.low,
            np.fmax.reduceat(self.high, begins, axis=1) if len(begins) else self.high,
        )


def rollups_of(rows: StepRows, levels: Sequence[int] = LEVELS) -> list[Buckets]:
    """Return the sums of the values of steps, on all levels."""
    found = [_first(rows.take(np.lexsort((rows.step, rows.lane))), levels[0])]
    for level in levels[1:]:
        found.append(found[-1].coarser(level))
    return found


def _first(rows: StepRows, level: int) -> Buckets:
    rows = rows.take(np.flatnonzero(rows.role != PART))
    bucket = rows.step >> np.uint64(level)
    begins = begins_of(rows.lane, bucket)
    shape = len(STAT_NAMES), len(begins)
    sums, low, high = np.empty(shape), np.empty(shape), np.empty(shape)
    finite = np.empty(shape, np.uint32)

    def stored(column: int) -> Floats:
        values: Floats = rows.stats[column]
        return values

    for column in range(len(STAT_NAMES)) if len(begins) else ():
        values = STAT_SCHEMA.read(column, stored)
        known = ~np.isnan(values)
        low[column], high[column] = np.fmin.reduceat(values, begins), np.fmax.reduceat(values, begins)
        finite[column] = _sum(known, begins)
        with np.errstate(over="ignore"):
            sums[column] = np.add.reduceat(np.where(known, values, 0.0), begins)
    steps, bad = np.diff(begins, append=len(rows)).astype(np.uint32), STAT_SCHEMA.count_nonfinite(stored)
    about = level, rows.lane[begins], bucket[begins], steps, _sum(bad, begins)
    return Buckets(*about, sums, finite, low, high)


@dataclass(frozen=True, slots=True, eq=False)
class SketchBuckets:
    """Sums of sketches: that of row i has the bins from starts[i] to starts[i + 1]."""

    level: int
    lane: Numbers
    bucket: Numbers
    steps: Counts
    starts: NDArray[np.int64]
    bins: NDArray[np.uint16]
    counts: NDArray[np.uint64]

    def coarser(self, level: int) -> SketchBuckets:
        """Return the same sketches on a higher level."""
        return _summed(level, self.lane, self.bucket >> np.uint64(level - self.level), self.steps, self)

    def take(self, rows: NDArray[np.intp]) -> SketchBuckets:
        """Return some rows, in this order."""
        starts, places = places_of(self.starts, rows)
        flat = self.lane[rows], self.bucket[rows], self.steps[rows]
        return SketchBuckets(self.level, *flat, starts, self.bins[places], self.counts[places])

    @classmethod
    def join(cls, parts: Sequence[SketchBuckets]) -> SketchBuckets:
        """Return the rows of all parts of a level, with one for each lane and bucket."""
        columns = ("lane", "bucket", "steps", "bins", "counts")
        every = {name: np.concatenate([getattr(part, name) for part in parts]) for name in columns}
        lengths = np.concatenate([np.diff(part.starts) for part in parts])
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        joined = cls(parts[0].level, starts=starts, **every)
        return joined.take(np.lexsort((joined.bucket, joined.lane))).coarser(joined.level)


def sketch_rollups_of(sketches: Sketched) -> list[SketchBuckets]:
    """Return the sums of the sketches of steps, on all levels."""
    real = np.flatnonzero(sketches.role != PART)
    sketches = sketches.take(real[np.lexsort((sketches.step[real], sketches.lane[real]))])
    lane, step = sketches.lane, sketches.step
    is_new = np.append(True, (step[1:] != step[:-1]) | (lane[1:] != lane[:-1]))[: len(lane)]  # not a part of a step
    first = SKETCH_LEVELS[0]
    found = [_summed(first, lane, step >> np.uint64(first), is_new.astype(np.uint32), sketches)]
    for level in SKETCH_LEVELS[1:]:
        found.append(found[-1].coarser(level))
    return found


def _summed(level: int, lane: Numbers, bucket: Numbers, steps: Counts, rows: Sketched | SketchBuckets) -> SketchBuckets:
    begins = begins_of(lane, bucket)
    if len(begins) == len(lane):  # nothing to add up, as on most levels of a short piece
        return SketchBuckets(level, lane, bucket, steps, rows.starts, rows.bins, rows.counts.astype(np.uint64))
    ends = np.append(begins[1:], len(lane))
    lengths: list[NDArray[np.intp]] = [np.empty(0, np.intp)]
    bins: list[NDArray[np.uint16]] = [np.empty(0, np.uint16)]
    sums: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    for low in range(0, len(begins), _GROUPS_AT_ONCE):
        high = min(low + _GROUPS_AT_ONCE, len(begins))
        inside = slice(int(begins[low]), int(ends[high - 1]))
        part = slice(int(rows.starts[inside.start]), int(rows.starts[inside.stop]))
        group = np.repeat(np.arange(high - low), np.diff(begins[low:high], append=inside.stop))
        keys = np.repeat(group * BINS, np.diff(rows.starts[inside.start : inside.stop + 1])) + rows.bins[part]
        # Exact: a bin has fewer than 2 ** 53 values.
        dense = np.bincount(keys, rows.counts[part], (high - low) * BINS).astype(np.uint64)
        filled = np.flatnonzero(dense)
        lengths.append(np.bincount(filled // BINS, minlength=high - low))
        bins.append((filled % BINS).astype(np.uint16))
        sums.append(dense[filled])
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    about = level, lane[begins], bucket[begins], _sum(steps, begins)
    return SketchBuckets(*about, starts, np.concatenate(bins), np.concatenate(sums))


def _sum(values: NDArray[np.uint32] | NDArray[np.bool_], begins: NDArray[np.intp]) -> Counts:
    """Return the sums of values [..., row] from each begin to the next."""
    if not len(begins):
        return values.astype(np.uint32)
    sums: Counts = np.add.reduceat(values, begins, axis=-1, dtype=np.uint32)
    return sums

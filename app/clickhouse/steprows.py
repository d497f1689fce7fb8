"""The rows and the sketches of one run's frames as arrays, and rollups of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, STATS
from hookcore.records.sketch import BINS, places_of
from hookcore.records.wire import FrameItem
from hookcore.store import STAT_NAMES
from hookcore.store.bounded import scalars_of
from hookcore.store.segments import STAT_SCHEMA, Floats, merge_stats

from .questions import begins_of
from .schema import BOTH, CHUNK, LEVELS, MERGED, PART, SCALARS, SKETCH_LEVELS, lane_of_scalar

# The rows of one run's frames as arrays: as they were sent, and the value of each lane in each step. Pure.

Numbers = NDArray[np.uint64]
_SCALAR: Final = ("mean", "min", "max")  # the columns that have the value of a scalar
_SIZE: Final = ("rms", "norm")


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """Rows, ascending by chunk, lane, and step."""

    lane: Numbers
    step: Numbers
    number: Numbers  # of the item
    owner: NDArray[np.int32]
    role: NDArray[np.uint8]
    stats: Floats  # [stat, row]

    def __len__(self) -> int:
        return len(self.lane)

    def take(self, rows: Any) -> StepRows:
        """Return some rows, in this order."""
        flat = {name: getattr(self, name)[rows] for name in _FLAT}
        return StepRows(**flat, stats=self.stats[:, rows])

    def with_role(self, role: NDArray[np.uint8]) -> StepRows:
        """Return the same rows in other roles."""
        return StepRows(self.lane, self.step, self.number, self.owner, role, self.stats)

    @classmethod
    def join(cls, parts: Sequence[StepRows]) -> StepRows:
        """Return the rows of all parts, ascending."""
        flat = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _FLAT}
        joined = cls(**flat, stats=np.concatenate([part.stats for part in parts], axis=1))
        step = joined.step
        return joined.take(np.lexsort((joined.number, step, joined.lane, step >> np.uint64(CHUNK))))


_FLAT: Final = ("lane", "step", "number", "owner", "role")


def late_in(frames: Sequence[FrameItem], before: int) -> NDArray[np.bool_]:
    """Return which frames come after one of a later step, or of the newest step of earlier frames.

    They are kept only as they were sent, as a store would drop them.
    """
    steps = np.array([before, *(frame.step for frame in frames)], np.int64)
    late: NDArray[np.bool_] = (steps[1:] < np.maximum.accumulate(steps)[:-1]) | (steps[1:] <= before)
    return late


def rows_of(frames: Sequence[FrameItem], rank: int, taps: int, before: int) -> StepRows:
    """Return the rows of a rank's valid frames; it has `taps` taps, and `before` is the newest earlier step."""
    late = late_in(frames, before)
    return _with_steps(StepRows.join([_of_taps(frames, late, rank, taps), _of_scalars(frames, late, rank)]))


def _of_taps(frames: Sequence[FrameItem], late: NDArray[np.bool_], rank: int, taps: int) -> StepRows:
    lane = np.frombuffer(b"".join(frame.taps for frame in frames), "<u4").astype(np.uint64)
    stats = np.frombuffer(b"".join(frame.stats for frame in frames), "<f8").reshape(-1, len(STATS)).T
    lengths = [len(frame.taps) // 4 for frame in frames]
    own = np.int32(rank)
    owners = [
        np.full(length, own) if frame.owners is None else np.frombuffer(frame.owners, "<i4")
        for frame, length in zip(frames, lengths, strict=True)
    ]
    is_step = ~np.repeat(late, lengths) & (lane < taps) & ~np.isnan(stats[STAT_COLUMN["count"]])
    return StepRows(
        lane,
        np.repeat(np.array([frame.step for frame in frames], np.uint64), lengths),
        np.repeat(np.array([frame.number for frame in frames], np.uint64), lengths),
        np.concatenate([np.empty(0, np.int32), *owners]),
        np.where(is_step, BOTH, PART).astype(np.uint8),
        stats,
    )


def _of_scalars(frames: Sequence[FrameItem], late: NDArray[np.bool_], rank: int) -> StepRows:
    named = [scalars_of(frame) for frame in frames]
    lengths = [len(each) for each in named]
    values = np.array([value for each in named for value in each.values()], np.float64)
    stats = np.zeros((len(STATS), len(values)))
    stats[[STAT_COLUMN[name] for name in ("count", "parts")]] = 1
    stats[STAT_COLUMN["nan"]], stats[STAT_COLUMN["inf"]] = np.isnan(values), np.isinf(values)
    stats[STAT_COLUMN["zero"]] = values == 0
    stats[[STAT_COLUMN[name] for name in _SCALAR]] = values
    stats[[STAT_COLUMN[name] for name in _SIZE]] = np.abs(values)
    stats[STAT_COLUMN["ratio"]] = np.nan
    return StepRows(
        np.array([lane_of_scalar(name) for each in named for name in each], np.uint64),
        np.repeat(np.array([frame.step for frame in frames], np.uint64), lengths),
        np.repeat(np.array([frame.number for frame in frames], np.uint64), lengths),
        np.full(len(values), rank, np.int32),
        np.where(np.repeat(late, lengths), PART, BOTH).astype(np.uint8),
        stats,
    )


def _with_steps(rows: StepRows) -> StepRows:
    """Give each lane one value in each step: of a tap, the parts are merged, and of a scalar, the last one counts."""
    real = np.flatnonzero(rows.role == BOTH)
    again = np.zeros(len(real), bool)
    again[1:] = (rows.lane[real][1:] == rows.lane[real][:-1]) & (rows.step[real][1:] == rows.step[real][:-1])
    if not again.any():
        return rows
    role = rows.role.copy()
    last = np.append(~again[1:], True)
    several = again | np.append(again[1:], False)
    is_scalar = rows.lane[real] >= np.uint64(SCALARS)
    role[real[several & (~is_scalar | ~last)]] = PART
    parts = real[several & ~is_scalar]
    rows = rows.with_role(role)
    return rows if not len(parts) else StepRows.join([rows, _merged(rows.take(parts))])


def _merged(parts: StepRows) -> StepRows:
    """Return a row for each lane and step of parts, which have several."""
    begins = begins_of(parts.lane, parts.step)
    lengths = np.diff(begins, append=len(parts))
    stats = parts.stats[:, begins].copy()
    for place in range(1, int(lengths.max())):
        more = np.flatnonzero(lengths > place)
        stats[:, more] = merge_stats(stats[:, more], parts.stats[:, begins[more] + place])
    ends = parts.take(begins + lengths - 1)
    return StepRows(ends.lane, ends.step, ends.number, ends.owner, np.full(len(ends), MERGED, np.uint8), stats)


# The sketches of one run's frames as arrays. Pure.


@dataclass(frozen=True, slots=True, eq=False)
class Sketched:
    """Sketches, ascending by chunk, lane, and step."""

    lane: NDArray[np.uint64]
    step: NDArray[np.uint64]
    number: NDArray[np.uint64]
    role: NDArray[np.uint8]
    starts: NDArray[np.int64]
    bins: NDArray[np.uint16]
    counts: NDArray[np.uint32]

    def take(self, rows: NDArray[np.intp]) -> Sketched:
        """Return some rows, in this order."""
        starts, places = places_of(self.starts, rows)
        flat = {name: getattr(self, name)[rows] for name in ("lane", "step", "number", "role")}
        return Sketched(**flat, starts=starts, bins=self.bins[places], counts=self.counts[places])


def sketches_of(frames: Sequence[FrameItem], taps: int, before: int) -> Sketched:
    """Return the sketches of a rank's valid frames; `taps` and `before` are those of `rows_of`."""
    sketched = [
        (frame, is_late) for frame, is_late in zip(frames, late_in(frames, before).tolist(), strict=True) if frame.bins
    ]
    frames, late = [frame for frame, _ in sketched], [is_late for _, is_late in sketched]
    lanes = [np.frombuffer(frame.taps, "<u4").astype(np.uint64) for frame in frames]
    lengths = [np.diff(np.frombuffer(frame.start, "<u4").astype(np.int64)) for frame in frames]
    many = [len(each) for each in lanes]
    lane = np.concatenate([np.empty(0, np.uint64), *lanes])
    every = Sketched(
        lane,
        np.repeat(np.array([frame.step for frame in frames], np.uint64), many),
        np.repeat(np.array([frame.number for frame in frames], np.uint64), many),
        np.where((lane < taps) & ~np.repeat(np.array(late, bool), many), BOTH, PART).astype(np.uint8),
        np.concatenate([[0], np.cumsum(np.concatenate([np.empty(0, np.int64), *lengths]))]).astype(np.int64),
        np.frombuffer(b"".join(frame.bins for frame in frames), "<u2"),
        np.frombuffer(b"".join(frame.counts for frame in frames), "<u4"),
    )
    filled = np.flatnonzero(np.diff(every.starts))
    order = np.lexsort(
        (every.number[filled], every.step[filled], every.lane[filled], every.step[filled] >> np.uint64(CHUNK))
    )
    return every.take(filled[order])


# Rollups: a row for 8 steps of each lane, for 32, and so on. ClickHouse adds up those of several segments. Pure.

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

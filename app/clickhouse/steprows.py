"""The rows of one run's frames as arrays: as they were sent, and the value of each lane in each step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, STATS
from hookcore.records.wire import FrameItem
from hookcore.store.scalars import scalars_of
from hookcore.store.schemas import merge_stats
from hookcore.store.segments import Floats

from .groups import begins_of
from .names import SCALARS, lane_of_scalar
from .tables import BOTH, CHUNK, MERGED, PART

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

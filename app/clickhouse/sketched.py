"""The sketches of one run's frames as arrays. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hookcore.records.sketch import places_of
from hookcore.records.wire import FrameItem

from .steprows import late_in
from .tables import BOTH, CHUNK, PART


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

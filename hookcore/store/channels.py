"""The numbers of probes in their order, such as one for each channel, over time and in bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import Snapshot, Tap
from hookcore.store.answers import Channels, Steps

MAX_COLUMNS: Final = 512  # of one tap; then older ones are merged
_COLUMN_BYTES: Final = 160  # an array's header, and its steps
_LANE_BYTES: Final = 1024
Values = NDArray[np.float32]


@dataclass(slots=True)
class _Lane:
    """One tap: columns of the same width, oldest first."""

    channels: int  # of the tensor; more than the width if each value stands for several
    width: int
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return _LANE_BYTES + len(self.values) * (4 * self.width + _COLUMN_BYTES)

    def put(self, step: int, values: Values) -> None:
        """Add the values of a step. Those of a step that is already here are merged with it."""
        place = next((at for at in range(len(self.first) - 1, -1, -1) if self.first[at] <= step), -1)
        if place >= 0 and step <= self.last[place]:
            self.values[place] = np.maximum(self.values[place], values)
            return
        self.first.insert(place + 1, step)
        self.last.insert(place + 1, step)
        self.values.insert(place + 1, values)

    def thin(self) -> int:
        """Merge the older half in pairs. Return the number of columns that are gone."""
        half = max(2, len(self.first) // 2) // 2 * 2
        pairs = range(0, half, 2)
        values: list[Values] = [np.maximum(self.values[at], self.values[at + 1]) for at in pairs]
        self.first[:half], self.last[:half] = self.first[:half:2], self.last[1:half:2]
        self.values[:half] = values
        return len(pairs)


class ChannelLog:
    """The columns of all taps within one limit: the newest exact, older ones merged; the largest value wins, or NaN."""

    def __init__(self, max_bytes: int, lock: threading.Lock) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.merged = 0  # columns that were merged into their neighbors
        self.dropped = 0  # columns of another width than the tap's newest
        self.refused = 0  # columns without room
        self._lock = lock
        self._lanes: dict[Tap, _Lane] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add what a probe computed in a step."""
        with np.errstate(over="ignore"):
            values = np.real(snapshot.values).astype(np.float32).reshape(-1)
        channels = int(np.prod(snapshot.shape))
        with self._lock:
            lane = self._lanes.get(snapshot.tap)
            if lane is not None and (lane.channels, lane.width) != (channels, len(values)):
                self.dropped += len(lane.values)
                self.nbytes -= lane.nbytes
                lane = None
            if lane is None:
                self._lanes.pop(snapshot.tap, None)
                lane = _Lane(channels, len(values))
                if not len(values) or not self._make_room(lane.nbytes + 4 * lane.width + _COLUMN_BYTES):
                    self.refused += 1
                    return
                self._lanes[snapshot.tap] = lane
                self.nbytes += lane.nbytes
            elif not self._make_room(4 * lane.width + _COLUMN_BYTES):
                self.refused += 1
                return
            before = lane.nbytes
            lane.put(snapshot.step, values)
            if len(lane.first) > MAX_COLUMNS:
                self.merged += lane.thin()
            self.nbytes += lane.nbytes - before

    def _make_room(self, nbytes: int) -> bool:
        """Merge columns of the largest taps until there is room."""
        if nbytes > self.max_bytes:
            return False
        while self.nbytes + nbytes > self.max_bytes:
            several = [lane for lane in self._lanes.values() if len(lane.first) > 1]
            if not several:
                return False
            largest = max(several, key=lambda lane: lane.nbytes)
            before = largest.nbytes
            self.merged += largest.thin()
            self.nbytes += largest.nbytes - before
        return True

    def taps(self) -> list[Tap]:
        """Return the taps that have columns."""
        with self._lock:
            return list(self._lanes)

    def read(self, tap: Tap, first: int | None, last: int | None, columns: int, rows: int) -> Channels:
        """Return the values in some steps, in at most `columns` by `rows` cells; the largest value of each, or NaN."""
        with self._lock:
            lane = self._lanes.get(tap)
            places = [] if lane is None else _between(lane, first, last)
            shown = np.array([lane.values[at] for at in places] if lane else [], np.float64)
            begins = np.array([lane.first[at] for at in places] if lane else [], np.int64)
            ends = np.array([lane.last[at] for at in places] if lane else [], np.int64)
            channels, width = (lane.channels, lane.width) if lane else (0, 0)
        shown = shown.reshape(len(places), width).T
        each = -(-len(places) // columns) or 1
        starts = np.arange(0, len(places), each)
        each_row = -(-width // rows) or 1
        row_starts = np.arange(0, width, each_row)
        if shown.size:
            shown = np.maximum.reduceat(np.maximum.reduceat(shown, starts, axis=1), row_starts, axis=0)
        group = -(-channels // width) if width else 1
        lasts = np.minimum(starts + each, len(places)) - 1
        return Channels(_at(begins, starts), _at(ends, lasts), row_starts * group, channels, shown)


def _between(lane: _Lane, first: int | None, last: int | None) -> Sequence[int]:
    return [
        at
        for at in range(len(lane.first))
        if (first is None or lane.last[at] >= first) and (last is None or lane.first[at] <= last)
    ]


def _at(steps: Steps, places: NDArray[Any]) -> Steps:
    return steps[places] if len(steps) else steps

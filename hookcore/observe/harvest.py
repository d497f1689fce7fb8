"""The two halves of taking a step's numbers out of an arena.

`Packer.pack` runs on the training thread and does as little as possible: it copies the written rows, packed, and
empties them. `unpack` runs on the recorder's thread, for many steps at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookcore.observe import cpu, layout
from hookcore.records.sketch import BINS

_CELLS = layout.CELLS
# A packed row: slot and number of filled bins (int64), the cells, then (bin << 32 | count) for each filled bin.
_WORDS_BEFORE_BINS = 2 + _CELLS
_MAX_ROW_WORDS = _WORDS_BEFORE_BINS + BINS


class Harvest(NamedTuple):
    """Rows of one or more steps: slot numbers, cells, and sketches in the form of `hookcore.records.SketchBlock`."""

    slots: NDArray[np.uint32]
    cells: NDArray[np.float64]
    start: NDArray[np.uint32]
    bins: NDArray[np.uint16]
    counts: NDArray[np.uint32]


class Packer:
    """Packs an arena. Its buffer grows to what the largest step can need; its untouched pages cost nothing."""

    def __init__(self) -> None:
        self._buffer: NDArray[np.int64] = np.empty(0, np.int64)
        self._address = 0
        self._lock = threading.Lock()  # two threads may end a step at the same moment

    def pack(self, base: int, used: int) -> NDArray[np.int64]:
        """Move the contents of the first `used` rows at `base` out of the arena."""
        with self._lock:
            if self._buffer.size < used * _MAX_ROW_WORDS:
                self._buffer = np.empty(2 * used * _MAX_ROW_WORDS, np.int64)
                self._address = self._buffer.ctypes.data
            packed: NDArray[np.int64] = self._buffer[: cpu.pack(base, used, self._address)].copy()
            return packed


def unpack(packed: Sequence[NDArray[np.int64]]) -> list[Harvest]:
    """Return the rows of each packed step, unpacked together."""
    words = packed[0] if len(packed) == 1 else np.concatenate(packed)
    most = words.size // _WORDS_BEFORE_BINS
    slots, cells, start = np.empty(most, np.uint32), np.empty((most, _CELLS)), np.zeros(most + 1, np.uint32)
    bins, counts = np.empty(words.size, np.uint16), np.empty(words.size, np.uint32)
    rows = cpu.unpack(
        words.ctypes.data, words.size, *(array.ctypes.data for array in (slots, cells, start, bins, counts))
    )
    # A step ends where its words end: rows and words grow together.
    row_ends = np.searchsorted(
        _WORDS_BEFORE_BINS * np.arange(rows + 1) + start[: rows + 1], np.cumsum([part.size for part in packed])
    )
    harvests, first = [], 0
    for last in row_ends.tolist():
        low, high = start[first], start[last]
        harvests.append(
            Harvest(
                slots[first:last], cells[first:last], start[first : last + 1] - low, bins[low:high], counts[low:high]
            )
        )
        first = last
    return harvests


def join(harvests: Sequence[Harvest]) -> Harvest:
    """Merge several harvests of one step."""
    if len(harvests) == 1:
        return harvests[0]
    lengths = np.concatenate([np.diff(harvest.start) for harvest in harvests])
    start = np.zeros(len(lengths) + 1, np.uint32)
    np.cumsum(lengths, out=start[1:])
    return Harvest(
        np.concatenate([harvest.slots for harvest in harvests]),
        np.concatenate([harvest.cells for harvest in harvests]),
        start,
        np.concatenate([harvest.bins for harvest in harvests]),
        np.concatenate([harvest.counts for harvest in harvests]),
    )

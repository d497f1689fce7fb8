"""The two halves of taking a step's numbers out of an arena.

`Packer.pack` runs on the training thread and does as little as possible: it copies the written rows, packed, and
empties them. `unpack` runs on the recorder's thread, for many steps at once.

Packed steps are bytes. NumPy would let go of the interpreter for every copy of more than 500 values, and to get it back
takes longer than to copy a small step: the training and the recorder would wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hookcore.observe import cpu, layout, reference
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

    def pack(self, base: int, used: int) -> bytes:
        """Move the contents of the first `used` rows at `base` out of the arena."""
        with self._lock:
            if self._buffer.size < used * _MAX_ROW_WORDS:
                self._buffer = np.empty(2 * used * _MAX_ROW_WORDS, np.int64)
                self._address = self._buffer.ctypes.data
            return self._buffer[: cpu.pack(base, used, self._address)].tobytes()


def unpack(packed: Sequence[bytes]) -> list[Harvest]:
    """Return the rows of each packed step, unpacked together."""
    words = np.frombuffer(b"".join(packed), np.int64)
    most = words.size // _WORDS_BEFORE_BINS
    slots, cells, start = np.empty(most, np.uint32), np.empty((most, _CELLS)), np.zeros(most + 1, np.uint32)
    bins, counts = np.empty(words.size, np.uint16), np.empty(words.size, np.uint32)
    rows = cpu.unpack(
        words.ctypes.data, words.size, *(array.ctypes.data for array in (slots, cells, start, bins, counts))
    )
    # A step ends where its words end: rows and words grow together.
    row_ends = np.searchsorted(
        _WORDS_BEFORE_BINS * np.arange(rows + 1) + start[: rows + 1], np.cumsum(list(map(len, packed))) // 8
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
    """Merge several harvests of one step. A tap may be in more than one: its tensors can be on several devices."""
    if len(harvests) == 1:
        return harvests[0]
    lengths = np.concatenate([np.diff(harvest.start) for harvest in harvests])
    start = np.zeros(len(lengths) + 1, np.uint32)
    np.cumsum(lengths, out=start[1:])
    joined = Harvest(
        np.concatenate([harvest.slots for harvest in harvests]),
        np.concatenate([harvest.cells for harvest in harvests]),
        start,
        np.concatenate([harvest.bins for harvest in harvests]),
        np.concatenate([harvest.counts for harvest in harvests]),
    )
    slots, rows = np.unique(joined.slots, return_inverse=True)
    return joined if slots.size == joined.slots.size else _add_up(joined, slots, rows)


def _add_up(harvest: Harvest, slots: NDArray[np.uint32], rows: NDArray[np.intp]) -> Harvest:
    """Return one row for each slot. `rows` says which one each row of the harvest is a part of."""
    order = np.argsort(rows, kind="stable")
    part = np.empty_like(order)
    part[order] = np.arange(order.size) - np.searchsorted(rows[order], rows[order])
    cells = np.zeros((slots.size, int(part.max()) + 1, _CELLS))
    cells[rows, part] = harvest.cells
    places = np.repeat(rows, np.diff(harvest.start)) * BINS + harvest.bins
    filled, index = np.unique(places, return_inverse=True)
    return Harvest(
        slots,
        reference.combine(torch.from_numpy(cells)).numpy(),
        np.searchsorted(filled, np.arange(slots.size + 1) * BINS).astype(np.uint32),
        (filled % BINS).astype(np.uint16),
        np.bincount(index, weights=harvest.counts).astype(np.uint32),
    )

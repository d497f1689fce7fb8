"""The numbers of a step on their way from a device to the host, and the pinned memory that they travel through."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookcore.observe import layout
from hookcore.observe.captures import wait_for
from hookcore.observe.harvest import Harvest
from hookcore.observe.plain import unseen
from hookcore.records import sketch

ROOM: Final = 64  # buffers have room for a multiple of this many slots
KEPT_HOST_BUFFERS: Final = 2  # one is read while the next one is filled


@dataclass(slots=True)
class Transfer:
    """The numbers of a step on their way to the host."""

    slots: NDArray[np.int64]
    rows: Tensor
    histograms: Tensor
    done: Any  # the event after the copy; None if the numbers are still on the device
    buffers: HostBuffers

    @property
    def nbytes(self) -> int:
        """The memory that it holds on the host."""
        return self.rows.nbytes + self.histograms.nbytes

    def finish(self) -> Harvest:
        """Wait for the copy, in this thread only. Call this once."""
        wait_for(self.done)
        with unseen():
            rows = self.rows.cpu().numpy().astype(np.float64)
            harvest = harvest_of(self.slots, rows, self.histograms.cpu().numpy())
        if self.done is not None:
            self.buffers.give_back(self.rows, self.histograms)
        return harvest


@dataclass(slots=True)
class HostBuffers:
    """Pinned memory that is reused, because allocating it would stop the device."""

    free: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, slots: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return room for this many slots, from the first buffers that are large enough."""
        with self.lock:
            for i, (rows, _) in enumerate(self.free):
                whole = rows.untyped_storage().nbytes() // (layout.CELLS * rows.itemsize)
                if whole >= slots and rows.dtype is dtype:
                    return self._cut(*self.free.pop(i), slots)
        room = -(-slots // ROOM) * ROOM * 2
        pinned: Any = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
        rows = torch.empty((room, layout.CELLS), dtype=dtype, **pinned)
        histograms = torch.empty((room, sketch.BINS), dtype=torch.int32, **pinned)
        return self._cut(rows, histograms, slots)

    @staticmethod
    def _cut(rows: Tensor, histograms: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        return (
            rows.as_strided((slots, layout.CELLS), (layout.CELLS, 1)),
            histograms.as_strided((slots, sketch.BINS), (sketch.BINS, 1)),
        )

    def give_back(self, rows: Tensor, histograms: Tensor) -> None:
        """Keep the newest buffers, which are the largest."""
        with self.lock:
            self.free.append((rows, histograms))
            del self.free[:-KEPT_HOST_BUFFERS]


def harvest_of(slots: NDArray[np.int64], rows: NDArray[np.float64], histograms: NDArray[np.int32]) -> Harvest:
    """Return rows and dense sketches in the form of frames, without empty slots."""
    filled = rows[:, layout.PARTS] > 0
    dense = histograms[filled].reshape(-1)
    # Millions of counts, most of them zero: torch lets the training's thread run meanwhile.
    places = torch.nonzero(torch.from_numpy(dense)).numpy()[:, 0]
    start = np.searchsorted(places, np.arange(filled.sum() + 1) * sketch.BINS).astype(np.uint32)
    bins, counts = (places % sketch.BINS).astype(np.uint16), dense[places].view(np.uint32)
    return Harvest(slots[filled].astype(np.uint32), rows[filled], start, bins, counts)

"""The newest captured steps before a saved one, which a capsule contains as numbers."""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from hookcore.delivery.dashboard.capsules import FRAMES, opened
from hookcore.errors import CapsuleError, WireError
from hookcore.records import Frame, SketchBlock, Tap, wire
from hookcore.store import Store

MAX_STEPS: Final = 50
MAX_BYTES: Final = 16 << 20  # fewer steps are kept if they take more
_RUN: Final = wire.RunInfo(id="capsule", key="", name="")
_STORE_BYTES: Final = 256 << 20


@dataclass(slots=True)
class RecentFrames:
    """The newest steps of a run without their histograms. One thread adds, another one reads."""

    _steps: deque[list[Frame]] = field(default_factory=deque)  # the parts of each step
    _taps: list[Tap] = field(default_factory=list)
    _nbytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, frame: Frame, keep: bool = True) -> None:
        """Keep a frame, and drop the oldest ones to make room. Otherwise, only learn the names of its taps."""
        with self._lock:
            self._taps += frame.new_taps
            if not keep:
                self._steps.clear()
                self._nbytes = 0
                return
            if not self._steps or self._steps[-1][0].step != frame.step:
                self._steps.append([])
            self._steps[-1].append(_outline(frame))
            self._nbytes += frame.stats.nbytes
            while len(self._steps) > MAX_STEPS or self._nbytes > MAX_BYTES:
                self._nbytes -= sum(each.stats.nbytes for each in self._steps.popleft())

    @property
    def steps(self) -> list[int]:
        """The kept steps, oldest first."""
        with self._lock:
            return [parts[0].step for parts in self._steps]

    def packed(self) -> bytes:
        """Return the kept steps as a message."""
        with self._lock:
            frames, taps = [frame for parts in self._steps for frame in parts], tuple(self._taps)
        items = tuple(wire.frame_item(number, frame) for number, frame in enumerate(frames))
        return wire.encode(wire.Batch(run=_RUN, taps=taps, items=items))


def read_frames(path: str | os.PathLike[str]) -> Store:
    """Return a store with the steps before the saved one: all scalars, and captured tensors without their histograms.

    Runs no code of the capsule.
    """
    with opened(path) as archive:
        if FRAMES not in archive.namelist():
            raise CapsuleError(f"{path} has no earlier steps: only hookcore.watch saves them, if capsule isn't 'never'")
        try:
            batch = wire.decode_batch(archive.read(FRAMES))
            store, taps = Store(_STORE_BYTES), batch.taps
            for item in batch.items:
                if isinstance(item, wire.FrameItem):
                    store.append(wire.frame_of(item, taps))
                    taps = ()
        except WireError as error:
            raise CapsuleError(f"the earlier steps in {path} can't be read: {error}") from None
    return store


def _outline(frame: Frame) -> Frame:
    return replace(frame, sketches=SketchBlock.empty(len(frame.taps)), new_taps=(), events=())

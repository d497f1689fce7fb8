"""The queue of frames between the training thread and the recorder's thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from hookcore.recorder.frames import RawFrame

MAX_BATCH: Final = 64
MAX_FRAMES: Final = 256  # that wait; the oldest is dropped and counted
MAX_BYTES: Final = 256 * 2**20  # a step of 2,000 tensors on a GPU takes 33 MB until it is read


class FrameQueue:
    """Frames that wait, in bounded memory. What must not be lost of a dropped one goes with the next."""

    def __init__(self) -> None:
        self.frames: deque[RawFrame] = deque()
        self.dropped = 0
        self.dropped_events = 0
        self._bytes = 0
        self._lock = threading.Lock()

    def put(self, frame: RawFrame) -> None:
        """Queue a step or a part of one. Never waits."""
        with self._lock:
            self.frames.append(frame)
            self._bytes += frame.nbytes
            while len(self.frames) > MAX_FRAMES or (self._bytes > MAX_BYTES and len(self.frames) > 1):
                oldest = self.frames.popleft()
                self._bytes -= oldest.nbytes
                self.dropped += 1
                self.dropped_events += self.frames[0].inherit(oldest)

    def take(self) -> list[RawFrame]:
        """Return the oldest frames, at most a batch of them."""
        with self._lock:
            frames = [self.frames.popleft() for _ in range(min(MAX_BATCH, len(self.frames)))]
            self._bytes -= sum(frame.nbytes for frame in frames)
        return frames

"""The recorder's own thread: turns what the training thread left into frames and hands them to the sink."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from hookcore.recorder.frames import RawFrame

logger = logging.getLogger("hookcore")

POLL_S: Final = 0.02
MAX_BATCH: Final = 64
MAX_QUEUE: Final = 256  # frames that wait at most; the oldest is dropped and counted
MAX_QUEUE_BYTES: Final = 64 * 2**20


class Worker:
    """A bounded queue and one daemon thread that polls it: waking it up would cost the training thread a switch."""

    def __init__(self, handle: Callable[[list[RawFrame]], None], failed: Callable[[Exception], None]) -> None:
        self._handle = handle
        self._failed = failed
        self._queue: deque[RawFrame] = deque()
        self._bytes = 0
        self._busy = False
        self._stopping = threading.Event()
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="hookcore-recorder", daemon=True)
        self._thread.start()

    def put(self, frame: RawFrame) -> None:
        """Never waits."""
        self._queue.append(frame)
        self._bytes += frame.packed.nbytes
        while len(self._queue) > MAX_QUEUE or (self._bytes > MAX_QUEUE_BYTES and len(self._queue) > 1):
            try:
                oldest = self._queue.popleft()
            except IndexError:  # the thread was faster
                break
            self._bytes -= oldest.packed.nbytes
            self.dropped += 1

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything put so far has been handled; False where the time ran out."""
        deadline = time.monotonic() + timeout_s
        while self._queue or self._busy:
            if time.monotonic() > deadline or not self._thread.is_alive():
                return not (self._queue or self._busy)
            time.sleep(0.001)
        return True

    def close(self, timeout_s: float) -> None:
        """Handle what waits, then end the thread."""
        self.flush(timeout_s)
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            while self._queue:
                self._busy = True
                try:
                    self._take()
                finally:
                    self._busy = False

    def _take(self) -> None:
        frames: list[RawFrame] = []
        while self._queue and len(frames) < MAX_BATCH:
            try:
                frames.append(self._queue.popleft())
            except IndexError:  # dropped in the meantime
                break
            self._bytes -= frames[-1].packed.nbytes
        try:
            self._handle(frames)
        except Exception as error:
            self._failed(error)

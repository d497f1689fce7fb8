"""The recorder's own thread: turns the training thread's data into frames and passes them to the sink."""

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
MAX_QUEUE: Final = 256  # limit of waiting frames; the oldest is dropped and counted
MAX_QUEUE_BYTES: Final = 256 * 2**20  # a step of 2,000 tensors on a GPU takes 33 MB until it is read


class Worker:
    """A bounded queue and a daemon thread that polls it, because waking it would cost the training a thread switch."""

    def __init__(
        self,
        handle: Callable[[list[RawFrame]], None],
        failed: Callable[[Exception], None],
        tick: Callable[[], None] = lambda: None,
        has_more: Callable[[], bool] = lambda: False,
    ) -> None:
        self._handle = handle
        self._failed = failed
        self._tick = tick  # called at every check of the queue
        self._has_more = has_more  # whether a tick has work that a flush waits for
        self._queue: deque[RawFrame] = deque()
        self._bytes = 0
        self._busy = False
        self._stopping = threading.Event()
        self.dropped = 0
        self.dropped_events = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="hookcore-recorder", daemon=True)

    def start(self) -> None:
        """Start to accept frames. A second call does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def put(self, frame: RawFrame) -> None:
        """Queue a frame; never wait."""
        with self._lock:
            self._queue.append(frame)
            self._bytes += frame.nbytes
            while len(self._queue) > MAX_QUEUE or (self._bytes > MAX_QUEUE_BYTES and len(self._queue) > 1):
                oldest = self._queue.popleft()
                self._bytes -= oldest.nbytes
                self.dropped += 1
                self.dropped_events += self._queue[0].inherit(oldest)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything so far has been handled. Return False if the time ran out."""
        deadline = time.monotonic() + timeout_s
        while self._has_work():
            if not self._thread.is_alive():
                return not self._queue
            if time.monotonic() > deadline:
                return not self._has_work()
            time.sleep(0.001)
        return True

    def _has_work(self) -> bool:
        return bool(self._queue) or self._busy or self._has_more()

    def close(self, timeout_s: float) -> None:
        """Handle everything that waits, then end the thread."""
        if self._thread.ident is None:
            return
        self.flush(timeout_s)
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            self._busy = True  # during a tick too: it may describe the model, and a flush waits for that
            try:
                while self._queue:
                    self._take()
                self._tick()
            except Exception as error:
                self._failed(error)
            finally:
                self._busy = False

    def _take(self) -> None:
        with self._lock:
            frames = [self._queue.popleft() for _ in range(min(MAX_BATCH, len(self._queue)))]
            self._bytes -= sum(frame.nbytes for frame in frames)
        try:
            self._handle(frames)
        except Exception as error:
            self._failed(error)

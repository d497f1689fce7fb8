"""The recorder's own thread, which turns the training thread's data into frames and passes them to the sink."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from hookcore.recorder.queue import FrameQueue
from hookcore.recorder.rounds import Rounds

POLL_S: Final = 0.02


class Worker:
    """A daemon thread that polls the queue, because waking it would cost the training a thread switch.

    Exceptions of its work, the rounds, are counted, and it continues.
    """

    def __init__(self, queue: FrameQueue, rounds: Rounds, failed: Callable[[Exception], None]) -> None:
        self.queue = queue
        self._rounds = rounds
        self._failed = failed
        self._busy = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hookcore-recorder", daemon=True)

    def start(self) -> None:
        """Start the thread. A second call does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued so far is in the sink. Return False if the time ran out."""
        deadline = time.monotonic() + timeout_s
        while self._has_work():
            if not self._thread.is_alive():
                return not self.queue.frames
            if time.monotonic() > deadline:
                return not self._has_work()
            time.sleep(0.001)
        return True

    def _has_work(self) -> bool:
        return bool(self.queue.frames) or self._busy or self._rounds.has_more

    def close(self, timeout_s: float) -> None:
        """Handle everything that waits, then end the thread. Its last errors are among what it sends last."""
        if self._thread.ident is None:
            return
        deadline = time.monotonic() + timeout_s
        self.flush(timeout_s)
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def has_ended(self) -> bool:
        """Whether the thread makes no more rounds."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            self._busy = True  # during a round too: it may describe the model, and a flush waits for that
            self._attempt(self._ship)
            self._attempt(self._rounds.make)
            self._busy = False
        self._attempt(self._rounds.end)
        self._attempt(self._ship)

    def _ship(self) -> None:
        while self.queue.frames:
            self._attempt(self._rounds.ship, self.queue.take())

    def _attempt(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self._failed(error)

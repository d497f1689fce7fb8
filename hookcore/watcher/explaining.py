"""The saved step of a run's first error is replayed by itself, once, in a process of its own."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from hookcore.config import Explain
from hookcore.delivery.dashboard.capsules import Saved, saved
from hookcore.reading.replaying import FAILED, Kept, Replaying, events_of
from hookcore.records import Event

logger = logging.getLogger("hookcore")

MAX_BYTES: Final = 512 << 20  # of the capsule
WAIT_S: Final = 30.0  # for a running replay, when the training ends
_TURN_S: Final = 60.0  # for those of other processes, such as the other ranks: one runs at a time
_POLL_S: Final = 0.2
_LOCK: Final = "explaining.lock"


class SelfExplainer:
    """Replays the first capsule that it is told of, and emits what was found as events of the run."""

    def __init__(self, explain: Explain) -> None:
        self._wanted = explain == "auto"
        self.emit: Callable[[Sequence[Event]], None] = lambda _: None  # set once there is a recorder
        self._replaying: Replaying | None = None
        self._thread: threading.Thread | None = None
        self._step = 0
        self._stopped = False

    def saw_error(self, path: Path) -> None:
        """Start the replay of a capsule that was just written. Called on the training thread."""
        if not self._wanted or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._explain, args=(path,), name="hookcore-explain", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for a running replay at the end of the training, but not long; then stop it."""
        thread = self._thread
        if thread is None or self._stopped or not thread.is_alive():
            return
        logger.warning(
            "hookcore: waiting up to %.0f s for the replay of step %s, the run's first error", WAIT_S, f"{self._step:,}"
        )
        with contextlib.suppress(KeyboardInterrupt):
            thread.join(WAIT_S)
        if thread.is_alive():
            self._stopped = True
            if self._replaying is not None:
                self._replaying.kill()

    def _explain(self, path: Path) -> None:
        found = next((each for each in saved(path.parent) if each.path == path), None)
        if found is None:
            return
        self._step = found.described.step
        if found.size > MAX_BYTES:
            limit = f"{MAX_BYTES >> 20} MiB"
            why = f"the capsule of step {self._step:,} has more than {limit}, so it isn't replayed by itself"
            self.emit([Event(self._step, time.time(), FAILED, why)])
            return
        with _turn(path.parent.parent / _LOCK):
            self._replay(found)

    def _replay(self, found: Saved) -> None:
        self._replaying = Replaying(found, os.environ, by_itself=True)
        kept: Kept = self._replaying.run()
        if not self._stopped:
            self.emit(events_of(found, kept))


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Wait until no other process of this user explains a step by itself, but not forever."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file = stack.enter_context(path.open("wb"))
            until = time.monotonic() + _TURN_S
            while time.monotonic() < until:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(_POLL_S)
                else:
                    break
        yield

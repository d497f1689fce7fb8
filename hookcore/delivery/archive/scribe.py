"""A thread that writes any number of runs to disk. It starts with the first writer and ends with the last."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

PART_S: Final = 5.0  # the part of a run that a crash may lose
PATIENCE_S: Final = 0.5  # how long a part waits for a pause
LOOK_S: Final = 0.01


class Writes(Protocol):
    """A writer that the thread serves."""

    def write_part(self) -> bool:
        """Write waiting data. Return False if the run has ended and there is no more."""


class Scribe:
    """The thread and its writers, which take turns: many runs that were written at once would stall live pages.

    They write in pauses, if there are any: the ranks of a training send their steps together, and its live pages would
    wait for the parts that are written between them.

    A finished writer is removed, so that no reference to its run remains.
    """

    def __init__(self, part_s: float = PART_S, is_busy: Callable[[], bool] = lambda: False) -> None:
        self._part_s, self._is_busy = part_s, is_busy
        self._due = 0.0  # when the next part should be written
        self._changed = threading.Condition()
        self._writers: deque[Writes] = deque()  # the next one first
        self._hurried: deque[Writes] = deque()  # those that don't wait for their turn
        self._thread: threading.Thread | None = None

    def add(self, writer: Writes) -> None:
        """Add a writer."""
        with self._changed:
            self._writers.append(writer)
            if self._thread is None:
                self._due = time.monotonic()
                self._thread = threading.Thread(target=self._run, name="hookcore-keeper", daemon=True)
                self._thread.start()

    def poke(self, writer: Writes) -> None:
        """Write a run now instead of at its turn."""
        with self._changed:
            if writer in self._writers and writer not in self._hurried:
                self._hurried.append(writer)
            self._changed.notify_all()

    def _run(self) -> None:
        while self._take_turn():
            pass

    def _take_turn(self) -> bool:
        """Wait for the next turn and write a part of a run. Return False when no run is left."""
        with self._changed:
            if self._writers and not self._hurried:
                self._wait_for_turn()
            writer = self._next()
        if writer is not None and writer.write_part():
            writer = None  # it goes on
        with self._changed:
            if writer is not None and writer in self._writers:
                self._writers.remove(writer)
            if not self._writers:
                self._hurried.clear()
                self._thread = None
            return self._thread is not None

    def _wait_for_turn(self) -> None:
        """Wait until the next part is due, and then for a pause, if it isn't late (the lock must be held)."""
        share_s = self._part_s / len(self._writers)
        self._due = max(self._due, time.monotonic() - PATIENCE_S) + share_s
        if self._changed.wait(max(0.0, self._due - time.monotonic())):
            return  # a run can't wait
        while self._is_busy() and time.monotonic() < self._due + PATIENCE_S:
            if self._changed.wait(LOOK_S):
                return

    def _next(self) -> Writes | None:
        """Return the run whose turn it is (the lock must be held)."""
        while self._hurried:
            writer = self._hurried.popleft()
            if writer in self._writers:
                return writer
        if not self._writers:
            return None
        self._writers.rotate(-1)
        return self._writers[-1]

"""A thread that writes any number of runs to disk. It starts with the first writer and ends with the last."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, Protocol

PART_S: Final = 5.0  # the part of a run that a crash may lose


class Writes(Protocol):
    """A writer that the thread serves."""

    def write_part(self) -> bool:
        """Write waiting data. Return False if the run has ended and there is no more."""


class Scribe:
    """The thread and its writers, which take turns: many runs that were written at once would stall live pages.

    A finished writer is removed, so that no reference to its run remains.
    """

    def __init__(self, part_s: float = PART_S) -> None:
        self._part_s = part_s
        self._changed = threading.Condition()
        self._writers: deque[Writes] = deque()  # the next one first
        self._hurried: deque[Writes] = deque()  # those that don't wait for their turn
        self._thread: threading.Thread | None = None

    def add(self, writer: Writes) -> None:
        """Add a writer."""
        with self._changed:
            self._writers.append(writer)
            if self._thread is None:
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
                self._changed.wait(self._part_s / len(self._writers))
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

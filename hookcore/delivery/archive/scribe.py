"""A thread that writes any number of runs to disk. It starts with the first writer and ends with the last."""

from __future__ import annotations

import threading
from typing import Final, Protocol

PART_S: Final = 5.0  # the part of a run that a crash may lose


class Writes(Protocol):
    """A writer that the thread serves."""

    def write_part(self) -> bool:
        """Write waiting data. Return False if the run has ended and there is no more."""


class Scribe:
    """The thread and its writers. A finished writer is removed, so that no reference to its run remains."""

    def __init__(self, part_s: float = PART_S) -> None:
        self._part_s = part_s
        self._changed = threading.Condition()
        self._writers: list[Writes] = []
        self._poked = False
        self._thread: threading.Thread | None = None

    def add(self, writer: Writes) -> None:
        """Add a writer."""
        with self._changed:
            self._writers.append(writer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hookcore-keeper", daemon=True)
                self._thread.start()

    def poke(self) -> None:
        """Write now instead of when the next part is due."""
        with self._changed:
            self._poked = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._poked:
                    self._changed.wait(self._part_s)
                self._poked = False
                writers = list(self._writers)
            finished = [writer for writer in writers if not writer.write_part()]
            with self._changed:
                self._writers = [writer for writer in self._writers if writer not in finished]
                if not self._writers:
                    self._thread = None
                    return
            del writers, finished

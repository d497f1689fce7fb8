"""When the server was last used, to decide whether it is idle."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Usage:
    """The last use by trainers and readers. A reader is any request or open stream about runs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.trainer_at = self.reader_at = clock()
        self.open = 0  # requests and streams of readers that are under way

    def note_trainer(self) -> None:
        """Note that a trainer sent something."""
        self.trainer_at = self.clock()

    @contextmanager
    def reading(self) -> Generator[None, None, None]:
        """Count a reader's request while it is open."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
            self.reader_at = self.clock()

    @property
    def idle_s(self) -> float:
        """Return for how many seconds the server has not been used."""
        return 0.0 if self.open else self.clock() - max(self.trainer_at, self.reader_at)

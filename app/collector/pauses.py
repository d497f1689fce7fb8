"""How long to wait before something that failed is tried again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

FIRST_S: Final = 0.1
MAX_S: Final = 10.0


def pause_s(failures: int) -> float:
    """Return the pause after a number of failures in a row: longer after each, and randomized."""
    return random.uniform(0.5, 1.0) * min(MAX_S, FIRST_S * 2.0 ** min(failures, 20))


class Pause:
    """How long to wait after failures, longer after each."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.failures, self.until = 0, float("-inf")
        self._clock = clock

    @property
    def is_over(self) -> bool:
        return self._clock() >= self.until

    def fail(self, at_least_s: float = 0.0) -> None:
        self.failures += 1
        self.until = self._clock() + max(at_least_s, pause_s(self.failures))

    def succeed(self, was_tried: bool) -> None:
        self.failures = 0 if was_tried else self.failures

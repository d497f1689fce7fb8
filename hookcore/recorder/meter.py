"""The cost of capturing if no step is skipped for comparison: the time of hookcore's own code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Meter:
    """Adds up the time between `enter` and `leave`. Only a few captured steps are timed, because timing also costs."""

    __slots__ = ("_clock", "_depth", "_entered_at", "_spent_s")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._depth = 0
        self._entered_at = 0.0
        self._spent_s = 0.0

    def enter(self) -> None:
        """Start a call of hookcore."""
        if not self._depth:
            self._entered_at = self._clock()
        self._depth += 1

    def leave(self) -> None:
        """End it. A call that began before the meter was installed counts for nothing."""
        if self._depth:
            self._depth -= 1
            if not self._depth:
                self._spent_s += self._clock() - self._entered_at

    def take(self, now: float) -> float:
        """Return the time until now, including the running call. Who also reads the clock reads it once for both."""
        running = now - self._entered_at if self._depth else 0.0
        return self._spent_s + running

    def time(self, call: Callable[..., Any], *args: Any) -> None:
        """Call a function between the two."""
        self.enter()
        try:
            call(*args)
        finally:
            self.leave()

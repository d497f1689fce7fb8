"""Calls that wait for the end of a step, and are made by the thread that trains."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from hookcore.hooks.compiled import guard_functions
from hookcore.recorder.clock import Clock

MAX_WAITING: Final = 256

Call = Callable[[], None]


class Boundary:
    """A bounded queue of calls. What they raise leaves the training step, so they catch what must not."""

    def __init__(self) -> None:
        self.waiting: deque[Call] = deque()

    def put(self, call: Call) -> bool:
        """Queue a call, from any thread. Return False if too many are waiting."""
        if len(self.waiting) >= MAX_WAITING:
            return False
        self.waiting.append(call)
        return True

    def run(self) -> None:
        """Make all calls that wait. If one raises, the others wait for the end of the next step."""
        while self.waiting:
            try:
                call = self.waiting.popleft()
            except IndexError:  # another thread that trains took it
                return
            call()


class EndsSteps(Protocol):
    """An object whose methods can end a step."""

    clock: Clock
    boundary: Boundary


def ends_steps(method: Callable[..., None]) -> Callable[..., None]:
    """Make the calls that wait for the end of a step if the method ended one. No lock is held then."""

    @functools.wraps(method)
    def call(self: EndsSteps, *args: Any) -> None:
        before = self.clock.step
        method(self, *args)
        if self.clock.step != before and self.boundary.waiting:
            self.boundary.run()

    guard_functions(call)
    return call


__all__ = ["Boundary", "ends_steps"]

"""Calls that wait for the end of a step, and are made by the thread that trains."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from hookcore.hooks.compiled import guard_functions
from hookcore.recorder.clock import Clock
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.dispatch import Dispatcher
from hookcore.recorder.errorlog import ErrorLog
from hookcore.recorder.steptimes import StepTimes

MAX_WAITING: Final = 256

Call = Callable[[], None]


class Boundary:
    """A bounded queue of calls. Their exceptions leave the training step, so they catch those that must not."""

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


@dataclass(slots=True, eq=False)
class EndsSteps:
    """A part whose methods torch calls, and that can end a step."""

    clock: Clock
    boundary: Boundary
    _dispatcher: Dispatcher
    _lock: AbstractContextManager[Any]
    _current: CurrentStep = field(init=False)
    _errors: ErrorLog = field(init=False)
    _times: StepTimes = field(init=False)

    def __post_init__(self) -> None:
        known = self._dispatcher
        self._current, self._errors, self._times = known.current, known.errors, known.times


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

"""Errors inside hookcore, and the guard of methods that torch calls between a training's own code."""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from hookcore.hooks.compiled import guard_functions
from hookcore.hooks.internals import DisableTorchFunction
from hookcore.recorder.calls.plans import Plan
from hookcore.recorder.clock.current import CurrentStep
from hookcore.records import Event, Severity, Value
from hookcore.records.vocabulary import TRACEBACK, counted

MAX_ERRORS: Final = 3  # of one module, before it is left alone
MAX_KEPT_ERRORS: Final = 100
REPORT_EVERY_S: Final = 30.0  # between two events that count errors beyond those, or other losses
NO_MEMORY: Final = "the GPU had no memory left to measure it"
_WITHOUT_MEMORY: Final = (
    "failed because the GPU had no memory left, so their values are missing. Watch fewer modules, or leave out "
    "`update`, which copies the weights"
)
_MORE_ERRORS: Final = f"in hookcore; only the first {MAX_KEPT_ERRORS} are shown, the others are counted"


@dataclass(slots=True)
class _Loss:
    """Something that the run lacks, and how much of it events have reported."""

    name: str
    noun: str
    why: str
    severity: Severity
    count: int = 0
    _reported: int = 0
    _next_at: float = float("-inf")

    def due(self, is_last: bool) -> int:
        """Return how many to report now: events do so from time to time."""
        fresh = self.count - self._reported
        if fresh <= 0 or not (is_last or time.monotonic() >= self._next_at):
            return 0
        self._reported, self._next_at = self._reported + fresh, time.monotonic() + REPORT_EVERY_S
        return fresh


class ErrorLog:
    """The errors of one recorder, and the number of what was dropped. No error reaches the training."""

    def __init__(self, current: CurrentStep) -> None:
        self._current = current
        self.events: list[Event] = []  # the first errors
        self.count = 0
        self._reported = 0  # of the first errors
        self._losses: dict[tuple[str, str], _Loss] = {}

    def record(self, where: str, error: BaseException, plan: Plan | None = None) -> None:
        """Count an error and keep it if it is one of the first. A module that keeps failing is no longer captured.

        A GPU without memory isn't a module's fault, and may recover: the missing measurements are only counted.
        """
        if isinstance(error, torch.OutOfMemoryError):
            self.count_loss("no-gpu-memory", "measurement", _WITHOUT_MEMORY)
            if plan is not None:
                plan.note_reason(NO_MEMORY)
            return
        if plan is not None and plan.count_error() >= MAX_ERRORS:
            plan.mute(f"no longer captured after {MAX_ERRORS} errors in hookcore's {where}")
        self.count += 1
        if len(self.events) < MAX_KEPT_ERRORS:
            said = " ".join("".join(traceback.format_exception_only(error)).split())
            about: dict[str, Value] = {TRACEBACK: "".join(traceback.format_exception(error))}
            path = "" if plan is None else plan.path
            message = f"{where}: {said}"
            self.events.append(Event(self._current.number, time.time(), "hook-error", message, "error", path, 1, about))
        else:
            self.count_loss("hook-error", "more error", _MORE_ERRORS, "error")

    def count_loss(self, name: str, noun: str, why: str, severity: Severity = "warning") -> None:
        """Count something that the run lacks. Events of this name say how many of this noun, and why."""
        self._losses.setdefault((name, why), _Loss(name, noun, why, severity)).count += 1

    def news(self, is_last: bool = False) -> list[Event]:
        """Return events about the errors and the losses since the last call. Losses are reported now and then."""
        fresh = self.events[self._reported :]
        self._reported += len(fresh)
        for loss in list(self._losses.values()):
            if many := loss.due(is_last):
                text = f"{counted(many, loss.noun)} {loss.why}"
                fresh.append(Event(self._current.number, time.time(), loss.name, text, loss.severity, count=many))
        return fresh


# The guard of methods that torch calls between a training's own code.


class Guarded(Protocol):
    """An object with such methods."""

    _current: CurrentStep
    _errors: ErrorLog
    _lock: AbstractContextManager[Any]


def entry(where: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a method one that torch may call: timed, under the lock, and never raising."""

    def decorate(method: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(method)
        def call(self: Guarded, *args: Any) -> None:
            if (meter := self._current.meter) is not None:
                meter.enter()
            try:
                with self._lock, DisableTorchFunction():
                    method(self, *args)
            except Exception as error:
                self._errors.record(where, error)
            finally:
                if meter is not None:
                    meter.leave()

        guard_functions(call)
        return call

    return decorate

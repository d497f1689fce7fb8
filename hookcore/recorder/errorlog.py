"""Errors inside hookcore: caught, counted, and kept with their tracebacks."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import Final

import torch

from hookcore.recorder.current import CurrentStep
from hookcore.recorder.plans import Plan
from hookcore.records import Event
from hookcore.records.vocabulary import counted

MAX_ERRORS: Final = 3  # of one module, before it is left alone
MAX_KEPT_ERRORS: Final = 100
TELL_EVERY_S: Final = 30.0  # between two events that count errors beyond those
NO_MEMORY: Final = "the GPU had no memory left to measure it"


@dataclass(slots=True)
class _Told:
    """How much of a growing number events have reported. They do so from time to time."""

    _count: int = 0
    _next_at: float = float("-inf")

    def due(self, count: int, is_last: bool) -> int:
        """Return how many to report now."""
        fresh = count - self._count
        if fresh <= 0 or not (is_last or time.monotonic() >= self._next_at):
            return 0
        self._count, self._next_at = count, time.monotonic() + TELL_EVERY_S
        return fresh


class ErrorLog:
    """The errors of one recorder. None of them reaches the training."""

    def __init__(self, current: CurrentStep) -> None:
        self._current = current
        self.events: list[Event] = []  # the first ones
        self.count = 0
        self._without_memory = 0  # measurements
        self._told = 0  # of the first errors
        self._told_others, self._told_memory = _Told(), _Told()

    def record(self, where: str, error: BaseException, plan: Plan | None = None) -> None:
        """Count an error and keep it if it is one of the first. A module that keeps failing is no longer captured.

        The first line of its message says what happened; the traceback follows. A GPU without memory isn't a module's
        fault, and may recover: the missing measurements are only counted.
        """
        if isinstance(error, torch.OutOfMemoryError):
            self._without_memory += 1
            if plan is not None:
                plan.note_reason(NO_MEMORY)
            return
        if plan is not None and plan.count_error() >= MAX_ERRORS:
            plan.mute(f"no longer captured after {MAX_ERRORS} errors in hookcore's {where}")
        if len(self.events) < MAX_KEPT_ERRORS:
            said = " ".join("".join(traceback.format_exception_only(error)).split())
            text = f"{where}: {said}\n{''.join(traceback.format_exception(error))}"
            path = "" if plan is None else plan.path
            self.events.append(Event(self._current.number, time.time(), "hook-error", text, "error", path))
        self.count += 1  # last, so that an error isn't taken for one that isn't kept

    def news(self, is_last: bool = False) -> list[Event]:
        """Return events about the errors since the last call. Those that aren't kept are counted now and then."""
        fresh = self.events[self._told :]
        self._told += len(fresh)
        if others := self._told_others.due(self.count - len(self.events), is_last):
            more = counted(others, "more error")
            text = f"{more} in hookcore; only the first {MAX_KEPT_ERRORS} are shown, the others are counted"
            fresh.append(Event(self._current.number, time.time(), "hook-error", text, "error", count=others))
        if missing := self._told_memory.due(self._without_memory, is_last):
            text = (
                f"{counted(missing, 'measurement')} failed because the GPU had no memory left, so their values are "
                "missing. Watch fewer modules, or leave out `update`, which copies the weights"
            )
            fresh.append(Event(self._current.number, time.time(), "no-gpu-memory", text, "warning", count=missing))
        return fresh

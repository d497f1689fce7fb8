"""Errors inside hookcore: caught, counted, and kept with their tracebacks."""

from __future__ import annotations

import time
import traceback
from typing import Final

from hookcore.recorder.current import CurrentStep
from hookcore.recorder.plans import Plan
from hookcore.records import Event

MAX_ERRORS: Final = 3  # of one module, before it is left alone
MAX_KEPT_ERRORS: Final = 100
TELL_EVERY_S: Final = 30.0  # between two events that count errors beyond those


class ErrorLog:
    """The errors of one recorder. None of them reaches the training."""

    def __init__(self, current: CurrentStep) -> None:
        self._current = current
        self.events: list[Event] = []  # the first ones
        self.count = 0
        self._told = self._told_others = 0  # of the first ones, and of the others
        self._tell_at = float("-inf")

    def record(self, where: str, error: BaseException, plan: Plan | None = None) -> None:
        """Count an error and keep it if it is one of the first. A module that keeps failing is left alone.

        The first line of its message says what happened; the traceback follows.
        """
        if plan is not None and plan.count_error() >= MAX_ERRORS:
            plan.mute(f"left alone after {MAX_ERRORS} errors in hookcore's {where}")
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
        others = self.count - len(self.events) - self._told_others
        if others > 0 and (is_last or time.monotonic() >= self._tell_at):
            self._told_others += others
            self._tell_at = time.monotonic() + TELL_EVERY_S
            text = f"{others:,} more errors in hookcore; the first {MAX_KEPT_ERRORS} are kept, the others only counted"
            fresh.append(Event(self._current.number, time.time(), "hook-error", text, "error", count=others))
        return fresh

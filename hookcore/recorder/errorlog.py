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


class ErrorLog:
    """The errors of one recorder. None of them reaches the training."""

    def __init__(self, current: CurrentStep) -> None:
        self._current = current
        self.events: list[Event] = []  # the first ones
        self.count = 0

    def record(self, where: str, error: BaseException, plan: Plan | None = None) -> None:
        """Count an error and keep it if it is one of the first. A module that keeps failing is left alone."""
        self.count += 1
        if plan is not None and plan.count_error() >= MAX_ERRORS:
            plan.mute(f"left alone after {MAX_ERRORS} errors in hookcore's {where}")
        if len(self.events) < MAX_KEPT_ERRORS:
            text = "".join(traceback.format_exception(error))
            path = "" if plan is None else plan.path
            self.events.append(
                Event(self._current.number, time.time(), "hook-error", f"{where}: {text}", "error", path)
            )

"""The guard of methods that torch calls between a training's own code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from hookcore.hooks.compiled import guard_functions
from hookcore.hooks.internals import DisableTorchFunction
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.errorlog import ErrorLog


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

"""Why a run ended early: finds the exception that ended it, without changing anything in the process.

Python keeps the exception that ends a script in `sys` until after the exit handlers, so no hook is replaced. A bare
`sys.exit(1)` outside of a `with`, an exception in a thread, and SIGKILL leave no trace, so they stay unknown.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from hookcore.records import Event, Failure

MAX_ERROR: Final = 1000  # characters of the exception's text
MAX_TRACEBACK: Final = 16_000
CRASHED: Final = "crashed"
_CELL_ENDS: Final = "post_run_cell"
_CONTROL: Final = (StopIteration, StopAsyncIteration, GeneratorExit)  # ends of loops, not of trainings


def failure_of(error: BaseException | None, step: int) -> Failure | None:
    """Return the failure of a run that an exception ended in `step`, or None if the run ended normally."""
    if error is None or isinstance(error, _CONTROL):
        return None
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None
    outcome: Any = "interrupted" if isinstance(error, KeyboardInterrupt) else CRASHED
    return Failure(outcome, step, _sentence_of(error), _traceback_of(error))


def unknown(sentence: str, step: int) -> Failure:
    """Return the failure of a run that did not finish, by an unknown exception."""
    return Failure("crashed", step, sentence)


def _sentence_of(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return _readable(f"SystemExit: the script exited with {error.code!r}", MAX_ERROR)
    try:
        lines = traceback.format_exception_only(error)
    except Exception:  # the exception's own code raised
        lines = [type(error).__name__]
    return _readable("".join(lines).strip(), MAX_ERROR)


def _traceback_of(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:
        return ""
    # The last lines are the most important ones.
    return _readable(text if len(text) <= MAX_TRACEBACK else f"...\n{text[4 - MAX_TRACEBACK :]}", MAX_TRACEBACK)


def _readable(text: str, longest: int) -> str:
    """Return the text with only characters that every encoding has."""
    return text.encode("utf-8", "backslashreplace").decode()[:longest]


def event_of(failure: Failure) -> Event:
    """Return the event for the run's list."""
    severity: Any = "error" if failure.outcome == CRASHED else "info"
    message = (
        f"The training {failure.outcome if failure.outcome == CRASHED else 'was interrupted'} in step {failure.step}"
    )
    return Event(failure.step, time.time(), failure.outcome, f"{message}: {failure.error}", severity)


def handled_now() -> BaseException | None:
    """Return the exception that the caller's `except` or `finally` is handling."""
    return sys.exc_info()[1]


def uncaught() -> BaseException | None:
    """Return the exception that is ending this process; only for exit handlers.

    In a notebook or at a prompt, the last exception is an old one, which ended a cell.
    """
    if hasattr(sys, "ps1") or _shell() is not None:
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def keep_interrupted() -> None:
    """Preserve the exit code of a process that Ctrl+C ends; the last call of an exit handler.

    Python ends such a process by the signal itself, unless any source text was compiled and run since. Every dataclass
    and named tuple of a module that is imported for the first time does that, and the exit code would then be 1.
    """
    if isinstance(uncaught(), KeyboardInterrupt):
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def follow_cells(told: Callable[[Any], None]) -> Callable[[], None]:
    """In a notebook, call a function with the result of every cell. Return a function that stops this."""
    shell = _shell()
    if shell is None:
        return lambda: None
    shell.events.register(_CELL_ENDS, told)

    def leave() -> None:
        if told in shell.events.callbacks[_CELL_ENDS]:
            shell.events.unregister(_CELL_ENDS, told)

    return leave


def _shell() -> Any:
    """Return IPython's shell, or None."""
    module: ModuleType | None = sys.modules.get("IPython")
    get = getattr(module, "get_ipython", None)
    return get() if callable(get) else None

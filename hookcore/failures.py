"""Why a run ended before its time: which exception ended it, learned without changing anything in the process.

Python keeps the exception that ends a script in `sys` until after the exit handlers, so no hook is replaced. Python
shows nobody a bare `sys.exit(1)` outside of a `with`, an exception in a thread, or SIGKILL, so these stay unknown.
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

MAX_ERROR: Final = 1000  # characters of the exception's own text
MAX_TRACEBACK: Final = 16_000
CRASHED: Final = "crashed"
_CELL_ENDS: Final = "post_run_cell"
_CONTROL: Final = (StopIteration, StopAsyncIteration, GeneratorExit)  # ends of loops, not of trainings


def failure_of(error: BaseException | None, step: int) -> Failure | None:
    """Return what an exception says of the run that it ended in `step`; None if it ended the run as it should."""
    if error is None or isinstance(error, _CONTROL):
        return None
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None
    outcome: Any = "interrupted" if isinstance(error, KeyboardInterrupt) else CRASHED
    return Failure(outcome, step, _sentence_of(error), _traceback_of(error))


def unknown(sentence: str, step: int) -> Failure:
    """Return the failure of a run that did not finish, by an exception that isn't known."""
    return Failure("crashed", step, sentence)


def _sentence_of(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return _readable(f"SystemExit: the script ended itself with {error.code!r}", MAX_ERROR)
    try:
        lines = traceback.format_exception_only(error)
    except Exception:  # the exception's own code raises
        lines = [type(error).__name__]
    return _readable("".join(lines).strip(), MAX_ERROR)


def _traceback_of(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:
        return ""
    # The last lines say most.
    return _readable(text if len(text) <= MAX_TRACEBACK else f"...\n{text[4 - MAX_TRACEBACK :]}", MAX_TRACEBACK)


def _readable(text: str, longest: int) -> str:
    """The text in characters that every encoding has room for."""
    return text.encode("utf-8", "backslashreplace").decode()[:longest]


def event_of(failure: Failure) -> Event:
    """Return the event that stands in the run's list."""
    severity: Any = "error" if failure.outcome == CRASHED else "info"
    message = (
        f"The training {failure.outcome if failure.outcome == CRASHED else 'was interrupted'} in step {failure.step}"
    )
    return Event(failure.step, time.time(), failure.outcome, f"{message}: {failure.error}", severity)


def handled_now() -> BaseException | None:
    """Return the exception that the caller's `except` or `finally` is dealing with."""
    return sys.exc_info()[1]


def uncaught() -> BaseException | None:
    """Return the exception that is ending this process; only an exit handler may ask.

    In a notebook or at a prompt the newest exception is an old one, which ended a cell.
    """
    if hasattr(sys, "ps1") or _shell() is not None:
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def keep_interrupted() -> None:
    """Let a process that Ctrl+C ends be seen to end so; the last thing that an exit handler does.

    Python ends such a process by the signal itself, unless any text was compiled and run since: every dataclass and
    every named tuple of a module that is imported for the first time does that, and the exit code would be 1.
    """
    if isinstance(uncaught(), KeyboardInterrupt):
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def follow_cells(told: Callable[[Any], None]) -> Callable[[], None]:
    """In a notebook, call `told` with IPython's result of every cell. Return what ends that."""
    shell = _shell()
    if shell is None:
        return lambda: None
    shell.events.register(_CELL_ENDS, told)

    def leave() -> None:
        if told in shell.events.callbacks[_CELL_ENDS]:
            shell.events.unregister(_CELL_ENDS, told)

    return leave


def _shell() -> Any:
    """IPython's shell; None if there is none."""
    module: ModuleType | None = sys.modules.get("IPython")
    get = getattr(module, "get_ipython", None)
    return get() if callable(get) else None

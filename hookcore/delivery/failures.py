"""Why a run ended early: the exception and the line where it began, or the signal."""

from __future__ import annotations

import contextlib
import ctypes
import linecache
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any, Final

from hookcore.errors import StopTraining
from hookcore.records import Event, Failure, Value

# Where an exception began: the line of the user's own code, and the module whose call raised.

MAX_FRAMES: Final = 10_000  # of a recursion without end
MAX_CODE: Final = 300  # characters of a line
_CALLS: Final = frozenset(("forward", "_call_impl"))
_OURS: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PYTHON: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_PACKAGES: Final = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"

PathOf = Callable[[object], "str | None"]  # the path of a watched module; None for anything else


@dataclass(frozen=True, slots=True)
class Blame:
    """What is known about the place at which an exception began."""

    module: str | None = None  # the innermost watched module that was running
    file: str = ""
    line: int = 0
    code: str = ""


def blame_of(error: BaseException, path_of: PathOf) -> Blame:
    """Return the innermost watched module and the innermost line of the user's code in a traceback."""
    module, own = None, None
    for frame, line in _frames(error.__traceback__):
        path = _path_in(frame, path_of)
        module = module if path is None else path
        if is_own(frame.f_code):
            own = frame, line
    if own is None:
        return Blame(module)
    frame, line = own
    code = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
    return Blame(module, frame.f_code.co_filename, line, code[:MAX_CODE])


def is_own(code: CodeType) -> bool:
    """Return whether code is the user's: of no installed package, of neither Python nor hookcore, and in a file."""
    file = code.co_filename
    if file.startswith("<") and not _is_cell(file):
        return False
    return not (file.startswith((_OURS, *_PYTHON)) or any(package in file for package in _PACKAGES))


def _is_cell(file: str) -> bool:
    """Return whether the name is that of a cell of a notebook, or of a text at the prompt."""
    return file in ("<stdin>", "<string>") or file.startswith("<ipython-input")


def _frames(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a traceback and their lines, the outermost first."""
    for _ in range(MAX_FRAMES):
        if trace is None:
            return
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _path_in(frame: FrameType, path_of: PathOf) -> str | None:
    """Return the path of the module that is called in a frame."""
    # Those of other functions aren't read: Python would keep what they refer to for as long as they run.
    if frame.f_code.co_name not in _CALLS:
        return None
    owner: Any = frame.f_locals.get("self")
    return path_of(owner)


# Why a run ended early: finds the exception that ended it, without changing anything in the process.
#
# Python keeps the exception that ends a script in `sys` until after the exit handlers, so no hook is replaced. A bare
# `sys.exit(1)` outside of a `with`, an exception in a thread, and SIGKILL leave no trace, so they stay unknown.

MAX_ERROR: Final = 1000  # characters of the exception's text
MAX_TRACEBACK: Final = 16_000
CRASHED: Final = "crashed"
STOPPED: Final = "stopped"
STOPS: Final = tuple(  # signals by which people and schedulers end a process
    number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)
_SHELL: Final = 128  # added to the number of a signal in the exit code that a shell reports
_CELL_ENDS: Final = "post_run_cell"
_CONTROL: Final = (StopIteration, StopAsyncIteration, GeneratorExit, StopTraining)  # no failures


class Ending:
    """Finds why a run ends, from the moment that it begins.

    A notebook's cell that raises ends its run only if no other cell continues the training.
    """

    def __init__(self, step: Callable[[], int], path_of: PathOf = lambda _: None) -> None:
        handled = sys.exc_info()[1]
        self._step = step  # returns the current step
        self._path_of = path_of
        self._handled_before = None if handled is None else id(handled)  # the exception itself would keep frames alive
        self._cell_step = -1  # the step at the end of the newest notebook cell
        self._cell_failure: Failure | None = None
        self._unless_known = ""
        self.unfollow = _follow_cells(self._end_cell)

    def let_go(self) -> None:
        """Ask for nothing more, after the end."""
        self.unfollow()
        self._step, self._path_of = lambda: -1, lambda _: None

    def expect_crash(self, why: str) -> None:
        """Set why the run crashed if no other reason is found, or "" for none."""
        self._unless_known = why

    def handled(self) -> BaseException | None:
        """Return the exception that the caller's `except` or `finally` is handling, if the run began before it."""
        handled = sys.exc_info()[1]
        return None if id(handled) == self._handled_before else handled

    def failure(self, error: BaseException | None) -> Failure | None:
        """Return the failure of a run that ends now, with this exception if there is one."""
        step = self._step()
        failure = failure_of(error, step, self._path_of)
        if failure is None and self._cell_failure is not None and self._cell_failure.step == step:
            return self._cell_failure  # no training since the cell raised
        if failure is None and error is None and self._unless_known:
            return Failure(CRASHED, step, self._unless_known)
        return failure

    def _end_cell(self, result: Any) -> None:
        step, error = self._step(), getattr(result, "error_in_exec", None)
        if error is not None and step != self._cell_step:
            self._cell_failure = failure_of(error, step, self._path_of)
        self._cell_step = step


def failure_of(error: BaseException | None, step: int, path_of: PathOf = lambda _: None) -> Failure | None:
    """Return the failure of a run that an exception ended in `step`, or None if the run ended normally."""
    if error is None or isinstance(error, _CONTROL):
        return None
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None
    texts = _sentence_of(error), _traceback_of(error)
    stopped_by = _signal_of(error)
    if stopped_by:
        return Failure(STOPPED, step, *texts, signal=stopped_by)
    blame = _blame_of(error, path_of)
    code = _readable(blame.code, MAX_CODE)
    return Failure(CRASHED, step, *texts, module=blame.module, file=blame.file, line=blame.line, code=code)


def stopped(number: int, step: int) -> Failure:
    """Return the failure of a run whose process a signal ends."""
    return Failure(STOPPED, step, signal=signal.Signals(number).name)


def _blame_of(error: BaseException, path_of: PathOf) -> Blame:
    try:
        return blame_of(error, path_of)
    except Exception:  # what frames refer to is the user's
        return Blame()


def _signal_of(error: BaseException) -> str:
    """Return the signal that an exception stands for: Ctrl+C, or an exit with the code that a shell gives to it."""
    if isinstance(error, KeyboardInterrupt):
        return "SIGINT"
    code = error.code if isinstance(error, SystemExit) else None
    return next((number.name for number in STOPS if type(code) is int and code == _SHELL + number), "")


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
    """Return the text with only characters that every encoding has, and a mark where it is cut."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= longest else f"{text[: longest - 1]}\u2026"


def event_of(failure: Failure) -> Event:
    """Return the event for the run's list."""
    severity: Any = "error" if failure.outcome == CRASHED else "info"
    message = ": ".join(filter(None, (f"{failure.sentence}{failure.place}", failure.error)))
    about: dict[str, Value] = {name: getattr(failure, name) for name in ("module", "file", "line", "code", "signal")}
    known = {
        name: value for name, value in about.items() if value not in (None, "", 0) or (name, value) == ("module", "")
    }
    return Event(failure.step, time.time(), failure.outcome, message, severity, failure.module or "", about=known)


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


def _follow_cells(call: Callable[[Any], None]) -> Callable[[], None]:
    """In a notebook, call a function with the result of every cell. Return a function that stops this."""
    shell = _shell()
    if shell is None:
        return lambda: None
    shell.events.register(_CELL_ENDS, call)

    def leave() -> None:
        if call in shell.events.callbacks[_CELL_ENDS]:
            shell.events.unregister(_CELL_ENDS, call)

    return leave


def _shell() -> Any:
    """Return IPython's shell, or None."""
    module: ModuleType | None = sys.modules.get("IPython")
    get = getattr(module, "get_ipython", None)
    return get() if callable(get) else None


# What is left to do before a signal ends this process, without changing what the signal does.
#
# The default action of a signal leaves no time for anything, and a handler of Python's would be seen by the script, run
# late or never, and be called instead of the default action. So a few lines of C (`_signals.c`) note the signal, and a
# thread sends the rest of the run and then the signal again. A signal for which the script has a handler, or that it
# ignores, is left alone. Without the compiled file, as on systems other than Linux, such a run is lost.

ENDING: Final = tuple(number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None)
PATIENCE_S: Final = 5  # after which the kernel ends the process, even if no thread of it can run
FILE: Final = "_signals.abi3.so"
_LEAVE: Final = 0  # no signal has this number


class Signals:
    """Calls a function before a signal ends this process. Python's `signal.getsignal` doesn't see it."""

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told
        self._library: Any = None
        self._tell = -1  # the end of the pipe into which the handler writes
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # watches may be opened and closed by several threads

    def follow(self) -> None:
        """Note from now on the signals that have their default action now. Can be called again."""
        with self._lock:
            try:
                self._library = self._library or ctypes.CDLL(str(Path(__file__).with_name(FILE)))
                if self._thread is None:
                    self._thread = self._start()
            except (OSError, RuntimeError):  # not compiled here, or no more files or threads
                return
            for number in ENDING:
                self._library.hookcore_note(int(number), self._tell, PATIENCE_S)

    def leave(self) -> None:
        """Let the signals end the process at once again, and end the thread. Wait for one that is doing so."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._forget()
            os.write(self._tell, bytes([_LEAVE]))
        if thread is not threading.current_thread():
            thread.join(PATIENCE_S)

    def abandon(self) -> None:
        """Forget all of it in a forked child, which has no such thread."""
        self._lock = threading.Lock()  # another thread of the parent may hold it
        if self._thread is not None:
            self._forget()
            self._thread = None

    def _start(self) -> threading.Thread:
        hear, tell = os.pipe()
        thread = threading.Thread(target=self._wait, args=(hear, tell), name="hookcore-signals", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            os.close(hear)
            os.close(tell)
            raise
        self._tell = tell
        return thread

    def _forget(self) -> None:
        for number in ENDING:
            self._library.hookcore_leave(int(number))

    def _wait(self, hear: int, tell: int) -> None:
        number = os.read(hear, 1)[0]
        if number == _LEAVE:
            os.close(hear)
            os.close(tell)
            return
        try:
            self._told(number)
        finally:
            os.kill(os.getpid(), number)  # its action is the default again, or what the script has chosen since

"""What is left to do before a signal ends this process, without changing what the signal does.

The default action of a signal leaves no time for anything, and a handler of Python's would be seen by the script, run
late or never, and be called instead of the default action. So a few lines of C (`_signals.c`) note the signal, and a
thread sends the rest of the run and then the signal again. A signal for which the script has a handler, or that it
ignores, is left alone. Without the compiled file, as on systems other than Linux, such a run is lost.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

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

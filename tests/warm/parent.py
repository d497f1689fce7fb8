"""The process whose forks are the tests' Python processes. It imports what they need, and does nothing else.

A connection comes from a client, which asks for a fork, or from the tests, which ask for nothing. A fork ends if its
client does, and everything ends with the tests' last connection.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import multiprocessing
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

SIZE: Final = 8  # bytes of each number
MOST_FILES: Final = 64  # that a process may inherit
FREE: Final = 200  # no file of this process has this number or a larger one
FLAGS: Final = {"-B": 1, "-P": 1, "-u": 1, "-W": 2}  # the supported options, with the number of words that each takes
NOBODY: Final = 0


def main(address: Path, modules: list[str]) -> None:
    """Import the modules, and serve. Each fork runs its command."""
    atexit.register(_end)  # registered before the modules register anything, so it is called last
    del sys.path[0]  # the folder of this file
    sys.executable = str(address.with_name("python"))  # processes that a fork starts are forks, too
    multiprocessing.set_executable(sys.executable)
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()  # imported objects are never garbage
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen(128)
        print("listening", flush=True)
        os.dup2(0, 1)
        asked = Parent(listening).serve()
    if asked is not None:
        with ending():
            become(asked)
    else:
        shutil.rmtree(address.parent, ignore_errors=True)


class Parent:
    """Holds the connections, each with the fork that it requested."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        self._forks: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()
        for each in (self._listening, self._woken):
            self._selector.register(each, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)

    def serve(self) -> dict[str, Any] | None:
        """Return the command to run in a fork, or None at the end."""
        has_begun = False
        while not has_begun or NOBODY in self._forks.values():
            for key, _ in self._selector.select():
                ready: Any = key.fileobj
                if ready is self._listening:
                    connection, _ = ready.accept()
                    self._forks[connection] = NOBODY
                    self._selector.register(connection, selectors.EVENT_READ)
                    has_begun = True
                elif ready is self._woken:
                    ready.recv(4096)
                    self._tell_of_ends()
                elif ready in self._forks and (asked := self._hear(ready)) is not None:
                    return asked
        signal.set_wakeup_fd(-1)
        for fork in self._forks.values():
            _kill(fork)
        return None

    def _hear(self, connection: socket.socket) -> dict[str, Any] | None:
        """Fork if a connection asks for it, the only possible request. In the fork, return the command."""
        if self._forks[connection] != NOBODY:
            _kill(self._forks[connection])
            self._forget(connection)
            return None
        head, files, _, _ = socket.recv_fds(connection, SIZE, MOST_FILES, socket.MSG_WAITALL)
        if not head:
            self._forget(connection)
            return None
        asked: dict[str, Any] = json.loads(connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
        fork = os.fork()
        if not fork:
            self._leave(dict(zip(asked["files"], files, strict=True)))
            return asked
        for file in files:
            os.close(file)
        with suppress(OSError):  # both do it, because either may be the first to need it
            os.setpgid(fork, fork)
        self._forks[connection] = fork
        with suppress(OSError):  # it has ended meanwhile, which is handled as usual
            connection.sendall(fork.to_bytes(SIZE, "big"))
        return None

    def _leave(self, files: dict[int, int]) -> None:
        """Release everything of the parent in a fork, and take over the files of the client."""
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        for each in (*self._forks, self._listening, self._woken, self._wakes):
            each.close()
        moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, FREE) for number, file in files.items()}
        for file in files.values():
            os.close(file)
        for number, file in moved.items():
            os.dup2(file, number)
            os.close(file)

    def _tell_of_ends(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for connection in [each for each, fork in self._forks.items() if fork == ended[0]]:
                    with suppress(OSError):
                        connection.sendall(ended[1].to_bytes(SIZE, "big"))
                    self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        del self._forks[connection]
        self._selector.unregister(connection)
        connection.close()


def _kill(fork: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(fork, signal.SIGKILL)


def become(asked: dict[str, Any]) -> None:
    """Run the command in the arguments like Python."""
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.executable = os.environ.get("PYTHON_EXEC", sys.executable)
    for number in asked["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    words: list[str] = asked["arguments"]
    while words[0] in FLAGS:
        if words[0] == "-W":
            warnings._setoption(words[1])  # type: ignore[attr-defined]
        words = words[FLAGS[words[0]] :]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    main = sys.modules["__main__"] = ModuleType("__main__")
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[:0] = [os.getcwd(), *paths]
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        return
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path[:0] = ["", *paths]
        code = compile(words[1], "<string>", "exec")
    else:
        sys.argv = words
        sys.path[:0] = [str(Path(words[0]).resolve().parent), *paths]
        main.__file__ = os.path.abspath(words[0])
        code = compile(Path(words[0]).read_bytes(), main.__file__, "exec")
    exec(code, vars(main))


_status: list[int] = []  # how a fork ends, if not with 0: an exit code, or minus the number of a signal


@contextmanager
def ending() -> Iterator[None]:
    """Record how the block ends."""
    try:
        yield
    except SystemExit as end:
        _status.append(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    except KeyboardInterrupt:
        _status.append(-signal.SIGINT)
        raise
    except BaseException:
        _status.append(1)
        raise


def _end() -> None:
    """End this process before Python tears down all modules, which takes half a second."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    status = _status[0] if _status else 0
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

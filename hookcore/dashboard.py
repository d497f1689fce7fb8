"""The dashboard process of this user on this machine: joined where it runs, started where it does not.

It is found through a private folder. Whoever holds the lock on `dashboard.lock` is the dashboard; the kernel takes the
lock from a process that dies, so that nothing stale is ever believed. `dashboard.json` says where it is and what opens
it. The socket is bound before the process starts, so that its address is known and takes connections at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import hookcore
from hookcore.config import SETTINGS
from hookcore.errors import ArgumentError, ServerError

HOST: Final = "127.0.0.1"
PORT: Final = 8642
PORTS_TRIED: Final = 50
FIND_S: Final = 2.0  # how long another's start is waited for
STOP_S: Final = 10.0
POLL_S: Final = 0.02
BACKLOG: Final = 512
# A dashboard is for this machine alone, and settings of a training are not its own.
_NOT_FOR_THE_SERVER: Final = ("HOST", "CERTFILE", "KEYFILE", "ROOT_PATH", "URL")


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A running dashboard, or one that is just starting."""

    url: str
    token: str
    started: bool  # by this call
    log: Path

    def __repr__(self) -> str:
        return f"Dashboard({self.url!r}, started={self.started})"


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of this user's dashboard."""

    running: bool
    url: str  # empty where none runs, or where the file about it cannot be read
    pid: int
    folder: Path
    log: Path


@dataclass(frozen=True, slots=True)
class _Entry:
    url: str
    token: str
    pid: int


class _Detached(subprocess.Popen[bytes]):
    """A process that is meant to outlive this one, and not to be complained about for it."""

    def __del__(self) -> None:
        """Nothing: the process goes on."""


_children: list[_Detached] = []  # so that those that ended can be reaped


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """The user's private folder, made where it is missing; raises ServerError where it is not private or not ours."""
    given = environment.get("HOOKCORE_HOME", "")
    folder = Path(given).expanduser().absolute() if given else _default_folder(environment)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.getuid():
            raise ServerError(
                f"{folder} belongs to another user; hookcore keeps its token there: set HOOKCORE_HOME to a folder of "
                "your own"
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            folder.chmod(0o700)
    except (OSError, RuntimeError) as error:
        raise _no_folder(folder, error) from None
    return folder


def _default_folder(environment: Mapping[str, str]) -> Path:
    state = environment.get("XDG_STATE_HOME", "")
    base = Path(state) if os.path.isabs(state) else Path(environment.get("HOME") or "~").expanduser() / ".local/state"
    # Machines may share the home folder, but not their loopback.
    return base / "hookcore" / (re.sub(r"[^\w.-]", "_", socket.gethostname()) or "localhost")


def _no_folder(folder: Path, error: Exception) -> ServerError:
    return ServerError(
        f"{folder} cannot be used ({error}); hookcore finds its dashboard through this folder: make it writable, set "
        "HOOKCORE_HOME to another one, or give server=None or a server's address"
    )


def join_or_start(environment: Mapping[str, str] = os.environ) -> Dashboard:
    """This user's dashboard, started if none runs. Raises ServerError where there is none to be had."""
    folder = home(environment)
    deadline = time.monotonic() + FIND_S
    try:
        while True:
            with _locked(folder) as lock:
                if lock is not None:
                    return _start(folder, lock, environment)
            entry = _read(folder)
            if entry is not None and _lives(entry.pid):
                return Dashboard(entry.url, entry.token, False, _log(folder))
            if time.monotonic() > deadline:
                raise _unreadable(folder)
            time.sleep(POLL_S)
    except OSError as error:
        raise _no_folder(folder, error) from None


def find(environment: Mapping[str, str] = os.environ) -> Dashboard | None:
    """This user's dashboard where one runs; starts nothing."""
    folder = home(environment)
    entry = _read(folder) if _is_locked(folder) else None
    return Dashboard(entry.url, entry.token, False, _log(folder)) if entry is not None else None


def status(environment: Mapping[str, str] = os.environ) -> Status:
    """Whether this user's dashboard runs, and where."""
    folder = home(environment)
    running = _is_locked(folder)
    entry = _read(folder) if running else None
    if entry is None:
        return Status(running, "", 0, folder, _log(folder))
    return Status(running, entry.url, entry.pid, folder, _log(folder))


def stop_dashboard(environment: Mapping[str, str] = os.environ) -> str:
    """Asks this user's dashboard to end and waits for it. Says what happened; raises ServerError where it goes on."""
    found = status(environment)
    if not found.running:
        return "no dashboard is running"
    if not found.pid:
        raise _unreadable(found.folder)
    with contextlib.suppress(ProcessLookupError):
        os.kill(found.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while _is_locked(found.folder):
        _reap()
        if time.monotonic() > deadline:
            raise ServerError(
                f"the dashboard at {found.url} (process {found.pid}) did not end within {STOP_S:g} s: end the process"
            )
        time.sleep(POLL_S)
    _reap()
    return f"the dashboard at {found.url} (process {found.pid}) has ended"


# -- the folder -----------------------------------------------------------------------------------------------------


def _log(folder: Path) -> Path:
    return folder / "dashboard.log"


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int | None]:
    """The descriptor of the lock's file, with the lock; None where another process has it."""
    lock = os.open(folder / "dashboard.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield lock
    finally:
        # A child that was given the descriptor goes on holding the lock.
        os.close(lock)


def _is_locked(folder: Path) -> bool:
    try:
        with _locked(folder) as lock:
            return lock is None
    except OSError as error:
        raise _no_folder(folder, error) from None


def _read(folder: Path) -> _Entry | None:
    """What the dashboard's file says; None where it is missing, unreadable, half written or not ours."""
    file = folder / "dashboard.json"
    try:
        if file.stat().st_uid != os.getuid():
            return None
        said: dict[str, Any] = json.loads(file.read_text("utf-8"))
        entry = _Entry(said["url"], said["token"], said["pid"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    is_sound = (
        isinstance(entry.url, str)
        and re.fullmatch(r"http://127\.0\.0\.1:\d{1,5}", entry.url)
        and isinstance(entry.token, str)
        and re.fullmatch(r"[\w-]{16,200}", entry.token)
        and type(entry.pid) is int
        and entry.pid > 1
    )
    return entry if is_sound else None


def _unreadable(folder: Path) -> ServerError:
    return ServerError(
        f"a dashboard runs for this user, but {folder / 'dashboard.json'} does not say where: end the process that "
        f"holds {folder / 'dashboard.lock'} (`fuser` names it), or set HOOKCORE_HOME to another folder"
    )


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# -- the process ----------------------------------------------------------------------------------------------------


def _start(folder: Path, lock: int, environment: Mapping[str, str]) -> Dashboard:
    _reap()
    listener = _bind(environment)
    try:
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        token = secrets.token_urlsafe(32)
        process = _spawn(folder, lock, listener, token, environment)
        try:
            said = {"url": url, "token": token, "pid": process.pid, "started_s": time.time()}
            _write(folder, said | {"version": hookcore.__version__})
        except OSError:
            process.kill()  # nobody would ever find it
            process.wait()
            raise
        _children.append(process)
    finally:
        listener.close()
    return Dashboard(url, token, True, _log(folder))


def _bind(environment: Mapping[str, str]) -> socket.socket:
    first = first_port(environment)
    for port in [*range(first, min(first + PORTS_TRIED, 65536)), 0]:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
        else:
            return listener
    raise ServerError(f"no port of {HOST} is free for the dashboard: give server=None, or another server's address")


def first_port(environment: Mapping[str, str] = os.environ) -> int:
    """The first port that a new dashboard tries. Raises ArgumentError where HOOKCORE_PORT is none."""
    text = environment.get("HOOKCORE_PORT", "") or str(PORT)
    if not (text.isascii() and text.isdigit() and int(text[:6]) < 65536):
        raise ArgumentError(f"HOOKCORE_PORT={text[:80]!r} is not allowed: it is a port from 0 to 65535")
    return int(text)


def _spawn(folder: Path, lock: int, listener: socket.socket, token: str, environment: Mapping[str, str]) -> _Detached:
    if not sys.executable:
        raise ServerError("this Python does not know its own program, so no dashboard can be started: give server=None")
    taken_out = {f"HOOKCORE_{name}" for name in (*_NOT_FOR_THE_SERVER, *(each.name.upper() for each in SETTINGS))}
    variables = {name: value for name, value in environment.items() if name not in taken_out}
    variables |= {
        "HOOKCORE_LOCK_FD": str(lock),
        "HOOKCORE_LISTEN_FD": str(listener.fileno()),
        "HOOKCORE_TOKEN": token,
    }
    if variables.get("PYTHONPATH"):
        # It works elsewhere.
        paths = variables["PYTHONPATH"].split(os.pathsep)
        variables["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths)
    errors = os.open(_log(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return _Detached(
            [sys.executable, "-P", "-m", "hookcore_app.cli", "serve", "--dashboard"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd="/",
            env=variables,
            pass_fds=(lock, listener.fileno()),
            start_new_session=True,
        )
    except OSError as error:
        raise ServerError(f"no process can be started for the dashboard ({error}): give server=None") from None
    finally:
        os.close(errors)


def _write(folder: Path, what: dict[str, Any]) -> None:
    """Whole or not at all."""
    draft = folder / f"dashboard.json.{os.getpid()}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(what, file)
        draft.rename(folder / "dashboard.json")
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _reap() -> None:
    _children[:] = [child for child in _children if child.poll() is None]

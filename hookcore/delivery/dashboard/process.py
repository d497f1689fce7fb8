"""This user's dashboard process: joined if it is running, started otherwise, and told of runs that have started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

import hookcore
from hookcore.config import SETTINGS
from hookcore.delivery.dashboard.private import MAX_READ, PrivateFolder, lives
from hookcore.errors import OF_DASHBOARDS, ArgumentError, HookcoreError, ServerError, lacking
from hookcore.platform import lock_file, unlock_file, user_id
from hookcore.records.wire import RunInfo

# The user's private folder: the lock that the dashboard holds, and the file with its address and token.

FILE: Final = "dashboard.json"
LOG: Final = "dashboard.log"


class DashboardFile(msgspec.Struct, frozen=True):
    """The content of the dashboard's file."""

    url: Annotated[str, Meta(pattern=r"^http://127\.0\.0\.1:[0-9]{1,5}\Z")]
    token: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{16,200}\Z")]
    pid: Annotated[int, Meta(ge=0, lt=2**31)]  # 0 until the process has started


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's private folder, created if missing. Raises ServerError if it can't be used."""
    with opened_home(environment) as folder:
        return folder.path


@contextlib.contextmanager
def opened_home(environment: Mapping[str, str]) -> Iterator[PrivateFolder]:
    """Open the private folder. Errors inside the block become a ServerError that says what to do."""
    path: Path | str = environment.get("HOOKCORE_HOME", "")
    try:
        path = Path(path).expanduser().absolute() if path else _default_folder(environment)
        with PrivateFolder(path) as folder:
            yield folder
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, HookcoreError):
            raise
        raise _no_folder(path, error) from None


def _default_folder(environment: Mapping[str, str]) -> Path:
    state = environment.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        base = Path(state)
    else:
        base = Path(environment.get("HOME") or "~").expanduser().absolute() / ".local/state"
    # Machines may share the home folder, but not their loopback.
    return base / "hookcore" / (re.sub(r"[^\w.-]", "_", socket.gethostname()) or "localhost")


def data_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return this user's data folder: HOOKCORE_HOME if it is set, else a folder in XDG_DATA_HOME."""
    own = environment.get("HOOKCORE_HOME", "")
    if own:
        return Path(own).expanduser().absolute()
    chosen = environment.get("XDG_DATA_HOME", "")
    base = Path(chosen) if os.path.isabs(chosen) else Path(environment.get("HOME") or "~").expanduser() / ".local/share"
    return base / "hookcore"


def undelivered_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with what this user's trainers couldn't deliver. It may not exist."""
    return data_folder(environment) / "undelivered"


def make_private(folder: Path) -> None:
    """Create a folder that only this user can read, with its parents. Raises OSError if it isn't writable."""
    for part in (*reversed(folder.parents), folder):
        part.mkdir(mode=0o700, exist_ok=True)  # `parents=True` would create parents that others can read
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} is not writable")


def _no_folder(path: Path | str, error: Exception) -> ServerError:
    why = f"{error.strerror}: {error.filename!r}" if isinstance(error, OSError) and error.filename else error
    if isinstance(error, OSError) and not error.filename and error.strerror:
        why = error.strerror
    what = f"{path} can't be used ({why})" if path else f"this user (uid {user_id()}) has no home folder ({why})"
    return ServerError(
        f"{what}; hookcore finds its dashboard through a private folder: set HOOKCORE_HOME to a folder that you can "
        f"write to and others can't, such as /tmp/hookcore-{user_id()}, or use server=None or a server's address"
    )


def log_of(folder: Path) -> Path:
    return folder / LOG


@contextlib.contextmanager
def locked(folder: PrivateFolder, shared: bool = False) -> Iterator[int | None]:
    """Take the lock and yield its descriptor, or None if another process holds it."""
    lock = folder.open("dashboard.lock", os.O_RDWR | os.O_CREAT)
    try:
        try:
            lock_file(lock, shared)
        except BlockingIOError:
            yield None
        else:
            yield lock
            if shared:
                unlock_file(lock)  # also for a child that another thread has forked in the meantime
    finally:
        # A child that inherited the descriptor keeps the lock.
        os.close(lock)


def is_locked(folder: PrivateFolder) -> bool:
    """Return whether a dashboard holds the lock."""
    # A shared lock, so that two processes that check at the same time don't take each other for the dashboard.
    with locked(folder, shared=True) as lock:
        return lock is None


def read_entry(folder: PrivateFolder) -> DashboardFile | None:
    """Return the content of the dashboard's file, or None if it is missing, damaged, or not this user's own."""
    try:
        entry = msgspec.json.decode(folder.read(FILE), type=DashboardFile)
    except (OSError, ValueError, RecursionError):
        return None
    return entry if entry.pid != 1 else None


def write_entry(folder: PrivateFolder, url: str, token: str, pid: int) -> None:
    entry = {"url": url, "token": token, "pid": pid, "started_s": time.time(), "version": hookcore.__version__}
    folder.write(FILE, json.dumps(entry).encode())


# Starts a dashboard's process with the lock and a socket that already listens.

HOST: Final = "127.0.0.1"
PORT: Final = 8642
PORTS_TRIED: Final = 50
CONNECT_S: Final = 1.0
BACKLOG: Final = 512
SAFE_PATH: Final = ("-P",) if sys.version_info >= (3, 11) else ()  # imports nothing from the working directory
# A dashboard serves only this machine, and doesn't use the settings of a training.
_NOT_FOR_THE_SERVER: Final = ("HOST", "CERTFILE", "KEYFILE", "ROOT_PATH", "URL", "RULES_FILE")


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard that is running or starting."""

    url: str
    token: str
    started: bool  # by this call
    log: Path

    def __repr__(self) -> str:
        return f"Dashboard({self.url!r}, started={self.started})"


class _Detached(subprocess.Popen[bytes]):
    """A process that should outlive this one, without a ResourceWarning."""

    def __del__(self) -> None:
        """Do nothing, because the process should continue."""


_children: list[_Detached] = []  # kept so that ended processes can be reaped


def start(folder: PrivateFolder, lock: int, environment: Mapping[str, str]) -> Dashboard:
    """Start a dashboard that takes over the lock, and publish its address."""
    reap()
    folder.remove_drafts(FILE)
    listener = _bind(environment)
    try:
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        token = secrets.token_urlsafe(32)
        write_entry(folder, url, token, 0)  # first, so that the new process can be found even if this one is killed
        process = _spawn(folder, lock, listener, token, environment)
        try:
            write_entry(folder, url, token, process.pid)
        except OSError:
            process.kill()  # it could never be found
            process.wait()
            raise
        _children.append(process)
    finally:
        listener.close()
    return Dashboard(url, token, True, log_of(folder.path))


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
            return _reachable(listener)
    raise ServerError(f"no free port on {HOST} for the dashboard: use server=None, or a server's address")


def _reachable(listener: socket.socket) -> socket.socket:
    """Return the socket if it can be connected to: binding also works on an interface that is down."""
    try:
        socket.create_connection(listener.getsockname(), CONNECT_S).close()
    except OSError as error:
        listener.close()
        raise ServerError(
            f"{HOST} can't be reached on this machine ({error.strerror or error}): turn its loopback interface on, or "
            "use server=None"
        ) from None
    return listener


def first_port(environment: Mapping[str, str] = os.environ) -> int:
    """Return the first port that a new dashboard tries. Raises ArgumentError for an invalid HOOKCORE_PORT."""
    text = environment.get("HOOKCORE_PORT", "") or str(PORT)
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 65536):
        raise ArgumentError(f"HOOKCORE_PORT={text[:80]!r} is invalid: use a port from 0 to 65535")
    return int(text)


def _spawn(
    folder: PrivateFolder, lock: int, listener: socket.socket, token: str, environment: Mapping[str, str]
) -> _Detached:
    if sys.platform == "win32":  # a process can't be given the lock and the socket there
        raise ServerError("can't start a dashboard on Windows: run `hookcore serve`, and set HOOKCORE_URL")
    if not sys.executable:
        raise ServerError("can't start a dashboard, because sys.executable is not set: use server=None")
    if missing := [package for package in OF_DASHBOARDS if find_spec(package) is None]:
        raise ServerError(f"{lacking(missing[0])}, or set HOOKCORE_URL to the address of a server")
    taken_out = {f"HOOKCORE_{name}" for name in (*_NOT_FOR_THE_SERVER, *(setting.name.upper() for setting in SETTINGS))}
    variables = {name: value for name, value in environment.items() if name not in taken_out}
    variables |= {
        "HOOKCORE_LOCK_FD": str(lock),
        "HOOKCORE_LISTEN_FD": str(listener.fileno()),
        "HOOKCORE_TOKEN": token,
    }
    if variables.get("PYTHONPATH"):
        # The dashboard has another working directory, so relative paths become absolute.
        paths = variables["PYTHONPATH"].split(os.pathsep)
        with contextlib.suppress(FileNotFoundError):  # the working directory was removed
            variables["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths)
    errors = folder.open_empty(LOG)
    try:
        return _Detached(
            [sys.executable, *SAFE_PATH, "-m", "hookcore_app.cli", "serve", "--dashboard"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd="/",
            env=variables,
            pass_fds=(lock, listener.fileno()),
            start_new_session=True,
        )
    except OSError as error:
        raise ServerError(f"can't start a process for the dashboard ({error}): use server=None") from None
    finally:
        os.close(errors)


def reap() -> None:
    """Let go of dashboards of this process that have ended."""
    _children[:] = [child for child in _children if child.poll() is None]


# It is found through a private folder. The process that holds the lock on `dashboard.lock` is the dashboard. The kernel
# releases the lock of a process that dies, so stale data is never trusted. `dashboard.json` has the address and the
# token. The socket is bound before the process starts, so the address is known and accepts connections immediately.

FIND_S: Final = 2.0  # how long to wait for the file with a dashboard's address
STOP_S: Final = 10.0
POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Status:
    """The state of this user's dashboard."""

    running: bool
    url: str  # empty if none is running, or if its file can't be read
    pid: int
    folder: Path
    log: Path


def join_or_start(environment: Mapping[str, str] = os.environ) -> Dashboard:
    """Return this user's dashboard, started if none runs. Raises ServerError if that is impossible."""
    deadline = time.monotonic() + FIND_S
    with opened_home(environment) as folder:
        while True:
            with locked(folder) as lock:
                if lock is not None:
                    return start(folder, lock, environment)
            entry = read_entry(folder)
            if entry is not None and (not entry.pid or lives(entry.pid)) and is_locked(folder):
                return Dashboard(entry.url, entry.token, False, log_of(folder.path))
            if time.monotonic() > deadline:
                raise _unreadable(folder.path)
            time.sleep(POLL_S)


def find(environment: Mapping[str, str] = os.environ) -> Dashboard | None:
    """Return this user's dashboard if it is running; don't start one."""
    with opened_home(environment) as folder:
        entry = read_entry(folder) if is_locked(folder) else None
        return Dashboard(entry.url, entry.token, False, log_of(folder.path)) if entry is not None else None


def find_or_revive(environment: Mapping[str, str] = os.environ) -> Dashboard | None:
    """Return this user's dashboard, started again if it died. None if it was stopped, which removes its file."""
    running = find(environment)
    if running is not None:
        return running
    with opened_home(environment) as folder:
        died = read_entry(folder) is not None and not is_locked(folder)
    return join_or_start(environment) if died else None


def status(environment: Mapping[str, str] = os.environ) -> Status:
    """Return whether and where this user's dashboard is running."""
    with opened_home(environment) as folder:
        running = is_locked(folder)
        entry = read_entry(folder) if running else None
        log = log_of(folder.path)
        if entry is None:
            return Status(running, "", 0, folder.path, log)
        return Status(running, entry.url, entry.pid, folder.path, log)


def stop_dashboard(environment: Mapping[str, str] = os.environ) -> str:
    """Stop this user's dashboard and wait for its end. Returns what happened; raises ServerError if it doesn't stop."""
    deadline = time.monotonic() + STOP_S
    while (seen := status(environment)).url and not seen.pid and time.monotonic() < deadline:
        time.sleep(POLL_S)  # its starter was killed; it writes its own process id when it is up
    if not seen.running:
        return "no dashboard is running"
    if not seen.pid:
        raise _unreadable(seen.folder)
    with contextlib.suppress(ProcessLookupError):
        os.kill(seen.pid, signal.SIGTERM)
    while status(environment).running:
        reap()
        if time.monotonic() > deadline:
            raise ServerError(
                f"the dashboard at {seen.url} (process {seen.pid}) did not stop within {STOP_S:g} s: kill the process"
            )
        time.sleep(POLL_S)
    reap()
    return f"the dashboard at {seen.url} (process {seen.pid}) has stopped"


def announce(url: str, token: str, environment: Mapping[str, str] = os.environ) -> None:
    """Write the address of this process, which holds the lock: its starter may have been killed before it could."""
    with opened_home(environment) as folder:
        entry = read_entry(folder)
        if entry is None or entry != DashboardFile(url, token, os.getpid()):
            write_entry(folder, url, token, os.getpid())


def forget(environment: Mapping[str, str] = os.environ) -> None:
    """Remove the file with this process's address, unless it has another process's address by now."""
    with opened_home(environment) as folder:
        entry = read_entry(folder)
        if entry is not None and entry.pid == os.getpid():
            folder.remove(FILE)


def _unreadable(folder: Path) -> ServerError:
    return ServerError(
        f"a dashboard runs for this user, but {folder / 'dashboard.json'} has no address: stop the process that "
        f"holds {folder / 'dashboard.lock'} (`fuser` shows it), or set HOOKCORE_HOME to another folder"
    )


# Notices of runs that have started, for a dashboard that hasn't received anything from them yet.
#
# A dashboard takes a second or two to start, and a trainer can be killed before that. Therefore each trainer leaves a
# file in the user's private folder and locks it until the dashboard has answered. The kernel releases the lock of a
# process that dies, so an unlocked notice belongs to a run whose first values never arrived.

MAX_NOTICES: Final = 200  # maximum number of notices in the folder; further runs get none
_BEGINNING: Final = "begun-"
_DRAFT_S: Final = 60.0  # an unreadable notice is removed after this time; before, its trainer may still be writing it


class Notice:
    """The locked notice of one run."""

    def __init__(self, name: str, number: int, environment: Mapping[str, str]) -> None:
        self._name = name
        self._number = number
        self._environment = environment

    def remove(self) -> None:
        """Remove the notice, because the dashboard knows the run. A second call does nothing."""
        if self._number >= 0:
            with contextlib.suppress(Exception), opened_home(self._environment) as folder:
                folder.remove(self._name)
            self.leave()

    def leave(self) -> None:
        """Release the notice. It becomes visible when no other process, such as the parent of a fork, holds it."""
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        self.leave()


def post_notice(run: RunInfo, environment: Mapping[str, str] = os.environ) -> Notice:
    """Leave a notice of a run. Raises ServerError if the folder isn't writable."""
    name = f"{_BEGINNING}{run.id}.json"
    with opened_home(environment) as folder:
        if len(_names(folder)) >= MAX_NOTICES:
            raise ServerError(f"{folder.path} holds {MAX_NOTICES} notices of runs: delete the begun-*.json files there")
        notice = Notice(name, folder.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL), environment)
        try:
            lock_file(notice._number)
            _write(notice._number, msgspec.json.encode(run))
        except OSError:
            folder.remove(name)
            raise
    return notice


def _write(number: int, data: bytes) -> None:
    if len(data) > MAX_READ:
        raise OSError(f"the notice of this run would have {len(data)} bytes")
    while data:
        data = data[os.write(number, data) :]


def take_orphans(environment: Mapping[str, str] = os.environ) -> list[RunInfo]:
    """Return the runs whose process ended before a dashboard answered it, and remove their notices."""
    with opened_home(environment) as folder:
        taken = [_take(folder, name) for name in _names(folder)]
    return [run for run in taken if run is not None]


def _names(folder: PrivateFolder) -> list[str]:
    return [name for name in folder.names() if name.startswith(_BEGINNING)]


def _take(folder: PrivateFolder, name: str) -> RunInfo | None:
    try:
        number = folder.open(name, os.O_RDWR)
    except OSError:
        return None  # removed in the meantime, or not this user's file
    try:
        lock_file(number)
        run = msgspec.json.decode(os.read(number, MAX_READ), type=RunInfo)
    except OSError:
        return None  # its process is alive
    except (ValueError, RecursionError):
        if time.time() - os.fstat(number).st_mtime > _DRAFT_S:
            folder.remove(name)
        return None
    else:
        folder.remove(name)
        return run
    finally:
        os.close(number)

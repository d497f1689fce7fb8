"""This user's dashboard process on this machine: joined if it is running, started otherwise.

It is found through a private folder. The process that holds the lock on `dashboard.lock` is the dashboard. The kernel
releases the lock of a process that dies, so stale data is never trusted. `dashboard.json` has the address and the
token. The socket is bound before the process starts, so the address is known and accepts connections immediately.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hookcore.delivery.dashboard.home import (
    FILE,
    Entry,
    is_locked,
    locked,
    log_of,
    opened_home,
    read_entry,
    write_entry,
)
from hookcore.delivery.dashboard.launch import Dashboard, reap, start
from hookcore.delivery.dashboard.lives import lives
from hookcore.errors import ServerError

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
            with locked(folder, fcntl.LOCK_EX) as lock:
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
    found = find(environment)
    if found is not None:
        return found
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
    while (found := status(environment)).url and not found.pid and time.monotonic() < deadline:
        time.sleep(POLL_S)  # its starter was killed; it writes its own process id when it is up
    if not found.running:
        return "no dashboard is running"
    if not found.pid:
        raise _unreadable(found.folder)
    with contextlib.suppress(ProcessLookupError):
        os.kill(found.pid, signal.SIGTERM)
    while status(environment).running:
        reap()
        if time.monotonic() > deadline:
            raise ServerError(
                f"the dashboard at {found.url} (process {found.pid}) did not stop within {STOP_S:g} s: kill the process"
            )
        time.sleep(POLL_S)
    reap()
    return f"the dashboard at {found.url} (process {found.pid}) has stopped"


def announce(url: str, token: str, environment: Mapping[str, str] = os.environ) -> None:
    """Write the address of this process, which holds the lock: its starter may have been killed before it could."""
    with opened_home(environment) as folder:
        entry = read_entry(folder)
        if entry is None or entry != Entry(url, token, os.getpid()):
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

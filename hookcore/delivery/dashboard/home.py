"""The user's private folder: the lock that the dashboard holds, and the file with its address and token."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

import hookcore
from hookcore.delivery.dashboard.private import PrivateFolder
from hookcore.errors import HookcoreError, ServerError

FILE: Final = "dashboard.json"
LOG: Final = "dashboard.log"


class Entry(msgspec.Struct, frozen=True):
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
    given = environment.get("XDG_DATA_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path(environment.get("HOME") or "~").expanduser() / ".local/share"
    return base / "hookcore"


def undelivered_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with what this user's trainers couldn't deliver. It may not exist."""
    return data_folder(environment) / "undelivered"


def make_private(folder: Path) -> None:
    """Create a folder that only this user can read, with its parents. Raises OSError if it isn't writable."""
    for each in (*reversed(folder.parents), folder):
        each.mkdir(mode=0o700, exist_ok=True)  # `parents=True` would create parents that others can read
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} is not writable")


def _no_folder(path: Path | str, error: Exception) -> ServerError:
    why = f"{error.strerror}: {error.filename!r}" if isinstance(error, OSError) and error.filename else error
    if isinstance(error, OSError) and not error.filename and error.strerror:
        why = error.strerror
    what = f"{path} can't be used ({why})" if path else f"this user (uid {os.getuid()}) has no home folder ({why})"
    return ServerError(
        f"{what}; hookcore finds its dashboard through a private folder: set HOOKCORE_HOME to a folder that you can "
        f"write to and others can't, such as /tmp/hookcore-{os.getuid()}, or use server=None or a server's address"
    )


def log_of(folder: Path) -> Path:
    return folder / LOG


@contextlib.contextmanager
def locked(folder: PrivateFolder, kind: int) -> Iterator[int | None]:
    """Take the lock and yield its descriptor, or None if another process holds it."""
    lock = folder.open("dashboard.lock", os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield lock
            if kind == fcntl.LOCK_SH:
                fcntl.flock(lock, fcntl.LOCK_UN)  # also for a child that another thread has forked in the meantime
    finally:
        # A child that inherited the descriptor keeps the lock.
        os.close(lock)


def is_locked(folder: PrivateFolder) -> bool:
    """Return whether a dashboard holds the lock."""
    # A shared lock, so that two processes that check at the same time don't take each other for the dashboard.
    with locked(folder, fcntl.LOCK_SH) as lock:
        return lock is None


def read_entry(folder: PrivateFolder) -> Entry | None:
    """Return the content of the dashboard's file, or None if it is missing, damaged, or not this user's own."""
    try:
        entry = msgspec.json.decode(folder.read(FILE), type=Entry)
    except (OSError, ValueError, RecursionError):
        return None
    return entry if entry.pid != 1 else None


def write_entry(folder: PrivateFolder, url: str, token: str, pid: int) -> None:
    said = {"url": url, "token": token, "pid": pid, "started_s": time.time(), "version": hookcore.__version__}
    folder.write(FILE, json.dumps(said).encode())

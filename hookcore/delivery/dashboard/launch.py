"""Starts a dashboard's process with the lock and a socket that already listens."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hookcore.config import SETTINGS
from hookcore.delivery.dashboard.home import FILE, LOG, log_of, write_entry
from hookcore.delivery.dashboard.private import PrivateFolder
from hookcore.errors import ArgumentError, ServerError

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
    if not sys.executable:
        raise ServerError("can't start a dashboard, because sys.executable is not set: use server=None")
    taken_out = {f"HOOKCORE_{name}" for name in (*_NOT_FOR_THE_SERVER, *(each.name.upper() for each in SETTINGS))}
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

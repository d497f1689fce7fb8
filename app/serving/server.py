"""Running a server: its socket, token, deadlines, and shutdown."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from hookcore.config import AUTO
from hookcore.delivery.archive.arrow import leave_out_pandas
from hookcore.delivery.dashboard import process as dashboard
from hookcore.delivery.dashboard.process import data_folder, make_private
from hookcore.errors import ArgumentError, HookcoreError
from hookcore.platform import allow_files, background, return_memory, save_memory

from .. import assets, pages
from ..live import publisher_of
from ..main import App, create_app
from ..runs import Runs
from ..runs.undelivered import LostMarks, follow_orphans
from ..settings import ServerSettings
from . import resume_garbage_collector
from .guard.access import Access, Usage
from .guard.security import ANY_ADDRESS, ancestors_of
from .protocol import MAX_MESSAGE, SocketProtocol, protocol_for

# The socket that a server listens on: opened, or inherited from the process that started this one.

PORTS_TRIED: Final = 20


def listen(host: str, port: int) -> socket.socket:
    """Return a socket on this port, the next free one, or any; raise ArgumentError for an invalid host."""
    address = "127.0.0.1" if host == "localhost" else host
    for candidate in (*range(port, min(port + PORTS_TRIED, 65536)), 0) if port else (0,):
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return _with_protocol(socket.create_server((address, candidate), family=family))
        except PermissionError as error:
            raise ArgumentError(f"can't listen on port={port}: {error}; use a port above 1023") from None
        except OSError as error:
            last = error
            if isinstance(error, socket.gaierror) or "assign" in str(error):
                break
    raise ArgumentError(f"can't listen on host={host!r}: {last}; use an address of this machine")


def _with_protocol(listening: socket.socket) -> socket.socket:
    """Return the same socket with its protocol set.

    asyncio sets TCP_NODELAY only if the listening socket says that it is TCP. Without it, every answer on a reused
    connection waits 40 ms for the peer's delayed acknowledgement.
    """
    return socket.socket(fileno=listening.detach())


def inherited(environment: Mapping[str, str]) -> socket.socket | None:
    """Return the socket that the parent process opened for this one. Its lock is held until this process ends."""
    lock, given = environment.get("HOOKCORE_LOCK_FD"), environment.get("HOOKCORE_LISTEN_FD")
    if lock:
        os.set_inheritable(int(lock), False)
    if not given:
        return None
    os.set_inheritable(int(given), False)
    return socket.socket(fileno=int(given))


logger = logging.getLogger("hookcore")

DASHBOARD_IDLE_S: Final = 3600.0
MIN_TOKEN: Final = 16
KEEP_ALIVE_S: Final = 30
PREPARE_AFTER_S: Final = 3.0
RETURN_EVERY_S: Final = 10.0  # freed memory to the system,
WORKED_S: Final = 0.5  # if the server has worked since
_GRACE_S: Final = 0.5


@dataclass(slots=True)
class Lifetime:
    """The work of an application once per second and when it stops: first in the event loop, then in a thread."""

    each_second: Callable[[], None]
    first: Callable[[], None]
    last: Sequence[Callable[[], None]]


def lifetime_of(app: FastAPI) -> Lifetime:
    """Return what a server of runs does: it ends its streams first, and writes the rest to disk last."""
    state = app.state
    last = [state.explainer.close, state.keeper.close, state.notifications.notifier.close]
    if state.shared is not None:
        last.append(state.shared.close)
    return Lifetime(LostMarks(state.runs).mark, publisher_of(app).stop, last)


class Server(uvicorn.Server):
    """A uvicorn server that stops in order, and by itself when it isn't used."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, lifetime: Lifetime) -> None:
        super().__init__(config)
        self._state: Any = app.state
        self.lifetime = lifetime
        self._trouble = ""

    def stop(self) -> None:
        """Stop the server soon. Callable from any thread and from a signal handler."""
        self._state.stopping = True
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down in order on a signal, no matter how often it arrives."""
        self.stop()

    async def on_tick(self, counter: int) -> bool:
        """Check ten times per second whether to stop."""
        if counter % 10 == 0:
            self._look()
        usage: Usage = self._state.usage
        limit = self._state.settings.idle_stop_s
        if limit and usage.idle_s > limit:
            self.stop()
        return await super().on_tick(counter)

    def _look(self) -> None:
        """Do the work that is due each second. Errors in it don't end the server."""
        try:
            self.lifetime.each_second()
            self._trouble = ""
        except Exception as error:
            if repr(error) != self._trouble:  # one each second would fill the log
                logger.exception("hookcore: the server's regular check of its runs failed")
            self._trouble = repr(error)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then the connections, then the rest."""
        self._state.stopping = True
        self.lifetime.first()
        await super().shutdown(sockets)
        for close in self.lifetime.last:
            await asyncio.to_thread(close)


def make_server(app: FastAPI) -> Server:
    """Return a uvicorn server for an application over runs."""
    app.state.notifications.start(url_of(app.state.settings))
    return server_of(app, lifetime_of(app))


def server_of(app: FastAPI, lifetime: Lifetime) -> Server:
    """Return a uvicorn server for an application, with all its limits."""
    settings: ServerSettings = app.state.settings
    config = uvicorn.Config(
        app,
        http=protocol_for(settings),
        ws=SocketProtocol,
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        log_level="error",  # errors of unknown clients are not worth logging
        access_log=False,  # addresses can contain private data
        proxy_headers=False,  # any client can send these headers
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,  # type: ignore[arg-type]
        root_path=settings.root_path.rstrip("/"),
        ssl_certfile=settings.certfile or None,
        ssl_keyfile=settings.keyfile or None,
    )
    return Server(config, app, lifetime)


def complete(settings: ServerSettings, listening: socket.socket) -> ServerSettings:
    """Return the settings with the actual port, and with a new token if one is needed."""
    if bool(settings.certfile) != bool(settings.keyfile):
        raise ArgumentError("TLS needs both certfile and keyfile")
    for name in ("certfile", "keyfile"):
        path = getattr(settings, name)
        if path and not Path(path).is_file():
            raise ArgumentError(f"{name}={path!r} is not a file: give the path of a PEM file")
    for name in ("token", "read_token"):
        if 0 < len(getattr(settings, name)) < MIN_TOKEN:
            raise ArgumentError(f"the {name} is shorter than {MIN_TOKEN} characters: use a longer one, or none")
    if settings.read_token and settings.read_token == settings.token:
        raise ArgumentError("token and read_token are the same: use two different tokens")
    ancestors_of(settings)
    idle_s = settings.idle_stop_s or (DASHBOARD_IDLE_S if settings.dashboard else 0.0)
    port = listening.getsockname()[1]
    token = settings.token or secrets.token_urlsafe(32)
    # Notebooks on this machine may frame this user's own dashboard; see docs/security.md.
    ancestors = settings.frame_ancestors or (("local",) if settings.dashboard else ())
    return dataclasses.replace(settings, port=port, token=token, idle_stop_s=idle_s, frame_ancestors=ancestors)


def url_of(settings: ServerSettings) -> str:
    """Return the address to open, without a trailing slash."""
    name = settings.host
    if name in ANY_ADDRESS:
        name = socket.gethostname()
    elif ":" in name:
        name = f"[{name}]"
    scheme = "https" if settings.certfile else "http"
    return f"{scheme}://{name}:{settings.port}{settings.root_path.rstrip('/')}"


def greeting(given: ServerSettings, settings: ServerSettings, access: Access) -> str:
    """Return the text that is printed when a server starts."""
    url = url_of(settings)
    if settings.dashboard:
        return f"hookcore's dashboard is at {url}/"
    if settings.is_loopback:
        who = "On this machine, reading needs no token; changes need the same user, or the token."
        lines = [f"hookcore is at {url}/", who if not settings.read_token else "Other users need a token to read."]
    else:
        lines = [
            f"hookcore is at {url}/ for everyone on this machine's networks who has the token.",
            f"To log in one browser, open this link once, within an hour: {url}/login?code={access.make_code()}",
        ]
        if not settings.certfile:
            lines.append("Token and data are sent unencrypted: set certfile and keyfile, or use a tunnel.")
    lines += moved(given, settings)
    if not given.token and not settings.is_loopback:
        lines.append(f"Token, generated for this start and shown only here: {settings.token}")
    return "\n".join(lines)


def moved(given: ServerSettings, settings: ServerSettings) -> list[str]:
    """Return a line that says that the port was taken, if it was."""
    if given.port in (0, settings.port):
        return []
    return [f"Port {given.port} is taken by another process, so this one listens on port {settings.port}."]


def run(
    given: ServerSettings,
    environment: Mapping[str, str] = os.environ,
    fill: Callable[[Runs], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Serve until a signal arrives or the server is no longer used. `fill` adds runs before it starts."""
    leave_out_pandas()
    save_memory()
    given, trouble = with_folder(given, environment)
    handed = inherited(environment)
    listening = handed or listen(given.host, given.port)
    with listening:
        settings = complete(given, listening)
        prepare(settings)
        runs = Runs(settings)
        app = create_app(runs, settings, trouble)
        if fill is not None:
            fill(runs)
        if app.state.shared is not None:
            app.state.shared.start()
        server = make_server(app)
        if settings.dashboard and environment.get("HOOKCORE_LOCK_FD"):
            with suppress(HookcoreError):  # its parent has written the address, or reports why not
                dashboard.announce(url_of(settings), settings.token, environment)
            follow_orphans(app)
        with suppress(OSError, RuntimeError, KeyError):  # without a home folder, nothing is kept
            assets.prepared.use(data_folder(environment) / "prepared")
        background("hookcore-care", _care_for, app).start()
        (say or _say)(greeting(given, settings, app.state.access))
        resume_garbage_collector()
        try:
            server.run(sockets=[listening])
        finally:
            if settings.dashboard:
                with suppress(HookcoreError):
                    dashboard.forget(environment)


def with_folder(given: ServerSettings, environment: Mapping[str, str]) -> tuple[ServerSettings, str]:
    """Return the settings with the folder for `keep="auto"`, and why runs can't be saved, if so."""
    if given.store:
        if given.keep not in ("", AUTO):
            raise ArgumentError("keep and store are both set: with a store, runs are kept in ClickHouse only")
        return dataclasses.replace(given, keep=""), ""
    if given.keep != AUTO:
        return given, ""
    try:
        folder = data_folder(environment) / "runs"
        make_private(folder)
    except (OSError, RuntimeError, KeyError) as error:
        trouble = f"runs stay in memory only and are lost when the server stops: {error}"
        logger.warning("hookcore: %s. Give a folder with --keep, or --keep none.", trouble)
        return dataclasses.replace(given, keep=""), trouble
    return dataclasses.replace(given, keep=str(folder)), ""


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def prepare(settings: ServerSettings) -> None:
    """Set the log and the limit of open files of a server's process."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    allow_files(settings.max_connections + 256)


def _care_for(app: App) -> None:
    """Do in advance what would otherwise delay the first reader by half a second, then keep the memory low."""
    time.sleep(PREPARE_AFTER_S)  # the first answers come first
    app.complete()
    pages.prepare()
    return_memory(RETURN_EVERY_S, WORKED_S)

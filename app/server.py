"""Running a server: its socket, its token, its deadlines, and its end."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from hookcore import dashboard
from hookcore.config import AUTO
from hookcore.errors import ArgumentError, HookcoreError

from . import pages
from .access import Access
from .live import publisher_of
from .main import create_app
from .orphans import follow_orphans
from .protocol import MAX_MESSAGE, SocketProtocol, protocol_for
from .runs import Runs
from .security import ANY_ADDRESS, ancestors_of
from .settings import ServerSettings
from .usage import Usage

logger = logging.getLogger("hookcore")

DASHBOARD_IDLE_S: Final = 3600.0
PORTS_TRIED: Final = 20
MIN_TOKEN: Final = 16
KEEP_ALIVE_S: Final = 30
NICENESS: Final = 5  # the training goes first
_GRACE_S: Final = 0.5


class Server(uvicorn.Server):
    """uvicorn's server, that ends its streams first, and by itself where nobody uses it."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._state: Any = app.state
        self._publisher = publisher_of(app)

    def stop(self) -> None:
        """Ends the server soon. From any thread, and from a signal."""
        self._state.stopping = True
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: an orderly end, no matter how often it comes."""
        self.stop()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        usage: Usage = self._state.usage
        limit = self._state.settings.idle_stop_s
        if limit and usage.idle_s > limit:
            self.stop()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the streams, then the connections, then what is written to disk."""
        self._state.stopping = True
        self._publisher.stop()
        await super().shutdown(sockets)
        await asyncio.to_thread(self._state.keeper.close)


def make_server(app: FastAPI) -> Server:
    """The server of an application, with all its limits."""
    settings: ServerSettings = app.state.settings
    config = uvicorn.Config(
        app,
        http=protocol_for(settings),
        ws=SocketProtocol,
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        log_level="error",  # what strangers send is no news
        access_log=False,  # addresses may hold what is nobody's business
        proxy_headers=False,  # anybody can say that they come from elsewhere
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,  # type: ignore[arg-type]
        root_path=settings.root_path.rstrip("/"),
        ssl_certfile=settings.certfile or None,
        ssl_keyfile=settings.keyfile or None,
    )
    return Server(config, app)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket on this port, the next free one, or any; raise ArgumentError if the host isn't this machine."""
    address = "127.0.0.1" if host == "localhost" else host
    for candidate in (*range(port, min(port + PORTS_TRIED, 65536)), 0) if port else (0,):
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return _with_protocol(socket.create_server((address, candidate), family=family))
        except PermissionError as error:
            raise ArgumentError(f"port={port} may not be listened on: {error}; take one above 1023") from None
        except OSError as error:
            last = error
            if isinstance(error, socket.gaierror) or "assign" in str(error):
                break
    raise ArgumentError(f"host={host!r} cannot be listened on: {last}; give an address of this machine's")


def _with_protocol(listening: socket.socket) -> socket.socket:
    """Return the same socket with its protocol filled in.

    asyncio sets TCP_NODELAY only on connections whose listening socket says that it is TCP. Without it, every answer
    on a kept connection waits 40 ms for the peer's delayed acknowledgement.
    """
    return socket.socket(fileno=listening.detach())


def inherited(environment: Mapping[str, str]) -> socket.socket | None:
    """The socket that whoever started this process has opened for it. Its lock is held until the process ends."""
    lock, given = environment.get("HOOKCORE_LOCK_FD"), environment.get("HOOKCORE_LISTEN_FD")
    if lock:
        os.set_inheritable(int(lock), False)
    if not given:
        return None
    os.set_inheritable(int(given), False)
    return socket.socket(fileno=int(given))


def complete(settings: ServerSettings, listening: socket.socket) -> ServerSettings:
    """The settings with what is known only now: the true port, and a token where none was given."""
    if bool(settings.certfile) != bool(settings.keyfile):
        raise ArgumentError("TLS needs both: give certfile and keyfile")
    for name in ("certfile", "keyfile"):
        path = getattr(settings, name)
        if path and not Path(path).is_file():
            raise ArgumentError(f"{name}={path!r} is no file: give a path to a file in PEM")
    for name in ("token", "read_token"):
        if 0 < len(getattr(settings, name)) < MIN_TOKEN:
            raise ArgumentError(f"the {name} is shorter than {MIN_TOKEN} characters: give a longer one, or none")
    if settings.read_token and settings.read_token == settings.token:
        raise ArgumentError("token and read_token are the same: give two different ones")
    ancestors_of(settings)
    idle_s = settings.idle_stop_s or (DASHBOARD_IDLE_S if settings.dashboard else 0.0)
    port = listening.getsockname()[1]
    token = settings.token or secrets.token_urlsafe(32)
    # A dashboard of somebody's own is what notebooks on the same machine show; see docs/security.md.
    ancestors = settings.frame_ancestors or (("local",) if settings.dashboard else ())
    return dataclasses.replace(settings, port=port, token=token, idle_stop_s=idle_s, frame_ancestors=ancestors)


def url_of(settings: ServerSettings) -> str:
    """The address to open, without a slash at its end."""
    name = settings.host
    if name in ANY_ADDRESS:
        name = socket.gethostname()
    elif ":" in name:
        name = f"[{name}]"
    scheme = "https" if settings.certfile else "http"
    return f"{scheme}://{name}:{settings.port}{settings.root_path.rstrip('/')}"


def greeting(given: ServerSettings, settings: ServerSettings, access: Access) -> str:
    """What is printed once when a server starts."""
    url = url_of(settings)
    if settings.dashboard:
        return f"hookcore's dashboard is at {url}/"
    if settings.is_loopback:
        who = "Reading needs no token on this machine; changing needs you to be its user, or the token."
        lines = [f"hookcore is at {url}/", who if not settings.read_token else "Others need a token to read."]
    else:
        lines = [
            f"hookcore is at {url}/ for anyone on this machine's networks who has the token.",
            f"Open this link to log in one browser, once, within an hour: {url}/login?code={access.make_code()}",
        ]
        if not settings.certfile:
            lines.append("The token and all data are sent unencrypted: set certfile and keyfile, or use a tunnel.")
    if not given.token and not settings.is_loopback:
        lines.append(f"Token, generated for this start and shown only here: {settings.token}")
    return "\n".join(lines)


def run(
    given: ServerSettings,
    environment: Mapping[str, str] = os.environ,
    fill: Callable[[Runs], None] | None = None,
    told: Callable[[str], None] | None = None,
) -> None:
    """Serves until a signal comes, or nobody uses the server any more. `fill` puts runs in before it starts."""
    given, trouble = _with_folder(given, environment)
    handed = inherited(environment)
    listening = handed or listen(given.host, given.port)
    with listening:
        settings = complete(given, listening)
        _prepare(settings)
        runs = Runs(settings)
        app = create_app(runs, settings)
        app.state.keeper.trouble = trouble
        if fill is not None:
            fill(runs)
        server = make_server(app)
        if settings.dashboard and environment.get("HOOKCORE_LOCK_FD"):
            with suppress(HookcoreError):  # its starter has said it, or says why not
                dashboard.announce(url_of(settings), settings.token, environment)
            follow_orphans(app)
        threading.Thread(target=_prepare_for_readers, args=(app,), name="hookcore-prepare", daemon=True).start()
        (told or _say)(greeting(given, settings, app.state.access))
        try:
            server.run(sockets=[listening])
        finally:
            if settings.dashboard:
                with suppress(HookcoreError):
                    dashboard.forget(environment)


def _with_folder(given: ServerSettings, environment: Mapping[str, str]) -> tuple[ServerSettings, str]:
    """Return the settings with the folder that `keep="auto"` stands for, or why nothing can be kept."""
    if given.keep != AUTO:
        return given, ""
    try:
        folder = data_folder(environment) / "runs"
        for each in (*reversed(folder.parents), folder):
            each.mkdir(mode=0o700, exist_ok=True)  # parents made by `parents=True` would be open to others
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} is not writable")
    except (OSError, RuntimeError, KeyError) as error:
        trouble = f"runs stay in memory only, and are gone when the server stops: {error}"
        logger.warning("hookcore: %s. Give a folder with --keep, or --keep none.", trouble)
        return dataclasses.replace(given, keep=""), trouble
    return dataclasses.replace(given, keep=str(folder)), ""


def data_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where hookcore keeps this user's data: HOOKCORE_HOME if that is set, else a folder in XDG_DATA_HOME."""
    own = environment.get("HOOKCORE_HOME", "")
    if own:
        return Path(own).expanduser().absolute()
    given = environment.get("XDG_DATA_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path(environment.get("HOME") or "~").expanduser() / ".local/share"
    return base / "hookcore"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _prepare(settings: ServerSettings) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if settings.dashboard:
        os.nice(NICENESS)
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = settings.max_connections + 256
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _prepare_for_readers(app: FastAPI) -> None:
    """Does now, beside all else, what the first reader would wait half a second for."""
    nowhere = {"type": "http", "method": "GET", "path": "/-", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(nowhere)  # FastAPI makes a route's parameters out when it is asked for it first
    pages.prepare()


__all__ = ["Server", "complete", "greeting", "listen", "make_server", "run", "url_of"]

"""Where the frames of one run go, as its settings say: a store in this process, or a server. Knows no torch."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from hookcore.config import AUTO, NO_FOLDER, Settings
from hookcore.dashboard import HOST, PORT, Dashboard, find, find_or_revive, join_or_start
from hookcore.errors import ArgumentError, ServerError
from hookcore.notices import Notice, post_notice
from hookcore.records import plain, text_of
from hookcore.sender import Address, HttpSink
from hookcore.sinks import Sink, StoreSink
from hookcore.store import Store
from hookcore.wire import Books, RunInfo, keep_text

logger = logging.getLogger("hookcore")

MAX_REVIVALS: Final = 3  # of a dashboard that dies, by one trainer
_told: Final[set[str]] = set()  # addresses that this process has printed
Settled = Callable[[], dict[str, Any]]


def store_bytes(settings: Settings) -> int:
    """What the store may take of the memory that was given; the rest is for what is being captured."""
    return settings.memory - settings.memory // 4


def new_run(settings: Settings, versions: dict[str, str]) -> RunInfo:
    """A run that begins now: nobody has its id, and nobody knows its key."""
    now = time.time()
    return RunInfo(
        id=f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{secrets.token_hex(4)}",
        key=secrets.token_urlsafe(24),
        name=text_of(settings.name),
        host=text_of(socket.gethostname()),
        pid=os.getpid(),
        started_s=now,
        script=text_of(sys.argv[0]) if sys.argv else "",
        versions=versions,
        settings=plain(settings.as_dict()),
        memory=store_bytes(settings),
        keep="" if settings.keep == AUTO else keep_text(settings.keep or NO_FOLDER),
    )


@dataclass(slots=True)
class Delivery:
    """The way of one run's frames. `begin` comes when the run is sure to take place."""

    run: RunInfo
    sink: Sink
    store: Store | None  # where the frames stay in this process
    server: str | None  # the setting
    url: str | None = None  # the run's own page
    address: Address | None = None
    notice: Notice | None = None  # for a dashboard that hasn't answered yet

    def begin(self, settled: Settled) -> None:
        """Finds the server and starts to send. Without a server the frames wait in vain, and a warning says so."""
        if isinstance(self.sink, HttpSink):
            self._begin_sending(self.sink, settled)
        if self.url is not None and self.url not in _told:
            _told.add(self.url)
            with contextlib.suppress(OSError, ValueError, AttributeError):
                print(f"hookcore: {self.url}", file=sys.stderr, flush=True)

    def _begin_sending(self, sink: HttpSink, settled: Settled) -> None:
        if self.server != "auto":
            self.address = Address(self.server or "", os.environ.get("HOOKCORE_TOKEN", "").strip())
            sink.start(self.address, settled)
        else:
            dashboard = join_or_start()
            self.address = Address(dashboard.url, dashboard.token)
            with contextlib.suppress(ServerError, TypeError):  # then a run that is killed at once is not listed
                self.notice = post_notice(sink.info)
            met = self.notice.remove if self.notice is not None else None
            sink.start(_Finder(self), settled, f"Its own log is {dashboard.log}.", met)
        self.moved(self.address)

    def moved(self, address: Address) -> None:
        """Note where the run's server is now."""
        self.address = address
        self.url = f"{address.url}/runs/{self.run.id}"

    @property
    def books(self) -> Books | None:
        """What became of the frames that were to be sent; None where nothing is sent."""
        return self.sink.books if isinstance(self.sink, HttpSink) else None

    def flush(self, timeout_s: float) -> bool:
        """Waits until the server has everything so far."""
        return self.sink.flush(timeout_s) if isinstance(self.sink, HttpSink) else True

    def hurry(self, close_s: float) -> None:
        """Closing may take only so long."""
        if isinstance(self.sink, HttpSink):
            self.sink.close_s = min(self.sink.close_s, max(0.0, close_s))

    def abandon(self) -> None:
        """In a forked child: nothing is sent."""
        if self.notice is not None:
            self.notice.leave()
        abandon = getattr(self.sink, "abandon", None)
        if abandon is not None:
            abandon()


@dataclass(slots=True)
class _Finder:
    """Where the user's dashboard is: one that was started again has another token, and perhaps another port.

    A dashboard that died (out of memory, say) is started again, so that the rest of the run isn't lost.
    """

    delivery: Delivery
    _asked: bool = field(default=False)
    _revivals: int = field(default=0)

    def __call__(self) -> Address:
        if self._asked:
            with contextlib.suppress(ServerError, OSError):
                found = find_or_revive() if self._revivals < MAX_REVIVALS else find()
                if found is not None:
                    self._note(found)
        self._asked = True
        assert self.delivery.address is not None
        return self.delivery.address

    def _note(self, found: Dashboard) -> None:
        self.delivery.moved(Address(found.url, found.token))
        if found.started:
            self._revivals += 1
            logger.warning("hookcore: the dashboard ended unexpectedly and was started again: %s", self.delivery.url)


def deliver(settings: Settings, versions: dict[str, str]) -> Delivery:
    """The way that the settings ask for. Raises ArgumentError where they do not fit together."""
    run = new_run(settings, versions)
    if settings.server == "thread":
        return _in_this_process(run, settings)
    if settings.server is None:
        return _to_the_store(run, settings)
    if settings.server != "auto" and settings.keep not in (None, AUTO):
        raise ArgumentError(
            f"keep={settings.keep!r} is a folder of this machine, and the frames go to {settings.server}: start that "
            "server with `hookcore serve --keep FOLDER`, or leave out `keep`"
        )
    return Delivery(run, HttpSink(run), None, settings.server)


def to_the_store(delivery: Delivery, settings: Settings) -> Delivery:
    """The way for a run whose server is not to be had: into a store of its own."""
    return _to_the_store(delivery.run, settings)


def _to_the_store(run: RunInfo, settings: Settings) -> Delivery:
    store = Store(store_bytes(settings))
    sink: Sink = StoreSink(store)
    if settings.keep is not None and settings.keep != AUTO:
        sink = import_module("hookcore.archive").ArchiveSink(sink, settings.keep, run)
    return Delivery(run, sink, store, None)


def _in_this_process(run: RunInfo, settings: Settings) -> Delivery:
    server = import_module("hookcore_app.server_thread").start(HOST, PORT)
    sink = server.open_run(run, run.memory)
    url = str(server.url).rstrip("/")
    return Delivery(run, sink, sink.store, "thread", f"{url}/runs/{run.id}", Address(url, getattr(server, "token", "")))


__all__ = ["Dashboard", "Delivery", "deliver", "new_run", "to_the_store"]

"""The destination of a run's frames, as set by its settings: a store in this process, or a server. Imports no torch."""

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
from types import ModuleType
from typing import Any, Final

from hookcore.config import AUTO, NO_FOLDER, Flat, Settings, token_of
from hookcore.delivery.dashboard.private import mark_of
from hookcore.delivery.dashboard.process import (
    HOST,
    PORT,
    Dashboard,
    Notice,
    find,
    find_or_revive,
    join_or_start,
    post_notice,
)
from hookcore.delivery.facts import config_of_arguments, facts_at_start, joint_id, script_arguments
from hookcore.delivery.http import Address, HttpSink
from hookcore.delivery.http.parcels import DescribedRun, MakeSpool, Spool
from hookcore.delivery.sinks import Settled, Sink, StoreSink
from hookcore.errors import ArgumentError, ServerError, explained
from hookcore.findings import Choices, follow, read_choices, started_with
from hookcore.records import plain, text_of
from hookcore.records.wire import Place, RunInfo, keep_text
from hookcore.store import Store

logger = logging.getLogger("hookcore")

MAX_REVIVALS: Final = 3  # of a crashed dashboard, per trainer
_printed: Final[set[str]] = set()  # addresses that this process has printed


def say(line: str) -> None:
    """Print a line for the person who watches the training."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"hookcore: {line}", file=sys.stderr, flush=True)


def say_page(page: str) -> None:
    """Print the address of a page, once per process."""
    if page not in _printed:
        _printed.add(page)
        say(page)


def store_bytes(settings: Settings) -> int:
    """Return the store's share of the memory limit; the rest is for capture."""
    return settings.memory - settings.memory // 4


def new_run(settings: Settings, versions: dict[str, str], place: Place | None = None) -> RunInfo:
    """Return a new run with a unique id and a secret key."""
    now = time.time()
    config = settings.config if settings.config != Flat() else config_of_arguments(script_arguments())
    return RunInfo(
        id=f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{secrets.token_hex(4)}",
        key=secrets.token_urlsafe(24),
        name=text_of(settings.name),
        host=text_of(socket.gethostname()),
        pid=os.getpid(),
        process=mark_of(os.getpid()),
        started_s=now,
        script=text_of(sys.argv[0]) if sys.argv else "",
        versions=versions,
        settings=plain(settings.as_dict()),
        memory=store_bytes(settings),
        keep="" if settings.keep == AUTO else keep_text(settings.keep or NO_FOLDER),
        place=place,
        config=dict(config.values),
        config_cut=config.cut,
        facts=facts_at_start(),
        tags=settings.tags,
        group=settings.group,
        notes=settings.notes,
    )


@dataclass(slots=True)
class Delivery:
    """The way of one run's frames. Call `begin` when the run is sure to take place."""

    run: RunInfo
    sink: Sink
    store: Store | None  # None if the frames leave this process
    server: str | None  # the setting
    url: str | None = None  # the run's page
    address: Address | None = None
    reader: Callable[[], Any] | None = None  # of a server in this process, which knows what is muted
    notice: Notice | None = None  # for a dashboard that hasn't answered yet
    speaks: bool = True  # in the terminal; not if a command speaks for all of its trainings

    def begin(self, settled: Settled) -> None:
        """Find the server and start to send. If no server answers, frames stay queued and a warning is logged."""
        if isinstance(self.sink, HttpSink):
            self._begin_sending(self.sink, settled)
        else:
            self.sink.follow_settings(settled)
        if self.page is not None and self.leads_terminal:
            say_page(self.page)

    def _begin_sending(self, sink: HttpSink, settled: Settled) -> None:
        if self.server != "auto":
            self.address = Address(self.server or "", token_of())
            sink.start(self.address, settled, is_checked=True)
        else:
            dashboard = join_or_start()
            self.address = Address(dashboard.url, dashboard.token)
            with contextlib.suppress(ServerError, TypeError):  # a run that is killed immediately is then not listed
                self.notice = post_notice(sink.info)
            met = self.notice.remove if self.notice is not None else None
            sink.start(Finder(self), settled, f"Its own log is {dashboard.log}.", met)
        self.moved(self.address)

    def moved(self, address: Address) -> None:
        """Update the address of the run's server."""
        self.address = address
        self.url = f"{address.url}/runs/{self.run.id}"

    def silence(self) -> None:
        """Print nothing about the training in the terminal."""
        self.speaks = False

    @property
    def page(self) -> str | None:
        """The page of the training: that of all ranks, if there are several."""
        joint = joint_id(self.run.place)
        return self.url if joint is None or self.url is None else f"{self.url.rpartition('/')[0]}/{joint}"

    @property
    def leads_terminal(self) -> bool:
        """Whether this process speaks for its training in the terminal: the first rank of a machine, with a page."""
        is_first = self.run.place is None or self.run.place.local_rank == 0
        return self.speaks and self.url is not None and is_first

    @property
    def describes(self) -> bool:
        """Whether the description of the run goes anywhere: to a server, or to disk."""
        return type(self.sink) is not StoreSink

    def abandon(self) -> None:
        """Stop sending in a forked child."""
        if self.notice is not None:
            self.notice.leave()
        self.sink.abandon()


@dataclass(slots=True)
class Finder:
    """Finds the user's dashboard, whose token and port can change when it is restarted.

    A dashboard that crashed (out of memory, for example) is restarted, so that the rest of the run isn't lost.
    """

    delivery: Delivery
    _asked: bool = field(default=False)
    _revivals: int = field(default=0)

    def __call__(self) -> Address:
        if self._asked:
            with contextlib.suppress(ServerError, OSError):
                dashboard = find_or_revive() if self._revivals < MAX_REVIVALS else find()
                if dashboard is not None:
                    self._note(dashboard)
        self._asked = True
        assert self.delivery.address is not None
        return self.delivery.address

    def _note(self, dashboard: Dashboard) -> None:
        self.delivery.moved(Address(dashboard.url, dashboard.token))
        if dashboard.started:
            self._revivals += 1
            logger.warning("hookcore: the dashboard stopped unexpectedly and was restarted: %s", self.delivery.url)


def deliver(
    settings: Settings, versions: dict[str, str], place: Place | None = None, run: RunInfo | None = None
) -> Delivery:
    """Return the delivery for the settings, of a new run or of a given one.

    Raises ArgumentError if the settings contradict each other.
    """
    chosen = read_choices(settings.rules.thresholds)
    run = run or new_run(settings, versions, place)
    if settings.server == "thread":
        return _in_this_process(run, settings)
    if settings.server is None:
        return _to_the_store(run, settings, chosen)
    if settings.server != "auto" and settings.keep not in (None, AUTO):
        raise ArgumentError(
            f"keep={settings.keep!r} is a folder on this machine, but the frames go to {settings.server}: start that "
            "server with `hookcore serve --keep FOLDER`, or remove `keep`"
        )
    to = "" if settings.server == "auto" else settings.server
    return Delivery(run, HttpSink(run, make_spool=_spool_of(run, to)), None, settings.server)


def _spool_of(run: RunInfo, server: str) -> MakeSpool | None:
    """Return what makes the run's spool when it is needed; None if the run must not be written to disk."""
    if run.keep == NO_FOLDER:
        return None

    def make(info: RunInfo, describe: Callable[[], DescribedRun]) -> Spool:
        spool: Spool = _saving("hookcore.delivery.archive.spool").RunSpool(info, describe, server)
        return spool

    return make


def _saving(name: str) -> ModuleType:
    """Return a module that writes runs to disk. Raises ArgumentError if what it needs isn't installed."""
    with explained():
        import_module("pyarrow")  # which it imports when it writes
        return import_module(name)


def to_the_store(delivery: Delivery, settings: Settings) -> Delivery:
    """Return the delivery of a run without a server: into its own store."""
    return _to_the_store(delivery.run, settings, read_choices(settings.rules.thresholds))


def _to_the_store(run: RunInfo, settings: Settings, chosen: Choices) -> Delivery:
    store = follow(Store(store_bytes(settings)), started_with(chosen), run.rank)
    if settings.keep is None or settings.keep == AUTO:
        return Delivery(run, StoreSink(store), store, None)
    sink = _saving("hookcore.delivery.archive").ArchiveSink(store, settings.keep, run)
    return Delivery(run, sink, store, None)


def _in_this_process(run: RunInfo, settings: Settings) -> Delivery:
    with explained():
        threads = import_module("hookcore_app.serving.server_thread")
    server = threads.start(HOST, PORT)
    sink = server.open_run(run, run.memory)
    url = str(server.url).rstrip("/")
    address = Address(url, getattr(server, "token", ""))
    return Delivery(run, sink, sink.store, "thread", f"{url}/runs/{run.id}", address, lambda: sink.run.reader)


__all__ = ["Dashboard", "Delivery", "deliver", "new_run", "say", "say_page", "to_the_store"]

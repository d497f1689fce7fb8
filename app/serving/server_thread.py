"""The server in a thread of the training process, for notebooks and tests."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hookcore.delivery.sinks import Settled, Sink
from hookcore.errors import ClosedError, ServerError
from hookcore.records import Command, Coverage, Failure, Frame, HookRecord, ModuleRecord, Snapshot, plain
from hookcore.records.wire import EndItem, Place, RunInfo
from hookcore.store import Store

from ..main import create_app
from ..runs import Run, Runs
from ..settings import ServerSettings
from .server import Server, complete, listen, make_server, url_of

THREAD: Final = "hookcore-server"
_STOP_S: Final = 5.0
_SETTINGS_S: Final = 1.0  # between two readings of the settings
_lock = threading.Lock()
_running: Embedded | None = None


def start(host: str = "127.0.0.1", port: int = 8642) -> Embedded:
    """Return this process's server, started if needed. It runs until `stop()` or the end of the process."""
    global _running
    with _lock:
        if _running is None or not _running.is_running:
            _running = Embedded(host, port)
        return _running


class Embedded:
    """A running server; `.url` is its address, `.token` allows scripts to change things, `.runs` are its runs."""

    def __init__(self, host: str, port: int) -> None:
        listening = listen(host, port)
        ancestors = os.environ.get("HOOKCORE_FRAME_ANCESTORS") or "local"  # in a notebook, the page is shown in a frame
        self.settings = complete(
            ServerSettings.of({"host": host, "port": port, "frame_ancestors": ancestors, "keep": ""}, {}), listening
        )
        self.runs = Runs(self.settings)
        self.url = url_of(self.settings)
        self.token = self.settings.token
        self._pid = os.getpid()
        app = create_app(self.runs, self.settings)
        self._keeper = app.state.keeper
        self._server: Server = make_server(app)
        self._thread = threading.Thread(target=self._serve, args=(listening,), name=THREAD, daemon=True)
        self._thread.start()

    def _serve(self, listening: object) -> None:
        # uvicorn handles signals only in the main thread
        self._server.run(sockets=[listening])  # type: ignore[list-item]

    @property
    def is_running(self) -> bool:
        """Whether it is serving; a forked child's copy is not."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def open_run(self, info: RunInfo, memory: int) -> LocalSink:
        """Open a run of this process, with a store of `memory` bytes."""
        if not self.is_running:
            raise ServerError("this server was stopped, or belongs to a parent process: start a new one")
        sink = LocalSink(self.runs, info, memory)
        self._keeper.opened(sink.run, True)  # only this process can name a folder here
        return sink

    def stop(self) -> None:
        """Stop the server; the data of its runs stays readable. A second call does nothing."""
        if self._pid != os.getpid():
            return
        self._server.stop()
        self._thread.join(_STOP_S)


class LocalSink(Sink):
    """Adds frames directly to the store of this process's server."""

    def __init__(self, runs: Runs, info: RunInfo, memory: int) -> None:
        self._lock = threading.Lock()
        self._on_command: Callable[[Command], None] | None = None
        self._early: list[Command] = []
        self._failure: Failure | None = None
        self._closed = False
        self._settled: Settled | None = None
        self._due_at = 0.0  # when the settings are read again
        self.run: Run = runs.open_local(info, memory, self._pass_on)

    @property
    def store(self) -> Store:
        return self.run.store

    @property
    def incidents_version(self) -> int:
        return self.store.incidents_version

    def send(self, record: Frame | Snapshot) -> None:
        self._require_open()
        # Each change of the settings has an event; figures such as the cost come without one.
        if (isinstance(record, Frame) and record.events) or time.monotonic() >= self._due_at:
            self._read_settings()
        self.run.take_record(record)

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        self._require_open()
        self.run.store.describe(modules, coverage, hooks)
        self.run.changes.tell()

    def subscribe(self, on_command: Callable[[Command], None]) -> None:
        """Set the receiver of commands; commands that arrived earlier are delivered now."""
        with self._lock:
            self._on_command = on_command
            for command in self._early:
                on_command(command)
            self._early.clear()

    def locate(self, place: Place) -> None:
        self.run.amend(place=place)

    def learn(self, description: Mapping[str, Any]) -> None:
        self.run.amend(**description)

    def follow_settings(self, settled: Settled) -> None:
        self._settled = settled

    def _read_settings(self) -> None:
        self._due_at = time.monotonic() + _SETTINGS_S
        if self._settled is not None and (settings := plain(self._settled())) != self.run.info.settings:
            self.run.amend(settings=settings)

    def fail(self, failure: Failure) -> None:
        self._failure = failure

    def close(self) -> None:
        """Mark the run as ended."""
        if not self._closed:
            self._closed = True
            self._read_settings()
            number, newest = self.run.received.acknowledged + 1, self.run.store.steps().newest
            self.run.take_record(EndItem(number, newest or 0, self._failure))

    def _pass_on(self, command: Command) -> None:
        with self._lock:
            if self._on_command is None:
                self._early.append(command)
            else:
                self._on_command(command)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("this run has ended: open a new one to send more")

"""A server that saves its runs, and the batches of a trainer."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import fields
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import hookcore
from hookcore.delivery.archive import ArchiveWriter
from hookcore.records.wire import Batch, RunInfo, frame_item
from hookcore_app.runs.keep import Keeper
from hookcore_app.settings import ServerSettings
from tests.archive_world import TAPS, make_frame
from tests.ports import free_port
from tests.processes import SERVER
from tests.processes import start as start_process
from tests.serving import TOKEN, World, make_world
from tests.waiting import wait_for

SERVER_SETTINGS = {"HOOKCORE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
INFO = RunInfo(id="run-1", key="secret", name="../../a/run", memory=20_000_000)


def batch(info: RunInfo, steps: Iterable[int], first: bool = False, **others: Any) -> Batch:
    items = tuple(frame_item(step, make_frame(step)) for step in steps)
    return Batch(run=info, **({"taps": TAPS} if first else {"taps_from": len(TAPS)}), items=items, **others)


def start(settings: ServerSettings, count: int) -> World:
    """Return a server that uses the folder, after it has listed the existing runs."""
    world = make_world(**{each.name: getattr(settings, each.name) for each in fields(settings)})
    wait_for(lambda: len(world.runs.all()) == count)
    return world


def writer_of(world: World) -> ArchiveWriter:
    """Return the writer of the only run that a server is saving."""
    ((_, writer),) = world.app.state.keeper.writers.values()
    return writer


def threads_of(keeper: Keeper) -> list[threading.Thread]:
    """Return the writer threads of a keeper. Threads that a failed test left behind belong to other keepers."""
    return [scribe.thread for scribe in keeper.scribes.values() if scribe.thread is not None]


def wait_for_end(threads: Iterable[threading.Thread]) -> None:
    wait_for(lambda: not any(thread.is_alive() for thread in threads))


def stop(world: World) -> None:
    """Stop a server after it has written everything."""
    keeper: Keeper = world.app.state.keeper
    threads = threads_of(keeper)
    keeper.close()
    wait_for_end(threads)


class ServerProcess:
    """A server process with a fixed port and folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.port = folder / "runs", folder / "log", free_port()
        self.process: BaseProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        environment = {**os.environ, **SERVER_SETTINGS}
        given = ("serve", "--keep", str(self.folder), "--port", str(self.port))
        self.process = start_process(SERVER, *given, environment=environment, log=self.log)
        wait_for(lambda: self.url in self.log.read_text(), "the server's start")

    @property
    def pid(self) -> int:
        assert self.process is not None
        assert self.process.pid is not None
        return self.process.pid

    def kill(self) -> None:
        """Kill it with SIGKILL, as the kernel does when memory runs out, unless it is already dead."""
        if self.process is not None:
            self.process.kill()
            self.process.join()

    def client(self) -> hookcore.Client:
        return hookcore.Client(self.url, TOKEN)

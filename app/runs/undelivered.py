"""What trainers couldn't deliver, and runs whose trainer went silent or ended before it was answered."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any, Final

import msgspec
from fastapi import FastAPI

from hookcore.delivery.archive import Archive, read_archive
from hookcore.delivery.archive.folder import hold
from hookcore.delivery.archive.spool import About, about_spool, batches_in, spools_in
from hookcore.delivery.dashboard.private import MAX_PID, lives, lives_as
from hookcore.delivery.dashboard.process import take_orphans, undelivered_folder
from hookcore.errors import HookcoreError
from hookcore.platform import background
from hookcore.records.wire import Batch, EndItem, RunInfo

from .disk import WrongKeyError
from .joint import ranks_in
from .keep import Keeper
from .limits import tamed
from .run import GONE_AFTER_S, Run, emit_event
from .runs import Runs

logger = logging.getLogger("hookcore")

MAX_PATIENCE: Final = 100  # looks at a spool that can't be taken in, before it is left alone

Take = Callable[[Batch], object]


class Undelivered:
    """The spools in a folder. `take` adds a batch to its run, as if a trainer had sent it.

    Items are numbered, so what a run has already is skipped. A spool is removed once its run is saved.
    """

    def __init__(self, runs: Runs, take: Take, folder: Path) -> None:
        self._runs, self._take, self._folder = runs, take, folder
        self._taken: dict[Path, str] = {}  # the run of each spool that was taken in
        self._failures: dict[Path, int] = {}

    def look(self) -> None:
        """Take in the spools whose trainers have ended."""
        for path in spools_in(self._folder):
            with _held(path) as is_mine:
                if not is_mine:
                    continue
                if path in self._taken:
                    self._remove_if_saved(path)
                elif self._failures.get(path, 0) < MAX_PATIENCE:
                    self._try(path)

    def _try(self, path: Path) -> None:
        try:
            about, archive = about_spool(path), read_archive(path)
            self._take_in(about, archive)
            self._taken[path] = archive.info.id
        except Exception as error:  # a full server, a damaged spool: one must not hide the others
            failures = self._failures[path] = self._failures.get(path, 0) + 1
            if failures in (1, MAX_PATIENCE):
                logger.warning("hookcore: what is in %s can't be taken in: %s", path, error)

    def _take_in(self, about: About, archive: Archive) -> None:
        listed = self._runs.get(archive.info.id)
        if listed is not None:
            listed.signs.see()  # its trainer was silent, but isn't back
        elif about.server:
            about = msgspec.structs.replace(about, counters=msgspec.structs.replace(about.counters, acknowledged=0))
        batches = (msgspec.structs.replace(each, run=tamed(each.run)) for each in batches_in(archive, about))
        self._take(last := next(batches))  # without items: it continues a run that is only on disk
        run = self._runs.get(archive.info.id)
        if run is None:
            return
        newest, items = run.received.acknowledged, 0
        for number, batch in enumerate(batches):
            if number:
                self._take(last)
            last = batch
            items += sum(item.number > newest and not isinstance(item, EndItem) for item in batch.items)
        if items:  # before the end of the run, after which nothing is saved
            emit_event(run, "undelivered", _sentence(items, about.server, listed is not None), "info")
        if archive.lost:
            emit_event(run, "not-kept", f"{archive.lost} frames and snapshots of this run were not written", "warning")
        self._take(last)

    def _remove_if_saved(self, path: Path) -> None:
        run = self._runs.get(self._taken[path])
        if run is not None:
            durable = run.saved.durable
            if durable is None or durable < run.received.acknowledged:
                return  # it is only in memory
        shutil.rmtree(path, ignore_errors=True)
        del self._taken[path]


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold a spool, so that no other dashboard reads it; yield False if its trainer, or another one, does."""
    number: int | None = None
    with contextlib.suppress(OSError):  # it is gone
        number = hold(path)
    try:
        yield number is not None
    finally:
        if number is not None:
            os.close(number)


def _sentence(items: int, server: str, is_known: bool) -> str:
    many = "1 frame or snapshot" if items == 1 else f"{items:,} frames and snapshots"
    elsewhere = f" Those that the trainer could send are at {server}." if server and not is_known else ""
    return f"{many} didn't reach {server or 'the dashboard'} in time and came from the trainer's disk.{elsewhere}"


# Runs whose trainer ended before this dashboard answered it: their data is in a spool, or they are only listed.

LOOK_EVERY_S: Final = 2.0


def follow_orphans(app: FastAPI) -> None:
    """List orphans now and regularly, from a separate thread, until the server stops."""
    state = app.state
    state.undelivered = Undelivered(
        state.runs, lambda batch: state.take(batch, bytearray(), True), undelivered_folder()
    )
    background("hookcore-orphans", follow, app.state).start()


def follow(state: Any) -> None:
    problem = ""
    while not state.stopping:
        try:
            orphans = take_orphans()
            state.undelivered.look()  # when a notice is free, the spool of its trainer is complete
            for info in orphans:
                list_orphan(state.runs, state.keeper, info)
            problem = ""
        except (HookcoreError, OSError) as error:
            if str(error) != problem:  # a warning every two seconds would fill the log
                logger.warning("hookcore: can't read the notices of runs: %s", error)
            problem = str(error)
        time.sleep(LOOK_EVERY_S)


def list_orphan(runs: Runs, keeper: Keeper, info: RunInfo) -> None:
    """List a run without data as lost, unless it is known."""
    info = tamed(info)
    if runs.get(info.id) is not None:
        return
    run = runs.open(info)
    if run is None:
        logger.warning("hookcore: there is no room to list the run %s, which sent no data", info.id)
        return
    run.signs.seen_at = float("-inf")
    message = f"the training process ({info.pid}) ended before this dashboard answered it; its data is lost"
    emit_event(run, "never-arrived", message, "warning")
    try:
        keeper.opened(run, True)
    except WrongKeyError as error:
        logger.warning("hookcore: %s", error)
        runs.drop(run)
        return
    keeper.release(run)


ENDED: Final = (
    "The process no longer exists: a signal killed it (SIGKILL, for example because memory ran out, or SIGTERM), "
    "native code crashed, it ended with `os._exit` or `os.exec...`, or it ended while it couldn't reach this server"
)
STUCK: Final = "The process still exists: it is stuck or paused, or can't reach this server"
ELSEWHERE: Final = "It runs on another machine, where it was killed, is stuck, or can't reach this server"


class LostMarks:
    """Which silences have an event."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._marked: dict[str, float] = {}  # the last message of each marked run

    def mark(self) -> None:
        """Add an event to each run that is newly lost. One whose trainer returns and is lost again gets another."""
        every = self._runs.every()
        for run in every:
            if (joint := ranks_in(run)) is not None:
                joint.sum.tick()
        runs = (run for run in every if run.loaded and not run.saved.from_disk and isfinite(run.signs.seen_at))
        lost = [run for run in runs if not run.is_derived and _is_lost(run)]
        for run in lost:
            if self._marked.get(run.id) != run.signs.seen_at:
                cause = _cause(run)
                emit_event(run, "lost", f"{_lost_sentence(run)} {cause}.", "error" if cause == ENDED else "warning")
        self._marked = {run.id: run.signs.seen_at for run in lost}


def _is_lost(run: Run) -> bool:
    if run.state == "live" and run.is_silent(GONE_AFTER_S):
        run.signs.is_gone = lives_as(run.info.pid, run.info.process) is False
    return run.state == "lost"


def _lost_sentence(run: Run) -> str:
    newest = run.store.steps().newest
    since = "before its first step" if newest is None else f"after step {newest:,}"
    pid, host = run.info.pid, run.info.host
    if pid and host:
        return f"The trainer (process {pid} on {host}) stopped sending data {since}."
    process = f" (process {pid})" if pid else f" (on {host})" if host else ""
    return f"The trainer{process} stopped sending data {since}."


def _cause(run: Run) -> str:
    info = run.info
    alive = lives_as(info.pid, info.process)
    if alive is None and not info.process and info.host == socket.gethostname() and 0 < info.pid < MAX_PID:
        alive = lives(info.pid)  # a system that doesn't tell more of a process
    return ELSEWHERE if alive is None else STUCK if alive else ENDED

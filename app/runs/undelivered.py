"""What this user's trainers couldn't deliver: the dashboard takes it in from their spools, once each."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from hookcore.delivery.archive import Archive, read_archive
from hookcore.delivery.archive.spool import About, about_spool, batches_in, spools_in
from hookcore.delivery.archive.state import hold
from hookcore.records.wire import Batch, EndItem

from .limits import tamed
from .run import emit_event
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
        known = self._runs.get(archive.info.id)
        if known is not None:
            known.signs.see()  # its trainer was silent, but isn't back
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
            emit_event(run, "undelivered", _sentence(items, about.server, known is not None), "info")
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

"""The spool of a trainer: what it couldn't deliver, as a saved run, and on its way to a dashboard later."""

from __future__ import annotations

import contextlib
import heapq
import json
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from hookcore.delivery.archive.folder import SUFFIX, write_json
from hookcore.delivery.archive.reader import Archive, read_archive
from hookcore.delivery.archive.writer import ArchiveWriter
from hookcore.delivery.dashboard.private import open_regular
from hookcore.delivery.dashboard.process import make_private, undelivered_folder
from hookcore.delivery.http.parcels import PARCEL_BYTES, DescribedRun, Entry, Parcel
from hookcore.delivery.http.sender import batch_of
from hookcore.delivery.sinks import size_of
from hookcore.errors import HookcoreError
from hookcore.records import Coverage, Event, Frame, HookRecord, ModuleRecord, Snapshot
from hookcore.records.wire import Batch, DeliveryCounters, Description, EndItem, RunInfo
from hookcore.store import StepRange, TapList

logger = logging.getLogger("hookcore")

LIMIT_BYTES: Final = 1_000_000_000  # of all spools of a user together
FILE: Final = "undelivered.json"  # in a spool: what the run's own files don't say
_LOOK_S: Final = 30.0  # at the sizes of other spools
_MAX_FILE: Final = 2**20


class About(msgspec.Struct, frozen=True):
    """What a dashboard needs to continue the run as its trainer would."""

    key: str  # the folder is private
    keep: str
    server: str  # where the trainer tried to send; empty for the user's dashboard
    version: int  # of the description
    counters: DeliveryCounters
    end: int | None  # the number of the end; None if the trainer was killed, or is running


class RunSpool:
    """The undelivered items of one run, in a folder of its own. It belongs to one thread, except for `take`."""

    def __init__(
        self,
        run: RunInfo,
        describe: Callable[[], DescribedRun],
        server: str = "",
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        parent = undelivered_folder(environment)
        make_private(parent)
        self.newest = -1
        self.trouble: str | None = None
        self._run, self._describe, self._server = run, describe, server
        self._contents = _Contents()
        self._others = _Others(parent)
        self._writer = ArchiveWriter(
            parent,
            run,
            self._contents,
            tell=self._tell,
            limit_bytes=LIMIT_BYTES,
            used_elsewhere=lambda: self._others.nbytes(self.path),
            start=False,
            at_limit=self._at_limit,
            numbered=True,
        )
        self.path = self._writer.folder
        self._events_read = 0
        self._is_open = False
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.write()
        if self.trouble:
            raise OSError(self.trouble)
        self._is_open = True

    def _at_limit(self, limit: int) -> str:
        return (
            f"what trainers couldn't deliver has reached the limit of {limit} bytes: start a dashboard, or delete "
            f"folders in {self.path.parent}"
        )

    def _tell(self, _name: str, message: str) -> None:
        self.trouble = message
        if self._is_open:
            logger.warning("hookcore: %s", message)

    def take(self, number: int, record: Frame | Snapshot) -> None:
        self._contents.add(record)
        self._writer.take(record, number)
        self.newest = number

    def write(self) -> None:
        described = self._describe()
        self._contents.described = described
        about = About(
            key=self._run.key,
            keep=self._run.keep,
            server=self._server,
            version=described.description.version,
            counters=described.counters,
            end=None if described.end is None else described.end.number,
        )
        try:
            write_json(self.path / FILE, msgspec.to_builtins(about))
        except OSError as error:
            if not self.trouble:
                self._tell("", f"{self.path} can't be written ({error.strerror or error})")
            return
        self._writer.write()
        self.trouble = self._writer.progress.stopped

    def read(self, first: int) -> Iterator[tuple[int, Frame | Snapshot]]:
        try:
            archive = read_archive(self.path)
            events = deque(islice(archive.events(), self._events_read, None))
            for number, record in _merged(archive, first):
                if isinstance(record, Frame):
                    mine = _until(events, record.step)
                    self._events_read += len(mine)
                    record = replace(record, events=tuple(mine))
                yield number, record
        except HookcoreError as error:
            logger.warning("hookcore: what couldn't be delivered can't be read again: %s", error)

    def close(self, run: RunInfo) -> int:
        self._run = run
        self._writer.inform(run)
        end = self._describe().end
        if end is not None:
            self._writer.take(end)
        self.write()
        self._writer.close(0.0)
        progress = self._writer.progress
        return progress.taken - progress.written

    def discard(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._writer.close(0.0)  # last: while it holds the folder, no dashboard reads it

    def abandon(self) -> None:
        self._writer.abandon()


class _Contents:
    """What the writer of a spool knows of its run: the descriptions of an outbox, and what the spooled frames say."""

    def __init__(self) -> None:
        none = Description(-1)
        self.described = DescribedRun((), none, None, DeliveryCounters())
        self._taps = TapList(np.empty(0, np.int64), ())
        self._events: list[Event] = []
        self._seen = 0  # events that were dropped from the list
        self._labels: dict[str, str] = {}
        self._steps = StepRange(None, None, 0)

    def add(self, record: Frame | Snapshot) -> None:
        if isinstance(record, Snapshot):
            return
        self._events += record.events
        self._labels |= record.labels
        steps = self._steps
        first = record.step if steps.first is None else steps.first
        is_new = record.step != steps.newest
        self._steps = StepRange(first, max(record.step, steps.newest or 0), steps.count + is_new)

    def taps(self) -> TapList:
        taps = self.described.taps
        if len(taps) != len(self._taps.taps):
            self._taps = TapList(np.arange(len(taps)), taps)
        return self._taps

    def modules(self) -> Sequence[ModuleRecord]:
        return self.described.description.modules

    def coverage(self) -> Sequence[Coverage]:
        return self.described.description.coverage

    def hooks(self) -> Sequence[HookRecord]:
        return self.described.description.hooks

    def events_after(self, seen: int) -> tuple[int, Sequence[Event]]:
        del self._events[: seen - self._seen]  # they are written
        self._seen, events = seen, list(self._events)
        return seen + len(events), events

    def steps(self) -> StepRange:
        return self._steps

    def labels(self) -> Mapping[str, str]:
        return dict(self._labels)

    def add_event(self, event: Event) -> None:
        self._events.append(event)


class _Others:
    """The size of the other spools of the user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._looked_at, self._nbytes = float("-inf"), 0

    def nbytes(self, own: Path) -> int:
        if time.monotonic() - self._looked_at > _LOOK_S:
            self._nbytes = sum(bytes_of_spool(path) for path in spools_in(self._folder) if path != own)
            self._looked_at = time.monotonic()
        return self._nbytes


def spools_in(folder: Path) -> list[Path]:
    """Return the spools in a folder, which need not exist."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def bytes_of_spool(path: Path) -> int:
    """Return the size of a spool."""
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):  # it was just merged
            total += file.lstat().st_size
    return total


# -- and back ----------------------------------------------------------------------------------------------------------


def about_spool(path: Path) -> About:
    """Return what a spool says besides its run. Raises OSError or ValueError if it can't be read."""
    with open_regular(path / FILE, _MAX_FILE) as file:
        return msgspec.convert(json.loads(file.read(_MAX_FILE)), About)


def batches_in(archive: Archive, about: About) -> Iterator[Batch]:
    """Yield what a spool holds as batches, as its trainer would have sent them."""
    run = msgspec.structs.replace(archive.info, key=about.key, keep=about.keep)
    taps = archive.taps()
    description = Description(
        about.version, tuple(archive.modules()), tuple(archive.coverage()), tuple(archive.hooks())
    )
    entries = _entries(archive)
    first = next(entries, None)
    if first is not None:  # what the server had received and not saved is in the spool, too
        counters = msgspec.structs.replace(about.counters, acknowledged=min(about.counters.acknowledged, first.number))
        about = msgspec.structs.replace(about, counters=counters)
    yield batch_of(Parcel(0, taps, description, (), None, about.counters), run, -1)
    some, room = [first] if first is not None else [], PARCEL_BYTES
    for entry in entries:
        some.append(entry)
        room -= entry.size
        if room <= 0:
            yield batch_of(Parcel(len(taps), (), None, tuple(some), None, about.counters), run, -1)
            some, room = [], PARCEL_BYTES
    end = None if about.end is None else EndItem(about.end, archive.last_step or 0, archive.failure)
    yield batch_of(Parcel(len(taps), (), None, tuple(some), end, about.counters), run, -1)


def _entries(archive: Archive) -> Iterator[Entry]:
    """Yield the items of a spool, with the events and labels that their frames brought."""
    events, labels = deque(archive.events()), archive.labels
    held: list[tuple[int, Frame | Snapshot]] = []  # from the newest frame on: the last one gets the rest of the events
    for number, record in _merged(archive, 0):
        if held and isinstance(record, Frame):
            yield from _with(held, _until(events, held[0][1].step), labels)
            held, labels = [], {}
        held.append((number, record))
    yield from _with(held, list(events), labels)


def _with(
    records: Sequence[tuple[int, Frame | Snapshot]], events: Sequence[Event], labels: Mapping[str, str]
) -> Iterator[Entry]:
    for number, record in records:
        if isinstance(record, Frame):
            record = replace(record, events=tuple(events), labels=dict(labels))
        yield Entry(number, record, size_of(record))


def _merged(archive: Archive, first: int) -> Iterator[tuple[int, Frame | Snapshot]]:
    snapshots = ((number, record) for number, record in archive.numbered_snapshots() if number >= first)
    return heapq.merge(archive.numbered_frames(first), snapshots, key=lambda pair: pair[0])


def _until(events: deque[Event], step: int) -> list[Event]:
    """Return the events of frames up to a step, and remove them."""
    until = []
    while events and events[0].step <= step:
        until.append(events.popleft())
    return until

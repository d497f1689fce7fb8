"""Writes a run to disk while it is running, in a thread of its own. Failures are reported and stop nothing else."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import structs

from hookcore.delivery.archive.folder import DiskCounters, RunFolder, WriteProgress, folder_name
from hookcore.delivery.archive.tables import frame_tables, records_table, snapshots_table, taps_table
from hookcore.delivery.sinks import UNSAVED_BYTES, Settled, Sink, StoreSink, size_of
from hookcore.platform import background
from hookcore.records import Command, Coverage, Event, Failure, Frame, HookRecord, ModuleRecord, Snapshot, plain
from hookcore.records.wire import EndItem, Place, RunInfo
from hookcore.store import StepRange, Store, TapList

# A thread that writes any number of runs to disk. It starts with the first writer and ends with the last.

PART_S: Final = 5.0  # the part of a run that a crash may lose
PATIENCE_S: Final = 0.5  # how long a part waits for a pause
LOOK_S: Final = 0.01


class Writes(Protocol):
    """A writer that the thread serves."""

    def write_part(self) -> bool:
        """Write waiting data. Return False if the run has ended and there is no more."""


class Scribe:
    """The thread and its writers, which take turns: many runs that were written at once would stall live pages.

    They write in pauses, if there are any: the ranks of a training send their steps together, and its live pages would
    wait for the parts that are written between them.

    A finished writer is removed, so that no reference to its run remains.
    """

    def __init__(self, part_s: float = PART_S, is_busy: Callable[[], bool] = lambda: False) -> None:
        self._part_s, self._is_busy = part_s, is_busy
        self._due = 0.0  # when the next part should be written
        self._changed = threading.Condition()
        self.writers: deque[Writes] = deque()  # the next one first
        self._hurried: deque[Writes] = deque()  # those that don't wait for their turn
        self.thread: threading.Thread | None = None

    def add(self, writer: Writes) -> None:
        """Add a writer."""
        with self._changed:
            self.writers.append(writer)
            if self.thread is None:
                self._due = time.monotonic()
                self.thread = background("hookcore-keeper", self._run)
                self.thread.start()

    def poke(self, writer: Writes) -> None:
        """Write a run now instead of at its turn."""
        with self._changed:
            if writer in self.writers and writer not in self._hurried:
                self._hurried.append(writer)
            self._changed.notify_all()

    def _run(self) -> None:
        while self._take_turn():
            pass

    def _take_turn(self) -> bool:
        """Wait for the next turn and write a part of a run. Return False when no run is left."""
        with self._changed:
            if self.writers and not self._hurried:
                self._wait_for_turn()
            writer = self._next()
        if writer is not None and writer.write_part():
            writer = None  # it goes on
        with self._changed:
            if writer is not None and writer in self.writers:
                self.writers.remove(writer)
            if not self.writers:
                self._hurried.clear()
                self.thread = None
            return self.thread is not None

    def _wait_for_turn(self) -> None:
        """Wait until the next part is due, and then for a pause, if it isn't late (the lock must be held)."""
        share_s = self._part_s / len(self.writers)
        self._due = max(self._due, time.monotonic() - PATIENCE_S) + share_s
        if self._changed.wait(max(0.0, self._due - time.monotonic())):
            return  # a run can't wait
        while self._is_busy() and time.monotonic() < self._due + PATIENCE_S:
            if self._changed.wait(LOOK_S):
                return

    def _next(self) -> Writes | None:
        """Return the run whose turn it is (the lock must be held)."""
        while self._hurried:
            writer = self._hurried.popleft()
            if writer in self.writers:
                return writer
        if not self.writers:
            return None
        self.writers.rotate(-1)
        return self.writers[-1]


PART_BYTES: Final = UNSAVED_BYTES // 2  # of records, in memory: one part is written while the next one arrives
MAX_QUEUE_BYTES: Final = 64 * 2**20
RETRY_S: Final = 30.0
HANG_S: Final = 30.0  # without a sign of the thread, which comes by every few seconds
DEFAULT_LIMIT: Final = 10_000_000_000
CLOSE_S: Final = 2.0

Tell = Callable[[str, str], None]


def at_limit_of_runs(limit: int) -> str:
    """Return why nothing is written when saved runs have reached their limit."""
    return f"saved runs have reached the limit of {limit} bytes on disk: raise keep_limit or delete some"


class Described(Protocol):
    """What a writer needs to know of a run, besides its frames and snapshots. A store knows it."""

    def taps(self) -> TapList: ...
    def modules(self) -> Sequence[ModuleRecord]: ...
    def coverage(self) -> Sequence[Coverage]: ...
    def hooks(self) -> Sequence[HookRecord]: ...
    def events_after(self, seen: int) -> tuple[int, Sequence[Event]]: ...
    def steps(self) -> StepRange: ...
    def labels(self) -> Mapping[str, str]: ...
    def add_event(self, event: Event) -> None: ...


class ArchiveWriter:
    """Saves a run to a folder in `parent`. Names, modules, and events are read from the run's store.

    `take` never waits and never raises; a receiver asks `room_for` first, and lets its sender wait. A full disk, or the
    limit, stops the writing, is reported once through `tell(name, message)`, and is retried after a while. Records that
    are lost in the meantime are counted and reported when the writing continues, or ends.
    """

    def __init__(
        self,
        parent: str | Path,
        info: RunInfo,
        store: Described,
        *,
        tell: Tell | None = None,
        limit_bytes: int = DEFAULT_LIMIT,
        used_elsewhere: Callable[[], int] = lambda: 0,
        part_s: float = PART_S,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
        start: bool = True,
        scribe: Scribe | None = None,
        make_room: Callable[[], None] = lambda: None,
        folder: Path | None = None,
        events_seen: int = 0,
        after_part: Callable[[bool], None] = lambda is_last: None,
        at_limit: Callable[[int], str] = at_limit_of_runs,
        numbered: bool = False,
    ) -> None:
        self.folder = folder or Path(parent).expanduser().absolute() / folder_name(info.name, info.id)
        self._info = info
        self._store = store
        self._tell = tell or self._add_event
        self._limit, self._used_elsewhere, self._make_room = limit_bytes, used_elsewhere, make_room
        self._at_limit = at_limit
        self._numbered = numbered  # whether frames are numbered as on the wire, instead of in order
        self._retry_s, self._clock = retry_s, clock
        self._changed = threading.Condition()
        self._queue: deque[_Entry] = deque()
        self.queued_bytes = self._flying_bytes = 0  # waiting, and in the part that is being written
        self._frames = self._taken = self._written = self._lost = self._lost_told = 0
        self._acknowledged = -1  # the highest number that was written or is being written
        self._durable = -1  # the highest number of what is on disk
        self._missing = 0
        self._events_seen, self._after_part = events_seen, after_part
        self.files = RunFolder(self.folder, info)
        self._stopped: str | None = None
        self._try_at = 0.0
        self._turn_at = clock()  # the thread's newest sign
        self._hangs = False
        self._ending = False
        self._end: EndItem | None = None
        self._end_on_disk: EndItem | None = None  # set when everything before it is written
        self._finished = threading.Event()
        self._scribe = (scribe or Scribe(part_s)) if start else None
        if self._scribe is not None:
            self._scribe.add(self)

    def _add_event(self, name: str, message: str) -> None:
        self._store.add_event(Event(self._store.steps().newest or 0, time.time(), name, message, "warning"))

    @property
    def progress(self) -> WriteProgress:
        """The current counters."""
        with self._changed:
            return WriteProgress(self._taken, self._written, self._lost, self.files.nbytes, self._stopped)

    def inform(self, info: RunInfo) -> None:
        """Save this description of the run from now on."""
        self.files.info = info

    def room_for(self, records: Sequence[Frame | Snapshot | EndItem]) -> int:
        """Return how many of these records can be taken now, before the disk has to catch up.

        A disk that takes nothing is no reason to wait: the run is shown without being saved.
        """
        unsaved = self.queued_bytes + self._flying_bytes
        for many, record in enumerate(records):
            if isinstance(record, EndItem) or self._stopped or self._hangs or self._ending:
                continue
            nbytes = size_of(record)
            if unsaved and unsaved + nbytes > UNSAVED_BYTES:
                return many
            unsaved += nbytes
        return len(records)

    def take(self, record: Frame | Snapshot | EndItem, number: int = -1) -> None:
        """Queue a record, with its number on the wire.

        If the disk can't keep up, and nobody asked for room, the oldest waiting record is lost and counted.
        """
        with self._changed:
            if isinstance(record, EndItem):
                self._end = record
                return
            self._taken += 1
            if self._ending:
                self._lost += 1
                return
            self._queue.append(_Entry(self._frames, number, record))
            self._frames += isinstance(record, Frame)
            self.queued_bytes += size_of(record)
            while self.queued_bytes > MAX_QUEUE_BYTES and len(self._queue) > 1:
                self.queued_bytes -= size_of(self._queue.popleft().record)
                self._lost += 1
            is_due = self.queued_bytes >= PART_BYTES or self._taken == 1  # a crash must not cost the whole run
        if is_due:
            self._poke()
        self._report_hang()

    def _report_hang(self) -> None:
        """Report once if the thread doesn't return from the folder, for example on a network drive."""
        silent_s = self._clock() - self._turn_at
        if self._scribe is not None and silent_s > HANG_S and not self._hangs:
            self._hangs = True
            why = f"the folder has not responded for {silent_s:.0f} s"
            self._tell("keep-stopped", f"the run is no longer written to {self.folder}: {why}")

    def _poke(self) -> None:
        if self._scribe is not None:
            self._scribe.poke(self)

    def flush(self, timeout_s: float) -> bool:
        """Write waiting data now. Return whether that is done, and the disk took it."""
        deadline = time.monotonic() + timeout_s
        self._poke()
        while True:
            with self._changed:
                waits, stopped = bool(self._queue) or self._flying_bytes > 0, bool(self._stopped)
            if not waits or stopped or time.monotonic() > deadline:
                return not waits
            time.sleep(0.002)

    def close(self, deadline_s: float = CLOSE_S) -> bool:
        """Write waiting data and stop. Return whether that is done; if not, it continues in the background."""
        with self._changed:
            self._ending = True
        self._poke()
        if self._scribe is None:
            self.files.release()
            return True
        return self._finished.wait(deadline_s)

    @property
    def is_complete(self) -> bool:
        """Whether the writer has finished without losses."""
        return self._finished.is_set() and not self.given_up

    @property
    def is_closing(self) -> bool:
        """Whether it writes the rest of the run now, and neither a full disk nor a folder that hangs is in its way."""
        waits = self._ending and not self._finished.is_set() and not self._stopped
        return waits and self._clock() - self._turn_at <= HANG_S

    @property
    def durable(self) -> int:
        """The highest number on the wire that is on disk, that of the end included; earlier losses are counted."""
        return self._durable

    @property
    def given_up(self) -> str | None:
        """Why an ended run was not written in full; None if it was, or may still be."""
        if not self._finished.is_set():
            return None
        return self._stopped or (self._loss() if self._lost else None)

    def _loss(self) -> str:
        return f"{self._lost:,} frames and snapshots were lost while the disk took nothing, or too little"

    def miss(self, count: int) -> None:
        """Count the records that an earlier, killed server had acknowledged and lost."""
        with self._changed:
            self._missing += count

    @property
    def events_seen(self) -> int:
        """The number of the store's events that were written."""
        return self._events_seen

    def abandon(self) -> None:
        """Stop writing in a forked child, without waiting for locks of the parent."""
        self._changed = threading.Condition()
        self._queue.clear()
        self._ending = True
        self._scribe = None
        self.files.release()

    def write_part(self) -> bool:
        """Write one part; called by the scribe. Return False after the last one."""
        with self._changed:
            ending = self._ending
        self.write()
        with contextlib.suppress(Exception):
            if self.files.is_open:
                self._after_part(ending)
        self._turn_at, self._hangs = self._clock(), False
        if ending:
            self.files.release()
            self._finished.set()
        return not ending

    def write(self) -> None:
        """Write all waiting data as one part; called by the thread. No exception escapes."""
        with self._changed:
            if self._stopped and self._clock() < self._try_at and not self._ending:
                self._drop_excess()
                return
            records, end, ending = list(self._queue), self._end, self._ending
            self._queue.clear()
            self.queued_bytes, self._flying_bytes = 0, self.queued_bytes
        try:
            self._write(records, end, ending)
        except Exception as error:
            self._stop(records, _sentence(error))
        else:
            with self._changed:
                self._written += len(records)
                self._durable = self._acknowledged if end is None else max(self._acknowledged, end.number)
                self._stopped, self._flying_bytes = None, 0
            self.files.merge()
        self._report_lost(ending)

    def _report_lost(self, ending: bool) -> None:
        """Say how many records were lost, once the disk takes new ones, or none will come."""
        if self._lost > self._lost_told and (ending or not self._stopped):
            self._lost_told = self._lost
            self._tell("not-kept", f"{self._loss()}: they are missing from {self.folder}")

    def _drop_excess(self) -> None:
        """If the disk is full, keep the newest records, up to one part, and drop the rest."""
        while self._queue and (self.queued_bytes > PART_BYTES or self._ending):
            self.queued_bytes -= size_of(self._queue.popleft().record)
            self._lost += 1

    def _stop(self, records: list[_Entry], why: str) -> None:
        with self._changed:
            self._queue.extendleft(reversed(records))
            self.queued_bytes, self._flying_bytes = self.queued_bytes + self._flying_bytes, 0
            self._drop_excess()
            self._try_at = self._clock() + self._retry_s
            told, self._stopped = self._stopped, why
        if not told:
            self._tell("keep-stopped", f"the run is no longer written to {self.folder}: {why}")

    def _write(self, records: list[_Entry], end: EndItem | None, ending: bool) -> None:
        if not self.files.is_open:
            self.files.open()
            self._acknowledged = max(self._acknowledged, self.files.before.acknowledged)
            self._write_run_file()
        if self._is_full():
            self._make_room()
            if self._is_full():
                raise OSError(self._at_limit(self._limit))
        taps = self._store.taps()
        self.files.write_whole("taps", taps.taps, taps_table)
        for name, rows in (
            ("modules", tuple(self._store.modules())),
            ("coverage", tuple(self._store.coverage())),
            ("hooks", self._store.hooks()),
        ):
            self.files.write_whole(name, rows, partial(records_table, name))
        first = self.files.first_frame
        frames = [
            (record.number if self._numbered else first + record.frame, record.record)
            for record in records
            if isinstance(record.record, Frame)
        ]
        tables = frame_tables(frames, taps) if frames else {}
        snapshots = [(record.number, record.record) for record in records if isinstance(record.record, Snapshot)]
        if snapshots:
            tables["snapshots"] = snapshots_table(snapshots)
        seen, events = self._store.events_after(self._events_seen)
        if events:
            tables["events"] = records_table("events", events)
        numbers = [record.number for record in records]
        self._acknowledged = max([self._acknowledged, *numbers])
        if "steps" in tables:
            tables["steps"] = tables["steps"].replace_schema_metadata(self._disk_counters(len(records)).as_metadata())
        self.files.write_part(tables)
        self._events_seen, self._end_on_disk = seen, end
        self._write_run_file(len(records), ending)

    def _is_full(self) -> bool:
        return self.files.nbytes + self._used_elsewhere() >= self._limit

    def _disk_counters(self, more: int = 0) -> DiskCounters:
        """Return this run's counters, including earlier writers and `more` that is being written."""
        before, lost = self.files.before, self._lost + self._missing
        return DiskCounters(self._acknowledged, before.written + self._written + more, before.lost + lost)

    def _write_run_file(self, more: int = 0, finished: bool = False) -> None:
        counters, steps = self._disk_counters(more), self._store.steps()
        self.files.write_run_file(counters, self._end_on_disk, steps, self._store.labels(), finished)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A waiting record: its position among this writer's frames, and its number on the wire."""

    frame: int
    number: int
    record: Frame | Snapshot


def _sentence(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


logger = logging.getLogger("hookcore")

SINK_CLOSE_S: Final = 10.0  # a process that ends before its values are on disk loses them, so it is worth the wait


class ArchiveSink(Sink):
    """Puts frames into a store of this process, and into a folder on disk; the writer gets modules from the store."""

    def __init__(self, store: Store, folder: str, info: RunInfo) -> None:
        self._memory = StoreSink(store)
        self._info = info
        self._writer = ArchiveWriter(folder, info, store)
        self._failure: Failure | None = None
        self._settled: Settled | None = None

    def subscribe(self, on_command: Callable[[Command], None]) -> None:
        self._memory.subscribe(on_command)

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        self._memory.describe(modules, coverage, hooks)

    def send(self, record: Frame | Snapshot) -> None:
        self._memory.send(record)
        self._writer.take(record)

    def send_together(self, frames: Sequence[Frame]) -> bool:
        self._memory.send_together(frames)
        for frame in frames:
            self._writer.take(frame)
        return True

    @property
    def incidents_version(self) -> int:
        return self._memory.incidents_version

    def locate(self, place: Place) -> None:
        follower = self._memory.store.follower
        if follower is not None:
            follower.take_turns(place.rank)  # as when the saved run is read
        self._inform(place=place)

    def learn(self, description: Mapping[str, Any]) -> None:
        self._inform(**description)

    def follow_settings(self, settled: Settled) -> None:
        self._settled = settled

    def _inform(self, **changes: Any) -> None:
        if self._settled is not None:
            changes["settings"] = plain(self._settled())
        self._info = structs.replace(self._info, **changes)
        self._writer.inform(self._info)

    def fail(self, failure: Failure) -> None:
        self._memory.fail(failure)
        self._failure = failure

    def flush(self, timeout_s: float) -> bool:
        return self._writer.flush(timeout_s)

    def close(self) -> None:
        """Write the rest."""
        if not self._memory.is_closed:
            self._memory.close()
            self._inform()
            self._writer.take(EndItem(0, self._memory.store.steps().newest or 0, self._failure))
            if not self._writer.close(SINK_CLOSE_S):
                logger.warning("hookcore: the run's folder is incomplete: writing it took more than %g s", SINK_CLOSE_S)

    def abandon(self) -> None:
        self._writer.abandon()

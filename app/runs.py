"""The runs that a server shows: each with its store, its accounts, and the commands that wait for its trainer.

Memory is given by use. When it is scarce, runs that are whole on disk leave it first, then idle runs become coarser.
Only then is a run removed, and that is announced.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from hookcore.errors import HookcoreError
from hookcore.failures import event_of
from hookcore.records import Command, Event, Failure, Frame, Severity, Snapshot, Tap
from hookcore.store import Store
from hookcore.wire import (
    MAX_TEXT,
    Answer,
    Batch,
    Books,
    EndItem,
    FrameItem,
    RunInfo,
    SnapshotItem,
    frame_of,
    snapshot_of,
)

from .findings import Finding, FindingsCache
from .settings import ServerSettings

State = Literal["live", "ended", "crashed", "interrupted", "lost"]
STATES: Final[tuple[State, ...]] = ("live", "crashed", "lost", "interrupted", "ended")  # the most urgent first
Why = Literal["deleted", "memory", "disk"]
MIN_RUN_BYTES: Final = 2**20
MAX_SHARE: Final = 4  # one run gets at most a quarter of the memory
FULL: Final = 0.9  # of the memory: from here on room is made
IDLE_S: Final = 300.0  # a run that was looked at since stays in memory
BALANCE_EVERY_S: Final = 1.0
MAX_GONE: Final = 200  # removed runs that are remembered
MAX_COMMANDS: Final = 256  # that wait for one trainer
SILENCE_S: Final = 5.0  # a trainer gives a sign of life every second
UNSENT_EVERY_S: Final = 10.0  # between two events about frames that were not sent
MAX_ACKNOWLEDGED: Final = 10_000  # findings and events of one run; the oldest are forgotten


class AwayError(HookcoreError):
    """A batch arrived for a run that is only on disk. The run is loaded before the trainer repeats the batch."""


class Changes:
    """Notifies followers of new data. A follower keeps a version number, never a queue."""

    def __init__(self) -> None:
        self.version = 0
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def tell(self) -> None:
        """Announce new data, from any thread."""
        with self._lock:
            self.version += 1
            waiting, self._waiting = self._waiting, {}
        for event, loop in waiting.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def wait_beyond(self, version: int, timeout_s: float) -> int:
        """Return the version once it is above `version`, or the current one after the timeout."""
        event = asyncio.Event()
        with self._lock:
            if self.version > version:
                return self.version
            self._waiting[event] = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._waiting.pop(event, None)
        return self.version


class OnDisk(Protocol):
    """What is on disk of a run while it is written."""

    @property
    def durable(self) -> int:
        """The highest number on the wire of what is on disk."""

    def miss(self, count: int) -> None:
        """Count what a server before this one had acknowledged, and lost when it was killed."""


@dataclass(slots=True)
class Run:
    """One training process. All methods are thread-safe."""

    info: RunInfo
    store: Store
    numbers: itertools.count[int]
    changes: Changes
    clock: Callable[[], float] = time.monotonic
    lost_after_s: float = 15.0
    name: str = ""
    notes: str = ""
    kept: bool = False  # read from disk: no trainer is connected to it
    folder: Path | None = None  # where it is on disk
    loaded: bool = True  # False: it is on disk, and its store knows the range of steps only
    summary: dict[str, Any] = field(default_factory=dict)  # what the list shows of a run that is not loaded
    key_hash: str = ""  # of the trainer that may continue it
    seen_at: float = 0.0
    looked_at: float = float("-inf")
    failure: Failure | None = None
    ended_at_step: int | None = None
    acknowledged: int = -1
    described: int = -1
    books: Books = field(default_factory=Books)
    local: Callable[[Command], None] | None = None  # a trainer in this very process
    on_record: Callable[[Frame | Snapshot | EndItem, int], None] | None = None  # who writes the run to disk
    on_disk: OnDisk | None = None  # what is on disk of it while it is written
    on_edit: Callable[[], None] | None = None  # who writes name, notes and acknowledgements to disk
    writer: Any = None  # who wrote it to disk until it ended or was lost
    seen_events: int = 0  # those that were on disk when it was read
    stored: int | None = None  # frames and snapshots that were on disk when its trainer came back
    commands: deque[Command] = field(default_factory=lambda: deque(maxlen=MAX_COMMANDS))
    lock: threading.Lock = field(default_factory=threading.Lock)
    findings: FindingsCache = field(init=False)
    acknowledgements: dict[str, int] = field(default_factory=dict)  # by key, with the step up to which it holds
    _newest_command: int = -1  # the highest number of a command, of this server's or one before it
    _met: bool = False  # a batch has come
    _unsent: int = 0  # that the trainer dropped and no event has told of
    _unsent_due: float = 0.0

    def __post_init__(self) -> None:
        self.findings = FindingsCache(self.store)

    @property
    def id(self) -> str:
        """The id in addresses."""
        return self.info.id

    @property
    def state(self) -> State:
        """Whether its trainer is live, and if not, how the run ended."""
        if self.failure is not None:
            return self.failure.outcome
        if self.ended_at_step is not None:
            return "ended"
        if self.kept:
            return "lost"
        if self.local is None and self.clock() - self.seen_at > self.lost_after_s:
            return "lost"
        return "live"

    @property
    def finished(self) -> bool:
        """Whether no more data can arrive."""
        return self.state != "live"

    def swap(self, store: Store, loaded: bool) -> None:
        """Use another store: one loaded from disk, or an outline of one that is on disk."""
        self.store, self.loaded = store, loaded
        self.findings = FindingsCache(store)
        self.changes.tell()

    def ask(self, name: Literal["settings", "snapshot", "inventory"], **what: Any) -> Command:
        """Queue a command for the trainer and return it."""
        command = Command(self._new_number(), name, **what)
        if self.local is not None:
            self.local(command)
        else:
            with self.lock:
                self.commands.append(command)
        return command

    def _new_number(self) -> int:
        """Return a number above those of all commands that the trainer knows, whatever the clock says."""
        with self.lock:
            self._newest_command = max(next(self.numbers), self._newest_command + 1)
            return self._newest_command

    def ask_snapshots(self, taps: Sequence[Tap]) -> list[Command]:
        """Queue commands that the trainer receives together, so that it captures the tensors of one step."""
        commands = [Command(self._new_number(), "snapshot", tap=tap) for tap in taps]
        if self.local is not None:
            for command in commands:
                self.local(command)
        else:
            with self.lock:
                self.commands.extend(commands)
        return commands

    def acknowledge(self, key: str, yes: bool = True) -> None:
        """Acknowledge a finding or an event, or undo that."""
        with self.lock:
            self.acknowledgements.pop(key, None)
            if yes:
                self.acknowledgements[key] = self.store.steps().newest or 0
                while len(self.acknowledgements) > MAX_ACKNOWLEDGED:
                    del self.acknowledgements[next(iter(self.acknowledgements))]
        self.edited()

    def edited(self) -> None:
        """Announce and save a changed name, note, or acknowledgement."""
        if self.on_edit is not None:
            self.on_edit()
        self.changes.tell()

    def has_seen(self, finding: Finding) -> bool:
        """Return whether a finding was acknowledged since it began; a recurring one is new."""
        return finding.since_step <= self.acknowledgements.get(finding.key, -1)

    def take(self, batch: Batch) -> Answer:
        """File a batch. Repeated items are ignored; inconsistent data raises WireError."""
        with self.lock:
            if self.kept:
                raise AwayError(f"the run {self.id} has just left memory: send again")
            if batch.retained > self.acknowledged:
                # Lost with the server that acknowledged it. The trainer sends it again, and the rest after it.
                self.seen_at = self.clock()
                return self._answer()
            self._notice(batch.books)
            self.seen_at = self.clock()
            self.info, self.books = batch.run, batch.books
            self._newest_command = max(self._newest_command, batch.commands_done)
            while self.commands and self.commands[0].number <= batch.commands_done:
                self.commands.popleft()
            known = self.store.taps_announced
            if batch.taps_from <= known:
                self._take_all(batch, batch.taps[known - batch.taps_from :])
            answer = self._answer()
        self.changes.tell()
        return answer

    def _answer(self) -> Answer:
        return Answer(
            acknowledged=self.acknowledged,
            taps=self.store.taps_announced,
            described=self.described,
            commands=tuple(self.commands),
            durable=None if self.on_disk is None else self.on_disk.durable,
        )

    def _notice(self, books: Books) -> None:
        """Add events about lost or delayed data, because they explain a gap in the steps."""
        silent_s = self.clock() - self.seen_at
        if self._met and silent_s > SILENCE_S:
            say(self, "reconnected", f"the trainer is back after {silent_s:.0f} s without a sign of life")
        elif not self._met and self.stored is not None:
            self._notice_return(books.acknowledged - self.stored)
        elif not self._met and books.acknowledged:
            sent = f"{books.acknowledged:,} frames and snapshots"
            say(
                self,
                "reconnected",
                f"the trainer comes from a server that is gone, and with it {sent} that it sent there",
            )
        self._met = True
        self._unsent += max(0, sum(books.dropped.values()) - sum(self.books.dropped.values()))
        if self._unsent and self.clock() >= self._unsent_due:
            told = f"the trainer dropped {self._unsent:,} frames or snapshots that it could not send"
            say(self, "frame-dropped", told, "warning", self._unsent)
            self._unsent, self._unsent_due = 0, self.clock() + UNSENT_EVERY_S

    def _notice_return(self, missing: int) -> None:
        """Add an event: the server was restarted and continues the run from disk."""
        if missing > 0:
            if self.on_disk is not None:
                self.on_disk.miss(missing)  # or the next restart would tell of them again
            told = f"The server was restarted. {missing:,} frames and snapshots were not on disk yet and are lost."
            say(self, "reconnected", told, "warning", missing)
        else:
            say(self, "reconnected", "the server was restarted; nothing is missing")

    def _take_all(self, batch: Batch, new_taps: tuple[Tap, ...]) -> None:
        # All is read before anything is kept: a damaged batch leaves no trace.
        fresh = [item for item in batch.items if item.number > self.acknowledged]
        records = [_record_of(item) for item in fresh]
        if new_taps:
            self.store.announce(new_taps)
        described = batch.description
        if described is not None and described.version > self.described:
            self.store.describe(described.modules, described.coverage, described.hooks)
            self.described = described.version
        for item, record in zip(fresh, records, strict=True):
            if item.number > self.acknowledged:
                self._keep(record, item.number)
                self.acknowledged = item.number

    def take_record(self, record: Frame | Snapshot | EndItem) -> None:
        """File a record of a trainer in this process."""
        with self.lock:
            self.seen_at = self.clock()
            self._keep(record)
        self.changes.tell()

    def _keep(self, record: Frame | Snapshot | EndItem, number: int = -1) -> None:
        if isinstance(record, EndItem):
            self.ended_at_step, self.failure = record.step, record.failure
            if record.failure is not None:
                self.store.add_event(event_of(record.failure))
        elif isinstance(record, Snapshot):
            self.store.add_snapshot(record)
        else:
            self.store.append(record)
        if self.on_record is not None:
            self.on_record(record, number)


def _record_of(item: FrameItem | SnapshotItem | EndItem) -> Frame | Snapshot | EndItem:
    if isinstance(item, FrameItem):
        return frame_of(item)
    return snapshot_of(item) if isinstance(item, SnapshotItem) else item


class Disk(Protocol):
    """Writes runs to disk and loads them."""

    def load(self, run: Run) -> None:
        """Load a run from disk into memory."""

    def is_whole(self, run: Run) -> bool:
        """Return whether all of a run is on disk, so that it can leave memory."""

    def release(self, run: Run) -> None:
        """Write the rest of a run and close its files."""

    def discard(self, run: Run, why: Why) -> None:
        """Move a run's folder to the trash."""

    def restore(self, run: Run) -> None:
        """Restore a run's folder from the trash."""


@dataclass(slots=True)
class Gone:
    """A removed run. It can be restored as long as there is a `run`."""

    id: str
    name: str
    at_s: float
    why: Why
    run: Run | None


class Runs:
    """All runs of a server, within its memory."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.changes = Changes()
        self.disk: Disk | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._loading = threading.Lock()  # one run at a time is read from disk
        self._runs: dict[str, Run] = {}
        self._gone: dict[str, Gone] = {}
        self._removed = 0
        self._balanced_at = float("-inf")
        # Far above the places by which snapshots without a command are numbered.
        self._numbers = itertools.count(int(time.time() * 1000))

    def now(self) -> float:
        """Return the time for deciding whether runs are idle or lost."""
        return self._clock()

    @property
    def removed(self) -> int:
        """The number of runs that were removed to make room."""
        return self._removed

    def all(self) -> list[Run]:
        """Return all runs, newest first, including those on disk."""
        with self._lock:
            return sorted(self._runs.values(), key=lambda run: (run.info.started_s, run.id), reverse=True)

    def gone(self) -> list[Gone]:
        """Return the removed runs, latest removal first."""
        with self._lock:
            return sorted(self._gone.values(), key=lambda gone: gone.at_s, reverse=True)

    def get(self, run_id: str) -> Run | None:
        """Return a run by its id, without loading it from disk."""
        return self._runs.get(run_id)

    def find(self, run_id: str) -> Run | None:
        """Return a run by its id, loaded from disk if needed. Not for the event loop."""
        run = self._runs.get(run_id)
        return None if run is None else self.read(run)

    def read(self, run: Run) -> Run:
        """Return the run with all its values in memory."""
        run.looked_at = self._clock()
        if not run.loaded and self.disk is not None:
            with self._loading:
                if not run.loaded:
                    self.disk.load(run)
            self.balance(spare=run)
        return run

    def open(self, info: RunInfo) -> Run | None:
        """Return a trainer's run, created if needed; None if the server is full of live runs."""
        with self._lock:
            run = self._runs.get(info.id)
            if run is not None:
                return run
            if not self._has_place():
                return None
            run = self._new(info, self.store_bytes(info.memory))
            self._runs[info.id] = run
        self.balance(spare=run)
        self.changes.tell()
        return run

    def open_local(self, info: RunInfo, memory: int, obey: Callable[[Command], None]) -> Run:
        """Return the run of a trainer in this process, which has its own memory and is never rejected."""
        run = self._new(info, memory)
        run.local = obey
        self.add(run)
        return run

    def _new(self, info: RunInfo, memory: int) -> Run:
        run = Run(info, Store(memory), self._numbers, Changes(), self._clock, self.settings.lost_after_s)
        run.seen_at = self._clock()
        run.name = info.name[:MAX_TEXT] or info.id
        return run

    def store_bytes(self, asked: int) -> int:
        """Return the limit of a run's store: as requested, but at most a quarter of the memory."""
        most = self.settings.memory // MAX_SHARE
        return max(min(asked or most, most), MIN_RUN_BYTES)

    def known(self, info: RunInfo) -> Run:
        """Return a run on disk, as the list shows it."""
        run = self._new(info, MIN_RUN_BYTES)
        run.kept, run.loaded = True, False
        return run

    def add(self, run: Run) -> None:
        """List a run from elsewhere: loaded from a file, or trained in this process."""
        with self._lock:
            self._runs[run.id] = run
        self.changes.tell()

    def add_known(self, run: Run) -> Run:
        """List a run on disk, unless its id is listed already."""
        with self._lock:
            found = self._runs.setdefault(run.id, run)
        self.changes.tell()
        return found

    def remove(self, run_id: str, why: Why = "deleted") -> bool:
        """Take a run off the list; False if there is none. It can be restored until its room is needed.

        A trainer that still sends starts the run again.
        """
        with self._lock:
            run = self._runs.pop(run_id, None)
        if run is None:
            return False
        self.put_aside(run, why)
        if self.disk is not None:
            self.disk.discard(run, why)
            self._leave(run)
        self.changes.tell()
        return True

    def drop(self, run: Run) -> None:
        """Remove a run that has no data."""
        with self._lock:
            self._runs.pop(run.id, None)
        if self.disk is not None:
            self.disk.release(run)
        self.changes.tell()

    def put_aside(self, run: Run, why: Why, at_s: float | None = None) -> None:
        """Remember a removed run; with `at_s`, one that was removed before this server started."""
        with self._lock:
            self._gone.pop(run.id, None)
            self._gone[run.id] = Gone(run.id, run.name, time.time() if at_s is None else at_s, why, run)
            self._removed += why != "deleted" and at_s is None
            while len(self._gone) > MAX_GONE:
                del self._gone[next(iter(self._gone))]

    def forget(self, folder_name: str) -> None:
        """Forget a removed run whose folder was deleted to make room."""
        for gone in list(self._gone.values()):
            if gone.run is not None and gone.run.folder is not None and gone.run.folder.name == folder_name:
                gone.run = None
        self.changes.tell()

    def restore(self, run_id: str) -> Run | None:
        """Restore a removed run; return None if that is not possible."""
        with self._lock:
            gone = self._gone.get(run_id)
            if gone is None or gone.run is None or run_id in self._runs:
                return None
            run = gone.run
            del self._gone[run_id]
            self._runs[run_id] = run
        run.looked_at = self._clock()
        if self.disk is not None:
            self.disk.restore(run)
        self.changes.tell()
        return run

    # -- memory -----------------------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Return the memory of all runs, including those that can be restored."""
        gone = [each.run for each in list(self._gone.values()) if each.run is not None]
        return sum(run.store.usage().nbytes for run in [*self._runs.values(), *gone] if run.loaded)

    def _has_place(self) -> bool:
        """Return whether there is room for another run; unload idle runs if needed (the lock must be held)."""
        loaded = [run for run in self._runs.values() if run.loaded]
        if len(loaded) < self.settings.max_runs:
            return self.used_bytes < self.settings.memory or self._has_idle()
        for run in self._idle(loaded):
            self._unload(run) or self._evict(run)
            return True
        return False

    def _has_idle(self) -> bool:
        return any(run.finished for run in self._runs.values() if run.loaded)

    def balance(self, spare: Run | None = None, at_once: bool = True) -> None:
        """Keep the memory within its limit, with the mildest sufficient means."""
        now = self._clock()
        if not at_once and 0 <= now - self._balanced_at < BALANCE_EVERY_S:
            return
        self._balanced_at = now
        limit = int(self.settings.memory * FULL)
        if self.used_bytes <= limit:
            return
        with self._lock:
            self._make_room(limit, spare)
        self.changes.tell()

    def _make_room(self, limit: int, spare: Run | None) -> None:
        loaded = [run for run in self._runs.values() if run.loaded and run is not spare]
        idle = self._idle(loaded)
        live = sorted((run for run in loaded if not run.finished), key=_nbytes_of, reverse=True)
        means: tuple[tuple[Callable[[Run], bool], list[Run]], ...] = (
            (self._drop, [gone.run for gone in self._gone.values() if gone.run is not None and gone.run.loaded]),
            (self._unload, idle),
            (_shrink, sorted(idle, key=_nbytes_of, reverse=True)),
            (_shrink, live),
            (self._evict, idle),
        )
        for make, runs in means:
            for run in runs:
                if self.used_bytes <= limit:
                    return
                make(run)

    def _idle(self, loaded: list[Run]) -> list[Run]:
        """Return the finished runs in memory: unviewed ones first, and of these the oldest."""
        recent = self._clock() - IDLE_S
        finished = [run for run in loaded if run.finished]
        return sorted(finished, key=lambda run: (max(run.looked_at, recent), run.seen_at, run.info.started_s))

    def _drop(self, run: Run) -> bool:
        """Unload a removed run, which can still be restored from disk."""
        if not self._leave(run):
            self._gone[run.id].run = None
        return True

    def _leave(self, run: Run) -> bool:
        """Unload a run if all of it is on disk."""
        if self.disk is None or run.local is not None or not run.lock.acquire(blocking=False):
            return False  # a batch is being filed: the trainer is back
        try:
            if not self.disk.is_whole(run):
                return False
            run.swap(Store.outline(run.store.steps()), loaded=False)
            run.kept, run.writer = True, None
            return True
        finally:
            run.lock.release()

    def _unload(self, run: Run) -> bool:
        """Unload a run that is completely on disk; no data is lost."""
        if self._clock() - run.looked_at < IDLE_S:
            return False
        if run.state == "lost" and self.disk is not None:
            self.disk.release(run)  # it is whole soon
        return self._leave(run)

    def _evict(self, run: Run) -> bool:
        """Remove a run that is only in memory; the last resort (the lock must be held)."""
        if run.id not in self._runs or not run.loaded:
            return False
        if self._leave(run):
            return True
        del self._runs[run.id]
        self._gone[run.id] = Gone(run.id, run.name, time.time(), "memory", None)
        self._removed += 1
        if self.disk is not None:
            self.disk.release(run)
        return True


def _nbytes_of(run: Run) -> int:
    return run.store.usage().nbytes


def _shrink(run: Run) -> bool:
    """Merge older steps until the run takes half of its memory."""
    return run.store.shrink(_nbytes_of(run) // 2) > 0


_WHY: Final[dict[Why, str]] = {
    "deleted": "was deleted",
    "memory": "was removed to make room in memory",
    "disk": "was removed to make room on disk",
}


def why_gone(runs: Runs, run_id: str) -> str:
    """Return why a run was removed; empty if this server doesn't know the run."""
    gone = next((gone for gone in runs.gone() if gone.id == run_id), None)
    if gone is None:
        return ""
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(gone.at_s))
    undo = "To restore it, select Undo on the Runs page." if gone.run is not None else "It can't be restored."
    return f"The run {gone.name or gone.id} {_WHY[gone.why]} on {at}. {undo}"


def say(run: Run, name: str, message: str, severity: Severity = "info", count: int = 1) -> None:
    """Add an event of the server to those of the trainer."""
    run.store.add_event(Event(run.store.steps().newest or 0, time.time(), name, message, severity, count=count))
    run.changes.tell()

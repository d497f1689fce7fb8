"""The runs that a server shows: each with its store, its accounts, and the commands that wait for its trainer."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hookcore.records import Command, Event, Frame, Severity, Snapshot, Tap
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

from .attention import Attention, Finding
from .settings import ServerSettings

State = Literal["live", "ended", "lost", "kept"]
LEAST_RUN_BYTES: Final = 2**20
LARGEST_SHARE: Final = 4  # one run gets at most a quarter of the memory,
GOOD_SHARE: Final = 16  # and while older ones can make room at least a sixteenth
MAX_COMMANDS: Final = 256  # that wait for one trainer
SILENCE_S: Final = 5.0  # a trainer gives a sign of life every second
UNSENT_EVERY_S: Final = 10.0  # between two events about frames that were not sent
MAX_ACKNOWLEDGED: Final = 10_000  # findings and events of one run; the oldest are forgotten


class Changes:
    """Tells those who follow that something is new. A follower keeps a number, never a queue."""

    def __init__(self) -> None:
        self.version = 0
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def tell(self) -> None:
        """Something is new. From any thread."""
        with self._lock:
            self.version += 1
            waiting, self._waiting = self._waiting, {}
        for event, loop in waiting.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def wait_beyond(self, version: int, timeout_s: float) -> int:
        """The version once it is above `version`, or what it is when the time is over."""
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


@dataclass(slots=True)
class Run:
    """One training process. Everything may be called from any thread."""

    info: RunInfo
    store: Store
    numbers: itertools.count[int]
    changes: Changes
    clock: Callable[[], float] = time.monotonic
    lost_after_s: float = 15.0
    name: str = ""
    notes: str = ""
    kept: bool = False  # read from a file: no trainer belongs to it
    seen_at: float = 0.0
    ended_at_step: int | None = None
    acknowledged: int = -1
    described: int = -1
    books: Books = field(default_factory=Books)
    local: Callable[[Command], None] | None = None  # a trainer in this very process
    on_record: Callable[[Frame | Snapshot | EndItem], None] | None = None  # who writes the run to disk
    commands: deque[Command] = field(default_factory=lambda: deque(maxlen=MAX_COMMANDS))
    lock: threading.Lock = field(default_factory=threading.Lock)
    attention: Attention = field(init=False)
    acknowledgements: dict[str, int] = field(default_factory=dict)  # by key, with the step up to which it holds
    _newest_command: int = -1  # the highest number of a command, of this server's or one before it
    _met: bool = False  # a batch has come
    _unsent: int = 0  # that the trainer dropped and no event has told of
    _unsent_due: float = 0.0

    def __post_init__(self) -> None:
        self.attention = Attention(self.store)

    @property
    def id(self) -> str:
        """Its name in addresses."""
        return self.info.id

    @property
    def state(self) -> State:
        """Whether its trainer is there."""
        if self.kept:
            return "kept"
        if self.ended_at_step is not None:
            return "ended"
        if self.local is None and self.clock() - self.seen_at > self.lost_after_s:
            return "lost"
        return "live"

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be expected of it."""
        return self.state in ("ended", "kept", "lost")

    @property
    def claimed_bytes(self) -> int:
        """What it may come to take in memory; of a run that grows no more that is what it takes."""
        usage = self.store.usage()
        return usage.nbytes if self.state in ("ended", "kept") else usage.max_bytes

    def ask(self, name: Literal["settings", "snapshot", "inventory"], **what: Any) -> Command:
        """A command for the trainer; its effect shows once the trainer obeyed."""
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
        """Commands that the trainer gets all at once, so that it keeps the tensors of one step."""
        commands = [Command(self._new_number(), "snapshot", tap=tap) for tap in taps]
        if self.local is not None:
            for command in commands:
                self.local(command)
        else:
            with self.lock:
                self.commands.extend(commands)
        return commands

    def acknowledge(self, key: str, yes: bool = True) -> None:
        """Notes that somebody saw a finding or an event, or takes that back."""
        with self.lock:
            self.acknowledgements.pop(key, None)
            if yes:
                self.acknowledgements[key] = self.store.steps().newest or 0
                while len(self.acknowledgements) > MAX_ACKNOWLEDGED:
                    del self.acknowledgements[next(iter(self.acknowledgements))]
        self.changes.tell()

    def has_seen(self, finding: Finding) -> bool:
        """Whether a finding was acknowledged since it began: what comes again is new."""
        return finding.since_step <= self.acknowledgements.get(finding.key, -1)

    def take(self, batch: Batch) -> Answer:
        """Files a batch. What was taken before is not taken again; what does not fit together raises WireError."""
        with self.lock:
            self._notice(batch.books)
            self.seen_at = self.clock()
            self.info, self.books = batch.run, batch.books
            self._newest_command = max(self._newest_command, batch.commands_done)
            while self.commands and self.commands[0].number <= batch.commands_done:
                self.commands.popleft()
            known = self.store.taps_announced
            if batch.taps_from <= known:
                self._take_all(batch, batch.taps[known - batch.taps_from :])
            answer = Answer(
                acknowledged=self.acknowledged,
                taps=self.store.taps_announced,
                described=self.described,
                commands=tuple(self.commands),
            )
        self.changes.tell()
        return answer

    def _notice(self, books: Books) -> None:
        """Puts what happened on the way to here among the events: it explains a hole in the steps."""
        silent_s = self.clock() - self.seen_at
        if self._met and silent_s > SILENCE_S:
            say(self, "reconnected", f"the trainer is back after {silent_s:.0f} s without a sign of life")
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
                self._keep(record)
                self.acknowledged = item.number

    def take_record(self, record: Frame | Snapshot | EndItem) -> None:
        """Files a record of a trainer in this very process."""
        with self.lock:
            self.seen_at = self.clock()
            self._keep(record)
        self.changes.tell()

    def _keep(self, record: Frame | Snapshot | EndItem) -> None:
        if isinstance(record, EndItem):
            self.ended_at_step = record.step
        elif isinstance(record, Snapshot):
            self.store.add_snapshot(record)
        else:
            self.store.append(record)
        if self.on_record is not None:
            self.on_record(record)


def _record_of(item: FrameItem | SnapshotItem | EndItem) -> Frame | Snapshot | EndItem:
    if isinstance(item, FrameItem):
        return frame_of(item)
    return snapshot_of(item) if isinstance(item, SnapshotItem) else item


class Runs:
    """All runs of a server, within its memory."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.changes = Changes()
        self.removed = 0
        self.on_removed: Callable[[Run], None] = lambda run: None  # the one who writes runs to disk lets go of it
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, Run] = {}
        # Far above the places by which snapshots without a command are numbered.
        self._numbers = itertools.count(int(time.time() * 1000))

    def all(self) -> list[Run]:
        """All runs, the newest first."""
        with self._lock:
            return sorted(self._runs.values(), key=lambda run: (run.info.started_s, run.id), reverse=True)

    def get(self, run_id: str) -> Run | None:
        """A run by its id."""
        return self._runs.get(run_id)

    def open(self, info: RunInfo) -> Run | None:
        """The run of a trainer, a new one if need be; None where the server is full of live runs."""
        with self._lock:
            run = self._runs.get(info.id)
            if run is not None and not run.kept:
                return run
            self._runs.pop(info.id, None)  # shown from a file, and now its trainer is back
            room = self._make_room(info.memory)
            if room is None:
                return None
            run = Run(info, Store(room), self._numbers, Changes(), self._clock, self.settings.lost_after_s)
            run.seen_at = self._clock()
            run.name = info.name[:MAX_TEXT] or info.id
            self._runs[info.id] = run
        self.changes.tell()
        return run

    def open_local(self, info: RunInfo, memory: int, obey: Callable[[Command], None]) -> Run:
        """The run of a trainer in this process, which has its own memory and is never refused."""
        run = Run(info, Store(memory), self._numbers, Changes(), self._clock, self.settings.lost_after_s, local=obey)
        run.seen_at = self._clock()
        run.name = info.name[:MAX_TEXT] or info.id
        self.add(run)
        return run

    def add(self, run: Run) -> None:
        """Shows a run that was made elsewhere: read from a file, or trained in this process."""
        with self._lock:
            self._runs[run.id] = run
        self.changes.tell()

    def remove(self, run_id: str) -> bool:
        """Forgets a run; False where there is none. A trainer that still sends makes it anew."""
        with self._lock:
            found = self._runs.pop(run_id, None)
            if found is not None:
                self.on_removed(found)
        self.changes.tell()
        return found is not None

    @property
    def free_bytes(self) -> int:
        """What no run has claimed."""
        return self.settings.memory - sum(run.claimed_bytes for run in self._runs.values())

    def _make_room(self, asked: int) -> int | None:
        """The bytes a new run gets; runs that ended make room where it would be too little, the oldest first."""
        wanted = min(asked or self.settings.memory, self.settings.memory // LARGEST_SHARE)
        enough = min(wanted, self.settings.memory // GOOD_SHARE)
        while (offered := self._offer()) is None or offered < enough:
            oldest = min(
                (run for run in self._runs.values() if run.finished), key=lambda run: run.seen_at, default=None
            )
            if oldest is None:
                break
            del self._runs[oldest.id]
            self.on_removed(oldest)
            self.removed += 1
        return None if offered is None else max(min(wanted, offered), LEAST_RUN_BYTES)

    def _offer(self) -> int | None:
        """Half of what is free beside a least share for every run that may still come; None where all is taken."""
        least = self.settings.memory // (2 * self.settings.max_runs)
        left, free = self.settings.max_runs - len(self._runs) - 1, self.free_bytes
        return None if left < 0 or free < least else max(least, (free - least * left) // 2)


def say(run: Run, name: str, message: str, severity: Severity = "info", count: int = 1) -> None:
    """Puts an event of the server's own beside those of the trainer."""
    run.store.add_event(Event(run.store.steps().newest or 0, time.time(), name, message, severity, count=count))
    run.changes.tell()

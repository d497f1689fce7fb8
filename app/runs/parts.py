"""The parts of a run: edits by readers, its state on disk, signs of life, commands that wait, and followers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import anyio

from hookcore.findings import Choices
from hookcore.reading import Quiet
from hookcore.records import Command, Failure, Frame, Severity, Snapshot
from hookcore.records.vocabulary import counted
from hookcore.records.wire import DeliveryCounters, EndItem, FrameItem, SnapshotItem, frame_of, snapshot_of
from hookcore.store import Store

Record = Frame | Snapshot | EndItem


class OnDisk(Protocol):
    """The part of a run that is on disk while it is being written."""

    @property
    def durable(self) -> int:
        """The highest number on the wire that is on disk, that of the end included."""

    @property
    def given_up(self) -> str | None:
        """Why an ended run was not written in full; None if it was, or may still be."""

    def room_for(self, records: Sequence[Record]) -> int:
        """Return how many of these records can be taken now, before the disk has to catch up."""

    def miss(self, count: int) -> None:
        """Count what an earlier server had acknowledged, and lost when it was killed."""


@dataclass(slots=True)
class Edits:
    """The properties of a run that readers can change, except its name. Saved with the run."""

    notes: str = ""
    tags: tuple[str, ...] = ()
    group: str = ""
    archived: bool = False  # the list leaves it out
    quiet: Quiet = field(default_factory=Quiet)  # acknowledgements and mutes
    annotations: dict[int, str] = field(default_factory=dict)  # of readers, by step; replaced, never changed
    rule_changes: list[tuple[int, Choices]] = field(default_factory=list)  # of thresholds, by the step before them
    count: int = 0  # of edits since the server started, of the name, too

    def follow(self, other: Edits) -> None:
        """Take the edits of another rank, or of all ranks together."""
        self.notes, self.tags, self.group, self.archived = other.notes, other.tags, other.group, other.archived
        self.quiet, self.annotations, self.rule_changes = other.quiet, other.annotations, other.rule_changes


@dataclass(slots=True)
class Saved:
    """The state of a run on disk, and its writer."""

    folder: Path | None = None
    key_hash: str = ""  # of the trainer that can continue it
    from_disk: bool = False  # read from disk: no trainer is connected to it
    is_awaited: bool = False  # it was read when the server started, and its trainer may come back
    is_back: bool = False  # its trainer is connected again, and sends what a killed server has lost
    summary: dict[str, Any] = field(default_factory=dict)  # data for the list, if the run isn't loaded
    page: dict[str, Any] | None = None  # its page file as it was last read or written here; None before that
    seen_events: int = 0  # the events that were on disk when it was read
    known_until: int = -1  # the newest step that was on disk when it was read
    count: int | None = None  # frames and snapshots that were on disk when its trainer returned
    on_record: Callable[[Record, int], None] | None = None  # writes the run to disk
    on_disk: OnDisk | None = None  # the part on disk while it is being written
    on_edit: Callable[[], None] | None = None  # writes what readers edited to disk
    writer: Any = None  # wrote it to disk until it ended or was lost

    @property
    def durable(self) -> int | None:
        """The highest number on the wire that a restart can't lose; None if nothing is saved."""
        return None if self.on_disk is None else self.on_disk.durable

    @property
    def given_up(self) -> str | None:
        """Why not all of the ended run is on disk; None if it is, or may still be."""
        return None if self.on_disk is None else self.on_disk.given_up

    def room_for(self, records: Sequence[Record]) -> int:
        """Return how many of these records can be taken now, before the disk has to catch up."""
        return len(records) if self.on_disk is None else self.on_disk.room_for(records)

    def remember(self, store: Store) -> None:
        """Note what has been read: it happened before this server, and isn't news."""
        newest = store.steps().newest
        self.seen_events, self.known_until = store.events_after(0)[0], -1 if newest is None else newest


FOLLOWED_S: Final = 5.0  # since somebody looked at a run; a program may ask every few seconds


@dataclass(slots=True)
class Signs:
    """When a run's trainer last sent something, and when it was last read."""

    clock: Callable[[], float] = time.monotonic
    lost_after_s: float = 15.0
    seen_at: float = 0.0
    looked_at: float = float("-inf")
    followed_at: float = float("-inf")  # by a live stream
    is_gone: bool = False  # its process has ended, as far as can be seen from here

    def see(self) -> None:
        """Note that the trainer has just sent something."""
        self.seen_at, self.is_gone = self.clock(), False

    def look(self) -> None:
        """Note that a reader is looking at the run now."""
        self.looked_at = self.clock()

    def follow(self) -> None:
        """Note that a live stream of the run, or of the list of runs, is open now."""
        self.followed_at = self.clock()

    @property
    def is_followed(self) -> bool:
        """Whether somebody may be looking at the run now."""
        return self.clock() - max(self.looked_at, self.followed_at) < FOLLOWED_S

    @property
    def silent_s(self) -> float:
        """The time since the trainer last sent something."""
        return self.clock() - self.seen_at


@dataclass(slots=True)
class Received:
    """The received data of a run, and its gaps."""

    acknowledged: int = -1
    sent: int = -1  # the highest item that is known to be on its way here, through ClickHouse
    described: int = -1
    counters: DeliveryCounters = field(default_factory=DeliveryCounters)
    behind: str = ""  # why its newest steps aren't here yet
    beginning: str = ""  # why something here doesn't begin with the run's first step; empty if everything does


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended. `step` is None while it runs, or if it just stopped."""

    step: int | None = None
    failure: Failure | None = None

    @property
    def is_known(self) -> bool:
        """Whether its trainer reported the end."""
        return self.step is not None or self.failure is not None


def record_of(item: FrameItem | SnapshotItem | EndItem) -> Record:
    """Return what an item contains. Raises WireError if it can't be true."""
    if isinstance(item, FrameItem):
        return frame_of(item)
    return snapshot_of(item) if isinstance(item, SnapshotItem) else item


# The commands that wait for one trainer.

MAX_COMMANDS: Final = 256  # that wait for one trainer
MAX_ASKED: Final = 4 * MAX_COMMANDS  # whose outcomes are known of one that has no event
OnCommand = Callable[[Command], None]
Ask = Literal["settings", "snapshot", "inventory", "capsule"]


class Relay(Protocol):
    """The way of commands to a trainer that sends its frames elsewhere."""

    def newest(self) -> int:
        """Return the highest number of a command that any server gave the trainer; -1 for none."""

    def send(self, commands: Sequence[Command]) -> None:
        """Store commands where the trainer's collector looks for them."""


class Commands(deque[Command]):
    """The waiting commands, oldest first.

    `local` takes those for a trainer in this process, and `relay` passes them on to one that sends elsewhere.
    """

    def __init__(self, numbers: Iterator[int], local: OnCommand | None = None) -> None:
        super().__init__()
        self.local = local
        self.relay: Relay | None = None
        self.asking = threading.Lock()  # held while commands get their numbers, and are handed on
        self.asked: dict[int, int] = {}  # the newest ones, and how many events there were before each
        self.dropped = 0
        self.newest_dropped: deque[int] = deque(maxlen=MAX_COMMANDS)  # their numbers
        self.waiting: tuple[int, ...] = ()  # their numbers, for readers without the run's lock
        self._numbers = numbers
        self._newest = -1  # the highest number of a command, of this server or an earlier one

    def make(self, name: Ask, contents: Sequence[dict[str, Any]]) -> list[Command]:
        """Return commands with numbers above those that the trainer knows, whatever the clock says."""
        made = []
        for what in contents:
            self._newest = max(next(self._numbers), self._newest + 1)
            made.append(Command(self._newest, name, **what))
        return made

    def enqueue(self, commands: Sequence[Command]) -> bool:
        """Queue commands; if too many wait, drop and count the oldest. Return whether these are the first dropped."""
        self.extend(commands)
        before = self.dropped
        while len(self) > MAX_COMMANDS:
            self.newest_dropped.append(self.popleft().number)
            self.dropped += 1
        self._list()
        return before == 0 < self.dropped

    def mark_asked(self, commands: Sequence[Command], events: int) -> None:
        """Note that commands were asked for, after this many events."""
        self.asked |= {command.number: events for command in commands}
        while len(self.asked) > MAX_ASKED:
            del self.asked[next(iter(self.asked))]

    @property
    def newest(self) -> int:
        """The highest number of a command, of this server or an earlier one."""
        return self._newest

    def number_above(self, number: int) -> None:
        """Number further commands above this one, because a trainer ignores lower ones."""
        self._newest = max(self._newest, number)

    def drop_received(self, number: int) -> None:
        """Forget the commands up to a number, which the trainer has received."""
        self.number_above(number)
        while self and self[0].number <= number:
            self.popleft()
        self._list()

    def _list(self) -> None:
        self.waiting = tuple(command.number for command in self)


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
            with anyio.move_on_after(timeout_s):
                await event.wait()
        finally:
            with self._lock:
                self._waiting.pop(event, None)
        return self.version


SILENCE_S: Final = 5.0  # a trainer gives a sign of life every second
UNSENT_EVERY_S: Final = 10.0  # between two events about frames that were not sent

Said = tuple[str, str, Severity, int]  # name, message, and count of an event


@dataclass(slots=True)
class Gaps:
    """The known gaps of one trainer."""

    met: bool = False  # a batch has arrived
    _unsent: int = 0  # dropped by the trainer, and not in an event yet
    _unsent_due: float = 0.0

    def greet(self, counters: DeliveryCounters, silent_s: float, restarted: bool, missing: int) -> Iterator[Said]:
        """Say where a trainer comes from that sends a batch. `missing`: what a server lost that was restarted."""
        met, self.met = self.met, True
        if met:
            if silent_s > SILENCE_S:
                yield "reconnected", f"the trainer is back after {silent_s:.0f} s without a message", "info", 1
        elif restarted:
            if missing > 0:
                lost = f"The server was restarted and lost {counted(missing, 'record')} that it hadn't written to disk."
                yield "reconnected", lost, "warning", missing
            else:
                yield "reconnected", "the server was restarted and lost nothing", "info", 1
        elif counters.acknowledged:
            sent = f"{counted(counters.acknowledged, 'record')} (frames or snapshots) that it received"
            yield "reconnected", f"the trainer's previous server is gone, and so are {sent}", "info", 1

    def count(self, before: DeliveryCounters, after: DeliveryCounters, now_s: float, is_last: bool) -> Iterator[Said]:
        """Say from time to time how much the trainer could not send."""
        self._unsent += max(0, sum(after.dropped.values()) - sum(before.dropped.values()))
        if self._unsent and (is_last or now_s >= self._unsent_due):
            lost = f"the trainer dropped {counted(self._unsent, 'record')} (frames or snapshots) that it could not send"
            yield "frame-dropped", lost, "warning", self._unsent
            self._unsent, self._unsent_due = 0, now_s + UNSENT_EVERY_S

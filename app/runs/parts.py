"""The parts of a run: edits by readers, its state on disk, signs of life, received data, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hookcore.findings import Choices
from hookcore.reading import Quiet
from hookcore.records import Failure, Frame, Snapshot
from hookcore.records.wire import DeliveryCounters, EndItem, FrameItem, SnapshotItem, frame_of, snapshot_of
from hookcore.store import Store

Record = Frame | Snapshot | EndItem


class OnDisk(Protocol):
    """The part of a run that is on disk while it is being written."""

    @property
    def durable(self) -> int:
        """The highest number on the wire that is on disk, that of the end included."""

    @property
    def given_up(self) -> str:
        """Why an ended run was not written in full; empty if it was, or may still be."""

    def has_room(self, record: Record) -> bool:
        """Return whether a record can be taken, or whether the disk has to catch up first."""

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
    def given_up(self) -> str:
        """Why not all of the ended run is on disk; empty if it is, or may still be."""
        return "" if self.on_disk is None else self.on_disk.given_up

    def has_room(self, record: Record) -> bool:
        """Return whether a record can be taken, or whether the disk has to catch up first."""
        return self.on_disk is None or self.on_disk.has_room(record)

    def remember(self, store: Store) -> None:
        """Note what has been read: it happened before this server, and isn't news."""
        newest = store.steps().newest
        self.seen_events, self.known_until = store.events_after(0)[0], -1 if newest is None else newest


@dataclass(slots=True)
class Signs:
    """When a run's trainer last sent something, and when it was last read."""

    clock: Callable[[], float] = time.monotonic
    lost_after_s: float = 15.0
    seen_at: float = 0.0
    looked_at: float = float("-inf")
    is_gone: bool = False  # its process has ended, as far as can be seen from here

    def see(self) -> None:
        """Note that the trainer has just sent something."""
        self.seen_at, self.is_gone = self.clock(), False

    def look(self) -> None:
        """Note that a reader is looking at the run now."""
        self.looked_at = self.clock()

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

"""The items of one run on their way to ClickHouse: checked, and collected until their steps are complete."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from hookcore.errors import WireError
from hookcore.records.wire import EndItem, FrameItem, Item, decode_batch, frame_of, snapshot_of

from ..clickhouse.names import day_of, number_of_run
from ..clickhouse.segments import Piece
from .cuts import Share, ranges_of
from .lane import Lane
from .spool import SpoolError
from .spoolfile import Record

SILENT_S: Final = 60.0  # without the trainer: the newest step counts as complete
REPLACED_S: Final = 3.0  # if its rank was started again in the meantime
STEP_BYTES: Final = 64 * 2**20  # of the newest step: with more, it counts as complete, too
ITEM_BYTES: Final = 1000  # of an item, besides its values, about


@dataclass(slots=True, eq=False)
class Feed:
    """One lane's items. Only the thread that cuts segments uses it."""

    lane: Lane
    recovered: int = -1  # the highest item of an earlier process, which may have inserted it
    began_here: bool = True  # this spool had its first item, and no other one
    has_said_so: bool = False  # other processes can know it from ClickHouse
    is_contested: bool = False  # other processes may have inserted items of this run
    shard: int = -1  # -1: not known yet
    read: int = -1  # the highest item that was read from the spool
    before: int = -1  # the newest step of the segments so far
    first_step: int = -1
    steps: int = 0  # different ones
    end: EndItem | None = None
    is_replaced: bool = False  # its rank was started again
    items: list[Item] = field(default_factory=list)  # that are in no segment yet
    rows: int = 0  # of these items
    nbytes: int = 0
    since: float | None = None  # when the first of these items could be inserted
    jobs: int = 0  # segments with items of this run that aren't inserted yet
    named_taps: int = 0  # whose names are in ClickHouse
    named_scalars: set[str] = field(default_factory=set)
    described: int = -1  # the version of the description that is
    signed: tuple[object, ...] = ()  # what the newest sign of life said
    version: int = 0  # of the newest one, of this process or another one

    @property
    def run(self) -> int:
        return number_of_run(self.lane.info.id)

    @property
    def day(self) -> int:
        """The day on which the run began, since 1970."""
        return day_of(self.lane.info.started_s)

    @property
    def origin(self) -> tuple[int, int]:
        """The rank and the attempt."""
        place = self.lane.info.place
        return (0, 0) if place is None else (place.rank, min(place.attempt, 2**32 - 1))

    def fill(self, most_bytes: int) -> int:
        """Read items from the spool, up to about this many bytes. Return the number of bytes read."""
        taken = 0
        for record in self.lane.records():
            if taken >= most_bytes:
                break
            if record.last > self.read:
                self._take(self._items_in([record]))
                self.read = self.lane.read_until = record.last
                taken += record.size
        if not self.items and not self.jobs:
            self.lane.on_stored(self.read)  # nothing of it could be read
        return taken

    def _items_in(self, records: Iterable[Record]) -> list[Item]:
        found: list[Item] = []
        for record in records:
            try:
                items = decode_batch(self.lane.spool.read(record)).items
            except (SpoolError, WireError):
                self.lane.lose([record], "spool-damaged")
            else:  # what the trainer repeated is in an earlier record
                found += [item for item in items if record.first <= item.number <= record.last]
        return found

    def _take(self, items: Iterable[Item]) -> None:
        for item in items:
            if item.number <= self.read or not self._is_sound(item):
                continue
            self.items.append(item)
            self._count(item, 1)
            self.end = item if isinstance(item, EndItem) else self.end

    def _count(self, item: Item, sign: int) -> None:
        self.rows += sign * _rows_of(item)
        self.nbytes += sign * _bytes_of(item)

    def _is_sound(self, item: Item) -> bool:
        try:
            if isinstance(item, FrameItem):
                frame_of(item)
            elif not isinstance(item, EndItem):
                snapshot_of(item)
        except WireError:
            self.lane.dropped["refused"] += 1
            return False
        return True

    def restart(self, before: int) -> None:
        """Read again the items that aren't stored, because nothing of some segments was inserted."""
        self.items, self.rows, self.nbytes, self.since = [], 0, 0, None
        self.read, self.before, self.jobs = self.lane.reread(), before, 0
        # The names may have been in a segment that was not inserted.
        self.named_taps, self.named_scalars, self.described = 0, set(), -1

    def complete(self) -> int:
        """Return how many of the items belong to steps of which no more parts are expected."""
        patience_s = REPLACED_S if self.is_replaced else SILENT_S
        is_over = self.lane.silent_s > patience_s or any(isinstance(item, EndItem) for item in self.items)
        steps = [item.step if isinstance(item, FrameItem) else -1 for item in self.items]
        newest = max(steps, default=-1)
        if is_over or newest < 0:
            return len(self.items)
        count = steps.index(newest)
        return count if sum(map(_bytes_of, self.items[count:])) <= STEP_BYTES else len(self.items)

    def ready(self) -> tuple[int, int]:
        """Return how many rows and bytes the complete steps have. The newest one is no reason to cut a segment."""
        waiting = self.items[self.complete() :]
        return self.rows - sum(map(_rows_of, waiting)), self.nbytes - sum(map(_bytes_of, waiting))

    def age_s(self, now: float) -> float | None:
        """Return for how long something could have been inserted; None if there is nothing.

        The newest step doesn't count: it always waits, so a run that goes on would always be old.
        """
        if not self.complete():
            return None
        self.since = now if self.since is None else self.since
        return now - self.since

    def share(self, count: int, stored: Collection[int]) -> tuple[Share, Piece]:
        """Return the first items as a part of a segment, without those that are stored already."""
        kept = [item for item in self.items[:count] if item.number not in stored]
        through = self.items[count].number - 1 if count < len(self.items) else self.read
        rank, attempt = self.origin
        about = self.lane.info.id, rank, attempt, len(self.lane.taps), self.before
        made = Share(*about, ranges_of(item.number for item in kept), through)
        return made, _piece_of(self, made, kept)

    def commit(self, count: int, is_cut: bool) -> None:
        """Let go of the first items: a segment has them, or ClickHouse had them all already."""
        taken, self.items = self.items[:count], self.items[count:]
        self.since = None
        for item in taken:
            self._count(item, -1)
        self._count_steps(taken)
        self.jobs += is_cut

    def _count_steps(self, items: Iterable[Item]) -> None:
        new = {item.step for item in items if isinstance(item, FrameItem) and item.step > self.before}
        if new:
            self.first_step = min(new) if self.first_step < 0 else self.first_step
            self.steps, self.before = self.steps + len(new), max(new)

    def repeat(self, share: Share) -> Piece:
        """Return what an earlier process put into a segment, and continue after it."""
        records = [record for record in self.lane.records() if record.first <= share.through]
        self.jobs += 1
        inside = [range(first, last + 1) for first, last in share.ranges]
        kept = [item for item in self._items_in(records) if any(item.number in each for each in inside)]
        kept = [item for item in kept if self._is_sound(item)]
        steps = [item.step for item in kept if isinstance(item, FrameItem)]
        self.read = self.lane.read_until = max(self.read, share.through)
        self.before = max(self.before, share.before, *steps, -1)
        return _piece_of(self, share, kept)


def _rows_of(item: Item) -> int:
    return len(item.taps) // 4 if isinstance(item, FrameItem) else 0


def _bytes_of(item: Item) -> int:
    if isinstance(item, FrameItem):
        return ITEM_BYTES + len(item.stats) + len(item.bins) + len(item.counts)
    return ITEM_BYTES + len(getattr(item, "values", b""))


def _piece_of(feed: Feed, share: Share, items: list[Item]) -> Piece:
    return Piece(feed.run, feed.day, share.rank, share.attempt, share.taps, share.before, items)

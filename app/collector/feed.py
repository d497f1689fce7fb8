"""The items of one run on their way to ClickHouse: which process inserts them, and which of them each segment has."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from hookcore.delivery.dashboard.private import read_regular, whole_file
from hookcore.errors import ArgumentError, HookcoreError, WireError
from hookcore.records.wire import EndItem, FrameItem, Item, decode_batch, frame_of, snapshot_of

from ..clickhouse.client import Shard
from ..clickhouse.cluster.sharing import versions_of
from ..clickhouse.schema import CLAIMS, RUNS, day_of, number_of_run
from ..clickhouse.writing import BEGUN, Claim, Piece, are_stored, begun_elsewhere, claims_block, claims_of, known_of
from .lanes import Lane
from .spool import Record, SpoolError

# Which items a segment has, on disk before it is first inserted, so that a restart repeats it with the same bytes.

logger = logging.getLogger("hookcore")

ID_FILE: Final = "id"
OPEN: Final = ".cut"  # may not be inserted completely
DONE: Final = ".inserted"  # the newest one stays, for its number
DAMAGED: Final = ".damaged"  # can't be read
SPARE: Final = "spare"  # room for a note that was taken before the disk was full
SPARE_BYTES: Final = 64 * 2**10
MAX_NOTE_BYTES: Final = 64 * 2**20
ID_BYTES: Final = 16
_ID: Final = re.compile(r"[0-9a-f]{32}")


class Share(msgspec.Struct, frozen=True):
    """The items of one run in a segment, and what their blocks depend on besides them."""

    run: str
    rank: int
    attempt: int
    taps: int
    before: int  # the newest step of earlier segments
    ranges: tuple[tuple[int, int], ...]  # of the items' numbers, inclusive
    through: int  # up to this item, nothing of the run is left to insert


class Cut(msgspec.Struct, frozen=True):
    """A segment: runs that began on one day, on one shard."""

    number: int
    shard: int
    day: int
    shares: tuple[Share, ...]


class CutError(HookcoreError):
    """The disk takes no note of a segment, so it can't be inserted."""


class Cuts:
    """The segments of one spool, by their numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = self._own_id()
        self._take_spare()
        notes = (path for ending in (OPEN, DONE, DAMAGED) for path in self._all(ending))
        self.next_number = 1 + max(map(_number_of, notes), default=-1)

    def _own_id(self) -> str:
        path = self.folder / ID_FILE
        if not os.path.lexists(path):
            with whole_file(path) as file:
                file.write(secrets.token_hex(ID_BYTES).encode())
        try:
            own_id = read_regular(path, 2 * ID_BYTES).decode()
        except (OSError, ValueError) as error:
            raise ArgumentError(f"{path} can't be read: {error}; give another folder") from None
        if not _ID.fullmatch(own_id):
            raise ArgumentError(
                f"{path} is damaged, so ClickHouse can't tell whose segments these are: give another folder"
            )
        return own_id

    @property
    def _spare(self) -> Path:
        return self.folder / SPARE

    def _take_spare(self) -> None:
        """Take room on the disk for one note: what fills the disk can only be inserted after a note."""
        if not self._spare.exists():
            with suppress(OSError), whole_file(self._spare) as file:
                file.write(b" " * SPARE_BYTES)

    def _all(self, ending: str) -> list[Path]:
        return sorted(path for path in self.folder.glob(f"*{ending}") if path.stem.isdigit())

    def unfinished(self) -> list[Cut]:
        """Return the segments of an earlier process that may not be inserted, oldest first.

        A note that can't be read is set aside. Its items are in the spool and become part of other segments.
        """
        cuts = []
        for path in self._all(OPEN):
            try:
                cuts.append(msgspec.json.decode(read_regular(path, MAX_NOTE_BYTES), type=Cut))
            except (OSError, ValueError, RecursionError) as error:
                os.replace(path, path.with_suffix(DAMAGED))
                logger.warning(
                    "hookcore: %s can't be read (%s). Its frames are inserted again; of those that an earlier process "
                    "had inserted in part, values may be missing or counted twice",
                    path,
                    error,
                )
        return cuts

    def cut(self, shard: int, day: int, shares: Sequence[Share]) -> Cut:
        """Note a new segment. Raises CutError if the disk takes nothing more."""
        made = Cut(self.next_number, shard, day, tuple(shares))
        content, path = msgspec.json.encode(made), self._path(made, OPEN)
        try:
            with whole_file(path) as file:
                file.write(content)
        except OSError as error:
            if not self._use_spare(content, path):
                raise CutError(f"can't write to {self.folder}: {error}") from None
        self.next_number += 1
        return made

    def _use_spare(self, content: bytes, path: Path) -> bool:
        """Write a note where there is room for it already. Until it has its name, it doesn't count."""
        if len(content) > SPARE_BYTES:
            return False
        try:
            with self._spare.open("r+b") as file:
                file.write(content.ljust(SPARE_BYTES))
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._spare, path)
        except OSError:
            return False
        return True

    def finish(self, cut: Cut) -> None:
        """Note that a segment is inserted. Any thread may, and may do it again after an error."""
        path = self._path(cut, OPEN)
        with suppress(FileNotFoundError):
            if path.stat().st_size == SPARE_BYTES and not self._spare.exists():
                self._path(cut, DONE).touch()  # which takes no room
                os.replace(path, self._spare)
            else:
                os.replace(path, self._path(cut, DONE))
        self._take_spare()
        for path in self._all(DONE):
            if _number_of(path) < cut.number:
                path.unlink(missing_ok=True)

    def _path(self, cut: Cut, ending: str) -> Path:
        return self.folder / f"{cut.number:012d}{ending}"


def _number_of(path: Path) -> int:
    return int(path.stem)


def ranges_of(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending numbers as ranges."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return tuple(ranges)


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
        sound: list[Item] = []
        for record in records:
            try:
                items = decode_batch(self.lane.spool.read(record)).items
            except (SpoolError, WireError):
                self.lane.lose([record], "spool-damaged")
            else:  # what the trainer repeated is in an earlier record
                sound += [item for item in items if record.first <= item.number <= record.last]
        return sound

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
        kept = [item for item in self._items_in(records) if any(item.number in numbers for numbers in inside)]
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


# Which process inserts a run: the one that has its first item, until another one claims the run.
#
# A trainer that goes to another process repeats items that the first one may have written to its spool. So a process
# that takes a run over claims it, and waits until whatever the first one had begun to insert must be there, or never
# will be. A process checks the claims before it inserts a run. So an item is stored once, however many processes have
# it.
#
# If the answer to the very first batch was lost, several processes have the first item. So before a process inserts
# anything of such a run, it says that it has it, and then looks who else did: of two, at least one sees the other, and
# takes over.

CLAIM_S: Final = 60  # from a claim to the first insert, and twice from one claim to the next


def hear_signs(shard: Shard, feeds: Sequence[Feed]) -> None:
    """Note the versions of the newest signs of life of runs that other processes may have given."""
    versions = versions_of(shard, RUNS, [feed.run for feed in feeds])
    for feed in feeds:
        feed.version = max(feed.version, versions.get(feed.run, 0))


class Homes:
    """Looks after the claims of one spool. Called by the thread that cuts segments."""

    def __init__(self, spool: str) -> None:
        self.spool = number_of_run(spool)

    def find(self, shards: Sequence[Shard], feed: Feed, first: int) -> int | None:
        """Return the shard that has something of a run whose first item here is `first`; note if the run began here."""
        for shard in shards:
            hear_signs(shard, [feed])
            home = known_of(shard, feed.run, first)
            if home is not None:
                feed.before = max(feed.before, home.newest_step)
                feed.first_step, feed.steps = home.first_step, home.steps
                feed.began_here = home.spool == self.spool
                return shard.number
        return None

    def ours(self, shard: Shard, feeds: Sequence[Feed]) -> list[Feed]:
        """Return the runs that may be inserted from here now, and claim others that have something to insert."""
        self._say_which_began(shard, [feed for feed in feeds if feed.began_here and not feed.has_said_so])
        claims = claims_of(shard, [feed.run for feed in feeds])
        ours = []
        for feed in feeds:
            claim = claims.get(feed.run)
            feed.is_contested = claim is not None or not feed.began_here
            if self._is_ours(feed, claim):
                ours.append(feed)
            elif claim is None or (claim.spool != self.spool and claim.age_s >= 2 * CLAIM_S):
                if are_stored(shard, feed.run, feed.items[: feed.complete()]):
                    ours.append(feed)  # nothing is left to insert, so that the run's new owner needn't wait
                    continue
                term = 1 if claim is None else claim.term + 1
                shard.insert(CLAIMS.name, claims_block([(feed.run, feed.day)], term, self.spool))
        hear_signs(shard, [feed for feed in feeds if feed.is_contested])
        return ours

    def _say_which_began(self, shard: Shard, feeds: Sequence[Feed]) -> None:
        """Say for other processes that runs began here, and note those that also began there."""
        if feeds:
            shard.insert(CLAIMS.name, claims_block([(feed.run, feed.day) for feed in feeds], BEGUN, self.spool))
            others = begun_elsewhere(shard, [feed.run for feed in feeds], self.spool)
            for feed in feeds:
                feed.has_said_so, feed.began_here = True, feed.run not in others

    def _is_ours(self, feed: Feed, claim: Claim | None) -> bool:
        return feed.began_here if claim is None else claim.spool == self.spool and claim.age_s >= CLAIM_S

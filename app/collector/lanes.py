"""The trainers of a collector: what each has sent, in memory and on disk, within limits."""

from __future__ import annotations

import hmac
import logging
import os
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from hookcore.delivery.dashboard.private import read_regular, whole_file
from hookcore.delivery.http.connection import SIGN_OF_LIFE_S, Pause
from hookcore.delivery.http.parcels import PARCEL_BYTES, Recipient
from hookcore.errors import ArgumentError, HookcoreError, WireError
from hookcore.platform import lock_file
from hookcore.records import Command, Tap
from hookcore.records.wire import (
    Batch,
    DeliveryCounters,
    Description,
    EndItem,
    Item,
    Receipt,
    RunInfo,
    decode_batch,
    encode,
)

from .spool import MAX_HEADS_BYTES, Record, Spool, SpoolError

MAX_ITEMS: Final = 1000  # of a batch
TRIM_BYTES: Final = 2**16
HEAD: Final = ".head"


@dataclass(slots=True, eq=False)
class Lane:
    """One trainer's data on its way. All methods can be called by any thread."""

    info: RunInfo
    spool: Spool
    _clock: Callable[[], float] = time.monotonic
    taps: tuple[Tap, ...] = ()
    description: Description | None = None
    acknowledged: int = -1  # the highest item in the spool, now or earlier
    _counters: DeliveryCounters = field(default_factory=DeliveryCounters)  # of the trainer
    commands_done: int = -1
    _seen_at: float = float("-inf")
    _opened_at: float = field(init=False)  # when this process began to listen to the trainer
    has_ended: bool = False
    dropped: Counter[str] = field(default_factory=Counter)  # items, by reason
    # what the server has said
    _recipient: Recipient = field(default_factory=Recipient)
    delivered: int = -1  # the highest item that it has
    commands: tuple[Command, ...] = ()
    _incidents: int = 0
    read_until: int = -1  # items up to this one are in memory, on their way to ClickHouse
    sent_at: float = float("-inf")
    trouble: str | None = None
    _pause: Pause = field(init=False)  # until the next attempt to send
    _is_gone: bool = False  # forgotten: a batch that comes now needs another lane
    _head_bytes: int = 0  # of the file with its taps and description
    lock: threading.RLock = field(default_factory=threading.RLock)
    _waiting: deque[Record] = field(default_factory=deque)
    # the server has them, but would lose them if it were killed
    _retained: deque[Record] = field(default_factory=deque)
    _only_in_memory: deque[Record] = field(default_factory=deque)  # on the way to ClickHouse, but no longer on disk
    _refused: set[int] = field(default_factory=set)  # items that the server will never take

    def __post_init__(self) -> None:
        self._opened_at, self._pause = self._clock(), Pause(self._clock)

    @property
    def progress(self) -> tuple[object, ...]:
        """The content of a sign of life, which is due when this has changed."""
        return self._seen_at, self.acknowledged, self.delivered, self.has_ended

    @property
    def silent_s(self) -> float:
        """How long the trainer has been silent. A process that has just started doesn't know of earlier silence."""
        return max(0.0, self._clock() - max(self._seen_at, self._opened_at))

    # -- from the trainer -------------------------------------------------------------------------------------------

    def take(self, batch: Batch, data: bytes | bytearray) -> Receipt | None:
        """Write a batch to the spool; None if this lane was just forgotten.

        Raises SpoolError if the disk takes nothing more; then nothing was taken.
        """
        with self.lock:
            if self._is_gone:
                return None
            if batch.retained > self.acknowledged:
                self._seen_at = self._clock()  # lost with an earlier spool: the trainer sends it again
                return self._answer()
            new: tuple[Tap, ...] = ()
            if batch.taps_from <= len(self.taps):
                new = batch.taps[len(self.taps) - batch.taps_from :]
                self._take(batch, data, new)
            self.info, self._counters = batch.run, batch.counters
            self.commands_done = max(self.commands_done, batch.commands_done)
            self._seen_at = self._clock()
            return self._answer()

    @property
    def _version(self) -> int:
        return -1 if self.description is None else self.description.version

    def _take(self, batch: Batch, data: bytes | bytearray, new: tuple[Tap, ...]) -> None:
        description = batch.description if batch.description and batch.description.version > self._version else None
        if new or description:  # before the items, which mean nothing without them
            self._write_head(self.taps + new, description or self.description)
        fresh = [item for item in batch.items if item.number > self.acknowledged]
        if fresh:
            record = self.spool.append(self.info.id, fresh[0].number, fresh[-1].number, len(fresh), data)
            self._waiting.append(record)
            self.acknowledged = record.last
            self.has_ended = isinstance(fresh[-1], EndItem)
        self.taps, self.description = self.taps + new, description or self.description

    def _answer(self) -> Receipt:
        return Receipt(
            acknowledged=self.acknowledged,
            taps=len(self.taps),
            described=self._version,
            commands=tuple(command for command in self.commands if command.number > self.commands_done),
            incidents=self._incidents,
            durable=self.acknowledged,
        )

    def _write_head(self, taps: tuple[Tap, ...], description: Description | None) -> None:
        head = encode(Batch(run=self.info, taps=taps, description=description, retained=self.acknowledged))
        self.spool.count_head(self._head_bytes, len(head))
        self._head_bytes = len(head)
        try:
            with whole_file(self._head_path) as file:
                os.chmod(file.fileno(), 0o600)  # it contains the trainer's key
                file.write(head)
        except OSError as error:
            raise SpoolError(f"can't write {self._head_path}: {error}") from None

    @property
    def _head_path(self) -> Path:
        return self.spool.folder / f"{self.info.id}{HEAD}"

    # -- from the disk ----------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: Path, spool: Spool, clock: Callable[[], float]) -> Lane:
        """Return the lane of an earlier process. Raises WireError or OSError if its head can't be read."""
        data = read_regular(path, MAX_HEADS_BYTES)
        head = decode_batch(data)
        if path.name != f"{head.run.id}{HEAD}":
            raise WireError(f"it is about a run of another name, {head.run.id[:80]!r}")
        spool.heads_nbytes += len(data)  # even if it is too much now
        lane = cls(head.run, spool, clock, taps=head.taps, description=head.description, acknowledged=head.retained)
        lane._head_bytes = len(data)
        return lane

    def restore(self, records: Sequence[Record]) -> None:
        """Take the records that an earlier process left."""
        with self.lock:
            records = self._without_trimmed(records)
            self._waiting.extend(records)
            self.acknowledged = max(self.acknowledged, *(record.last for record in records))
            with suppress(SpoolError, WireError):
                last = decode_batch(self.spool.read(records[-1]))
                self.info, self._counters, self.commands_done = last.run, last.counters, last.commands_done
                self.has_ended = isinstance(last.items[-1], EndItem)

    def _without_trimmed(self, records: Sequence[Record]) -> list[Record]:
        """Return the records in order, and release those of which the rest was written again: their file has both."""
        kept: dict[int, Record] = {}  # by their last item, which a record and its rest have in common
        for record in sorted(records, key=lambda record: (record.last, record.first)):
            if record.last in kept:
                self.spool.release(kept[record.last])
            kept[record.last] = record
        return list(kept.values())

    def leave(self) -> None:
        """Note on disk how much was taken, so that a trainer that returns later isn't asked for it again."""
        with self.lock, suppress(SpoolError):
            self._write_head(self.taps, self.description)

    def forget(self) -> None:
        """Remove the files of a run whose data the server has."""
        with self.lock, suppress(OSError):
            self._is_gone = True
            self.spool.count_head(self._head_bytes, 0)
            self._head_bytes = 0
            self._head_path.unlink()

    # -- to ClickHouse ----------------------------------------------------------------------------------------------

    def records(self) -> list[Record]:
        """Return what waits in the spool, oldest first."""
        with self.lock:
            return list(self._waiting)

    def on_stored(self, number: int) -> None:
        """Release all items up to this one, which are stored permanently."""
        with self.lock:
            self.delivered = max(self.delivered, number)
            while self._only_in_memory and self._only_in_memory[0].last <= self.delivered:
                self._only_in_memory.popleft()
            while self._waiting and self._waiting[0].last <= self.delivered:
                self.spool.release(self._waiting.popleft())
            if self._waiting and self._waiting[0].first <= self.delivered and self._waiting[0].size >= TRIM_BYTES:
                self._trim(self._waiting[0])

    def _trim(self, record: Record) -> None:
        """Rewrite the rest of a large batch. The newest step waits, and would keep all of the batch on a full disk."""
        with suppress(SpoolError, WireError):
            batch = decode_batch(self.spool.read(record))
            left = tuple(item for item in batch.items if item.number > self.delivered)
            data = encode(msgspec.structs.replace(batch, items=left, taps=(), description=None))
            if left and 2 * len(data) < record.size:
                kept = self.spool.append(self.info.id, left[0].number, left[-1].number, len(left), data)
                self._waiting[0] = kept
                self.spool.release(record)

    def reread(self) -> int:
        """Return the highest item that is stored, after which all must be read again: what memory had is lost."""
        with self.lock:
            self.read_until = self.delivered
            self.dropped["spool-full"] += self._left_in(self._only_in_memory)
            self._only_in_memory.clear()
            return self.delivered

    # -- to the server ----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of items that the server doesn't have."""
        return self._left_in(self._waiting) + self._left_in(self._only_in_memory)

    def _left_in(self, records: Iterable[Record]) -> int:
        """Return how many items of records, oldest first, neither the server has nor a refusal has cost."""
        last, left = max(self.delivered, *self._refused, -1), 0
        for record in records:
            left += record.count
            if record.first <= last:  # only a part of it may be left
                first = max(record.first, self.delivered + 1)
                refused = sum(first <= number <= record.last for number in self._refused)
                left += max(0, min(record.count, record.last + 1 - first) - refused) - record.count
        return left

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended and the server has all of it on its disk."""
        with self.lock:
            return self.has_ended and self.is_empty

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it is in the spool, or has left it too early."""
        return not self._waiting and not self._retained and not self._only_in_memory

    def due_at(self) -> float:
        """Return when to send something."""
        with self.lock:
            if self._waiting or self._recipient.lacks(len(self.taps), self._version):
                return self._pause.until
            is_alive = self._seen_at > self.sent_at or (self._retained and not self._waiting)
            return max(self._pause.until, self.sent_at + SIGN_OF_LIFE_S) if is_alive else float("inf")

    def next_batch(self) -> Batch:
        """Return what to send now."""
        with self.lock:
            self.sent_at = self._clock()
            taps, describes, has_items = self._recipient.next_parts(self.taps, self._version)
            return Batch(
                run=self.info,
                taps_from=self._recipient.taps,
                taps=taps,
                description=self.description if describes else None,
                items=tuple(self._some_items()) if has_items else (),
                counters=self.whole_counters(),
                commands_done=self.commands_done,
                retained=self._last_of(self._retained[-1]) if self._retained else -1,
            )

    def _some_items(self) -> Iterator[Item]:
        room, count = PARCEL_BYTES, 0
        for record in tuple(self._waiting):
            if count and (room < record.size or count + record.count > MAX_ITEMS):
                return
            room -= record.size
            try:
                items = decode_batch(self.spool.read(record)).items
            except (SpoolError, WireError):
                self.lose([record], "spool-damaged")
                continue
            for item in items:
                if item.number > self.delivered and item.number not in self._refused:
                    yield item
                    count += 1
                    if self._recipient.is_careful:
                        return

    def whole_counters(self) -> DeliveryCounters:
        """Return the trainer's counters, with what became of its items here: what was in flight to here has arrived."""
        own, waiting = self._counters, self._counters.waiting + self.waiting
        dropped = self.dropped + Counter(own.dropped)
        acknowledged = max(0, own.produced - waiting - sum(dropped.values()))
        return DeliveryCounters(own.produced, acknowledged, dict(dropped), waiting)

    def on_answer(self, sent: Batch, answer: Receipt) -> bool:
        """Process the server's answer. Return False if it made no progress."""
        with self.lock:
            has_arrived = answer.acknowledged > self.delivered
            grew = self._recipient.hear(answer, len(self.taps), self._version, has_arrived)
            self.commands, self._incidents = answer.commands, answer.incidents
            if answer.acknowledged < self.delivered and self._retained:
                self._waiting.extendleft(reversed(self._retained))  # the server has lost all from here on
                self._retained.clear()
                self.delivered = answer.acknowledged
            self.delivered = max(self.delivered, answer.acknowledged)
            self._move_on()
            durable = answer.acknowledged if answer.durable is None else answer.durable
            while self._retained and self._last_of(self._retained[0]) <= durable:
                self.spool.release(self._retained.popleft())
            self._refused = {number for number in self._refused if number > durable}
            progress = has_arrived or grew or not (sent.items or sent.taps or sent.description)
            if progress:
                self._pause.succeed()
                self.trouble = None
            return progress

    def on_failure(self, trouble: str, retry_after_s: float = 0.0) -> bool:
        """Wait before the next attempt, longer after each. Return whether this trouble is new."""
        self._pause.fail(retry_after_s)
        is_new, self.trouble = trouble != self.trouble, trouble
        return is_new

    def on_refusal(self, sent: Batch) -> None:
        """Handle a batch that the server rejects as invalid: its items are tried one by one."""
        with self.lock:
            version = None if sent.description is None else sent.description.version
            if self._recipient.refuse(bool(sent.taps), version, [item.number for item in sent.items]):
                self._refused.add(sent.items[0].number)
                self.dropped["refused"] += 1
                self._move_on()

    def _move_on(self) -> None:
        while self._waiting and self._last_of(self._waiting[0]) <= self.delivered:
            self._retained.append(self._waiting.popleft())

    def _last_of(self, record: Record) -> int:
        """Return the last item of a record that the server may take."""
        last = record.last
        while last in self._refused:
            last -= 1
        return last

    def lose(self, records: Sequence[Record], why: str) -> None:
        """Count records that can no longer be sent."""
        with self.lock:
            for record in records:
                if record in self._waiting:
                    self._waiting.remove(record)
                    if record.last <= self.read_until:
                        self._only_in_memory.append(record)
                    else:
                        self.dropped[why] += self._left_in([record])
                elif record in self._retained:
                    self._retained.remove(record)  # the server has them
                self.spool.release(record)


# The trainers of a collector: their lanes, in memory and on disk, within limits.

logger = logging.getLogger("hookcore")

MAX_LANES: Final = 10_000
LOCK_FILE: Final = "lock"
FORGET_AFTER_S: Final = 60.0  # a trainer may repeat its last batch
SILENT_S: Final = 3600.0  # without a trainer and without data


class FullError(HookcoreError):
    """There are too many runs."""


class WrongKeyError(HookcoreError):
    """Another trainer opened the run."""


class Lanes:
    """All lanes of a collector. `changed` is notified when there is something to send."""

    def __init__(
        self, folder: Path, limit_bytes: int, sync_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.lock_file = _hold(folder)
        self.spool = Spool(folder, limit_bytes, sync_s)
        self.changed = threading.Condition()
        self.dropped: Counter[str] = Counter()  # items of lanes that were forgotten
        self._lanes: dict[str, Lane] = {}
        self._recover()

    def _recover(self) -> None:
        records: defaultdict[str, list[Record]] = defaultdict(list)
        for record in self.spool.recover():
            records[record.run].append(record)
        for path in sorted(self.spool.folder.glob(f"*{HEAD}")):
            try:
                lane = Lane.read(path, self.spool, self._clock)
            except (HookcoreError, OSError) as error:
                logger.warning("hookcore: %s can't be read (%s): its run can't be sent on", path, error)
                continue
            self._lanes[lane.info.id] = lane
            if its_records := records.pop(lane.info.id, None):
                lane.restore(its_records)
        for run, left in records.items():
            logger.warning("hookcore: the tap names of %d records of the run %s are lost", len(left), run)
            self.dropped["spool-damaged"] += sum(record.count for record in left)
            for record in left:
                self.spool.release(record)

    def all(self) -> list[Lane]:
        return list(self._lanes.values())

    def take(self, batch: Batch, data: bytes | bytearray) -> Receipt:
        """Take a batch of a trainer. Raises SpoolError, FullError, or WrongKeyError; then nothing was taken."""
        answer = None
        while answer is None:
            answer = self._lane_of(batch).take(batch, data)
        self.count_gone()
        with self.changed:
            self.changed.notify_all()
        return answer

    def _lane_of(self, batch: Batch) -> Lane:
        with self.changed:
            lane = self._lanes.get(batch.run.id)
            if lane is None:
                if len(self._lanes) >= MAX_LANES:
                    raise FullError(f"this collector already has {MAX_LANES} runs: start another one")
                lane = self._lanes[batch.run.id] = Lane(batch.run, self.spool, self._clock)
        if not hmac.compare_digest(lane.info.key.encode(), batch.run.key.encode()):
            raise WrongKeyError(f"another trainer opened the run {batch.run.id}: each trainer needs its own run")
        return lane

    def count_gone(self) -> None:
        """Count what the spool dropped to make room. Not while a lane is locked."""
        while self.spool.gone:
            record = self.spool.gone.popleft()
            lane = self._lanes.get(record.run)
            if lane is None:
                self.dropped["spool-full"] += record.count
            else:
                lane.lose([record], "spool-full")

    def forget_finished(self) -> None:
        """Forget runs whose server has everything, and runs without a message for an hour."""
        for lane in self.all():
            silent_s = min(lane.silent_s, self._clock() - lane.sent_at)
            with self.changed, lane.lock:
                is_over = lane.is_finished and silent_s > FORGET_AFTER_S
                if is_over or (lane.is_empty and silent_s > SILENT_S):
                    del self._lanes[lane.info.id]
                    self.dropped.update(lane.dropped)
                    lane.forget()

    def close(self) -> None:
        """Write everything to disk."""
        for lane in self.all():
            lane.leave()
        self.spool.close()
        os.close(self.lock_file)


def _hold(folder: Path) -> int:
    """Lock the folder against other collectors, until this process ends."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ArgumentError(
            f"spool={str(folder)!r} can't be used: {error}; give a folder that you may write to"
        ) from None
    try:
        lock_file(number)
    except OSError:
        os.close(number)
        raise ArgumentError(f"spool={str(folder)!r} is in use by another collector: give each its own folder") from None
    return number

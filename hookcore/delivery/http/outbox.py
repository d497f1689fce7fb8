"""Waiting and sent items, and their counters. Knows no network and starts no thread."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final

from hookcore.delivery.http.connection import Reason
from hookcore.delivery.http.parcels import (
    PARCEL_BYTES,
    CurrentDescription,
    DescribedRun,
    Entry,
    Parcel,
    Recipient,
    Retained,
    Spool,
    fitted,
)
from hookcore.delivery.sinks import UNSAVED_BYTES, size_of
from hookcore.records import Coverage, Failure, Frame, HookRecord, ModuleRecord, Snapshot, Tap
from hookcore.records.flow import Flow
from hookcore.records.wire import DeliveryCounters, EndItem, Receipt

MAX_BYTES: Final = 64 * 2**20
MAX_ITEMS: Final = 10_000
MAX_GONE: Final = 1000  # then, those before all that waits are forgotten


class Outbox:
    """A bounded queue whose counters always balance, with all data that a restarted receiver needs again.

    An item is waiting, in flight (sent without an answer, so it may have arrived), acknowledged, or dropped. Items in
    flight are not dropped but sent again until there is an answer. Acknowledged items that are not on the receiver's
    disk yet are retained while there is room, and sent again if the receiver is killed. So is the end. All methods can
    be called from any thread.

    While a spool is set, it gets every item, too. If memory is full then, items wait in the spool alone, from where
    they are read again in their order.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_items: int = MAX_ITEMS) -> None:
        self.changed = threading.Condition()
        self._listening = self._is_patient = False  # whether a thread waits for `changed`, and only for urgent news
        self._max_bytes = max_bytes
        self._max_items = max_items
        self._forget_all()

    def _forget_all(self) -> None:
        self._waiting: deque[Entry] = deque()
        self._flying: tuple[Entry, ...] = ()
        self._uncertain = False  # whether items in flight may have arrived
        self._bytes = 0
        self._is_urgent = True  # whether the next parcel can't wait for more
        self._retained = Retained(min(UNSAVED_BYTES, self._max_bytes // 4))  # in addition to the queue
        self._produced = 0
        self._acknowledged = 0
        self._dropped: Counter[str] = Counter()
        self._taps: list[Tap] = []
        self._recipient = Recipient()
        self._description = CurrentDescription()
        self._flow: Flow | None = None  # the newest one
        self._flow_lost = False  # by a dropped frame, or with the receiver's memory
        self._step = 0
        self._closed = False
        self._end: EndItem | None = None
        self._failure: Failure | None = None
        self._spool: Spool | None = None
        self._unread: int | None = None  # from this number on, items are only in the spool
        self._gone: set[int] = set()  # numbers that were dropped, so that no spool has to return them

    # -- what comes in ----------------------------------------------------------------------------------------------

    def put(self, record: Frame | Snapshot) -> None:
        """Add an item; if there is no room, drop the oldest waiting one."""
        with self.changed:
            if isinstance(record, Frame):
                self._taps.extend(map(fitted, record.new_taps))
                record = self._with_flow(record)
            self._step = max(self._step, record.step)
            entry = Entry(self._produced, record, size_of(record))
            self._produced += 1
            if self._closed:
                self._refuse(entry, "closed")
            elif entry.size > self._max_bytes * 31 // 32:
                self._refuse(entry, "too-large")
            else:
                self._accept(entry)
            self._report()

    def _accept(self, entry: Entry) -> None:
        if self._spool is not None:
            self._spool.take(entry.number, entry.record)
        if self._unread is None:
            self._waiting.append(entry)
            self._bytes += entry.size
            self._make_room()
        self._is_urgent |= isinstance(entry.record, Snapshot) or bool(entry.record.events)
        self._is_urgent |= self._bytes > PARCEL_BYTES

    def _refuse(self, entry: Entry, reason: Reason) -> None:
        self._dropped[reason] += 1
        self._gone.add(entry.number)
        if len(self._gone) > MAX_GONE:
            first = self._waiting[0].number if self._waiting else self._produced
            first = first if self._unread is None else min(first, self._unread)
            self._gone = {number for number in self._gone if number >= first}

    def _with_flow(self, frame: Frame) -> Frame:
        """Return a frame with the newest flow if the receiver lost it."""
        if frame.flow is not None:
            self._flow = frame.flow
        elif self._flow is not None and self._flow_lost:
            frame = replace(frame, flow=replace(self._flow, step=frame.step))
        else:
            return frame
        self._flow_lost = False
        return frame

    def _make_room(self) -> None:
        while self._waiting and (
            self._bytes > self._max_bytes or len(self._waiting) + len(self._flying) > self._max_items
        ):
            if self._unread is not None:
                return  # what the receiver lost, which is bounded by itself
            if self._spool is None:
                self._drop(self._waiting.popleft(), "queue-full")
            else:
                self._leave_to_spool()

    def _leave_to_spool(self) -> None:
        """Forget waiting items that are in the spool."""
        self._unread = self._waiting[0].number
        self._bytes -= sum(entry.size for entry in self._waiting)
        self._waiting.clear()

    def _drop(self, entry: Entry, reason: Reason) -> None:
        self._bytes -= entry.size
        self._refuse(entry, reason)
        if reason == "queue-full" and isinstance(entry.record, Frame) and entry.record.flow is not None:
            self._flow_lost = True

    def describe(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage] = (), hooks: Sequence[HookRecord] = ()
    ) -> None:
        """Update the description of the run."""
        with self.changed:
            if self._description.update(modules, coverage, hooks):
                self._is_urgent = True
                self._report()

    def set_listening(self, listening: bool, is_patient: bool = False) -> None:
        """Set whether the sender waits for `changed`, while it holds that lock. `is_patient`: for urgent news only."""
        self._listening, self._is_patient = listening, is_patient

    def hurry(self) -> None:
        """Let nothing wait for more, because somebody waits for its arrival."""
        with self.changed:
            self._is_urgent = True
            self._report()

    def _report(self) -> None:
        # A busy sender checks by itself; waking it would only cost the caller.
        if self._listening and (self._is_urgent or not self._is_patient):
            self._listening = False
            self.changed.notify_all()

    # -- what goes out ----------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether a parcel would contain more than a sign of life."""
        with self.changed:
            lacks = self._recipient.lacks(len(self._taps), self._description.version)
            return bool(self._waiting or self._flying or self._on_disk or self._end_due or lacks)

    @property
    def can_wait(self) -> bool:
        """Whether the next parcel would contain little more than a few frames without events."""
        with self.changed:
            return bool(self._waiting) and not (self._is_urgent or self._flying or self._on_disk)

    @property
    def empty(self) -> bool:
        """Whether everything was acknowledged or dropped."""
        with self.changed:
            return not (self._waiting or self._flying or self._on_disk)

    @property
    def settled(self) -> bool:
        """Whether the receiver has saved everything, including the end, or has given up saving it."""
        return (self._retained.is_saved or self.given_up is not None) and not self.has_news

    @property
    def given_up(self) -> str | None:
        """Why the receiver will save no more of the ended run; None if it has saved everything, or may still."""
        return self._retained.given_up

    @property
    def unsaved(self) -> int | None:
        """How many acknowledged items at most the receiver may not have saved; None if it has saved the end, too."""
        return None if self._retained.is_saved else self._retained.unsaved(self._produced)

    @property
    def _end_due(self) -> EndItem | None:
        return self._end if self._end is not None and self._retained.arrived < self._end.number else None

    def fail(self, failure: Failure) -> None:
        """Record why the run ended, to be sent with the end."""
        self._failure = failure

    def end(self) -> None:
        """Mark the end, which is sent when everything else has arrived. Later items count as dropped."""
        with self.changed:
            if not self._closed:
                self._closed = self._is_urgent = True
                self._end = EndItem(self._produced, self._step, self._failure)
            self._report()

    def give_up(self) -> None:
        """Drop waiting items that aren't in a spool; items in flight stay so."""
        with self.changed:
            self._retained.is_saved &= self._end_due is None
            self._closed, self._end = True, None
            while self._waiting and self._spool is None:
                self._drop(self._waiting.popleft(), "closed")

    def next_parcel(self) -> Parcel:
        """Return what to send now; its items are in flight until this outbox is told its answer or failure."""
        with self.changed:
            taps, describes, has_items = self._recipient.next_parts(self._taps, self._description.version)
            if has_items and not self._flying:
                self._flying, self._uncertain = tuple(self._pick(has_company=bool(taps) or describes)), False
                self._is_urgent = bool(self._waiting)
            return Parcel(
                taps_from=self._recipient.taps,
                taps=taps,
                description=self._description.whole if describes else None,
                entries=self._flying if has_items else (),
                end=self._end_due if has_items and not (self._flying or self._waiting or self._on_disk) else None,
                counters=self._counters(),
                retained=self._retained.newest,
            )

    def _pick(self, has_company: bool) -> Iterator[Entry]:
        room = PARCEL_BYTES
        while self._waiting:
            entry = self._waiting[0]
            if entry.size > room and (has_company or room < PARCEL_BYTES):
                return
            room -= entry.size
            yield self._waiting.popleft()
            if self._recipient.is_careful:
                return

    # -- what became of it ------------------------------------------------------------------------------------------

    def on_answer(self, parcel: Parcel, answer: Receipt) -> bool:
        """Process an answer; return False if nothing that was sent made progress."""
        with self.changed:
            arrived = list(takewhile(lambda entry: entry.number <= answer.acknowledged, parcel.entries))
            self._acknowledged += len(arrived)
            self._bytes -= sum(entry.size for entry in arrived)
            if parcel.entries:
                self._put_back(parcel.entries[len(arrived) :])
            rewound = self._rewind(self._retained.update(arrived, answer))
            known = self._recipient.taps
            grew = self._recipient.hear(answer, len(self._taps), self._description.version, bool(arrived))
            self._flow_lost |= self._recipient.taps < known
            sent = parcel.entries or parcel.taps or parcel.description or self._end_due
            return bool(arrived) or grew or rewound or not sent

    def _rewind(self, lost: Sequence[Entry]) -> bool:
        """Return whether the receiver has lost acknowledged items; they wait again."""
        if not lost:
            return False
        self._bytes += sum(entry.size for entry in lost)
        self._acknowledged -= len(lost)
        self._put_back((*lost, *self._flying))  # without these, a receiver has none of the later ones
        self._make_room()
        return True

    def on_send_failed(self, parcel: Parcel) -> None:
        """Handle a parcel that was not sent: items that weren't in doubt before wait again."""
        with self.changed:
            if parcel.entries and not self._uncertain:
                self._put_back(parcel.entries)

    def on_no_answer(self, parcel: Parcel) -> None:
        """Handle a parcel that may or may not have arrived."""
        with self.changed:
            self._uncertain = self._uncertain or bool(parcel.entries)

    def refused(self, parcel: Parcel, reason: Reason) -> None:
        """Handle a parcel that the receiver rejected; its parts are tried one by one."""
        with self.changed:
            version = None if parcel.description is None else parcel.description.version
            numbers = [entry.number for entry in parcel.entries]
            if self._recipient.refuse(bool(parcel.taps), version, numbers, is_final=reason == "unsendable"):
                self._drop(parcel.entries[0], reason)
                self._put_back(())
            elif parcel.entries:
                self._put_back(parcel.entries)

    def _put_back(self, entries: Sequence[Entry]) -> None:
        self._flying, self._uncertain, self._is_urgent = (), False, self._is_urgent or bool(entries)
        if self._closed and self._end is None and self._spool is None:  # given up, so they will not be sent
            for entry in entries:
                self._drop(entry, "closed")
        else:
            self._waiting.extendleft(reversed(entries))

    # -- the spool --------------------------------------------------------------------------------------------------

    @property
    def _on_disk(self) -> int:
        """How many items wait in the spool alone."""
        if self._unread is None:
            return 0
        return self._produced - self._unread - sum(number >= self._unread for number in self._gone)

    @property
    def described(self) -> DescribedRun:
        """What the run consists of, for a spool."""
        with self.changed:
            return DescribedRun(tuple(self._taps), self._description.whole, self._end, self._counters())

    @property
    def durable(self) -> int:
        """The highest number that the receiver has saved, or has received if it saves nothing."""
        return self._retained.durable

    def spool_to(self, spool: Spool) -> None:
        """Give a spool all items from now on, and before them those that the receiver hasn't saved."""
        with self.changed:
            self._spool = spool
            for entry in (*self._retained.entries, *self._flying, *self._waiting):
                if entry.number > spool.newest:
                    spool.take(entry.number, entry.record)

    def spool_no_more(self) -> bool:
        """Give the spool no more items. Return False if some are only there."""
        with self.changed:
            if self._unread is None:
                self._spool = None
            return self._spool is None

    def refill(self) -> None:
        """Read the next items from the spool, if some are only there and all before them were sent."""
        with self.changed:
            spool, first, newest = self._spool, self._unread, self._produced - 1
            if spool is None or first is None or self._waiting or self._flying:
                return
        spool.write()
        read: list[Entry] = []
        room = PARCEL_BYTES
        for number, record in spool.read(first):
            if number not in self._gone:
                read.append(Entry(number, record, size_of(record)))
                room -= read[-1].size
            if room <= 0:
                newest = number
                break
            newest = max(newest, number)
        with self.changed:
            expected = newest + 1 - first - sum(first <= number <= newest for number in self._gone)
            if expected > len(read):  # the disk could not take them
                self._dropped["queue-full"] += expected - len(read)
            self._waiting.extend(read)
            self._bytes += sum(entry.size for entry in read)
            self._unread = newest + 1 if newest + 1 < self._produced else None

    # -- counters ------------------------------------------------------------------------------------------------------

    @property
    def counters(self) -> DeliveryCounters:
        """Return the current counters."""
        with self.changed:
            return self._counters()

    def _counters(self) -> DeliveryCounters:
        return DeliveryCounters(
            produced=self._produced,
            acknowledged=self._acknowledged,
            dropped=dict(self._dropped),
            waiting=len(self._waiting) + self._on_disk,
            in_flight=len(self._flying),
        )

    def abandon(self) -> None:
        """Forget everything in a forked child, without waiting for locks of the parent."""
        self.changed = threading.Condition()
        self._listening = False
        self._forget_all()
        self._closed = True

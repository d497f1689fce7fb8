"""The outbox is bounded, and its counts balance whatever is added, sent, lost, rejected, or forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hookcore.delivery.archive import ArchiveWriter
from hookcore.delivery.http import PARCEL_BYTES, Outbox, Parcel
from hookcore.delivery.http import parcels as parcels_module
from hookcore.delivery.sinks import size_of
from hookcore.records import Event, Frame, ModuleRecord, Names, Snapshot, Tap
from hookcore.records.flow import Flow, FlowCall
from hookcore.records.wire import (
    Batch,
    DeliveryCounters,
    FrameItem,
    Receipt,
    RunInfo,
    decode_batch,
    encode,
    frame_item,
    frame_of,
)
from hookcore.store import Store
from hookcore_app.runs import Run, Runs
from hookcore_app.settings import ServerSettings
from tests.lanes import examples
from tests.receiver import a_frame, a_run


def _is_balanced(counters: DeliveryCounters) -> bool:
    there = counters.acknowledged + sum(counters.dropped.values()) + counters.waiting + counters.in_flight
    return counters.produced == there


def _batch(parcel: Parcel) -> Batch:
    items = [frame_item(entry.number, entry.record) for entry in parcel.entries]  # type: ignore[arg-type]
    batch = Batch(
        run=a_run(),
        taps_from=parcel.taps_from,
        taps=parcel.taps,
        description=parcel.description,
        items=(*items, *([parcel.end] if parcel.end else [])),
        counters=parcel.counters,
        retained=parcel.retained,
    )
    return decode_batch(encode(batch))


class _Disk:
    """The items on the receiver's disk."""

    durable, given_up = -1, ""
    frames = missing = missing_saved = 0

    def room_for(self, records: Sequence[object]) -> int:
        return len(records)

    def miss(self, count: int) -> None:
        self.missing += count

    def save(self, durable: int, frames: int) -> None:
        self.durable, self.frames, self.missing_saved = durable, frames, self.missing


class Delivered(RuleBasedStateMachine):
    """A sender and a receiver, with a hostile network between them."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(max_bytes=40_000, max_items=12)
        self.step = 0
        self.taps = 0
        self.stored: list[int] = []
        self.doubtful: set[int] = set()  # numbers of items that arrived, but weren't answered
        self.lost_memory = False
        self.restart()
        self.lost_memory = False

    @rule()
    def restart(self) -> None:
        """Make the receiver forget everything."""
        self.runs = Runs(ServerSettings(memory=64_000_000))
        self.lost_memory = True
        self.disk = _Disk()

    @rule()
    def save(self) -> None:
        """Write the receiver's data to disk."""
        self.disk.save(self._run().received.acknowledged, len(self.stored))

    @rule()
    def crash(self) -> None:
        """Kill the receiver, and restart it with the data on disk."""
        self.runs = Runs(ServerSettings(memory=64_000_000))
        self.disk.missing = self.disk.missing_saved
        del self.stored[self.disk.frames :]
        run = self._run()
        run.received.acknowledged, run.saved.count = self.disk.durable, self.disk.frames + self.disk.missing

    def _run(self) -> Run:
        run = self.runs.open(a_run())
        assert run is not None
        run.saved.on_disk = self.disk
        return run

    @rule(fresh=st.integers(0, 3), padding=st.sampled_from([0, 0, 0, 5_000, 35_000]))
    def send(self, fresh: int, padding: int) -> None:
        """Add a frame, perhaps with new taps."""
        new = tuple(Tap(f"m{self.taps + number}", "output") for number in range(fresh))
        self.taps += fresh
        used = (self.taps - 1,) if self.taps else ()
        self.outbox.put(a_frame(self.step, new, used, padding))
        self.step += 1

    @rule(version=st.integers(0, 3))
    def describe(self, version: int) -> None:
        """Add the same description again, or another one."""
        self.outbox.describe([ModuleRecord("m", f"Type{version}", None)])

    @rule(fate=st.sampled_from(["arrives", "arrives", "arrives", "unsent", "answer lost", "request lost", "refused"]))
    def deliver(self, fate: str) -> None:
        """Send one request."""
        parcel = self.outbox.next_parcel()
        assert sum(entry.size for entry in parcel.entries) <= PARCEL_BYTES or len(parcel.entries) == 1
        numbers = {entry.number for entry in parcel.entries}
        if fate == "refused" and numbers & self.doubtful:
            fate = "arrives"  # an accepted item isn't rejected later
        if fate == "unsent":
            self.outbox.on_send_failed(parcel)
        elif fate == "request lost":
            self.outbox.on_no_answer(parcel)
        elif fate == "refused":
            self.outbox.refused(parcel, "refused")
        else:
            answer = self._take(_batch(parcel))
            if fate == "answer lost":
                self.doubtful |= numbers
                self.outbox.on_no_answer(parcel)
            else:
                self.outbox.on_answer(parcel, answer)

    def _take(self, batch: Batch) -> Receipt:
        run = self._run()
        before = run.received.acknowledged
        answer = run.take(batch)
        new = [item for item in batch.items if before < item.number <= answer.acknowledged]
        self.stored += [frame_of(item).step for item in new if isinstance(item, FrameItem)]
        assert run.store.usage().dropped.get("rows_of_unknown_taps", 0) == 0
        return answer

    @precondition(lambda self: self.step > 20)
    @rule()
    def give_up(self) -> None:
        """Let the deadline at exit pass."""
        self.outbox.end()
        self.outbox.give_up()

    @invariant()
    def the_books_balance(self) -> None:
        """Check that the counts balance at every moment."""
        assert _is_balanced(self.outbox.counters)
        assert self.outbox.counters.produced == self.step

    @invariant()
    def nothing_is_stored_twice(self) -> None:
        """Check that only a receiver that forgot an item stores it twice."""
        if not self.lost_memory:
            assert len(self.stored) == len(set(self.stored))

    def teardown(self) -> None:
        """Check that everything that wasn't dropped arrives once the network is healthy again."""
        for _ in range(200):
            parcel = self.outbox.next_parcel()
            self.outbox.on_answer(parcel, self._take(_batch(parcel)))
            if not self.outbox.has_news:
                break
        counters = self.outbox.counters
        assert (counters.waiting, counters.in_flight) == (0, 0)
        assert _is_balanced(counters)
        run = self.runs.get("run")
        assert run is not None
        assert run.store.taps_announced == self.taps
        # Items counted as dropped are nowhere. Acknowledged items are stored, or reported as lost.
        if not self.lost_memory:
            assert len(self.stored) + self.disk.missing == counters.acknowledged


Delivered.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
test_the_books_balance_whatever_the_network_does = Delivered.TestCase


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(max_bytes=10_000, max_items=5)


def test_the_oldest_frame_makes_room_and_its_taps_are_kept(outbox: Outbox) -> None:
    for step in range(8):
        outbox.put(a_frame(step, (Tap(f"m{step}", "output"),), (step,)))
    assert outbox.counters == DeliveryCounters(produced=8, dropped={"queue-full": 3}, waiting=5)
    parcel = outbox.next_parcel()
    assert [entry.record.step for entry in parcel.entries] == [3, 4, 5, 6, 7]
    assert [tap.module for tap in parcel.taps] == [f"m{step}" for step in range(8)]


def test_bytes_are_bounded_too(outbox: Outbox) -> None:
    for step in range(4):
        outbox.put(a_frame(step, padding=3_000))
    assert outbox.counters == DeliveryCounters(produced=4, dropped={"queue-full": 2}, waiting=2)


def test_names_of_a_snapshot_take_room_while_it_waits_to_be_sent_or_written(outbox: Outbox, tmp_path: Path) -> None:
    values = np.zeros(4, np.float32)
    small = Snapshot(Tap("a", "output"), 0, 0.0, "float32", (4,), values)
    large = replace(small, names=Names((("a token of a tokenizer",) * 30,), True, ("the label of a sample",) * 30))
    for record in (small, large, large):
        outbox.put(record)
    assert outbox.counters == DeliveryCounters(produced=3, dropped={"queue-full": 2}, waiting=1)
    writer = ArchiveWriter(tmp_path, a_run(), Store(), start=False)
    for record in (small, large):
        writer.take(record)
    assert writer.queued_bytes == size_of(small) + size_of(large)


def _waits(outbox: Outbox, step: int) -> bool:
    """Let everything so far arrive, and return whether a frame can wait then."""
    while outbox.has_news:
        parcel = outbox.next_parcel()
        newest = max((entry.number for entry in parcel.entries), default=-1)
        outbox.on_answer(parcel, Receipt(acknowledged=newest, taps=0, described=1))
    outbox.put(a_frame(step))
    return outbox.can_wait


def test_only_frames_without_events_can_wait_for_others() -> None:
    outbox = Outbox()
    assert not outbox.can_wait
    outbox.put(a_frame(0))
    assert not outbox.can_wait, "the first ones show that the run is there"
    assert _waits(outbox, 1)
    outbox.put(replace(a_frame(2), events=(Event(2, 0.0, "nonfinite-step", "the loss is NaN", "error"),)))
    assert not outbox.can_wait
    assert _waits(outbox, 3)
    outbox.put(Snapshot(Tap("fc", "output"), 3, 0.0, "float64", (2,), np.zeros(2)))
    assert not outbox.can_wait
    assert _waits(outbox, 4)
    outbox.describe((ModuleRecord("", "Net", None),))
    assert not outbox.can_wait
    assert _waits(outbox, 5)
    outbox.hurry()
    assert not outbox.can_wait
    assert _waits(outbox, 6)
    outbox.put(a_frame(7, padding=PARCEL_BYTES))
    assert not outbox.can_wait
    assert _waits(outbox, 8)
    outbox.end()
    assert not outbox.can_wait


def test_what_was_not_answered_or_refused_does_not_wait() -> None:
    outbox = Outbox()
    outbox.put(a_frame(0))
    assert _waits(outbox, 1)
    parcel = outbox.next_parcel()
    assert not outbox.can_wait
    outbox.on_no_answer(parcel)
    outbox.put(a_frame(2))
    assert not outbox.can_wait
    assert _waits(outbox, 3)
    outbox.on_send_failed(outbox.next_parcel())
    assert not outbox.can_wait


def test_delivered_items_take_no_room(outbox: Outbox) -> None:
    for step in range(20):
        outbox.put(a_frame(step, padding=3_000))
        outbox.on_answer(outbox.next_parcel(), Receipt(acknowledged=step, taps=0, described=-1))
    assert outbox.counters == DeliveryCounters(produced=20, acknowledged=20)


def test_items_that_the_server_refuses_after_the_deadline_are_dropped(outbox: Outbox) -> None:
    outbox.put(a_frame(0))
    late = outbox.next_parcel()
    outbox.end()
    outbox.give_up()
    assert outbox.counters == DeliveryCounters(produced=1, in_flight=1)
    outbox.on_send_failed(late)
    assert outbox.counters == DeliveryCounters(produced=1, dropped={"closed": 1})


def test_taps_come_in_parts_and_no_frame_before_its_taps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcels_module, "PARCEL_BYTES", 2_000)
    outbox = Outbox()
    taps = tuple(Tap(f"module{number}", "output") for number in range(100))
    outbox.put(a_frame(0, taps, tuple(range(100))))
    known = parcels = 0
    while not outbox.counters.acknowledged:
        parcel = outbox.next_parcel()
        assert parcel.taps_from == known
        known += len(parcel.taps)
        assert not parcel.entries or known == 100
        done = parcel.entries[-1].number if parcel.entries else -1
        if done == 0 and parcels < 50:
            # Instead of answering, the receiver forgets everything, so it needs the taps before the frame is repeated.
            outbox.on_no_answer(parcel)
            parcels, known = 50, 0
            empty = Parcel(100, (), None, (), None, outbox.counters)
            outbox.on_answer(empty, Receipt(acknowledged=-1, taps=0, described=-1))
            continue
        outbox.on_answer(parcel, Receipt(acknowledged=done, taps=known, described=-1))
        parcels += 1
        assert parcels < 100
    assert parcels > 52


def test_a_frame_that_would_fill_the_queue_is_too_large(outbox: Outbox) -> None:
    outbox.put(a_frame(0, padding=9_500))
    assert outbox.counters == DeliveryCounters(produced=1, dropped={"too-large": 1})


def test_items_in_flight_are_sent_again_and_not_dropped(outbox: Outbox) -> None:
    outbox.put(a_frame(0))
    first = outbox.next_parcel()
    outbox.on_no_answer(first)
    for step in range(1, 9):
        outbox.put(a_frame(step))
    assert outbox.counters == DeliveryCounters(produced=9, dropped={"queue-full": 4}, waiting=4, in_flight=1)
    again = outbox.next_parcel()
    assert [entry.number for entry in again.entries] == [0]
    outbox.on_answer(again, Receipt(acknowledged=0, taps=0, described=-1))
    assert outbox.counters == DeliveryCounters(produced=9, acknowledged=1, dropped={"queue-full": 4}, waiting=4)


def test_items_that_may_have_arrived_stay_in_doubt_if_the_server_disappears(outbox: Outbox) -> None:
    outbox.put(a_frame(0))
    outbox.on_no_answer(outbox.next_parcel())
    outbox.on_send_failed(outbox.next_parcel())
    assert outbox.counters == DeliveryCounters(produced=1, in_flight=1)
    outbox.on_answer(outbox.next_parcel(), Receipt(acknowledged=0, taps=0, described=-1))
    outbox.put(a_frame(1))
    outbox.on_send_failed(outbox.next_parcel())
    assert outbox.counters == DeliveryCounters(produced=2, acknowledged=1, waiting=1)


def test_items_in_doubt_are_sent_after_items_the_receiver_lost() -> None:
    outbox = Outbox()
    outbox.put(a_frame(0, (Tap("m", "output"),)))
    outbox.on_answer(outbox.next_parcel(), Receipt(acknowledged=0, taps=1, described=-1, durable=-1))
    outbox.put(a_frame(1))
    outbox.describe([ModuleRecord("m", "One", None)])
    outbox.refused(outbox.next_parcel(), "refused")  # from now on, parts are sent one by one
    outbox.on_answer(outbox.next_parcel(), Receipt(acknowledged=0, taps=1, described=0, durable=-1))
    outbox.on_no_answer(outbox.next_parcel())
    assert (outbox.counters.waiting, outbox.counters.in_flight) == (0, 1)
    outbox.describe([ModuleRecord("m", "Two", None)])
    parcel = outbox.next_parcel()
    assert parcel.description is not None
    assert parcel.entries == ()
    outbox.on_answer(parcel, Receipt(acknowledged=-1, taps=1, described=1, durable=-1))
    assert _is_balanced(outbox.counters)
    assert (outbox.counters.acknowledged, outbox.counters.waiting) == (0, 2)
    assert [entry.number for entry in outbox.next_parcel().entries] == [0]


def test_one_refused_frame_loses_no_others(outbox: Outbox) -> None:
    for step in range(5):
        outbox.put(a_frame(step))
    arrived: list[int] = []
    for _ in range(30):
        parcel = outbox.next_parcel()
        steps = [entry.record.step for entry in parcel.entries]
        if 2 in steps:
            outbox.refused(parcel, "refused")
        else:
            arrived += steps
            highest = max((entry.number for entry in parcel.entries), default=-1)
            outbox.on_answer(parcel, Receipt(acknowledged=highest, taps=0, described=-1))
    assert arrived == [0, 1, 3, 4]
    assert outbox.counters == DeliveryCounters(produced=5, acknowledged=4, dropped={"refused": 1})


def test_a_refused_description_delays_no_frame(outbox: Outbox) -> None:
    outbox.describe([ModuleRecord("m", "Linear", None)])
    outbox.put(a_frame(0))
    for _ in range(10):
        parcel = outbox.next_parcel()
        if parcel.description is not None:
            outbox.refused(parcel, "refused")
        else:
            highest = max((entry.number for entry in parcel.entries), default=-1)
            outbox.on_answer(parcel, Receipt(acknowledged=highest, taps=0, described=-1))
    assert outbox.counters == DeliveryCounters(produced=1, acknowledged=1)
    outbox.describe([ModuleRecord("m", "Conv2d", None)])
    assert outbox.next_parcel().description is not None


def test_a_description_is_sent_when_it_changes_or_was_forgotten(outbox: Outbox) -> None:
    modules = [ModuleRecord("m", "Linear", None)]
    outbox.describe(modules)
    parcel = outbox.next_parcel()
    assert parcel.description is not None
    assert parcel.description.modules == tuple(modules)
    version = parcel.description.version
    outbox.on_answer(parcel, Receipt(acknowledged=-1, taps=0, described=version))
    outbox.describe(list(modules))
    assert not outbox.has_news
    outbox.describe([ModuleRecord("m", "Conv2d", None)])
    changed = outbox.next_parcel().description
    assert changed is not None
    assert changed.version > version
    outbox.on_answer(outbox.next_parcel(), Receipt(acknowledged=-1, taps=0, described=changed.version))
    assert outbox.next_parcel().description is None
    outbox.on_answer(outbox.next_parcel(), Receipt(acknowledged=-1, taps=0, described=-1))
    assert outbox.next_parcel().description == changed


def _flows(parcel: Parcel) -> dict[int, Flow]:
    return {each.record.step: each.record.flow for each in parcel.entries if getattr(each.record, "flow", None)}


def test_a_flow_that_was_dropped_or_forgotten_comes_with_the_next_frame(outbox: Outbox) -> None:
    calls = (FlowCall("a"), FlowCall("b", fed_by=(0,)))
    outbox.put(replace(a_frame(0, (Tap("a", "output"),)), flow=Flow(0, calls)))
    for step in range(1, 8):
        outbox.put(a_frame(step))
    parcel = outbox.next_parcel()
    assert _flows(parcel) == {6: Flow(6, calls)}  # frame 0 was dropped when frame 5 came
    outbox.on_answer(parcel, Receipt(acknowledged=7, taps=1, described=-1))
    outbox.put(a_frame(8))
    parcel = outbox.next_parcel()
    assert not _flows(parcel)
    outbox.on_answer(parcel, Receipt(acknowledged=7, taps=0, described=-1))  # the receiver was restarted
    outbox.put(a_frame(9))
    outbox.put(a_frame(10))
    outbox.on_answer(outbox.next_parcel(), Receipt(acknowledged=7, taps=1, described=-1))
    assert _flows(outbox.next_parcel()) == {9: Flow(9, calls)}


def test_a_flow_that_the_server_refuses_is_not_sent_with_every_frame(outbox: Outbox) -> None:
    outbox.put(replace(a_frame(0, (Tap("a", "output"),)), flow=Flow(0, (FlowCall("a"),))))
    outbox.on_answer(outbox.next_parcel(), Receipt(acknowledged=-1, taps=1, described=-1))
    for _ in range(4):
        outbox.refused(outbox.next_parcel(), "refused")
    outbox.put(a_frame(1))
    assert not _flows(outbox.next_parcel())


def test_a_long_name_is_not_a_new_description_each_time(outbox: Outbox) -> None:
    modules = [ModuleRecord("m" * 5_000, "Linear", None)]
    outbox.describe(modules)
    first = outbox.next_parcel()
    outbox.describe(modules)
    assert outbox.next_parcel().description == first.description


def test_long_names_of_parameters_are_shortened_wherever_a_module_lists_them(outbox: Outbox) -> None:
    name = "w" * 5_000
    outbox.describe([ModuleRecord("m", "Linear", None, shapes=((name, (2, 3)),), placements=((name, "Shard(0)"),))])
    description = outbox.next_parcel().description
    assert description is not None
    (module,) = description.modules
    assert module.shapes == ((parcels_module.cut(name), (2, 3)),)
    assert module.placements == ((parcels_module.cut(name), "Shard(0)"),)


def test_a_frame_above_the_size_of_a_batch_is_sent_alone() -> None:
    outbox = Outbox()
    outbox.put(a_frame(0, (Tap("m", "output"),)))
    outbox.put(a_frame(1, padding=PARCEL_BYTES + 1))
    outbox.put(a_frame(2))
    seen = []
    for _ in range(3):
        parcel = outbox.next_parcel()
        seen.append([entry.record.step for entry in parcel.entries])
        outbox.on_answer(parcel, Receipt(acknowledged=parcel.entries[-1].number, taps=1, described=-1))
    assert seen == [[0], [1], [2]]


def test_the_end_comes_last_after_everything_else_has_arrived(outbox: Outbox) -> None:
    outbox.put(a_frame(7))
    outbox.end()
    first = outbox.next_parcel()
    assert first.end is None
    outbox.on_answer(first, Receipt(acknowledged=0, taps=0, described=-1))
    last = outbox.next_parcel()
    assert last.end is not None
    assert (last.end.number, last.end.step) == (1, 7)
    assert _is_balanced(last.counters)
    outbox.on_answer(last, Receipt(acknowledged=1, taps=0, described=-1))
    assert not outbox.has_news
    outbox.put(a_frame(8))
    assert outbox.counters == DeliveryCounters(produced=2, acknowledged=1, dropped={"closed": 1})


class _Spool:
    """Keeps all that it is given, in memory."""

    path, trouble, newest = Path(), None, -1

    def __init__(self) -> None:
        self.items: dict[int, Frame | Snapshot] = {}

    def take(self, number: int, record: Frame | Snapshot) -> None:
        self.items[number], self.newest = record, number

    def write(self) -> None: ...

    def read(self, first: int) -> Iterator[tuple[int, Frame | Snapshot]]:
        yield from ((number, record) for number, record in self.items.items() if number >= first)

    def close(self, run: RunInfo) -> int:
        return 0

    def discard(self) -> None: ...

    def abandon(self) -> None: ...


def test_an_item_that_was_refused_is_not_counted_again_when_the_spool_is_read() -> None:
    outbox = Outbox(max_items=2, max_bytes=100_000)
    outbox.spool_to(_Spool())
    for step in range(8):
        outbox.put(a_frame(step, padding=100_000 if step == 5 else 0))
    assert outbox.counters.dropped == {"too-large": 1}
    outbox.refill()
    assert outbox.counters.dropped == {"too-large": 1}
    assert [entry.number for entry in outbox.next_parcel().entries] == [0, 1, 2, 3, 4, 6, 7]
    assert _is_balanced(outbox.counters)

"""The sender with a receiver that is healthy, absent, slow, silent, broken, full, or forgetful. Losses are counted."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hookcore.delivery.http import Address, HttpSink
from hookcore.delivery.http import connection as retries
from hookcore.delivery.http.sender import return_message
from hookcore.delivery.sinks import Sink
from hookcore.records import Command, Coverage, Event, ModuleRecord, Snapshot, Tap
from hookcore.records.wire import Batch, DeliveryCounters, EndItem
from hookcore_app.runs import limits
from tests.inside import pause_of, sender_of, thread_of
from tests.ports import free_port
from tests.receiver import DEADLINE_S, Receiver, a_frame, a_run, serving
from tests.waiting import wait_for
from tests.warm import python

TAP = Tap("layer", "output")
GENEROUS_S = 10.0  # enough for an exit that takes 2 s, on a busy machine


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def url(receiver: Receiver) -> Iterator[str]:
    with serving(receiver) as address:
        yield address


@pytest.fixture
def sink() -> Iterator[HttpSink]:
    made = HttpSink(a_run(), request_s=1.0, close_s=2.0)
    yield made
    made.close_s = 0.0
    made.close()
    thread = thread_of(made)
    if thread is not None:
        thread.join(DEADLINE_S)


def _send(sink: HttpSink, steps: range) -> None:
    for step in steps:
        sink.send(a_frame(step, (TAP,) if step == 0 else ()))


def _is_balanced(counters: DeliveryCounters) -> bool:
    there = counters.acknowledged + sum(counters.dropped.values()) + counters.waiting + counters.in_flight
    return counters.produced == there


def test_the_http_sink_is_a_sink(sink: HttpSink) -> None:
    assert isinstance(sink, Sink)


# -- a healthy receiver ---------------------------------------------------------------------------------------------


def test_every_frame_arrives_once_and_in_order_and_the_run_ends(receiver: Receiver, url: str, sink: HttpSink) -> None:
    sink.start(Address(url))
    sink.describe([ModuleRecord("layer", "Linear", None)])
    _send(sink, range(300))
    sink.close()
    assert receiver.stored == list(range(300))
    assert sink.counters == DeliveryCounters(produced=300, acknowledged=300)
    run = receiver.run()
    assert run.state == "ended"
    assert run.end.step == 299
    assert [module.type for module in run.store.modules()] == ["Linear"]
    assert run.received.counters == DeliveryCounters(produced=300, acknowledged=300)


def test_a_frame_is_sent_immediately_and_not_with_the_next_heartbeat(
    receiver: Receiver, url: str, sink: HttpSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "SIGN_OF_LIFE_S", 3600.0)
    sink.start(Address(url))
    wait_for(lambda: receiver.batches)  # the first sign of life
    for step in range(3):
        sink.send(a_frame(step, (TAP,) if step == 0 else ()))
        wait_for(lambda step=step: sink.counters.acknowledged == step + 1)


def test_a_flush_hurries_the_sender_once(
    receiver: Receiver, url: str, sink: HttpSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "UNREAD_S", 3600.0)
    sink.start(Address(url))
    sink.send(a_frame(0, (TAP,)))
    wait_for(lambda: sink.counters.acknowledged == 1)
    hurry, hurried, stored, looks = sink.outbox.hurry, list[None](), receiver.handle, threading.Semaphore(0)

    def handle(body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        for _ in range(5):
            assert looks.acquire(timeout=DEADLINE_S)
        return stored(body, headers)

    kind: Any = type(sink.outbox)

    def empty(outbox: Any) -> bool:
        looks.release()
        return bool(kind.empty.fget(outbox))

    monkeypatch.setattr(sink.outbox, "__class__", type("Looked", (kind,), {"empty": property(empty)}))

    monkeypatch.setattr(receiver, "handle", handle)
    monkeypatch.setattr(sink.outbox, "hurry", lambda: hurried.append(hurry()))
    _send(sink, range(1, 4))
    assert sink.flush(DEADLINE_S)
    assert receiver.stored == [0, 1, 2, 3]
    assert len(hurried) == 1


def test_one_connection_is_kept(receiver: Receiver, url: str, sink: HttpSink) -> None:
    peers = set()
    with serving(receiver) as address:
        original = receiver.handle
        lock = threading.Lock()

        def handle(body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
            with lock:
                peers.add(threading.get_ident())  # the receiver has one thread for each connection
            return original(body, headers)

        receiver.handle = handle  # type: ignore[method-assign]
        sink.start(Address(address))
        for step in range(20):
            sink.send(a_frame(step, (TAP,) if step == 0 else ()))
            wait_for(lambda step=step: sink.counters.acknowledged == step + 1)
        sink.close()
    assert len(receiver.batches) >= 20
    assert len(peers) == 1


def test_the_token_and_the_content_type_are_sent(receiver: Receiver, url: str, sink: HttpSink) -> None:
    receiver.tokens = ("the-token",)
    sink.start(Address(f"{url}/hookcore", "the-token"))
    wait_for(lambda: receiver.headers)
    headers = receiver.headers[0]
    assert headers["Authorization"] == "Bearer the-token"
    assert headers["Content-Type"] == "application/vnd.hookcore.v1+msgpack"
    assert headers[":path"] == "/hookcore/api/v1/ingest"
    assert "Content-Encoding" not in headers
    assert "the-token" not in repr(Address(url, "the-token"))


def test_a_token_that_no_header_can_contain_does_no_harm(receiver: Receiver, url: str, sink: HttpSink) -> None:
    receiver.tokens = ("two\nlines",)
    sink.start(Address(url, "two\nlines"))
    _send(sink, range(2))
    wait_for(lambda: pause_of(sink).failures > 2)
    assert sink.counters == DeliveryCounters(produced=2, waiting=2)
    assert not receiver.batches


def test_heartbeats_are_sent_when_nothing_happens(receiver: Receiver, url: str, sink: HttpSink) -> None:
    sink.start(Address(url))
    wait_for(lambda: len(receiver.batches) >= 3)
    assert all(not batch.items for batch in receiver.batches)


def test_snapshots_are_sent_too(receiver: Receiver, url: str, sink: HttpSink) -> None:
    sink.start(Address(url))
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    sink.send(Snapshot(TAP, 4, 1.0, "float32", (2, 3), values, number=9))
    sink.close()
    (kept,) = receiver.run().store.snapshots()
    assert np.array_equal(kept.values, values)
    assert kept.number == 9
    assert sink.counters == DeliveryCounters(produced=1, acknowledged=1)


def test_the_largest_snapshot_is_sent_alone_and_later_frames_arrive(
    receiver: Receiver, url: str, sink: HttpSink
) -> None:
    values = np.zeros(60 * 2**20, np.uint8)
    sink.close_s = DEADLINE_S
    sink.send(a_frame(0, (TAP,)))
    sink.send(Snapshot(TAP, 0, 1.0, "uint8", values.shape, values, truncated=True))
    _send(sink, range(1, 4))
    sink.start(Address(url))
    sink.close()
    assert sink.counters == DeliveryCounters(produced=5, acknowledged=5)
    assert receiver.stored == [0, 1, 2, 3]
    assert [len(batch.items) for batch in receiver.batches if batch.items] == [1, 1, 3, 1]  # the end is an item, too


def test_commands_are_passed_on_once_each_and_in_order(receiver: Receiver, url: str, sink: HttpSink) -> None:
    heard: list[int] = []

    def on_command(command: Command) -> None:
        heard.append(command.number)
        if len(heard) == 2:
            raise RuntimeError("a command that fails")

    sink.subscribe(on_command)
    sink.start(Address(url))
    wait_for(lambda: receiver.batches)
    numbers = [receiver.run().ask("inventory").number for _ in range(3)]
    wait_for(lambda: len(heard) == 3)
    wait_for(lambda: receiver.batches[-1].commands_done == numbers[-1])
    _send(sink, range(3))
    wait_for(lambda: sink.counters.acknowledged == 3)
    assert heard == numbers
    assert not receiver.run().commands


def test_commands_wait_for_a_listener(receiver: Receiver, url: str, sink: HttpSink) -> None:
    sink.start(Address(url))
    wait_for(lambda: receiver.batches)
    number = receiver.run().ask("inventory").number
    wait_for(lambda: len(receiver.batches) > 3)
    heard: list[int] = []
    sink.subscribe(lambda command: heard.append(command.number))
    wait_for(lambda: heard == [number])


def test_the_current_settings_are_sent(receiver: Receiver, url: str, sink: HttpSink) -> None:
    now = {"every": 1}
    sink.start(Address(url), lambda: now)
    wait_for(lambda: receiver.batches)
    now = {"every": 7}
    wait_for(lambda: receiver.run().info.settings == {"every": 7})


def test_a_tls_server_is_trusted_by_its_own_authority(
    receiver: Receiver, sink: HttpSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *name, *files]
    subprocess.run(request, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with serving(receiver, tls=context) as address:
        assert address.startswith("https://")
        stranger = HttpSink(a_run(), close_s=0.0)
        stranger.start(Address(address))
        wait_for(lambda: "certificate" in (stranger.trouble or "").lower())
        stranger.close()
        assert not receiver.batches
        monkeypatch.setenv("HOOKCORE_CA_FILE", str(tmp_path / "cert.pem"))
        sink.start(Address(address))
        _send(sink, range(3))
        sink.close()
    assert receiver.stored == [0, 1, 2]


# -- faults ---------------------------------------------------------------------------------------------------------


def test_data_that_waited_for_an_absent_server_arrives(receiver: Receiver, sink: HttpSink) -> None:
    port = free_port()
    numbers = random.getstate()
    sink.start(Address(f"http://127.0.0.1:{port}"))
    _send(sink, range(5))
    wait_for(lambda: sink.trouble)
    wait_for(lambda: sink.counters == DeliveryCounters(produced=5, waiting=5))  # not during retries
    with serving(receiver, port):
        wait_for(lambda: sink.counters.acknowledged == 5)
    assert receiver.stored == list(range(5))
    assert random.getstate() == numbers  # because the training draws from it


def test_with_an_absent_server_the_rest_is_counted_as_closed(sink: HttpSink) -> None:
    sink.close_s = 0.3
    sink.start(Address(f"http://127.0.0.1:{free_port()}"))
    _send(sink, range(5))
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < GENEROUS_S
    assert sink.counters == DeliveryCounters(produced=5, dropped={"closed": 5})
    _send(sink, range(1))
    assert sink.counters == DeliveryCounters(produced=6, dropped={"closed": 6})


def test_a_dashboard_that_is_still_starting_when_the_training_ends_gets_everything(receiver: Receiver) -> None:
    closing = threading.Event()

    def starting(batch: Batch) -> None:
        assert closing.wait(DEADLINE_S)
        time.sleep(0.0 if receiver.stored else 3.0)  # longer than a sink waits for an absent server

    receiver.before = starting
    with serving(receiver) as url:
        sink = HttpSink(a_run(), max_items=10, close_s=2.0)
        sink.start(Address(url))
        _send(sink, range(10))
        wait_for(lambda: sink.counters.in_flight)
        closing.set()
        sink.close()
    assert receiver.stored == list(range(10))
    assert sink.counters == DeliveryCounters(produced=10, acknowledged=10)


def test_a_server_that_never_answers_delays_nothing(sink: HttpSink) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
        slow = HttpSink(a_run(), max_items=10, request_s=3600.0, close_s=0.5)
        slow.send(a_frame(0, (TAP,)))
        slow.start(Address(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        wait_for(lambda: slow.counters.in_flight == 1)
        for step in range(1, 100):
            slow.send(a_frame(step))
        assert slow.counters == DeliveryCounters(produced=100, dropped={"queue-full": 90}, waiting=9, in_flight=1)
        began = time.monotonic()
        slow.close()
        assert time.monotonic() - began < GENEROUS_S
        assert slow.counters == DeliveryCounters(produced=100, dropped={"queue-full": 90, "closed": 9}, in_flight=1)


def test_a_slow_server_gets_everything_in_fewer_batches(receiver: Receiver, url: str, sink: HttpSink) -> None:
    all_sent = threading.Event()

    def answer_late(batch: Batch) -> None:
        assert all_sent.wait(DEADLINE_S)

    receiver.before = answer_late
    sink.start(Address(url))
    _send(sink, range(100))
    all_sent.set()
    sink.close()
    assert receiver.stored == list(range(100))
    assert sum(1 for batch in receiver.batches if batch.items) < 50


@pytest.mark.parametrize("status", [500, 502, 503, 429, 401, 404])
def test_a_temporary_error_loses_no_frame(receiver: Receiver, url: str, sink: HttpSink, status: int) -> None:
    answers = iter([status, status, status])
    receiver.before = lambda batch: next(answers, None)
    sink.start(Address(url))
    _send(sink, range(20))
    wait_for(lambda: sink.counters.acknowledged == 20)
    assert receiver.stored == list(range(20))
    assert sink.counters == DeliveryCounters(produced=20, acknowledged=20)
    assert len(receiver.batches) >= 4


def test_the_servers_error_message_is_kept_for_the_user(receiver: Receiver, url: str, sink: HttpSink) -> None:
    receiver.before = lambda batch: 401
    sink.start(Address(url))
    wait_for(lambda: sink.trouble)
    assert sink.trouble == "it answered 401: as the test wants it"


def test_a_server_that_asks_for_a_pause_gets_one(receiver: Receiver, url: str, sink: HttpSink) -> None:
    receiver.before = lambda batch: 429
    receiver.extra = {"Retry-After": "99999"}
    sink.start(Address(url))
    wait_for(lambda: sink.trouble)
    rest = pause_of(sink).until - time.monotonic()
    assert 20 < rest <= retries.MAX_PAUSE_S  # the server asked for a day; this is the most that any server can get


def test_only_the_repeatedly_refused_frame_is_dropped(receiver: Receiver, url: str, sink: HttpSink) -> None:
    receiver.before = lambda batch: 422 if any(getattr(item, "step", 0) == 3 for item in batch.items) else None
    _send(sink, range(8))
    sink.start(Address(url))
    wait_for(lambda: sink.counters.acknowledged == 7)
    assert receiver.stored == [0, 1, 2, 4, 5, 6, 7]
    assert sink.counters == DeliveryCounters(produced=8, acknowledged=7, dropped={"refused": 1})


def test_only_the_frame_that_cannot_be_encoded_is_dropped(receiver: Receiver, url: str, sink: HttpSink) -> None:
    sink.send(a_frame(0, (TAP,)))
    bad = a_frame(1)
    bad.labels["optimizer"] = {1j}  # type: ignore[assignment]
    sink.send(bad)
    sink.send(a_frame(2))
    sink.start(Address(url))
    wait_for(lambda: sink.counters.acknowledged == 2)
    assert receiver.stored == [0, 2]
    assert sink.counters == DeliveryCounters(produced=3, acknowledged=2, dropped={"unsendable": 1})


def test_long_texts_are_cut_and_stay_distinct(receiver: Receiver, url: str, sink: HttpSink) -> None:
    long = "x" * 5_000
    sink.start(Address(url), lambda: {"include": [long] * 50, "every": 3})
    sink.describe(
        [ModuleRecord(long, "Linear", None, aliases=(long,)), ModuleRecord(f"{long}y", "Linear", long)],
        [Coverage(long, "Linear", False, (), long * 9)],
    )
    event = Event(0, 0.0, "hook-error", long * 9, module=long)
    taps = (Tap(long, "output"), Tap(f"{long}y", "output"))
    sink.send(replace(a_frame(0, taps, (0, 1)), events=(event,), scalars={long: 1.0}, labels={"optimizer": long}))
    sink.send(Snapshot(taps[0], 0, 1.0, "float32", (1,), np.zeros(1, np.float32)))
    sink.close()
    assert sink.counters == DeliveryCounters(produced=2, acknowledged=2)
    for batch in receiver.batches:
        limits.check(batch)  # as the server does
    store = receiver.run().store
    assert len({tap.module for tap in store.taps().taps}) == 2
    assert {module.path for module in store.modules()} == {tap.module for tap in store.taps().taps}
    assert store.snapshots()[0].tap == store.taps().taps[0]
    assert receiver.run().info.settings["every"] == 3


def test_answers_from_other_servers_are_not_trusted(url: str, receiver: Receiver, sink: HttpSink) -> None:
    receiver.handle = lambda body, headers: (200, b"<html>hello</html>")  # type: ignore[method-assign]
    sink.start(Address(url))
    _send(sink, range(2))
    wait_for(lambda: sink.trouble)
    assert "not a hookcore server" in sink.trouble
    assert sink.counters.acknowledged == 0


def test_a_batch_whose_answer_was_lost_is_sent_again_and_stored_once(
    receiver: Receiver, url: str, sink: HttpSink
) -> None:
    drops = iter([0, 0, 0])

    def drop(batch: Batch) -> int | None:
        return next(drops, None) if batch.items else None

    receiver.after = drop
    sink.start(Address(url))
    for step in range(30):
        sink.send(a_frame(step, (TAP,) if step == 0 else ()))
        time.sleep(0.002)
    wait_for(lambda: sink.counters.acknowledged == 30)
    assert receiver.stored == list(range(30))
    assert receiver.items_sent() > 30
    assert receiver.run().store.taps_announced == 1


def test_a_server_that_lost_its_memory_gets_everything_again(receiver: Receiver, sink: HttpSink) -> None:
    port = free_port()
    with serving(receiver, port) as address:
        sink.start(Address(address))
        sink.describe([ModuleRecord("layer", "Linear", None)])
        _send(sink, range(10))
        wait_for(lambda: sink.counters.acknowledged == 10)
    receiver.forget()
    for step in range(10, 15):
        sink.send(a_frame(step, (Tap("late", "output"),) if step == 10 else (), (0, 1)))
    wait_for(lambda: sink.trouble)
    with serving(receiver, port):
        wait_for(lambda: sink.counters.acknowledged == 15)
        run = receiver.run()
        wait_for(lambda: run.received.described >= 0)
        assert receiver.stored == list(range(15))
        assert [tap.module for tap in run.store.taps().taps] == ["layer", "late"]
        assert [module.type for module in run.store.modules()] == ["Linear"]
        assert run.store.usage().dropped.get("rows_of_unknown_taps", 0) == 0
    assert sink.counters == DeliveryCounters(produced=15, acknowledged=15)


def test_a_server_that_forgets_during_silence_is_updated_by_the_next_sign_of_life(
    receiver: Receiver, url: str, sink: HttpSink
) -> None:
    sink.start(Address(url))
    sink.describe([ModuleRecord("layer", "Linear", None)])
    _send(sink, range(2))
    wait_for(lambda: sink.counters.acknowledged == 2)
    receiver.forget()
    wait_for(lambda: receiver.runs.get("run") is not None and receiver.run().store.taps_announced == 1)
    wait_for(lambda: receiver.run().received.described >= 0)


def test_a_server_that_moved_is_found_again(receiver: Receiver, sink: HttpSink) -> None:
    addresses: list[Address] = []
    receiver.tokens = ("old", "new")
    with serving(receiver) as first:
        addresses.append(Address(first, "old"))
        sink.start(lambda: addresses[-1])
        _send(sink, range(3))
        wait_for(lambda: sink.counters.acknowledged == 3)
    with serving(receiver) as second:
        addresses.append(Address(second, "new"))
        sink.send(a_frame(3))
        wait_for(lambda: sink.counters.acknowledged == 4)
    assert receiver.stored == [0, 1, 2, 3]
    assert receiver.headers[-1]["Authorization"] == "Bearer new"


def test_an_absent_server_is_reported_once_and_at_the_end_how_much_was_lost(
    sink: HttpSink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "WARN_AFTER_S", 0.0)
    sink.close_s = 0.3
    sink.start(Address(f"http://127.0.0.1:{free_port()}"), advice="Look into the log.")
    _send(sink, range(2))
    wait_for(lambda: pause_of(sink).failures > 3)
    sink.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.WARNING]
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith("hookcore: the server isn't accepting frames (")
    assert "refused" in first
    assert first.endswith("Look into the log.")
    assert last.startswith("hookcore: the run has ended, and 2 of its 2 frames and snapshots did not reach")
    assert last.endswith(": 2 not sent in time. Look into the log.")


def test_a_server_that_disappears_after_receiving_data_is_reported_with_the_losses(
    receiver: Receiver, sink: HttpSink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "WARN_AFTER_S", 0.0)
    sink.close_s = 0.3
    with serving(receiver) as url:
        sink.start(Address(url))
        _send(sink, range(2))
        wait_for(lambda: sink.counters.acknowledged == 2)
    sink.send(a_frame(2))
    wait_for(lambda: pause_of(sink).failures > 3)
    sink.close()
    first, last = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "isn't accepting frames" in first
    assert "1 of its 3 frames" in last


def test_a_server_that_accepts_frames_again_is_reported_each_time(
    receiver: Receiver, sink: HttpSink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "WARN_AFTER_S", 0.0)
    port, said = free_port(), caplog.records
    sink.start(Address(f"http://127.0.0.1:{port}"))
    for turn in (1, 2):
        wait_for(lambda count=2 * turn - 1: len(said) == count)  # type: ignore[misc]
        with serving(receiver, port=port):
            wait_for(lambda count=2 * turn: len(said) == count)  # type: ignore[misc]
    told = [record.getMessage() for record in said[:4]]
    assert [each.partition(" (")[0] for each in told[::2]] == ["hookcore: the server isn't accepting frames"] * 2
    assert told[1::2] == ["hookcore: the server is accepting frames again."] * 2
    some = DeliveryCounters(produced=5000, dropped={"queue-full": 2})
    assert return_message(some).endswith(
        "again. 2 of 5,000 frames and snapshots were dropped because too many were waiting."
    )


def test_frames_wait_for_others_only_while_nobody_looks_at_the_run() -> None:
    found, now = retries.Retries(), time.monotonic()
    found.note_sent(has_news=True)
    assert found.due_at(True, can_wait=True) < now + retries.UNREAD_S
    found.is_followed = False
    assert found.due_at(True, can_wait=True) >= now + retries.UNREAD_S
    assert found.due_at(True, can_wait=False) < now + retries.UNREAD_S
    found.end(1.0, 1.0)
    assert found.due_at(True, can_wait=True) < now + retries.UNREAD_S


def test_a_server_that_is_back_after_a_long_time_is_asked_again_soon() -> None:
    found = retries.Retries()
    for _ in range(20):
        found.fail(0.0, retries.MAX_PAUSE_S, is_absent=True)
    found.fail(0.0, retries.MAX_PAUSE_S, is_absent=False)  # it has just started, and takes its time
    assert found.pause.until - time.monotonic() <= retries.FIRST_PAUSE_S
    for _ in range(20):
        found.fail(0.0, retries.MAX_PAUSE_S, is_absent=False)
    assert found.pause.failures == 21, "pauses grow again"


def test_a_local_server_that_dies_while_it_answers_is_asked_again_within_a_second(
    receiver: Receiver, sink: HttpSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest: list[float] = []
    fail = retries.Retries.fail

    def failed(self: retries.Retries, at_least_s: float, longest_s: float, is_absent: bool) -> bool:
        longest.append(longest_s)
        return fail(self, at_least_s, longest_s, is_absent)

    monkeypatch.setattr(retries.Retries, "fail", failed)
    _send(sink, range(3))
    with _hanging_up() as url:
        sink.start(Address(url))
        wait_for(lambda: len(longest) > 4)
    assert set(longest) <= {retries.MAX_PAUSE_HERE_S}


@contextlib.contextmanager
def _hanging_up() -> Iterator[str]:
    """Serve a port that takes each request and ends the connection without an answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(100)

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_unsent_items_are_reported_even_if_the_sender_thread_is_gone(
    sink: HttpSink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_of(sink), "_run", lambda: None)  # nothing prevents a thread from ending
    sink.start(Address("http://127.0.0.1:1"))
    _send(sink, range(3))
    wait_for(lambda: thread_of(sink) is not None and not thread_of(sink).is_alive())
    sink.close()
    sink.close()
    (record,) = caplog.records
    assert "3 of its 3 frames and snapshots did not reach the server" in record.getMessage()
    assert record.getMessage().endswith("3 not sent in time.")
    assert sink.counters.dropped["closed"] == 3


def test_an_unanswered_short_run_is_reported_at_its_end(sink: HttpSink, caplog: pytest.LogCaptureFixture) -> None:
    sink.close_s = 0.3
    sink.start(Address(f"http://127.0.0.1:{free_port()}"))
    sink.close()
    (record,) = caplog.records
    assert "0 of its 0 frames" in record.getMessage()


def test_the_end_reports_dropped_and_unanswered_items_and_nothing_if_all_arrived(
    receiver: Receiver, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with_gap = HttpSink(a_run(), max_items=2, close_s=0.5)
    _send(with_gap, range(3))
    with_gap.start(Address(url))
    with_gap.close()
    whole = HttpSink(a_run("whole"))
    whole.start(Address(url))
    _send(whole, range(2))
    whole.close()
    cut_off = HttpSink(a_run("cut"), close_s=0.3)
    receiver.before = lambda batch: 500 if batch.items else None
    cut_off.start(Address(url))
    _send(cut_off, range(1))
    cut_off.close()
    gap, unanswered = (record.getMessage() for record in caplog.records)
    assert "1 of its 3 frames" in gap
    assert gap.endswith("1 dropped because too many were waiting.")
    assert "1 of its 1 frames" in unanswered
    assert "(it answered 500" in unanswered
    assert unanswered.endswith("1 sent without an answer.")


def test_many_senders_at_once_lose_and_duplicate_nothing(receiver: Receiver, url: str) -> None:
    sinks = [HttpSink(a_run(f"run{number}"), close_s=DEADLINE_S) for number in range(8)]
    for each in sinks:
        each.start(Address(url))
    for step in range(40):
        for each in sinks:
            each.send(a_frame(step, (TAP,) if step == 0 else ()))
    for each in sinks:
        each.close()
        assert each.counters == DeliveryCounters(produced=40, acknowledged=40)
        assert receiver.run(each.info.id).store.steps().count == 40
    assert sorted(receiver.stored) == sorted(list(range(40)) * 8)


def test_the_delivery_counters_add_up_at_every_moment(receiver: Receiver, url: str) -> None:
    answers = iter([500, 0, None, 429, None, 422, 0, None, 503] * 30)
    receiver.after = lambda batch: next(answers, None)
    sink = HttpSink(a_run(), max_items=20, close_s=1.0)
    sink.start(Address(url))
    wrong: list[DeliveryCounters] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            counters = sink.counters
            if not _is_balanced(counters):
                wrong.append(counters)

    looking = threading.Thread(target=look)
    looking.start()
    for step in range(400):
        sink.send(a_frame(step, (TAP,) if step == 0 else ()))
        if step % 50 == 0:
            time.sleep(0.01)
    sink.close()
    over.set()
    looking.join()
    assert not wrong
    assert sink.counters.produced == 400
    assert sink.counters.waiting == 0


def test_a_deadline_ends_even_a_long_pause(sink: HttpSink, receiver: Receiver) -> None:
    port = free_port()
    sink.start(Address(f"http://127.0.0.1:{port}"))
    _send(sink, range(3))
    wait_for(lambda: sink.trouble)
    pause_of(sink).until = time.monotonic() + 3600
    with serving(receiver, port):
        sink.close()
    assert sink.counters == DeliveryCounters(produced=3, acknowledged=3)


# -- processes ------------------------------------------------------------------------------------------------------

SENDING = """
import sys, time
from hookcore.delivery.http import Address, HttpSink
from hookcore.records import Tap
from tests.receiver import a_frame, a_run
sink = HttpSink(a_run())
sink.start(Address(sys.argv[1]))
step = 0
while True:
    sink.send(a_frame(step, (Tap("layer", "output"),) if step == 0 else ()))
    step += 1
    time.sleep(0.002)
"""


def test_a_killed_trainer_leaves_a_consistent_prefix_and_a_lost_run(receiver: Receiver, url: str) -> None:
    root = Path(__file__).parents[2]
    trainer = subprocess.Popen([python(), "-c", SENDING, url], cwd=root)
    try:
        wait_for(lambda: len(receiver.stored) > 50)
    finally:
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
    with receiver.lock:
        assert receiver.stored == list(range(len(receiver.stored)))
        run = receiver.run()
    run.signs.lost_after_s = 0.0
    assert run.state == "lost"
    assert run.store.steps().newest == receiver.stored[-1]


def test_a_forked_child_never_sends_and_leaves_the_parents_connection_alone(receiver: Receiver, url: str) -> None:
    code = f"""
import os, sys, time, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads
from hookcore.delivery.http import Address, HttpSink
from hookcore.records import Tap
from tests.receiver import a_frame, a_run
sink = HttpSink(a_run(), close_s=15.0)
sink.start(Address({url!r}))
os.register_at_fork(after_in_child=sink.abandon)
for step in range(60):
    sink.send(a_frame(step, (Tap("layer", "output"),) if step == 0 else ()))
    child = os.fork()
    if child == 0:
        sink.send(a_frame(10_000 + step))
        sink.describe([])
        sink.close()
        os._exit(sink.counters.acknowledged)
    assert os.waitpid(child, 0)[1] == 0
sink.close()
assert sink.counters.acknowledged == 60, sink.counters
"""
    subprocess.run([python(), "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=60)
    assert receiver.stored == list(range(60))
    assert [type(item) for batch in receiver.batches for item in batch.items].count(EndItem) == 1


def test_a_fork_while_the_lock_is_held_hangs_no_process(sink: HttpSink) -> None:
    with sink.outbox.changed:
        child = os.fork()
        if child == 0:
            sink.abandon()
            held = threading.Thread(target=lambda: sink.send(a_frame(0)))  # another thread, which owns no lock
            held.start()
            held.join(DEADLINE_S)
            os._exit(1 if held.is_alive() else 0)
    assert os.waitpid(child, 0)[1] == 0

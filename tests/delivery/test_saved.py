"""The end of a run whose server may be killed: its trainer waits until all is on disk, or reports possible losses."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookcore.delivery.archive import Scribe, read_archive
from hookcore.delivery.http import Address, HttpSink, Outbox
from hookcore.delivery.http.sender import batch_of
from hookcore.records import Tap
from hookcore.records.wire import Batch, DeliveryCounters, EndItem, Receipt, encode, frame_item
from hookcore_app.collector.lanes import Lanes
from tests.archive_world import kept_in
from tests.inside import module_of
from tests.keep_world import INFO, SERVER_SETTINGS, TAPS, ServerProcess, batch, start, stop
from tests.lanes import examples
from tests.receiver import Receiver, a_frame, a_run, serving
from tests.serving import TOKEN, World, make_world, served
from tests.waiting import wait_for
from tests.warm import python

TAP = Tap("layer", "output")
TRAINING = """
import json, os, sys, time
from pathlib import Path
import torch
from torch import nn
import hookcore
from hookcore.watcher import parts_of

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
watcher = hookcore.watch(model, budget=None)
for step in range(40):
    model(torch.randn(4, 4)).square().mean().backward()
    watcher.step()
    while step == 3 and not list(Path(sys.argv[2]).glob("*/steps/*.parquet")):
        time.sleep(0.01)  # until the first part is written; the next one is due five seconds later
assert watcher.flush(60.0)
parts_of(watcher).delivery.sink.close_s = {close_s}
{end}
print(json.dumps({{"steps": step + 1, "acknowledged": watcher.delivery.acknowledged}}))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    made = ServerProcess(tmp_path)
    made.start()
    yield made
    made.kill()


def train(server: ServerProcess, folder: Path, end: str, close_s: float) -> tuple[dict[str, int], str]:
    """Run a training, and return what it has counted itself, and its warnings."""
    script = folder / "train.py"
    script.write_text(TRAINING.format(end=end, close_s=close_s))
    environment = {**os.environ, **SERVER_SETTINGS, "HOOKCORE_SERVER": server.url, "HOOKCORE_CAPSULE": "never"}
    command = [python(), str(script), str(server.pid), str(server.folder)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout), ran.stderr


def saved_steps(folder: Path) -> list[int]:
    return [frame.step for frame in read_archive(kept_in(folder)).frames() if frame.taps.size]


KILL = "os.kill(int(sys.argv[1]), 9)"


@pytest.mark.slow
def test_a_server_that_is_killed_right_after_a_run_has_ended_loses_nothing_of_it(
    server: ServerProcess, tmp_path: Path
) -> None:
    counted, said = train(server, tmp_path, f"watcher.close(); {KILL}", close_s=60.0)
    assert "hookcore: the run has ended" not in said
    assert saved_steps(server.folder) == list(range(counted["steps"]))
    assert read_archive(kept_in(server.folder)).state == "ended"
    server.kill()
    server.start()
    with server.client() as client:
        (listed,) = client.runs()
        run = client.run(listed.id)
        assert (listed.state, listed.steps) == (run.state, run.steps)
        assert (run.state, run.steps) == ("ended", counted["steps"])
        assert not client.events(name="cut-off").events


@pytest.mark.slow
def test_the_trainer_counts_possible_losses_of_a_killed_server_and_the_next_server_reports_them(
    server: ServerProcess, tmp_path: Path
) -> None:
    counted, said = train(server, tmp_path, f"{KILL}; watcher.close()", close_s=0.5)
    found = re.search(r"saved the last (\d+) of the (\d+) frames and snapshots that it acknowledged", said)
    assert found is not None, said
    lost, acknowledged = map(int, found.groups())
    assert acknowledged == counted["acknowledged"]
    there = len(list(read_archive(kept_in(server.folder)).frames()))
    assert there < acknowledged  # otherwise, nothing was lost, and nothing is tested
    assert there + lost >= acknowledged
    server.kill()
    server.start()
    with server.client() as client:
        (run,) = client.runs()
        assert run.state == "lost"
        (event,) = client.events(name="cut-off").events
        assert event.severity == "warning"
        assert "Its amount is unknown" in event.message


@pytest.mark.slow
def test_every_loss_is_reported_whenever_a_server_is_killed_while_runs_end(server: ServerProcess) -> None:
    rng = random.Random(3)
    for turn in range(examples(3)):
        sinks = [HttpSink(a_run(f"run-{turn}-{number}"), close_s=60.0) for number in range(4)]
        for sink in sinks:
            sink.start(Address(server.url, TOKEN))
            for step in range(50):
                sink.send(a_frame(step, (TAP,) if step == 0 else (), padding=2000))
        closing = [threading.Thread(target=sink.close) for sink in sinks]
        for thread in closing:
            thread.start()
        time.sleep(rng.uniform(0.0, 0.3))
        server.kill()
        server.start()  # while they wait
        for thread in closing:
            thread.join()
        for sink in sinks:
            (folder,) = server.folder.glob(f"*-{sink.info.id}.hookcore")
            archive = read_archive(folder)
            assert [frame.step for frame in archive.frames()] == list(range(50))
            assert (archive.state, sink.outbox.unsaved, sink.counters.dropped) == ("ended", None, {})


def test_a_trainer_does_not_wait_for_a_disk_that_takes_nothing_and_says_what_is_not_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with served(keep=str(tmp_path), keep_limit=1) as server:
        sink = HttpSink(a_run(), close_s=1e6)  # or the test would not end
        sink.start(Address(server.url, TOKEN))
        for step in range(3):
            sink.send(a_frame(step, (TAP,) if step == 0 else ()))
        assert sink.flush(60.0)
        sink.close()
    (said,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "the server couldn't save the last 3 of the 3 frames and snapshots that it acknowledged: saved runs" in said
    assert "reached the limit of 1 bytes on disk" in said


def test_a_trainer_that_ends_asks_again_until_its_server_has_saved_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver()
    with serving(receiver) as url:
        disk = Disk(saves_at_batch=6)
        receiver.before = lambda batch: disk.see(receiver, batch)
        sink = HttpSink(a_run(), close_s=60.0)
        sink.start(Address(url))
        sink.send(a_frame(0, (TAP,)))
        sink.close()
    assert disk.batches == 6
    assert receiver.run().end.step == 0
    assert not caplog.records


def test_a_dashboard_that_received_the_end_late_gets_the_full_time_to_save_it(caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver()
    with serving(receiver) as url:
        disk = Disk(saves_at_batch=6)
        receiver.before = lambda batch: disk.see(receiver, batch)
        sink = HttpSink(a_run(), close_s=1.0)
        with receiver.lock:  # it is still starting
            sink.start(Address(url))
            sink.send(a_frame(0, (TAP,)))
            wait_for(lambda: sink.counters.in_flight)
            closing = threading.Thread(target=sink.close)
            closing.start()
            closing.join(1.5)
            assert closing.is_alive()
        closing.join()
    assert disk.batches == 6
    assert not caplog.records


class Disk:
    """A disk on which everything is saved from a certain batch on."""

    def __init__(self, saves_at_batch: int) -> None:
        self.durable, self.batches, self._saves_at = -1, 0, saves_at_batch
        self.given_up = ""

    def room_for(self, records: Sequence[object]) -> int:
        return len(records)

    def miss(self, count: int) -> None:
        assert not count

    def see(self, receiver: Receiver, batch: Batch) -> None:
        self.batches += 1
        run = receiver.runs.open(batch.run)
        assert run is not None
        run.saved.on_disk = self
        if self.batches >= self._saves_at:
            self.durable = run.received.acknowledged


class _NoScribe(Scribe):
    """Writes only when it is told to, like a slow disk."""

    def add(self, writer: Any) -> None: ...

    def poke(self, writer: Any) -> None: ...


def test_a_server_takes_no_more_than_its_disk_can_catch_up_with_so_nothing_acknowledged_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_of("ArchiveWriter", "delivery.archive"), "UNSAVED_BYTES", 20_000)
    world = make_world(keep=str(tmp_path))
    world.app.state.keeper.scribes[tmp_path] = _NoScribe()
    outbox = Outbox()
    for step in range(100):
        outbox.put(a_frame(step, (TAP,) if step == 0 else (), padding=1000))
    outbox.end()

    def send() -> Receipt:
        parcel = outbox.next_parcel()
        answer = world.take(batch_of(parcel, a_run(), -1))
        outbox.on_answer(parcel, answer)
        return answer

    rounds = 0
    while not outbox.settled:
        first, repeated = send(), send()
        assert 0 < first.acknowledged - (first.durable or 0) < 20
        assert repeated.acknowledged == first.acknowledged  # the trainer has the rest
        assert outbox.counters.waiting == 99 - min(99, first.acknowledged)
        for writer in list(world.app.state.keeper.closing) or [world.runs.all()[0].saved.on_disk]:
            writer.write_part()
        send()
        rounds += 1
    assert rounds > 4
    assert [frame.step for frame in read_archive(kept_in(tmp_path)).frames()] == [*range(100)]
    assert outbox.counters == DeliveryCounters(100, 100)


def test_everything_that_a_server_may_lose_is_retained_even_one_large_frame() -> None:
    outbox = Outbox(max_bytes=40_000)
    outbox.put(a_frame(0, (TAP,), padding=30_000))
    outbox.on_answer(outbox.next_parcel(), Receipt(acknowledged=0, taps=1, described=-1, durable=-1))
    outbox.on_answer(outbox.next_parcel(), Receipt(acknowledged=-1, taps=0, described=-1, durable=-1))
    outbox.on_answer(outbox.next_parcel(), Receipt(acknowledged=-1, taps=1, described=-1, durable=-1))
    assert [entry.number for entry in outbox.next_parcel().entries] == [0]


def test_a_run_on_an_older_server_that_never_reports_it_as_saved_ends_when_its_frames_are_sent() -> None:
    outbox = Outbox()
    outbox.put(a_frame(0, (TAP,)))
    outbox.end()
    answers = [
        Receipt(acknowledged=0, taps=1, described=-1, durable=-1),
        Receipt(acknowledged=1, taps=1, described=-1, durable=-1),
        Receipt(acknowledged=1, taps=1, described=-1, durable=0),
    ]
    seen = []
    for answer in answers:
        outbox.on_answer(outbox.next_parcel(), answer)
        seen.append((outbox.settled, outbox.unsaved))
    assert seen == [(False, 1), (False, 1), (True, None)]


def test_a_server_that_was_killed_after_the_end_gets_the_rest_and_the_end_again() -> None:
    outbox = Outbox()
    for step in range(3):
        outbox.put(a_frame(step, (TAP,) if step == 0 else ()))
    outbox.end()
    for _ in range(2):
        outbox.on_answer(outbox.next_parcel(), Receipt(acknowledged=3, taps=1, described=-1, durable=0, saved=False))
    assert (outbox.has_news, outbox.settled, outbox.unsaved) == (False, False, 2)
    outbox.on_answer(outbox.next_parcel(), Receipt(acknowledged=0, taps=1, described=-1, durable=0, saved=True))
    again = outbox.next_parcel()
    assert [entry.number for entry in again.entries] == [1, 2]
    outbox.on_answer(again, Receipt(acknowledged=2, taps=1, described=-1, durable=0, saved=False))
    last = outbox.next_parcel()
    assert last.end is not None
    outbox.on_answer(last, Receipt(acknowledged=3, taps=1, described=-1, durable=3, saved=True))
    assert (outbox.settled, outbox.unsaved, outbox.counters.acknowledged) == (True, None, 3)


def test_a_collector_lets_go_of_a_run_when_its_server_has_saved_the_end(tmp_path: Path) -> None:
    lanes, world = Lanes(tmp_path / "spool", 10**7, float("inf")), make_world(keep=str(tmp_path / "runs"))
    for items in ((frame_item(0, a_frame(0)),), (EndItem(1, 0),)):
        sent = Batch(run=a_run(), taps=(TAP,), items=items)
        answer = lanes.take(sent, encode(sent))
    assert (answer.acknowledged, answer.durable) == (1, 1)  # still in the spool
    (lane,) = lanes.all()

    def is_finished() -> bool:
        sent = lane.next_batch()
        lane.on_answer(sent, world.take(sent))
        return lane.is_finished

    wait_for(is_finished)
    assert read_archive(kept_in(tmp_path / "runs")).state == "ended"
    stop(world)
    lanes.close()


def test_only_a_server_that_did_not_stop_by_itself_leaves_a_run_that_says_so(tmp_path: Path) -> None:
    def events(world: World) -> list[str]:
        run = world.runs.find(INFO.id)
        assert run is not None
        return [event.name for event in run.store.events()]

    world = make_world(keep=str(tmp_path))
    world.take(batch(INFO, range(3), first=True))
    wait_for(lambda: any(tmp_path.glob("*/steps/*.parquet")))
    assert read_archive(kept_in(tmp_path)).is_cut
    stop(world)
    assert not read_archive(kept_in(tmp_path)).is_cut
    world = start(world.app.state.settings, 1)
    assert events(world) == []
    stop(world)
    file = kept_in(tmp_path) / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "finished": False}))  # as a killed server leaves it
    world = start(world.app.state.settings, 1)
    assert events(world) == ["cut-off"]
    stop(world)
    world = start(world.app.state.settings, 1)
    world.take(msgspec.structs.replace(batch(INFO, range(3, 4)), taps_from=len(TAPS)))
    assert events(world) == ["reconnected"]  # its trainer returns, and sends the missing data
    stop(world)

"""What a trainer can't deliver is on disk, announced, and taken in by the next dashboard. Nothing is doubled."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hookcore
from hookcore.delivery.archive import read_archive, spool
from hookcore.delivery.archive.folder import hold
from hookcore.delivery.archive.spool import RunSpool, spools_in
from hookcore.delivery.dashboard.process import find, join_or_start, status, stop_dashboard, undelivered_folder
from hookcore.delivery.http import Address, HttpSink, sender
from hookcore.records import Event, ModuleRecord, Snapshot, Tap
from hookcore_app.api.ingest import take_into_runs
from hookcore_app.cli import main
from hookcore_app.runs.undelivered import Undelivered
from tests.inside import delivery_of, sender_of
from tests.ports import free_port
from tests.receiver import Receiver, a_frame, a_run, serving
from tests.serving import World, make_world
from tests.waiting import wait_for
from tests.warm import python

TAP = Tap("layer", "output")
SCRIPT = """
import hookcore, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
hookcore.watch(model, name='short', budget=None)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home of a separate user."""
    folder = tmp_path / "home"
    monkeypatch.setenv("HOOKCORE_HOME", str(folder))
    monkeypatch.setattr(sys, "executable", python())  # its dashboards are forks
    return folder


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def make_sink(name: str = "run", server: str = "", **settings: Any) -> HttpSink:
    """Return a sink with a spool."""
    run = a_run(name)
    return HttpSink(run, make_spool=lambda info, describe: RunSpool(info, describe, server), **settings)


def send(sink: HttpSink, steps: range) -> None:
    for step in steps:
        sink.send(a_frame(step, (TAP,) if step == 0 else ()))


def _is_warned(sink: HttpSink) -> bool:
    return sender_of(sink).warned and sender_of(sink).spooling.path is not None


def dead() -> Address:
    return Address(f"http://127.0.0.1:{free_port()}")


def undelivered(world: World) -> Undelivered:
    state = world.app.state
    return Undelivered(world.runs, lambda batch: take_into_runs(state, batch, bytearray(), True), undelivered_folder())


def steps_of(world: World, run: str = "run") -> list[int]:
    found = world.runs.get(run)
    assert found is not None
    series = world.runs.read(found).store.series(0, "mean")
    assert series.first_step.tolist() == series.last_step.tolist()
    return list(series.first_step.tolist())


def the_spool() -> Path:
    (path,) = spools_in(undelivered_folder())
    return path


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for world in made:
        world.app.state.keeper.close()


def test_what_an_absent_server_misses_is_a_saved_run(caplog: pytest.LogCaptureFixture) -> None:
    sink = make_sink(close_s=0.3)
    sink.start(dead(), is_checked=True)
    sink.describe([ModuleRecord("layer", "Linear", None)])
    wait_for(lambda: caplog.records, "the warning that comes at once")
    send(sink, range(20))
    sink.close()
    path = the_spool()
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith("hookcore: the server isn't accepting frames (")
    assert first.endswith(f"Until it does, frames are kept in {path}.")
    assert "20 of its 20 frames and snapshots did not reach the server" in last
    assert f"What it hasn't saved is in {path}." in last
    archive = read_archive(path)
    assert [frame.step for frame in archive.frames()] == list(range(20))
    assert [each.path for each in archive.modules()] == ["layer"]
    assert (archive.state, archive.last_step, archive.is_cut) == ("ended", 19, False)
    assert path.stat().st_mode & 0o077 == 0, "only the user can read it"


def test_a_trainer_that_is_killed_loses_only_what_was_not_written_yet(
    monkeypatch: pytest.MonkeyPatch, worlds: list[World]
) -> None:
    monkeypatch.setattr(sender, "PART_S", 0.05)
    sink = make_sink(close_s=0.0)
    sink.start(dead(), is_checked=True)
    send(sink, range(20))
    wait_for(lambda: _is_warned(sink))
    wait_for(lambda: len(list(read_archive(the_spool()).frames())) == 20)
    copy = undelivered_folder() / "killed.hookcore"
    unfinished = shutil.ignore_patterns("*.unfinished")  # the sender is still at work, and may rename one meanwhile
    shutil.copytree(the_spool(), copy, ignore=unfinished)  # as a kill would leave it
    sink.close()
    shutil.rmtree(next(path for path in spools_in(undelivered_folder()) if path != copy))
    worlds.append(world := make_world())
    undelivered(world).look()
    assert steps_of(world) == list(range(20))
    run = world.runs.get("run")
    assert run is not None
    assert not run.end.is_known


def test_everything_arrives_once_when_the_server_is_back_however_much_waited(receiver: Receiver) -> None:
    sink = make_sink(max_items=50, request_s=1.0)
    address = dead()
    sink.start(address, is_checked=True)
    wait_for(lambda: _is_warned(sink))
    for step in range(500):
        events = (Event(step, 0.0, "odd", f"event {step}"),) if step % 100 == 0 else ()
        sink.send(replace(a_frame(step, (TAP,) if step == 0 else ()), events=events))
        if step == 250:
            sink.send(Snapshot(TAP, 250, 0.0, "float32", (2,), np.ones(2, np.float32)))
    counters = sink.counters
    assert (counters.produced, counters.waiting, counters.dropped) == (501, 501, {})
    with serving(receiver, int(address.url.rpartition(":")[2])):
        wait_for(lambda: sink.counters.acknowledged == 501, "all that waited")
        send(sink, range(500, 510))
        sink.close()
    assert receiver.stored == list(range(510))
    assert sink.counters.dropped == {}
    assert len(receiver.run().store.snapshots()) == 1
    told = [event.message for event in receiver.run().store.events() if event.name == "odd"]
    assert told == [f"event {step}" for step in range(0, 500, 100)]
    assert not spools_in(undelivered_folder()), "the server has it"


def test_a_dashboard_takes_in_the_rest_of_a_run_once(tmp_path: Path, worlds: list[World]) -> None:
    worlds.append(world := make_world(keep=str(tmp_path / "runs")))
    receiver = Receiver()
    receiver.take = world.take  # type: ignore[method-assign]
    address = dead()
    sink = make_sink(close_s=0.3)
    with serving(receiver, int(address.url.rpartition(":")[2])):
        sink.start(address)
        send(sink, range(10))
        wait_for(lambda: sink.counters.acknowledged == 10)
    send(sink, range(10, 30))
    sink.close()
    path, taking = the_spool(), undelivered(world)
    lock = hold(path)
    taking.look()
    assert steps_of(world) == list(range(10)), "another process holds it"
    assert lock is not None
    os.close(lock)
    taking.look()
    taking.look()
    assert steps_of(world) == list(range(30))
    run = world.runs.get("run")
    assert run is not None
    assert run.state == "ended"
    (told,) = (event for event in run.store.events() if event.name == "undelivered")
    assert told.message.startswith("20 frames and snapshots didn't reach the dashboard in time")
    wait_for(lambda: taking.look() or not path.exists(), "the end of the spool, whose run is saved")
    world.app.state.keeper.close()
    worlds.append(later := make_world(keep=str(tmp_path / "runs")))
    wait_for(lambda: later.runs.get("run") is not None)
    assert steps_of(later) == list(range(30))


def test_the_status_shows_what_waits(capsys: pytest.CaptureFixture[str]) -> None:
    sink = make_sink(close_s=0.1)
    sink.start(dead(), is_checked=True)
    send(sink, range(5))
    sink.close()
    assert main(["status"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "no dashboard is running"
    assert second.startswith(f"1 run waits for a dashboard, or for its server, in {undelivered_folder()} (")


def test_a_dashboard_that_cannot_save_leaves_the_spool(worlds: list[World]) -> None:
    sink = make_sink(close_s=0.1)
    sink.start(dead(), is_checked=True)
    send(sink, range(5))
    sink.close()
    worlds.append(world := make_world())
    taking = undelivered(world)
    for _ in range(3):
        taking.look()
    assert steps_of(world) == list(range(5))
    assert the_spool().exists()


def test_a_damaged_spool_hides_no_other(worlds: list[World], caplog: pytest.LogCaptureFixture) -> None:
    sink = make_sink(close_s=0.1)
    sink.start(dead(), is_checked=True)
    send(sink, range(5))
    sink.close()
    broken = undelivered_folder() / "a.hookcore"
    shutil.copytree(the_spool(), broken)
    (broken / spool.FILE).write_text("{")
    worlds.append(world := make_world())
    taking = undelivered(world)
    caplog.clear()
    taking.look()
    taking.look()
    assert steps_of(world) == list(range(5))
    (record,) = caplog.records
    assert f"what is in {broken} can't be taken in" in record.getMessage()


def test_a_full_spool_is_reported_and_its_losses_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spool, "LIMIT_BYTES", 1)
    sink = make_sink(close_s=0.1)
    sink.start(dead(), is_checked=True)
    send(sink, range(5))
    sink.close()
    said = [record.getMessage() for record in caplog.records]
    assert any("has reached the limit of 1 bytes" in each for each in said)
    assert "5 of its 5 frames and snapshots did not reach the server" in said[-1]
    assert "They are lost: " in said[-1]


def test_without_a_writable_folder_the_warning_says_that_frames_are_lost(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.write_text("not a folder")
    sink = make_sink(close_s=0.1)
    sink.start(dead(), is_checked=True)
    send(sink, range(5))
    sink.close()
    first, last = (record.getMessage() for record in caplog.records)
    assert "They can't be kept on disk: " in first
    assert "They are lost: " in last


def test_a_run_that_must_not_be_written_is_not_spooled() -> None:
    for keep in (None, "auto"):
        with hookcore.watch(torch.nn.Linear(1, 1), server=dead().url, keep=keep) as watcher:
            delivery_of(watcher).sink.limit_close_time(0.1)
        assert bool(spools_in(undelivered_folder())) == (keep == "auto")


def test_a_forked_child_leaves_the_spool_to_its_parent() -> None:
    sink = make_sink(close_s=0.1)
    sink.start(dead(), is_checked=True)
    wait_for(lambda: _is_warned(sink))
    child = os.fork()
    if not child:
        sink.abandon()
        sink.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        os.waitpid(child, os.WUNTRACED)
        send(sink, range(5))
        sink.close()
        lock = hold(the_spool())
        assert lock is not None, "the child doesn't hold it"
        os.close(lock)
        assert [frame.step for frame in read_archive(the_spool()).frames()] == list(range(5))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def environment_of(home: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "HOOKCORE_HOME": str(home), "HOOKCORE_PORT": "0", "OMP_NUM_THREADS": "1", **more}


@pytest.mark.slow
def test_a_wrong_address_is_said_at_once_and_the_next_dashboard_lists_the_run(home: Path) -> None:
    environment = environment_of(home, HOOKCORE_SERVER=dead().url)
    ran = subprocess.run([python(), "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert "the server isn't accepting frames (" in ran.stderr
    assert f"frames are kept in {the_spool()}" in ran.stderr
    environment["HOOKCORE_SERVER"] = "auto"
    try:
        _check_whole(environment)
    finally:
        stop_dashboard(environment)


@pytest.mark.all
@pytest.mark.slow
def test_a_short_script_loses_nothing_if_its_dashboard_answers_only_later(home: Path) -> None:
    environment = environment_of(home, HOOKCORE_SERVER="auto")
    join_or_start(environment)
    try:
        pid = wait_for(lambda: status(environment).pid, "a process")
        os.kill(pid, signal.SIGSTOP)  # as if all cores were busy
        try:
            ran = subprocess.run([python(), "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert "What it hasn't saved is in " in ran.stderr
        _check_whole(environment)
    finally:
        stop_dashboard(environment)


def _check_whole(environment: dict[str, str]) -> None:
    dashboard = join_or_start(environment)
    client = hookcore.Client(dashboard.url, dashboard.token)
    wait_for(lambda: [run.state for run in client.runs()] == ["ended"], "the run, with its end")
    (run,) = client.runs()
    assert run.newest_step == 39
    assert len(client.series("(root) output", "rms", run=run.id).first_step) == 40
    assert not [event for event in client.events(run=run.id).events if event.name in ("never-arrived", "frame-dropped")]
    assert find(environment) is not None
    wait_for(lambda: not spools_in(Path(environment["HOOKCORE_HOME"]) / "undelivered"), "the removal of the spool")

"""Trainings that end badly: their last steps are on the server and on disk, exact, and show how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from hookcore.delivery.dashboard.private import lives_as, mark_of
from hookcore.records.wire import RunInfo
from hookcore_app.runs import Run, Runs
from hookcore_app.runs.run import GONE_AFTER_S
from hookcore_app.runs.saved import show_all
from hookcore_app.runs.undelivered import ELSEWHERE, ENDED, STUCK, LostMarks
from tests.build import make_info
from tests.serving import TOKEN, make_batch, make_world, served
from tests.waiting import wait_for
from tests.warm import python

STEPS = 120  # the minimum before it ends
SCRIPT = """
import ctypes, os, sys, time
import torch
from torch import nn
import hookcore

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
watcher = hookcore.watch(model, budget=None)
for step in range(100_000):  # without torch's optimizers, whose import takes a third of the time of this script
    model(torch.randn(4, 4)).square().mean().backward()
    watcher.step()
    if step > {steps} and os.path.exists(sys.argv[1]):
        {end}
    time.sleep(0.002)
"""
ENDS = {
    "exception": "raise ValueError('out of luck')",
    "segmentation fault": "ctypes.string_at(0)",
    "abort": "os.abort()",
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "SIGTERM": "os.kill(os.getpid(), 15)",
}
STATES = {"exception": "crashed", "SIGTERM": "stopped"}  # of the others, nothing in the process can tell


def exact_steps(run: Run) -> tuple[list[int], list[float]]:
    """Return the last hundred steps of the first tap, each of which must be a separate point."""
    newest = run.store.steps().newest
    assert newest is not None
    series = run.store.series(0, "rms", newest - 99, newest)
    assert series.first_step.tolist() == series.last_step.tolist()
    return series.first_step.tolist(), series.mean.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
def test_the_last_steps_of_a_training_that_ends_badly_are_shown_and_saved_with_the_reason(
    how: str, tmp_path: Path
) -> None:
    now, folder = tmp_path / "now", tmp_path / "runs"
    environment = {**os.environ, "HOOKCORE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1", "HOOKCORE_CAPSULE": "never"}
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(steps=STEPS, end=ENDS[how]))
    with served(keep=str(folder), lost_after_s=10_000.0) as server:  # so only the end of the process shows it
        environment["HOOKCORE_SERVER"] = server.url
        trainer = subprocess.Popen(
            [python(), str(script), str(now)], env=environment, cwd=tmp_path, stderr=subprocess.PIPE
        )
        try:
            wait_for(lambda: server.runs.all() and (server.runs.all()[0].store.steps().newest or 0) > STEPS, "steps")
            now.touch()
            trainer.communicate()
        finally:
            trainer.kill()
        (run,) = server.runs.all()
        wait_for(lambda: run.finished, "the end")
        wait_for(lambda: event_of(run, STATES.get(how, "lost")), "the event")
        check(run, how)
        steps, values = exact_steps(run)
        assert steps == list(range(steps[0], steps[0] + 100))
    world = make_world(memory=256_000_000, keep="")
    (found,) = show_all(world.runs, folder)  # as `hookcore open` does
    opened = world.runs.read(found)
    check(opened, how)
    saved_steps, saved_values = exact_steps(opened)
    assert saved_steps == steps
    np.testing.assert_array_equal(saved_values, values)


def event_of(run: Run, name: str) -> Any:
    return next((event for event in run.store.events() if event.name == name), None)


def check(run: Run, how: str) -> None:
    """Assert that a run shows how it ended."""
    if how == "exception":
        assert run.state == "crashed"
        assert run.end.failure is not None
        assert run.end.failure.error == "ValueError: out of luck"
        assert "raise ValueError('out of luck')" in run.end.failure.traceback
        assert "out of luck" in event_of(run, "crashed").message
    elif how == "SIGTERM":
        assert run.state == "stopped"
        assert run.end.failure is not None
        assert run.end.failure.signal == "SIGTERM"
        assert event_of(run, "lost") is None
    else:
        event = event_of(run, "lost")
        assert run.state == "lost"
        assert ENDED in event.message
        assert event.severity == "error"
        assert event.step == run.store.steps().newest


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"host": "box"}, " (on box)"),
        ({"pid": 7}, " (process 7)"),
        ({}, ""),
        ({"pid": 7, "host": "b"}, " (process 7 on b)"),
    ],
)
def test_the_event_of_a_lost_trainer_names_its_process_and_host(known: dict[str, Any], words: str) -> None:
    now = 0.0
    world = make_world(clock=lambda: now)
    world.take(make_batch(make_info("one", **known), range(3)))
    now = 100.0
    LostMarks(world.runs).mark()
    assert messages(world.runs)["one"][0].startswith(f"The trainer{words} stopped sending data after step 2.")


def test_a_silent_trainer_is_marked_once_for_each_silence_with_the_state_of_its_process() -> None:
    now = 0.0
    world = make_world(clock=lambda: now)
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        here = make_info("one", pid=sleeper.pid, host=os.uname().nodename)
        there = make_info("two", pid=sleeper.pid, host="elsewhere")
        world.take(make_batch(here, range(3)))
        world.take(make_batch(there, range(3)))
        marks = LostMarks(world.runs)
        marks.mark()
        assert messages(world.runs) == {"one": [], "two": []}
        now = 100.0
        marks.mark()
        marks.mark()
        found = messages(world.runs)
        assert [STUCK in each for each in found["one"]] == [True]
        assert [ELSEWHERE in each for each in found["two"]] == [True]
        assert f"(process {sleeper.pid} on elsewhere) stopped sending data after step 2." in found["two"][0]
        world.take(make_batch(here, [3], first=False))
        marks.mark()
        assert len(messages(world.runs)["one"]) == 1
        sleeper.send_signal(signal.SIGKILL)
        sleeper.wait()
        now = 200.0
        marks.mark()
        assert [ENDED in each for each in messages(world.runs)["one"]] == [False, True]


@pytest.fixture
def marked() -> Iterator[tuple[subprocess.Popen[bytes], RunInfo]]:
    """A process, and one of its runs as the trainer describes it."""
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        try:
            mark = mark_of(sleeper.pid)
            yield sleeper, make_info("one", pid=sleeper.pid, host=os.uname().nodename, process=mark)
        finally:
            sleeper.kill()


@pytest.mark.parametrize("collected", [True, False])
def test_a_killed_process_is_detected_long_before_the_silence_timeout(
    marked: tuple[subprocess.Popen[bytes], RunInfo], collected: bool
) -> None:
    sleeper, info = marked
    now = 0.0
    world = make_world(clock=lambda: now)
    world.take(make_batch(info, range(3)))
    marks = LostMarks(world.runs)
    (run,) = world.runs.all()
    now = GONE_AFTER_S + 1.0
    marks.mark()
    assert (run.state, messages(world.runs)) == ("live", {"one": []})
    sleeper.kill()
    if collected:
        sleeper.wait()
    wait_for(lambda: lives_as(info.pid, info.process) is False, "the end")
    marks.mark()
    assert run.state == "lost"
    assert [ENDED in each for each in messages(world.runs)["one"]] == [True]
    world.take(make_batch(info, [3], first=False))  # it was on its way
    assert run.state == "live"
    now += GONE_AFTER_S + 1.0
    marks.mark()
    assert run.state == "lost"


def test_the_last_batch_of_an_ended_process_is_awaited(
    marked: tuple[subprocess.Popen[bytes], RunInfo],
) -> None:
    sleeper, info = marked
    now = 0.0
    world = make_world(clock=lambda: now)
    world.take(make_batch(info, range(3)))
    sleeper.kill()
    sleeper.wait()
    now = GONE_AFTER_S - 0.1
    LostMarks(world.runs).mark()
    assert world.runs.all()[0].state == "live"


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_a_process_on_another_host_is_never_mistaken_for_a_local_one(
    marked: tuple[subprocess.Popen[bytes], RunInfo], part: int
) -> None:
    sleeper, info = marked
    sleeper.kill()
    sleeper.wait()
    parts = info.process.split("/")  # the machine, its boot, and the namespaces of process numbers and times
    assert len(parts) == 5
    assert lives_as(info.pid, info.process) is False
    parts[part] += "1"
    assert lives_as(info.pid, "/".join(parts)) is None
    now = 0.0
    world = make_world(clock=lambda: now)
    world.take(make_batch(replace(info, process="/".join(parts)), range(3)))
    now = GONE_AFTER_S + 1.0
    LostMarks(world.runs).mark()
    assert world.runs.all()[0].state == "live"
    now = 100.0
    LostMarks(world.runs).mark()
    assert [ELSEWHERE in each for each in messages(world.runs)["one"]] == [True]


def test_a_later_process_with_the_same_number_is_not_the_one_that_ended() -> None:
    here = mark_of(os.getpid())
    place, _, started = here.rpartition("/")
    assert lives_as(os.getpid(), here) is True
    assert lives_as(os.getpid(), f"{place}/{int(started) - 1}") is False
    assert lives_as(os.getpid(), "") is None
    assert lives_as(2**52, f"{place}/1") is False


@pytest.mark.parametrize("pid", [0, 2**52])
def test_a_trainer_can_claim_any_process(pid: int) -> None:
    now = 0.0
    world = make_world(clock=lambda: now)
    world.take(make_batch(make_info("one", pid=pid, host=os.uname().nodename), range(3)))
    now = 100.0
    LostMarks(world.runs).mark()
    assert ELSEWHERE in messages(world.runs)["one"][0]


def messages(runs: Runs) -> dict[str, list[str]]:
    return {run.id: [each.message for each in run.store.events() if each.name == "lost"] for run in runs.all()}


def test_a_saved_run_is_not_marked_again() -> None:
    world = make_world()
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.saved.from_disk = True
    LostMarks(world.runs).mark()
    assert run.state == "lost"
    assert event_of(run, "lost") is None

"""A training that waits in its loop is reported once. Other things that take long are not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import hookcore
from hookcore.findings import findings_of
from hookcore.hooks.loading import observe_loading
from hookcore.records.vocabulary import ENDED, STALLED
from tests.inside import module_of, recorder_of

PACE: Any = module_of("Stalls")
LOOK_S, MIN_S, FACTOR, WORK = PACE.LOOK_S, PACE.MIN_S, PACE.FACTOR, PACE.WORK


class World:
    """A training in a separate thread, whose clock only the test moves."""

    def __init__(self) -> None:
        self.time_s, self.step, self.ended_at, self.paused = 0.0, 0, float("nan"), False
        self.told: list[tuple[str, str]] = []
        self.plans = SimpleNamespace(roots=[])
        self.stalls = PACE.Stalls(self)
        self.spent = 0.0
        self.stalls.spent_s = lambda: self.spent
        self.arrived, self.goes_on = threading.Event(), threading.Event()

    def now(self) -> float:
        return self.time_s

    def emit(self, name: str, message: str) -> None:
        self.told.append((name, message))

    def end_step(self, took: float = 1.0) -> None:
        self.time_s += took
        self.step += 1
        self.ended_at = self.time_s
        self.stalls.mark(self.step)
        self.stalls.look(self.ended_at)

    def block(self) -> None:
        """Wait for the test."""
        self.arrived.set()
        assert self.goes_on.wait(60)

    def await_block(self) -> None:
        assert self.arrived.wait(60)

    def let_go(self) -> None:
        """Let the training continue to its next wait, or to its end."""
        self.arrived.clear()
        self.goes_on.set()

    def pass_time(self, seconds: float, look: Callable[[], None] = lambda: None) -> None:
        for _ in range(int(seconds / LOOK_S)):
            self.time_s += LOOK_S
            look()
            self.stalls.look(self.ended_at)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.told]


def waits_in_loop(world: World) -> None:
    for step in range(40):
        if step == 32:
            world.block()
        world.end_step()


def waits_for_data(world: World) -> None:
    class Rows(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            for step in range(40):
                if step == 32:
                    world.block()
                yield step

    for _ in DataLoader(Rows(), batch_size=None):
        world.end_step()


def waits_behind_loop(world: World) -> None:
    for _ in range(32):
        world.end_step()
    world.block()


def waits_outside(world: World) -> None:
    def train() -> None:
        for _ in range(32):
            world.end_step()

    train()
    while not world.goes_on.is_set():  # such as the loop of a notebook
        world.block()


def barrier(world: World) -> None:
    world.block()


def waits_for_others(world: World) -> None:
    for step in range(40):
        if step == 32:
            barrier(world)  # while the first rank evaluates
        world.end_step()


def save_all(world: World) -> None:
    world.block()


def saves_in_loop(world: World) -> None:
    for step in range(40):
        if step == 32:
            save_all(world)
        world.end_step()


@contextmanager
def training(train: Callable[[World], None]) -> Iterator[World]:
    world = World()
    thread = threading.Thread(target=train, args=(world,))
    thread.start()
    world.await_block()
    try:
        yield world
    finally:
        world.goes_on.set()
        thread.join()


def test_a_training_that_waits_in_its_loop_is_reported_once_with_the_line_and_again_when_it_resumes() -> None:
    with training(waits_in_loop) as world:
        world.pass_time(MIN_S + PACE.QUIET_S - LOOK_S)
        assert world.told == []
        world.pass_time(10 * MIN_S)
        ((name, message),) = world.told
        assert name == STALLED
        assert message.startswith("no step has ended for 6 min: the training is waiting in test_stalls.py:")
        assert "(block), in threading.py (wait); its longest step took 1 s" in message
    assert world.names == [STALLED, ENDED[STALLED]]


def test_a_loop_that_waits_for_its_data_is_reported_with_its_own_line() -> None:
    handle = observe_loading(Mock())
    with training(waits_for_data) as world:
        world.pass_time(2 * MIN_S)
        ((_, message),) = world.told
    handle.remove()
    assert "(waits_for_data), in threading.py (wait);" in message


@pytest.mark.parametrize("train", [waits_behind_loop, waits_outside, saves_in_loop, waits_for_others])
def test_ending_or_saving_is_not_a_stall(train: Callable[[World], None]) -> None:
    with training(train) as world:
        world.pass_time(20 * MIN_S)
        assert world.told == []


def test_a_training_is_judged_by_its_own_longest_step() -> None:
    def train(world: World) -> None:
        for step in range(40):
            if step == 32:
                world.block()
            world.end_step(1000.0 if step == 3 else 1.0)

    with training(train) as world:
        world.pass_time(FACTOR * 1000)
        assert world.told == []
        world.pass_time(2 * MIN_S)
        assert world.names == [STALLED]


def test_the_time_to_the_first_step_counts_as_a_step() -> None:
    def train(world: World) -> None:
        for step in range(40):
            if step == 32:
                world.block()
            world.end_step(1000.0 if step == 0 else 1.0)

    with training(train) as world:
        world.pass_time(FACTOR * 1000)
        assert world.told == []


@pytest.mark.parametrize(("share", "names"), [(0.5 * WORK, [STALLED]), (2 * WORK, []), (float("nan"), [])])
def test_a_thread_that_runs_occasionally_does_not_wait(share: float, names: list[str]) -> None:
    with training(waits_in_loop) as world:

        def run() -> None:
            world.spent += share * LOOK_S

        world.pass_time(20 * MIN_S, run)
        assert world.names == names


def test_the_processor_time_is_that_of_the_training_thread() -> None:
    with training(waits_in_loop) as world:
        del world.stalls.spent_s
        before, mine = world.stalls.spent_s(), time.thread_time()
        sum(range(3_000_000))
        assert before > 0
        assert world.stalls.spent_s() - before < (time.thread_time() - mine) / 2  # meanwhile, it waits


@pytest.mark.parametrize("steps", [0, PACE.FIRST_STEP - 1])
def test_a_young_run_is_not_judged_for_stalls(steps: int) -> None:
    def train(world: World) -> None:
        for step in range(40):
            if step == steps:
                world.block()
            world.end_step()

    with training(train) as world:
        world.pass_time(20 * MIN_S)
        assert world.told == []


def test_a_pause_or_an_evaluation_is_not_a_stall_and_restarts_the_timer() -> None:
    with training(waits_in_loop) as world:
        world.paused = True
        world.pass_time(20 * MIN_S)
        world.paused = False
        world.pass_time(MIN_S)
        assert world.told == []
        world.pass_time(2 * LOOK_S)
        assert world.names == [STALLED]


def test_a_suspended_process_restarts_the_timer() -> None:
    with training(waits_in_loop) as world:
        world.pass_time(MIN_S)
        world.time_s += 10_000.0  # SIGSTOP, or a laptop that sleeps
        world.pass_time(MIN_S)
        assert world.told == []


def test_progress_inside_the_loop_is_not_a_stall() -> None:
    def train(world: World) -> None:
        for step in range(40):
            if step == 32:
                for _ in range(100):
                    world.block()
                    world.goes_on.clear()
                    world.block()
                    world.goes_on.clear()
            world.end_step()

    def turn() -> None:
        world.let_go()
        world.await_block()

    world = World()
    thread = threading.Thread(target=train, args=(world,))
    thread.start()
    world.await_block()
    for _ in range(50):
        world.pass_time(MIN_S / 2)
        turn()
    assert world.told == []
    while thread.is_alive():
        world.goes_on.set()
        thread.join(0.001)


def test_a_watched_model_rests_in_eval_mode_and_while_paused() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        stalls = recorder_of(watcher).steps.stalls
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
        assert not stalls.rests
        model.eval()
        assert stalls.rests
        model.train()
        assert not stalls.rests
        watcher.pause()
        assert stalls.rests


def test_a_stall_is_an_incident_immediately_and_ends_when_training_resumes() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hookcore.watch(model, server=None, budget=None) as watcher:

        def train(steps: int) -> None:
            for _ in range(steps):
                model(torch.randn(2, 4)).sum().backward()
                optimizer.step()
            watcher.flush()

        train(20)
        recorder_of(watcher).context.emit(STALLED, "no step has ended for 6 min")
        train(1)
        (told,) = [each for each in findings_of(watcher.store) if each.rule == STALLED]
        assert (told.severity, told.since_step) == ("warning", 20)
        (incident,) = [each for each in watcher.store.incidents() if each.rule == STALLED]
        assert incident.sentence == "No step has ended for 6 min."
        recorder_of(watcher).context.emit(ENDED[STALLED], "the training continues")
        train(1)
        assert [each for each in findings_of(watcher.store) if each.rule == STALLED] == []
        recorder_of(watcher).context.emit(STALLED, "no step has ended for 9 min")
        train(1)
        (told,) = [each for each in findings_of(watcher.store) if each.rule == STALLED]
        assert told.message == "no step has ended for 9 min"

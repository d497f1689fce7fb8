# mypy: disable-error-code="no-untyped-call"
"""The parts of a step's time: they add up to all of it, and are unknown rather than wrong."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

from hookcore.config import Settings
from hookcore.delivery.sinks import StoreSink
from hookcore.recorder import Recorder
from hookcore.recorder.clock.cadence import Cadence
from hookcore.recorder.context import Ended
from hookcore.records.vocabulary import (
    SAMPLES_RATE,
    STEPS_RATE,
    SYSTEM,
    TIME_BACKWARD,
    TIME_HOOKCORE,
    TIME_LOADING,
    TIME_OPTIMIZER,
    TOKENS_RATE,
)
from hookcore.store import Store
from tests.harness import watch
from tests.inside import class_of, recorder_of

Meter, Parameters, StepTimes, Throughput = map(class_of, ("Meter", "Parameters", "StepTimes", "Throughput"))

PARTS = ("loading", "before", "forward", "backward", "optimizer", "other", "hookcore")


class Ticks:
    """A clock that moves only by the duration of what a test pretends to do."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(torch.autograd.Function):
    """A module that takes 20 seconds forward and 300 seconds backward."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, clock: Ticks) -> Tensor:
        context.clock = clock
        clock.now += 20
        return inputs.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        context.clock.now += 300
        return gradients[0], None


class Model(nn.Module):
    """A model whose passes take time."""

    def __init__(self, clock: Ticks) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.clock = clock

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = Slow.apply(self.inner(inputs), self.clock)
        return found * found  # the backward pass needs it


class Sgd(torch.optim.SGD):
    """An optimizer that takes 4,000 seconds."""

    clock: Ticks

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.clock.now += 4000
        return super().step(closure)


@pytest.fixture
def world() -> Iterator[SimpleNamespace]:
    clock, store = Ticks(), Store(2**22)
    recorder = Recorder(Settings.of({}, kinds=("output",), every=1, budget=None, server=None), StoreSink(store), clock)
    model = Model(clock)
    optimizer = Sgd(model.parameters(), lr=0.1)
    optimizer.clock = clock
    recorder.capture.models.watch(model)
    recorder.attach()
    try:
        yield SimpleNamespace(clock=clock, store=store, recorder=recorder, model=model, optimizer=optimizer)
    finally:
        recorder.close()


def train(
    world: SimpleNamespace,
    steps: int = 4,
    call: Callable[..., Tensor] | None = None,
    batches: Iterable[Any] = itertools.repeat(None),
) -> None:
    for _, _ in zip(range(steps), batches, strict=False):
        world.clock.now += 1  # the data
        output = (call or world.model)(torch.randn(2, 4, requires_grad=True))
        world.clock.now += 50000  # the loss
        output.sum().backward()
        world.optimizer.step()
        world.optimizer.zero_grad()


def parts_of(world: SimpleNamespace) -> dict[int, dict[str, float]]:
    """Return the parts of each measured step, once everything has arrived."""
    world.recorder.close()
    found: dict[int, dict[str, float]] = {}
    for part in PARTS:
        name = f"{SYSTEM}time/{part}"
        if name in world.store.scalar_names():
            series = world.store.scalars(name)
            for step, value in zip(series.first_step.tolist(), series.mean.tolist(), strict=True):
                found.setdefault(step, {})[part] = value
    return found


def test_each_part_has_the_time_that_was_spent_in_it(world: SimpleNamespace) -> None:
    train(world)
    found = parts_of(world)
    expected = {"before": 1.0, "forward": 20.0, "backward": 300.0, "optimizer": 4000.0, "other": 50000.0}
    assert len(found) >= 2
    assert all(parts == expected | {"hookcore": 0.0} for parts in found.values())


def test_an_evaluation_counts_as_the_part_around_it(world: SimpleNamespace) -> None:
    def call(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            world.model(inputs)
        output: Tensor = world.model(inputs)
        with torch.no_grad():
            world.model(inputs)
        return output

    train(world, call=call)
    parts = parts_of(world)[3]
    assert (parts["before"], parts["forward"], parts["other"]) == (21.0, 20.0, 50020.0)


def test_recomputation_by_a_checkpoint_is_part_of_the_backward_pass(world: SimpleNamespace) -> None:
    train(world, call=lambda inputs: checkpoint(world.model, inputs, use_reentrant=False))
    parts = parts_of(world)[3]
    assert (parts["forward"], parts["backward"]) == (20.0, 320.0)


class Rows(IterableDataset):  # type: ignore[type-arg]
    """Rows that take 600,000 seconds each."""

    def __init__(self, clock: Ticks, source: Iterable[Any]) -> None:
        self.clock, self.source = clock, source

    def __iter__(self) -> Iterator[int]:
        for number, _ in enumerate(self.source):
            self.clock.now += 600_000
            yield number


def loader_of(world: SimpleNamespace, source: Iterable[Any] = range(99)) -> DataLoader[Any]:
    return DataLoader(Rows(world.clock, source), batch_size=None)


BARE = {"before": 1.0, "forward": 20.0, "backward": 300.0, "optimizer": 4000.0, "other": 50000.0, "hookcore": 0.0}


def test_waiting_for_a_data_loader_is_a_part_of_its_own(world: SimpleNamespace) -> None:
    train(world, batches=loader_of(world))
    found = parts_of(world)
    assert len(found) >= 2
    assert all(parts == BARE | {"loading": 600_000.0} for parts in found.values())


def test_the_start_of_a_data_loader_and_its_end_count_too(world: SimpleNamespace) -> None:
    class Order(list[int]):
        def __iter__(self) -> Iterator[int]:
            world.clock.now += 7_000_000
            return super().__iter__()

    for _ in range(4):
        train(world, 2, batches=DataLoader([0, 1, 2], batch_size=None, sampler=Order([0])))
    found = parts_of(world)
    assert len(found) >= 2
    assert all(parts == BARE | {"loading": 7_000_000.0} for parts in found.values())


def test_a_loader_that_reads_from_a_loader_counts_once(world: SimpleNamespace) -> None:
    train(world, batches=loader_of(world, loader_of(world)))
    assert parts_of(world)[3] == BARE | {"loading": 1_200_000.0}


def test_loading_between_micro_batches_is_data_loading(world: SimpleNamespace) -> None:
    batches = iter(loader_of(world))

    def call(inputs: Tensor) -> Tensor:
        next(batches)
        world.model(inputs).sum().backward()
        next(batches)
        output: Tensor = world.model(inputs)
        next(batches)  # for the next step
        return output

    train(world, call=call)
    parts = parts_of(world)[3]
    assert (parts["loading"], parts["before"], parts["other"]) == (1_800_000.0, 1.0, 50000.0)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("seen", [False, True])
def test_loading_in_an_evaluation_is_part_of_the_evaluation(world: SimpleNamespace, whole: bool, seen: bool) -> None:
    """Gradients are disabled in the whole loop, or only in the model's call, which then shows what it was for."""

    def evaluate() -> None:
        with torch.set_grad_enabled(not whole):
            for _ in loader_of(world, range(2)):
                with torch.no_grad():
                    if seen or not whole:
                        world.model(torch.randn(2, 4))

    batches = iter(loader_of(world))

    def call(inputs: Tensor) -> Tensor:
        evaluate()
        next(batches)
        output: Tensor = world.model(inputs)
        evaluate()
        return output

    train(world, call=call)
    parts = parts_of(world)[3]
    spent = 1_200_000.0 + 40.0 * (seen or not whole)
    assert (parts["loading"], parts["before"], parts["other"]) == (600_000.0, 1.0 + spent, 50000.0 + spent)


def test_a_helper_model_without_gradients_does_not_count_as_a_batch(world: SimpleNamespace) -> None:
    def call(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            world.model(inputs)  # a teacher
        output: Tensor = world.model(inputs)
        return output

    train(world, call=call, batches=loader_of(world))
    assert parts_of(world)[3] == BARE | {"loading": 600_000.0, "before": 21.0}


def test_only_an_evaluation_that_uses_a_loader_makes_no_part(world: SimpleNamespace) -> None:
    def call(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            for _ in loader_of(world, range(2)):
                world.model(inputs)
        output: Tensor = world.model(inputs)
        return output

    train(world, call=call)
    assert parts_of(world)[3] == BARE | {"before": 1_200_041.0}


def test_steps_without_loading_have_no_loading_time_once_there_was_a_loader(world: SimpleNamespace) -> None:
    train(world)
    train(world, batches=loader_of(world))
    train(world, 6)
    found = parts_of(world)
    assert "loading" not in found[1]
    assert found[max(found)] == BARE | {"loading": 0.0}


def test_loading_in_another_thread_adds_no_time_to_the_training(world: SimpleNamespace) -> None:
    batches = iter(loader_of(world))

    def call(inputs: Tensor) -> Tensor:
        ahead = threading.Thread(target=next, args=(batches,))
        ahead.start()
        ahead.join()
        output: Tensor = world.model(inputs)
        return output

    train(world, call=call)
    assert parts_of(world)[3] == BARE | {"before": 600_001.0}


def test_two_watchers_see_the_same_loading(world: SimpleNamespace) -> None:
    store = Store(2**22)
    other = Recorder(
        Settings.of({}, kinds=("output",), every=1, budget=None, server=None), StoreSink(store), world.clock
    )
    other.capture.models.watch(world.model)
    other.attach()
    train(world, batches=loader_of(world))
    other.close()
    train(world, batches=loader_of(world))
    assert set(store.scalars(TIME_LOADING).mean.tolist()) == {600_000.0}
    assert all(parts["loading"] == 600_000.0 for parts in parts_of(world).values())


def test_an_error_of_the_data_that_the_loop_survives_leaves_the_parts_known(world: SimpleNamespace) -> None:
    class Broken(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[int]:
            world.clock.now += 5_000_000
            raise OSError("no disk")

    def call(inputs: Tensor) -> Tensor:
        with pytest.raises(OSError, match="no disk"):
            next(iter(DataLoader(Broken(), batch_size=None)))
        output: Tensor = world.model(inputs)
        return output

    train(world, call=call)
    assert parts_of(world)[3] == BARE | {"loading": 5_000_000.0}


def test_a_step_that_ends_inside_a_loader_is_not_known(world: SimpleNamespace) -> None:
    class Training(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[int]:
            for number in range(8):
                train(world, 1)
                yield number

    for _ in DataLoader(Training(), batch_size=None):
        world.clock.now += 3
    assert parts_of(world) == {}


NAMES = ("load", "empty", "outer", "idle", "evaluate", "backward", "train")


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.booleans(), st.integers(1, 9)), max_size=24))
def test_the_parts_add_up_to_the_time_of_the_step(events: list[tuple[str, bool, int]]) -> None:
    clock = Ticks()
    times = StepTimes(clock)
    times.prompt = True
    times.begin(None)
    for name, trains, seconds in [*events, ("train", True, 1)]:
        clock.now += 1000
        if name in ("load", "empty", "outer"):
            times.enter_loading()
            if name == "outer":
                times.enter_loading()
                clock.now += seconds
                times.leave_loading(True, trains)
            clock.now += seconds
            times.leave_loading(name != "empty", trains)
        elif name == "evaluate":
            times.saw_evaluation()
            clock.now += seconds
        elif name == "backward":
            times.enter(TIME_BACKWARD)
            clock.now += seconds
            times.leave(TIME_BACKWARD)
        elif name == "train":
            times.enter_model(1)
            clock.now += seconds
            times.leave_model(1)
    times.prompt = True
    parts = times.take(True)
    assert sum(parts.values()) == clock.now
    loads = sum(1 for name, _, _ in events if name in ("load", "empty", "outer"))
    assert (TIME_LOADING in parts) <= bool(loads)
    assert not [name for name in parts if not name.startswith(SYSTEM)]


def test_no_part_is_negative_if_the_process_waits_while_it_reads_the_clock() -> None:
    class Waiting(Ticks):
        def __call__(self) -> float:
            self.now += 1
            return self.now

    clock = Waiting()
    meter, times = Meter(clock), StepTimes(clock)
    times.prompt = True
    times.begin(meter)
    for seen in (partial(times.enter_model, 1), partial(times.leave_model, 1), partial(times.enter, TIME_OPTIMIZER)):
        meter.enter()
        seen()
        meter.leave()
    meter.enter()
    times.leave(TIME_OPTIMIZER)
    parts = times.take(True)
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == clock.now - 1  # since it was first read


def test_micro_batches_are_added(world: SimpleNamespace) -> None:
    def call(inputs: Tensor) -> Tensor:
        world.model(inputs).sum().backward()
        output: Tensor = world.model(inputs)
        return output

    train(world, call=call)
    parts = parts_of(world)[3]
    assert (parts["before"], parts["forward"], parts["backward"], parts["other"]) == (1.0, 40.0, 600.0, 50000.0)


def test_parts_of_a_step_that_raised_are_unknown_and_those_of_the_next_are_known(world: SimpleNamespace) -> None:
    raising = itertools.chain([False] * 3, [True], itertools.repeat(False))

    def call(inputs: Tensor) -> Tensor:
        if next(raising):
            with pytest.raises(RuntimeError):
                world.model(torch.randn(2, 5))
        output: Tensor = world.model(inputs)
        return output

    train(world, 6, call)
    found = parts_of(world)
    assert 3 not in found
    assert found[2]["forward"] == found[4]["forward"] == 20.0


def test_the_forward_and_backward_passes_of_a_closure_are_not_the_optimizers(world: SimpleNamespace) -> None:
    for _ in range(4):
        world.clock.now += 1

        def closure() -> Tensor:
            world.optimizer.zero_grad()
            loss: Tensor = world.model(torch.randn(2, 4)).sum()
            loss.backward()
            return loss

        world.optimizer.step(closure)
    parts = parts_of(world)[3]
    assert (parts["forward"], parts["backward"]) == (20.0, 300.0)
    assert parts["before"] + parts["optimizer"] == 4001.0


def test_steps_that_the_user_ends_are_measured_too(world: SimpleNamespace) -> None:
    for _ in range(4):
        world.clock.now += 1
        world.model(torch.randn(2, 4)).sum().backward()
        world.recorder.steps.end_by_user()
    parts = parts_of(world)[2]
    assert (parts["before"], parts["forward"], parts["backward"], parts["optimizer"]) == (1.0, 20.0, 300.0, 0.0)


def test_a_step_without_a_call_of_the_model_has_no_parts(world: SimpleNamespace) -> None:
    weights = list(world.model.parameters())
    train(world, 2)
    for _ in range(3):
        sum(weight.sum() for weight in weights).backward()  # type: ignore[union-attr]
        world.optimizer.step()
    assert max(parts_of(world)) == 1


def test_a_compiled_model_is_measured_at_its_boundary(world: SimpleNamespace) -> None:
    compiled = torch.compile(nn.Linear(4, 4), backend="eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    world.recorder.capture.models.watch(compiled)
    for _ in range(4):
        world.clock.now += 1
        compiled(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    parts = parts_of(world)[3]
    assert (parts["before"], parts["other"]) == (1.0, 0.0)


def test_hookcores_own_time_is_in_no_other_part(world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    note = Parameters.before_step

    def slow(self: Any, *args: Any) -> Any:
        world.clock.now += 7
        return note(self, *args)

    monkeypatch.setattr(Parameters, "before_step", slow)
    train(world)
    parts = parts_of(world)[3]
    assert (parts["optimizer"], parts["hookcore"]) == (4000.0, 7.0)
    assert TIME_HOOKCORE in world.store.scalar_names()


def test_steps_are_measured_less_and_less_often(world: SimpleNamespace) -> None:
    class Quick(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            world.clock.now += 0.125
            return super().forward(inputs)

    model = Quick(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    world.recorder.capture.models.watch(model)
    for _ in range(100):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    measured = sorted(parts_of(world))
    gaps = [after - before for before, after in itertools.pairwise(measured)]
    assert gaps[:3] == [2, 4, 8]
    assert set(gaps[3:]) == {16}


@pytest.mark.parametrize(("given", "tokens"), [(torch.zeros(8, 32, dtype=torch.int64), 256), (torch.zeros(8, 32), 0)])
def test_integers_in_rows_are_tokens(given: Tensor, tokens: int) -> None:
    store = Store(2**22)
    recorder = Recorder(Settings.of({}, server=None), StoreSink(store))
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 1)) if tokens else nn.Linear(32, 1)
    recorder.capture.models.watch(model)
    recorder.attach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(given).sum().backward()
        optimizer.step()
    context: Any = SimpleNamespace(ended=Ended(1, 0.5), plans=recorder.context.plans)
    throughput = Throughput(context)
    throughput.read(0.0)
    context.ended = Ended(21, 2.5)
    found = throughput.read(2.0).numbers
    recorder.close()
    expected = {STEPS_RATE: 10.0, SAMPLES_RATE: 80.0} | ({TOKENS_RATE: 10.0 * tokens} if tokens else {})
    assert found == expected


# --- The meter of hookcore's own time --------------------------------------------------------------------------------


def test_a_meter_counts_nested_calls_once_and_includes_the_running_one() -> None:
    clock = Ticks()
    meter = Meter(clock)
    meter.enter()
    clock.now += 1
    meter.enter()
    clock.now += 5
    meter.leave()
    clock.now += 1
    meter.leave()
    clock.now += 100
    assert meter.take(clock()) == 7
    meter.enter()
    clock.now += 2
    assert meter.take(clock()) == 9
    meter.leave()
    meter.leave()  # from a call that started before the meter
    clock.now += 50
    assert meter.take(clock()) == 9


def train_alone(model: nn.Module, steps: int, inputs: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("settings", [{}, {"attach": "module"}, {"compiled": "inside"}, {"kinds": ("input", "update")}])
def test_the_cost_of_capturing_every_step_is_reported_for_every_kind_of_attachment(settings: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[0].register_forward_hook(lambda *_: None)  # the module's own hook, so that a companion hook follows it
    with watch(model, budget=None, **settings) as watcher:
        train_alone(model, 40, torch.randn(4, 8))
        told = recorder_of(watcher).capture.control.current_settings()
        assert watcher.flush()
        assert watcher.errors == []
        scalars = watcher.store.scalars("hookcore/effective_cost")
    assert told["cost"] > 0
    assert told["effective_cost"] == told["cost"]
    assert scalars.mean[-1] > 0


def test_a_timed_step_has_the_same_values_and_bits_as_an_untimed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for timed in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        monkeypatch.setattr(Cadence, "wants_timing", timed)
        with watch(model, budget=None) as watcher:
            train_alone(model, 30, torch.randn(4, 8))
            assert watcher.flush()
            latest = watcher.store.latest()
        seen.append((latest.values, [parameter.detach().clone() for parameter in model.parameters()]))
    assert np.array_equal(seen[0][0], seen[1][0], equal_nan=True)
    assert all(torch.equal(one, other) for one, other in zip(seen[0][1], seen[1][1], strict=True))

# mypy: disable-error-code="no-untyped-call"
"""No failure inside hookcore, or in the objects that it reads, reaches the training. Failures are counted and shown."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from types import CodeType, FrameType
from typing import Any, Final, NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import hookcore
from hookcore.errors import ClosedError
from hookcore.observe import cpu
from hookcore.observe.arena import CpuArena
from hookcore.records import TENSOR_KINDS, Command
from hookcore.records.vocabulary import NONFINITE_STEP
from hookcore.store import Store
from tests.harness import digest, process_state, read_step, seed_all, watch
from tests.inside import class_of, module_of, recorder_of
from tests.waiting import wait_for
from tests.zoo.case import mean_square, mlp, noise, sgd

STEPS: Final = 6


class InjectedError(RuntimeError):
    """The fault."""


def explode(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise the injected error."""
    raise InjectedError("injected")


@dataclass
class Run:
    """The results of a training, and what remains: the model and the closed watcher."""

    steps: list[str]
    model: nn.Module
    watcher: hookcore.Watcher


def train(
    build: Callable[[], nn.Module] = mlp,
    breaks: Callable[[], None] = lambda: None,
    steps: int = STEPS,
    ships_each: bool = False,
    **settings: Any,
) -> Run:
    """Train while watched. `breaks` is called once the watcher exists. `ships_each`: each step is sent at its end."""
    seed_all()
    model = build()
    with watch(model, **settings) as watcher:
        breaks()
        seen = take_steps(model, steps, lambda: ships_each and watcher.flush(2.0))
        watcher.flush(2.0)
    return Run(seen, model, watcher)


def take_steps(model: nn.Module, steps: int = STEPS, after: Callable[[], object] = lambda: None) -> list[str]:
    """Return the digest of each step."""
    inputs, optimizer, seen = noise(5, 6), sgd(model.parameters()), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        optimizer.step()
        parameters = {name: (p.detach(), p.grad) for name, p in model.named_parameters()}
        seen.append(digest([loss.detach(), parameters, torch.get_rng_state()]))
        after()
    return seen


def train_unwatched(build: Callable[[], nn.Module] = mlp, steps: int = STEPS) -> list[str]:
    """Train in the same way without a watcher."""
    seed_all()
    return take_steps(build(), steps)


@pytest.fixture
def untouched() -> Iterator[list[str]]:
    """Return the same training without a watcher. At the end, nothing may remain in the process."""
    before = process_state()
    yield train_unwatched()
    assert process_state() == before


def test_an_error_in_what_waits_does_not_end_the_recorders_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, asked = class_of("Samples"), count()
    waiting = samples.waiting

    def breaks(self: Any) -> bool:
        if threading.current_thread().name == "hookcore-recorder" and next(asked) % 3:
            explode()
        return bool(waiting.fget(self))

    monkeypatch.setattr(samples, "waiting", property(breaks))
    run = train(every=1, ships_each=True)
    assert run.watcher.store.steps().newest == STEPS - 1
    assert "injected" in str(run.watcher.errors)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_flush_in_a_forked_child_waits_for_no_lock_of_the_parent() -> None:
    with watch(mlp()) as watcher:
        wake = class_of("FrameQueue").wake.__code__
        ends: list[int] = []

        def fork(frame: FrameType, event: str, _: object) -> None:
            if wake in codes_of(frame):
                ends.append(end_of_child(lambda: watcher.flush(1.0)))

        sys.setprofile(fork)  # at each moment in which this thread wakes the recorder's
        recorder_of(watcher).worker.queue.wake()
        sys.setprofile(None)
        assert len(ends) > 1
        assert not any(ends)


def end_of_child(act: Callable[[], object]) -> int:
    """Return how a fork that does this has ended: 0, or the signal that ended its waiting."""
    child = os.fork()
    if child == 0:
        sys.setprofile(None)
        signal.alarm(20)
        act()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def codes_of(frame: FrameType | None) -> Iterator[CodeType]:
    """Yield what runs: the code of a frame, and of those that have called it."""
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def train_interrupted(
    monkeypatch: pytest.MonkeyPatch, handler: Callable[[hookcore.Watcher], object], at: int | None = None
) -> tuple[int, Store]:
    """Train, and call a handler while an event is queued, as Python calls those of signals: between any two calls.

    `at`: only at this moment of all. Return the number of moments.
    """
    put, moments, stores, model = class_of("FrameQueue").put, count(), list[Store](), mlp()

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if at in (None, next(moments)):
            handler(watcher)

    def queue(*given: Any) -> None:
        sys.setprofile(interrupt if threading.current_thread() is training else None)
        try:
            put(*given)
        finally:
            sys.setprofile(None)

    def run() -> None:
        take_steps(model, 1)
        recorder_of(watcher).context.emit("note", "urgent")
        take_steps(model, 1)
        stores.append(watcher.store)

    with monkeypatch.context() as patch:
        patch.setattr(class_of("FrameQueue"), "put", queue)
        watcher = watch(model, every=1)
        training = threading.Thread(target=run, daemon=True)
        training.start()
        training.join(60.0)
    assert stores, "the training waits for itself"
    watcher.close()
    return next(moments), stores[0]


def test_a_signal_handler_may_flush_at_any_moment_while_a_step_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = train_interrupted(monkeypatch, lambda watcher: watcher.flush(0.01))
    assert store.steps().newest == 1


def test_a_signal_handler_may_close_at_any_moment_while_a_step_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    for moment in count():
        many, _ = train_interrupted(monkeypatch, lambda watcher: recorder_of(watcher).close(0.01), at=moment)
        if moment > many:
            break
    assert moment > 10


def test_a_queue_of_samples_that_another_thread_empties_meanwhile_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of("Samples")

    class Emptied(module.deque):  # type: ignore[misc]
        def __bool__(self) -> bool:
            return True  # as it was a moment ago

    monkeypatch.setattr(module, "deque", Emptied)
    run = train(every=1)
    assert not run.watcher.errors


INSIDE_HOOKS: Final[dict[str, list[str]]] = {  # methods, or after a colon, functions in the module of a class
    "a kernel": ["Statistics:_observe", "CpuArena.observe"],
    "the kernels' slow way": ["CpuArena.observe"],
    "the forward hook": ["Statistics:_observe", "Statistics.saw_outputs"],
    "the forward pre-hook": ["Statistics.hook_input"],
    "the search for tensors": ["Dispatcher:find_tensors"],
    "the choice of a row": ["Statistics.slot_of"],
    "the begin of a backward pass": ["Clock.pass_begins"],
    "the end of a backward pass": ["Dispatcher.reset_calls"],
    "the parameters' gradients": ["Parameters.read_gradients"],
    "the optimizer's pre-hook": ["Parameters.before_step"],
    "the optimizer's post-hook": ["Parameters.after_step"],
    "the search for a scaler": ["ScalerLink.find"],
    "the end of a step": ["Steps.end_step"],
    "the packing of a frame": ["CpuArena.pack"],
    "the cadence": ["Cadence.wants"],
    "the recorder's thread": ["Shipper:build_frames"],
    "the sink": ["Store.extend"],
}


def owner_of(place: str) -> tuple[Any, str]:
    """Return the class or module and the name in it of a function that a test makes fail."""
    part, colon, name = re.fullmatch(r"(\w+)([.:])(\w+)", place).groups()  # type: ignore[union-attr]
    other = {"CpuArena": CpuArena, "Store": Store}.get(part)
    return other or (module_of(part) if colon == ":" else class_of(part)), name


@pytest.mark.parametrize("place", INSIDE_HOOKS)
def test_a_fault_never_reaches_the_training_and_is_counted(
    place: str, monkeypatch: pytest.MonkeyPatch, untouched: list[str]
) -> None:
    def breaks() -> None:
        for each in INSIDE_HOOKS[place]:
            monkeypatch.setattr(*owner_of(each), explode)

    run = train(breaks=breaks, kinds=TENSOR_KINDS)
    watcher = run.watcher
    assert run.steps == untouched
    assert watcher.error_count >= 1
    assert "InjectedError: injected" in watcher.errors[0].message
    assert watcher.errors[0].severity == "error"


def test_a_fault_during_discovery_never_reaches_the_training(
    monkeypatch: pytest.MonkeyPatch, untouched: list[str]
) -> None:
    monkeypatch.setattr(class_of("Models"), "_discover", explode)
    with watch() as watcher:
        seen = train_unwatched()
    assert seen == untouched
    assert watcher.error_count >= 1


def test_a_limited_number_of_errors_is_kept_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_of("Cadence"), "wants", explode)
    run = train(steps=110)
    watcher = run.watcher
    assert run.steps == train_unwatched(steps=110)
    assert len(watcher.errors) == 100
    assert watcher.error_count > 100
    events = [event for event in watcher.store.events() if event.name == "hook-error"]
    assert events[:100] == watcher.errors
    assert sum(event.count for event in events) == watcher.error_count
    assert "more error" in events[-1].message


def test_errors_of_the_recorders_last_rounds_are_events_too(
    monkeypatch: pytest.MonkeyPatch, untouched: list[str]
) -> None:
    monkeypatch.setattr(class_of("Idle"), "tick", explode)  # in every round, including those while the watcher closes
    run = train()
    assert run.steps == untouched
    events = [event for event in run.watcher.store.events() if event.name == "hook-error"]
    assert sum(event.count for event in events) == run.watcher.error_count > 0


@pytest.fixture
def in_python() -> Iterator[None]:
    """Let hooks run in Python."""
    cpu.leave_each(1)
    yield
    cpu.leave_each(0)


@pytest.mark.usefixtures("in_python")
def test_a_module_that_keeps_failing_is_left_alone_and_the_others_are_captured(
    monkeypatch: pytest.MonkeyPatch, untouched: list[str]
) -> None:
    statistics = class_of("Statistics")
    kept = statistics.saw_outputs

    def fails_for_one(self: Any, call: Any) -> None:
        if call.plan.path == "1":
            explode()
        kept(self, call)

    monkeypatch.setattr(module_of("Statistics"), "_observe", explode)  # so that outputs take the slow path, in Python
    monkeypatch.setattr(statistics, "saw_outputs", fails_for_one)
    run = train()
    watcher = run.watcher
    assert run.steps == untouched
    assert watcher.error_count == 3
    assert {event.module for event in watcher.errors} == {"1"}
    reasons = {coverage.path: coverage.reason for coverage in watcher.coverage()}
    assert "no longer captured after 3 errors" in reasons["1"]
    last = read_step(watcher, STEPS - 1)
    assert ("0", "output", "", 0) in last
    assert ("1", "output", "", 0) not in last


@pytest.mark.usefixtures("in_python")
def test_a_temporarily_full_gpu_costs_only_those_measurements_and_no_module_is_given_up(
    monkeypatch: pytest.MonkeyPatch, untouched: list[str]
) -> None:
    statistics = class_of("Statistics")
    kept, calls = statistics.add, []

    def full_at_first(self: Any, *args: Any) -> None:
        calls.append(args)
        if len(calls) <= 60:
            raise torch.OutOfMemoryError("CUDA out of memory")
        kept(self, *args)

    monkeypatch.setattr(module_of("Statistics"), "_observe", explode)  # so that all take the slow path, in Python
    monkeypatch.setattr(statistics, "add", full_at_first)
    run = train(kinds=TENSOR_KINDS)
    watcher = run.watcher
    assert run.steps == untouched
    assert (watcher.error_count, watcher.errors) == (0, [])
    events = [event for event in watcher.store.events() if event.name == "no-gpu-memory"]
    assert sum(event.count for event in events) == 60
    assert events[0].severity == "warning"
    assert f"{events[0].count} measurement" in events[0].message
    last = {key[:2] for key in read_step(watcher, STEPS - 1)}
    assert {("0", "output"), ("0", "output_grad"), ("0", "param"), ("0", "update"), ("2", "output")} <= last


def test_a_failed_allocation_for_a_weight_copy_costs_one_update(
    monkeypatch: pytest.MonkeyPatch, untouched: list[str]
) -> None:
    made: list[nn.Module] = []
    clone = Tensor.clone

    def build() -> nn.Module:
        made.append(mlp())
        return made[0]

    def refused(tensor: Tensor) -> Tensor:
        if made and tensor.data_ptr() == made[0].get_parameter("0.weight").data_ptr():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return clone(tensor)

    monkeypatch.setattr(Tensor, "clone", refused)
    run = train(build, kinds=TENSOR_KINDS)
    assert run.steps == untouched
    assert run.watcher.errors == []
    last = {key[:3] for key in read_step(run.watcher, STEPS - 1)}
    assert ("0", "update", "weight") not in last
    assert {("0", "update", "bias"), ("3", "update", "weight"), ("0", "param_grad", "weight")} <= last


def test_weights_are_copied_only_for_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    copied, model, clone = [], mlp(), Tensor.clone
    weights = [each.data_ptr() for each in model.parameters()]

    def counted(tensor: Tensor) -> Tensor:
        copied.append(tensor.data_ptr())
        return clone(tensor)

    monkeypatch.setattr(Tensor, "clone", counted)
    with watch(model, kinds=TENSOR_KINDS) as watcher:
        for _ in range(3):
            mean_square(model(noise(5, 6))).backward()
            watcher.step()
        assert not set(weights) & set(copied)
        take_steps(model)
    assert [each for each in copied if each in weights] == weights * STEPS


def test_a_sink_that_fails_for_a_while_loses_only_those_frames(
    monkeypatch: pytest.MonkeyPatch, untouched: list[str]
) -> None:
    kept, failed = Store.extend, []

    def fails_at_first(self: Store, frames: Any) -> Any:
        if any(frame.step == 1 for frame in frames):
            failed.append(frames)
            explode()
        return kept(self, frames)

    monkeypatch.setattr(Store, "extend", fails_at_first)
    run = train(ships_each=True)
    watcher = run.watcher
    assert run.steps == untouched
    assert watcher.error_count == len(failed) >= 1  # samples of the machine come in between
    steps = watcher.store.steps()
    assert (steps.first, steps.newest, steps.count) == (0, STEPS - 1, STEPS - 1)


@pytest.mark.parametrize("place", ["Shipper:build_frames", "Shipper.resolve"])
def test_a_batch_that_cannot_be_built_is_counted_and_every_tap_keeps_its_name(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    owner, name = owner_of(place)
    kept, calls = getattr(owner, name), []

    def fails_at_first(*args: Any) -> Any:
        calls.append(args)
        return explode() if len(calls) == 1 else kept(*args)

    monkeypatch.setattr(owner, name, fails_at_first)
    watcher = train(ships_each=True).watcher
    assert watcher.error_count == 1
    monkeypatch.undo()
    assert repr(read_step(watcher, STEPS - 1)) == repr(read_step(train().watcher, STEPS - 1))  # also for NaN
    (event,) = (event for event in watcher.store.events() if event.name == "frame-dropped")
    assert (event.count, event.message) == (1, "1 frame was dropped: building or sending failed")


def test_every_tap_keeps_its_name_if_rows_cannot_be_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, calls = CpuArena.pack, []

    def fails_at_first(self: CpuArena, used: int) -> Any:
        calls.append(used)
        return explode() if len(calls) == 1 else kept(self, used)

    expected = [tap.label for tap in train().watcher.store.taps().taps]
    monkeypatch.setattr(CpuArena, "pack", fails_at_first)
    watcher = train().watcher
    assert watcher.error_count == 1
    assert [tap.label for tap in watcher.store.taps().taps] == expected


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_recorder_thread_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dies(BaseException):
        """Not an Exception, so it isn't caught."""

    def die(*args: Any) -> NoReturn:
        raise Dies

    monkeypatch.setattr(class_of("FrameQueue"), "take", die)
    run = train(steps=260)
    watcher = run.watcher
    assert run.steps == train_unwatched(steps=260)
    assert not watcher.flush(0.05)
    assert recorder_of(watcher).worker.queue.dropped >= 1


@pytest.mark.parametrize("every", [1, 7])
def test_a_slow_sink_delays_nothing_and_drops_are_counted(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    go_on, begun = threading.Event(), threading.Event()
    kept = Store.extend

    def waits(self: Store, frames: Any) -> Any:
        begun.set()
        go_on.wait(20)
        return kept(self, frames)

    monkeypatch.setattr(Store, "extend", waits)
    steps, model = 320, mlp()
    inputs, optimizer = noise(5, 6), sgd(model.parameters())
    with watch(model, every=every) as watcher:
        for step in range(steps):
            assert step != 5 or begun.wait(20)
            for _ in range(60 if 10 <= step < 20 else 0):  # the frames of these steps are dropped
                recorder_of(watcher).context.emit("own", str(step))
            mean_square(model(inputs)).backward()
            optimizer.step()
            queue: Any = recorder_of(watcher).worker.queue
            waiting = [len(each.events) for each in queue.frames if not isinstance(each, tuple)]
            assert every > 1 or max(waiting, default=0) <= 100 + 60 + 5  # none, if the thread has just taken them
        go_on.set()
        assert watcher.flush()
        kept_steps = watcher.store.steps()
        assert kept_steps.newest == steps - 1
        dropped = recorder_of(watcher).worker.queue.dropped
        assert dropped > 0
        assert dropped + kept_steps.count >= steps  # frames about the machine, between steps, are dropped, too
        own = watcher.store.events(name="own")
        assert own[-1].message == "19"
        lost = watcher.store.events(name="event-dropped")  # more than one, if the thread sent a frame in between
        assert lost
        assert len(own) + sum(each.count for each in lost) == 60 * 10


# --- Modules that behave badly --------------------------------------------------------------------------------------


class Hostile(Tensor):
    """A tensor subclass that raises at every torch function called on it, unless its module allows it."""

    armed = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if Hostile.armed:
            raise RuntimeError(f"touched by {func}")
        return super().__torch_function__(func, types, args, kwargs or {})


class ReturnsHostile(nn.Module):
    """Returns a tensor that raises until its parent disarms it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Any:
        out = self.inner(x).as_subclass(Hostile)
        Hostile.armed = True
        return out


class Disarms(nn.Module):
    """Can handle its hostile child."""

    def __init__(self) -> None:
        super().__init__()
        self.child, self.last = ReturnsHostile(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        out = self.child(x)
        Hostile.armed = False
        return self.last(out.as_subclass(Tensor))


def test_a_tensor_subclass_that_raises_is_not_touched() -> None:
    before = process_state()
    run = train(Disarms, kinds=TENSOR_KINDS)
    assert run.steps == train_unwatched(Disarms)
    assert process_state() == before
    assert run.watcher.error_count == 0


class Interrupts(nn.Module):
    """Raises something other than an Exception, once."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.left = 1

    def forward(self, x: Tensor) -> Any:
        out = self.inner(x)
        if self.left:
            self.left -= 1
            raise KeyboardInterrupt("by the user")
        return out


def test_an_interrupt_reaches_the_user_and_the_next_step_is_captured() -> None:
    seed_all()
    model = nn.Sequential(nn.Linear(6, 6), Interrupts())
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        with pytest.raises(KeyboardInterrupt, match="by the user"):
            model(noise(5, 6))
        for _ in range(2):
            mean_square(model(noise(5, 6))).backward()
            optimizer.step()
        assert watcher.flush()
        assert ("1.inner", "output_grad", "", 0) in read_step(watcher, 1)
        assert watcher.errors == []


def test_the_users_own_exception_is_raised_unchanged() -> None:
    error = ValueError("mine")

    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise error

    model = nn.Sequential(nn.Linear(6, 6), Raises())
    with watch(model, kinds=TENSOR_KINDS) as watcher:
        with pytest.raises(ValueError, match="mine") as caught:
            model(noise(5, 6))
        assert caught.value is error
        assert error.__context__ is None
        assert watcher.errors == []


class Endless(nn.Module):
    """Calls itself through so many functions that the stack can overflow inside any of torch's."""

    def __init__(self, functions: int) -> None:
        super().__init__()
        self.layer, self.functions = nn.Linear(3, 3), functions

    def forward(self, x: Tensor) -> Any:
        return self.pass_on(self.layer(x), self.functions)

    def pass_on(self, x: Tensor, functions: int) -> Any:
        return self.pass_on(x, functions - 1) if functions else self(x)


@pytest.mark.parametrize("attach", ["global", "module"])
@pytest.mark.parametrize("functions", range(6))
def test_a_full_stack_raises_the_same_error_without_a_warning(functions: int, attach: Any) -> None:
    model = Endless(functions)
    with watch(model, attach=attach) as watcher:
        with pytest.raises(RecursionError):
            model(torch.ones(2, 3))
        assert watcher.errors == []


def test_a_model_that_is_deleted_while_watched_is_released() -> None:
    model = mlp()
    optimizer, gone = sgd(model.parameters()), weakref.ref(model)
    with watch(model, kinds=TENSOR_KINDS) as watcher:
        mean_square(model(noise(5, 6))).backward()
        optimizer.step()
        del model, optimizer
        assert watcher.flush()  # the recorder's thread may be describing the model just now
        gc.collect()
        assert gone() is None
        watcher.step()
        watcher.pause()
        watcher.resume()
        assert watcher.flush()
        assert watcher.errors == []
        assert ("0", "output", "", 0) in read_step(watcher, 0)


# --- Calls at the wrong moment ---------------------------------------------------------------------------------------


def test_a_pause_inside_a_step_leaves_nothing_for_a_later_step() -> None:
    seed_all()
    model, inputs = mlp(), noise(5, 6)
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        loss = mean_square(model(inputs))
        watcher.pause()
        for _ in range(3):
            loss.backward()
            optimizer.step()
            loss = mean_square(model(inputs))
        watcher.resume()
        loss = mean_square(model(inputs))
        loss.backward()
        optimizer.step()
        assert watcher.flush()
        assert watcher.errors == []
        outputs = {step: stats for step in range(5) if (stats := read_step(watcher, step).get(("0", "output", "", 0)))}
        assert {step: stats["parts"] for step, stats in outputs.items()} == {0: 1.0, 3: 1.0}


def test_problems_noticed_while_the_last_frames_are_sent_become_events() -> None:
    model = nn.Sequential(*(nn.ReLU() for _ in range(400)), nn.Linear(2, 2))
    with hookcore.watch(model, server=None, budget=None, memory="2MB", kinds="output") as watcher:
        assert watcher.flush()  # the first description has been sent
        model(torch.ones(1, 2)).sum().backward()
        watcher.step()
    assert any(event.message.startswith("some tensors are not captured") for event in watcher.store.events())


class CallsInside(nn.Module):
    """Calls the watcher in the middle of its forward, its backward, or the optimizer's step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.call: Callable[[], None] = lambda: None

    def forward(self, x: Tensor) -> Any:
        out = self.inner(x)
        self.call()
        out.register_hook(self.saw_gradient)
        return out

    def saw_gradient(self, grad: Tensor) -> None:
        self.call()


@pytest.mark.parametrize("call", ["close", "pause", "resume", "step", "coverage", "flush"])
def test_the_watcher_may_be_called_from_inside_a_forward_or_a_backward(call: str) -> None:
    expected = train_unwatched(CallsInside)
    before = process_state()
    seed_all()
    model = CallsInside()
    with watch(model, kinds=TENSOR_KINDS) as watcher:
        model.call = getattr(watcher, call)
        if call == "resume":
            model.call = lambda: (watcher.pause(), watcher.resume())[0]  # type: ignore[func-returns-value]
        assert take_steps(model) == expected
        assert watcher.errors == []
    assert process_state() == before


def test_watches_in_other_threads_disturb_no_step() -> None:
    other = mlp()

    def begin_and_end(*_: object) -> None:
        thread = threading.Thread(target=lambda: watch(other).close())
        thread.start()
        thread.join()

    expected = train_unwatched()
    own = register_optimizer_step_pre_hook(begin_and_end)
    try:
        with watch(mlp()):
            assert train().steps == expected  # while torch iterates over its table of hooks
    finally:
        own.remove()


@pytest.mark.parametrize("where", ["pass", "hook"])
def test_a_watcher_may_be_closed_and_freed_while_another_thread_is_inside(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A freed watcher's recorder is taken apart."""
    model, inside, may_go, raised = nn.Linear(6, 3), threading.Event(), threading.Event(), list[BaseException]()
    steady = class_of("Steady")
    begins = steady.saw_step_begin

    def wait(*_: Any) -> None:
        inside.set()
        may_go.wait(20)

    def begin(self: Any, *args: Any) -> None:
        wait()
        begins(self, *args)

    if where == "hook":
        monkeypatch.setattr(steady, "saw_step_begin", begin)

    def train() -> None:
        optimizer = sgd(model.parameters())
        loss = mean_square(model(noise(5, 6)))
        if where == "pass":
            loss.register_hook(wait)
        try:
            loss.backward()
            optimizer.step()
        except BaseException as error:
            raised.append(error)

    watcher = watch(model)
    thread = threading.Thread(target=train)
    thread.start()
    assert inside.wait(20)
    watcher.close()
    del watcher
    may_go.set()
    thread.join()
    assert raised == []


@pytest.mark.skipif(cpu.FALLBACK_REASON != "", reason="needs the compiled extension")
def test_a_weight_is_not_read_where_it_was_before_another_thread_replaced_it() -> None:
    """Python may switch to a thread that sets `.data` after any call, also after one that takes an address."""
    model, memory, freed = nn.Linear(6, 3), np.ones((3, 6), np.float32), list[bool]()
    model.weight = nn.Parameter(torch.from_numpy(memory))
    is_there = weakref.ref(memory)
    del memory

    def switch(_frame: FrameType, event: str, function: Any) -> None:
        if event == "c_return" and function.__name__ == "data_ptr" and function.__self__ is model.weight:
            model.weight.data = torch.zeros(3, 6)
        elif event == "c_call" and function.__name__.startswith("observe"):
            freed.append(is_there() is None)

    optimizer = sgd(model.parameters())
    with watch(model, kinds={"param"}) as watcher:
        mean_square(model(noise(5, 6))).backward()
        sys.setprofile(switch)
        try:
            optimizer.step()
        finally:
            sys.setprofile(None)
        assert watcher.flush()
        assert read_step(watcher, 0)["", "param", "weight", 0]["mean"] == 1
    assert True not in freed
    assert freed


def test_a_forked_process_trains_as_if_unwatched() -> None:
    expected = train_unwatched()
    seed_all()
    model = mlp()
    with watch(model) as watcher:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                steps = take_steps(model)
                watcher.step()
                watcher.log(loss=1.0)
                watcher.close()
                os.write(writer, b"same" if steps == expected else b"different")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            assert answer.read() == "same"
        assert take_steps(model) == expected
        assert watcher.flush()
        assert watcher.current_step == STEPS


# --- The user's own mistakes ----------------------------------------------------------------------------------------


def test_invalid_logs_and_observations_are_counted_and_do_not_raise() -> None:
    with watch(mlp()) as watcher:
        watcher.log(loss="not a number")  # type: ignore[arg-type]
        watcher.log(loss=torch.tensor([]))
        thing = object()
        assert watcher.observe("scores", thing) is thing  # type: ignore[arg-type]
        assert watcher.error_count == 2
        watcher.log(loss=1.5, note="warm-up", rates=torch.ones(2), none=None, self=2.0)  # type: ignore[arg-type]
        assert watcher.error_count == 5
        watcher.step()
        assert watcher.flush()
        assert [watcher.store.scalars(name).mean.tolist() for name in ("loss", "self")] == [[1.5], [2.0]]
        assert "a tensor of shape (2,) was given" in watcher.errors[3].message


def test_names_of_observed_tensors_are_bounded() -> None:
    with watch(mlp()) as watcher:
        for step in range(4098):
            watcher.observe(f"scores of step {step}", torch.ones(3))
        assert watcher.error_count == 2
        assert "use the same name for a tensor in every step" in watcher.errors[0].message


def test_an_observation_whose_name_is_not_text_loses_no_frame() -> None:
    with watch(mlp()) as watcher:
        watcher.observe(7, torch.ones(3))  # type: ignore[arg-type]
        watcher.step()
        assert watcher.flush()
        assert read_step(watcher, 0)["7", "output", "", 0]["count"] == 3.0
        assert watcher.errors == []


def test_a_watcher_can_be_closed_twice_and_then_no_longer_used() -> None:
    before = process_state()
    watcher = watch(mlp())
    watcher.close()
    watcher.close()
    watcher.step()
    watcher.log(loss=1.0)
    tensor = torch.ones(2)
    assert watcher.observe("scores", tensor) is tensor
    with pytest.raises(ClosedError, match="closed"):
        watcher.resume()
    assert process_state() == before
    assert watcher.store.steps().count == 0


def test_nothing_remains_when_the_body_of_a_watch_raises() -> None:
    before = process_state()
    with pytest.raises(ValueError, match="mine"), watch(mlp()) as watcher:  # noqa: PT012
        watcher.log(loss=1.0)
        raise ValueError("mine")
    assert process_state() == before


def test_nothing_remains_when_watch_itself_raises() -> None:
    before = process_state()
    with pytest.raises(hookcore.PatternError):
        watch(mlp(), include="no such module")
    with pytest.raises(hookcore.ArgumentError):
        watch(mlp(), kinds={"outputs"})
    assert process_state() == before


@pytest.fixture
def rare_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the recorder's thread look for work only when it is called."""
    monkeypatch.setattr(module_of("Worker"), "POLL_S", 600.0)


@pytest.mark.usefixtures("rare_rounds")
def test_an_incident_a_command_many_frames_and_a_flush_wait_for_no_round() -> None:
    model = mlp()
    inputs, optimizer = noise(5, 6), sgd(model.parameters())

    def step(factor: float = 1.0) -> None:
        optimizer.zero_grad()
        (mean_square(model(inputs)) * factor).backward()
        optimizer.step()

    def names_of_events() -> set[str]:
        return {event.name for event in watcher.store.events()}

    with watch(model, every=1 << 20) as watcher:
        for _ in range(3):
            step()
        assert watcher.flush()
        assert watcher.store.steps().newest == 2
        for _ in range(300):
            step()
        wait_for(lambda: (watcher.store.steps().newest or 0) >= 100, "the frames of many steps")
        assert watcher.flush()
        recorder_of(watcher).on_command(Command(1, "settings", changes={"every": 7}))
        for _ in range(2):
            step()
        wait_for(lambda: {"settings-changed"} <= names_of_events(), "the outcome of a command")
        step(float("nan"))
        wait_for(lambda: {NONFINITE_STEP} <= names_of_events(), "the step with NaN")

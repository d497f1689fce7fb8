# mypy: disable-error-code="no-untyped-call"
"""The first step with a non-finite value is known exactly, whether it was captured or not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import hookcore
from hookcore.observe import finite
from hookcore.recorder.clock.cadence import Cadence
from hookcore.records import Event
from hookcore.records.flow import FlowCall
from tests.harness import seed_all
from tests.inside import class_of, keeper_of, module_of
from tests.zoo.case import mean_square, noise, sgd

BAD = 21
STRIDE = 16


@pytest.fixture(autouse=True)
def _a_stride_of_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cadence, "chooses", lambda self, step: step % STRIDE == 0)


class At(nn.Module):
    """Applies a function in one step."""

    def __init__(self, function: Callable[[Tensor], Tensor], steps: Any = (BAD,)) -> None:
        super().__init__()
        self.function, self.steps, self.step = function, steps, -1

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        return self.function(x) if self.step in self.steps else x


def _net(function: Callable[[Tensor], Tensor], steps: Any = (BAD,)) -> nn.Sequential:
    seed_all()
    layers = nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), At(function, steps), nn.Linear(8, 8), nn.Linear(8, 1)
    return nn.Sequential(*layers)


@contextmanager
def _watched(*models: nn.Module, **settings: Any) -> Iterator[hookcore.Watcher]:
    with hookcore.watch(nn.ModuleList(models) if len(models) > 1 else models[0], **settings) as watcher:
        yield watcher
        assert watcher.error_count == 0, watcher.errors[-1].message


def _events(watcher: hookcore.Watcher) -> list[Event]:
    assert watcher.flush()
    return [event for event in watcher.store.events() if event.name == "nonfinite-step"]


def _train(model: nn.Module, steps: int, optimizer: Any = None) -> None:
    optimizer = optimizer or sgd(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        mean_square(model(noise(5, 4))).backward()
        optimizer.step()


FORWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "the logarithm of zero": lambda x: torch.log(x * 0),
    "zero by zero": lambda x: x * 0 / (x * 0),
    "an overflow": lambda x: torch.exp(x.abs() * 1e4 + 100),
    "an arc cosine": lambda x: torch.acos(x.abs() + 2),
    "a power": lambda x: (-1 - x.abs()).pow(0.5),
    "a softmax of nothing": lambda x: torch.softmax(torch.full_like(x, -torch.inf) + x, 1),
    "a division by zero": lambda x: x / torch.zeros_like(x),
    "the root of a negative number": lambda x: (-1 - x.abs()).sqrt(),
}
BACKWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "the root of zero": lambda x: x + torch.sqrt(x * 0),
    "the norm of zero": lambda x: x + (x * 0).pow(2).sum(1, keepdim=True).sqrt(),
    "a discarded branch": lambda x: torch.where(x > -torch.inf, x, torch.log(x * 0)),
    "a power of zero": lambda x: x + (x * 0).abs().pow(0.5),
}


@pytest.mark.parametrize("operator", [*FORWARD, *BACKWARD])
def test_the_step_in_which_an_operator_makes_a_non_finite_value_is_known_exactly(operator: str) -> None:
    model = _net({**FORWARD, **BACKWARD}[operator])
    with _watched(model) as watcher:
        _train(model, BAD + 8)
        [event] = _events(watcher)
        backward = operator in BACKWARD
        assert (event.step, event.severity) == (BAD, "error")
        assert event.about["found"] == ("gradient" if backward else "loss")
        assert event.about["previous"] == BAD - 1
        assert (event.about["captured"], event.about["late"]) == (False, False)
        if backward:
            assert (event.module, event.about["name"], event.about["value"]) == ("0", "bias", "nan")
        reasons = [each.step for each in watcher.store.events() if each.name == "out-of-turn"]
        assert BAD + 1 in reasons


def test_a_pass_that_is_not_fine_is_glanced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sentinel, seen = class_of("Sentinel"), list[int]()
    glance = sentinel.glance

    def note(self: Any, step: int, losses: Any) -> Any:
        seen.append(step)
        return glance(self, step, losses)

    monkeypatch.setattr(sentinel, "glance", note)
    monkeypatch.setattr(module_of("Steady"), "_TRACKS", False)  # as without the extension
    late = 100 + BAD  # when it is known that there is a single optimizer
    model = _net(BACKWARD["the root of zero"], [late])
    with _watched(model, every=STRIDE) as watcher:
        _train(model, late + 1)
        assert [event.step for event in _events(watcher)] == [late]
    assert seen.count(late) == 1


def test_a_weight_that_was_non_finite_before_the_step_is_named() -> None:
    model = _net(lambda x: x)
    optimizer = sgd(model.parameters())
    with _watched(model) as watcher:
        _train(model, BAD, optimizer)
        with torch.no_grad():
            model[4].weight[1, 2] = float("inf")
        _train(model, 3, optimizer)
        [event] = _events(watcher)
        assert (event.step, event.module) == (BAD, "4")
        assert {name: event.about[name] for name in ("found", "name", "value", "previous")} == {
            "found": "weights",
            "name": "weight",
            "value": "inf",
            "previous": BAD - 1,
        }


def _train_with_factors(model: nn.Module, factors: dict[int, float], steps: int = 16) -> None:
    """Train with a loss that is multiplied by a number in some steps, and repair the gradients."""
    optimizer = sgd(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        (mean_square(model(noise(5, 4))) * factors.get(step, 1.0)).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimizer.step()


def test_only_the_change_is_reported_and_again_after_a_finite_step() -> None:
    model = _net(torch.log, ())
    with _watched(model) as watcher:
        _train_with_factors(model, dict.fromkeys((5, 6, 7, 12), float("-inf")))
        found = [(event.step, event.about["previous"], event.about["value"]) for event in _events(watcher)]
        assert found == [(5, 4, "-inf"), (12, 11, "-inf")]


def test_a_run_reports_so_many_steps_and_says_when_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of("Sentinel"), "MAX_REPORTED", 2)
    model = _net(torch.log, ())
    with _watched(model) as watcher:
        _train_with_factors(model, dict.fromkeys((3, 5, 7, 9), float("nan")))
        assert [event.step for event in _events(watcher)] == [3, 5]
        assert "aren't reported" in _events(watcher)[-1].message


def test_the_micro_batch_of_a_step_is_enough() -> None:
    model = _net(torch.log, (3 * BAD + 1,))
    optimizer = sgd(model.parameters())
    with _watched(model) as watcher:
        for _ in range(BAD + 2):
            optimizer.zero_grad()
            for _ in range(3):
                mean_square(model(noise(5, 4))).backward()
            optimizer.step()
        assert [event.step for event in _events(watcher)] == [BAD]


def test_each_of_two_optimizers_has_its_steps() -> None:
    one, two = _net(lambda x: x), _net(torch.log)
    optimizers = sgd(one.parameters()), sgd(two.parameters())
    with _watched(one, two) as watcher:
        for _ in range(BAD + 1):
            for model, optimizer in zip((one, two), optimizers, strict=True):
                optimizer.zero_grad()
                mean_square(model(noise(5, 4))).backward()
                optimizer.step()
        [event] = _events(watcher)
        assert (event.step, event.about["previous"]) == (2 * BAD + 1, 2 * BAD)


def test_a_closure_is_looked_at_each_time_it_is_called() -> None:
    model = _net(torch.log, range(60, 1000))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, max_eval=5, tolerance_grad=0, tolerance_change=0)
    inputs, calls = noise(5, 4), [0]

    def closure() -> Tensor:
        calls[0] += 1
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        return loss

    with _watched(model) as watcher:
        bad = -1
        while calls[0] <= 60:
            bad = watcher.current_step
            optimizer.step(closure)
        [event] = _events(watcher)
        assert (event.step, event.about["found"]) == (bad, "loss")


def test_steps_that_the_script_counts_itself_and_those_without_an_optimizer_are_looked_at() -> None:
    model = _net(torch.log)
    with _watched(model) as watcher:
        for _ in range(BAD + 1):
            model.zero_grad()
            mean_square(model(noise(5, 4))).backward()
            watcher.step()
        assert [event.step for event in _events(watcher)] == [BAD]
    model = _net(torch.log)
    with _watched(model) as watcher:
        for _ in range(BAD + 1):
            model.zero_grad()
            mean_square(model(noise(5, 4))).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
        watcher.step()
        assert [event.step for event in _events(watcher)] == [BAD]


def test_gradients_under_a_scaler_may_be_infinite_but_not_its_loss() -> None:
    model = _net(torch.log, (9,))
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    optimizer = sgd(model.parameters())
    with _watched(model) as watcher:
        for step in range(11):
            optimizer.zero_grad()
            loss = scaler.scale(mean_square(model(noise(5, 4))))
            hook = model[0].bias.register_hook(lambda grad: grad * torch.inf) if step in (0, 1, 5) else None
            loss.backward()
            if hook is not None:
                hook.remove()
            scaler.step(optimizer)
            scaler.update()
        [event] = _events(watcher)
        assert (event.step, event.about["found"]) == (9, "loss")


def test_a_gradient_that_is_set_by_hand_is_looked_at_before_the_step() -> None:
    model = _net(lambda x: x)
    optimizer = sgd(model.parameters())
    with _watched(model) as watcher:
        _train(model, 6, optimizer)
        parameters = list(model.parameters())
        for step in range(6):
            gradients = torch.autograd.grad(mean_square(model(noise(5, 4))), parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient * torch.nan if step == 3 else gradient
            optimizer.step()
            if step == 2:
                assert not _events(watcher)
        [event] = _events(watcher)
        assert (event.step, event.about["found"], event.about["previous"]) == (9, "gradient", 8)


def test_nothing_is_claimed_of_losses_that_no_backward_pass_starts_from() -> None:
    model = _net(torch.log, range(1000))
    with _watched(model) as watcher:
        for _ in range(5):
            torch.autograd.grad(mean_square(model(noise(5, 4))), list(model.parameters()))
            with torch.no_grad():
                mean_square(model(noise(5, 4)))
        watcher.step()
        assert not _events(watcher)


def test_a_paused_run_and_a_model_that_is_not_watched_are_left_alone() -> None:
    model, other = _net(torch.log), _net(torch.log, range(1000))
    optimizer = sgd(model.parameters())
    with _watched(model) as watcher:
        for _ in range(BAD - 2):
            mean_square(other(noise(5, 4))).backward()
            _train(model, 1, optimizer)
        watcher.pause()
        _train(model, 6, optimizer)
        assert not _events(watcher)


def test_threads_that_train_at_once_are_looked_at_by_their_losses() -> None:
    models = _net(torch.log), _net(lambda x: x)
    with _watched(*models) as watcher:
        _train(models[1], 2)
        threads = [threading.Thread(target=_train, args=(model, BAD + 1)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [event] = _events(watcher)
        assert event.about["found"] == "loss"


@pytest.mark.parametrize("meanwhile", [1, STRIDE - 2], ids=["a step", "up to a captured step"])
def test_a_pass_is_looked_at_by_its_loss_while_another_thread_trains(meanwhile: int) -> None:
    """The other thread trains while the backward pass with the bad loss runs."""
    other = _net(lambda x: x)

    def train_other(grad: Tensor) -> None:
        thread = threading.Thread(target=_train, args=(other, meanwhile))
        thread.start()
        thread.join()

    def take_logarithm(x: Tensor) -> Tensor:
        y = torch.log(x)
        y.register_hook(train_other)
        return y

    model = _net(take_logarithm, [0])
    with _watched(model, other) as watcher:
        _train(other, 2)
        thread = threading.Thread(target=_train, args=(model, 1))
        thread.start()
        thread.join()
        [event] = _events(watcher)
        assert (event.step, event.about["found"]) == (2 + meanwhile, "loss")


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("function", [lambda x: x, torch.log], ids=["finite", "non-finite"])
def test_no_mode_of_the_user_sees_the_look(function: Callable[[Tensor], Tensor]) -> None:
    seen = []
    for watched in (False, True):
        model = _net(function, (3,))
        optimizer = sgd(model.parameters())
        watcher = hookcore.watch(model) if watched else None
        with _Seen() as mode:
            for step in range(5):
                optimizer.zero_grad()
                loss = mean_square(model(noise(5, 4)))
                before = len(mode.names) if step == 3 else 0
                loss.backward()
                optimizer.step()
                if step == 3:
                    seen.append(mode.names[before:])
        if watcher is not None:
            watcher.close()
    assert seen[0] == seen[1]


def test_parameters_may_be_frozen_replaced_and_deleted() -> None:
    model = _net(torch.log, (40,))
    optimizer = sgd(model.parameters())
    with _watched(model) as watcher:
        _train(model, 8, optimizer)
        model[0].requires_grad_(False)
        _train(model, 8, optimizer)
        model[4] = nn.Linear(8, 8)
        _train(model, 8, sgd(model.parameters()))
        model[0] = nn.Identity()
        model[2] = nn.Identity()
        model[4] = nn.Linear(4, 8)
        _train(model, 17, sgd(model.parameters()))
        assert [event.step for event in _events(watcher)] == [40]


class _LateNumber:
    """A loss on a device."""

    def __init__(self, loss: Tensor, weight: Tensor) -> None:
        self._number = loss.item() * weight.item()

    def resolve(self) -> float:
        return self._number


class _LateReading:
    """A reading of a device that is done when a test says so."""

    done = False

    def __init__(self, tensors: list[Tensor]) -> None:
        self._sums = [float(each.abs().sum()) for each in tensors]

    @property
    def is_done(self) -> bool:
        return self.done

    def finish(self) -> list[float]:
        return self._sums


def test_what_a_device_computes_is_reported_later_with_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite.Tally, "sees", lambda self, tensor: False)
    monkeypatch.setattr(module_of("Sentinel"), "is_elsewhere", lambda tensor: True)
    monkeypatch.setattr(module_of("Sentinel"), "start_reading", _LateReading)
    monkeypatch.setattr(_LateReading, "done", False)
    monkeypatch.setattr(module_of("Sentinel"), "is_finite", lambda tensor: False)
    monkeypatch.setattr(module_of("FoundLoss"), "_number", _LateNumber)
    monkeypatch.setattr(module_of("FoundLoss"), "product_of", lambda *values: None)
    model = _net(BACKWARD["the root of zero"], (5,))
    with _watched(model) as watcher:
        _train(model, 9)
        assert not watcher.flush(0.2)
        assert not [event for event in watcher.store.events() if event.name == "nonfinite-step"]
        monkeypatch.setattr(_LateReading, "done", True)
        assert watcher.flush()
        _train(model, 1)
        [event] = _events(watcher)
        about = event.about
        assert (event.step, about["found"], about["previous"], about["late"]) == (5, "gradient", 4, True)


def test_a_step_whose_device_spoke_after_its_update_is_said_to_be_beyond_saving() -> None:
    model = _net(lambda x: x)
    with _watched(model, capsule="error") as watcher:
        _train(model, 3)
        keeper_of(watcher).alarm(1)
        _train(model, 1)
        watcher.flush()
        (event,) = [each for each in watcher.store.events() if each.name == "capsule-missed"]
        assert event.message.startswith("step 1 was not saved: the step can't be repeated: its weights were updated")


def test_a_look_that_fails_costs_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, tensor: Tensor) -> bool:
        raise RuntimeError("no address")

    monkeypatch.setattr(finite.Tally, "sees", fail)
    model = _net(lambda x: x)
    with hookcore.watch(model) as watcher:
        _train(model, 5)
        assert watcher.current_step == 5
        assert "no address" in watcher.errors[-1].message


def test_lookouts_are_the_modules_where_the_flow_begins() -> None:
    calls = (
        FlowCall("user"),
        FlowCall("item"),
        FlowCall("merge", fed_by=(0, 1)),
        FlowCall("head.act", fed_by=(2,)),
        FlowCall("head.last", fed_by=(3,)),
        FlowCall("head", fed_by=(2,), returns=(4,)),
        FlowCall("", returns=(5,)),
    )
    first_of_flow = module_of("Sentinel").first_of_flow
    assert first_of_flow(calls, ["user", "item", "merge", "head.last"]) == ["user", "item"]
    assert first_of_flow(calls, ["merge", "head.last"]) == ["merge"]
    assert first_of_flow(calls, ["item", "head.last"]) == ["item"]
    again = (FlowCall("cell"), FlowCall("cell", 1, fed_by=(0,)), FlowCall("out", fed_by=(1,)))
    assert first_of_flow(again, ["cell", "out"]) == ["cell"]


def test_models_that_are_discovered_are_looked_at() -> None:
    model = _net(torch.log)
    with hookcore.watch() as watcher:
        _train(model, BAD + 1)
        assert [event.step for event in _events(watcher)] == [BAD]

# mypy: disable-error-code="no-untyped-call"
"""Odd loops whose values were once wrong: optimizers that run the model, share weights, or clear gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from hookcore.records import Tap
from tests.harness import seed_all, watch
from tests.zoo.case import mean_square, noise, sgd

STEPS = 12


def _net() -> nn.Sequential:
    seed_all()
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def _means(watcher: Any, tap: Tap, stat: str) -> list[float]:
    assert watcher.flush()
    return [float(each) for each in watcher.store.series(tap, stat).mean]


class RunsTheModel(torch.optim.SGD):
    """Takes no closure: its step runs the model and its backward pass, as in GSAM."""

    run: Callable[[], None]

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        with torch.enable_grad():
            self.run()
        super().step()


@pytest.mark.parametrize("given", [{"budget": 0.05}, {"budget": None}, {"every": 3}])
def test_each_step_of_an_optimizer_that_runs_the_model_itself_is_a_step(given: dict[str, Any]) -> None:
    model = _net()
    optimizer, norms = RunsTheModel(model.parameters(), 0.1), []

    def run() -> None:
        optimizer.zero_grad()
        mean_square(model(noise(5, 4))).backward()
        norms.append(float(model[0].weight.grad.norm()))

    optimizer.run = run
    with watch(model, **given) as watcher:
        for _ in range(STEPS):
            optimizer.step()
        assert watcher.current_step == STEPS
        assert set(_means(watcher, Tap("0", "output"), "count")) == {25.0}
        series = watcher.store.series(Tap("0", "param_grad", "weight"), "norm")
        assert series.mean.tolist() == pytest.approx([norms[step] for step in series.first_step], rel=1e-6)
        assert watcher.error_count == 0


class Sam(Optimizer):
    """Steps with the gradients of a second pass, and resets them."""

    def __init__(self, model: nn.Module, has_base: bool) -> None:
        super().__init__(model.parameters(), {})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1) if has_base else None
        self.used: list[float] = []

    @torch.no_grad()
    def step(self, closure: Any) -> None:  # type: ignore[override]
        weights = [each for group in self.param_groups for each in group["params"]]
        old = [each.clone() for each in weights]
        for each in weights:
            each.add_(each.grad * 0.05)
        self.zero_grad()
        torch.enable_grad()(closure)()
        for each, before in zip(weights, old, strict=True):
            each.copy_(before)
        self.used.append(float(weights[0].grad.norm()))
        if self.base is None:
            for each in weights:
                each.sub_(0.1 * each.grad)
        else:
            self.base.step()
        self.zero_grad()


def _train_with(optimizer: Sam, model: nn.Module) -> None:
    inputs = noise(5, 4)

    def closure() -> None:
        mean_square(model(inputs)).backward()

    for _ in range(STEPS):
        optimizer.zero_grad()
        closure()
        optimizer.step(closure)


def test_gradients_that_an_optimizer_clears_in_its_step_are_those_of_its_inner_optimizer() -> None:
    model = _net()
    optimizer = Sam(model, has_base=True)
    with watch(model) as watcher:
        _train_with(optimizer, model)
        assert watcher.current_step == STEPS
        assert _means(watcher, Tap("0", "param_grad", "weight"), "norm") == pytest.approx(optimizer.used, rel=1e-6)
        assert set(_means(watcher, Tap("0", "param_grad", "weight"), "count")) == {20.0}


def test_the_coverage_says_that_gradients_were_gone_before_they_could_be_read() -> None:
    model = _net()
    optimizer = Sam(model, has_base=False)
    with watch(model) as watcher:
        _train_with(optimizer, model)
        assert watcher.flush()
        reasons = {each.path: each.reason for each in watcher.coverage()}
    assert "no weight gradient was there" in reasons["0"]
    assert "no weight gradient" not in reasons["1"]  # has no weights


def test_weights_of_two_optimizers_count_once_in_a_step_and_their_updates_are_left_out_with_a_reason() -> None:
    seed_all()
    model = nn.Linear(4, 3)
    first, second, norms = sgd(model.parameters()), torch.optim.SGD(model.parameters(), 0.01), []
    with watch(model, kinds=("output", "param_grad", "update")) as watcher:
        for _ in range(STEPS):
            model.zero_grad()
            mean_square(model(noise(5, 4))).backward()
            norms.append(float(model.weight.grad.norm()))
            first.step()
            second.step()
        assert _means(watcher, Tap("", "param_grad", "weight"), "count") == [12.0] * STEPS
        assert _means(watcher, Tap("", "param_grad", "weight"), "norm") == pytest.approx(norms, rel=1e-6)
        assert watcher.store.series(Tap("", "update", "weight"), "norm").first_step.tolist() == [0]
        assert "several optimizers step" in watcher.coverage()[0].reason


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("outer", [True, False])
def test_gradients_inside_nested_checkpoints_are_those_without_checkpoints(inner: bool, outer: bool) -> None:
    def run(block: Callable[[Any, Tensor], Tensor]) -> dict[str, list[float]]:
        seed_all()
        model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), "b": nn.Linear(4, 1)})
        optimizer = sgd(model.parameters())
        with watch(model) as watcher:
            for _ in range(3):
                optimizer.zero_grad()
                mean_square(model["b"](block(model["a"], noise(5, 4).requires_grad_()))).backward()
                optimizer.step()
            paths = "a.0", "a.1", "a.2", "a", "b"
            return {path: _means(watcher, Tap(path, "output_grad"), "norm") for path in paths}

    def nested(module: Any, x: Tensor) -> Tensor:
        def middle(y: Tensor) -> Tensor:
            return checkpoint(module, y, use_reentrant=inner) * 1.0  # type: ignore[no-any-return]

        return checkpoint(middle, x, use_reentrant=outer)  # type: ignore[no-any-return]

    assert run(nested) == run(lambda module, x: module(x) * 1.0)


def test_weights_stepped_by_hand_say_that_their_first_gradients_are_missing() -> None:
    seed_all()
    model = nn.Linear(4, 1)
    with watch(model) as watcher:
        for _ in range(6):
            model.zero_grad()
            mean_square(model(noise(5, 4))).backward()
            with torch.no_grad():
                for each in model.parameters():
                    each.sub_(0.1 * each.grad)
        assert watcher.flush()
        captured = watcher.store.series(Tap("", "param_grad", "weight"), "norm").first_step.tolist()
        (event,) = (each for each in watcher.store.events() if each.name == "no-optimizer")
        assert captured == [2, 3, 4, 5]
        assert "have no weight gradients" in event.message

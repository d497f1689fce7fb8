"""Learning rates are recorded in the steps in which they change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, StepLR

import hookcore
from hookcore import Watcher
from hookcore.records.vocabulary import is_rate

STEPS = 8


def trained(
    make: Callable[[nn.Module], tuple[Optimizer, Any]], log: bool = False, **settings: Any
) -> tuple[Watcher, dict[str, dict[int, float]]]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer, schedule = make(model)
    with hookcore.watch(model, server=None, **settings) as watcher:
        for _ in range(STEPS):
            if log:
                watcher.log(lr=optimizer.param_groups[0]["lr"])
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            schedule()
    names = [name for name in watcher.store.scalar_names() if is_rate(name)]
    series = {name: watcher.store.scalars(name) for name in names}
    return watcher, {
        name: dict(zip(each.last_step.tolist(), each.mean.tolist(), strict=True)) for name, each in series.items()
    }


@pytest.mark.parametrize("every", [1, 4])
def test_a_rate_that_changes_is_recorded_in_each_such_step_captured_or_not(every: int) -> None:
    def make(model: nn.Module) -> tuple[Optimizer, Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        return optimizer, StepLR(optimizer, 3, 0.1).step

    _, rates = trained(make, budget=None, every=every)
    assert rates == {"optimizer/lr": pytest.approx({2: 0.5, 3: 0.05, 6: 0.005})}


def test_a_rate_that_stays_is_no_scalar() -> None:
    _, rates = trained(lambda model: (torch.optim.Adam(model.parameters()), lambda: None))
    assert rates == {}


def test_a_rate_that_the_script_logs_is_not_recorded_twice() -> None:
    def make(model: nn.Module) -> tuple[Optimizer, Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        return optimizer, StepLR(optimizer, 3, 0.1).step

    assert set(trained(make, log=True)[1]) == {"lr"}


def test_groups_that_differ_have_lines_of_their_own() -> None:
    def make(model: nn.Module) -> tuple[Optimizer, Any]:
        groups = [{"params": model[0].parameters()}, {"params": model[1].parameters()}]
        optimizer = torch.optim.SGD(groups, lr=0.5)
        return optimizer, LambdaLR(optimizer, [lambda _: 1.0, lambda step: 0.5 if step > 3 else 1.0]).step

    assert trained(make)[1] == {"optimizer/group1/lr": pytest.approx({3: 0.5, 4: 0.25})}


def test_a_tensor_that_is_changed_in_place_is_read_as_a_number() -> None:
    def make(model: nn.Module) -> tuple[Optimizer, Any]:
        rate = torch.tensor(0.5)
        return torch.optim.SGD(model.parameters(), lr=rate), lambda: rate.mul_(0.5)

    expected = {step: 0.5 ** (step + 1) for step in range(STEPS)}
    assert trained(make)[1] == {"optimizer/lr": pytest.approx(expected)}

"""Gradients that, from the first step on, are far smaller on one side of a layer than on the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import hookcore
from hookcore.findings import Finding, examine
from tests.harness import seed_all


class Fades(nn.Module):
    """Passes on its input, but almost nothing of the gradient."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return self.share * x + ((1 - self.share) * x).detach()


class Towers(nn.Module):
    """Two independent networks, one of which has a tiny loss."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = (nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return 1e-8 * self.actor(x), self.critic(x)


def vanishing(model: nn.Module, steps: int = 24) -> list[Finding]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        for _ in range(steps):
            optimizer.zero_grad()
            output: Any = model(torch.randn(16, 8))
            loss = sum(each.pow(2).mean() for each in output) if isinstance(output, tuple) else output.pow(2).mean()
            loss.backward()
            optimizer.step()
        watcher.flush()
        return [each for each in examine(watcher.store).findings if each.rule == "vanishing"]


def net(share: float, more: int = 0) -> nn.Module:
    seed_all()
    last = (each for _ in range(more) for each in (nn.Linear(8, 8), nn.ReLU()))
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), Fades(share), *last, nn.Linear(8, 1))


def test_the_last_layer_before_the_cut_is_named_in_the_first_steps() -> None:
    for more in (0, 1, 4):  # more than eight layers are also compared as a stack
        (found,) = vanishing(net(1e-7, more))
        assert (found.module, found.severity, found.since_step, found.downstream) == ("2", "warning", 0, 1)
        assert "in 2 is 10^7 times smaller than that in 4" in found.message


def test_a_smaller_fall_and_a_fall_to_zero_are_not_cliffs() -> None:
    assert not vanishing(net(1e-3))
    assert not vanishing(net(0.0))  # other rules report gradients of zero


def test_unconnected_networks_are_not_compared() -> None:
    seed_all()
    assert not vanishing(Towers())

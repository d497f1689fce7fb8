"""A model whose step fails with a guilty line, for tests of saved steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import hookcore
from hookcore.capsules import Replay
from hookcore.records import Event

BAD = 5  # the step in which the examples fail


class Standardize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.std()  # guilty


class Net(nn.Module):
    """Has everything that a replay must restore: BatchNorm, dropout, keyword arguments, and nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.standardize, self.last = Standardize(), nn.Linear(8, 2)

    def forward(self, x: Tensor, *, mask: Tensor) -> dict[str, Any]:
        hidden = self.drop(torch.relu(self.norm(self.first(x)))) * mask
        output = self.last(self.standardize(hidden))
        return {"loss": output.pow(2).mean(), "outputs": (output,)}


def batches(bad: int = BAD, steps: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    for step in range(steps):
        yield torch.randn(16, 4), torch.zeros(16, 8) if step == bad else torch.ones(16, 8)


def events_of(watcher: hookcore.Watcher, name: str) -> list[Event]:
    watcher.flush()
    return [each for each in watcher.store.events() if each.name == name]


def guilty(found: Replay) -> bool:
    assert found.culprit is not None
    line = found.culprit.line
    return line is not None and line.source[line.line - line.first].endswith("# guilty")

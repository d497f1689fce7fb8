"""Trainings whose calls are held in every step, for tests of what is saved of an uncaptured one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hookcore
from tests.guilty import BAD, Net, batches
from tests.inside import recorder_of

NEVER = 1 << 20  # steps between two captured ones, so that only step 0 is captured


def watch(model: nn.Module, **settings: Any) -> hookcore.Watcher:
    return hookcore.watch(model, **{"server": None, "budget": None, "every": NEVER, "capsule": "error", **settings})


def fire(watcher: hookcore.Watcher, module: str | None = None) -> bool:
    return recorder_of(watcher).capture.keeping.fire("non-finite values in the loss", module)


def train(
    model: Net, watcher: hookcore.Watcher | None, bad: int = BAD, log: Callable[[Any], None] = lambda _: None
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step, (x, mask) in enumerate(batches(bad)):
        optimizer.zero_grad()
        loss = model(x, mask=mask)["loss"]
        if step == bad and watcher is not None:
            assert fire(watcher)
        loss.backward()
        optimizer.step()
        log(loss.detach())

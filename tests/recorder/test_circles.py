"""A watch that is over leaves nothing to Python's cyclic collector, which rarely runs in a training loop."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hookcore
from tests.inside import recorder_of
from tests.zoo.case import sgd


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    sgd(nn.Linear(1, 1).parameters())  # a process's first optimizer leaves its callers' frames in circles of torch's
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _train(**given: Any) -> hookcore.Watcher:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = sgd(model.parameters())
    watcher = hookcore.watch(model, server=None, budget=None, memory="64MB", **given)
    for step in range(40):
        optimizer.zero_grad()
        inputs = torch.full((3, 4), float("nan") if step == 30 else 1.0)
        model(inputs).sum().backward()
        optimizer.step()
    watcher.close()
    return watcher


def _parts(watcher: hookcore.Watcher) -> dict[str, weakref.ref[Any]]:
    recorder = recorder_of(watcher)
    parts = {
        "watcher": watcher,
        "store": watcher.store,
        "recorder": recorder,
        "arena": recorder.context.statistics.arena,
    }
    return {name: weakref.ref(part) for name, part in parts.items()}


@pytest.mark.parametrize("given", [{}, {"attach": "module"}, {"kinds": ("output", "input", "update")}])
def test_a_closed_watch_is_freed_with_its_last_reference(given: dict[str, Any]) -> None:
    watcher = _train(**given)
    parts = _parts(watcher)
    del watcher
    assert [name for name, part in parts.items() if part() is not None] == []


def test_the_store_of_a_closed_watch_stays_readable_without_the_watcher() -> None:
    watcher = _train()
    store = watcher.store
    del watcher
    assert store.steps().newest == 39
    assert "nonfinite" in {each.rule for each in store.incidents()}


def test_a_graph_that_outlives_its_watcher_still_runs_its_backward_pass() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    watcher = hookcore.watch(model, server=None, budget=None, memory="64MB")
    loss = model(torch.ones(3, 4)).sum()
    watcher.close()
    del watcher
    loss.backward()
    assert model[0].weight.grad is not None

"""The step of a run's first error is replayed by itself, and its result becomes events of the run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hookcore
from hookcore.capsules import replay
from hookcore.records import Event
from tests.capsule_files import capsules_of
from tests.guilty import BAD, Net
from tests.harness import seed_all
from tests.held import train, watch
from tests.inside import threads_named


def explained(watcher: hookcore.Watcher) -> dict[str, Event]:
    for thread in threads_named("hookcore-explain"):
        thread.join(240)
    watcher.close()
    return {each.name: each for each in watcher.store.events()}


@pytest.mark.slow
def test_the_step_of_the_first_error_is_explained_by_itself_with_its_layers() -> None:
    seed_all()
    model = Net()
    watcher = watch(model, explain="auto")
    train(model, watcher)
    events = explained(watcher)
    about: dict[str, Any] = events["explained"].about
    assert (about["step"], about["module"], about["phase"], about["exact"]) == (BAD, "standardize", "forward", True)
    assert about["where"].startswith("guilty.py:")
    assert about["code"].endswith("# guilty")
    assert "standardize" in events["replayed"].about["layers"]  # type: ignore[operator]
    (path,) = capsules_of(watcher)
    assert path.with_suffix(".json").exists()
    assert not watcher.errors


def test_a_loss_that_is_nan_although_the_model_is_fine_leads_to_the_loss_and_its_targets() -> None:
    seed_all()
    model, ignored = torch.nn.Linear(4, 3), -100
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hookcore.watch(model, server=None, every=1 << 20, capsule="error", explain="never") as watcher:
        for step in range(4):
            targets = torch.full((8,), ignored if step == 2 else 1)
            nn.functional.cross_entropy(model(torch.randn(8, 4)), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    (path,) = capsules_of(watcher)
    found = replay(path)
    assert found.exact, found.differences
    assert "What the model returned was finite, so look at how the loss is computed" in found.sentence


def test_nothing_is_explained_by_itself_if_the_setting_says_never() -> None:
    seed_all()
    model = Net()
    with watch(model, explain="never") as watcher:
        train(model, watcher)
        assert threads_named("hookcore-explain") == []


def test_a_capsule_that_is_too_large_is_not_replayed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookcore.watcher.callbacks.MAX_BYTES", 10)
    seed_all()
    model = Net()
    watcher = watch(model, explain="auto")
    train(model, watcher)
    events = explained(watcher)
    assert "isn't replayed by itself" in events["explanation-failed"].message

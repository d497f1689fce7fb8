"""The step of a run's first error is replayed by itself, and its result becomes events of the run."""

from __future__ import annotations

from typing import Any, Literal

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


def train_with_a_batch_without_targets(explain: Literal["auto", "never"]) -> hookcore.Watcher:
    seed_all()
    model, ignored = torch.nn.Linear(4, 3), -100
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = watch(model, explain=explain)
    for step in range(4):
        targets = torch.full((8,), ignored if step == 2 else 1)
        nn.functional.cross_entropy(model(torch.randn(8, 4)), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return watcher


def test_a_loss_that_is_nan_although_the_model_is_fine_leads_to_the_loss_and_its_targets() -> None:
    with train_with_a_batch_without_targets("never") as watcher:
        pass
    (path,) = capsules_of(watcher)
    found = replay(path)
    assert found.exact, found.differences
    assert "What the model returned was finite, so look at how the loss is computed" in found.sentence


@pytest.mark.slow
def test_an_incident_whose_replay_found_nothing_says_so_and_leads_to_the_loss() -> None:
    watcher = train_with_a_batch_without_targets("auto")
    assert explained(watcher)["explained"].about["found"] == "nothing"
    (incident,) = [each for each in watcher.store.incidents() if each.rule == "nonfinite"]
    assert incident.headline == "NaN began at step 2; the layer isn't known"
    assert incident.remedy.startswith("The replay of the step found nothing non-finite in the model's outputs")
    assert "look at how the loss is computed from them, and at the targets" in incident.remedy
    assert incident.remedy in incident.sentence


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

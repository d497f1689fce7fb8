# mypy: disable-error-code="no-untyped-call"
"""A model that trains in evaluation mode: all of it counts as training, even tensors that need no gradient."""

from __future__ import annotations

import torch
from torch import nn

from tests.harness import assert_stats, read_step, seed_all, watch
from tests.zoo.case import mean_square, noise, sgd


def _frozen_below() -> nn.Sequential:
    seed_all()
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    model[:2].requires_grad_(False)
    return model.eval()


def test_frozen_layers_of_a_model_that_trains_in_eval_mode_count_as_training_after_one_step() -> None:
    model = _frozen_below()
    optimizer = sgd(model[2].parameters())
    with watch(model, kinds=("input", "output", "output_grad")) as watcher:
        for _ in range(3):
            batch = noise(5, 4)
            hidden = nn.functional.linear(batch, model[0].weight, model[0].bias)  # type: ignore[arg-type]
            optimizer.zero_grad()
            mean_square(model(batch)).backward()
            optimizer.step()
        assert watcher.flush()
        stats = read_step(watcher, 2)
        assert_stats(stats["0", "input", "0", 0], [batch])
        assert_stats(stats["0", "output", "", 0], [hidden])
        assert stats["2", "output_grad", "", 0]["count"] == 5


def test_evaluation_without_gradients_is_kept_separate_from_training_in_eval_mode() -> None:
    model = _frozen_below()
    optimizer = sgd(model[2].parameters())
    with watch(model) as watcher:
        for _ in range(3):
            optimizer.zero_grad()
            mean_square(model(noise(5, 4))).backward()
            optimizer.step()
            with torch.no_grad():
                model(noise(50, 4))
        assert watcher.flush()
        assert read_step(watcher, 2)["0", "output", "", 0]["count"] == 5 * 6


def test_training_is_not_captured_if_only_evaluation_is_selected() -> None:
    seed_all()
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1))
    optimizer = sgd(model.parameters())
    with watch(model, phases=("eval",)) as watcher:
        mean_square(model(noise(5, 4))).backward()
        assert {each.path: each.reason for each in watcher.coverage()}["0"].startswith("ran in training")
        with torch.no_grad():
            model.eval()(noise(5, 4))
        optimizer.step()
        assert watcher.flush()
        taps = watcher.store.taps().taps
    assert {(tap.module, tap.kind, tap.phase) for tap in taps if not tap.kind.startswith("param")} == {
        (path, "output", "eval") for path in ("", "0", "1")
    }

# mypy: disable-error-code="no-untyped-call"
"""In every kind of step, gradients under a loss scale are divided by the scale of that moment."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookcore
from hookcore.records.vocabulary import MICRO_BATCHES
from tests.harness import assert_stats, read_step, seed_all, watch
from tests.zoo.case import mean_square, noise, sgd


def _net() -> nn.Sequential:
    seed_all()
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))


def _skipped(watcher: hookcore.Watcher) -> list[int]:
    return [event.step for event in watcher.store.events() if event.name == "skipped-step"]


def _scaler() -> Any:
    return torch.amp.GradScaler("cpu", init_scale=65536.0)


def _train(
    model: nn.Module,
    skipped: Iterable[int],
    steps: int,
    micro_batches: int = 1,
    optimizer: Any = None,
    scaler: Any = None,
) -> list[list[Tensor]]:
    """Train with a scaler that skips some steps although the gradients of outputs are finite."""
    scaler, optimizer, truth = scaler or _scaler(), optimizer or sgd(model.parameters()), []
    for step in range(steps):
        batches, twin = [noise(5, 4) for _ in range(micro_batches)], copy.deepcopy(model)
        truth.append([2 * twin(batch) / 5 for batch in batches])
        optimizer.zero_grad()
        for batch in batches:
            scaler.scale(mean_square(model(batch))).backward()
        if step in skipped:
            model[0].weight.grad[0, 0] = float("inf")  # type: ignore[index]
        scaler.step(optimizer)
        scaler.update()
    return truth


def _check(watcher: hookcore.Watcher, truth: list[list[Tensor]], first: int = 0) -> None:
    assert watcher.flush()
    for step, parts in enumerate(truth, first):
        assert_stats(read_step(watcher, step)["2", "output_grad", "", 0], parts, step)


@pytest.mark.parametrize("micro_batches", [2, 3])
def test_the_first_steps_micro_batches_are_all_divided_by_the_scale(micro_batches: int) -> None:
    model = _net()
    with watch(model) as watcher:
        truth = _train(model, (), 3, micro_batches)
        _check(watcher, truth)
        assert watcher.current_step == 3


def test_finite_gradients_of_a_skipped_step_are_divided_by_its_scale() -> None:
    model = _net()
    with watch(model) as watcher:
        truth = _train(model, (2, 3, 5), 7)
        _check(watcher, truth)
        assert _skipped(watcher) == [2, 3, 5]


@pytest.mark.parametrize("many", [7, 90])
@pytest.mark.parametrize("every", [1, 1000])
def test_a_last_step_that_a_scaler_skips_is_a_step_and_one_that_has_only_begun_is_none(every: int, many: int) -> None:
    for skipped in ((), (2, many - 1), (many - 2, many - 1)):
        model = _net()
        optimizer, scaler = sgd(model.parameters()), _scaler()
        with watch(model, every=every) as watcher:
            truth = _train(model, skipped, many, optimizer=optimizer, scaler=scaler)
        assert watcher.current_step == many
        assert _skipped(watcher) == list(skipped)
        assert watcher.store.steps().count == many
        if every == 1:
            _check(watcher, truth)
    model = _net()
    optimizer, scaler = sgd(model.parameters()), _scaler()
    with watch(model, every=every) as watcher:
        _train(model, (), many, optimizer=optimizer, scaler=scaler)
        scaler.scale(model(noise(5, 4)).sum()).backward()
    assert watcher.current_step == many
    assert _skipped(watcher) == []


@pytest.mark.parametrize("many", [1, 2, 5])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_steps_skipped_before_the_first_real_one_have_their_event_and_their_scale(
    many: int, micro_batches: int
) -> None:
    model = _net()
    with watch(model) as watcher:
        truth = _train(model, range(many), many + 3, micro_batches)
        _check(watcher, truth)
        assert watcher.current_step == many + 3
        assert [event.name for event in watcher.store.events()] == ["skipped-step"] * many
        assert _skipped(watcher) == list(range(many))


def test_a_scaler_that_is_added_later_is_found_in_its_first_step() -> None:
    model = _net()
    optimizer = sgd(model.parameters())
    with watch(model) as watcher:
        for _ in range(70):
            optimizer.zero_grad()
            mean_square(model(noise(5, 4))).backward()
            optimizer.step()
        truth = _train(model, (2,), 5, optimizer=optimizer)
        assert watcher.current_step == 75
        _check(watcher, truth, first=70)
        assert _skipped(watcher) == [72]


@pytest.mark.parametrize("optimizers", [1, 2])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_disabled_scaler_changes_nothing(micro_batches: int, optimizers: int) -> None:
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu", enabled=False)):
        model = _net()
        parts = (
            [sgd(model.parameters())] if optimizers == 1 else [sgd(model[0].parameters()), sgd(model[2].parameters())]
        )
        with watch(model) as watcher:
            for _ in range(80):
                for optimizer in parts:
                    optimizer.zero_grad()
                for _ in range(micro_batches):
                    mean_square(model(noise(5, 4))).backward()
                for optimizer in parts:
                    optimizer.step() if scaler is None else scaler.step(optimizer)
                if scaler is not None:
                    scaler.update()
            assert watcher.flush()
            assert watcher.error_count == 0, watcher.errors[-1].message
            numbers = {name: watcher.store.scalars(name).mean.tolist() for name in ("backward/loss", MICRO_BATCHES)}
            found.append((watcher.current_step, numbers))
    assert found[0] == found[1]


@pytest.mark.parametrize("scalers", [1, 2])
@pytest.mark.parametrize("together", [True, False])
def test_no_flag_of_a_scaler_lives_after_its_step_because_it_is_watched(together: bool, scalers: int) -> None:
    models, flags = [_net(), _net()], []
    optimizers = [sgd(model.parameters()) for model in models]
    scaling = [torch.amp.GradScaler("cpu", init_scale=2.0) for _ in range(scalers)] * (3 - scalers)
    with watch(nn.ModuleList(models)) as watcher:
        for _ in range(4):
            for model, scaler in zip(models, scaling, strict=True):
                scaler.scale(mean_square(model(noise(5, 4)))).backward()
                if not together:
                    _step(scaler, optimizers[models.index(model)], flags)
                    scaler.update()
            for scaler, optimizer in zip(scaling, optimizers, strict=True) if together else ():
                _step(scaler, optimizer, flags)
            for scaler in {id(each): each for each in scaling}.values() if together else ():
                scaler.update()
            watcher.flush()
            assert len(flags) > 0
            assert [flag() for flag in flags if flag() is not None] == []
            flags.clear()


def _step(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, flags: list[Any]) -> None:
    scaler.step(optimizer)
    flags += map(weakref.ref, scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values())

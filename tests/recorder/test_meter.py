# mypy: disable-error-code="no-untyped-call"
"""If every step is captured, hookcore times its own code in some of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hookcore.recorder.clock.cadence import TIME_EVERY, WARM_UP, Cadence
from tests.harness import watch
from tests.inside import class_of, recorder_of

Meter = class_of("Meter")


class Ticks:
    """A clock that is advanced by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_meter_counts_nested_calls_once_and_includes_the_running_one() -> None:
    clock = Ticks()
    meter = Meter(clock)

    def outer() -> None:
        clock.now += 1
        meter.time(inner)
        clock.now += 1

    def inner() -> None:
        clock.now += 5

    meter.time(outer)
    clock.now += 100
    assert meter.take(clock()) == 7
    meter.enter()
    clock.now += 2
    assert meter.take(clock()) == 9
    meter.leave()
    meter.leave()  # from a call that started before the meter
    clock.now += 50
    assert meter.take(clock()) == 9


def test_a_meter_continues_after_a_call_that_raised() -> None:
    clock = Ticks()
    meter = Meter(clock)

    def fail() -> None:
        clock.now += 3
        raise KeyError

    with pytest.raises(KeyError):
        meter.time(fail)
    clock.now += 10
    assert meter.take(clock()) == 3


def test_the_cost_is_the_time_of_hookcore_divided_by_the_users_time() -> None:
    cadence, timed = Cadence(1, None), []
    for step in range(1000):
        assert cadence.wants(step)
        timed += [step] * cadence.wants_timing
        cadence.step_ended(True, 1.25, 0.25 if cadence.wants_timing else float("nan"))
        if len(timed) < 3:
            assert cadence.cost != cadence.cost  # still unknown
    assert cadence.cost == cadence.effective_cost == pytest.approx(0.25)
    assert min(timed) >= WARM_UP
    assert [step for step in timed if step > 200] == [step for step in range(201, 1000) if step % TIME_EVERY == 0]


def test_with_a_limit_or_with_uncaptured_steps_nothing_is_timed() -> None:
    for cadence in (Cadence(1, 0.05), Cadence(2, None)):
        for step in range(100):
            assert not cadence.wants_timing
            cadence.step_ended(cadence.wants(step), 1.0)


def train(model: nn.Module, steps: int, inputs: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("settings", [{}, {"attach": "module"}, {"compiled": "inside"}, {"kinds": ("input", "update")}])
def test_the_cost_of_capturing_every_step_is_reported_for_every_kind_of_attachment(settings: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[0].register_forward_hook(lambda *_: None)  # the module's own hook, so that a companion hook follows it
    with watch(model, budget=None, **settings) as watcher:
        train(model, 40, torch.randn(4, 8))
        told = recorder_of(watcher).capture.control.current_settings()
        assert watcher.flush()
        assert watcher.errors == []
        scalars = watcher.store.scalars("hookcore/effective_cost")
    assert told["cost"] > 0
    assert told["effective_cost"] == told["cost"]
    assert scalars.mean[-1] > 0


def test_a_timed_step_has_the_same_values_and_bits_as_an_untimed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for timed in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        monkeypatch.setattr(Cadence, "wants_timing", timed)
        with watch(model, budget=None) as watcher:
            train(model, 30, torch.randn(4, 8))
            assert watcher.flush()
            latest = watcher.store.latest()
        seen.append((latest.values, [parameter.detach().clone() for parameter in model.parameters()]))
    assert np.array_equal(seen[0][0], seen[1][0], equal_nan=True)
    assert all(torch.equal(one, other) for one, other in zip(seen[0][1], seen[1][1], strict=True))

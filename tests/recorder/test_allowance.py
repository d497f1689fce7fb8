"""The allowance: capturing that the budget doesn't limit, as long as it takes little real time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookcore
from hookcore.recorder.clock.cadence import Cadence

NAN = float("nan")


def captured_steps(cadence: Cadence, steps: int, plain_s: float, extra_s: float, is_timed: bool = True) -> list[int]:
    chosen = []
    for step in range(steps):
        captured = cadence.wants(step)
        chosen += [step] * captured
        spent_s = extra_s if captured and is_timed and cadence.wants_timing else NAN
        cadence.step_ended(captured, plain_s + captured * extra_s, spent_s)
    return chosen


def test_a_short_training_is_captured_whole_whatever_its_ratio() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hookcore.watch(model, server=None, allowance=60) as watcher:  # enough for a busy machine
        for _ in range(57):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    assert watcher.store.captured() == 57


def test_the_allowance_lasts_until_its_seconds_are_used_up_and_then_the_budget_counts() -> None:
    cadence = Cadence(1, 0.05, 0.3)
    steps = captured_steps(cadence, 3000, plain_s=0.004, extra_s=0.0027)
    whole = next(place for place, step in enumerate(steps) if place != step)
    assert whole == pytest.approx(0.3 / 0.0027, rel=0.1)  # and what a second adds
    assert (cadence.stride, cadence.cost) == (32, pytest.approx(0.675))
    without = Cadence(1, 0.05)
    assert set(captured_steps(without, 3000, 0.004, 0.0027)) < set(steps)


def test_a_step_whose_share_of_capturing_is_unknown_counts_whole() -> None:
    steps = captured_steps(Cadence(1, 0.05, 0.3), 100, plain_s=0.02, extra_s=0.01, is_timed=False)
    whole = next(place for place, step in enumerate(steps) if place != step)
    assert 9 <= whole <= 12  # 0.3 s of steps that take 0.03 s


def test_ranks_that_have_used_up_their_allowances_at_different_times_share_their_captured_steps() -> None:
    early, late = (set(captured_steps(Cadence(1, 0.05, 0.3), 3000, 0.004, s)) for s in (0.004, 0.0015))
    assert early < late


def test_a_long_time_without_capturing_brings_the_whole_allowance_back() -> None:
    cadence = Cadence(1, 0.05, 0.3)
    captured_steps(cadence, 3000, 0.004, 0.0027)
    assert cadence.stride == 32
    cadence.step_ended(False, 60.0)  # an evaluation
    assert cadence.stride == 1
    assert [cadence.wants(step) for step in (3001, 3007, 3031)] == [True] * 3


def test_without_a_budget_or_without_an_allowance_nothing_changes() -> None:
    assert captured_steps(Cadence(1, None, 0.3), 100, 0.004, 0.1) == list(range(100))
    assert captured_steps(Cadence(1, 0.05, 0), 30, 0.004, 0.1) == list(range(0, 30, 2))

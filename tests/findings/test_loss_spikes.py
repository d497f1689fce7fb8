"""Losses that jump, and losses that are only noisy."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookcore.findings import Finding, examine, findings_of, follow
from hookcore.records import Tap
from hookcore.store import Store
from hookcore.store.incidents import Incident
from tests.build import append
from tests.inside import class_of, module_of
from tests.lanes import examples

losses_module, Jumps = module_of("Losses", "findings"), class_of("Jumps")
STEPS = 200


def logged(values: list[float] | Callable[[int], float], name: str = "loss", followed: bool = False) -> Store:
    """Return the store of a run with these losses."""
    store = follow(Store(2**24)) if followed else Store(2**24)
    given = [values(step) for step in range(STEPS)] if callable(values) else values
    for step, value in enumerate(given):
        append(store, step, [1.0], (Tap("", "output"),) if step == 0 else (), {name: value})
    return store


def spikes(store: Store) -> list[Finding]:
    return [each for each in findings_of(store) if each.rule == "loss-spike"]


def told(store: Store) -> list[Incident]:
    return [each for each in store.incidents() if each.rule == "loss-spike"]


def test_a_jump_above_the_first_loss_is_one_warning() -> None:
    store = logged(lambda step: 5.0 if step == 120 else 2 * 0.98**step, followed=True)
    (found,) = spikes(store)
    assert (found.severity, found.since_step, found.until_step, found.is_of_loss) == ("warning", 120, 120, True)
    assert found.message == "loss jumped to 5 at step 120, 14.8 times its usual 0.338"
    (incident,) = told(store)
    assert (incident.first_step, incident.steps, incident.severity) == (120, 1, "warning")
    assert incident.sentence == "Loss jumped to 5 at step 120, 14.8 times its usual 0.338."


@pytest.mark.parametrize(("peak", "expected"), [(0.4, []), (0.6, ["info"]), (1.9, ["info"]), (2.1, ["warning"])])
def test_the_severity_of_a_jump_depends_on_the_initial_loss(peak: float, expected: list[str]) -> None:
    found = spikes(logged(lambda step: peak if step == 150 else 2 * 0.97**step))
    assert [each.severity for each in found] == expected


def test_a_long_jump_is_one_finding_and_a_lasting_one_says_so() -> None:
    (found,) = spikes(logged(lambda step: 8.0 if 120 <= step < 130 else 1.0))
    assert (found.since_step, found.until_step) == (120, 129)
    (found,) = spikes(logged(lambda step: 8.0 if step >= 150 else 1.0))
    assert found.message.startswith("loss jumped to 8 between steps 150 and 199, 8 times its usual 1")
    assert found.message.endswith(", and hadn't recovered by then")
    assert not spikes(logged(lambda step: 8.0 if step >= STEPS - 10 else 1.0))  # too early to say


@pytest.mark.parametrize("at", [(40,), (40, 110, 111, 180)])
def test_a_loss_that_jumps_again_is_one_problem_whose_line_shows_the_first_jump(at: tuple[int, ...]) -> None:
    store = logged(lambda step: 9.0 if step in at else 1.0, followed=True)
    found = [each for each in examine(store).findings if each.rule == "loss-spike"]
    (problem,) = (each for each in found if not each.is_part)
    again = ", and again at steps 110 and 180" if len(at) > 1 else ""
    assert problem.message == f"loss jumped to 9 at step 40, 9 times its usual 1{again}"
    assert (problem.severity, problem.since_step, problem.until_step) == ("warning", 40, at[-1])
    assert [each.incident for each in found] == [told(store)[0].id] * len(found)
    assert {each.since_step for each in found} == {40, 110, 180} & set(at), "each time is listed once"
    assert len(found) == (3 if len(at) > 1 else 1)
    assert 1.0 in problem.spark[: problem.spark.index(9.0)], "the jump has values before it"
    assert problem.spark[-1] == 1.0, "and after it"


def test_a_jump_of_long_ago_is_shown_by_the_loss_and_not_by_the_output_of_the_model() -> None:
    store = logged([9.0 if step == 60 else 1.0 for step in range(700)], followed=True)
    (problem,) = (each for each in examine(store).findings if each.rule == "loss-spike")
    assert (problem.severity, max(problem.spark), min(problem.spark)) == ("info", 9.0, 1.0)


def test_a_jump_of_a_negative_loss_is_found() -> None:
    (found,) = spikes(logged(lambda step: 40.0 if step == 120 else -step / 10))
    assert found.message.endswith(" instead of its usual -8.8")


def test_a_jump_of_a_loss_that_changes_its_sign_as_that_of_a_policy_gradient_does_is_a_note() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, STEPS)
    (found,) = spikes(logged(lambda step: 0.5 if step == 150 else float(noise[step])))
    assert found.severity == "info"


def test_a_validation_is_not_judged() -> None:
    assert not spikes(logged(lambda step: 5.0 if step == 120 else 1.0, "val_loss"))


@settings(deadline=None, derandomize=True, max_examples=examples(30))
@given(
    seed=st.integers(0, 10_000),
    spread=st.floats(0.0, 1.0),
    slope=st.floats(-0.02, 0.01),
    tails=st.sampled_from(["normal", "laplace"]),
)
def test_noise_and_trends_are_not_jumps(seed: int, spread: float, slope: float, tails: str) -> None:
    random = np.random.default_rng(seed)
    noise = spread * getattr(random, tails)(size=STEPS) / (1 if tails == "normal" else 2)
    values = np.exp(slope * np.arange(STEPS) + noise)
    assert [each.message for each in spikes(logged(values.tolist())) if each.severity == "warning"] == []


@settings(deadline=None, derandomize=True, max_examples=examples(20))
@given(st.integers(0, 10_000), st.integers(40, STEPS - 30), st.floats(30.0, 1e6), st.integers(1, 20))
def test_a_large_jump_is_found_at_its_step(seed: int, at: int, height: float, length: int) -> None:
    values = np.exp(0.1 * np.random.default_rng(seed).normal(size=STEPS))
    values[at : at + length] *= height
    (found,) = spikes(logged(values.tolist()))
    assert (found.since_step, found.until_step) == (at, at + length - 1)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.floats(1e-3, 1e3) | st.floats(-1e3, 1e3), min_size=1, max_size=80), st.floats(0, 10))
def test_a_loss_that_is_about_to_come_is_a_jump_above_the_border_of_the_rule(values: list[float], first: float) -> None:
    values = values[-64:]
    limits = losses_module.RULES["loss-spike"].limits
    border = float(losses_module.borders(np.array([*values, values[-1]]), limits)[1][-1])
    expected = max(border, limits["share_of_first"] * first) if len(values) >= 24 else math.inf
    assert losses_module.jump_limit(values, first) == pytest.approx(expected)
    assert losses_module.jump_limit([*values[:-1], math.nan], first) == math.inf


class OneOptimizer(list[Any]):
    """Knows one optimizer without a scaler."""

    def __init__(self) -> None:
        super().__init__([None])

    def scalers(self) -> list[Any]:
        return []


def test_losses_that_come_together_give_the_same_limit_as_one_by_one() -> None:
    losses = [2 + math.sin(7 * step) / (1 + step) for step in range(150)]
    alone, together = (
        Jumps(SimpleNamespace(), cast(Any, OneOptimizer())),
        Jumps(SimpleNamespace(), cast(Any, OneOptimizer())),
    )
    for at in range(0, 150, 50):
        for loss in losses[at : at + 50]:
            alone.add([loss])
        together.add(losses[at : at + 50])
        assert together.limit == alone.limit

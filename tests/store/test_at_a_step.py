"""Answers about some steps: newest values, key figures, and incidents, compared with brute force and over REST."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookcore.findings import key_figures_of
from hookcore.store import STAT_NAMES, Store
from hookcore.store.incidents import Incident
from tests.api_world import STEPS, TAPS, World, value_at
from tests.build import append, store_of
from tests.nonfinite_world import Part, quick, steps
from tests.nonfinite_world import store_of as filled_with

NAN = STAT_NAMES.index("nan")
bounds = st.one_of(st.none(), st.integers(0, 2_500))


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@quick
@given(run=steps, first=bounds, last=bounds)
def test_the_newest_values_in_some_steps_are_those_of_the_last_frame_in_them(
    run: list[tuple[int, list[Part]]], first: int | None, last: int | None
) -> None:
    store, told = filled_with(run)
    expected: dict[int, tuple[int, float]] = {}
    for step, parts in told.items():
        if (first is None or step >= first) and (last is None or step <= last):
            for held in parts:
                for tap, each in enumerate(held):
                    if each is not None:
                        before = expected.get(tap, (-1, 0.0))
                        more = before[1] if before[0] == step else 0.0  # the parts of one step are added up
                        expected[tap] = step, max(each, 0) + more
    found = store.latest(first=first, last=last, merged=True)
    got = zip(found.numbers.tolist(), found.steps.tolist(), found.values[:, NAN].tolist(), strict=True)
    assert {tap: (step, nan) for tap, step, nan in got} == expected
    assert found.first_steps.tolist() == found.steps.tolist()


def seen(incident: Incident) -> tuple[Any, ...]:
    links = {link.number: link.first_step for link in (incident.culprit, *incident.chain)}
    return incident.id, incident.first_step, incident.is_over, links


@quick
@given(run=steps, share=st.floats(0, 1))
def test_an_incident_as_of_a_step_is_that_of_a_run_that_ended_there(
    run: list[tuple[int, list[Part]]], share: float
) -> None:
    store, told = filled_with(run)
    step = sorted(told)[int(share * (len(told) - 1))]
    until, at = [], 0
    for gap, parts in run:
        at += gap
        if at <= step:
            until.append((gap, parts))
    earlier, _ = filled_with(until)
    kept = {each.id: each for each in store.incidents()}
    for each in earlier.incidents():
        if each.id in kept:
            assert seen(kept[each.id].as_of(step)) == seen(each)


def test_the_key_figures_of_some_steps_are_of_these_steps() -> None:
    values = np.arange(1.0, 41).reshape(20, 2)
    store = store_of(values)
    append(store, 20, [50.0, math.nan], scalars={"loss": 0.5})
    append(store, 22, [60.0, 60.0], scalars={"loss": 0.25})
    at = key_figures_of(store, 20, 20)
    assert (at.loss and at.loss.value, at.nonfinite_modules, at.seen) == (0.5, ("layers.1",), 2)
    none = key_figures_of(store, 21, 21)
    assert (none.loss, none.nonfinite_modules, none.seen, none.loss_name) == (None, (), 0, "loss")
    some = key_figures_of(store, 5, 20)
    assert (some.loss and some.loss.step, some.nonfinite_modules) == (20, ("layers.1",))
    until = key_figures_of(store, last=5)
    assert (until.seen, until.modules_captured) == (2, 2)


def test_the_gradient_norm_of_merged_steps_is_unknown() -> None:
    store = Store(2**20)
    for step in range(3_000):
        append(
            store, step, [float(step)] * 3, TAPS[3:4] * (step == 0) + TAPS[4:5] * (step == 0) + TAPS[:1] * (step == 0)
        )
    merged = key_figures_of(store, 300, 300)
    assert merged.gradient_norm is None
    assert merged.merged is not None
    assert merged.merged[0] <= 300 <= merged.merged[1]
    exact = key_figures_of(store, 2_999, 2_999)
    assert exact.merged is None
    assert exact.gradient_norm is not None


def test_rest_answers_for_a_step_and_for_a_range(world: World) -> None:
    at = world.json("latest", stat="rms", first=5, last=5)["taps"]
    assert [tap["values"] for tap in at] == [[value_at(5, row)] for row in range(len(TAPS))]
    assert {(tap["first_step"], tap["step"]) for tap in at} == {(5, 5)}
    assert world.json("latest", stat="rms", first=STEPS, last=STEPS + 9)["taps"] == []
    figures = world.json("overview", first=4, last=9)
    assert (figures["loss"]["step"], figures["loss"]["first_step"], figures["loss"]["value"]) == (9, 9, 0.1)
    assert figures["nonfinite_modules"] == ["layers.1"]  # infinite in step 9
    assert world.json("overview", first=8, last=8)["nonfinite_modules"] == []

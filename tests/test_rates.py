"""The speed of a training: steps divided by the time between their ends, the same in every place that shows it."""

from __future__ import annotations

from typing import Any

import pytest

from hookcore.findings import key_figures_of
from hookcore.findings.rates import RECENT_STEPS, Rates, rates_of, recent
from hookcore.records.vocabulary import SAMPLES_RATE, STEPS_RATE, TOKENS_RATE
from hookcore.records.wire import EndItem
from hookcore.store import Store
from hookcore_app.analysis.speed import run_rates
from hookcore_app.pages.views.system import machine_of
from tests.build import frame, open_run, stats_of
from tests.serving import make_world

ROWS = 32
SLOW, FAST = 4.0, 0.5  # seconds of a step


def times_of(steps: int) -> list[float]:
    """Return when each step ended: the first half is slow, then each is fast."""
    slow = steps // 2
    return [SLOW * step if step < slow else SLOW * (slow - 1) + FAST * (step - slow + 1) for step in range(steps)]


def fill(store: Store, times: list[float], every: int = 1) -> None:
    """Append each of `every` steps, of which each tenth has a measurement that is wrong by itself."""
    for step, time_s in enumerate(times):
        measured = {STEPS_RATE: 0.5, SAMPLES_RATE: 0.5 * ROWS, TOKENS_RATE: 5.0 * ROWS} if step % 10 == 0 else {}
        if step % every == 0 or step == len(times) - 1:
            store.append(frame(step, stats_of(0), time_s=time_s, scalars={"loss": 1.0} | measured))


def test_a_rate_is_the_number_of_steps_between_two_ends() -> None:
    store = Store(2**24)
    fill(store, times_of(20))
    assert rates_of(store, 0, 9) == Rates(1 / SLOW, ROWS / SLOW, 10 * ROWS / SLOW)
    assert rates_of(store, 10, 19) == Rates(1 / FAST, ROWS / FAST, 10 * ROWS / FAST)
    assert rates_of(store, 5, 5).samples == ROWS / SLOW
    assert rates_of(store, 0, 0) == Rates()


def test_steps_that_were_not_captured_count() -> None:
    store = Store(2**24)
    fill(store, times_of(200), every=50)
    assert rates_of(store, 100, 199).steps == pytest.approx(1 / FAST)


def test_a_live_run_has_the_rate_of_its_newest_steps_and_an_ended_one_that_of_all() -> None:
    world, times = make_world(), times_of(4 * RECENT_STEPS)
    run = open_run(world.runs)
    fill(run.store, times)
    assert recent(run.store) == 3 * RECENT_STEPS - 1
    assert run_rates(run).steps == pytest.approx(1 / FAST)
    run.take_record(EndItem(0, len(times)))
    assert run_rates(run).steps == pytest.approx((len(times) - 1) / times[-1])


def test_all_places_show_the_same_rate() -> None:
    world = make_world()
    run = open_run(world.runs)
    fill(run.store, times_of(40))
    run.take_record(EndItem(0, 40))
    expected = run_rates(run)
    assert expected.steps is not None
    assert expected.samples == pytest.approx(ROWS * expected.steps)
    answer: Any = world.client.get("/api/v1/overview?run=one").json()
    assert answer["steps_per_s"] == pytest.approx(expected.steps)
    assert key_figures_of(run.store, is_live=False).steps_per_s == pytest.approx(expected.steps)
    gauges = {gauge.key: gauge.text for gauge in machine_of(run).gauges}
    assert (gauges["samples"], gauges["steps"]) == ("15", "0.45")


def test_a_run_without_times_has_no_rate() -> None:
    assert rates_of(Store(2**20)) == Rates()

"""A learning rate that is too high or too low, found by the loss and by the updates of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import hookcore
from hookcore.findings import Finding, examine, findings_of, follow
from hookcore.recorder.clock.cadence import RARE_EVERY, RARE_FIRST, Cadence
from hookcore.records import STAT_COLUMN, Tap
from hookcore.store import Store
from tests.build import append, frame, stats_of_magnitudes

HIGH, LOW = "learning-rate-too-high", "learning-rate-too-low"
TAPS = Tap("", "output"), Tap("", "update", "weight")


def logged(losses: list[float], rates: list[float] | None = None, every: int = 1, *, memory: int = 2**24) -> Store:
    """Return the store of a run with these losses and learning rates."""
    store = follow(Store(memory))
    for place, loss in enumerate(losses):
        scalars = {"loss": loss} | ({} if rates is None else {"lr": rates[place]})
        append(store, place * every, [1.0], TAPS[:1] if place == 0 else (), scalars)
    return store


def rates_in(store: Store) -> list[Finding]:
    return [each for each in findings_of(store) if each.rule in (HIGH, LOW)]


def falling(step: int) -> float:
    return 2 * 0.98**step


NOISE = np.random.default_rng(0).normal(size=1200)


def test_a_loss_that_grows_by_powers_of_ten_from_the_start_is_the_learning_rates_fault() -> None:
    store = logged([2.0, 1.5, 40.0, 1e5, 1e14, math.nan, math.nan])
    (found,) = rates_in(store)
    assert (found.rule, found.severity, found.since_step) == (HIGH, "error", 1)
    assert found.message == "the learning rate is too high: loss grew from 1.5 to 1e+14, 14 powers of ten, in 3 steps"
    assert (found.usual, found.value) == (1.5, 1e14)
    (incident,) = [each for each in store.incidents() if each.rule == HIGH]
    assert (incident.first_step, incident.found_step) == (1, 5)  # when it became NaN, which is looked at once


def test_what_was_found_stays_although_the_growth_has_left_the_window() -> None:
    store = logged([2.0, 1.5, 40.0, 1e5, 1e14, *[math.nan] * 3000])
    (found,) = rates_in(store)
    assert (found.since_step, found.severity) == (1, "error")
    (incident,) = [each for each in store.incidents() if each.rule == HIGH]
    assert not incident.is_over


def test_the_rate_leads_and_the_non_finite_values_name_it_as_their_cause() -> None:
    store = follow(Store(2**24))
    for step, loss in enumerate([2.0, 2.0, 300.0, 1e6, 1e14, math.nan, math.nan]):
        append(store, step, [math.nan if step > 4 else 1.0], TAPS[:1] if step == 0 else (), {"loss": loss})
    first, second, *_ = findings_of(store)
    assert (first.rule, second.rule) == (HIGH, "nonfinite")
    assert second.message.endswith(
        "the learning rate is too high: loss grew from 2 to 1e+14, 14 powers of ten, in 3 steps"
    )


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([0.5, 3.0, 15.0, 60.0, 300.0, 2e3, 3e4, 1e6], [HIGH]),  # step by step
        ([800.0, 1e5, 1e7, 1e10, 1e13, 1e16, 1e20, 1e30], []),  # at once: weights, inputs, or a batch
    ],
)
def test_in_an_established_training_a_growth_is_blamed_on_a_constant_rate_only_if_it_is_gradual(
    after: list[float], expected: list[str]
) -> None:
    losses = [*map(falling, range(120)), *after]
    assert [each.rule for each in rates_in(logged(losses))] == expected
    assert [each.rule for each in rates_in(logged(losses, [0.1] * len(losses)))] == expected


def test_a_sudden_growth_after_the_rate_rose_is_blamed_on_it() -> None:
    losses = [*map(falling, range(120)), 800.0, 1e5, 1e7, 1e10]
    (found,) = rates_in(logged(losses, [0.1] * 119 + [10.0] * 5))
    assert found.since_step == 119
    assert found.message.endswith("; the learning rate was 10, up from 0.1")


@pytest.mark.parametrize("back", [1.9, 0.1])
def test_a_loss_that_explodes_at_the_start_and_comes_back_is_a_warning_unless_it_falls(back: float) -> None:
    found = rates_in(logged([2.0, 3e4, 100.0, 10.0, *[back] * 40]))
    assert [each.severity for each in found] == (["warning"] if back > 1 else [])


@pytest.mark.parametrize(
    "losses",
    [
        lambda step: 2 * 0.97**step + (1e4 if step == 150 else 0),  # one batch
        lambda step: 1e-3 * 1.06**step,  # slow growth
        lambda step: (-1.0) ** step * 10.0**step if step < 30 else 1.0,  # no magnitude
        lambda step: 2.0 * math.exp(np.random.default_rng(step).normal(0, 1.0)),  # noise
        lambda step: 0.0 if step % 3 else falling(step),
    ],
)
def test_jumps_noise_and_slow_growth_are_not_blamed_on_the_rate(losses: Callable[[int], float]) -> None:
    assert rates_in(logged([losses(step) for step in range(200)])) == []


def updated(share: float, loss: Callable[[int], float], steps: int = 260) -> Store:
    """Return the store of a run whose weight has a norm of 2 and is updated by this share."""
    store = Store(2**24)
    for step in range(steps):
        stats = stats_of_magnitudes([1.0, 2 * share], "rms", "norm")
        stats[1, STAT_COLUMN["ratio"]] = share
        rows = stats if step % 50 == 0 else stats[:1]
        store.append(frame(step, rows, TAPS if step == 0 else (), scalars={"loss": loss(step)}))
    return store


@pytest.mark.parametrize(("share", "expected"), [(0.5, HIGH), (1e-3, None), (1e-4, None), (1e-7, LOW), (0.0, LOW)])
def test_the_update_of_the_weights_shows_the_rate_of_a_training_that_does_not_learn(
    share: float, expected: str | None
) -> None:
    found = rates_in(updated(share, lambda _: 2.3))
    assert [each.rule for each in found] == ([] if expected is None else [expected])
    if share:
        assert all(f"the update of all weights was {share:.2g} of them at step 250" in each.message for each in found)
    assert rates_in(updated(share, falling)) == []  # it learns


def trained(steps: int, **settings: object) -> Store:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        model[2].bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hookcore.watch(model, server=None, **{"budget": None, **settings}) as watcher:  # type: ignore[arg-type]
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        assert watcher.flush()
        assert watcher.error_count == 0
        return watcher.store


def test_the_updates_of_few_captured_steps_are_measured_without_a_request() -> None:
    store = trained(RARE_FIRST + RARE_EVERY + 2)
    updates = store.taps(kind="update")
    names = [(tap.module, tap.index) for tap in updates.taps]
    assert names == [("0", "weight"), ("0", "bias"), ("2", "weight"), ("2", "bias")]
    rows = store.rows(updates.numbers, "ratio")
    assert rows.first[(rows.present > 0).any(axis=1)].tolist() == [RARE_FIRST, RARE_FIRST + RARE_EVERY]
    assert (rows.mean[np.isfinite(rows.mean)] > 0).all()
    assert not len(trained(RARE_FIRST + 2, kinds=("output",)).taps(kind="update").taps)


def test_requested_updates_are_measured_in_every_captured_step() -> None:
    store = trained(6, kinds=("update",))
    assert store.rows(store.taps(kind="update").numbers[:1], "ratio").present[:, 0].sum() == 6


def test_the_steps_with_updates_depend_on_the_number_of_the_step_alone() -> None:
    cadence = Cadence(1, None)
    assert [step for step in range(200) if cadence.is_rare(step)] == [16, 66, 116, 166]
    cadence.stride = 4
    assert [step for step in range(400) if cadence.is_rare(step)] == [64, 264]


def test_the_share_of_a_weight_of_zeros_is_no_value_and_not_nan() -> None:
    store = Store(2**22)
    for step in range(3):
        stats = stats_of_magnitudes([1.0, 1.0], "rms", "norm")
        stats[1, STAT_COLUMN["ratio"]] = math.nan if step == 0 else 0.1
        store.append(frame(step, stats, TAPS if step == 0 else ()))
    heat = store.heatmap("update", "ratio")
    assert heat.state[0].tolist() == [0, 1, 1]
    assert store.heatmap("update", "norm").state[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("losses", "word", "reason"),
    [
        ([falling(step) for step in range(200)], "learning", "loss fell from 2 to 0.0385 in 200 steps"),
        # After a fall, a loss that stays is no longer learning; one that still falls a little is.
        (
            [*map(falling, range(70)), *[0.5] * 330],
            "plateau",
            "loss fell from 2 to about 0.5 by step 67, and that level has hardly changed since",
        ),
        (
            [0.5 + falling(step) + 0.05 * NOISE[step] for step in range(1200)],
            "plateau",
            "loss fell from 2.51 to about 0.498 by step 200, and that level has hardly changed since",
        ),
        (
            [0.5 + falling(step) - 0.0001 * step + 0.02 * NOISE[step] for step in range(1200)],
            "learning",
            "loss fell from 2.",
        ),
        ([2.3] * 100, "flat", "loss was 2.3 at first, and is 2.3 after 100 steps"),
        # Only the first value was high, as that of a model that learns no more than how frequent each class is.
        ([1.5, *[1.4] * 299], "flat", "loss has not fallen since step 0: 1.4 at first, 1.4 last"),
        ([0.5 + 0.01 * step for step in range(100)], "diverging", "loss rose from 0.5 to 1.46 in 100 steps"),
        (
            [*map(falling, range(100)), *[1.5] * 50],
            "diverging",
            "loss fell from 2 to 0.29 until about step 92, and rose to 1.5",
        ),
        ([1.0, 1.0, math.nan], "broken", "loss has been NaN or infinite since step 2"),
        ([1.0] * 15, "unknown", "15 values of loss, 16 needed"),
        ([(-1.0) ** step for step in range(50)], "unknown", "loss changes its sign"),
        ([abs(step - 100) / 100 - 1.1 for step in range(200)], "unknown", "loss fell from -0.1 to -1."),
        ([-1 - step / 100 for step in range(200)], "learning", "loss fell from -1 to -2.9"),
        # A quarter of noisy values shows what eight of them don't.
        (
            [20 - 0.001 * step + 1.5 * NOISE[step] for step in range(1200)],
            "learning",
            "loss fell slowly, from about 19",
        ),
        # A loss that rose and came back has not learned anything yet.
        *(
            ([2.3 + 12 * (step > 1) * falling(step) for step in range(steps)], word, f"loss was 2.3 at first, {rose}")
            for steps, word, rose in (
                (100, "unknown", "rose to about 23.6, and is 5.79 after 100 steps"),
                (280, "flat", "rose to about 22.9, and is 2.39 after 280 steps"),
            )
        ),
        ([20 + 1.5 * NOISE[step] for step in range(1200)], "flat", "loss was 20.2 at first, and is "),
        ([20 + 6 * NOISE[step] for step in range(40)], "unknown", "loss is too noisy to show whether it falls"),
        # A few high values at the end may be a bad batch or two.
        ([*(1.5 + falling(step) / 4 for step in range(300)), *[1.9] * 8], "learning", "loss fell from 2 to 1.9"),
        ([], "unknown", "no step has been captured"),
        (
            [2.0, 1.5, 40.0, 1e5, 1e14, math.nan],
            "broken",
            "the learning rate is too high: loss grew from 1.5 to 1e+14, 14 powers of ten, in 3 steps; "
            "loss has been NaN or infinite since step 5",
        ),
    ],
)
def test_one_sentence_says_where_a_training_goes_and_why(losses: list[float], word: str, reason: str) -> None:
    course = examine(logged(losses)).course
    assert course.word == word, course.sentence
    assert course.reason.startswith(reason)
    assert course.sentence == f"{word.capitalize()}: {course.reason}."


def test_the_course_says_if_its_newest_size_is_not_the_last_value() -> None:
    noisy = examine(logged([*map(falling, range(199)), 0.5])).course
    assert noisy.sentence == "Learning: loss fell from 2 to 0.0393 in 200 steps (the median of its last 8 values)."
    assert examine(logged([2.3] * 100)).course.sentence == "Flat: loss was 2.3 at first, and is 2.3 after 100 steps."


def test_the_first_loss_stays_exact_when_older_values_are_merged() -> None:
    losses = [7.0, *(2 + 4 * 0.99**step for step in range(5000))]
    store = logged(losses, memory=2**20)
    assert store.scalars("loss", points=100).mean[0] < 6.5, "the first values are merged"
    course = examine(store).course
    assert (course.first, store.first_scalar("loss")) == (7.0, (0, 7.0))
    assert course.reason.startswith("loss fell from 7 to about 2 by step ")
    assert course.since_step is not None
    assert 400 < course.since_step < 900, "old steps count as many as new ones, although they are merged"
    assert store.first_scalar("other") is None


def test_the_course_of_opponents_is_unknown() -> None:
    store = Store(2**22)
    for step in range(100):
        scalars = {"loss_d": falling(step), "loss_g": 1 + 0.01 * step}
        append(store, step, [1.0], TAPS[:1] if step == 0 else (), scalars)
    assert examine(store).course.word == "unknown"

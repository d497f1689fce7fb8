"""What the training waits for: data, evaluations, and a GPU with nothing to do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hookcore.findings import Finding, findings_of
from hookcore.records import Tap
from hookcore.records.vocabulary import (
    EVALUATED,
    SYSTEM,
    TIME_BACKWARD,
    TIME_FORWARD,
    TIME_LOADING,
)
from hookcore.store import Store
from tests.build import append
from tests.inside import class_of

RULES = ("slow-data-loading", "long-evaluation", "idle-gpu")


def found_in(steps: int, every: int, **scalars: float) -> list[Finding]:
    """Return what is found in a run that has these scalars in every n-th step of half a second."""
    store = Store(2**24)
    for step in range(steps):
        append(store, step, [1.0], (Tap("", "output"),) if step == 0 else (), scalars if step % every == 0 else {})
    return [each for each in findings_of(store) if each.rule in RULES]


@pytest.mark.parametrize(("loading", "expected"), [(0.2, 1), (0.05, 0), (0.002, 0)])
def test_a_training_that_waits_for_its_data_loader_most_of_the_time_is_found(loading: float, expected: int) -> None:
    others = {TIME_FORWARD: 0.6 * loading if expected or loading < 0.01 else 0.06, TIME_BACKWARD: 0.02 * bool(expected)}
    found = found_in(60, 5, **{TIME_LOADING: loading, **others})
    assert len(found) == expected
    for each in found:
        assert (each.rule, each.severity, each.since_step, each.is_of_loss) == (
            "slow-data-loading",
            "warning",
            20,
            True,
        )
        assert each.message == (
            "a step waits 200 ms of its 340 ms for the data loader, 59% of its time, on average over 8 measured steps "
            "up to step 55"
        )


def test_few_measured_steps_say_nothing_about_loading() -> None:
    assert found_in(60, 10, **{TIME_LOADING: 0.2, TIME_FORWARD: 0.01}) == []


@pytest.mark.parametrize(("share", "expected"), [(0.6, 1), (0.4, 0)])
def test_evaluations_that_take_most_of_the_time_are_found(share: float, expected: int) -> None:
    store = Store(2**24)
    for step in range(500):  # 250 s
        scalars = {EVALUATED: share * 0.5 * step} if step % 4 == 3 else {}
        append(store, step, [1.0], (Tap("", "output"),) if step == 0 else (), scalars)
    found = [each for each in findings_of(store) if each.rule in RULES]
    assert [(each.rule, each.severity) for each in found] == [("long-evaluation", "warning")] * expected
    for each in found:
        assert each.message == "the model was in evaluation mode for 150 s of 250 s, 60% of the time"


def test_an_idle_gpu_is_a_note_that_says_what_takes_the_time() -> None:
    (found,) = found_in(200, 2, **{f"{SYSTEM}gpu1/utilization": 12.0, TIME_LOADING: 0.004, TIME_FORWARD: 0.001})
    assert (found.rule, found.severity) == ("idle-gpu", "info")
    assert found.message == (
        "GPU 1 has been busy 12% of the time since step 80; a step takes 5 ms, 80% of it data loading"
    )
    assert found_in(200, 2, **{f"{SYSTEM}gpu1/utilization": 80.0}) == []
    assert found_in(60, 2, **{f"{SYSTEM}gpu1/utilization": 12.0}) == []


def test_the_time_in_evaluation_mode_is_sampled_of_models_that_train() -> None:
    class Mode:
        evaluates = False

    root = Mode()
    evaluations = class_of("Evaluations")(SimpleNamespace(roots=[root]))
    samples = []
    for place, root.evaluates in enumerate((False, False, True, True, False)):
        samples.append(evaluations.read(2.0 * place).numbers)
    assert samples == [{}, {}, {EVALUATED: 2.0}, {EVALUATED: 4.0}, {EVALUATED: 4.0}]

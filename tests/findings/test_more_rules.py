"""Rules about initial values, constants, and phases: each one finds its fault, and ignores what only resembles it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hookcore.findings import Finding, findings_of
from hookcore.records import ModuleRecord, Tap
from hookcore.store import Store
from tests.build import append, store_of

Values = Callable[[int], Sequence[float]]


def of_rule(store: Store, rule: str) -> list[Finding]:
    return [each for each in findings_of(store) if each.rule == rule]


# -- gradient-clipped-always -------------------------------------------------------------------------------------------

GRADIENTS = tuple(Tap(name, "param_grad", "weight") for name in ("one", "two"))


def clipped(norms: Values, factors: Values, steps: int = 40, **largest: Values) -> list[Finding]:
    """Return the notes about gradients with these norms, which are these shares of what they were before."""
    each = {name: [values(step) for step in range(steps)] for name, values in {"ratio": factors, **largest}.items()}
    store = store_of([norms(step) for step in range(steps)], GRADIENTS, **each)
    return of_rule(store, "gradient-clipped-always")


def turning(step: int, total: float = 0.5) -> list[float]:
    return [total * np.sin(0.2 + step % 7 / 10), total * np.cos(0.2 + step % 7 / 10)]


def alike(step: int) -> list[float]:
    return [0.1 + 0.01 * (step % 5)] * 2


def test_gradients_that_are_made_smaller_together_are_clipped() -> None:
    (told,) = clipped(turning, alike)
    assert (told.severity, told.value, told.since_step) == ("info", pytest.approx(0.5), 0)
    assert "in 40 of the newest 40 captured steps: their norm was 4.167 before it and 0.5 after it" in told.message
    (told,) = clipped(turning, lambda step: [1.0, 1.0] if step == 20 else alike(step))
    assert "in 39 of the newest 40" in told.message


def test_gradients_with_the_same_largest_value_are_clipped_by_value() -> None:
    apart: Values = lambda step: [0.1 + 0.01 * (step % 5), 0.7 - 0.01 * (step % 3)]  # noqa: E731
    assert clipped(turning, apart) == []
    (told,) = clipped(turning, apart, max=lambda _: [0.01, 0.004], min=lambda _: [-0.003, -0.01])
    assert "made the gradients smaller in 40" in told.message


@pytest.mark.parametrize(
    "factors",
    [
        lambda step: [1.0, 1.0] if step % 10 == 0 else alike(step),
        lambda _: [0.25, 0.25],
        lambda _: [1.0, 1.0],
        lambda _: [np.nan, np.nan],
        lambda step: [1.5 + 0.01 * step, 1.5 + 0.01 * step],
    ],
    ids=["a tenth is below the limit", "the factor is constant", "unchanged", "unknown", "larger"],
)
def test_gradients_that_only_appear_to_be_clipped_are_not_reported(factors: Values) -> None:
    assert clipped(turning, factors, 60) == []


def test_too_few_steps_show_no_clipping() -> None:
    assert clipped(turning, alike, 29) == []
    assert len(clipped(turning, alike, 30)) == 1


# -- all-zero ----------------------------------------------------------------------------------------------------------

LAYERS = ("first", "second", "third")
TRAINED = (
    *(Tap(name, "output") for name in LAYERS),
    *(Tap(name, "output_grad") for name in reversed(LAYERS)),
    *(Tap(name, "param_grad", "weight") for name in LAYERS),
)


def with_zeros(zeros: Callable[[int], dict[tuple[str, str], float]], steps: int = 40) -> list[tuple[str, str, int]]:
    """Return the findings if shares of some tensors are zero: {(module, kind): share}."""
    store = Store(2**24)
    for step in range(steps):
        shares = zeros(step)
        counts = [8 * shares.get((tap.module, tap.kind), 0.0) for tap in TRAINED]
        append(store, step, [1.0] * len(TRAINED), TRAINED if step == 0 else (), {"loss": 1.0}, zero=counts)
    found = of_rule(store, "all-zero")
    assert all(each.message == _zero_words(each.since_step, steps) for each in found)
    return [(each.module, each.severity, each.since_step) for each in found]


def _zero_words(since: int, steps: int) -> str:
    return f"its input has been all zeros since step {since} ({steps - since} captured): its weight gets no gradient"


def test_a_weight_without_a_gradient_under_an_output_with_one_gets_only_zeros() -> None:
    assert with_zeros(lambda _: {("first", "param_grad"): 1.0}) == [("first", "warning", 0)]
    assert with_zeros(lambda _: {("second", "param_grad"): 1.0}) == [("second", "info", 0)]  # may be off on purpose
    assert with_zeros(lambda step: {("second", "param_grad"): float(step >= 20)}) == [("second", "warning", 20)]
    assert with_zeros(lambda _: {("first", "param_grad"): 1.0}, 15) == []


def test_zeros_with_another_cause_are_not_blamed_on_inputs() -> None:
    unused = {("second", "param_grad"): 1.0, ("second", "output_grad"): 1.0}
    assert with_zeros(lambda _: unused) == []  # nothing depends on it, as in `loss + 0 * branch.sum()`
    dead = {("first", "output"): 1.0, ("second", "param_grad"): 1.0}
    assert with_zeros(lambda _: dead) == []
    assert with_zeros(lambda _: {(name, "param_grad"): 1.0 for name in LAYERS}) == []
    assert with_zeros(lambda step: {("first", "param_grad"): float(step < 5)}) == []  # branches that start at zero
    assert with_zeros(lambda step: {("first", "param_grad"): float(step % 16 > 0)}) == []  # a rarely used expert


# -- tensor-variance ---------------------------------------------------------------------------------------------------


def flat(
    deviation: Callable[[int], float], *, count: int = 64, weighted: bool = True, size: float = 2.0, index: str = ""
) -> list[Finding]:
    """Return the findings about an output with this standard deviation."""
    store = Store(2**24)
    taps = (Tap("act", "output", index), Tap("act" if weighted else "other", "param_grad", "weight"))
    for step in range(60):
        columns = {"std": [deviation(step), 1.0], "mean": [size, 0.0], "count": count}
        append(store, step, [size, 1.0], taps if step == 0 else (), {"loss": 1.0}, **columns)
    return of_rule(store, "tensor-variance")


def test_an_output_that_is_one_number_has_no_variance() -> None:
    (told,) = flat(lambda step: 1.0 if step < 30 else 0.0, weighted=False)
    assert (told.module, told.severity, told.since_step, told.value) == ("act", "warning", 30, 2.0)
    assert told.message == "every value of the activation has been the same number since step 30: 2 in the newest"
    assert [each.since_step for each in flat(lambda _: 0.0)] == [0]


def test_outputs_that_may_be_constant() -> None:
    assert flat(lambda _: 0.0, weighted=False) == []  # a mask of ones
    assert flat(lambda _: 0.0, index="1") == []  # the only weight of each token's only expert
    assert len(flat(lambda step: 1.0 if step < 30 else 0.0, index="1")) == 1
    assert flat(lambda _: 0.0, count=8) == []  # a single prediction for each of eight samples
    assert flat(lambda _: 0.0, size=0.0) == []  # zeros belong to another rule
    assert flat(lambda step: 1.0 if step == 50 else 0.0) == []
    assert flat(lambda _: 1e-3) == []


# -- poor-weight-initialization ----------------------------------------------------------------------------------------

STACK = tuple(
    tap
    for place in range(4)
    for tap in (Tap(f"layers.{place}", "output"), Tap(f"layers.{place}", "param_grad", "weight"))
)


def stack(levels: Values, steps: int = 20) -> list[Finding]:
    """Return the findings about four layers with weights whose outputs have these sizes."""
    rms = [[value for level in levels(step) for value in (level, 1.0)] for step in range(steps)]
    return of_rule(store_of(rms, STACK), "poor-weight-initialization")


@pytest.mark.parametrize(("factor", "word"), [(20.0, "large"), (0.05, "small")])
def test_outputs_that_grow_or_shrink_from_the_first_step_on(factor: float, word: str) -> None:
    (told,) = stack(lambda _: [factor**place for place in range(4)])
    assert (told.module, told.since_step, told.downstream) == ("layers.0", 0, 3)
    assert told.message.endswith(
        f"by a factor of 20 from layer to layer, from layers.0 to layers.3, since step 0: "
        f"the initial weights are too {word}"
    )
    assert stack(lambda step: [factor**place if step < 5 else 1.0 for place in range(4)]) == []  # it has learned


def test_outputs_that_shrink_as_usual() -> None:
    assert stack(lambda _: [1.0, 0.4, 0.16, 0.06]) == []
    assert stack(lambda _: [1.0, 0.1, 0.01, 1.0]) == []  # a normalization
    assert stack(lambda _: [1.0, 0.1, 0.0, 0.0]) == []  # a branch that starts at zero
    assert stack(lambda step: [1.0] * 4 if step < 5 else [20.0**place for place in range(4)]) == []  # later


WEIGHTS = (
    *(Tap(name, "output") for name in LAYERS),
    *(Tap(name, "param_grad", "weight") for name in LAYERS),
    *(Tap(name, "param", "weight") for name in LAYERS),
)


def equal(
    deviations: Sequence[float], shape: tuple[int, ...] = (8, 8), loss: Callable[[int], float] = lambda _: 1.0
) -> list[Finding]:
    """Return the findings about three layers whose weights begin with these standard deviations."""
    store = Store(2**24)
    store.describe([ModuleRecord(name, "Linear", "", shapes=(("weight", shape),)) for name in LAYERS], ())
    for step in range(40):
        std = [1.0] * 6 + [each if step == 0 else 0.1 for each in deviations]
        append(store, step, [1.0] * 9, WEIGHTS if step == 0 else (), {"loss": loss(step)}, std=std)
    return of_rule(store, "poor-weight-initialization")


def test_consecutive_weight_matrices_with_equal_initial_values_are_found() -> None:
    (told,) = equal([0.0, 0.0, 1.0])
    assert (told.module, told.severity, told.value, told.since_step) == ("first", "warning", 0.1, 0)
    assert [each.severity for each in equal([0.0, 0.0, 0.0], loss=lambda step: 1 / (1 + step))] == ["info"]
    assert equal([0.0, 1.0, 0.0]) == []  # the layers around it differ
    assert equal([1e-3, 1e-3, 1e-3]) == []
    assert equal([0.0, 0.0, 0.0], (8,)) == []  # the weights of normalizations begin as ones


# -- batch-norm-drift --------------------------------------------------------------------------------------------------


def drift(ratio: Callable[[int], float], type_: str = "BatchNorm1d", every: int = 20) -> list[Finding]:
    """Return the findings if the output in evaluation is this many times as large as in training."""
    store = Store(2**24)
    store.describe((ModuleRecord("norm", type_, ""),), ())
    taps = (Tap("norm", "output"), Tap("norm", "output", phase="eval"))
    for step in range(300):
        sizes = [1.0, ratio(step) if step % every == 0 else np.nan]
        seen = {"count": [8, 8 if step % every == 0 else np.nan], "nan": 0}
        append(store, step, sizes, taps if step == 0 else (), {"loss": 1.0}, **seen)
    return of_rule(store, "batch-norm-drift")


def test_a_batch_normalization_that_differs_in_evaluation() -> None:
    (told,) = drift(lambda step: 10.0 if step >= 200 else 1.0)
    assert (told.module, told.severity, told.since_step) == ("norm", "warning", 200)
    assert (
        told.message
        == "in evaluation, the activation has been 10 times as large as in training since a step between 181 and 200"
    )
    (told,) = drift(lambda _: 0.1)
    assert (
        told.message
        == "in evaluation, the activation has been 10 times smaller than in training since a step between 81 and 100"
    )


def test_a_batch_normalization_whose_evaluations_are_fine() -> None:
    assert drift(lambda _: 2.0) == []
    assert drift(lambda step: 100.0 if step < 100 else 1.0) == []  # its statistics have only just begun
    assert drift(lambda step: 100.0 * 0.99**step) == []  # a slow momentum: they are approaching
    assert drift(lambda step: 10.0 if step == 200 else 1.0) == []
    assert drift(lambda step: 10.0 if step // 20 % 2 else 0.1) == []
    assert drift(lambda _: 10.0, every=120) == []  # too few evaluations
    assert drift(lambda _: 10.0, "Dropout") == []

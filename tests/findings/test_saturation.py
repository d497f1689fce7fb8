"""Saturated activations: judged by the slope of the module's function, with a note if the model learned to saturate."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from hookcore.findings import Finding, findings_of
from hookcore.records import ModuleRecord, Tap
from hookcore.store import Store
from tests.build import append

OUTPUTS = (Tap("act", "output"), Tap("head", "output"))


def found(
    type_: str,
    outputs: Callable[[int], list[float]],
    loss: Callable[[int], float] | None = lambda _: 1.0,
    steps: int = 60,
) -> list[Finding]:
    """Return the findings about an activation with these outputs that is followed by a last layer."""
    store = Store(2**24)
    store.describe((ModuleRecord("act", type_, ""), ModuleRecord("head", "Linear", "")), ())
    for step in range(steps):
        values = np.array(outputs(step))
        rms = float(np.sqrt((values**2).mean()))
        logged = {} if loss is None else {"loss": loss(step)}
        append(store, step, [rms, 1.0], OUTPUTS if step == 0 else (), logged, mean=[float(values.mean()), 0.0])
    return [each for each in findings_of(store) if each.rule == "saturated-activation"]


@pytest.mark.parametrize(
    ("type_", "outputs", "share"),
    [
        ("Tanh", [0.999, -0.999], 1 - 0.999**2),
        ("Sigmoid", [0.001, 0.999, 0.999], 4 * 0.001 * 0.999),
        ("Tanh", [0.9, -0.999], None),
        ("Sigmoid", [0.5, 0.999], None),
        ("Hardtanh", [1.0, -1.0], None),
        ("Linear", [1.0, -1.0], None),
    ],
)
def test_an_activation_is_saturated_if_almost_no_gradient_passes(
    type_: str, outputs: list[float], share: float | None
) -> None:
    told = found(type_, lambda _: outputs)
    assert [each.module for each in told] == ([] if share is None else ["act"])
    if share is not None:
        assert told[0].value == pytest.approx(float(np.sqrt(np.mean(np.square(outputs)))))
        assert f"{share:.2g} of the gradient passes" in told[0].message
        assert (told[0].severity, told[0].since_step) == ("warning", 0)


@pytest.mark.parametrize(("falls", "severity"), [(True, "info"), (False, "warning")])
def test_saturation_that_came_with_a_falling_loss_is_a_note(falls: bool, severity: str) -> None:
    (told,) = found("Tanh", lambda n: [0.5 if n < 30 else 0.9999], lambda n: 1.0 / (1 + n) if falls else 1.0)
    assert (told.severity, told.since_step, told.usual) == (severity, 30, pytest.approx(0.5))


def test_saturation_is_judged_by_enough_captured_steps_and_finite_values() -> None:
    assert found("Tanh", lambda _: [1.0], steps=15) == []
    assert len(found("Tanh", lambda _: [1.0], steps=16)) == 1
    assert found("Tanh", lambda n: [0.1 if n == 50 else 1.0]) == []
    assert found("Tanh", lambda _: [math.nan]) == []

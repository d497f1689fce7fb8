"""Rules about the progress of a training: a loss that never falls, and a validation loss that rises."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hookcore.findings import Finding, findings_of
from hookcore.records import Tap
from hookcore.store import Store
from tests.build import append


def found(losses: dict[str, Callable[[int], float]], steps: int = 300, every: int = 10) -> list[Finding]:
    """Return the findings in a run with these losses. All but the first are logged at every tenth step."""
    store = Store(2**24)
    for step in range(steps):
        logged = {name: value(step) for name, value in losses.items() if name == "loss" or step % every == every - 1}
        append(store, step, [1.0], (Tap("", "output"),) if step == 0 else (), logged)
    return [each for each in findings_of(store) if each.rule in ("overfit", "loss-not-decreasing")]


def falling(step: int) -> float:
    return 0.99**step


def rising(step: int) -> float:
    return 1.0 + abs(step - 100) / 100  # from 1.99 to 1.0 and to 2.99


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("val/loss", True),
        ("val_loss", True),
        ("eval_loss", True),
        ("loss_dev", True),
        ("Validation Loss", True),
        ("train/loss", False),
        ("value_loss", False),
        ("latest_loss", False),
        ("contest_loss", False),
    ],
)
def test_the_loss_of_a_validation_is_known_by_its_name(name: str, expected: bool) -> None:
    assert ("overfit" in {each.rule for each in found({"loss": falling, name: rising})}) is expected


def test_a_validation_that_gets_worse_while_the_training_gets_better_is_overfitting() -> None:
    (told,) = found({"loss": falling, "val_loss": rising})
    assert (told.rule, told.severity, told.since_step) == ("overfit", "warning", 99)
    assert told.is_of_loss
    assert told.message.startswith("val_loss was lowest at step ")
    assert told.message.endswith(" by step 299, while loss kept falling"), "also true once the run has ended"


@pytest.mark.parametrize(
    "losses",
    [
        {"loss": falling, "val_loss": falling},
        {"loss": falling, "val_loss": lambda n: 1.0 + abs(n - 100) / 1000},  # a fifth above its lowest value
        {"loss": lambda n: 2 - falling(n), "val_loss": rising},  # both get worse, which isn't overfitting
        {"loss": falling, "val_loss": lambda n: -rising(n)},
        {"loss": falling, "val_loss": lambda n: 9.0 if n in (149, 159, 169) else 1.0},  # and back again
        {"val_loss": rising},
    ],
)
def test_other_loss_curves_are_not_overfitting(losses: dict[str, Callable[[int], float]]) -> None:
    assert [each for each in found(losses) if each.rule == "overfit"] == []
    assert found({"loss": falling, "val_loss": rising}, steps=110) == []


def test_a_loss_that_never_fell_is_a_note() -> None:
    (told,) = found({"loss": lambda n: 1.4 + 0.1 * (n % 7)})
    assert (told.rule, told.severity, told.since_step) == ("loss-not-decreasing", "info", 0)
    assert told.message == "loss has not fallen since step 0: 1.7 at first, 1.7 last"
    assert found({"loss": lambda n: 1.4}, steps=199) == []
    assert found({"loss": lambda n: 1.4 if n < 50 else 1.2}) == []  # it fell once
    assert found({"loss": lambda n: -1.0}) == []  # it may be unbounded below

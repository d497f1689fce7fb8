# mypy: disable-error-code="no-untyped-call"
"""Updates and gradients that are lost in rounding, and weights that never change although they have gradients."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from hookcore.findings import findings_of
from hookcore.records import Tap
from hookcore.store import Store
from tests.build import append
from tests.harness import seed_all, watch

NAMES = ("one", "two")
TAPS = tuple(Tap(name, kind, "weight") for name in NAMES for kind in ("param_grad", "update"))


def told(
    zeros: Callable[[int], list[float]],
    taps: tuple[Tap, ...] = TAPS,
    steps: int = 64,
    sizes: tuple[int, ...] = (100, 100, 100, 100),
) -> list[tuple[str, str, str, int]]:
    """Return the findings in a run with these shares of zeros in the gradients and updates of two weights."""
    store = Store(2**24)
    for step in range(steps):
        ratio = [np.nan, 1e-3] * 2
        counts = [size * share for size, share in zip(sizes, zeros(step), strict=True)]
        append(store, step, [1.0] * 4, taps if step == 0 else (), {"loss": 1.0}, count=sizes, zero=counts, ratio=ratio)
    found = [each for each in findings_of(store) if each.rule in ("unchanged-tensor", "bf16-update-lost")]
    return [(each.rule, each.severity, each.module, each.since_step) for each in found]


@pytest.mark.parametrize(
    ("zeros", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0], []),
        ([0.0, 0.97, 0.0, 0.0], [("bf16-update-lost", "warning", "one", 0)]),
        ([0.0, 0.9, 0.0, 0.0], []),
        ([0.5, 0.99, 0.0, 0.0], [("bf16-update-lost", "warning", "one", 0)]),  # 49 of the 50 with a gradient
        ([0.5, 0.95, 0.0, 0.0], []),  # 45 of them
        ([0.95, 0.99, 0.0, 0.0], []),  # most rows of an embedding are unused
        ([0.0, 1.0, 0.0, 0.0], [("unchanged-tensor", "warning", "one", 0)]),
        ([1.0, 1.0, 0.0, 0.0], []),  # no gradient, no update
        ([0.0, 1.0, 0.0, 1.0], [("unchanged-tensor", "info", "one", 0)]),  # a learning rate of zero
    ],
)
def test_an_update_is_lost_if_values_with_gradients_do_not_change(
    zeros: list[float], expected: list[tuple[str, str, str, int]]
) -> None:
    assert told(lambda _: zeros) == expected
    assert told(lambda _: zeros, steps=31) == []


def test_an_update_that_is_lost_later_is_a_note() -> None:
    found = told(lambda step: [0.0, 0.99 if step >= 100 else 0.2, 0.0, 0.0], steps=200)
    assert [(rule, severity) for rule, severity, *_ in found] == [("bf16-update-lost", "info")]
    assert told(lambda step: [0.0, 0.2 if step == 150 else 0.99, 0.0, 0.0], steps=200) == []


def test_a_bias_is_not_judged() -> None:
    taps = (Tap("one", "param_grad", "bias"), Tap("one", "update", "bias"), *TAPS[2:])
    assert told(lambda _: [0.0, 1.0, 0.0, 0.0], taps) == []


def test_a_sparse_gradient_lists_only_what_changes() -> None:
    assert told(lambda _: [0.0, 0.99, 0.0, 0.0], sizes=(1, 100, 100, 100)) == []
    (found,) = told(lambda _: [0.0, 0.99, 0.0, 0.99], sizes=(1, 100, 100, 100))
    assert found == ("bf16-update-lost", "warning", "two", 0)


def in_float16(loss_scale: float | None, factor: float, dtype: torch.dtype = torch.float16) -> list[str]:
    """Return what is said of the gradients of a training whose loss is multiplied by a factor."""
    seed_all()
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=loss_scale or 1.0, enabled=loss_scale is not None)
    with watch(model) as watcher:
        for _ in range(10):
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                scores = model(torch.randn(32, 16))
            scaler.scale(scores.float().square().mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    found = [each for each in findings_of(watcher.store) if each.rule == "gradient-underflow"]
    return [each.message for each in found]


def test_a_gradient_in_float16_underflows_if_its_values_are_near_the_smallest_number_with_the_loss_scale() -> None:
    (message,) = in_float16(None, 1e-5)
    assert re.fullmatch(
        r"(more than )?\d\d% of the gradient .*, without a loss scale: smaller values are lost", message
    )
    (message,) = in_float16(4.0, 2.5e-6)
    assert "with a loss scale of 4: smaller" in message
    assert in_float16(65536.0, 1e-5) == []


def test_tiny_gradients_that_no_float16_holds_do_not_underflow() -> None:
    assert in_float16(None, 1.0) == []
    assert in_float16(None, 1e-5, torch.bfloat16) == []
    assert in_float16(4.0, 1e-6, torch.float32) == []

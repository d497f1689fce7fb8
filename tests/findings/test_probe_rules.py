"""Rules about the results of probes, which are recognized by their function, whatever the user calls them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import hookcore
from hookcore.findings import Finding, findings_of
from hookcore.records import Tap
from hookcore.records.vocabulary import PROBE_LABEL
from hookcore.store import Store
from tests import build

RANK, DEAD, ENTROPY = (f"hookcore.probes.{name}" for name in ("effective_rank", "dead_channels", "attention_entropy"))
HEADS, OUTLIERS = "hookcore.probes.attention", "hookcore.probes.outliers"


JUDGED = (
    *("dead-channels", "rank-collapse", "attention-entropy-collapse"),
    *("attention-logit-growth", "attention-first-token", "dead-heads", "outlier-channel"),
)


def found(
    function: str,
    results: list[float],
    loss: Callable[[int], float] = lambda _: 1.0,
    index: str = "mine",
    top: float | None = None,
    beside: str = "other",
) -> list[Finding]:
    """Return the findings for results of a probe, one every ten steps. `top` is the largest value of each result."""
    store, taps = Store(2**24), (Tap("layer", "output"), Tap("layer", "probe", index), Tap("layer", "probe", beside))
    for step in range(10 * len(results)):
        value = results[step // 10]
        seen = range(1 if step % 10 else 3)
        stats = build.stats_of_magnitudes([1.0, value, value][: len(seen)], "rms", "norm", "max", "min", "mean")
        if top is not None and len(seen) == 3:
            stats[1, build.STAT_COLUMN["max"]] = top
        labels = {f"{PROBE_LABEL}mine": function}
        store.append(build.frame(step, stats, taps if step == 0 else (), scalars={"loss": loss(step)}, labels=labels))
    return [each for each in findings_of(store) if each.rule in JUDGED]


def falls(step: int) -> float:
    return 1 / (1 + step)


@pytest.mark.parametrize(
    ("function", "results", "rule", "since"),
    [
        (DEAD, [0.1, 0.1, 0.1, 0.7, 0.8, 0.8], "dead-channels", 30),
        (DEAD, [0.6, 0.6, 0.6], "dead-channels", 0),
        (RANK, [16.0, 15.0, 16.0, 3.0, 2.0, 1.0], "rank-collapse", 30),
        (ENTROPY, [0.8, 0.7, 0.8, 0.3, 0.02, 0.01, 0.0], "attention-entropy-collapse", 40),
    ],
)
def test_a_collapse_is_found_in_three_results_in_a_row(
    function: str, results: list[float], rule: str, since: int
) -> None:
    (told,) = found(function, results)
    assert (told.rule, told.severity, told.module, told.since_step) == (rule, "warning", "layer", since)
    when = f"since a step between {since - 9} and {since}" if since else "since step 0"  # each tenth is measured
    assert when in told.message
    assert found(function, [*results[:-1], results[0] if since else 0.1]) == []
    assert found(function, results[:2]) == []


@pytest.mark.parametrize(
    ("number", "results", "rule", "severity"),
    [
        ("entropy", [0.8, 0.7, 0.8, 0.02, 0.01, 0.01], "attention-entropy-collapse", "warning"),
        ("largest_logit", [2.0, 3.0, 2.0, 120.0, 130.0, 150.0], "attention-logit-growth", "warning"),
        ("first_token", [0.1, 0.2, 0.1, 0.97, 0.98, 0.99], "attention-first-token", "info"),
    ],
)
def test_heads_of_fused_attention_are_judged(number: str, results: list[float], rule: str, severity: str) -> None:
    for place in ("", " 1"):
        (told,) = found(HEADS, results, index=f"mine {number}{place}")
        assert (told.rule, told.severity, told.since_step) == (rule, severity, 30)
    assert found(HEADS, results, index=f"mine {number} weight") == []
    assert found(HEADS, [results[0]] * 3 + results[3:5] + [results[0]], index=f"mine {number}") == []
    assert found(HEADS, results, falls, index=f"mine {number}")[0].severity == "info"


def test_logits_that_were_large_from_the_start_have_not_grown() -> None:
    assert found(HEADS, [80.0, 90.0, 80.0, 120.0, 130.0, 140.0], index="mine largest_logit") == []
    assert found(HEADS, [0.7, 0.7, 0.7, 0.99, 0.99, 0.99], index="mine first_token") == []


def test_a_head_that_returns_nothing_is_found_by_the_smallest_output() -> None:
    (told,) = found(HEADS, [0.9, 0.9, 0.9, 0.001, 0.0, 0.0], index="mine output")
    assert (told.rule, told.severity, told.since_step) == ("dead-heads", "warning", 30)
    (told,) = found(HEADS, [0.0] * 3, falls, index="mine output")
    assert told.severity == "info"


def test_a_channel_far_above_the_others_is_found_with_its_number() -> None:
    grown, always = [3.0, 4.0, 3.0, 1100.0, 1500.0, 2000.0], [1500.0] * 6
    for place in ("", " 0"):
        (told,) = found(OUTLIERS, grown, index=f"mine ratio{place}", beside=f"mine channel{place}")
        assert (told.rule, told.severity, told.since_step) == ("outlier-channel", "warning", 30)
        assert told.message.startswith(
            "a channel of the activation has been 2,000 times the median channel (at first 3)"
        )
        assert told.message.endswith(": channel 2000")
    assert found(OUTLIERS, grown, falls, index="mine ratio")[0].severity == "info"
    assert found(OUTLIERS, always, index="mine ratio")[0].severity == "info"
    assert found(OUTLIERS, [3.0, 3.0, 3.0, 1100.0, 900.0, 2000.0], index="mine ratio") == []
    assert found(OUTLIERS, [3.0, 3.0, 3.0, math.nan, 1100.0, 1100.0], index="mine ratio") == []
    assert found(OUTLIERS, grown, index="mine ratio param weight") == found(OUTLIERS, grown, index="mine largest") == []


@pytest.mark.parametrize(
    ("function", "results"),
    [
        (DEAD, [0.3] * 6),
        (RANK, [16.0, 15.0, 16.0, 8.0, 6.0, 5.0]),
        (RANK, [2.0, 2.0, 2.0, 0.4, 0.4, 0.4]),  # few directions
        (ENTROPY, [0.1, 0.1, 0.1, 0.01, 0.01, 0.01]),  # heads that were sharp from the start
        ("__main__.effective_rank", [16.0, 16.0, 16.0, 1.0, 1.0, 1.0]),
    ],
)
def test_results_without_a_collapse(function: str, results: list[float]) -> None:
    assert found(function, results) == []


def test_one_head_with_high_entropy_is_enough() -> None:
    assert found(ENTROPY, [0.5, 0.5, 0.5, 0.01, 0.01, 0.01], top=0.3) == []


def test_a_finding_with_a_falling_loss_is_a_note() -> None:
    (told,) = found(RANK, [16.0, 16.0, 16.0, 3.0, 3.0, 3.0], falls)
    assert told.severity == "info"
    (told,) = found(RANK, [16.0, 16.0, 16.0, 1.0, 1.0, 1.0], falls)  # all samples have the same code
    assert told.severity == "warning"
    (told,) = found(ENTROPY, [0.5, 0.5, 0.5, 0.0, 0.0, 0.0], falls)
    assert told.severity == "info"
    (told,) = found(DEAD, [0.6] * 6, falls)
    assert told.severity == "info"
    (told,) = found(DEAD, [0.1, 0.1, 0.1, 0.6, 0.6, 0.6], falls)
    assert told.severity == "warning"


def test_a_loss_that_rises_at_once_and_comes_back_has_not_fallen() -> None:
    (told,) = found(ENTROPY, [0.5, 0.5, 0.5, 0.0, 0.0, 0.0], lambda step: 5.0 if 0 < step < 4 else 1.0)
    assert told.severity == "warning"


def test_only_outputs_are_judged() -> None:
    collapse = [16.0, 16.0, 16.0, 1.0, 1.0, 1.0]
    assert len(found(RANK, collapse, index="mine 0")) == 1  # the first of several outputs
    assert found(RANK, collapse, index="mine param weight") == []
    assert found(RANK, collapse, index="another") == []


class Own:
    """An object used as a function."""

    def __call__(self, tensor: Any) -> Any:
        return tensor.mean()


def test_a_run_names_the_functions_of_its_probes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        watcher.probe("a", hookcore.probes.dead_channels)
        watcher.probe("b", partial(partial(hookcore.probes.saturation, low=0.0), high=1.0))
        watcher.probe("c", Own())
        for _ in range(2):
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
        watcher.flush()
        labels = watcher.store.labels()
    names = {name.removeprefix(PROBE_LABEL): text for name, text in labels.items() if name.startswith(PROBE_LABEL)}
    assert names == {"a": DEAD, "b": "hookcore.probes.saturation", "c": f"{__name__}.Own"}

"""The data of each rule: without any, it means nothing that the rule found nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookcore
from hookcore.findings import RULES, reach_of, without_data
from hookcore.records import Kind, Tap
from hookcore.store import Store
from hookcore_app.pages.views.span import claim_of
from hookcore_app.runs import Runs
from hookcore_app.settings import ServerSettings
from tests.build import append, frame, open_run, stats_of_magnitudes
from tests.harness import seed_all

PROBES = {
    "dead-channels": hookcore.probes.dead_channels,
    "rank-collapse": hookcore.probes.effective_rank,
    "attention-entropy-collapse": hookcore.probes.attention_entropy,
}
UPDATES = {"unchanged-tensor", "bf16-update-lost", "large-update", "stalled", "learning-rate-too-low"}
OUTPUTS = {"dead", "tensor-variance", "poor-weight-initialization", "saturated-activation"}
GRADIENTS = {"no-gradient", "gradient-clipped-always", "all-zero"}


def trained(scalars: tuple[str, ...], probes: dict[str, Any], evaluates: bool, **settings: Any) -> Store:
    """Train a model with batch normalization and a sigmoid, and return the store."""
    seed_all()
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Sigmoid(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hookcore.watch(model, server=None, budget=None, **settings) as watcher:
        for name, function in probes.items():
            watcher.probe(name, function, include="0", every=1)
        for _ in range(4):
            model.train()
            optimizer.zero_grad()
            loss: Any = model(torch.randn(8, 4)).pow(2).mean()
            loss.backward()
            watcher.log(**dict.fromkeys(scalars, loss.detach()))
            optimizer.step()
            if evaluates:
                with torch.no_grad():
                    model.eval()(torch.randn(8, 4))
        watcher.flush()
        return watcher.store


def test_every_rule_is_in_the_table() -> None:
    assert list(reach_of(Store(2**22))) == list(RULES)


def test_a_run_without_data_has_only_the_rules_of_the_trainer() -> None:
    silent = set(without_data(Store(2**22)))
    assert set(RULES) - silent == {
        "not-in-optimizer",
        "frozen-by-mistake",
        "duplicate-in-optimizers",
        "never-used",
        "stalled-training",
        "slow-data-loading",
        "long-evaluation",
        "idle-gpu",
        *("state-stays-zero", "second-moments", "spike-precursor"),  # most runs keep no state, or don't jump
        *(
            "dead-expert",
            "router-collapse",
            "uneven-expert-ranks",
            "outlier-channel",
        ),  # or have no router, and no blocks
        "dominant-micro-batch",  # or one micro-batch in each step
        *("attention-logit-growth", "attention-first-token", "dead-heads"),  # there is no attention
        *("gradient-underflow", "float8-clipped"),  # nothing is in float16 or float8
        "late-rank",  # it needs several processes
        "desync",
    }
    assert reach_of(Store(2**22))["desync"].needs == "several ranks of one training"


def test_a_default_watch_lists_what_it_cannot_find() -> None:
    assert set(without_data(trained((), {}, evaluates=True))) == UPDATES | {"overfit", *PROBES, "batch-norm-drift"}


class StepwiseAttention(nn.Module):
    """Attention with two heads, operator by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 24)

    def forward(self, values: Tensor) -> Tensor:
        query, key, value = self.mix(values).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return (query @ key.mT).softmax(-1) @ value  # type: ignore[no-any-return]


def test_a_model_with_attention_lacks_what_rules_about_heads_need() -> None:
    seed_all()
    heads = {"attention-logit-growth", "attention-first-token", "dead-heads"}
    torchs = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    # The weights of attention that is computed step by step say nothing of logits and outputs.
    models: tuple[tuple[nn.Module, set[str]], ...] = (
        (StepwiseAttention(), heads - {"attention-first-token"}),
        (torchs, set()),
    )
    for model, silent in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with hookcore.watch(model, server=None, budget=None, state_every=1) as watcher:
            model(torch.randn(2, 3, 8)).sum().backward()
            optimizer.step()
            watcher.flush()
            reach = reach_of(watcher.store)
        assert {rule for rule in heads if reach[rule].needs} == silent  # type: ignore[index]
        assert {rule for rule in heads if not reach[rule].looks_at} == silent  # type: ignore[index]


def test_everything_has_data_if_everything_is_captured() -> None:
    kinds = ("output", "output_grad", "param", "param_grad", "update")
    store = trained(("loss", "val_loss"), PROBES, evaluates=True, kinds=kinds, phases=("train", "eval"))
    assert without_data(store) == []
    reach = reach_of(store)
    assert reach["saturated-activation"].looks_at == 1
    assert reach["loss"].looks_at == 1  # the validation loss is another one
    assert reach["large-update"].looks_at == 6
    assert reach["stalled-training"].looks_at is None


@pytest.mark.parametrize(
    ("kinds", "logged", "silent"),
    [
        (("output",), ("loss",), UPDATES | GRADIENTS),
        (("param_grad",), ("loss",), UPDATES | OUTPUTS | {"all-zero"}),
        (
            ("update",),
            ("loss",),
            UPDATES - {"large-update", "stalled", "learning-rate-too-low"} | OUTPUTS | GRADIENTS | {"vanishing"},
        ),
    ],
)
def test_a_rule_needs_the_kinds_that_it_reads(
    kinds: tuple[Kind, ...], logged: tuple[str, ...], silent: set[str]
) -> None:
    store = trained(logged, {}, evaluates=False, kinds=kinds)
    assert set(without_data(store)) == silent | {*PROBES, "batch-norm-drift", "overfit"}


def test_updates_of_few_steps_are_no_data_for_rules_that_follow_them() -> None:
    for often, silent in ((1, set[str]()), (50, UPDATES - {"learning-rate-too-low"})):
        store = Store(2**22)
        taps = Tap("", "output"), Tap("a", "param_grad", "weight"), Tap("a", "update", "weight")
        for step in range(200):
            stats = stats_of_magnitudes([1.0, 1.0, 1.0])
            rows = stats if step % often == 0 else stats[:2]
            store.append(frame(step, rows, taps if step == 0 else (), scalars={"loss": 1.0}))
        assert set(without_data(store)) & UPDATES == silent


def test_the_found_loss_is_checked_in_addition_to_a_validation_loss() -> None:
    store = trained(("val_loss",), {}, evaluates=False)
    assert set(without_data(store)) == UPDATES | {*PROBES, "batch-norm-drift"}


def test_a_disabled_rule_is_not_reported_as_missing() -> None:
    store = Store(2**22)
    append(store, 0, [1.0], (Tap("a", "output"),))
    assert "loss" in without_data(store)
    store.choose({"loss": False})
    assert "loss" not in without_data(store)
    assert reach_of(store)["loss"].needs == 'a logged value with "loss" in its name'


def test_a_run_without_problems_says_that_rules_had_nothing_to_examine() -> None:
    run = open_run(Runs(ServerSettings()))
    for step in range(60):
        append(run.store, step, [1.0], (Tap("a", "output"),) if step == 0 else (), {"loss": 1 / (1 + step)})
    claim = claim_of(run)
    assert claim.startswith("No problems found in the last 60 steps")
    assert claim.endswith(f" {len(without_data(run.store))} rules have nothing to look at: see Rules.")

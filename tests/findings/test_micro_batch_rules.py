"""The rule about a micro-batch that brings nearly all of a step's gradient, in one process and over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import hookcore
from hookcore import probes
from hookcore.findings import Finding, findings_of
from hookcore.records import Snapshot, Tap
from hookcore.records.moments import SAMPLES_TYPE, Batch, SampleBlock
from hookcore.store import RankStore, Store
from tests import build

NORM, COSINE = Tap("", "probe", "parts micro_norm"), Tap("", "probe", "parts micro_cosine")
EVEN = [1.0, 1.2, 0.9, 1.1]


def run_of(columns: list[list[float]], cosines: dict[int, list[float]] | None = None) -> Store:
    """Return a run with these norms of micro-batches in each step, which all point to the sum."""
    store = Store(2**24)
    for step, norms in enumerate(columns):
        values = build.stats_of_magnitudes([1.0] * 3, "rms", "mean", "max")
        store.append(build.frame(step, values, (Tap("", "output"), NORM, COSINE) if step == 0 else ()))
        turned = (cosines or {}).get(step, [1.0 if norm else 0.0 for norm in norms])
        for tap, numbers in ((NORM, norms), (COSINE, turned)):
            data = np.array(numbers, np.float32)
            store.add_snapshot(Snapshot(tap, step, 0.0, "float32", data.shape, data))
    return store


def found(store: Store, **limits: float) -> list[Finding]:
    if limits:
        store.rules = {"dominant-micro-batch": limits}
    return [each for each in findings_of(store) if each.rule == "dominant-micro-batch"]


def one(store: Store, **limits: float) -> Finding:
    (finding,) = found(store, **limits)
    return finding


def test_a_micro_batch_far_above_the_others_and_all_before_is_named_with_its_step() -> None:
    told = one(run_of(20 * [EVEN] + [[1.0, 1.0, 90.0, 1.0]] + 9 * [EVEN]))
    assert (told.severity, told.since_step, told.module, told.value, told.usual) == ("warning", 20, "", 90.0, 1.0)
    assert told.message == (
        "micro-batch 2 of 4 brought 97% of the gradient of step 20: its norm of 90 was 90 times that of the usual "
        "other one"
    )


def test_the_gradients_of_ordinary_micro_batches_are_no_problem() -> None:
    generator = np.random.default_rng(0)
    assert found(run_of(generator.lognormal(0, 0.5, (200, 8)).tolist())) == []
    assert found(run_of(20 * [EVEN] + [[1.0, 1.0, 6.0, 1.0]])) == []
    assert found(run_of(20 * [[1.0]])) == []
    assert found(run_of(3 * [EVEN])) == []


def test_what_often_happens_with_different_micro_batches_is_no_problem() -> None:
    generator = np.random.default_rng(0)
    columns = generator.lognormal(-4, 0.5, (200, 8))
    columns[:20] = 1.0
    columns[np.arange(20, 200, 5), generator.integers(0, 8, 36)] = 1.5
    assert found(run_of(columns.tolist())) == []


def test_one_that_points_elsewhere_brings_little_of_the_gradient() -> None:
    columns = 20 * [EVEN] + [[1.0, 1.0, 90.0, 1.0]]
    assert found(run_of(columns, {20: [1.0, 1.0, 0.001, 1.0]})) == []


def test_the_same_one_in_most_steps_is_a_problem_from_the_start() -> None:
    told = one(run_of(40 * [[1.0, 20.0, 1.0, 1.0, 1.0]]))
    assert told.since_step == 0
    assert told.message.endswith("; it did so in 40 of the newest 40 measured steps")


def test_steps_with_fewer_micro_batches_and_non_finite_ones_are_left_out_or_counted_as_they_are() -> None:
    nan = float("nan")
    told = one(run_of(20 * [EVEN] + [[nan, 1.0, 1.0, 1.0], [1.0, 50.0, 0.0, 0.0]]))
    assert told.since_step == 21
    assert told.message.startswith("micro-batch 1 of 2 brought 98%")


def test_thresholds_of_a_run_count() -> None:
    store = run_of(20 * [EVEN] + [[1.0, 1.0, 6.0, 1.0]])
    assert one(store, factor=5.0, share=0.6).since_step == 20
    assert found(run_of(20 * [EVEN] + [[1.0, 1.0, 90.0, 1.0]]), beyond=100.0) == []


def joint_of(*ranks: Store, shift: int = 0) -> Store:
    joint = run_of(30 * [EVEN])
    joint.name_ranks(
        lambda number, step: "", lambda: [RankStore(rank, store, shift) for rank, store in enumerate(ranks)]
    )
    return joint


def test_over_ranks_the_rank_and_its_micro_batch_are_named() -> None:
    bad = 20 * [EVEN] + [[1.0, 1.0, 90.0, 1.0]] + 9 * [EVEN]
    told = one(joint_of(run_of(30 * [EVEN]), run_of(bad)))
    assert told.message.startswith("micro-batch 2 of 4 of rank 1 brought 93% of the gradient of step 20")
    assert found(joint_of(run_of(30 * [EVEN]), run_of(30 * [EVEN]))) == []
    assert one(joint_of(run_of(bad), run_of(30 * [EVEN]), shift=100)).since_step == 120


def test_a_rank_that_brings_nearly_all_in_each_step_is_found_although_its_own_micro_batches_are_alike() -> None:
    alone = run_of(30 * [[30.0]])
    assert found(alone) == []
    told = one(joint_of(run_of(30 * [[1.0]]), run_of(30 * [[1.1]]), alone))
    assert told.message.startswith("micro-batch 0 of 1 of rank 2 brought 93% of the gradient of step 0")


def test_samples_are_named_if_the_ledger_has_as_many_batches_as_the_step_had_micro_batches() -> None:
    def with_batches(many: int) -> Store:
        store = run_of(20 * [EVEN] + [[1.0, 1.0, 90.0, 1.0]])
        batches = tuple(Batch(0, "Rows", (number, number + 50), (), 0, "") for number in range(many))
        data = np.frombuffer(SampleBlock(batches, 0, "").packed(), np.uint8)
        store.add_snapshot(Snapshot(Tap("", "output"), 20, 0.0, SAMPLES_TYPE, data.shape, data))
        return store

    assert one(with_batches(4)).message.endswith("; its samples: 2 and 52")
    assert one(with_batches(3)).message.endswith("the usual other one")


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 32 * 24

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        row = torch.randn(4, generator=torch.Generator().manual_seed(number))
        return (row * 300 if number == 32 * 20 + 17 else row), number


def test_a_training_with_a_broken_sample_names_it() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=8)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        watcher.probe("parts", probes.MicroBatches, every=1)
        for number, (rows, _) in enumerate(loader):
            (model(rows).square().mean() / 4).backward()
            if number % 4 == 3:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
    told = one(watcher.store)
    assert told.message.startswith("micro-batch 2 of 4 brought 100% of the gradient of step 20")
    assert told.message.endswith("; its samples: 656, 657, 658, 659, and 4 more")

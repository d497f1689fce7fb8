"""Real distributed trainings with a real server: the run of all ranks equals what one process would have sent."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import hookcore
from tests.ranks import run_ranks
from tests.serving import TOKEN, Served, joint_named, run_named, served

WORLD, STEPS, BATCH = 2, 12, 8
KINDS = ("output", "output_grad", "param", "param_grad", "update")
NAN_AT, DRIFTS_AT = 5, 6
pytestmark = pytest.mark.slow


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5)).double()


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(BATCH, 6, dtype=torch.float64, generator=generator) for _ in range(STEPS)]


def train(model: nn.Module, inner: nn.Sequential, share: slice, rank: int, fault: str, url: str) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    name = f"{fault} rank {rank}" if fault != "alone" else fault
    with hookcore.watch(inner, server=url, name=name, budget=None, kinds=KINDS) as watcher:  # type: ignore[arg-type]
        for step, batch in enumerate(batches()):
            optimizer.zero_grad()
            mine = batch[share]
            if fault == "nan" and rank == 1 and step == NAN_AT:
                mine = mine.clone()
                mine[0, 0] = torch.nan
            loss = model(mine).square().mean()
            loss.backward()
            if fault == "nan":  # the NaN stays in the step
                for parameter in inner.parameters():
                    assert parameter.grad is not None
                    parameter.grad.nan_to_num_()
            watcher.log(loss=loss.detach())
            optimizer.step()
            if fault == "drift" and rank == 1 and step == DRIFTS_AT:
                with torch.no_grad():
                    inner[2].bias[3] += 0.5


def work(rank: int, folder: str, url: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "HOOKCORE_HOME": folder, "HOOKCORE_TOKEN": TOKEN}
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=WORLD)
    for fault in ("none", "nan", "drift"):
        inner = make()
        size = BATCH // WORLD
        train(DistributedDataParallel(inner), inner, slice(rank * size, (rank + 1) * size), rank, fault, url)
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(lost_after_s=10_000.0) as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOOKCORE_TOKEN", TOKEN)
        train(model := make(), model, slice(None), 0, "alone", found.url)
        run_ranks(work, (str(tmp_path_factory.mktemp("ranks")), found.url), WORLD)
        yield found


def test_the_joint_run_has_the_values_of_one_process(server: Served) -> None:
    alone, together = run_named(server, "alone").store, joint_named(server, "none", WORLD).run.store
    assert {tap.label for tap in alone.taps().taps} == {tap.label for tap in together.taps().taps}
    compared = 0
    for tap in alone.taps().taps:
        scale = WORLD if tap.kind == "output_grad" else 1.0  # for the rank's own loss
        for stat in ("count", "nan", "inf", "zero", "mean", "std", "min", "max", "rms", "norm", "ratio"):
            one, all_ = alone.series(tap, stat), together.series(tap, stat)
            assert one.first_step.tolist() == all_.first_step.tolist(), (tap, stat)
            factor = scale if stat in ("mean", "std", "min", "max", "rms", "norm") else 1.0
            np.testing.assert_allclose(all_.mean, one.mean * factor, rtol=1e-9, atol=1e-14, err_msg=f"{tap} {stat}")
            compared += len(one.mean)
    assert compared > 11 * STEPS * 4
    for tap in alone.taps(None, "output").taps:
        counts = [each.histograms(tap, columns=STEPS) for each in (alone, together)]
        assert np.array_equal(counts[0].counts, counts[1].counts)
    np.testing.assert_allclose(together.scalars("loss").mean, alone.scalars("loss").mean, rtol=1e-12)
    assert together.incidents() == []
    assert joint_named(server, "none", WORLD).sum.assembly.compared > 0


def test_a_nan_in_the_batch_of_one_rank_is_attributed_to_that_rank(server: Served) -> None:
    incidents = [each for each in joint_named(server, "nan", WORLD).run.store.incidents() if each.rule == "nonfinite"]
    assert incidents[0].first_step == NAN_AT
    assert incidents[0].culprit.tap.kind == "output"
    assert "It was in rank 1 of 2." in incidents[0].sentence


def test_a_rank_whose_weights_drift_away_is_an_incident_that_names_rank_parameter_and_step(server: Served) -> None:
    incidents = [each for each in joint_named(server, "drift", WORLD).run.store.incidents() if each.rule == "desync"]
    assert [each.first_step for each in incidents] == [DRIFTS_AT + 1]
    assert (incidents[0].culprit.tap.module, incidents[0].culprit.tap.index) == ("2", "bias")
    assert "ranks 0 and 1 should have the same values" in incidents[0].sentence.casefold()

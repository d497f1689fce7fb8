"""Layers that torch has split over two gloo processes: a rank's values are correct, or omitted with the reason."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import hookcore
from hookcore.records import Tap
from tests.ranks import run_ranks

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")
RANKS = 2


def check_against_the_whole(rank: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    whole, batch = copy.deepcopy(model), torch.randn(6, 8)
    hidden = whole[0](batch)
    output: Tensor = whole[2](whole[1](hidden))
    for each in (hidden, output):
        each.retain_grad()
    output.square().mean().backward()
    layers = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (RANKS,)), layers)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        model(batch).square().mean().backward()
        watcher.step()
        watcher.flush()
        reasons = {each.path: each.reason for each in watcher.coverage()}

        def mean(kind: str, module: str) -> list[float]:
            return watcher.store.series(Tap(module, kind, "", 0, "train"), "mean").mean.tolist()  # type: ignore[arg-type]

        assert hidden.grad is not None
        assert output.grad is not None
        assert mean("output", "0") == pytest.approx([hidden.chunk(RANKS, 1)[rank].mean().item()], rel=1e-5)
        assert mean("output_grad", "0") == pytest.approx([hidden.grad.chunk(RANKS, 1)[rank].mean().item()], rel=1e-5)
        assert mean("output_grad", "2") == pytest.approx([output.grad.mean().item()], rel=1e-5)
        seen = mean("output", "2")  # a single rank has a part of each sum, which is not the layer's output
        assert seen in ([], [pytest.approx(output.mean().item(), rel=1e-5)])
        if not seen:
            assert "between ranks" in reasons["2"] or "partial sum" in reasons["2"]
        assert not watcher.errors


def work(rank: int, meeting: str, home: str) -> None:
    os.environ["HOOKCORE_HOME"] = home
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    try:
        check_against_the_whole(rank)
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_each_rank_shows_its_own_part_and_never_a_partial_sum_as_the_output(tmp_path: Path) -> None:
    run_ranks(work, (str(tmp_path / "meeting"), str(tmp_path)), RANKS)

"""Two watched processes that train together over gloo."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hookcore
from hookcore import hooks
from hookcore.records import STATS

WORLD = 2
STEPS = 3


def _train(rank: int, folder: str, watched: bool) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{watched}", rank=rank, world_size=WORLD)
    try:
        torch.save(_run(rank, watched), f"{folder}/{rank}-{watched}.pt")
    finally:
        dist.destroy_process_group()


def _run(rank: int, watched: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(inplace=True), nn.Linear(16, 3))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(parallel.parameters())
    torch.manual_seed(100 + rank)
    watcher = hookcore.watch(model, budget=None, memory="16MB") if watched else None
    record = hooks.on_communication(parallel) if watched else None
    reduced = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        parallel(torch.randn(5, 6)).square().mean().backward()
        reduced.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))
        optimizer.step()
    answer: dict[str, Any] = {"weights": model.state_dict(), "reduced": reduced}
    if watcher is not None and record is not None:
        assert watcher.flush()
        latest = watcher.store.latest()
        norm = STATS.index("norm")
        answer["captured"] = sorted((tap.module, tap.kind, tap.index) for tap in latest.taps)
        answer["errors"] = [event.message for event in watcher.errors]
        answer["norms"] = {
            (tap.module, tap.index): float(values[norm])
            for tap, values in zip(latest.taps, latest.values, strict=True)
            if tap.kind == "param_grad"
        }
        answer["buckets"] = [(bucket.norm_before, bucket.norm_after) for bucket in record.records]
        watcher.close()
    return answer


@pytest.mark.slow
def test_both_ranks_are_captured_and_train_as_unwatched() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for watched in (False, True):
            mp.spawn(_train, (folder, watched), nprocs=WORLD)
        answers = {
            (rank, watched): torch.load(Path(folder) / f"{rank}-{watched}.pt")
            for rank in range(WORLD)
            for watched in (False, True)
        }
    for rank in range(WORLD):
        plain, seen = answers[rank, False], answers[rank, True]
        assert seen["errors"] == []
        for name, value in plain["weights"].items():
            assert torch.equal(value, seen["weights"][name])
        assert {("0", "output", ""), ("1", "output", ""), ("2", "output_grad", "")} <= set(seen["captured"])
        # The optimizer used the reduced gradient, which is the same on both ranks.
        last = seen["reduced"][-1].double()
        total = sum(value**2 for value in seen["norms"].values()) ** 0.5
        assert total == pytest.approx(last.norm().item(), rel=1e-6)
        after = [norm_after for _, norm_after in seen["buckets"]]
        assert sum(value**2 for value in after[-len(after) // STEPS :]) ** 0.5 == pytest.approx(
            last.norm().item(), rel=1e-5
        )
    assert answers[0, True]["norms"] == answers[1, True]["norms"]

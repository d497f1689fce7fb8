"""The noise scale of gradients that are reduced over several processes."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hookcore
from hookcore import probes
from tests.ranks import run_ranks

WORLD, STEPS = 2, 6


def _train(rank: int, folder: str, passes: int, watched: bool, parallel: bool) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{watched}", rank=rank, world_size=WORLD)
    try:
        torch.save(_run(rank, passes, watched, parallel), f"{folder}/{rank}-{watched}.pt")
    finally:
        dist.destroy_process_group()


def _run(rank: int, passes: int, watched: bool, parallel: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    trained = DistributedDataParallel(model, gradient_as_bucket_view=rank == 0) if parallel else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(100 + rank)
    own: list[list[torch.Tensor]] = []
    with contextlib.ExitStack() as stack:
        watcher = None
        if watched:
            watcher = stack.enter_context(hookcore.watch(model, server=None, budget=None, memory="16MB"))
            watcher.probe("noise", probes.NoiseScale, every=2)
        for _ in range(STEPS):
            optimizer.zero_grad()
            own.append([])
            for number in range(passes):
                batch = torch.randn(5, 6)
                if not watched:
                    own[-1].append(_gradient(model, batch, passes))
                waits = number + 1 < passes and isinstance(trained, DistributedDataParallel)
                with trained.no_sync() if waits else contextlib.nullcontext():
                    (trained(batch).square().mean() / passes).backward()
            optimizer.step()
        answer: dict[str, Any] = {"weights": model.state_dict(), "own": own}
        answer["hooked"] = [name for name, each in model.named_parameters() if each._backward_hooks is not None]
        if watcher is not None:
            watcher.flush()
            found = watcher.reader().series("(root) probe [noise]", "mean")
            answer["noise"] = dict(zip(found.first_step.tolist(), found.mean.tolist(), strict=True))
            answer["told"] = [event.message for event in watcher.store.events() if event.name.startswith("probe")]
            answer["errors"] = [event.message for event in watcher.errors]
    return answer


def _gradient(model: nn.Module, batch: torch.Tensor, passes: int) -> torch.Tensor:
    """Return the gradient of one micro-batch, computed by a copy of the model in double precision."""
    double = copy.deepcopy(model).double()
    (double(batch.double()).square().mean() / passes).backward()
    return torch.cat([each.grad.reshape(-1) for each in double.parameters() if each.grad is not None])


def _results(passes: int, parallel: bool = True) -> dict[tuple[int, bool], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        for watched in (False, True):
            run_ranks(_train, (folder, passes, watched, parallel), WORLD)
        return {
            (rank, watched): torch.load(Path(folder) / f"{rank}-{watched}.pt")
            for rank in range(WORLD)
            for watched in (False, True)
        }


@pytest.mark.slow
@pytest.mark.rota
@pytest.mark.parametrize("passes", [1, 3])
def test_ranks_are_micro_batches_and_train_as_if_unwatched(passes: int) -> None:
    results = _results(passes)
    count = WORLD * passes
    for rank in range(WORLD):
        plain, seen = results[rank, False], results[rank, True]
        for name, value in plain["weights"].items():
            assert torch.equal(value, seen["weights"][name])
        assert (seen["errors"], seen["told"], seen["hooked"]) == ([], [], [])
        noise = signal = 0.0
        expected = {}
        for step in range(0, STEPS, 2):
            every = torch.stack([each for other in range(WORLD) for each in results[other, False]["own"][step]])
            own = torch.stack(plain["own"][step])
            small = float(own.square().sum(1).mean())
            variance = float((own - every.mean(0)).square().sum(1).mean()) * count / (count - 1)
            noise = 0.9 * noise + variance / small
            signal = 0.9 * signal + (float(every.mean(0).square().sum()) - variance / count) / small
            expected[step] = noise / signal if signal > 0 else float("nan")
        assert list(seen["noise"]) == list(expected)
        for step, value in expected.items():
            assert seen["noise"][step] == pytest.approx(value, rel=1e-3, nan_ok=True)
        assert any(value == value for value in expected.values())


@pytest.mark.slow
def test_ranks_that_reduce_nothing_have_no_noise_scale() -> None:
    for (_, watched), seen in _results(3, parallel=False).items():
        if watched:
            assert all(value != value for value in seen["noise"].values())
            assert seen["errors"] == []

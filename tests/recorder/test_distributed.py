"""Two watched processes train together over gloo."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hookcore
from hookcore import hooks
from hookcore.records import STATS
from hookcore.records.vocabulary import GRADIENT_WAIT, REDUCTION_WAIT
from tests.ranks import run_ranks

WORLD = 2
LATE_S = 0.05
WAITS = (REDUCTION_WAIT, GRADIENT_WAIT)
STEPS = 3


def _train(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    try:
        for watched in (False, True):
            torch.save(_run(rank, watched), f"{folder}/{rank}-{watched}.pt")
        for hooked in (False, True):
            torch.save(_wait(rank, folder, hooked), f"{folder}/{rank}-waits-{hooked}.pt")
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


def _wait(rank: int, folder: str, hooked: bool) -> dict[str, Any]:
    """Train steps in which rank 1 starts its backward pass `LATE_S` after rank 0 has finished its part."""
    store = dist.FileStore(f"{folder}/late-{hooked}", WORLD)  # type: ignore[attr-defined]
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    step = 0

    def finish() -> None:
        if rank == 0:
            store.set(f"{step}", "done")

    def reduce(_: Any, bucket: Any) -> Any:
        finish()
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    with hookcore.watch(model, budget=None, memory="16MB", server=None) as watcher:
        record = hooks.on_communication(parallel, reduce) if hooked else None
        for step in range(STEPS):
            given = torch.randn(5, 6, requires_grad=True)
            if not hooked:
                given.register_hook(lambda _: finish())
            loss = parallel(given).square().mean()
            if rank == 1:
                store.wait([f"{step}"])
                time.sleep(LATE_S)
            loss.backward()
            optimizer.step()
        assert watcher.flush()
        known = watcher.store.scalar_names()
        assert record is None or record.errors == 0
        assert not watcher.errors
        return {name: watcher.store.scalars(name).mean.tolist() for name in WAITS if name in known}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(_train, (str(folder),), WORLD)
    return lambda name: torch.load(folder / f"{name}.pt")


@pytest.mark.slow
@pytest.mark.parametrize(("hooked", "name"), [(True, REDUCTION_WAIT), (False, GRADIENT_WAIT)])
def test_a_rank_knows_how_long_it_waited_for_the_gradients_of_others(
    answers: Callable[[str], Any], hooked: bool, name: str
) -> None:
    first, second = (answers(f"{rank}-waits-{hooked}") for rank in range(WORLD))
    assert list(first) == list(second) == [name]
    # In the first step, it was not known yet who reduces.
    assert len(first[name]) == len(second[name]) == STEPS - 1
    assert all(seconds >= LATE_S for seconds in first[name])
    assert all(seconds >= 0 for seconds in second[name])


@pytest.mark.slow
def test_both_ranks_are_captured_and_train_as_if_unwatched(answers: Callable[[str], Any]) -> None:
    for rank in range(WORLD):
        plain, seen = answers(f"{rank}-False"), answers(f"{rank}-True")
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
    assert answers("0-True")["norms"] == answers("1-True")["norms"]

"""Experts that are spread over ranks: which rank has which is read from the model, and a rank with most of the work."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.nn.functional import all_gather, all_reduce
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import hookcore
from benchmarks.diagnosis.models import Choosing
from hookcore.findings import findings_of
from tests.ranks import run_ranks
from tests.serving import TOKEN, joint_named, served

WORLD, EXPERTS, WIDTH, STEPS = 2, 4, 8, 90


class Stacked(nn.Module):
    """This rank's experts, as one sharded tensor. Each rank sees all tokens, and the results are added up."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        whole = torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5
        self.weight = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))

    def forward(self, values: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        rank, many = dist.get_rank(), len(values)
        values, weights = (torch.cat(all_gather(each)) for each in (values, weights))
        picked = torch.cat(all_gather(chosen.float())).long()
        weight = self.weight
        assert isinstance(weight, DTensor)
        local = weight.to_local()
        result = torch.zeros_like(values)
        for number, expert in enumerate(local, rank * len(local)):
            share = (weights * (picked == number)).sum(dim=1, keepdim=True)
            result = result + (values @ expert) * share
        return all_reduce(result)[rank * many : (rank + 1) * many]


class Spread(nn.Module):
    """A mixture whose experts are on all ranks, and a router that each rank has."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.router, self.experts = Choosing(WIDTH, EXPERTS, 2, 0.0), Stacked(mesh)

    def forward(self, values: Tensor) -> Tensor:
        _, weights, chosen = self.router(values)
        return self.experts(values, weights, chosen)


class Listed(nn.Module):
    """A mixture as Megatron builds it: a list of this rank's experts by their numbers."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.router = Choosing(WIDTH, EXPERTS, 1, 0.0)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.num_local_experts, self.local_expert_indices = 2, [first, first + 1]

    def forward(self, values: Tensor) -> Tensor:
        _, weights, _ = self.router(values)
        return sum((each(values) for each in self.experts), values) * weights


def work(rank: int, folder: str, url: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "HOOKCORE_HOME": folder, "HOOKCORE_TOKEN": TOKEN}
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=WORLD)
    for name, axis, bias in (("uneven", "ep", 9.0), ("even", "ep", 0.0), ("sharded", "dp", 9.0)):
        results = []
        for watched in (False, True):
            torch.manual_seed(0)
            model = Spread(init_device_mesh("cpu", (WORLD,), mesh_dim_names=(axis,)))
            assert isinstance(model.router.bias, Tensor)
            model.router.bias[2:] = bias
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            torch.manual_seed(rank + 1)
            watch = partial(hookcore.watch, model, server=url, name=f"{name} rank {rank}", budget=None)
            with watch() if watched else nullcontext():
                for _ in range(STEPS):
                    optimizer.zero_grad()
                    model(torch.randn(32, WIDTH)).square().mean().backward()
                    optimizer.step()
            weight = model.experts.weight
            assert isinstance(weight, DTensor)
            results.append([model.router.weight.detach().clone(), weight.to_local().detach().clone()])
        assert all(torch.equal(mine, its) for mine, its in zip(*results, strict=True))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_of_two_ranks_the_one_whose_experts_get_the_tokens_is_named_if_the_mesh_says_which_has_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
    with served(lost_after_s=10_000.0) as server:
        run_ranks(work, (str(tmp_path), server.url), WORLD)
        found = {}
        for name in ("uneven", "even", "sharded"):
            store = joint_named(server, name, WORLD).run.store
            found[name] = [each.message for each in findings_of(store) if each.rule == "uneven-expert-ranks"]
            owned = [tap.index for tap in store.taps(kind="probe").taps if tap.index == "expert_owned"]
            assert bool(owned) is (name != "sharded")  # an axis that only shards weights says nothing about the work
    assert found["uneven"] == [
        "rank 1, experts 2 to 3, has received 2.00 times an even share of the choices since step 0"
    ]
    assert found["even"] == found["sharded"] == []


@pytest.mark.parametrize(("first", "owned"), [(0, (0.0, 1.0)), (2, (2.0, 3.0)), (3, None)])
def test_the_experts_of_a_rank_are_those_that_a_layer_lists(first: int, owned: tuple[float, float] | None) -> None:
    model = Listed(first)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        model(torch.randn(16, WIDTH)).square().mean().backward()
        optimizer.step()
        watcher.flush()
        store, reasons = watcher.store, [each.reason for each in watcher.coverage() if "which of its" in each.reason]
        taps = store.taps(kind="probe")
        taps = taps.at([place for place, tap in enumerate(taps.taps) if tap.index == "expert_owned"])
        ends = [store.latest(stat=stat, taps=taps).values[:, 0].tolist() for stat in ("min", "max")]
    assert ends == ([[], []] if owned is None else [[owned[0]], [owned[1]]])
    assert bool(reasons) is (owned is None)

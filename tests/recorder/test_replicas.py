"""The ranks' values, merged by owner, equal those of one process with the whole batch and the whole model."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import device_mesh
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import hookcore
from hookcore.hooks.internals import root_mesh_of
from hookcore.records import STAT_COLUMN, UNKNOWN_OWNER, Frame, SketchBlock, Snapshot, Tap
from hookcore.store.rankstep import Repeated, StepOfRanks
from hookcore.store.segments import merge_stats
from tests.inside import delivery_of, recorder_of
from tests.ranks import run_ranks

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")

KINDS: Final = ("output", "output_grad", "input", "param", "param_grad", "update")
OF_PARAMETERS: Final = ("param", "param_grad", "update")
STEPS: Final = 2
BATCH: Final = 8
Row = tuple[int, Any, dict[int, int]]  # owner, stats, sketch
Rows = dict[tuple[int, Tap], Row]  # by step and tap
TRAINED: Final[list[nn.Module]] = []  # models of this process
UNWATCHED: Final[list[bool]] = []  # not empty during a training without a watch


def make(hidden: int = 9) -> nn.Sequential:
    """Return a model whose rows aren't divisible by the number of ranks: one of four has none of some tensors."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 5)).double()


def batches() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(BATCH, 6, dtype=torch.float64) for _ in range(STEPS)]


def odd(batch: Tensor) -> Tensor:
    """Return values some of which are non-finite."""
    return torch.where(batch > 1, torch.inf, torch.where(batch < -1, torch.nan, batch))


@contextmanager
def recorded(model: nn.Module, kinds: tuple[str, ...] = KINDS) -> Iterator[Rows]:
    """Watch a model, and at the end, fill in the rows of every frame."""
    rows: Rows = {}
    frames: list[Frame] = []
    TRAINED.append(model)
    if UNWATCHED:
        model.__dict__["seen"] = lambda *_: None
        yield rows
        return
    with hookcore.watch(model, server=None, budget=None, kinds=kinds) as watcher:  # type: ignore[arg-type]
        sink = delivery_of(watcher).sink
        send = sink.send

        def keep(record: Frame | Snapshot) -> None:
            if isinstance(record, Frame):
                frames.append(record)
            send(record)

        sink.send = keep  # type: ignore[method-assign]
        sink.send_together = lambda _: False  # type: ignore[method-assign]
        model.__dict__["seen"] = watcher.observe
        yield rows
        watcher.flush()
        model.__dict__["place"] = recorder_of(watcher).description.ranks.place
        assert not watcher.errors
    names: list[Tap] = []
    for frame in frames:
        names += frame.new_taps
        owners = [None] * len(frame.taps) if frame.owners is None else frame.owners.tolist()
        block = frame.sketches
        for row, (number, owner) in enumerate(zip(frame.taps.tolist(), owners, strict=True)):
            at = slice(int(block.start[row]), int(block.start[row + 1]))
            sketch = dict(zip(block.bins[at].tolist(), block.counts[at].tolist(), strict=True))
            key, new = (frame.step, names[number]), (owner, frame.stats[row], sketch)
            rows[key] = plus(rows[key], new) if key in rows else new  # a step may come in parts


def plus(one: Row, two: Row) -> Row:
    """Return the sum of two rows."""
    counts = {place: one[2].get(place, 0) + two[2].get(place, 0) for place in sorted({*one[2], *two[2]})}
    return one[0], merge_stats(one[1][:, None], two[1][:, None])[:, 0], counts


def train(model: nn.Module, module: nn.Module, batch: list[Tensor], ranks: int = 1) -> None:
    """Train with the sum of the mean losses of the ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for each in batch:
        optimizer.zero_grad()
        module.__dict__["seen"]("odd", odd(each))
        (model(each).square().mean() * ranks).backward()
        optimizer.step()


def merged(ranks: list[Rows]) -> Rows:
    """Merge the rows of all ranks: rows of one owner are the same values, rows of different owners different ones."""
    found: Rows = {}
    for key in sorted(set().union(*ranks), key=repr):
        by_owner: dict[int, Row] = {}
        for its_rank, rows in enumerate(ranks):
            if key not in rows:
                continue
            owner, stats, sketch = rows[key]
            assert owner != UNKNOWN_OWNER, key
            assert owner <= its_rank
            same = by_owner.setdefault(owner, rows[key])
            np.testing.assert_array_equal(same[1], stats, str(key))
            assert same[2] == sketch
        found[key] = reduce(plus, by_owner.values())
    return found


def added_up(ranks: list[Rows]) -> Rows:
    """Add up the rows of all ranks as the server does, starting with the last rank."""
    found: Rows = {}
    repeated = Repeated()
    for step in sorted({step for rows in ranks for step, _ in rows}):
        taps = sorted({tap for rows in ranks for at, tap in rows if at == step}, key=repr)
        total = StepOfRanks(repeated)
        for its_rank, rows in reversed([*enumerate(ranks)]):
            here = [(number, *rows[step, tap]) for number, tap in enumerate(taps) if (step, tap) in rows]
            start = np.cumsum([0, *(len(sketch) for _, _, _, sketch in here)])
            bins = [place for _, _, _, sketch in here for place in sketch]
            counts = [count for _, _, _, sketch in here for count in sketch.values()]
            block = SketchBlock(start.astype(np.uint32), np.array(bins, np.uint16), np.array(counts, np.uint32))
            numbers, owners = (np.array([row[column] for row in here], np.int64) for column in (0, 1))
            total.add(its_rank, numbers, np.stack([row[2] for row in here]), block, owners.astype(np.int32))
        assert not total.differences()
        sum_ = total.finish()
        for row, number in enumerate(sum_.lanes.tolist()):
            at = slice(int(sum_.block.start[row]), int(sum_.block.start[row + 1]))
            sketch = dict(zip(sum_.block.bins[at].tolist(), sum_.block.counts[at].tolist(), strict=True))
            found[step, taps[number]] = 0, sum_.stats[row], sketch
        repeated.known = True
    return found


EXACT: Final = ("count", "nan", "inf", "zero", "sketched")
CLOSE: Final = ("mean", "std", "min", "max", "rms", "norm")


def assert_same(found: Rows, expected: Rows, scale: Callable[[Tap], float] = lambda _: 1.0) -> None:
    assert found.keys() == expected.keys()
    for key, (_, stats, sketch) in expected.items():
        for name in EXACT:
            assert found[key][1][STAT_COLUMN[name]] == stats[STAT_COLUMN[name]], (key, name)
        for name in CLOSE:
            wanted = stats[STAT_COLUMN[name]] * scale(key[1])
            value = found[key][1][STAT_COLUMN[name]]
            assert value == pytest.approx(wanted, rel=1e-9, abs=1e-14, nan_ok=True), (key, name)
        if scale(key[1]) == 1.0:
            assert found[key][2] == sketch, key


def alone(ranks: int, model: nn.Sequential | None = None) -> Rows:
    model = model or make()
    with recorded(model) as rows:
        train(model, model, batches(), ranks)
    assert all(owner is None for owner, _, _ in rows.values())
    return rows


# --- On each rank ---------------------------------------------------------------------------------------------------


def shares(rank: int, world: int) -> list[Tensor]:
    return [each.chunk(world)[rank] for each in batches()]


def with_ddp(rank: int, world: int) -> Rows:
    model = make()
    with recorded(model) as rows:
        train(DistributedDataParallel(model), model, shares(rank, world))
    return rows


def with_ddp_in_two_passes(rank: int, world: int) -> Rows:
    """Train with two micro-batches per step; the second one reduces the gradients."""
    model = make()
    with recorded(model) as rows:
        parallel = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for each in shares(rank, world):
            optimizer.zero_grad()
            for last, part in enumerate(each.chunk(2)):
                model.__dict__["seen"]("odd", odd(part))
                with nullcontext() if last else parallel.no_sync():
                    (parallel(part).square().mean() / 2).backward()
            optimizer.step()
    return rows


def with_ddp_around_parts(rank: int, world: int) -> Rows:
    """Train a model of which two parts have a wrapper each, and the whole has none."""
    model = make()
    first, last = DistributedDataParallel(model[0]), DistributedDataParallel(model[2])
    with recorded(model) as rows:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for each in shares(rank, world):
            optimizer.zero_grad()
            last(first(each).relu()).square().mean().backward()
            optimizer.step()
    return rows


def with_ddp_unreduced(rank: int, world: int) -> Rows:
    """Train with gradients that aren't reduced."""
    model = make()
    parallel = DistributedDataParallel(model)
    with recorded(parallel) as rows, parallel.no_sync():
        train(parallel, parallel, shares(rank, world))
    return rows


def with_hook(rank: int, world: int, hook: Any) -> Rows:
    """Train with a communication hook that is registered after the watch has begun."""
    model = make()
    with recorded(model) as rows:
        parallel = DistributedDataParallel(model)
        parallel.register_comm_hook(None, hook)
        train(parallel, model, shares(rank, world))
    return rows


def with_all_reduce(rank: int, world: int) -> Rows:
    return with_hook(rank, world, allreduce_hook)


def with_own_hook(rank: int, world: int) -> Rows:
    return with_hook(rank, world, noop_hook)


def with_fsdp(rank: int, world: int) -> Rows:
    model = make()
    if world == 4:
        split(model)
    with recorded(model) as rows:
        if world == 2:
            split(model)
        train(model, model, shares(rank, world))
    return rows


def split(model: nn.Sequential, **mesh: Any) -> None:
    fully_shard(model[0], **mesh)
    fully_shard(model, **mesh)


def with_hsdp(rank: int, world: int) -> Rows:
    model = make()
    split(model, mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("copy", "shard")))
    with recorded(model) as rows:
        train(model, model, shares(rank, world))
    assert UNWATCHED or model.__dict__["place"].axes == {"copy": (rank // 2, 2), "shard": (rank % 2, 2)}
    return rows


LAYERS: Final = {"0": ColwiseParallel, "2": RowwiseParallel}


def with_tp(rank: int, world: int) -> Rows:
    model = make(8)
    parallelize_module(model, init_device_mesh("cpu", (world,)), {name: each() for name, each in LAYERS.items()})
    with recorded(model) as rows:
        train(model, model, batches())
    return rows


def with_fsdp_and_tp(rank: int, world: int) -> Rows:
    model = make(8)
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {name: each() for name, each in LAYERS.items()})
    split(model, mesh=mesh["data"])
    with recorded(model) as rows:
        train(model, model, shares(rank // 2, 2))
    assert UNWATCHED or model.__dict__["place"].axes == {"data": (rank // 2, 2), "tensor": (rank % 2, 2)}
    return rows


def by_hand(rank: int, world: int) -> Rows:
    """Train without any wrapper."""
    model = make()
    with recorded(model) as rows:
        train(model, model, shares(rank, world))
    return rows


def with_stages(rank: int, world: int) -> Rows:
    """Train one layer on each of two ranks."""
    whole = make()
    stage = nn.Sequential()
    for name, layer in list(whole.named_children())[slice(0, 2) if rank == 0 else slice(2, 3)]:
        stage.add_module(name, layer)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    with recorded(stage) as rows:
        for each in batches():
            optimizer.zero_grad()
            if rank == 0:
                output = stage(each)
                dist.send(output.detach(), 1)
                gradient = torch.empty_like(output)
                dist.recv(gradient, 1)
                output.backward(gradient)
            elif rank == 1:
                given = torch.empty(BATCH, 9, dtype=torch.float64)
                dist.recv(given, 0)
                given.requires_grad_()
                stage(given).square().mean().backward()
                assert given.grad is not None
                dist.send(given.grad, 0)
            optimizer.step()
    return rows


WAYS: Final = {
    2: (
        with_ddp,
        with_ddp_in_two_passes,
        with_ddp_around_parts,
        with_ddp_unreduced,
        with_all_reduce,
        with_own_hook,
        with_fsdp,
        with_tp,
        by_hand,
        with_stages,
    ),
    4: (with_ddp, with_fsdp, with_hsdp, with_fsdp_and_tp),
}


def weights(model: nn.Module) -> list[Tensor]:
    """Return this rank's parts of the weights and of their last gradients."""
    tensors = [tensor for each in model.parameters() for tensor in (each, each.grad) if tensor is not None]
    return [getattr(each, "_local_tensor", each).detach().clone() for each in tensors]


def work(rank: int, world: int, folder: str) -> None:
    os.environ |= {"HOOKCORE_HOME": folder, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    found = {way.__name__: way(rank, world) for way in WAYS[world]}
    watched = [weights(model) for model in TRAINED]
    TRAINED.clear()
    UNWATCHED.append(True)
    assert not any(way(rank, world) for way in WAYS[world])
    for seen, unseen in zip(watched, map(weights, TRAINED), strict=True):
        assert len(seen) > 1
        assert all(torch.equal(one, two) for one, two in zip(seen, unseen, strict=True))
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[Rows]]]:
    """Return the measurements of each rank, by the number of ranks and the way of training."""
    found = {}
    for world, ways in WAYS.items():
        folder = tmp_path_factory.mktemp(f"world{world}")
        run_ranks(work, (world, str(folder)), world)
        ranks = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]
        found[world] = {way.__name__: [rows[way.__name__] for rows in ranks] for way in ways}
    return found


Measured = dict[int, dict[str, list[Rows]]]
CASES: Final = [
    (2, "with_ddp"),
    (2, "with_ddp_in_two_passes"),
    (2, "with_all_reduce"),
    (2, "with_fsdp"),
    (4, "with_ddp"),
    (4, "with_fsdp"),
    (4, "with_hsdp"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "way"), CASES)
def test_data_parallel_ranks_add_up_to_one_process(measured: Measured, world: int, way: str) -> None:
    found, expected = merged(measured[world][way]), alone(1)
    if (world, way) == (
        2,
        "with_fsdp",
    ):  # wrapped after the watch began, so the first input of the whole model isn't captured
        del expected[0, Tap("", "input", "0")]

    def scale(tap: Tap) -> float:
        return world if tap.kind == "output_grad" else 1.0  # for the rank's own loss; the loss is their mean

    assert_same(found, expected, scale)
    assert_same(added_up(measured[world][way]), found)
    for step in range(STEPS):
        assert norm_of_gradients(found, step) == pytest.approx(norm_of_gradients(expected, step), rel=1e-12)


def norm_of_gradients(rows: Rows, step: int) -> float:
    norms = [
        stats[STAT_COLUMN["norm"]]
        for (at, tap), (_, stats, _) in rows.items()
        if at == step and tap.kind == "param_grad"
    ]
    return math.hypot(*norms)


@pytest.mark.slow
def test_ranks_own_their_activations_and_the_first_one_owns_shared_tensors(measured: Measured) -> None:
    for world in (2, 4):
        for rank, rows in enumerate(measured[world]["with_ddp"]):
            for (_, tap), (owner, _, _) in rows.items():
                assert owner == (0 if tap.kind in OF_PARAMETERS else rank), tap
    for rank, rows in enumerate(measured[4]["with_hsdp"]):
        for (_, tap), (owner, _, _) in rows.items():
            assert owner == (rank % 2 if tap.kind in OF_PARAMETERS else rank), tap


@pytest.mark.slow
def test_each_part_with_a_wrapper_of_its_own_is_known_to_be_reduced(measured: Measured) -> None:
    for rank, rows in enumerate(measured[2]["with_ddp_around_parts"]):
        owners = {(step, tap.module, tap.kind in OF_PARAMETERS): owner for (step, tap), (owner, _, _) in rows.items()}
        for step in range(STEPS):
            found = {key[1:]: owner for key, owner in owners.items() if key[0] == step}
            assert found == {("0", True): 0, ("2", True): 0, ("0", False): rank, ("2", False): rank}, step


@pytest.mark.slow
def test_gradients_before_the_reduction_are_not_reported_as_equal(measured: Measured) -> None:
    first, second = measured[2]["with_ddp_unreduced"]
    local = [key for key in first if key[1].kind == "param_grad"]
    assert local
    for key in local:
        assert first[key][0] == second[key][0] == UNKNOWN_OWNER
        assert first[key][1].tolist() != second[key][1].tolist()


@pytest.mark.slow
def test_weights_are_not_reported_as_equal_if_a_hook_may_not_reduce(measured: Measured) -> None:
    ranks = measured[2]["with_own_hook"]
    for rank, rows in enumerate(ranks):
        for (_, tap), (owner, _, _) in rows.items():
            assert owner == (UNKNOWN_OWNER if tap.kind in OF_PARAMETERS else rank), tap
    key = (1, Tap("0", "param", "weight"))
    assert ranks[0][key][1].tolist() != ranks[1][key][1].tolist()


@pytest.mark.slow
def test_an_unwrapped_model_has_unknown_owners(measured: Measured) -> None:
    for rows in measured[2]["by_hand"]:
        assert {owner for owner, _, _ in rows.values()} == {UNKNOWN_OWNER}


@pytest.mark.slow
@pytest.mark.parametrize(("world", "way"), [(2, "with_tp"), (4, "with_fsdp_and_tp")])
def test_parts_of_weights_add_up_to_the_weights(measured: Measured, world: int, way: str) -> None:
    ranks = measured[world][way]
    everything = alone(1, make(8))
    known = [{key: row for key, row in rows.items() if row[0] != UNKNOWN_OWNER} for rows in ranks]
    assert all(rows.keys() == known[0].keys() for rows in known)
    assert_same(merged(known), {key: row for key, row in everything.items() if key in known[0]})
    assert_same(added_up(known), merged(known))
    assert {key for key in everything if key[1].kind in OF_PARAMETERS} <= known[0].keys()
    # A plain tensor may be a part, or the same on several ranks. Inputs that torch has made DTensors are known.
    plain = {(tap.module, tap.kind) for _, tap in ranks[0].keys() - known[0].keys()}
    assert {("0", "output"), ("odd", "output")} <= plain
    assert ("2", "input") in {(tap.module, tap.kind) for _, tap in known[0]} or way == "with_fsdp_and_tp"


@pytest.mark.slow
def test_stages_of_a_pipeline_are_parts_of_one_tree(measured: Measured) -> None:
    first, second = measured[2]["with_stages"]
    inner = [{key: row for key, row in rows.items() if key[1].module} for rows in (first, second)]
    assert not inner[0].keys() & inner[1].keys()
    expected = {key: row for key, row in alone(1).items() if key[1].module not in ("", "odd")}
    assert_same(inner[0] | inner[1], expected)


def test_the_mesh_that_a_slice_is_from_is_found_in_older_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    part, whole = object(), object()
    monkeypatch.setattr(device_mesh, "_mesh_resources", SimpleNamespace(get_root_mesh={part: whole}.get), raising=False)
    assert root_mesh_of(part) is whole
    monkeypatch.delattr(device_mesh, "_mesh_resources")
    assert root_mesh_of(part) is part


def measure_alone(rank: int, folder: str) -> None:
    """Let rank 0 train with a split model while rank 1 waits for it."""
    os.environ |= {"HOOKCORE_HOME": folder, "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    done = dist.FileStore(f"{folder}/done", 2)  # type: ignore[attr-defined]
    model = make()
    split(model, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("data",)))
    if rank == 0:
        with recorded(model) as rows:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        assert model.__dict__["place"].axes == {"data": (0, 2)}
        assert {(tap.kind, owner) for (_, tap), (owner, _, _) in rows.items()} == {(kind, 0) for kind in OF_PARAMETERS}
        done.set("done", "1")
    else:
        done.wait(["done"])
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_do_not_wait_for_each_other(tmp_path: Path) -> None:
    run_ranks(measure_alone, (str(tmp_path),), 2)

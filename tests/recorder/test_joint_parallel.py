"""Four gloo processes and a real server: however the model is split, the run of all ranks has one process's values."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import hookcore
from hookcore.records import Kind, Tap
from hookcore.records.vocabulary import RAW_NORM
from hookcore.store import Store
from tests.ranks import run_ranks
from tests.serving import TOKEN, Served, joint_named, run_named, served

pytestmark = [pytest.mark.slow, pytest.mark.all]

WORLD: Final = 4
STEPS: Final = 3
BATCH: Final = 8
DRIFTS_AT: Final = 1
LIMIT: Final = 0.01  # of the norm of all gradients
OF_PARAMETERS: Final[tuple[Kind, ...]] = ("param", "param_grad", "update")
KINDS: Final[tuple[Kind, ...]] = ("output", "output_grad", *OF_PARAMETERS)
EXACT: Final = ("count", "nan", "inf", "zero")
CLOSE: Final = ("mean", "std", "min", "max", "rms", "norm")


def make() -> nn.Sequential:
    """Return a model in which only the middle layer's rows are divisible by the number of ranks."""
    torch.manual_seed(0)
    layers = nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 7), nn.Linear(7, 5)
    return nn.Sequential(*layers).double()


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(BATCH, 6, dtype=torch.float64, generator=generator) for _ in range(STEPS)]


def loss_of(output: Tensor, _: Tensor | None = None) -> Tensor:
    return output.square().mean()


def train(
    model: nn.Module,
    watched: nn.Module,
    url: str,
    name: str,
    backward: Callable[[Tensor], None] | None = None,
    share: slice = slice(None),
    after: Callable[[int], None] = lambda _: None,
    limit: float | None = None,
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hookcore.watch(watched, server=url, name=name, budget=None, kinds=KINDS) as watcher:
        for step, batch in enumerate(batches()):
            optimizer.zero_grad()
            if backward is None:
                loss_of(model(batch[share])).backward()
            else:
                backward(batch)
            if limit is not None:
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            after(step)
            if limit is not None:  # of a tensor that is split, the recorder's thread sees that it was clipped
                assert watcher.flush()


def share_of(place: int, parts: int) -> slice:
    size = BATCH // parts
    return slice(place * size, (place + 1) * size)


# --- On each rank ---------------------------------------------------------------------------------------------------


def with_drift(rank: int, url: str) -> None:
    """Train with copies of the parameters, one of which drifts on rank 2."""
    inner = make()

    def drift(step: int) -> None:
        if rank == 2 and step == DRIFTS_AT:
            with torch.no_grad():
                dict(inner.named_parameters())["4.bias"][3] += 0.5

    train(DistributedDataParallel(inner), inner, url, f"drift rank {rank}", None, share_of(rank, WORLD), drift)


def with_fsdp(rank: int, url: str) -> None:
    model = make()
    for layer in (model[0], model[2], model):
        fully_shard(layer)  # 9 rows on four ranks, so one rank has none; then 5 rows
    train(model, model, url, f"fsdp rank {rank}", None, share_of(rank, WORLD))


def with_clipped_copies(rank: int, url: str) -> None:
    inner = make()
    model = DistributedDataParallel(inner)
    train(model, inner, url, f"clipped copies rank {rank}", None, share_of(rank, WORLD), limit=LIMIT)


def with_clipped_fsdp(rank: int, url: str) -> None:
    model = make()
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    train(model, model, url, f"clipped fsdp rank {rank}", None, share_of(rank, WORLD), limit=LIMIT)


def with_two_axes(rank: int, url: str) -> None:
    """Train two copies of a model that is split in two."""
    model = make()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"2": ColwiseParallel(), "4": RowwiseParallel()})
    for layer in (model[0], model):
        fully_shard(layer, mesh=mesh["data"])
    train(model, model, url, f"axes rank {rank}", None, share_of(rank // 2, 2))


def with_tensor_parallel(rank: int, url: str) -> None:
    model = make()
    parallelize_module(model, init_device_mesh("cpu", (WORLD,)), {"2": ColwiseParallel(), "4": RowwiseParallel()})
    train(model, model, url, f"tensor rank {rank}")


def stage_of(*names: str) -> nn.Sequential:
    """Return a stage of the model, which keeps the names of its layers."""
    stage = nn.Sequential()
    for name, layer in make().named_children():
        if name in names:
            stage.add_module(name, layer)
    return stage


def steps_of(pipe: PipelineStage, parts: int, share: slice = slice(None)) -> Callable[[Tensor], None]:
    """Return a function that runs the passes of a step in torch's own pipeline, with this number of micro-batches."""
    schedule = Schedule1F1B(pipe, parts, loss_fn=loss_of)

    def step(batch: Tensor) -> None:
        given = (batch[share],) if pipe.is_first else ()
        target: Any = {"target": torch.zeros(len(batch[share]))} if pipe.is_last else {}
        schedule.step(*given, **target)

    return step


def with_pipeline(rank: int, url: str) -> None:
    """Train one stage, with four micro-batches."""
    stage = stage_of(*(("0", "1"), ("2", "3"), ("4",), ("5",))[rank])
    pipe = PipelineStage(stage, rank, WORLD, torch.device("cpu"))
    train(stage, stage, url, f"pipeline rank {rank}", steps_of(pipe, WORLD))


def mesh_of_stages(other: str) -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", other))


def with_split_stages(rank: int, url: str) -> None:
    """Train one of two stages, each split over two ranks that have their own batches."""
    mesh = mesh_of_stages("data")
    number, place = divmod(rank, 2)
    stage = stage_of(*(("0", "1", "2", "3"), ("4", "5"))[number])
    for layer in (*stage, stage):
        fully_shard(layer, mesh=mesh["data"])
    pipe = PipelineStage(stage, number, 2, torch.device("cpu"), group=mesh["stage"].get_group())
    train(stage, stage, url, f"split rank {rank}", steps_of(pipe, 2, share_of(place, 2)))


def together(_: int) -> None:
    """Wait for all ranks, like stages that exchange data."""
    dist.barrier()


def with_copied_stages(rank: int, url: str) -> None:
    """Train a layer of each stage, without the passes between the stages."""
    layer = stage_of("0")
    parallel = DistributedDataParallel(layer, device_mesh=mesh_of_stages("data")["data"])
    train(parallel, layer, url, f"copied rank {rank}", after=together)


def with_tensor_parallel_stages(rank: int, url: str) -> None:
    """Train a layer of each stage, without the passes between the stages."""
    layer = nn.Sequential(nn.Linear(6, 4)).double()
    parallelize_module(layer, mesh_of_stages("tensor")["tensor"], {"0": ColwiseParallel()})
    train(layer, layer, url, f"layers rank {rank}", after=together)


WAYS: Final = (
    with_clipped_copies,
    with_clipped_fsdp,
    with_drift,
    with_fsdp,
    with_two_axes,
    with_tensor_parallel,
    with_pipeline,
)
STAGES: Final = (with_split_stages, with_copied_stages, with_tensor_parallel_stages)


def work(rank: int, folder: str, url: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "HOOKCORE_HOME": folder, "HOOKCORE_TOKEN": TOKEN}
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=WORLD)
    for way in (*WAYS, *STAGES):
        way(rank, url)
        dist.barrier()
    dist.destroy_process_group()


# --- On the server --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(lambda: 1000.0) as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOOKCORE_TOKEN", TOKEN)
        train(model := make(), model, found.url, "alone")
        train(model := make(), model, found.url, "alone, clipped", limit=LIMIT)
        run_ranks(work, (str(tmp_path_factory.mktemp("ranks")), found.url), WORLD)
        yield found


def assert_same(found: Store, alone: Store, taps: list[Tap], scale: Callable[[Tap], float] = lambda _: 1.0) -> None:
    assert taps
    for tap in taps:
        for stat in (*EXACT, *CLOSE):
            one, all_ = alone.series(tap, stat), found.series(tap, stat)
            assert one.first_step.tolist() == all_.first_step.tolist() == list(range(STEPS)), (tap, stat)
            factor = scale(tap) if stat in CLOSE else 1.0
            np.testing.assert_allclose(all_.mean, one.mean * factor, rtol=1e-9, atol=1e-14, err_msg=f"{tap} {stat}")


def norms_of_gradients(store: Store, kind: Kind = "param_grad") -> list[float]:
    squares = [store.series(tap, "norm").mean ** 2 for tap in store.taps(None, kind).taps]
    return list(np.sqrt(np.sum(squares, axis=0)))


@pytest.mark.parametrize("name", ["clipped copies", "clipped fsdp"])
def test_gradients_before_and_after_clipping_are_those_of_one_process(server: Served, name: str) -> None:
    alone, together = run_named(server, "alone, clipped").store, joint_named(server, name, WORLD).run.store
    for kind in ("raw_grad", "param_grad"):
        one, all_ = norms_of_gradients(alone, kind), norms_of_gradients(together, kind)
        assert all_ == pytest.approx(one[-len(all_) :], rel=1e-12)
        assert len(together.taps(None, kind).taps) == 8
    assert norms_of_gradients(together) == pytest.approx([LIMIT] * STEPS, rel=1e-3)
    for tap in alone.taps(None, "param_grad").taps:
        one, all_ = alone.series(tap, "ratio"), together.series(tap, "ratio")
        np.testing.assert_allclose(all_.mean[-1:], one.mean[-1:], rtol=1e-9, err_msg=str(tap))
        assert (one.mean[1:] < 0.9).all()
    total = [RAW_NORM in store.scalar_names() for store in (alone, together)]
    assert total == [True, name == "clipped copies"], "a rank with a part of each gradient doesn't know the norm"
    assert together.incidents() == []


@pytest.mark.parametrize("name", ["fsdp", "axes", "tensor", "pipeline", "split"])
def test_parameters_and_the_norm_of_all_gradients_are_those_of_one_process(server: Served, name: str) -> None:
    alone, together = run_named(server, "alone").store, joint_named(server, name, WORLD).run.store
    expected = [tap for kind in OF_PARAMETERS for tap in alone.taps(None, kind).taps]
    assert len(expected) == 3 * 8
    assert {tap for kind in OF_PARAMETERS for tap in together.taps(None, kind).taps} == set(expected)
    assert_same(together, alone, expected)
    assert norms_of_gradients(together) == pytest.approx(norms_of_gradients(alone), rel=1e-12)
    assert together.incidents() == []


SPLIT: Final = ("axes", "tensor")  # by tensor parallel layers


@pytest.mark.parametrize(("name", "parts"), [("fsdp", 4), ("axes", 2), ("tensor", 1), ("pipeline", 4)])
def test_outputs_and_their_gradients_are_those_of_one_process(server: Served, name: str, parts: int) -> None:
    alone, together = run_named(server, "alone").store, joint_named(server, name, WORLD).run.store
    missing = {Tap("4", "output")} if name in SPLIT else set()  # ranks have parts of sums
    if name == "pipeline":
        missing = {Tap("", "output"), Tap("", "output_grad")}  # the outputs of the stages aren't the model's
    expected = {tap for kind in KINDS[:2] for tap in alone.taps(None, kind).taps} - missing
    assert {tap for kind in KINDS[:2] for tap in together.taps(None, kind).taps if count_of(together, tap)} == expected

    def scale(tap: Tap) -> float:
        return parts if tap.kind == "output_grad" else 1.0  # for the loss of a rank, or of a micro-batch

    assert_same(together, alone, sorted(expected, key=str), scale)


def count_of(store: Store, tap: Tap) -> float:
    return float(store.series(tap, "count").mean.sum())


def test_the_rank_that_drifts_away_is_named_with_its_parameter_and_step(server: Served) -> None:
    (incident,) = [each for each in joint_named(server, "drift", WORLD).run.store.incidents() if each.rule == "desync"]
    assert incident.first_step == DRIFTS_AT + 1
    assert (incident.culprit.tap.module, incident.culprit.tap.kind, incident.culprit.tap.index) == (
        "4",
        "param",
        "bias",
    )
    assert incident.sentence.startswith("Rank 2 differs from the others")


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("axes", "data", "tensor"),
        ("split", "stage", "data"),
        ("copied", "stage", "data"),
        ("layers", "stage", "tensor"),
    ],
)
def test_ranks_record_the_axes_of_their_mesh(server: Served, name: str, first: str, second: str) -> None:
    """This includes axes along which the rank's own stage is neither split nor copied."""
    found = {each.place.rank: each.place.axes for each in joint_named(server, name, WORLD).rounds.current()}
    assert found == {rank: {first: (rank // 2, 2), second: (rank % 2, 2)} for rank in range(WORLD)}


def test_tensors_sharded_by_torch_say_how_they_are_split(server: Served) -> None:
    def placements(name: str) -> dict[str, dict[str, str]]:
        return {each.path: dict(each.placements) for each in joint_named(server, name, WORLD).run.store.modules()}

    assert placements("fsdp")["0"] == dict.fromkeys(("weight", "bias"), "Shard(0) over 4 ranks")
    found = placements("axes")
    assert found["0"] == dict.fromkeys(("weight", "bias"), "Shard(0) over data, 2 ranks")
    assert found["2"]["weight"] == "StridedShard(0) over data, 2 ranks; Shard(0) over tensor, 2 ranks"
    assert found["4"]["weight"] == "Shard(0) over data, 2 ranks; Shard(1) over tensor, 2 ranks"
    assert found["4"]["bias"] == "Shard(0) over data, 2 ranks; Replicate over tensor, 2 ranks"
    for name in ("drift", "pipeline"):
        assert not any(placements(name).values())

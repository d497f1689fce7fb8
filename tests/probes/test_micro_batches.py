"""What each micro-batch adds to a model's gradient: norms, and cosines to the sum."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import hookcore
from hookcore import probes
from tests.harness import digest, random_state, seed_all
from tests.ranks import run_ranks

NORM, COSINE = "(root) probe [parts micro_norm]", "(root) probe [parts micro_cosine]"
STEPS = 6


class Tied(nn.Module):
    """A layer that is called twice, in reentrant checkpoints, so that its gradient comes in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, values: Tensor) -> Any:
        values = checkpoint(self.inner, values.requires_grad_(), use_reentrant=True)
        return self.head(checkpoint(self.inner, values.tanh(), use_reentrant=True))


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3), nn.LayerNorm(3))


def twin_of(model: nn.Module, batch: Tensor, passes: int) -> Tensor:
    """Return the gradient of a micro-batch, computed by a copy of the model in double precision."""
    double = copy.deepcopy(model).double()
    for each in double.parameters():
        each.grad = None
    (double(batch.double()).square().mean() / passes).backward()
    return torch.cat([each.grad.reshape(-1) for each in double.parameters() if each.grad is not None])


class Outcome:
    """What a training was, and what was measured in it."""

    def __init__(self) -> None:
        self.own: list[list[Tensor]] = []  # the gradient of each micro-batch, by step
        self.weights, self.told = "", list[str]()
        self.norms, self.cosines = dict[int, list[float]](), dict[int, list[float]]()

    def read(self, watcher: hookcore.Watcher) -> None:
        watcher.flush()
        self.told = [event.message for event in watcher.store.events() if event.name.startswith("probe")]
        self.told += [event.message for event in watcher.errors]
        if NORM in {tap.label for tap in watcher.store.taps().taps}:
            self.norms, self.cosines = (_columns(watcher, label) for label in (NORM, COSINE))


def _columns(watcher: hookcore.Watcher, label: str) -> dict[int, list[float]]:
    found = watcher.reader().channels(label)
    return dict(zip(found.first_step.tolist(), found.values.T.tolist(), strict=True))


def expected(own: list[Tensor], total: Tensor) -> tuple[list[float], list[float]]:
    return (
        [float(each.norm()) for each in own],
        [float(torch.dot(each, total) / (each.norm() * total.norm())) for each in own],
    )


def train(
    watched: bool,
    model_of: Callable[[], nn.Module] = make,
    passes: tuple[int, ...] = (3,),
    scale: float = 0.0,
    clip: float = 0.0,
    two: bool = False,
    zero: Callable[[torch.optim.Optimizer], None] = torch.optim.Optimizer.zero_grad,
    every: int = 1,
    spoil: Callable[[int, int, Tensor], Tensor] = lambda step, number, batch: batch,
) -> Outcome:
    seed_all()
    model, found = model_of(), Outcome()
    every_weight = list(model.parameters())
    groups = [every_weight[::2], every_weight[1::2]] if two else [every_weight]
    optimizers = [torch.optim.Adam(groups[0], 0.01), *(torch.optim.SGD(each, 0.01) for each in groups[1:])]
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2, enabled=scale > 0)
    with contextlib.ExitStack() as stack:
        watcher = (
            stack.enter_context(hookcore.watch(model, server=None, budget=None, memory="16MB")) if watched else None
        )
        if watcher is not None:
            watcher.probe("parts", probes.MicroBatches, every=every)
        for step in range(STEPS):
            many = passes[step % len(passes)]
            found.own.append([])
            for number in range(many):
                batch = spoil(step, number, torch.randn(5, 6))
                if not watched:
                    found.own[-1].append(twin_of(model, batch, many))
                scaler.scale(model(batch).square().mean() / many).backward()
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            for optimizer in optimizers:
                zero(optimizer)
        if watcher is not None:
            found.read(watcher)
    found.weights = digest(model.state_dict()) + random_state()
    return found


def both(**options: Any) -> tuple[Outcome, Outcome]:
    """Train without and with the probe, which changes no bit."""
    plain, seen = train(False, **options), train(True, **options)
    assert plain.weights == seen.weights
    return plain, seen


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"every": 3},
        {"scale": 2.0**10},
        {"scale": 2.0**7, "clip": 0.01, "two": True},
        {"clip": 0.01, "two": True, "zero": lambda each: each.zero_grad(set_to_none=False)},
        {"model_of": Tied},
        {"model_of": lambda: make().bfloat16().float()},
    ],
)
def test_norms_and_cosines_are_those_of_each_micro_batch_s_own_gradient(options: dict[str, Any]) -> None:
    plain, seen = both(**options)
    assert list(seen.norms) == list(range(0, STEPS, options.get("every", 1)))
    assert seen.told == []
    for step, norms in seen.norms.items():
        own = plain.own[step]
        sizes, cosines = expected(own, torch.stack(own).sum(0))
        assert norms == pytest.approx(sizes, rel=1e-4)
        assert seen.cosines[step] == pytest.approx(cosines, abs=1e-4)


def test_gradients_that_are_never_reset_belong_to_earlier_steps() -> None:
    plain, seen = both(zero=lambda _: None)
    for step, norms in seen.norms.items():
        assert norms == pytest.approx(expected(plain.own[step], plain.own[step][0])[0], rel=1e-4)


def test_a_step_with_fewer_micro_batches_has_zeros_in_their_places() -> None:
    plain, seen = both(passes=(4, 2))
    assert [len(each) for each in plain.own[:2]] == [4, 2]
    assert seen.norms[1] == pytest.approx([float(each.norm()) for each in plain.own[1]] + [0.0, 0.0], rel=1e-4)
    assert seen.cosines[1][2:] == [0.0, 0.0]


def test_a_single_micro_batch_has_no_numbers_and_an_event_says_why() -> None:
    _, seen = both(passes=(1,))
    assert seen.norms == {}
    assert [
        each.startswith("the probe 'parts' has no result: it needs steps that accumulate") for each in seen.told
    ] == [True]


def test_a_step_that_a_scaler_skips_has_no_numbers() -> None:
    _, seen = both(
        scale=2.0**4, spoil=lambda step, number, batch: batch * (float("nan") if (step, number) == (3, 1) else 1.0)
    )
    assert list(seen.norms) == [0, 1, 2, 4, 5]
    assert len(seen.told) == 1
    assert "a scaler skipped the step" in seen.told[0]


def test_a_gradient_that_is_not_finite_is_that_of_its_micro_batch() -> None:
    _, seen = both(spoil=lambda step, number, batch: batch * (float("nan") if (step, number) == (3, 1) else 1.0))
    assert [value == value for value in seen.norms[3]] == [True, False, True]
    assert all(value != value for value in seen.cosines[3])


def test_of_large_weights_norms_are_exact_and_cosines_nearly_so() -> None:
    probe, parameter = probes.MicroBatches(), nn.Parameter(torch.zeros(300, 400))
    gradients = [torch.randn(300, 400) * (10.0**number) + 3.0 for number in range(3)]
    for gradient in gradients:
        probe.begin_pass([parameter])
        probe.see_local(0, gradient)
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        probe.end_pass([parameter])
    found = probe.end_step()
    assert not isinstance(found, str)
    flat = [gradient.double().flatten() for gradient in gradients]
    sizes, cosines = expected(flat, torch.stack(flat).sum(0))
    assert found["micro_norm"].tolist() == pytest.approx(sizes, rel=1e-9)
    assert found["micro_cosine"].tolist() == pytest.approx(cosines, abs=0.05)


# -- ranks -------------------------------------------------------------------------------------------------------------

WORLD, PASSES = 2, 3


def _train(rank: int, folder: str, watched: bool, sharded: bool) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{watched}", rank=rank, world_size=WORLD)
    try:
        torch.save(_of_rank(rank, watched, sharded), f"{folder}/{rank}-{watched}.pt")
    finally:
        dist.destroy_process_group()


def _of_rank(rank: int, watched: bool, sharded: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model, found = make(), Outcome()
    trained: nn.Module = model
    if sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    else:
        trained = DistributedDataParallel(model, gradient_as_bucket_view=rank == 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(100 + rank)
    with contextlib.ExitStack() as stack:
        watcher = stack.enter_context(hookcore.watch(model, server=None, budget=None)) if watched else None
        if watcher is not None:
            watcher.probe("parts", probes.MicroBatches, every=2)
        for _ in range(STEPS):
            optimizer.zero_grad()
            found.own.append([])
            for number in range(PASSES):
                batch = torch.randn(5, 6) * (1 + number + 2 * rank)
                if not (watched or sharded):
                    found.own[-1].append(twin_of(model, batch, PASSES))
                waits = number + 1 < PASSES and isinstance(trained, DistributedDataParallel)
                with trained.no_sync() if waits else contextlib.nullcontext():  # type: ignore[operator]
                    (trained(batch).square().mean() / PASSES).backward()
            optimizer.step()
        if watcher is not None:
            found.read(watcher)
    weights = [each.to_local() if sharded else each for each in model.state_dict().values()]
    return {**vars(found), "weights": weights}


def _results(sharded: bool) -> dict[tuple[int, bool], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        for watched in (False, True):
            run_ranks(_train, (folder, watched, sharded), WORLD)
        ways = [(rank, watched) for rank in range(WORLD) for watched in (False, True)]
        results = {way: torch.load(Path(folder) / f"{way[0]}-{way[1]}.pt") for way in ways}
    for rank in range(WORLD):
        for one, two in zip(results[rank, False]["weights"], results[rank, True]["weights"], strict=True):
            assert torch.equal(one, two)
    return results


@pytest.mark.slow
def test_ranks_measure_their_own_micro_batches_before_the_reduction_and_train_as_if_unwatched() -> None:
    results = _results(sharded=False)
    for rank in range(WORLD):
        seen = results[rank, True]
        assert seen["told"] == []
        assert list(seen["norms"]) == list(range(0, STEPS, 2))
        for step, norms in seen["norms"].items():
            every = torch.stack([each for other in range(WORLD) for each in results[other, False]["own"][step]])
            sizes, cosines = expected(results[rank, False]["own"][step], every.sum(0))
            assert norms == pytest.approx(sizes, rel=1e-4)
            assert seen["cosines"][step] == pytest.approx(cosines, abs=1e-4)


def test_complex_gradients_have_no_numbers_and_one_event_says_why() -> None:
    class Turning(nn.Linear):
        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values.to(torch.complex64)).abs()

    model = Turning(3, 3, dtype=torch.complex64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hookcore.watch(model, server=None, budget=None) as watcher:
        watcher.probe("parts", probes.MicroBatches, every=1)
        for _ in range(5):
            for _ in range(2):
                model(torch.randn(2, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        watcher.flush()
        (told,) = (event.message for event in watcher.store.events() if event.name.startswith("probe"))
        assert "sparse, complex, or sharded gradients aren't supported" in told


@pytest.mark.slow
def test_sharded_gradients_have_no_numbers_and_an_event_says_why() -> None:
    for (_, watched), seen in _results(sharded=True).items():
        assert seen["norms"] == {}
        assert [each for each in seen["told"] if "sharded gradients aren't supported" in each] == seen["told"]
        assert len(seen["told"]) == watched

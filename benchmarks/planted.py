"""Small real trainings with planted causes, for `benchmarks.tasks`. Each prints what it planted as one line of JSON.

python -m benchmarks.planted CASE URL      # CASE: nan, sigmoids, rate, twins, crash, ranks
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import hookcore

WIDTH: Final = 16
BATCH: Final = 64
NAN_STEP, NAN_SAMPLE = 100, 17
DEPTH: Final = 60
PART_STEP, PART_LAYER = 40, 4  # from when the second of two twins differs, and in which layer
CRASH_STEP: Final = 30
RANKS, BAD_RANK, BAD_STEP = 4, 2, 60


class Standardise(nn.Module):
    """Divides each sample by its standard deviation, without the small number that would protect from 0 / 0."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return samples of mean 0 and standard deviation 1."""
        centered = inputs - inputs.mean(1, keepdim=True)
        return centered / centered.square().mean(1, keepdim=True).sqrt()


class Net(nn.Module):
    """Standardizes its inputs, and then applies some layers."""

    def __init__(self) -> None:
        super().__init__()
        self.standardise = Standardise()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(6)))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores of the classes."""
        found: Tensor = self.head(self.blocks(self.standardise(inputs)))
        return found


def data(step: int) -> tuple[Tensor, Tensor]:
    """Return the batch of a step: the class says which quarter of a sample is largest."""
    inputs = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))
    return inputs, inputs.reshape(BATCH, 4, -1).sum(2).argmax(1)


def train(
    model: nn.Module,
    url: str,
    name: str,
    steps: int,
    *,
    rate: float = 0.1,
    before: Callable[[int, Tensor], None] = lambda _step, _inputs: None,
    **watched: Any,
) -> None:
    """Train a watched model. `before` is called at each step, and may change things."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    config = {"lr": rate}
    with hookcore.watch(model, server=url, name=name, config=config, budget=None, **watched) as watcher:
        for step in range(steps):
            inputs, targets = data(step)
            before(step, inputs)
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            watcher.log(loss=loss.item())
            optimizer.step()


def nan(url: str) -> dict[str, Any]:
    """Give one sample of one batch no spread, so that it is divided by 0."""

    def flatten(step: int, inputs: Tensor) -> None:
        if step == NAN_STEP:
            inputs[NAN_SAMPLE] = 0.5

    torch.manual_seed(0)
    train(Net(), url, "nan", 160, before=flatten)
    return {"module": "standardise", "step": NAN_STEP, "sample": NAN_SAMPLE}


def sigmoids(url: str) -> dict[str, Any]:
    """Train so many layers of sigmoids that no gradient reaches the first ones."""
    torch.manual_seed(0)
    layers = [each for _ in range(DEPTH) for each in (nn.Linear(WIDTH, WIDTH), nn.Sigmoid())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 4))
    train(model, url, "sigmoids", 150)
    norms = [
        layer.weight.grad.norm().item()
        for layer in model
        if isinstance(layer, nn.Linear) and layer.weight.grad is not None
    ]
    return {"first": norms[0], "last": norms[-1], "zero": [2 * place for place, norm in enumerate(norms) if norm == 0]}


def rate(url: str) -> dict[str, Any]:
    """Train twice, once with a learning rate that is a hundred times too high."""
    for name, chosen in (("calm", 0.1), ("wild", 10.0)):
        torch.manual_seed(0)
        train(Net(), url, name, 250, rate=chosen, kinds={"output", "output_grad", "param", "param_grad", "update"})
    return {"high": "wild"}


def twins(url: str) -> dict[str, Any]:
    """Train twice in the same way, and change one weight of one layer of the second run."""
    for name in ("twin-a", "twin-b"):
        torch.manual_seed(0)
        model = Net()

        def change(step: int, _inputs: Tensor, name: str = name, model: Net = model) -> None:
            if name == "twin-b" and step == PART_STEP:
                with torch.no_grad():
                    model.get_parameter(f"blocks.{PART_LAYER}.0.weight")[0, 0] += 1.0

        train(model, url, name, 80, before=change)
    return {"step": PART_STEP, "module": f"blocks.{PART_LAYER}.0"}


def crash(url: str) -> dict[str, Any]:
    """Train until a batch has one column too few."""
    torch.manual_seed(0)

    def cut(step: int, inputs: Tensor) -> None:
        if step == CRASH_STEP:
            inputs.resize_(BATCH, WIDTH - 1)

    try:
        train(Net(), url, "crash", 60, before=cut)
    except RuntimeError as error:
        return {"step": CRASH_STEP, "error": type(error).__name__, "text": str(error)}
    raise AssertionError("the training didn't fail")


def ranks(url: str) -> dict[str, Any]:
    """Train on several ranks, one of which gets inputs ten times too large from some step on."""
    with TemporaryDirectory() as folder:
        spawn(_train_rank, (url, f"file://{folder}/meeting"), nprocs=RANKS)  # type: ignore[no-untyped-call]
    return {"rank": BAD_RANK, "step": BAD_STEP}


def _train_rank(rank: int, url: str, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))

    def scale(step: int, inputs: Tensor) -> None:
        inputs.add_(0.1 * rank)
        if rank == BAD_RANK and step >= BAD_STEP:
            inputs.mul_(10)

    train(DistributedDataParallel(model), url, "ranks", 120, rate=0.01, before=scale)
    dist.destroy_process_group()


CASES: Final = {each.__name__: each for each in (nan, sigmoids, rate, twins, crash, ranks)}


if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](sys.argv[2])))

"""Small real trainings with planted causes, for `benchmarks.tasks`. Each prints what it planted as one line of JSON.

python -m benchmarks.planted CASE URL      # CASE: nan, sigmoids, rate, twins, crash, ranks, experts, late
"""

from __future__ import annotations

import json
import sys
import time
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
EXPERTS, UNUSED = 8, 5
LATE_RANK, LATE_S = 1, 0.03
itos = [*"abcdefghijklmnopqrstuvwxyz", "."]  # the table of ids that a script of this kind has


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
    model = _begin_rank(rank, meeting, RANKS)

    def scale(step: int, inputs: Tensor) -> None:
        inputs.add_(0.1 * rank)
        if rank == BAD_RANK and step >= BAD_STEP:
            inputs.mul_(10)

    train(model, url, "ranks", 120, rate=0.01, before=scale)
    dist.destroy_process_group()


def late(url: str) -> dict[str, Any]:
    """Train on two ranks, one of which always needs longer for its batch."""
    with TemporaryDirectory() as folder:
        spawn(_train_late_rank, (url, f"file://{folder}/meeting"), nprocs=2)  # type: ignore[no-untyped-call]
    return {"rank": LATE_RANK}


def _train_late_rank(rank: int, url: str, meeting: str) -> None:
    model = _begin_rank(rank, meeting, 2)
    train(model, url, "late", 80, before=lambda _step, _inputs: time.sleep(LATE_S * (rank == LATE_RANK)))
    dist.destroy_process_group()


def _begin_rank(rank: int, meeting: str, many: int) -> nn.Module:
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=many)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4)))


class Mixture(nn.Module):
    """Sends each token to the expert that its router prefers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(EXPERTS))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the experts make of their tokens, weighted by the router."""
        tokens = inputs.flatten(0, -2)
        weights, chosen = self.gate(tokens).softmax(-1).max(-1)
        found = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            if (mine := chosen == number).any():
                found[mine] = expert(tokens[mine]) * weights[mine, None]
        return inputs + found.reshape(inputs.shape)


class Language(nn.Module):
    """Reads letters: attention, and a mixture of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(itos), WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mixture = Mixture()
        self.head = nn.Linear(WIDTH, len(itos))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of each next letter."""
        inputs = self.embed(ids)
        mixed, _ = self.attention(inputs, inputs, inputs, average_attn_weights=False)
        found: Tensor = self.head(self.mixture(inputs + mixed))
        return found


def experts(url: str) -> dict[str, Any]:
    """Train a mixture of experts, one of which is never chosen."""
    torch.manual_seed(0)
    model, generator = Language(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        model.mixture.gate.bias[UNUSED] = -100.0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    with hookcore.watch(model, server=url, name="experts", config={"lr": 0.003}, budget=None) as watcher:
        for _ in range(220):
            starts = torch.randint(len(itos), (BATCH, 1), generator=generator)
            ids = (starts + torch.arange(9)) % len(itos)
            loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            watcher.log(loss=loss.item())
            optimizer.step()
    return {"expert": UNUSED, "module": "mixture.gate", "tokens": "".join(itos)}


CASES: Final = {each.__name__: each for each in (nan, sigmoids, rate, twins, crash, ranks, experts, late)}


if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](sys.argv[2])))

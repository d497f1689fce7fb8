"""Ways to train: each returns a model and a function that takes one step and returns what to log."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from .case import Training
from .models import Variational, mlp

BATCH: Final = 32
Spoil = Callable[[int, Tensor], Tensor]  # changes a batch, or a loss, in some steps
Plan = Callable[[torch.optim.Optimizer], Any]  # makes a schedule of the learning rate


def blobs(classes: int = 4, width: int = 16, wrong: float = 0.0) -> Iterator[tuple[Tensor, Tensor]]:
    """Return batches of points around a few centers; a share of the labels is wrong."""
    centers = 2 * torch.randn(classes, width)
    while True:
        labels = torch.randint(classes, (BATCH,))
        points = centers[labels] + torch.randn(BATCH, width)
        yield (
            points,
            torch.where(torch.rand(BATCH) < wrong, torch.randint(classes, (BATCH,)), labels) if wrong else labels,
        )


def same(_: int, value: Tensor) -> Tensor:
    """Change nothing."""
    return value


def classifier(
    model: nn.Module,
    rate: float = 0.05,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    spoil: Spoil = same,
    reduce: Spoil = same,
    shape: tuple[int, ...] = (16,),
    log: bool = True,
    parts: int = 1,
    clip: float | Callable[[nn.Module], Any] | None = None,
    plan: Plan | None = None,
    trained: Callable[[nn.Module], Iterable[Any]] = nn.Module.parameters,
    also: Callable[[Any], torch.optim.Optimizer] | None = None,
    before: Callable[[int], None] = lambda _: None,
    autocast: bool | torch.dtype = False,
    scaler: torch.amp.GradScaler | None = None,
    wrong: float = 0.0,
    data: Iterator[tuple[Tensor, Tensor]] | None = None,
    **options: Any,
) -> Training:
    """Return a model that learns to classify points, in `parts` micro-batches for each step."""
    data = blobs(wrong=wrong) if data is None else data
    steps = optimizer(trained(model), lr=rate, **options)
    schedule = None if plan is None else plan(steps)
    second = None if also is None else also(model)
    dtype = next(model.parameters()).dtype

    def step(number: int) -> dict[str, Any]:
        before(number)
        for part in range(parts):
            points, labels = next(data)
            points = spoil(number, points) if part == 0 else points
            with torch.autocast(
                "cpu", torch.bfloat16 if autocast is True else autocast or None, enabled=bool(autocast)
            ):
                scores = model(points.reshape(BATCH, *shape).to(dtype)).float()
                loss = reduce(number, nn.functional.cross_entropy(scores, labels)) / parts
            (loss if scaler is None else scaler.scale(loss)).backward()
        if callable(clip):
            clip(model)
        elif clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler is None:
            steps.step()
        else:
            scaler.step(steps)
            scaler.update()
        if second is not None:
            second.step()
        steps.zero_grad()
        if schedule is not None:
            schedule.step()
        return {"loss": loss.detach() * parts} if log else {}

    return model, step


def regression(
    model: nn.Module,
    loss_of: Callable[[Any, Tensor], Tensor],
    rate: float = 3e-3,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    data: Callable[[], tuple[Tensor, Tensor]] | None = None,
) -> Training:
    """Return a model trained with a loss over its output and a target; without data, the target is the input."""
    points, steps = blobs(), optimizer(model.parameters(), lr=rate)

    def step(_: int) -> dict[str, Any]:
        if data is None:
            values = target = next(points)[0]
        else:
            values, target = data()
        loss = loss_of(model(values), target)
        steps.zero_grad()
        loss.backward()
        steps.step()
        return {"loss": loss.detach()}

    return model, step


def variational() -> Training:
    """Return a variational autoencoder."""

    def loss_of(answer: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
        seen, mean, log = answer
        divergence = -0.5 * (1 + log - mean**2 - log.exp()).sum(1).mean()
        return nn.functional.mse_loss(seen, target) + 0.01 * divergence

    return regression(Variational(), loss_of)


def linear_regression(factor: float = 1.0) -> Training:
    """Return a linear problem that is solved to the last digit: everything shrinks, which is correct."""
    true = torch.randn(8, 1)

    def data() -> tuple[Tensor, Tensor]:
        points = factor * torch.randn(BATCH, 8)
        return points, points @ true

    return regression(nn.Linear(8, 1), nn.functional.mse_loss, 0.1, torch.optim.SGD, data)


def yes_or_no() -> Training:
    """Return a binary classifier whose last layer is a sigmoid, which saturates as it becomes sure."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
    points = blobs(2)

    def data() -> tuple[Tensor, Tensor]:
        values, labels = next(points)
        return values, labels[:, None].float()

    return regression(model, nn.functional.binary_cross_entropy, 0.01, data=data)


def policy_gradient() -> Training:
    """Return a policy that learns from noisy rewards."""
    points = blobs()

    def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
        chosen = torch.distributions.Categorical(logits=scores)
        actions = chosen.sample()
        rewards = (actions == labels).float() + torch.randn(len(labels))
        return -(chosen.log_prob(actions) * (rewards - rewards.mean())).mean()

    return regression(mlp(3, act=nn.Tanh), loss_of, data=lambda: next(points))


def nothing_to_learn() -> Training:
    """Return a model whose labels are random."""

    def data() -> tuple[Tensor, Tensor]:
        return torch.randn(BATCH, 16), torch.randint(4, (BATCH,))

    return regression(mlp(), nn.functional.cross_entropy, 1e-3, data=data)


def contrastive() -> Training:
    """Return an encoder that learns to recognize noisy copies."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))

    def loss_of(codes: Tensor, target: Tensor) -> Tensor:
        others = model(target + 0.3 * torch.randn_like(target))
        alike = nn.functional.normalize(codes) @ nn.functional.normalize(others).T
        return nn.functional.cross_entropy(alike / 0.1, torch.arange(len(codes)))

    return regression(model, loss_of)


def gan() -> Training:
    """Return a generator and a discriminator that take turns."""
    model = nn.ModuleDict(
        {
            "g": nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16)),
            "d": nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)),
        }
    )
    data = blobs()
    steps = {name: torch.optim.Adam(model[name].parameters(), 2e-3, betas=(0.5, 0.9)) for name in model}

    def step(number: int) -> dict[str, Any]:
        fake, ones = model["g"](torch.randn(BATCH, 8)), torch.ones(BATCH, 1)
        if number % 2:
            name, loss = "g", nn.functional.binary_cross_entropy_with_logits(model["d"](fake), ones)
        else:
            name, real = "d", next(data)[0]
            loss = nn.functional.binary_cross_entropy_with_logits(model["d"](real), ones)
            loss = loss + nn.functional.binary_cross_entropy_with_logits(model["d"](fake.detach()), 0 * ones)
        steps[name].zero_grad()
        loss.backward()
        steps[name].step()
        return {f"loss_{name}": loss.detach()}

    return model, step


def validated(samples: int = 2000) -> Training:
    """Return a training on a few samples, with a validation after every tenth step."""
    model, data = mlp(3, 64), blobs()
    steps = torch.optim.Adam(model.parameters(), 3e-3)
    batches = [next(data) for _ in range(max(1, samples // BATCH))]
    if samples < 100:
        batches = [(torch.randn(BATCH, 16), torch.randint(4, (BATCH,))) for _ in batches]  # only memory helps
    unseen = next(data) if samples >= 100 else (torch.randn(BATCH, 16), torch.randint(4, (BATCH,)))

    def step(number: int) -> dict[str, Any]:
        points, labels = batches[number % len(batches)]
        loss = nn.functional.cross_entropy(model(points), labels)
        steps.zero_grad()
        loss.backward()
        steps.step()
        told = {"train/loss": loss.detach()}
        if number % 10 == 9:
            model.eval()
            with torch.no_grad():
                told["val/loss"] = nn.functional.cross_entropy(model(unseen[0]), unseen[1])
            model.train()
        return told

    return model, step


def teacher() -> Training:
    """Return a student that follows a slow copy of itself."""
    model = nn.ModuleDict({"student": mlp(), "teacher": mlp().requires_grad_(False)})
    data, steps = blobs(), torch.optim.SGD(model["student"].parameters(), 0.05)

    def step(_: int) -> dict[str, Any]:
        points, labels = next(data)
        with torch.no_grad():
            goal = model["teacher"](points)
        scores = model["student"](points)
        loss = nn.functional.cross_entropy(scores, labels) + 0.1 * nn.functional.mse_loss(scores, goal)
        steps.zero_grad()
        loss.backward()
        steps.step()
        with torch.no_grad():
            for slow, fast in zip(model["teacher"].parameters(), model["student"].parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        return {"loss": loss.detach()}

    return model, step


def evaluated(model: nn.Module, prepare: Spoil = same, train: Spoil = same, every: int = 20) -> Training:
    """Return a classifier with an evaluation before every so manyth step, from the first step on.

    `train` prepares the batches of the training, and `prepare` those of the evaluation.
    """
    data, steps = blobs(), torch.optim.SGD(model.parameters(), 0.05)

    def step(number: int) -> dict[str, Any]:
        told = {}
        if number % every == 0:
            model.eval()
            with torch.no_grad():
                points, labels = next(data)
                told["val/loss"] = nn.functional.cross_entropy(model(prepare(number, points)), labels)
            model.train()
        points, labels = next(data)
        loss = nn.functional.cross_entropy(model(train(number, points)), labels)
        steps.zero_grad()
        loss.backward()
        steps.step()
        return {"loss": loss.detach(), **told}

    return model, step


class Slow(torch.utils.data.IterableDataset[tuple[Tensor, Tensor]]):
    """Batches that take a while to load."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s, self.batches = wait_s, blobs()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in itertools.islice(self.batches, 100):
            time.sleep(self.wait_s)
            yield batch


def loaded(wait_s: float) -> Training:
    """Return a classifier with a DataLoader whose batches take a while."""
    loader = torch.utils.data.DataLoader(Slow(wait_s), batch_size=None)
    return classifier(mlp(4), data=itertools.chain.from_iterable(itertools.repeat(loader)))


def interrupted(wait_s: float, every: int) -> Training:
    """Return a classifier that is evaluated every few steps, which takes a while."""
    model, step = classifier(mlp(4))

    def evaluate_or_step(number: int) -> dict[str, Any]:
        if number % every == every - 1:
            model.eval()
            time.sleep(wait_s)
            model.train()
        return step(number)

    return model, evaluate_or_step

"""Small trainings, healthy and failing, and hookcore's findings in them.

`python -m benchmarks.diagnosis` trains all of them and prints a table. It exits with 1 if a healthy one has findings or
the problem of a failing one is not found. A finding counts if it is a warning or an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

import hookcore
from hookcore.findings import Diagnosis, examine
from hookcore.store import Store

Step = Callable[[int], dict[str, Any]]  # trains one step and returns what to log
BATCH: Final = 32


@dataclass(frozen=True, slots=True)
class Case:
    """A training: what it watches and how it takes a step. One of the rules in `expected` must find something."""

    make: Callable[[], tuple[nn.Module, Step]]
    expected: tuple[str, ...] = ()
    module: str | None = None  # the first finding of these rules must name it
    steps: int = 200


def diagnose(case: Case, **settings: Any) -> tuple[Diagnosis, Store]:
    """Train a case and return the findings at its end, and what was captured."""
    torch.manual_seed(0)
    model, step = case.make()
    watcher = hookcore.watch(model, server=None, **{"budget": None, **settings})
    for number in range(case.steps):
        watcher.log(**step(number))
    watcher.flush()
    diagnosis = examine(watcher.store)
    watcher.close()
    return diagnosis, watcher.store


def blobs(classes: int = 4, width: int = 16) -> Iterator[tuple[Tensor, Tensor]]:
    """Return batches of points around a few centers."""
    centers = 2 * torch.randn(classes, width)
    while True:
        labels = torch.randint(classes, (BATCH,))
        yield centers[labels] + torch.randn(BATCH, width), labels


def classifier(
    model: nn.Module,
    rate: float = 0.05,
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD,
    spoil: Callable[[int, Tensor], Tensor] = lambda _, batch: batch,
    reduce: Callable[[int, Tensor], Tensor] = lambda _, loss: loss,
    shape: tuple[int, ...] = (16,),
    log: bool = True,
    **options: Any,
) -> tuple[nn.Module, Step]:
    """Return a model that learns to classify the points."""
    data, steps = blobs(), optimizer(model.parameters(), lr=rate, **options)  # type: ignore[call-arg]

    def step(number: int) -> dict[str, Any]:
        points, labels = next(data)
        loss = reduce(number, nn.functional.cross_entropy(model(spoil(number, points).reshape(BATCH, *shape)), labels))
        steps.zero_grad()
        loss.backward()
        steps.step()
        return {"loss": loss.detach()} if log else {}

    return model, step


def mlp(depth: int = 3, width: int = 32, act: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    """Return linear layers with activations."""
    layers: list[nn.Module] = [nn.Linear(16, width), act()]
    for _ in range(depth - 2):
        layers += [nn.Linear(width, width), *([nn.LayerNorm(width)] if norm else []), act()]
    return nn.Sequential(*layers, nn.Linear(width, 4))


class Residual(nn.Module):
    """A layer with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.narrow(nn.functional.gelu(self.wide(self.norm(values))))


class Recurrent(nn.Module):
    """A GRU and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(4, 24, batch_first=True), nn.Linear(24, 4)

    def forward(self, values: Tensor) -> Tensor:
        return self.head(self.gru(values)[0][:, -1])


class Divide(nn.Module):
    """Divides by the standard deviation of each sample, which may be zero."""

    def forward(self, values: Tensor) -> Tensor:
        return (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True)


def autoencoder() -> tuple[nn.Module, Step]:
    """Return an autoencoder: a narrow middle, squared errors, Adam."""
    model = nn.Sequential(
        nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4), nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 16)
    )
    data, steps = blobs(), torch.optim.Adam(model.parameters(), 3e-3)

    def step(_: int) -> dict[str, Any]:
        points, _labels = next(data)
        loss = nn.functional.mse_loss(model(points), points)
        steps.zero_grad()
        loss.backward()
        steps.step()
        return {"loss": loss.detach()}

    return model, step


def gan() -> tuple[nn.Module, Step]:
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


def frozen() -> tuple[nn.Module, Step]:
    """Return a model in which only the head learns."""
    model = mlp(4)
    for layer in model[:-1]:
        layer.requires_grad_(False)
    return classifier(model, 0.05)


def regression_to_zero() -> tuple[nn.Module, Step]:
    """Return a linear problem that is solved to the last digit: everything shrinks, which is correct."""
    model, true = nn.Linear(8, 1), torch.randn(8, 1)
    steps = torch.optim.SGD(model.parameters(), 0.1)

    def step(_: int) -> dict[str, Any]:
        points = torch.randn(BATCH, 8)
        loss = nn.functional.mse_loss(model(points), points @ true)
        steps.zero_grad()
        loss.backward()
        steps.step()
        return {"loss": loss.detach()}

    return model, step


def scaled(model: nn.Sequential, factor: float) -> nn.Sequential:
    """Return the model with every weight multiplied."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= factor
    return model


def silenced() -> nn.Sequential:
    """Return a model with a ReLU that no input activates, from the first step on."""
    model = mlp(4)
    with torch.no_grad():
        model[2].bias.fill_(-50)  # type: ignore[union-attr,operator]
    return model


def deep(act: type[nn.Module], depth: int) -> nn.Sequential:
    """Return many narrow layers without norms or skip connections."""
    return mlp(depth, 32, act)


def warm_up(model: nn.Module) -> tuple[nn.Module, Step]:
    """Return a learning rate that rises from zero and falls along a cosine."""
    data, steps = blobs(), torch.optim.AdamW(model.parameters(), lr=5e-3)
    plan = torch.optim.lr_scheduler.OneCycleLR(steps, 5e-3, total_steps=1000)

    def step(_: int) -> dict[str, Any]:
        points, labels = next(data)
        loss = nn.functional.cross_entropy(model(points), labels)
        steps.zero_grad()
        loss.backward()
        steps.step()
        plan.step()
        return {"loss": loss.detach()}

    return model, step


def convolutions() -> nn.Sequential:
    """Return a small image network with batch norms."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 4),
    )


def transformer() -> nn.Sequential:
    """Return two encoder layers over two tokens."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(16, 4))


def nan_at(first: int, last: int) -> Callable[[int, Tensor], Tensor]:
    """Make one value of the batch NaN in these steps."""

    def spoil(number: int, batch: Tensor) -> Tensor:
        if first <= number <= last:
            batch = batch.clone()
            batch[0, 0] = float("nan")
        return batch

    return spoil


def constant_sample(number: int, batch: Tensor) -> Tensor:
    """Make one sample constant at step 100."""
    if number == 100:
        batch = batch.clone()
        batch[0] = 1.0
    return batch


def wrong_sign(number: int, loss: Tensor) -> Tensor:
    """Make the loss rise from step 60 on."""
    return -loss if number >= 60 else loss


HEALTHY: Final = {
    "mlp, sgd": Case(lambda: classifier(mlp())),
    "mlp, small rate": Case(lambda: classifier(mlp(), 0.03), steps=250),
    "mlp, adam, no loss logged": Case(lambda: classifier(mlp(), 1e-3, torch.optim.Adam, log=False)),
    "mlp, large rate that works": Case(lambda: classifier(mlp(), 0.3)),
    "deep mlp with norms": Case(lambda: classifier(mlp(12, norm=True), 0.02)),
    "residual, 8 blocks": Case(
        lambda: classifier(nn.Sequential(nn.Linear(16, 32), *(Residual(32) for _ in range(8)), nn.Linear(32, 4)), 0.02)
    ),
    "cnn with batch norms": Case(lambda: classifier(convolutions(), 0.05, shape=(1, 4, 4))),
    "transformer with dropout": Case(lambda: classifier(transformer(), 2e-3, torch.optim.AdamW, shape=(2, 8))),
    "gru": Case(lambda: classifier(Recurrent(), 5e-3, torch.optim.Adam, shape=(4, 4))),
    "autoencoder": Case(autoencoder, steps=300),
    "gan": Case(gan, steps=300),
    "frozen body": Case(frozen),
    "solved regression": Case(regression_to_zero, steps=300),
    "warm-up and cosine": Case(lambda: warm_up(mlp(4)), steps=300),
    "tanh, 6 layers": Case(lambda: classifier(deep(nn.Tanh, 6), 0.05)),
}

SICK: Final = {
    "sigmoid, 60 layers": Case(lambda: classifier(deep(nn.Sigmoid, 60), 0.05), ("vanishing",), steps=60),
    "sigmoid, 20 layers": Case(lambda: classifier(deep(nn.Sigmoid, 20), 0.05), ("vanishing",), steps=60),
    "tanh, weights too small": Case(lambda: classifier(scaled(deep(nn.Tanh, 16), 0.1), 0.05), ("vanishing",), steps=60),
    "relu, weights too large": Case(
        lambda: classifier(scaled(deep(nn.ReLU, 12), 20.0), 1e-30), ("exploding",), steps=60
    ),
    "rate 3.0, dead network": Case(
        lambda: classifier(mlp(5), 3.0, momentum=0.9), ("dead", "no-gradient", "nonfinite"), steps=250
    ),
    "rate so large that it diverges": Case(
        lambda: classifier(mlp(4, act=nn.LeakyReLU), 30.0), ("nonfinite", "loss", "exploding"), steps=200
    ),
    "NaN in one batch": Case(lambda: classifier(mlp(), spoil=nan_at(100, 100)), ("nonfinite",), "0"),
    "division by no deviation": Case(
        lambda: classifier(nn.Sequential(Divide(), *mlp()), spoil=constant_sample), ("nonfinite",), "0"
    ),
    "log of nothing": Case(
        lambda: classifier(mlp(), reduce=lambda n, loss: loss + (0.0 * loss).log() * 0 if n == 90 else loss),
        ("nonfinite",),
    ),
    "infinity in the input": Case(
        lambda: classifier(mlp(), spoil=lambda n, x: x + (float("inf") if n == 50 else 0.0)), ("nonfinite",), "0"
    ),
    "wrong sign of the loss": Case(
        lambda: classifier(mlp(4), 0.3, reduce=wrong_sign), ("exploding", "nonfinite"), steps=200
    ),
    "dead relu from step 0": Case(lambda: classifier(silenced()), ("dead",), "3"),
    "decay far too strong": Case(lambda: classifier(mlp(4), 0.5, weight_decay=0.4), ("vanishing",), steps=300),
    "weights of zeros": Case(lambda: classifier(scaled(mlp(4), 0.0)), ("no-gradient", "dead"), steps=100),
    "detached in the middle": Case(
        lambda: classifier(mlp(4), reduce=lambda _, loss: loss * 0.0), ("no-gradient",), steps=100
    ),
    "scale of the inputs jumps": Case(
        lambda: classifier(mlp(), spoil=lambda n, x: x * (1e6 if n >= 120 else 1.0), rate=0.01),
        ("exploding", "nonfinite", "loss"),
    ),
}


def problems_of(diagnosis: Diagnosis) -> list[tuple[str, str, int, str]]:
    """Return the findings except notes: rule, module, step, message."""
    found = (each for each in diagnosis.findings if each.severity != "info")
    return [(each.rule, each.module, each.since_step, each.message) for each in found]


def is_right(case: Case, diagnosis: Diagnosis) -> bool:
    """Return whether a healthy case has no findings, or the problem of a failing one was found."""
    found = problems_of(diagnosis)
    if not case.expected:
        return not found
    named = [module for rule, module, *_ in found if rule in case.expected]
    return bool(named) and case.module in (None, named[0])


def main() -> int:
    """Run the named cases, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of cases")
    names = parser.parse_args().names
    wrong = 0
    for title, cases in (("healthy", HEALTHY), ("sick", SICK)):
        for name, case in cases.items():
            if names and not any(each in name for each in names):
                continue
            diagnosis, _ = diagnose(case)
            right = is_right(case, diagnosis)
            wrong += not right
            first = problems_of(diagnosis)[:3]
            print(f"{'ok   ' if right else 'WRONG'} {title:8} {name:32} {diagnosis.scope.sentence}")
            for rule, module, step, message in first:
                print(f"        {rule} {module or '(root)'} {step}: {message}")
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

# mypy: disable-error-code="no-untyped-call"
"""The definition of a zoo case, and the parts that most cases share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

Trait = Literal[
    "no-backward",  # builds no graph of its own
    "no-twin",  # a clone of each output would change what is computed
]


@dataclass(slots=True)
class Trial:
    """A model and one step of its training. `step` returns everything that it computed."""

    model: nn.Module
    step: Callable[[int], Any]
    others: tuple[nn.Module, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of model or training, named after its oddity."""

    name: str
    build: Callable[[], Trial]
    traits: frozenset[Trait]


CASES: Final[dict[str, Case]] = {}

Build = Callable[[], Trial]
Optimizer = Callable[[Any], torch.optim.Optimizer]


def zoo(*traits: Trait) -> Callable[[Build], Build]:
    """Turn a function that builds a trial into a case of the zoo with the function's name."""

    def register(build: Build) -> Build:
        name = build.__name__
        if name in CASES:
            raise ValueError(f"two cases are called {name}")
        CASES[name] = Case(name, build, frozenset(traits))
        return build

    return register


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return the optimizer of most cases."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer with state per parameter."""
    return torch.optim.AdamW(parameters, lr=0.01)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random input from the seeded generator."""
    return torch.randn(*shape, dtype=dtype)


def float_tensors(value: Any) -> Iterator[Tensor]:
    """Return every tensor of a nested value that can be part of a loss."""
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from float_tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from float_tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from float_tensors(getattr(value, field.name))


def mean_square(value: Any) -> Tensor:
    """Return a loss for any nested output."""
    parts = [part.abs().float().pow(2).mean() for part in float_tensors(value) if part.numel()]
    return torch.stack(parts).sum()


def training(
    model: nn.Module,
    *inputs: Any,
    loss: Callable[[Any], Tensor] = mean_square,
    optimizer: Optimizer = sgd,
    call: Callable[..., Any] | None = None,
) -> Trial:
    """Run the usual step: forward, loss, backward, optimizer. `call` replaces `model` if more is needed."""
    steps = optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
    forward = model if call is None else call

    def step(number: int) -> Any:
        steps.zero_grad()
        value = loss(forward(*inputs))
        value.backward()
        steps.step()
        return value.detach()

    return Trial(model, step)


def mlp(width: int = 6) -> nn.Sequential:
    """Return a plain model, for cases whose oddity is in the training."""
    return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))

"""Trainings in which one operator makes a NaN or an infinity, forward or backward, in one step or from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from .case import Case, Training
from .models import masked, mlp
from .trainings import classifier

Operator = Callable[[Tensor], Tensor]
AT: Final = 100
EVER: Final = 10**9


class Breaks(nn.Module):
    """Applies an operator to the first sample in some of its calls."""

    def __init__(self, operator: Operator, first: int, last: int) -> None:
        super().__init__()
        self.operator, self.first, self.last, self.calls = operator, first, last, -1

    def forward(self, values: Tensor) -> Tensor:
        self.calls += 1
        if not self.first <= self.calls <= self.last:
            return values
        return torch.cat([self.operator(values[:1]), values[1:]])


class _BadGradient(torch.autograd.Function):
    """A function of the user's own, with a mistake in its backward."""

    @staticmethod
    def forward(_ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(_ctx: Any, *given: Tensor) -> Tensor:
        return given[0] / 0.0


def _too_large(values: Tensor) -> Tensor:
    return (0 * values + 1e38) * 10


# The operator's own output is non-finite.
FORWARD: Final[dict[str, Operator]] = {
    "log of zero": lambda x: (0 * x).log(),
    "log of a negative": lambda x: (0 * x - 1).log(),
    "zero by zero": lambda x: (0 * x) / (0 * x),
    "sqrt of a negative": lambda x: (0 * x - 1).sqrt(),
    "exp overflows": lambda x: (0 * x + 1000).exp(),
    "infinity minus infinity": lambda x: _too_large(x) - _too_large(x),
    "softmax of a masked row": lambda x: x.masked_fill(torch.ones_like(x, dtype=torch.bool), -torch.inf).softmax(1),
    "deviation of one value": lambda x: x + x[:, :1].std(),
    "arccos beyond one": lambda x: (0 * x + 2).acos(),
    "root of a negative by pow": lambda x: (0 * x - 2) ** 0.5,
    "float16 overflows": lambda x: (0 * x + 1e5).half().float(),
    "normalized to nothing": lambda x: (0 * x) / (0 * x).norm(),
    "mean of nothing": lambda x: x + x[:, :0].mean(),
}

# The output is finite, and the gradient isn't: the module before gets it.
BACKWARD: Final[dict[str, Operator]] = {
    "sqrt at zero": lambda x: x + (0 * x).sqrt(),
    "own norm at zero": lambda x: x + (0 * x).square().sum().sqrt(),
    "log behind where": lambda x: torch.where(x < -1e9, (0 * x).log(), x),
    "pow at zero": lambda x: x + (0 * x) ** 0.5,
    "arccos at one": lambda x: x + (0 * x + 1).acos(),
    "division behind where": lambda x: torch.where(x < -1e9, x / (0 * x), x),
    "own backward divides by zero": _BadGradient.apply,
}


def _breaks(operator: Operator, last: int, parts: int = 1, call: int = AT) -> Training:
    layers = nn.Linear(16, 32), nn.ReLU(), Breaks(operator, call, last), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    return classifier(nn.Sequential(*layers), parts=parts)


def _case(operator: Operator, last: int, module: str | tuple[str, ...]) -> Case:
    return Case(lambda: _breaks(operator, last), ("nonfinite",), module, at=AT, steps=160)


def nan_at(first: int, last: int) -> Callable[[int, Tensor], Tensor]:
    """Make one value of the batch NaN in these steps."""

    def spoil(number: int, batch: Tensor) -> Tensor:
        if first <= number <= last:
            batch = batch.clone()
            batch[0, 0] = float("nan")
        return batch

    return spoil


def _in_a_weight() -> Training:
    model = mlp(4)

    def before(number: int) -> None:
        if number == AT:
            with torch.no_grad():
                model[2].weight[0, 0] = float("nan")

    return classifier(model, before=before)


def _loss_once(number: int, loss: Tensor) -> Tensor:
    return loss + (0.0 * loss).log() * 0 if number == AT else loss


NONFINITE: Final = {
    **{f"forward once: {name}": _case(operator, AT, "2") for name, operator in FORWARD.items()},
    **{f"forward since: {name}": _case(FORWARD[name], EVER, "2") for name in ("log of zero", "zero by zero")},
    **{f"backward once: {name}": _case(operator, AT, ("2", "1")) for name, operator in BACKWARD.items()},
    **{f"backward since: {name}": _case(BACKWARD[name], EVER, ("2", "1")) for name in ("sqrt at zero", "pow at zero")},
    "in one micro-batch: forward": Case(
        lambda: _breaks(FORWARD["zero by zero"], 4 * AT + 2, 4, 4 * AT + 2), ("nonfinite",), "2", at=AT, steps=140
    ),
    "in one micro-batch: backward": Case(
        lambda: _breaks(BACKWARD["sqrt at zero"], 4 * AT + 1, 4, 4 * AT + 1),
        ("nonfinite",),
        ("2", "1"),
        at=AT,
        steps=140,
    ),
    "NaN in one batch": Case(lambda: classifier(mlp(), spoil=nan_at(AT, AT)), ("nonfinite",), "0", at=AT),
    "infinity in one batch": Case(
        lambda: classifier(mlp(), spoil=lambda n, x: x + (float("inf") if n == AT else 0.0)),
        ("nonfinite",),
        "0",
        at=AT,
    ),
    "NaN in a weight": Case(_in_a_weight, ("nonfinite",), "2", at=AT),
    "behind masks": Case(
        lambda: classifier(masked(Breaks(FORWARD["zero by zero"], AT, AT)), 5e-3, torch.optim.Adam),
        ("nonfinite",),
        "7",
        at=AT,
        steps=160,
    ),
    "NaN in the loss": Case(lambda: classifier(mlp(), reduce=_loss_once), ("nonfinite",), "4", at=AT),
}

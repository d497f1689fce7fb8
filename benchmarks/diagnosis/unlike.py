"""Trainings unlike the others: real layers and losses at an edge, at odd steps, in models of other shapes.

Each fault is in the code of a layer, a loss, an optimizer, or the data, as in a script, and not in a layer made to
break.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from .case import Case, Training

BATCH: Final = 16
Loss = Callable[[Any, int], Tensor]  # of a model, in a step


def _train(
    model: nn.Module,
    loss_of: Loss,
    make: Callable[[Any], torch.optim.Optimizer] = lambda each: torch.optim.AdamW(each, 1e-3),
    before: Callable[[int, Any], None] = lambda *_: None,
    after: Callable[[int], None] = lambda _: None,
    log: bool = False,
) -> Training:
    """Return a training whose script computes its loss by itself, and mostly doesn't log it."""
    optimizer = make(model.parameters())

    def step(number: int) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = loss_of(model, number)
        loss.backward()
        before(number, optimizer)
        optimizer.step()
        after(number)
        return {"train_loss": loss.detach()} if log else {}

    return model, step


class Counts(nn.Module):
    """A module that knows how often it was called."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.calls = at, -1

    def is_now(self) -> bool:
        """Count a call, and return whether it is the one."""
        self.calls += 1
        return self.calls == self.at


class RootNorm(Counts):
    """Divides by the root of the mean square, without an epsilon: a row of zeros becomes NaN."""

    def __init__(self, width: int, at: int) -> None:
        super().__init__(at)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, values: Tensor) -> Tensor:
        if self.is_now():
            values = values * torch.arange(len(values)).gt(0).reshape(-1, *[1] * (values.dim() - 1))
        return self.scale * values / values.square().mean(-1, keepdim=True).sqrt()


class Standardized(Counts):
    """Subtracts the mean and divides by the deviation, whose gradient is NaN where all values are equal."""

    def forward(self, values: Tensor) -> Tensor:
        if self.is_now():
            values = values * 0 + values.mean(-1, keepdim=True)
        return (values - values.mean(-1, keepdim=True)) / (values.var(-1, keepdim=True).sqrt() + 1e-6)


class Attention(Counts):
    """Attention whose mask hides every key of one query in one step."""

    def __init__(self, width: int, at: int) -> None:
        super().__init__(at)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, values: Tensor) -> Tensor:
        scores = self.query(values) @ self.key(values).transpose(1, 2) / values.shape[-1] ** 0.5
        hidden = torch.ones(values.shape[1], values.shape[1]).triu(1).bool()
        if self.is_now():
            hidden = hidden | torch.arange(values.shape[1]).eq(3)[:, None]
        return values + scores.masked_fill(hidden, -torch.inf).softmax(-1) @ self.value(values)


class Lengths(Counts):
    """The length of pairs of values; its gradient is NaN at the origin."""

    def forward(self, values: Tensor) -> Tensor:
        first, second = values.chunk(2, -1)
        if self.is_now():
            first, second = first * 0, second * 0
        return torch.cat([torch.hypot(first, second), first], -1)


class Positive(Counts):
    """The inverse of softplus, which is infinite at zero."""

    def forward(self, values: Tensor) -> Tensor:
        values = values.abs() + 0.1
        if self.is_now():
            values = values * (values > values.min())
        return torch.log(torch.expm1(values))


class Power(Counts):
    """A learned exponent, which must not be given a negative base."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.exponent = nn.Parameter(torch.tensor(2.0))

    def forward(self, values: Tensor) -> Tensor:
        return torch.tanh(values if self.is_now() else values.abs() + 0.1) ** self.exponent


class Mixture(nn.Module):
    """A network with two heads: a mean, and the logarithm of a variance."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Linear(24, 24), nn.SiLU())
        self.mean, self.spread = nn.Linear(24, 2), nn.Linear(24, 2)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        body = self.body(values)
        return self.mean(body), self.spread(body)


class Reader(nn.Module):
    """An embedding, a recurrent layer, and a head."""

    def __init__(self, kind: type[nn.RNNBase], at: int = -1) -> None:
        super().__init__()
        self.words, self.cells, self.head = nn.Embedding(30, 12), kind(12, 20, batch_first=True), nn.Linear(20, 30)
        self.norm = RootNorm(20, at)

    def forward(self, tokens: Tensor) -> Any:
        return self.head(self.norm(self.cells(self.words(tokens))[0] + 0.01))


class Pyramid(nn.Module):
    """Convolutions on two scales, which are added."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU())
        self.down = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.GELU())
        self.rows = Standardized(at)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, images: Tensor) -> Any:
        stem = self.stem(images)
        return self.out(stem + functional.interpolate(self.rows(self.down(stem)), scale_factor=2.0))


def _words(model: Any, _: int) -> Tensor:
    tokens = torch.randint(30, (BATCH, 9))
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def _sequences(width: int = 12) -> Callable[[Any, int], Tensor]:
    def loss_of(model: Any, _: int) -> Tensor:
        values = torch.randn(BATCH, 7, width)
        return functional.smooth_l1_loss(model(values), values.cumsum(1))

    return loss_of


def _rows(width: int = 6, out: int = 2) -> Callable[[Any, int], Tensor]:
    mix = torch.randn(width, out)

    def loss_of(model: Any, _: int) -> Tensor:
        values = torch.randn(BATCH, width)
        return functional.mse_loss(model(values), torch.sin(values @ mix))

    return loss_of


def _images(model: Any, _: int) -> Tensor:
    images = torch.randn(4, 3, 8, 8)
    return functional.l1_loss(model(images), images.flip(-1))


def _stack(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 24), nn.Mish(), *middle, nn.Linear(24, 24), nn.ELU(), nn.Linear(24, 2))


def _spread_to_zero(at: int) -> Loss:
    def loss_of(model: Any, number: int) -> Tensor:
        values = torch.randn(BATCH, 6)
        mean, spread = model(values)
        variance = spread.exp() * (number != at)
        return (variance.log() + (values[:, :2] - mean).square() / variance).mean()

    return loss_of


def _unseen_word(at: int) -> Loss:
    def loss_of(model: Any, number: int) -> Tensor:
        goal = torch.rand(BATCH, 2).softmax(-1)
        found = model(torch.randn(BATCH, 6)).softmax(-1)
        if number == at:
            found = found * torch.tensor([0.0, 1.0])
        return (goal * (goal.log() - found.log())).sum(-1).mean()

    return loss_of


def _too_short(at: int) -> Loss:
    def loss_of(model: Any, number: int) -> Tensor:
        scores = model(torch.randn(BATCH, 10, 6)).log_softmax(-1).transpose(0, 1)
        goal, length = torch.ones(BATCH, 4, dtype=torch.long), torch.full((BATCH,), 10)
        if number == at:
            length[0] = 3
        return functional.ctc_loss(scores, goal, length, torch.full((BATCH,), 4))

    return loss_of


def _bad_target(at: int) -> Loss:
    def loss_of(model: Any, number: int) -> Tensor:
        goal = torch.randn(BATCH, 2)
        goal[0, 0] = torch.nan if number == at else goal[0, 0]
        return functional.huber_loss(model(torch.randn(BATCH, 6)), goal)

    return loss_of


def _gradients_of_nothing(at: int) -> Callable[[int, Any], None]:
    """Clip gradients by a norm that overflowed, as in a script with its own clipping."""

    def before(number: int, optimizer: Any) -> None:
        if number == at:
            for each in optimizer.param_groups[0]["params"]:
                each.grad.mul_(torch.tensor(0.0) / 0.0)

    return before


def _rate_of_nothing(at: int) -> Callable[[int, Any], None]:
    """Divide by the steps that are left, until none is."""

    def before(number: int, optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"] = float("inf") if number == at else 1e-3

    return before


def _normed_to_zero(at: int) -> Training:
    model = _stack()
    parametrizations.weight_norm(model[2])

    def after(number: int) -> None:
        if number == at - 1:
            with torch.no_grad():
                model[2].parametrizations.weight.original1.zero_()

    return _train(model, _rows(), after=after)


def _without_epsilon(at: int) -> Training:
    """Train with an Adam whose epsilon is zero, and a unit whose gradient is zero from the first step on."""
    model = _stack()

    def loss_of(model: Any, number: int) -> Tensor:
        values = torch.randn(BATCH, 6)
        weight = 0.0 if number < at else 1.0
        return weight * functional.mse_loss(model(values), values[:, :2]) + model(values).square().mean()

    def before(number: int, optimizer: Any) -> None:
        if number == at:
            for each in optimizer.param_groups[0]["params"]:
                each.grad.zero_()
                optimizer.state[each]["exp_avg"].zero_()
                optimizer.state[each]["exp_avg_sq"].zero_()

    return _train(model, loss_of, lambda each: torch.optim.Adam(each, 1e-3, eps=0.0), before)


def _carried(at: int) -> Training:
    """Carry a hidden state from step to step, which becomes infinite outside of the model."""
    model, state = nn.ModuleDict({"cell": nn.GRUCell(6, 10), "head": nn.Linear(10, 2)}), torch.zeros(BATCH, 10)

    def loss_of(model: Any, number: int) -> Tensor:
        nonlocal state
        state = model["cell"](torch.randn(BATCH, 6), state.detach() / (0.0 if number == at else 1.0))
        return model["head"](state).square().mean()

    return _train(model, loss_of)


def _accumulated(at: int) -> Training:
    """Add up four micro-batches, of which the second is bad in one step."""
    model, mix = _stack(RootNorm(24, 4 * at + 1)), torch.randn(6, 2)

    def loss_of(model: Any, _: int) -> Tensor:
        for _ in range(3):
            values = torch.randn(BATCH, 6)
            (functional.mse_loss(model(values), values @ mix) / 4).backward()
        values = torch.randn(BATCH, 6)
        return functional.mse_loss(model(values), values @ mix) / 4

    return _train(model, loss_of)


def _taking_turns(at: int) -> Training:
    """Train two networks by turns; the second becomes bad in one of its own steps."""
    model = nn.ModuleDict({"one": _stack(), "two": _stack(Positive(at))})
    optimizers = [torch.optim.AdamW(each.parameters(), 1e-3) for each in model.values()]
    loss_of = _rows()

    def step(number: int) -> dict[str, Any]:
        which = number % 2
        optimizers[which].zero_grad()
        loss_of(list(model.values())[which], number).backward()
        optimizers[which].step()
        return {}

    return model, step


def _deep(at: int) -> Training:
    blocks = [
        nn.Sequential(nn.LayerNorm(12), Attention(12, at if n == 9 else -1), nn.Linear(12, 12)) for n in range(16)
    ]
    return _train(nn.Sequential(*blocks), _sequences())


def _planted(
    make: Callable[[int], Training], at: int, module: str | tuple[str, ...] | None, steps: int = 260, later: int = 0
) -> Case:
    return Case(lambda: make(at), ("nonfinite",), module, steps, at + later)


UNLIKE: Final = {
    "root norm of an empty row": _planted(lambda at: _train(_stack(RootNorm(24, at)), _rows()), 131, "2"),
    "root norm after a recurrent layer": _planted(lambda at: _train(Reader(nn.GRU, at), _words), 97, "norm"),
    "root norm after an LSTM": _planted(lambda at: _train(Reader(nn.LSTM, at), _words), 211, "norm"),
    "equal values in a pyramid": _planted(lambda at: _train(Pyramid(at), _images), 83, ("down", "down.1", "rows"), 120),
    "equal values in a row": _planted(lambda at: _train(_stack(Standardized(at)), _rows()), 173, ("1", "2")),
    "a query without keys": _planted(
        lambda at: _train(nn.Sequential(nn.Linear(12, 12), Attention(12, at), nn.Linear(12, 12)), _sequences()),
        143,
        "1",
    ),
    "a query without keys, 16 blocks": _planted(_deep, 61, "9.1", 100),
    "the length of nothing": _planted(lambda at: _train(_stack(Lengths(at)), _rows()), 119, ("1", "2")),
    "the inverse of softplus at zero": _planted(lambda at: _train(_stack(Positive(at)), _rows()), 201, "2"),
    "a learned exponent, a negative base": _planted(lambda at: _train(_stack(Power(at)), _rows()), 109, "2"),
    "a variance of zero": _planted(lambda at: _train(Mixture(), _spread_to_zero(at)), 163, None),
    "a divergence from zero": _planted(lambda at: _train(_stack(), _unseen_word(at)), 187, None),
    "a target too long for CTC": _planted(lambda at: _train(_stack(), _too_short(at)), 79, None),
    "a target that is NaN": _planted(lambda at: _train(_stack(), _bad_target(at)), 151, None),
    "gradients clipped by NaN": _planted(
        lambda at: _train(_stack(), _rows(), before=_gradients_of_nothing(at)), 127, None
    ),
    "a rate divided by zero": _planted(
        lambda at: _train(_stack(), _rows(), before=_rate_of_nothing(at)), 137, None, later=1
    ),
    "weight norm of zero": _planted(
        _normed_to_zero, 157, ("2", "2.parametrizations.weight.0", "2.parametrizations.weight")
    ),
    "Adam without an epsilon": _planted(_without_epsilon, 113, None, later=1),
    "an infinite state from outside": _planted(_carried, 167, "cell"),
    "the second of four micro-batches": _planted(_accumulated, 53, "2", 90),
    "two networks by turns": _planted(_taking_turns, 60, "two.2", 200, later=61),
    "loss logged, root norm": _planted(lambda at: _train(_stack(RootNorm(24, at)), _rows(), log=True), 229, "2"),
    "SGD with momentum, softplus": _planted(
        lambda at: _train(_stack(Positive(at)), _rows(), lambda each: torch.optim.SGD(each, 1e-2, 0.9)), 91, "2"
    ),
    "RMSprop, lengths": _planted(
        lambda at: _train(_stack(Lengths(at)), _rows(), lambda each: torch.optim.RMSprop(each, 1e-3)), 77, ("1", "2")
    ),
    "late in the run": _planted(lambda at: _train(_stack(RootNorm(24, at)), _rows()), 701, "2", 760),
}


def _weight_decay_to_nothing() -> Training:
    return _train(_stack(nn.LayerNorm(24)), _rows(), lambda each: torch.optim.AdamW(each, 3e-3, weight_decay=0.1))


def _quantized() -> Training:
    class Rounds(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return values + (values.round() - values).detach()

    return _train(_stack(Rounds()), _rows())


def _masked_loss() -> Training:
    def loss_of(model: Any, _: int) -> Tensor:
        values = torch.randn(BATCH, 6)
        keep = torch.rand(BATCH, 2) > 0.3
        return ((model(values) - values[:, :2]).square() * keep).sum() / keep.sum().clamp(min=1)

    return _train(_stack(), loss_of)


HEALTHY_UNLIKE: Final = {
    "causal attention": Case(
        lambda: _train(nn.Sequential(nn.Linear(12, 12), Attention(12, -1), nn.Linear(12, 12)), _sequences())
    ),
    "sixteen attention blocks": Case(lambda: _deep(-1), steps=100),
    "words by an LSTM": Case(lambda: _train(Reader(nn.LSTM), _words)),
    "words by a plain recurrent layer": Case(lambda: _train(Reader(nn.RNN), _words)),
    "a pyramid of images": Case(lambda: _train(Pyramid(-1), _images), steps=120),
    "mean and variance": Case(lambda: _train(Mixture(), _spread_to_zero(-1))),
    "a divergence": Case(lambda: _train(_stack(), _unseen_word(-1))),
    "CTC": Case(lambda: _train(_stack(), _too_short(-1)), steps=120),
    "two healthy networks by turns": Case(lambda: _taking_turns(-1)),
    "four micro-batches": Case(lambda: _accumulated(-1), steps=90),
    "a carried state": Case(lambda: _carried(-1)),
    "rounding, straight through": Case(_quantized),
    "a masked loss": Case(_masked_loss),
    "weight decay with layer norm": Case(_weight_decay_to_nothing),
    "weight norm": Case(lambda: _normed_to_zero(-1)),
}

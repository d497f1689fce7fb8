"""Trainings with one planted fault that leaves every value finite, at least at first."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from . import trainings
from .case import BOTH, DEAD, ENTROPY, EVERYTHING, HEADS, PARTS, RANK, Case, Training
from .models import (
    Detached,
    Experts,
    Fused,
    Gated,
    Mixture,
    Squeezed,
    Stepwise,
    Stream,
    attentive,
    constant,
    drawn,
    in_float8,
    mlp,
    normalized,
    residual,
    scaled,
    silenced,
    update_scales,
)
from .trainings import classifier, evaluated

AT: Final = 120
TINY: Final = 2e-6


def _forgetting_scales(*paths: str, **options: Any) -> Training:
    """Train in float8, but from a step on, the scales of these layers don't follow."""
    calls = itertools.count()
    clip = lambda model: update_scales(model, paths if next(calls) >= AT else ())  # noqa: E731
    return classifier(in_float8(), 1e-4, clip=clip, **options)


def _at(change: Callable[[Any], object], model: nn.Module, **options: Any) -> Training:
    """Return a training in which the model is changed at a step."""

    def before(number: int) -> None:
        if number == AT:
            with torch.no_grad():
                change(model)

    return classifier(model, before=before, **options)


def _grow(model: Any) -> None:
    model[2].weight.mul_(300.0)


def _grow_once(number: int, batch: Tensor) -> Tensor:
    return batch * (1000.0 if number == AT else 1.0)


def _summed_in_one() -> Training:
    """Return a training in which the loss of one of eight micro-batches is a sum instead of a mean, from a step on."""
    calls = itertools.count()
    return classifier(
        mlp(4), 0.02, parts=8, reduce=lambda number, loss: loss * (32 if next(calls) % 8 == 3 and number >= AT else 1)
    )


def _turn_once(number: int, batch: Tensor) -> Tensor:
    return batch * (-30.0 if number == AT else 1.0)


_OFTEN: Final = {"state_every": 10, "kinds": EVERYTHING}  # that optimizers are measured


class Forgetful(torch.optim.Optimizer):
    """Adam as someone might write it, with one mistake: a moment that isn't stored, or in too small a type."""

    def __init__(self, parameters: Any, lr: float, forgets: str = "", dtype: torch.dtype = torch.float32) -> None:
        super().__init__(parameters, {"lr": lr})
        self._forgets, self._dtype = forgets, dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                gradient, state = weight.grad, self.state[weight]
                if not state:
                    state["exp_avg"] = torch.zeros_like(weight)
                    state["exp_avg_sq"] = torch.zeros_like(weight, dtype=self._dtype)
                for name, beta, value in (("exp_avg", 0.9, gradient), ("exp_avg_sq", 0.99, gradient**2)):
                    moment = state[name] * beta + (1 - beta) * value.to(state[name].dtype)
                    if name != self._forgets:
                        state[name] = moment
                    else:
                        gradient = moment
                weight.sub_(group["lr"] * gradient / (state["exp_avg_sq"].float().sqrt() + 1e-3))


def _forgetful(**options: Any) -> Training:
    return classifier(mlp(4), 1e-4, Forgetful, **options)


def _tiny(**options: Any) -> Training:
    """Train in float16 with a loss so small that its gradients are near the smallest number, and a rate as large."""
    return classifier(mlp(4), 0.05 / TINY, autocast=torch.float16, reduce=lambda _, loss: TINY * loss, **options)


def _jumping() -> Training:
    """Multiply the gradient of one layer in one step, as a fault in its own backward function would."""
    model = mlp(4)

    def spoil(_: nn.Module) -> None:
        steps.append(0)
        if len(steps) == AT + 1:
            model[4].weight.grad *= -3000.0  # type: ignore[union-attr, operator]

    steps: list[int] = []
    return classifier(model, 0.02, clip=spoil, wrong=0.2)


def _silence(model: Any) -> None:
    model[2].bias.fill_(-80.0)


def _saturate(model: Any) -> None:
    model[2].bias.fill_(-30.0)


def _rate_jumps(factor: float) -> Training:
    return classifier(
        mlp(4, act=nn.LeakyReLU),
        0.02,
        plan=lambda steps: torch.optim.lr_scheduler.LambdaLR(steps, lambda n: factor if n >= AT else 1.0),
    )


class Fading(nn.Module):
    """Passes its input on, and from some call on almost nothing of the gradient."""

    def __init__(self, since: int, share: float) -> None:
        super().__init__()
        self.since, self.share, self.calls = since, share, -1

    def forward(self, values: Tensor) -> Tensor:
        self.calls += 1
        if self.calls < self.since:
            return values.clone()
        return values * self.share + (values * (1 - self.share)).detach()


def _fading() -> Training:
    layers = nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), Fading(AT, 1e-6), nn.Linear(32, 4)
    return classifier(nn.Sequential(*layers))


def _wrong_sign(number: int, loss: Tensor) -> Tensor:
    return -loss if number >= AT else loss


def _wrong_once(number: int, loss: Tensor) -> Tensor:
    return 3 - loss if number == AT else loss


def _scale_jumps(number: int, batch: Tensor) -> Tensor:
    return batch * (1e6 if number >= AT else 1.0)


def _adam_jumps() -> Training:
    return classifier(
        mlp(4),
        1e-3,
        torch.optim.Adam,
        plan=lambda steps: torch.optim.lr_scheduler.LambdaLR(steps, lambda n: 1e3 if n >= AT else 1.0),
        wrong=0.3,
    )


def _squeezed() -> Training:
    return classifier(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), Squeezed(AT), nn.Linear(32, 4)), 0.02)


def _sharpen(model: Any) -> None:
    model[2].sharp = 1e4


def _grow_queries(model: Any) -> None:
    for each in (model[2].queries, model[2].keys):
        each.weight.mul_(100.0)


def _point_at_first(model: Any) -> None:
    model[2].to_first = torch.tensor([0.0, 30.0])


def _grow_channel(model: Any) -> None:
    model.blocks[1].gains[5] = 1e5


def _silence_head(model: Any) -> None:
    for parameter in model[2].values.parameters():
        parameter[:4] = 0.0


FAULTY: Final = {
    "sigmoid, 60 layers": Case(lambda: classifier(mlp(60, act=nn.Sigmoid)), ("vanishing",), "0", 60),
    "sigmoid, 20 layers": Case(lambda: classifier(mlp(20, act=nn.Sigmoid)), ("vanishing",), "0", 60),
    "tanh, weights too small": Case(lambda: classifier(scaled(mlp(16, act=nn.Tanh), 0.1)), ("vanishing",), steps=60),
    "relu, weights too large": Case(lambda: classifier(scaled(mlp(12), 20.0), 1e-30), ("exploding",), steps=60),
    "weights too large, with a rate": Case(
        lambda: classifier(scaled(mlp(12), 20.0), 1e-3), ("exploding", "nonfinite", "loss"), steps=60
    ),
    "rate 3.0, dead network": Case(
        lambda: classifier(mlp(5), 3.0, momentum=0.9), ("dead", "no-gradient", "nonfinite"), steps=250
    ),
    "rate so large that it diverges": Case(
        lambda: classifier(mlp(4, act=nn.LeakyReLU), 30.0), ("nonfinite", "loss", "exploding")
    ),
    "rate jumps to 1,000 times": Case(lambda: _rate_jumps(1e3), ("nonfinite", "loss", "exploding"), at=AT),
    "wrong sign of the loss": Case(
        lambda: classifier(mlp(4), 0.3, reduce=_wrong_sign), ("exploding", "nonfinite", "loss"), at=AT, steps=300
    ),
    "one weight grows": Case(lambda: _at(_grow, mlp(4), wrong=0.3), ("exploding", "loss", "nonfinite"), "2", at=AT),
    "one weight grows, residual": Case(
        lambda: _at(lambda model: model[3].narrow.weight.mul_(3000.0), residual(5), rate=1e-3),
        ("exploding", "loss", "nonfinite"),
        ("3.narrow", "3"),
        at=AT,
    ),
    "scale of the inputs jumps": Case(
        lambda: classifier(mlp(), 0.01, spoil=_scale_jumps), ("exploding", "nonfinite", "loss"), "0", at=AT
    ),
    "one batch far too large": Case(
        lambda: classifier(mlp(4), 1e-4, spoil=_grow_once), ("spike", "exploding", "loss"), "0", at=AT
    ),
    "one batch spoils the weights": Case(
        lambda: classifier(mlp(4), 0.5, spoil=_grow_once, wrong=0.3),
        ("spike", "exploding", "loss", "dead", "no-gradient", "nonfinite"),
        at=AT,
    ),
    "wrong labels in one batch": Case(
        lambda: classifier(mlp(4), 0.02, torch.optim.AdamW, reduce=_wrong_once), ("loss-spike", "spike"), at=AT
    ),
    "dead relu from step 0": Case(lambda: classifier(silenced()), ("dead",), "3"),
    "relu dies": Case(lambda: _at(_silence, mlp(4)), ("dead",), "3", at=AT),
    "tanh, weights far too large": Case(
        lambda: classifier(scaled(mlp(4, act=nn.Tanh), 100.0), 1e-4), ("saturated-activation",), ("1", "3", "5")
    ),
    "sigmoid saturates": Case(
        lambda: _at(_saturate, mlp(4, act=nn.Sigmoid), rate=0.2), ("saturated-activation",), "3", at=AT
    ),
    "layer forgotten by the optimizer": Case(
        lambda: classifier(mlp(4), trained=lambda model: [*model[0].parameters(), *model[4:].parameters()]),
        ("not-in-optimizer",),
        "2",
    ),
    "head added after the optimizer": Case(
        lambda: classifier(mlp(4), trained=lambda model: model[:6].parameters()), ("not-in-optimizer",), "6"
    ),
    "body detached": Case(lambda: classifier(Detached(0)), ("frozen-by-mistake",), "body.6"),
    "body detached later": Case(lambda: classifier(Detached(60)), ("frozen-by-mistake",), "body.6", at=60, steps=220),
    "in two optimizers": Case(
        lambda: classifier(mlp(4), 0.02, also=lambda model: torch.optim.SGD(model[6].parameters(), 0.01)),
        ("duplicate-in-optimizers",),
        "6",
    ),
    "bfloat16 weights, rate too low for them": Case(
        lambda: classifier(mlp(4).bfloat16(), 1e-5),
        ("bf16-update-lost", "unchanged-tensor"),
        settings={"kinds": EVERYTHING},
    ),
    "rate of one layer is zero": Case(
        lambda: classifier(
            mlp(4),
            trained=lambda model: [
                {"params": list(layer.parameters()), "lr": 0.0 if n == 2 else 0.05}
                for n, layer in enumerate(model)
                if n % 2 == 0
            ],
        ),
        ("unchanged-tensor",),
        "2",
        settings={"kinds": EVERYTHING},
    ),
    "few samples, random labels": Case(lambda: trainings.validated(64), ("overfit",), steps=400),
    "gradient fades": Case(_fading, ("vanishing",), ("4", "3"), at=AT),
    "decay far too strong": Case(lambda: classifier(mlp(4), 0.5, weight_decay=0.4), ("vanishing",), steps=300),
    "weights of zeros": Case(lambda: classifier(scaled(mlp(4), 0.0)), ("no-gradient", "dead"), steps=100),
    "loss multiplied by zero": Case(
        lambda: classifier(mlp(4), reduce=lambda _, loss: loss * 0.0), ("no-gradient",), steps=100
    ),
    "loss masked from a step on": Case(
        lambda: classifier(mlp(4), reduce=lambda n, loss: loss * (n < AT)), ("no-gradient",), at=AT
    ),
    "updates as large as the weights": Case(
        _adam_jumps,
        ("large-update", "exploding", "loss", "nonfinite"),
        at=AT,
        settings={"kinds": EVERYTHING},
    ),
    "batches of zeros": Case(lambda: classifier(mlp(4), spoil=lambda _, batch: 0 * batch), ("all-zero",), "0"),
    "gate closes": Case(
        lambda: _at(lambda model: model.gate.zero_(), Gated(1.0)), ("all-zero", "vanishing"), "branch.0", at=AT
    ),
    "bounded activation at its bound": Case(
        lambda: _at(lambda model: model[2].bias.fill_(30.0), mlp(4, act=nn.Hardtanh)), ("tensor-variance",), "3", at=AT
    ),
    "weights far too small, four layers": Case(
        lambda: classifier(drawn(mlp(4), 1e-3)), ("poor-weight-initialization",), ("0", "2"), steps=100
    ),
    "weights far too large, four layers": Case(
        lambda: classifier(drawn(mlp(4), 5.0), 1e-9), ("poor-weight-initialization",), ("0", "2"), steps=100
    ),
    "weights all equal": Case(
        lambda: classifier(constant(mlp(3, act=nn.Tanh), 0.5), 1e-3),
        ("poor-weight-initialization",),
        "0",
        steps=100,
        settings={"kinds": EVERYTHING},
    ),
    "running statistics never updated": Case(
        lambda: evaluated(normalized(0.0), *(2 * (lambda _, batch: 10 * batch,))),
        ("batch-norm-drift",),
        "1",
        300,
        settings=BOTH,
    ),
    "evaluation with other inputs": Case(
        lambda: evaluated(normalized(), lambda n, batch: batch * (10 if n >= AT else 1)),
        ("batch-norm-drift",),
        "1",
        300,
        AT,
        BOTH,
    ),
    "most channels die": Case(
        lambda: _at(lambda model: model[2].bias[:40].fill_(-80.0), mlp(4, 64)),
        ("dead-channels",),
        "3",
        at=AT,
        probes=(DEAD,),
    ),
    "one direction is left": Case(_squeezed, ("rank-collapse",), "2", at=AT, probes=(RANK,)),
    "attention to one token": Case(
        lambda: _at(_sharpen, attentive(), rate=1e-3, wrong=0.9),
        ("attention-entropy-collapse",),
        "2.probabilities",
        at=AT,
        probes=(ENTROPY,),
    ),
    "fused attention to one token": Case(
        lambda: _at(_grow_queries, attentive(Fused), rate=1e-6, wrong=0.9),
        ("attention-entropy-collapse",),
        "2",
        at=AT,
        probes=(HEADS,),
    ),
    "attention to one token, step by step": Case(
        lambda: _at(_grow_queries, attentive(Stepwise), rate=1e-6, wrong=0.9),
        ("attention-entropy-collapse",),
        "2",
        at=AT,
        settings={"state_every": 10},
    ),
    "logits of causal attention that grow": Case(
        lambda: _at(_grow_queries, attentive(Fused, is_causal=True), rate=1e-6, wrong=0.9),
        ("attention-logit-growth",),
        "2",
        at=AT,
        probes=(HEADS,),
    ),
    "a head on the first token": Case(
        lambda: _at(_point_at_first, attentive(Fused), rate=1e-6, wrong=0.9),
        ("attention-first-token",),
        "2",
        at=AT,
        probes=(HEADS,),
        severities=("error", "warning", "info"),
    ),
    "a head that returns nothing": Case(
        lambda: _at(_silence_head, attentive(Fused), rate=1e-6, wrong=0.9),
        ("dead-heads",),
        "2",
        at=AT,
        probes=(HEADS,),
    ),
    "a channel of the residual stream that grows": Case(
        lambda: _at(_grow_channel, Stream(), rate=1e-6, wrong=0.9),
        ("outlier-channel",),
        ("blocks.1", "blocks.2"),
        at=AT,
        settings={"state_every": 10},
    ),
    "a channel in bfloat16 that grows": Case(
        lambda: _at(_grow_channel, Stream(64).bfloat16(), rate=1e-6, wrong=0.9),
        ("outlier-channel",),
        ("blocks.1", "blocks.2"),
        at=AT,
        settings={"state_every": 10},
    ),
    "rate far too high from the start": Case(
        lambda: trainings.regression(nn.Linear(16, 16), nn.functional.mse_loss, 2.0, torch.optim.SGD),
        ("learning-rate-too-high",),
        steps=60,
    ),
    "rate far too low": Case(
        lambda: classifier(mlp(4), 1e-8), ("learning-rate-too-low",), steps=260, settings={"kinds": EVERYTHING}
    ),
    "broken samples in one of eight micro-batches": Case(
        lambda: classifier(mlp(4), 0.05, parts=8, spoil=_turn_once, clip=1.0),
        ("dominant-micro-batch",),
        steps=200,
        at=AT,
        probes=(PARTS,),
    ),
    "loss of one of eight micro-batches isn't averaged": Case(
        _summed_in_one, ("dominant-micro-batch",), steps=260, at=AT, probes=(PARTS,)
    ),
    "bias of a router that kills an expert": Case(
        lambda: _at(lambda model: model.gate.bias[1].fill_(-1e4), Experts(0.0, 2.0)),
        ("dead-expert",),
        "gate",
        steps=320,
        at=AT,
    ),
    "row of a router that kills two of eight": Case(
        lambda: _at(lambda model: model.router.bias[2:4].fill_(-1e4), Mixture(8, 2, 0.01)),
        ("dead-expert",),
        "router",
        steps=320,
        at=AT,
    ),
    "router that gives everything to one expert": Case(
        lambda: _at(lambda model: model.gate.bias[2].fill_(1e4), Experts(0.0, 2.0)),
        ("router-collapse",),
        "gate",
        steps=320,
        at=AT,
    ),
    "router that gives everything to two of eight": Case(
        lambda: _at(lambda model: model.router.bias[5:7].fill_(1e4), Mixture(8, 2, 0.01)),
        ("router-collapse",),
        "router",
        steps=320,
        at=AT,
    ),
    "expert that no sample selects": Case(lambda: classifier(Experts(-1e4)), ("never-used",), "experts.3.0", steps=260),
    "loader slower than the steps": Case(lambda: trainings.loaded(0.02), ("slow-data-loading",), steps=650),
    "evaluation longer than the training": Case(
        lambda: trainings.interrupted(0.5, 10),
        ("long-evaluation",),
        settings={"rules": {"long-evaluation": {"least_s": 4}}},
    ),
    "first moments that are never stored": Case(
        lambda: _forgetful(forgets="exp_avg"), ("state-stays-zero",), ("0", "2", "4", "6"), settings=_OFTEN
    ),
    "float16 without a loss scale": Case(lambda: _tiny(), ("gradient-underflow",)),
    "float16 with a loss scale that is too small": Case(
        lambda: _tiny(scaler=torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=10**9)),
        ("gradient-underflow",),
    ),
    "float8 with scales that are no longer updated": Case(
        lambda: _forgetting_scales("0", "2", "4", spoil=lambda number, batch: batch * (8.0 if number >= AT else 1.0)),
        ("float8-clipped",),
        "0",
        at=AT,
        settings=_OFTEN,
    ),
    "float8 gradients of one layer beyond its scale": Case(
        lambda: _forgetting_scales("2", reduce=lambda number, loss: loss * (16.0 if number >= AT else 1.0), log=False),
        ("float8-clipped",),
        "2",
        at=AT,
        settings=_OFTEN,
    ),
    "second moments in float16": Case(
        lambda: _forgetful(dtype=torch.float16, reduce=lambda _, loss: 0.001 * loss),
        ("second-moments",),
        ("0", "2", "4", "6"),
        settings=_OFTEN,
    ),
    "gradients ten thousand times as large from a step on": Case(
        lambda: classifier(
            mlp(4), 1e-6, torch.optim.Adam, reduce=lambda step, loss: loss * (1e5 if step >= AT else 1.0), log=False
        ),
        ("second-moments",),
        ("0", "2", "4", "6"),
        at=AT,
        settings=_OFTEN,
    ),
    "a layer's update jumps, and then the loss": Case(
        _jumping, ("spike-precursor",), "4", at=AT, settings={"kinds": EVERYTHING}, severities=("info",)
    ),
    "clipped by value, far below the usual values": Case(
        lambda: classifier(mlp(4), 0.05, clip=lambda model: nn.utils.clip_grad_value_(model.parameters(), 1e-5)),
        ("gradient-clipped-always",),
        severities=("info",),
    ),
    "clipped far below the usual norm": Case(
        lambda: classifier(mlp(4), 0.05, clip=1e-3), ("gradient-clipped-always",), severities=("info",)
    ),
}

"""Trainings in which nothing is wrong."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from hookcore import probes

from . import trainings
from .case import BOTH, DEAD, ENTROPY, EVERYTHING, HEADS, PARTS, RANK, Case, Training
from .models import (
    Adapted,
    Dropping,
    Experts,
    Fused,
    Gated,
    Mixture,
    Recurrent,
    Stepwise,
    Stream,
    Unused,
    Words,
    attentive,
    constant,
    convolutions,
    drawn,
    in_float8,
    masked,
    mlp,
    normalized,
    residual,
    scaled_residual,
    transformer,
    update_scales,
    with_dropout,
)
from .trainings import Plan, classifier, evaluated, regression

_ADAM, _ADAMW = torch.optim.Adam, torch.optim.AdamW


def _average(model: nn.Module) -> None:
    """Divide summed gradients by the number of micro-batches, as some loops do."""
    for each in model.parameters():
        if each.grad is not None:
            each.grad /= 4


def _frozen(head: int = 1) -> Training:
    model = mlp(4)
    for layer in model[:-head]:
        layer.requires_grad_(False)
    return classifier(model, trained=lambda model: [each for each in model.parameters() if each.requires_grad])


def _unfrozen_later() -> Training:
    model = mlp(4).requires_grad_(False)
    model[-1].requires_grad_(True)

    def before(number: int) -> None:
        if number in (60, 120):
            model[{60: 4, 120: 2}[number]].requires_grad_(True)

    return classifier(model, before=before)


def _autoencoder() -> Training:
    layers = nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4), nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 16)
    return regression(nn.Sequential(*layers), nn.functional.mse_loss)


def _one_cycle(steps: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.OneCycleLR(steps, 5e-3, total_steps=1000)


def _scheduled(plan: Plan, rate: float = 0.05) -> Training:
    return classifier(mlp(4), rate, plan=plan)


def _cyclic(steps: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.CyclicLR(steps, 1e-3, 0.1, step_size_up=30)


def _heavy_tails(number: int, batch: Tensor) -> Tensor:
    return batch * torch.distributions.StudentT(3.0).sample((len(batch), 1)).abs().clamp(max=20)


def _lora() -> Training:
    model = nn.Sequential(Adapted(16, 32), nn.ReLU(), Adapted(32, 32), nn.ReLU(), Adapted(32, 4))
    return classifier(model, 5e-3, _ADAM, trained=lambda model: [p for p in model.parameters() if p.requires_grad])


def _one(tensor: Tensor) -> Tensor:
    return torch.ones(())


def _noisy(_: int, batch: Tensor) -> Tensor:
    return batch + torch.randn_like(batch)


def _with_large_logits() -> nn.Sequential:
    model = attentive(Fused)
    with torch.no_grad():
        for each in (model[2].queries, model[2].keys):
            each.weight.mul_(10.0)
    return model


def _with_large_channel() -> nn.Module:
    model = Stream()
    with torch.no_grad():
        model.blocks[0].gains[3] = 1e5  # type: ignore[union-attr,operator]
    return model


HEALTHY: Final = {
    "mlp, sgd": Case(lambda: classifier(mlp())),
    "mlp, small rate": Case(lambda: classifier(mlp(), 0.03), steps=250),
    "mlp, adam, no loss logged": Case(lambda: classifier(mlp(), 1e-3, _ADAM, log=False)),
    "mlp, large rate that works": Case(lambda: classifier(mlp(), 0.3)),
    "mlp, momentum and decay": Case(lambda: classifier(mlp(), 0.02, momentum=0.9, weight_decay=1e-4)),
    "mlp, rmsprop": Case(lambda: classifier(mlp(), 1e-3, torch.optim.RMSprop)),
    "deep mlp with norms": Case(lambda: classifier(mlp(12, norm=True), 0.02)),
    "residual, 8 blocks": Case(lambda: classifier(residual(), 0.02)),
    "residual, blocks left out at random": Case(lambda: classifier(Dropping(), 0.02)),
    "cnn with batch norms": Case(lambda: classifier(convolutions(), 0.05, shape=(1, 4, 4))),
    "cnn without norms": Case(lambda: classifier(convolutions(norm=False), 0.05, shape=(1, 4, 4))),
    "transformer with dropout": Case(lambda: classifier(transformer(), 2e-3, _ADAMW, shape=(2, 8))),
    "transformer, four tokens, warm-up": Case(
        lambda: classifier(transformer(4), 2e-3, _ADAMW, shape=(4, 4), plan=_one_cycle)
    ),
    "gru": Case(lambda: classifier(Recurrent(), 5e-3, _ADAM, shape=(4, 4))),
    "lstm": Case(lambda: classifier(Recurrent(nn.LSTM), 5e-3, _ADAM, shape=(4, 4))),
    "rnn, clipped": Case(lambda: classifier(Recurrent(nn.RNN), 5e-3, _ADAM, shape=(4, 4), clip=0.5)),
    "autoencoder": Case(_autoencoder, steps=300),
    "variational autoencoder": Case(trainings.variational, steps=300),
    "gan": Case(trainings.gan, steps=300),
    "policy gradient, noisy rewards": Case(trainings.policy_gradient, steps=300),
    "contrastive": Case(trainings.contrastive),
    "labels without meaning": Case(trainings.nothing_to_learn),
    "sigmoid at the end": Case(trainings.yes_or_no, steps=300),
    "solved regression": Case(trainings.linear_regression, steps=300),
    "student and slow teacher": Case(trainings.teacher),
    "validation now and then": Case(trainings.validated, steps=300),
    "frozen body": Case(_frozen),
    "frozen body, all given to the optimizer": Case(
        lambda: classifier(mlp(4).requires_grad_(False).append(nn.Linear(4, 4)), 0.05)
    ),
    "head alone given to the optimizer": Case(
        lambda: classifier(mlp(4), trained=lambda model: list(model.parameters())[-2:])
    ),
    "two optimizers, one for each half": Case(
        lambda: classifier(
            mlp(4),
            trained=lambda model: list(model.parameters())[:4],
            also=lambda model: torch.optim.Adam(list(model.parameters())[4:], 1e-3),
        )
    ),
    "layers unfrozen later": Case(_unfrozen_later),
    "lora": Case(_lora),
    "part without use": Case(lambda: classifier(Unused())),
    "loader that is quick": Case(lambda: trainings.loaded(0.0)),
    "evaluations now and then": Case(lambda: trainings.interrupted(0.05, 50)),
    "rate that is high for some steps": Case(
        lambda: classifier(mlp(4), plan=lambda steps: lr_scheduler.CyclicLR(steps, 0.01, 0.1, 20))
    ),
    "warm-up and cosine": Case(lambda: classifier(mlp(4), 5e-3, _ADAMW, plan=_one_cycle), steps=300),
    "cosine to zero": Case(lambda: _scheduled(lambda steps: lr_scheduler.CosineAnnealingLR(steps, 300)), steps=300),
    "cyclic rate": Case(lambda: _scheduled(_cyclic), steps=300),
    "rate in stairs": Case(lambda: _scheduled(lambda steps: lr_scheduler.StepLR(steps, 60)), steps=300),
    "heavy dropout": Case(lambda: classifier(with_dropout(0.7), 0.05)),
    "embedding, sparse gradients": Case(lambda: classifier(Words(True), 0.5)),
    "embedding, adam": Case(lambda: classifier(Words(False), 5e-3, _ADAM)),
    "two of eight experts, balanced by a bias": Case(lambda: classifier(Mixture(8, 2, 0.01), 0.05), steps=300),
    "one of sixteen experts": Case(lambda: classifier(Mixture(16, 1, 0.01), 0.05), steps=300),
    "four of eight experts, adam": Case(lambda: classifier(Mixture(8, 4, 0.01), 2e-3, _ADAM), steps=300),
    "experts, one rarely used": Case(lambda: classifier(Experts(noise=2.0), 0.05), steps=300),
    "bfloat16 under autocast": Case(lambda: classifier(mlp(4), 0.05, autocast=True)),
    "float16 with a loss scale": Case(
        lambda: classifier(
            mlp(4),
            0.05 / 2e-6,
            autocast=torch.float16,
            reduce=lambda _, loss: 2e-6 * loss,
            scaler=torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10**9),
        )
    ),
    "tiny gradients in float32, with a loss scale": Case(
        lambda: classifier(
            mlp(4), 0.05 / 2e-6, reduce=lambda _, loss: 2e-6 * loss, scaler=torch.amp.GradScaler("cpu", init_scale=2.0)
        )
    ),
    "bfloat16 weights": Case(lambda: classifier(mlp(4).bfloat16(), 0.05)),
    "bfloat16 weights, adam": Case(lambda: classifier(mlp(4).bfloat16(), 1e-3, _ADAM)),
    "float8 with scales that follow larger inputs": Case(
        lambda: classifier(
            in_float8(),
            0.01,
            clip=update_scales,
            spoil=lambda number, batch: batch * (8.0 if number >= 100 else 1.0),
        ),
        steps=300,
        settings={"state_every": 10},
    ),
    "four micro-batches": Case(lambda: classifier(mlp(4), 0.05, parts=4)),
    "eight micro-batches, measured": Case(lambda: classifier(mlp(4), 0.05, parts=8), steps=300, probes=(PARTS,)),
    "micro-batches with a few wrong labels": Case(
        lambda: classifier(mlp(4), 5e-3, _ADAM, parts=8, wrong=0.005), steps=400, probes=(PARTS,)
    ),
    "two micro-batches, clipped": Case(
        lambda: classifier(normalized(), 0.05, parts=2, clip=0.5), steps=300, probes=(PARTS,)
    ),
    "clipped in every step": Case(lambda: classifier(mlp(4), 0.2, clip=0.05)),
    "inputs with heavy tails": Case(lambda: classifier(mlp(), 0.01, spoil=_heavy_tails)),
    "tanh, 6 layers": Case(lambda: classifier(mlp(6, act=nn.Tanh), 0.05)),
    "gelu and adam": Case(lambda: classifier(mlp(5, act=nn.GELU), 2e-3, _ADAM)),
    "branch off on purpose": Case(lambda: classifier(Gated(0.0))),
    "branch behind an open gate": Case(lambda: classifier(Gated(1.0))),
    "layer scale": Case(lambda: classifier(scaled_residual(1e-5), 0.02)),
    "residual branches that start at zero": Case(lambda: classifier(scaled_residual(None), 0.02)),
    "weights of 0.02 and layer norms": Case(lambda: classifier(drawn(mlp(6, norm=True), 0.02), 2e-3, _ADAM)),
    "first layer alone set to one number": Case(
        lambda: classifier(constant(mlp(3, act=nn.Tanh), 0.1, slice(1))), settings={"kinds": EVERYTHING}
    ),
    "last layer alone set to one number": Case(
        lambda: classifier(constant(mlp(3), 0.1, slice(2, 3))), settings={"kinds": EVERYTHING}
    ),
    "batch norms, evaluated from the start": Case(lambda: evaluated(normalized()), settings=BOTH, steps=300),
    "batch norms, slow momentum": Case(lambda: evaluated(normalized(0.01)), settings=BOTH, steps=400),
    "batch norms, noise in training only": Case(
        lambda: evaluated(normalized(), train=_noisy), settings=BOTH, steps=300
    ),
    "relu network, probed": Case(
        lambda: classifier(mlp(4, 64)), steps=300, probes=(DEAD, ("rank", probes.effective_rank, "type:Linear"))
    ),
    "classes gather, probed": Case(
        lambda: classifier(mlp(5, act=nn.Tanh), 5e-3, _ADAM), steps=300, probes=(RANK, ("my rank", _one, "*"))
    ),
    "attention, probed": Case(lambda: classifier(attentive(), 5e-3, _ADAM), steps=300, probes=(ENTROPY,)),
    "fused attention, probed": Case(lambda: classifier(attentive(Fused), 5e-3, _ADAM), steps=300, probes=(HEADS,)),
    "causal attention, probed": Case(
        lambda: classifier(attentive(Fused, is_causal=True), 2e-2, _ADAM), steps=300, probes=(HEADS,)
    ),
    "causal attention step by step": Case(
        lambda: classifier(attentive(Stepwise, is_causal=True), 2e-2, _ADAM), steps=300, settings={"state_every": 10}
    ),
    "large logits from the start, probed": Case(
        lambda: classifier(_with_large_logits(), 1e-3, _ADAM), steps=300, probes=(HEADS,)
    ),
    "residual stream, outliers measured often": Case(
        lambda: classifier(Stream(), 5e-3, _ADAM), steps=300, settings={"state_every": 10}
    ),
    "residual stream with a large channel from the start": Case(
        lambda: classifier(_with_large_channel(), 1e-3, _ADAM), steps=300, settings={"state_every": 10}
    ),
    "transformer, outliers measured often": Case(
        lambda: classifier(transformer(), 2e-3, _ADAMW, shape=(2, 8)), steps=300, settings={"state_every": 10}
    ),
    "masks of attention and of a router": Case(lambda: classifier(masked(), 5e-3, _ADAM), steps=300),
    "averaged by hand": Case(lambda: classifier(mlp(4), 0.2, parts=4, clip=_average)),
    "clipped now and then": Case(lambda: classifier(mlp(4), 0.1, clip=1.0)),
    "clipped at a healthy level": Case(lambda: classifier(mlp(4), 0.05, clip=0.5, wrong=0.3)),
}

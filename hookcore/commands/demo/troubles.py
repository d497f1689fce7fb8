"""Five problems of a training. Each begins at a given step, so that there is a healthy period to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from hookcore.commands.demo.digits import BATCH

Batch = tuple[Tensor, Tensor]
SPIKES_EVERY: Final = 150  # steps


@dataclass(frozen=True, slots=True)
class Trouble:
    """The effect of a problem: `begin` runs once, `spoil` changes every later batch, `reduce` computes every loss."""

    story: str
    plain: bool = False  # whether it needs a network without norms and skip connections
    begin: Callable[[nn.Module, torch.optim.Optimizer], None] = lambda _model, _optimizer: None
    spoil: Callable[[int, Batch], Batch] = lambda _since, batch: batch
    reduce: Callable[[int, Tensor], Tensor] = lambda _since, loss: loss


def _blank_one(since: int, batch: Batch) -> Batch:
    pictures, labels = batch
    if since == 0:
        pictures = pictures.clone()
        pictures[0] = 0
    return pictures, labels


def _decay_weights(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.1 / group["lr"]  # decays a tenth of every weight in each step


def _climb(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["maximize"] = True


def _silence(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    """Give the module before the first ReLU of the second block a bias that no input can outweigh."""
    before = model.get_submodule("blocks.1.norm" if hasattr(model, "stem") else "blocks.1.wide")
    with torch.no_grad():
        before.get_parameter("bias").fill_(-12)


def _sum_now_and_then(since: int, loss: Tensor) -> Tensor:
    return loss * BATCH if since % SPIKES_EVERY == 0 else loss


TROUBLES: Final = {
    "nan": Trouble(
        "one image of the batch is blank, and the layer that divides by its standard deviation turns it into NaN",
        spoil=_blank_one,
    ),
    "vanishing": Trouble(
        "weight decay is far too strong and shrinks every layer, and with it the gradients that flow back",
        plain=True,
        begin=_decay_weights,
    ),
    "exploding": Trouble(
        "the loss has the wrong sign, so every step increases it: layers and gradients grow without bound",
        plain=True,
        begin=_climb,
    ),
    "dead-relu": Trouble(
        "one layer's bias is far below zero, as after a step that was far too large, and its ReLU never fires again",
        begin=_silence,
    ),
    "spike": Trouble(
        f"every {SPIKES_EVERY} steps, the loss is the sum over the batch instead of the mean",
        reduce=_sum_now_and_then,
    ),
}

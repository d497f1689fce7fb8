"""Five ways in which a training goes wrong. Each begins at a step, so that there is a healthy time to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from hookcore.demo.digits import BATCH

Batch = tuple[Tensor, Tensor]
SPIKES_EVERY: Final = 150  # steps


@dataclass(frozen=True, slots=True)
class Trouble:
    """What happens to a training: `begin` once, `spoil` to every batch from then on, `reduce` to every loss."""

    story: str
    plain: bool = False  # whether it takes a network without norms and ways around
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
        group["weight_decay"] = 0.1 / group["lr"]  # a tenth of every weight in each step


def _climb(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["maximize"] = True


def _silence(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    """The module before the first ReLU of the second block gets a bias that no input makes up for."""
    before = model.get_submodule("blocks.1.norm" if hasattr(model, "stem") else "blocks.1.wide")
    with torch.no_grad():
        before.get_parameter("bias").fill_(-12)


def _sum_now_and_then(since: int, loss: Tensor) -> Tensor:
    return loss * BATCH if since % SPIKES_EVERY == 0 else loss


TROUBLES: Final = {
    "nan": Trouble(
        "one picture of the batch is blank, and the layer that divides by its deviation makes NaN of it",
        spoil=_blank_one,
    ),
    "vanishing": Trouble(
        "a weight decay that is far too strong shrinks every layer, and the gradient at each one on its way back",
        plain=True,
        begin=_decay_weights,
    ),
    "exploding": Trouble(
        "the loss has the wrong sign, so that every step makes it larger: layers and gradients grow without end",
        plain=True,
        begin=_climb,
    ),
    "dead-relu": Trouble(
        "one layer's bias is far below zero, as one far too large step would leave it, and its ReLU never fires again",
        begin=_silence,
    ),
    "spike": Trouble(
        f"every {SPIKES_EVERY} steps the loss is the sum over the batch where it should be the mean",
        reduce=_sum_now_and_then,
    ),
}

"""The sharpness of the loss along its gradient, computed with a copy of the model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DataParallel, DistributedDataParallel

from hookcore.errors import ArgumentError
from hookcore.observe.generators import generators_kept


def sharpness(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Tensor:
    """Return the curvature of a loss along its gradient, gᵀHg / gᵀg: `sharpness(model, lambda copy: f(copy(x), y))`.

    `loss` is called with a copy of the model, in the model's mode, so that its weights, gradients, and buffers stay
    untouched. The random number generators are set back afterward. It takes the memory of a second model, and the time
    of about four backward passes. NaN if the gradient is zero. Frozen parameters have no part in it.
    """
    twin = copy.deepcopy(_inner(model))
    parameters = [each for each in twin.parameters() if each.requires_grad]
    with (
        generators_kept(),
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),  # the derivative of a fused kernel has no derivative
        torch.backends.cudnn.flags(enabled=False),  # nor has that of its recurrent layers
    ):
        value = loss(twin)
        _require_scalar(value)
        gradients = _gradients(value, parameters, create_graph=True)
        if all(each is None for each in gradients):
            raise ArgumentError(
                "the loss depends on no trainable parameter of the model that it was given: use the argument, as in "
                "sharpness(model, lambda copy: criterion(copy(x), y)), and don't detach its output"
            )
        directions = [None if each is None else each.detach() for each in gradients]
        slope = _product(gradients, directions)
        products = _gradients(slope, parameters) if slope.requires_grad else []
    with torch.no_grad():
        squares = _product(directions, directions)
        if all(each is None for each in products):  # linear in the parameters
            return torch.zeros_like(squares) / squares
        return _product(products, directions) / squares


def _gradients(value: Tensor, parameters: list[nn.Parameter], create_graph: bool = False) -> list[Tensor | None]:
    return list(torch.autograd.grad(value, parameters, create_graph=create_graph, allow_unused=True))


def _product(left: list[Tensor | None], right: list[Tensor | None]) -> Tensor:
    pairs = [(one * two).sum() for one, two in zip(left, right, strict=True) if one is not None and two is not None]
    return torch.stack([pair.to(pairs[0].device) for pair in pairs]).sum()


def _inner(model: Any) -> nn.Module:
    """Return the module inside of wrappers that a copy can't do without."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model={type(model).__name__} is invalid: give a torch.nn.Module")
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if isinstance(model, (DistributedDataParallel, DataParallel)):
        model = model.module
    if any(type(each).__name__ == "DTensor" for each in model.parameters()):
        raise ArgumentError("sharpness doesn't support sharded parameters (FSDP, tensor parallel)")
    return model  # type: ignore[no-any-return]


def _require_scalar(value: object) -> None:
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ArgumentError(f"the loss is {what}: return a tensor with a single number")

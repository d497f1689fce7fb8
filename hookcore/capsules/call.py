"""One call of a model, as a recording keeps it: aliases of the training's tensors, without their graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from hookcore.capsules.conditions import generators
from hookcore.internals import current_graph_task, is_wrapped, tracing_state, tree_map
from hookcore.recorder.outputs import find_tensors

_PLAIN: Final = (Tensor, nn.Parameter)


@dataclass(slots=True)
class Call:
    """One call of the model. Tensors are aliases of the training's, without their graph and without copies."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: dict[str, bool]
    buffers: dict[str, Tensor]  # copies, because BatchNorm changes them
    generators: dict[str, Any]
    autocast: dict[str, torch.dtype]
    grad_enabled: bool
    versions: dict[str, tuple[Tensor, int]]  # of all arguments and weights
    outputs: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)


def call_of(model: nn.Module, args: Any, kwargs: Any, autocast: dict[str, torch.dtype], grad_enabled: bool) -> Call:
    named = [(f"weight {name}", each.detach()) for name, each in model.named_parameters()]
    named += [(f"argument {place.partition('.')[2]}", each.detach()) for place, each in find_tensors((args, kwargs))]
    return Call(
        args=tree_map(alias_of, args),
        kwargs=tree_map(alias_of, kwargs),
        training={name: module.training for name, module in model.named_modules()},
        buffers={name: buffer.detach().clone() for name, buffer in model.named_buffers()},
        generators=generators(),
        autocast=autocast,
        grad_enabled=grad_enabled,
        versions={name: (each, each._version) for name, each in named if not each.is_inference()},
    )


def is_plain(values: Any) -> bool:
    """Return whether this is a call of the training itself: none of a checkpoint, a tracer, or `torch.func`."""
    if current_graph_task() != -1 or tracing_state() or torch.compiler.is_compiling():
        return False
    return all(type(tensor) in _PLAIN and not is_wrapped(tensor) for _, tensor in find_tensors(values))


def alias_of(value: Any) -> Any:
    """Return a tensor without its graph: a training may free that as usual."""
    if not isinstance(value, Tensor):
        return value
    alias = value.detach()
    return alias.requires_grad_() if value.requires_grad else alias


def compact(value: Any) -> Any:
    """Return a tensor without the rest of its storage, as a batch may be a view of a whole data set."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return value
    used = value.numel() * value.element_size()
    return alias_of(value).clone().detach().requires_grad_(value.requires_grad) if _is_part(value, used) else value


def _is_part(tensor: Tensor, used: int) -> bool:
    return tensor.untyped_storage().nbytes() > used


def bits_of(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)

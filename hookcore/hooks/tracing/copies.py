"""Copies of tensors and of their gradients, taken in a hook without affecting the training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import torch
from torch import Tensor

from hookcore.hooks import HookHandle
from hookcore.hooks.compiled import guard_functions
from hookcore.hooks.internals import DisableTorchFunction, is_wrapped
from hookcore.hooks.tracing.nested import rebuild
from hookcore.observe.plain import unseen

_AS_IT_IS: Final = (
    *(bool, int, float, complex, str, bytes, type(None), Enum),
    *(torch.dtype, torch.device, torch.Size, torch.layout),
)


@dataclass(frozen=True, slots=True)
class NotCopied:
    """Replaces a value that can't be copied, such as a cache object or a tensor without data."""

    reason: str


class Slot:
    """One tensor of a call: its copy, and after a backward pass a copy of its gradient."""

    __slots__ = ("gradient", "missing", "value")

    def __init__(self, value: Tensor | NotCopied) -> None:
        self.value = value
        self.gradient: Tensor | None = None
        self.missing = ""  # why there can't be a gradient


class GradientHook:
    """Copies a gradient into its slot. It holds no tensor of the user, so it extends no graph's life."""

    __slots__ = ("leaf_handle", "slot")
    __torch_unserializable__ = True  # copies of the tensor leave it out, without a warning

    def __init__(self, slot: Slot | None = None) -> None:
        self.slot = slot  # None while it is unknown which call a checkpoint repeats
        self.leaf_handle: HookHandle | None = None

    def __call__(self, grad: Any) -> None:
        if self.leaf_handle is not None:
            # A leaf outlives its graph: the gradients of later calls don't belong to this one.
            self.leaf_handle.remove()
        slot = self.slot
        if grad is None or slot is None:
            return
        copy = copy_of(grad)
        if isinstance(copy, NotCopied):
            slot.missing = copy.reason
        else:
            slot.gradient = copy


def record(value: Any, copies: bool, on_tensor: Callable[[Tensor, Slot], None]) -> Any:
    """Return a layer's inputs or output, with a slot in place of each tensor.

    Numbers and texts stay. Other objects are replaced by NotCopied, because they may hold tensors or change later.
    """

    def leaf(item: Any) -> Any:
        if not issubclass(type(item), Tensor):
            return item if issubclass(type(item), _AS_IT_IS) else NotCopied(f"it is a {type(item).__name__} object")
        slot = Slot(copy_of(item) if copies else NotCopied("its values were not traced"))
        on_tensor(item, slot)
        return slot

    return rebuild(value, leaf)


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in a nested value, in the order of `record`."""
    found: list[Tensor] = []
    rebuild(value, lambda leaf: found.append(leaf) if issubclass(type(leaf), Tensor) else None)
    return found


def slots_in(seen: Any) -> list[Slot]:
    """Return the slots in a recorded value, in the same order."""
    found: list[Slot] = []
    rebuild(seen, lambda leaf: found.append(leaf) if type(leaf) is Slot else None)
    return found


def copy_of(tensor: Tensor) -> Tensor | NotCopied:
    """Return a detached copy of any kind of tensor, made outside of the user's modes, or why there is none."""
    try:
        with DisableTorchFunction():
            if is_wrapped(tensor):
                return NotCopied("it is inside torch.func (vmap, grad): the values are not there yet")
            if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
                return NotCopied("a copy inside the capture of a CUDA graph would become part of the graph")
            with unseen(), torch.inference_mode(mode=False):
                return tensor.detach().clone()
    except Exception as error:  # no memory, or a class that can't be copied: never a reason to stop the training
        return NotCopied(f"it could not be copied ({type(error).__name__}: {error})")


guard_functions(GradientHook.__call__)

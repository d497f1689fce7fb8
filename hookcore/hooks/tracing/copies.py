"""Copies of nested values, of tensors, and of their gradients, taken in a hook without affecting the training."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import torch
from torch import Tensor

from hookcore.hooks import HookHandle
from hookcore.hooks.compiled import guard_functions
from hookcore.hooks.internals import DisableTorchFunction, is_wrapped
from hookcore.observe.plain import unseen

MAX_DEPTH: Final = 16

Leaf = Callable[[Any], Any]


def rebuild(value: Any, leaf: Leaf) -> Any:
    """Return a copy of a nested value in which each leaf is `leaf(old)`.

    Tuples, lists, dicts, and dataclasses keep their classes, keys, and attributes; everything else is a leaf. A value
    that occurs twice is rebuilt once. Containers are read and created by their builtin storage: constructors,
    properties, and overridden methods don't run.
    """
    return _Rebuilding(leaf).rebuild(value, 0)


class _Rebuilding:
    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf
        self._done: dict[int, Any] = {}  # by the identity of the old value, which lives as long as this object
        self._open: set[int] = set()  # a container that contains itself is a leaf the second time

    def rebuild(self, value: Any, depth: int) -> Any:
        key = id(value)
        if key not in self._done:
            builder = None if depth > MAX_DEPTH or key in self._open else _builder_of(type(value))
            if builder is None:
                self._done[key] = self._leaf(value)
            else:
                self._open.add(key)
                new = builder(value, lambda item: self.rebuild(item, depth + 1))
                self._open.discard(key)
                self._done[key] = new
        return self._done[key]


def _builder_of(kind: type) -> Callable[[Any, Leaf], Any] | None:
    if issubclass(kind, torch.Tensor) or kind is torch.Size:
        return None
    if issubclass(kind, tuple):
        return _rebuild_tuple
    if issubclass(kind, list):
        return _rebuild_list
    if issubclass(kind, dict):
        return _rebuild_dict
    return _rebuild_dataclass if dataclasses.is_dataclass(kind) else None


def _rebuild_tuple(value: Any, again: Leaf) -> Any:
    kind = type(value)
    items = [again(item) for item in tuple.__iter__(value)]
    if hasattr(kind, "n_sequence_fields"):  # one of torch's, such as the result of torch.max, which is created in C
        return kind(items)
    return tuple.__new__(kind, items)


def _rebuild_list(value: Any, again: Leaf) -> Any:
    new = list.__new__(type(value))
    list.extend(new, [again(item) for item in list.__iter__(value)])
    return _with_attributes(new, value, again)


def _rebuild_dict(value: Any, again: Leaf) -> Any:
    base: Any = OrderedDict if issubclass(type(value), OrderedDict) else dict
    new = base.__new__(type(value))
    for key, item in base.items(value):
        base.__setitem__(new, key, again(item))
    return _with_attributes(new, value, again)


def _rebuild_dataclass(value: Any, again: Leaf) -> Any:
    new = object.__new__(type(value))
    for field in dataclasses.fields(value):
        try:
            object.__setattr__(new, field.name, again(object.__getattribute__(value, field.name)))
        except AttributeError:  # a field that was never set
            continue
    return new


def _with_attributes(new: Any, value: Any, again: Leaf) -> Any:
    """Give a rebuilt list or dict the attributes of the old one: a ModelOutput also has its items as attributes."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return new
    object.__getattribute__(new, "__dict__").update({name: again(item) for name, item in attributes.items()})
    return new


# Copies of tensors and of their gradients, taken in a hook without affecting the training.

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

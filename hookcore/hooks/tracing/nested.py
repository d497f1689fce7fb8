"""Rebuilds nested values with other leaves, without running any of the user's code."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import torch

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

"""The search for tensors in a module's inputs and outputs, without running any of the user's code."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice
from typing import Any, Final

import torch

MAX_DEPTH: Final = 8
MAX_TENSORS: Final = 256
MAX_VISITS: Final = 4096  # of any objects, tensors or not


def find_tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Return each tensor with its place: "" for a single one, else "0", "past.1", "hidden_states.3".

    Tensors, dicts, lists, tuples, and dataclass fields are read from their builtin storage. Generators and unknown
    objects are left alone, because looking into them would consume or run what belongs to the user.
    """
    if issubclass(type(value), torch.Tensor):
        yield "", value
        return
    found = list(islice(_walk(value, (), count(1)), MAX_TENSORS))
    places = [".".join(map(str, keys)) for keys, _ in found]
    times = Counter(places)
    for number, (keys, tensor) in enumerate(found):
        place = places[number]
        if times[place] > 1:  # keys 1 and "1", or a key "a.b" and a key "b" below "a"
            place = ".".join(str(key) if isinstance(key, int) else repr(key) for key in keys)
        yield place, tensor


def _walk(value: Any, keys: tuple[Any, ...], visits: Iterator[int]) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        yield keys, value
    elif len(keys) < MAX_DEPTH:
        for name, item in _items(value, kind):
            if next(visits) > MAX_VISITS:
                return
            yield from _walk(item, (*keys, name), visits)


def _items(value: Any, kind: type) -> list[tuple[Any, Any]]:
    if issubclass(kind, dict):
        return list(islice(dict.items(value), MAX_VISITS))
    if issubclass(kind, tuple):
        names = next((base.__dict__["_fields"] for base in kind.__mro__ if "_fields" in base.__dict__), None)
        items = list(islice(tuple.__iter__(value), MAX_VISITS))
        return list(zip(names, items, strict=True)) if names and len(names) == len(items) else list(enumerate(items))
    if issubclass(kind, list):
        return list(enumerate(islice(list.__iter__(value), MAX_VISITS)))
    if dataclasses.is_dataclass(kind):
        return [(field.name, _stored(value, field.name)) for field in dataclasses.fields(kind)]
    return []


def _stored(value: Any, name: str) -> Any:
    """Return a field as it is stored, without running a property or a __getattr__ of the user."""
    try:
        descriptor = type.__getattribute__(type(value), name)
    except AttributeError:
        descriptor = None
    if isinstance(descriptor, property):
        return None
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None

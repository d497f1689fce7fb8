"""An example of each answer, for the description of the API."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from functools import cache
from typing import Any, Final, get_args, get_origin

import msgspec

# By class. A class also has the values of its base classes; parts without values are the examples of their classes.
WRITTEN: Final[dict[str, dict[str, Any]]] = msgspec.json.decode(
    pathlib.Path(__file__).with_name("examples.json").read_bytes()
)
_fields: Final[Callable[..., tuple[msgspec.structs.FieldInfo, ...]]] = cache(msgspec.structs.fields)


def example_of(answer: type[Any], given: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return an example of an answer, with the given values instead of those of its class."""
    values: dict[str, Any] = {}
    for kind in reversed(answer.__mro__):
        values |= WRITTEN.get(kind.__name__, {})
    values |= given or {}
    for field in _fields(answer):
        part, are_many = _part_of(field.type)
        own = values.get(field.encode_name, [{}] if are_many else {})
        if part is not None and own is not None:
            values[field.encode_name] = [example_of(part, each) for each in own] if are_many else example_of(part, own)
    return {field.encode_name: values[field.encode_name] for field in _fields(answer) if field.encode_name in values}


def _part_of(hint: Any) -> tuple[type[Any] | None, bool]:
    """Return the class of a field's answer or answers, if it has any, and whether it has several."""
    origin = get_origin(hint)
    if origin is None:
        return (hint, False) if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else (None, False)
    part, are_many = _part_of(get_args(hint)[0])
    return part, are_many or origin is tuple

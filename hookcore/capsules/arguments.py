"""What an operator is given: its arguments, the memory behind them, and what it changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from hookcore.hooks.internals import tree_iter


def storage_of(tensor: Tensor) -> int:
    """Return a key that is the same for tensors that share memory."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a sparse tensor has none
        return id(tensor)


def fills_storage(tensor: Tensor) -> bool:
    """Return whether a tensor covers all of its memory, so that no earlier value remains."""
    try:
        return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return True


def copy_of(tensor: Tensor) -> Tensor:
    """Return a copy that is identified by the storage of its original."""
    twin = tensor.detach().clone()
    twin._hookcore_storage = storage_of(tensor)  # type: ignore[attr-defined]
    return twin


def arguments_of(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Return each argument with its parameter in the schema."""
    parameters = func._schema.arguments
    yield from zip(parameters, args, strict=False)
    yield from ((each, kwargs[each.name]) for each in parameters if each.name in kwargs)


def changed_by(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments that an operator changes in place."""
    if not func._schema.is_mutable:
        return []
    written = (
        value for each, value in arguments_of(func, args, kwargs) if each.alias_info and each.alias_info.is_write
    )
    return [tensor for value in written for tensor in tree_iter(value)]


def is_view(func: Any) -> bool:
    """Return whether an operator returns the memory of its inputs."""
    return any(each.alias_info is not None for each in func._schema.returns)


def bad_numbers(args: Any, kwargs: Any, above: float | None) -> list[float]:
    """Return the numbers among the arguments that are non-finite, or above a threshold."""
    limit = sys.float_info.max if above is None else above
    numbers = (each for each in tree_iter((args, kwargs)) if isinstance(each, int | float))
    return [float(each) for each in numbers if not abs(each) <= limit]

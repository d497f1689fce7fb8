"""Slices of a tensor in addresses, such as `0,:,3:7`, with NumPy's meaning."""

from __future__ import annotations

import math
import re
from types import EllipsisType
from typing import Any, Final

from numpy.typing import NDArray

from hookcore.errors import ArgumentError

Part = int | slice | EllipsisType
_NUMBER: Final = r"\s*(-?\d{1,18})?\s*"
_SLICE: Final = re.compile(f"{_NUMBER}:{_NUMBER}(?::{_NUMBER})?")


def cells_of(values: NDArray[Any]) -> int:
    """Return the number of items in the array's text form: an empty array of a million rows has a million."""
    return math.prod(max(1, size) for size in values.shape)


def read_slice(text: str) -> tuple[Part, ...]:
    """Parse a slice, or raise ArgumentError."""
    return tuple(_part(piece) for piece in text.split(",")) if text.strip() else ()


def cut(values: NDArray[Any], text: str) -> NDArray[Any]:
    """Return a slice of an array; always an array, without dimensions if it is one value."""
    parts = read_slice(text)
    if parts.count(...) > 1:
        raise ArgumentError(f"slice={text!r} holds ... more than once: use it only once")
    whole = parts if ... in parts else (*parts, ...)
    try:
        return values[whole]
    except (IndexError, ValueError, OverflowError) as error:
        shape = " x ".join(map(str, values.shape)) or "of no dimension"
        raise ArgumentError(f"slice={text!r} does not fit a tensor {shape}: {error}") from None


def _part(piece: str) -> Part:
    bare = piece.strip()
    if bare == "...":
        return ...
    if re.fullmatch(r"-?\d{1,18}", bare):
        return int(bare)
    found = _SLICE.fullmatch(piece)
    if found is None:
        raise ArgumentError(
            f"{piece[:50]!r} is not a part of a slice: write 3, 3:7, ::2, : or ..., separated by commas"
        )
    start, stop, step = (None if number is None else int(number) for number in found.groups())
    return slice(start, stop, step)

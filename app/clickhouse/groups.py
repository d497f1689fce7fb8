"""Groups of neighbors: of rows that are alike, and of items that can be read at once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")


def begins_of(*columns: NDArray[Any]) -> NDArray[np.intp]:
    """Return where a new group begins among rows that are sorted by these columns."""
    is_new = np.ones(len(columns[0]), bool)
    is_new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(is_new)


def portions(
    items: Iterable[Item], sizes_of: Callable[[Item], tuple[int, ...]], most: tuple[int, ...]
) -> Iterator[list[Item]]:
    """Divide items into parts whose sizes, added up, aren't larger than these. One that is larger is a part."""
    part: list[Item] = []
    used = (0,) * len(most)
    for item in items:
        sizes = sizes_of(item)
        used = tuple(map(sum, zip(used, sizes, strict=True)))
        if part and any(one > limit for one, limit in zip(used, most, strict=True)):
            yield part
            part, used = [], sizes
        part.append(item)
    if part:
        yield part

"""The order in which a model computes within one step, to find the first of several affected taps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import Kind, Tap

# Taps are numbered when they are first seen: in the order of execution. The backward pass has the reverse order.
TURN: Final[dict[Kind, int]] = {
    "input": 0,
    "output": 0,
    "output_grad": 1,
    "input_grad": 1,
    "param_grad": 2,
    "update": 3,
    "param": 4,
    "probe": 5,
}
BACKWARD: Final[frozenset[Kind]] = frozenset({"output_grad", "input_grad", "param_grad"})
_PER_TURN: Final = 2**34  # more than twice the number of taps that a store can hold
_CONTAINER: Final = 2**33

Rank = tuple[int, int, bool, int]


def rank_of(step: int, number: int, tap: Tap, containers: frozenset[str]) -> Rank:
    """Return a sort key by cause: a tap with a lower rank can have caused one with a higher rank.

    In the backward pass, a container shares a tensor with its last child, whose name is more specific.
    """
    backward = tap.kind in BACKWARD
    return step, TURN[tap.kind], backward and tap.module in containers, -number if backward else number


class Causes:
    """The ranks of a store's taps as arrays, updated if taps were added."""

    def __init__(self, taps: Sequence[Tap]) -> None:
        self._taps = taps  # only ever appended to
        self._keys: NDArray[np.int64] = np.empty(0, np.int64)
        self._modules: NDArray[np.int64] = np.empty(0, np.int64)

    def first_of(self, numbers: NDArray[np.integer]) -> int:
        """Return the tap that can have caused all others."""
        self._update()
        return int(numbers[np.argmin(self._keys[numbers])])

    def order(self, numbers: NDArray[np.integer], onsets: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the places of taps by onset, and within a step by cause."""
        self._update()
        return np.lexsort((self._keys[numbers], onsets))

    def modules(self, numbers: NDArray[np.integer]) -> int:
        """Return the number of different modules that taps belong to."""
        self._update()
        return len(np.unique(self._modules[numbers]))

    def _update(self) -> None:
        if len(self._keys) == len(self._taps):
            return
        known = tuple(self._taps)
        containers = around({tap.module for tap in known})
        places: dict[str, int] = {}
        self._modules = np.array([places.setdefault(tap.module, len(places)) for tap in known], np.int64)
        self._keys = np.array([_key(*each, containers) for each in enumerate(known)], np.int64)


def _key(number: int, tap: Tap, containers: frozenset[str]) -> int:
    _, turn, is_container, place = rank_of(0, number, tap, containers)
    return turn * _PER_TURN + is_container * _CONTAINER + place


def around(modules: Iterable[str]) -> frozenset[str]:
    """Return every path that contains one of these."""
    found: set[str] = set()
    for module in modules:
        path = module
        while path:
            path = path.rpartition(".")[0]
            if path in found:
                break
            found.add(path)
    return frozenset(found)

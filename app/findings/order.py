"""The order in which a model computes within one step, to find the first of several affected taps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hookcore.records import Kind, Tap

# Taps are numbered when they are first seen: in the order of execution. The backward pass has the reverse order.
_TURN: Final[dict[Kind, int]] = {
    "input": 0,
    "output": 0,
    "output_grad": 1,
    "input_grad": 1,
    "param_grad": 2,
    "update": 3,
    "param": 4,
}
_BACKWARD: Final = frozenset({"output_grad", "input_grad", "param_grad"})

Rank = tuple[int, int, bool, int]


def rank_of(step: int, number: int, tap: Tap, around: frozenset[str]) -> Rank:
    """Return a sort key by cause: a tap with a lower rank can have caused one with a higher rank.

    `around` are the modules that contain other ranked ones. In the backward pass, they share a tensor with their last
    child, whose name is more specific.
    """
    backward = tap.kind in _BACKWARD
    return step, _TURN[tap.kind], backward and tap.module in around, -number if backward else number


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


@dataclass(frozen=True, slots=True)
class Group:
    """Taps with one cause: the index of the first, its column, and the number of other modules."""

    place: int
    column: int
    downstream: int


def groups_of(onsets: Sequence[tuple[int, int]], numbers: Sequence[int], taps: Sequence[Tap], gap: int) -> list[Group]:
    """Group (column, index) pairs whose onsets follow each other within `gap` columns; the first of each leads."""
    groups: list[list[tuple[int, int]]] = []
    for column, place in sorted(onsets):
        if not groups or column - groups[-1][-1][0] > gap:
            groups.append([])
        groups[-1].append((column, place))
    return [_group(members, numbers, taps) for members in groups]


def _group(members: list[tuple[int, int]], numbers: Sequence[int], taps: Sequence[Tap]) -> Group:
    modules = {taps[place].module for _, place in members}
    holders = around(modules)
    column, place = min(members, key=lambda each: rank_of(each[0], numbers[each[1]], taps[each[1]], holders))
    return Group(place, column, len(modules) - 1)

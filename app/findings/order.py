"""In which order a model computes within one step, and who of those that share a fate came first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hookcore.records import Kind, Tap

# Taps are numbered as they are met: forward in the order of execution. The backward pass takes them in reverse.
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
    """Sorts by cause: what ranks lower can have caused what ranks higher.

    `around` are the modules that hold others which are ranked too. In the backward pass these share a tensor with their
    last child, whose name says more.
    """
    backward = tap.kind in _BACKWARD
    return step, _TURN[tap.kind], backward and tap.module in around, -number if backward else number


def around(modules: Iterable[str]) -> frozenset[str]:
    """Every path that has one of these below it."""
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
    """Taps that one cause explains: the place of the first, its column, and how many more modules there are."""

    place: int
    column: int
    downstream: int


def groups_of(onsets: Sequence[tuple[int, int]], numbers: Sequence[int], taps: Sequence[Tap], gap: int) -> list[Group]:
    """Groups (column, place) by onsets that follow each other within `gap` columns; the first of each leads."""
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

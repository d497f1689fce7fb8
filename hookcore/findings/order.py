"""Groups of taps whose changes began together, each with the one that can have caused the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hookcore.incidents import around, rank_of
from hookcore.records import Tap


@dataclass(frozen=True, slots=True)
class Group:
    """Taps with one cause: the index of the first, its column, the number of other modules, and every (column, tap)."""

    place: int
    column: int
    downstream: int
    members: tuple[tuple[int, int], ...]


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
    return Group(place, column, len(modules) - 1, tuple((column, numbers[place]) for column, place in members))

"""Groups of taps whose changes began together, each with the one that can have caused the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hookcore.records import Tap
from hookcore.store.incidents import Feeding, around, rank_of


@dataclass(frozen=True, slots=True)
class Group:
    """Taps with one cause: the index of the first, its column, the number of other modules, and every (column, tap)."""

    place: int
    column: int
    downstream: int
    members: tuple[tuple[int, int], ...]


def groups_of(
    onsets: Sequence[tuple[int, int]],
    numbers: Sequence[int],
    taps: Sequence[Tap],
    gap: int,
    flow: Callable[[], Feeding | None] = lambda: None,
) -> list[Group]:
    """Group (column, index) pairs whose onsets follow each other within `gap` columns; the first of each leads.

    Of those that began in one column, it is the one that no other one feeds, else what the model computes first.
    """
    groups: list[list[tuple[int, int]]] = []
    for column, place in sorted(onsets):
        if not groups or column - groups[-1][-1][0] > gap:
            groups.append([])
        groups[-1].append((column, place))
    return [_group(members, numbers, taps, flow) for members in groups]


def _group(
    members: list[tuple[int, int]], numbers: Sequence[int], taps: Sequence[Tap], flow: Callable[[], Feeding | None]
) -> Group:
    modules = {taps[place].module for _, place in members}
    holders = around(modules)
    column, place = min(members, key=lambda each: rank_of(each[0], numbers[each[1]], taps[each[1]], holders))
    began = {numbers[each]: each for start, each in members if start == column}
    feeding = flow() if len(began) > 1 else None
    source = None if feeding is None else feeding.first(began, numbers, taps[place].kind)
    if source is not None:
        place = began[source.number]
    return Group(place, column, len(modules) - 1, tuple((column, numbers[place]) for column, place in members))

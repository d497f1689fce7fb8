"""Connections between boxes, level by level: the connections inside a box are between its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

OUTSIDE: Final = -1  # the other end of a connection lies outside of the box; also the place around all boxes


@dataclass(slots=True)
class Connection:
    """The data flow from one part of a box to another."""

    carries: set[int] = field(default_factory=set)  # the boxes whose outputs flow
    guessed: bool = True  # whether only the order of execution is known


Level = dict[tuple[int, int], Connection]  # by source and target, which are parts, or OUTSIDE
Fed = tuple[int, int, bool]  # source, target, and whether it is guessed


def levels_of(inside: Sequence[int], fed: Iterable[Fed]) -> dict[int, Level]:
    """Return the connections inside each box, given which box each one is in. All ends of connections are boxes.

    A box that contains a source is a source for what is outside, and a box that contains a target is a target. A target
    that contains its source gets it as its own output.
    """
    levels: dict[int, Level] = {}
    with_parts = set(inside)
    for source, target, guessed in fed:
        for box, ends in _steps(inside, with_parts, source, target):
            found = levels.setdefault(box, {}).setdefault(ends, Connection())
            found.carries.add(source)
            found.guessed &= guessed
    return levels


def _steps(
    inside: Sequence[int], with_parts: Set[int], source: int, target: int
) -> Iterable[tuple[int, tuple[int, int]]]:
    """Yield the boxes that a connection crosses, each with its two ends there."""
    up, down = _way_out(inside, source), _way_out(inside, target)
    if source in down:
        return  # a module that runs inside itself
    within = set(down)  # the target, and all boxes around it
    below = source
    for box in up[1:]:
        if box in within:
            break
        yield box, (below, OUTSIDE)
        below = box
    else:
        box = OUTSIDE
    if box == target:
        yield box, (below, OUTSIDE)
        return
    entered = down[: down.index(box)] if box in within else down
    yield box, (below, entered[-1])
    for outer, inner in zip(reversed(entered), reversed(entered[:-1]), strict=False):
        yield outer, (OUTSIDE, inner)
    if target in with_parts:  # what a box with parts computes itself
        yield target, (OUTSIDE, OUTSIDE)


def _way_out(inside: Sequence[int], box: int) -> list[int]:
    """Return a box and all boxes around it, the outermost last."""
    way = [box]
    while (box := inside[box]) != OUTSIDE:
        way.append(box)
    return way

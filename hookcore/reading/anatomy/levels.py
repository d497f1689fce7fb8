"""The parts of one box: how they are connected, and which of them repeat.

A run of repeats is a *unit* of one or more parts that occurs several times in a row, such as the twelve blocks of a
transformer, or a linear layer and an activation, ten times. The units have the same structure, and each must get its
inputs as the others do: from the unit before it, or from the same places.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

OUTSIDE: Final = -1  # the other end of a connection lies outside of the box; also the place around all boxes
MIN_TIMES: Final = 3
MAX_PERIOD: Final = 8  # parts of a unit


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


@dataclass(frozen=True, slots=True)
class Run:
    """Parts from `first` to `last`, excluded: units of `period` parts."""

    first: int
    last: int
    period: int


# The other ends of a part's connections, by their places; -1 is the outside.
Ties = tuple[list[int], list[int]]


def runs_of(kinds: Sequence[Hashable], parts: Sequence[int], level: Level) -> Iterator[Run]:
    """Yield the runs among the parts of a box in their order. `kinds` says which have the same structure."""
    places = {part: place for place, part in enumerate(parts)}
    ties = _ties_of(level, places)
    alike = {period: _alike(kinds, period) for period in range(1, MAX_PERIOD + 1)}
    first = 0
    while first < len(parts):
        runs = (_run_at(ties, first, period, 1 + many[first] // period) for period, many in alike.items())
        best = max((run for run in runs if run is not None), key=lambda run: run.last, default=None)
        if best is None:
            first += 1
        else:
            yield best
            first = best.last


def _alike(kinds: Sequence[Hashable], period: int) -> list[int]:
    """Return how many places from each one on have the kind of the place that lies a period further."""
    found = [0] * len(kinds)
    for place in range(len(kinds) - period - 1, -1, -1):
        found[place] = found[place + 1] + 1 if kinds[place] == kinds[place + period] else 0
    return found


def _run_at(ties: list[Ties], first: int, period: int, times: int) -> Run | None:
    while times >= MIN_TIMES:
        run = Run(first, first + times * period, period)
        regular = _regular_times(ties, run, times)
        if regular == times:
            return run
        times = regular
    return None


def _ties_of(level: Level, places: dict[int, int]) -> list[Ties]:
    ties: list[Ties] = [([], []) for _ in places]
    for source, target in level:
        one, other = places.get(source, OUTSIDE), places.get(target, OUTSIDE)
        if target != OUTSIDE:
            ties[other][0].append(one)
        if source != OUTSIDE:
            ties[one][1].append(other)
    return ties


def _regular_times(ties: list[Ties], run: Run, times: int) -> int:
    """Return how many units from the first one on are connected alike."""
    inputs, outputs = range(2)
    second = _links(ties, run, 1, inputs)
    for number in range(times):
        given, sent = (_links(ties, run, number, side) for side in (inputs, outputs))
        if number and given != second:
            return number
        if number == 0 and not _begins(given, second):
            return 1
        if number < times - 1 and sent != _links(ties, run, 0, outputs):
            return number + 1  # it can be the last one, whose output goes elsewhere
    return times


Link = tuple[int, str, int]  # a place in the unit, which end the other one is, and its place there


def _links(ties: list[Ties], run: Run, unit: int, side: int) -> frozenset[Link]:
    """Return where the inputs or the outputs of a unit lead: side 0 or 1 of its ties."""
    begin, found = run.first + unit * run.period, set()
    for place in range(run.period):
        for other in ties[begin + place][side]:
            away, at = divmod(other - begin, run.period)
            is_inside = run.first <= other < run.last  # in a unit of the run: how many units away
            found.add((place, f"unit {away:+d}", at) if is_inside else (place, "elsewhere", other))
    return frozenset(found)


def _begins(given: frozenset[Link], second: frozenset[Link]) -> bool:
    """Return whether the first unit has the inputs of the others, except those from the preceding unit."""
    before = {place for place, where, _ in second if where == "unit -1"}
    common = {link for link in second if link[1] != "unit -1"}
    own = given - common
    return common <= given and all(where == "elsewhere" and place in before for place, where, _ in own)

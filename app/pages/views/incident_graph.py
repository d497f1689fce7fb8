"""The modules around an incident's culprit as a small graph: what feeds it, and what it feeds. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from hookcore.reading import Reader, answers
from hookcore.records import GRADIENT_KINDS, ROOT, Tap
from hookcore.store.incidents import Incident

BEFORE: Final = 2  # levels that are shown of what feeds the culprit
BEHIND: Final = 3  # of what it feeds
A_LEVEL: Final = 5  # modules
WIDTH: Final = 170  # of a module's box
HEIGHT: Final = 34
GAP_X: Final = 46
GAP_Y: Final = 12

State = Literal["culprit", "same", "later", "fine", "unknown"]


@dataclass(frozen=True, slots=True)
class Node:
    """A call of a module: its box, and what the incident says of it."""

    path: str
    call: int
    x: int
    y: int
    state: State
    since: int | None

    @property
    def name(self) -> str:
        return f"{self.path or ROOT}{f' call {self.call}' if self.call else ''}"


@dataclass(frozen=True, slots=True)
class Graph:
    """Boxes, and curves between them. `left_out` calls are near too, but there are too many."""

    nodes: tuple[Node, ...]
    edges: tuple[str, ...]
    width: int
    height: int
    left_out: int
    guessed: bool  # whether some of it is only known from the order of execution


def graph_of(incident: Incident, reader: Reader) -> Graph | None:
    """Return the graph around the culprit, from the structure that was known in the first step; None if it has none."""
    flow = reader.flow(incident.first_step)
    if flow.step is None and flow.steps:
        flow = reader.flow(flow.steps[0])
    tap = incident.culprit.tap
    of_module = [place for place, each in enumerate(flow.calls) if each.module == tap.module]
    exact = (place for place in of_module if (flow.calls[place].call, flow.calls[place].phase) == (tap.call, tap.phase))
    start = next(exact, of_module[0] if of_module else None)  # parameters have no calls, but their module has
    if start is None:
        return None
    feeds: dict[int, list[int]] = defaultdict(list)
    for place, call in enumerate(flow.calls):
        for source in call.fed_by:
            feeds[source].append(place)
    levels: dict[int, int] = {start: 0}
    left_out = _spread(levels, start, {place: call.fed_by for place, call in enumerate(flow.calls)}, -1, BEFORE)
    left_out += _spread(levels, start, feeds, 1, BEHIND)
    return _drawn(incident, flow, start, levels, left_out, reader.taps().taps) if len(levels) > 1 else None


def _spread(levels: dict[int, int], start: int, ways: Mapping[int, Iterable[int]], by: int, most: int) -> int:
    """Add the calls that are up to `most` levels away. Return how many were left out."""
    at, left_out = [start], 0
    for distance in range(1, most + 1):
        found = [each for each in dict.fromkeys(to for place in at for to in ways.get(place, ())) if each not in levels]
        left_out += max(0, len(found) - A_LEVEL)
        at = found[:A_LEVEL]
        levels.update(dict.fromkeys(at, by * distance))
    return left_out


def _drawn(
    incident: Incident,
    flow: answers.Flow,
    start: int,
    levels: Mapping[int, int],
    left_out: int,
    taps: Iterable[answers.Tap],
) -> Graph:
    columns: dict[int, list[int]] = defaultdict(list)
    for place in sorted(levels):
        columns[levels[place]].append(place)
    first, tallest = min(columns), max(map(len, columns.values()))
    height = tallest * (HEIGHT + GAP_Y) - GAP_Y
    affected, captured = _affected(incident), {_key(tap) for tap in taps if _is_of_pass(tap, incident)}
    nodes: dict[int, Node] = {}
    for level, places in columns.items():
        top = (height - len(places) * (HEIGHT + GAP_Y) + GAP_Y) // 2
        for row, place in enumerate(places):
            call = flow.calls[place]
            key = call.module, call.call, call.phase
            since = affected.get(key)
            x, y = (level - first) * (WIDTH + GAP_X), top + row * (HEIGHT + GAP_Y)
            state = _state(incident, since, place == start, key in captured)
            nodes[place] = Node(call.module, call.call, x, y, state, since)
    edges = [
        _curve(nodes[source], nodes[place])
        for place in sorted(nodes)
        for source in flow.calls[place].fed_by
        if source in nodes and nodes[source].x < nodes[place].x
    ]
    width = len(range(first, max(columns) + 1)) * (WIDTH + GAP_X) - GAP_X
    guessed = any(flow.calls[place].how == "order" for place in levels)
    return Graph(tuple(nodes.values()), tuple(edges), width, height, left_out, guessed)


def _affected(incident: Incident) -> dict[tuple[str, int, str], int]:
    """Return the first step of each call that was affected in the culprit's pass."""
    found: dict[tuple[str, int, str], int] = {}
    for link in (incident.culprit, *incident.chain):
        if _is_of_pass(link.tap, incident):
            key = _key(link.tap)
            found[key] = min(found.get(key, link.first_step), link.first_step)
    return found


def _is_of_pass(tap: Tap | answers.Tap, incident: Incident) -> bool:
    """Return whether a tap belongs to the culprit's pass, forward or backward."""
    return (tap.kind in GRADIENT_KINDS) == (incident.culprit.tap.kind in GRADIENT_KINDS)


def _key(tap: Tap | answers.Tap) -> tuple[str, int, str]:
    return tap.module, tap.call, tap.phase


def _state(incident: Incident, since: int | None, is_culprit: bool, is_captured: bool) -> State:
    if is_culprit:
        return "culprit"
    if since is None:
        return "fine" if is_captured and incident.taps <= len(incident.chain) else "unknown"
    return "same" if since == incident.first_step else "later"


def _curve(source: Node, target: Node) -> str:
    x, y, right, down = source.x + WIDTH, source.y + HEIGHT // 2, target.x, target.y + HEIGHT // 2
    middle = (x + right) // 2
    head = f"M{right - 6} {down - 4}L{right} {down}L{right - 6} {down + 4}"
    return f"M{x} {y}C{middle} {y} {middle} {down} {right} {down}{head}"

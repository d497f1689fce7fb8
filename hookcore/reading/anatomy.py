"""A model as nested boxes: their parts, the connections on each level, and repeats. Pure functions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, Literal

from hookcore.records import ModuleRecord, Phase
from hookcore.records.flow import CallSize, Flow, How, TensorForm

# The parts of one box: how they are connected, and which of them repeat.
#
# A run of repeats is a *unit* of one or more parts that occurs several times in a row, such as the twelve blocks of a
# transformer, or a linear layer and an activation, ten times. The units have the same structure, and each must get its
# inputs as the others do: from the unit before it, or from the same places.

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
            connection = levels.setdefault(box, {}).setdefault(ends, Connection())
            connection.carries.add(source)
            connection.guessed &= guessed
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
class Repetition:
    """Parts from `first` to `last`, excluded: units of `period` parts."""

    first: int
    last: int
    period: int


# The other ends of a part's connections, by their places; -1 is the outside.
Ties = tuple[list[int], list[int]]


def runs_of(kinds: Sequence[Hashable], parts: Sequence[int], level: Level) -> Iterator[Repetition]:
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
    lengths = [0] * len(kinds)
    for place in range(len(kinds) - period - 1, -1, -1):
        lengths[place] = lengths[place + 1] + 1 if kinds[place] == kinds[place + period] else 0
    return lengths


def _run_at(ties: list[Ties], first: int, period: int, times: int) -> Repetition | None:
    while times >= MIN_TIMES:
        run = Repetition(first, first + times * period, period)
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


def _regular_times(ties: list[Ties], run: Repetition, times: int) -> int:
    """Return how many units from the first one on are connected alike."""
    inputs, outputs = range(2)
    second = _links(ties, run, 1, inputs)
    for number in range(times):
        received, sent = (_links(ties, run, number, side) for side in (inputs, outputs))
        if number and received != second:
            return number
        if number == 0 and not _begins(received, second):
            return 1
        if number < times - 1 and sent != _links(ties, run, 0, outputs):
            return number + 1  # it can be the last one, whose output goes elsewhere
    return times


Link = tuple[int, str, int]  # a place in the unit, which end the other one is, and its place there


def _links(ties: list[Ties], run: Repetition, unit: int, side: int) -> frozenset[Link]:
    """Return where the inputs or the outputs of a unit lead: side 0 or 1 of its ties."""
    begin, links = run.first + unit * run.period, set()
    for place in range(run.period):
        for other in ties[begin + place][side]:
            away, at = divmod(other - begin, run.period)
            is_inside = run.first <= other < run.last  # in a unit of the run: how many units away
            links.add((place, f"unit {away:+d}", at) if is_inside else (place, "elsewhere", other))
    return frozenset(links)


def _begins(received: frozenset[Link], second: frozenset[Link]) -> bool:
    """Return whether the first unit has the inputs of the others, except those from the preceding unit."""
    before = {place for place, where, _ in second if where == "unit -1"}
    common = {link for link in second if link[1] != "unit -1"}
    own = received - common
    return common <= received and all(where == "elsewhere" and place in before for place, where, _ in own)


# The boxes of a model: one for each call if the data flow is known, else one for each module; and repeats.

UNKNOWN_FLOW: Final = "the data flow isn't known"


@dataclass(slots=True)
class Box:
    """A call, a module, or a *repeat*: parts of a box that occur several times in a row."""

    kind: Literal["call", "module", "repeat"]
    module: ModuleRecord
    call: int = 0
    phase: Phase = "train"
    how: How = "graph"
    size: CallSize = field(default_factory=CallSize)
    computes: bool = True  # whether it has operators of its own, not only those of its parts
    inside: int = OUTSIDE
    period: int = 1  # of a repeat: the number of its parts that are one unit
    first: int = -1  # of a repeat: its first part
    parts: list[int] = field(default_factory=list)  # in the order of execution, or of registration
    level: Level = field(default_factory=dict)  # the connections of its parts


@dataclass(frozen=True, slots=True)
class Total:
    """The size of a box with all its parts. `why` says why not all of its operations are counted; "" if they are."""

    flops: int
    why: str
    memory: int | None


@dataclass(frozen=True, slots=True)
class Anatomy:
    """All boxes by number, and the outermost ones. The number of a call is its place in the flow."""

    boxes: tuple[Box, ...]
    parts: tuple[int, ...]
    level: Level
    absent: tuple[str, ...] = ()  # the outermost modules that no call belongs to

    def totals(self) -> list[Total]:
        """Return the size of each box with all its parts."""
        totals = [Total(0, "", 0)] * len(self.boxes)
        for number in self._from_inside():
            box = self.boxes[number]
            inside = [totals[part] for part in box.parts]
            own = Total(0, "", 0) if box.kind == "repeat" else Total(box.size.flops or 0, box.size.why, box.size.memory)
            memories = [total.memory for total in (own, *inside)]
            totals[number] = Total(
                sum(total.flops for total in (own, *inside)),
                next((total.why for total in (own, *inside) if total.why), ""),
                None if None in memories else sum(memory for memory in memories if memory is not None),
            )
        return totals

    def kinds(self) -> list[int]:
        """Return a number for each box; those with equal structure have the same one."""
        numbers: dict[Hashable, int] = {}
        kinds = [0] * len(self.boxes)
        for number in self._from_inside():
            box = self.boxes[number]
            at = {part: place for place, part in enumerate(box.parts)} | {OUTSIDE: OUTSIDE}
            structure = (
                box.module.type,
                box.module.trainable > 0,
                tuple(shape for shape in box.module.shapes if not shape[0].startswith(("input", "output"))),
                box.phase,
                box.computes,
                box.size.made_by,
                tuple(kinds[part] for part in box.parts),
                frozenset((at[source], at[target]) for source, target in box.level),
            )
            kinds[number] = numbers.setdefault(structure, len(numbers))
        return kinds

    def _from_inside(self) -> list[int]:
        """Return all boxes, each after its parts."""
        depths = self.depths()
        return sorted(range(len(depths)), key=lambda number: -depths[number])

    def depths(self) -> list[int]:
        """Return the number of boxes around each box."""
        depths = [-1] * len(self.boxes)
        for number in range(len(self.boxes)):
            way = [number]
            while (box := self.boxes[way[-1]].inside) != OUTSIDE and depths[box] < 0:
                way.append(box)
            depth = 0 if box == OUTSIDE else depths[box] + 1
            for outer in reversed(way):
                depths[outer] = depth
                depth += 1
        return depths


def anatomy_of(modules: Sequence[ModuleRecord], flow: Flow | None) -> Anatomy:
    """Return the boxes of a model. The boxes of modules that no longer exist have no parameters."""
    boxes = _modules(modules) if flow is None else _calls(modules, flow)
    fed = list(_fed(flow)) if flow is not None else []
    plain = _arranged(boxes, fed)
    folded = _with_repeats(plain)
    absent = () if flow is None else tuple(_absent(modules, flow))
    arranged = plain if folded is None else _arranged(folded, fed)
    return Anatomy(arranged.boxes, arranged.parts, arranged.level, absent)


def _calls(modules: Sequence[ModuleRecord], flow: Flow) -> list[Box]:
    by_path = {path: module for module in modules for path in (*module.aliases, module.path)}
    with_parts = {call.inside for call in flow.calls}
    unsized = CallSize(why=UNKNOWN_FLOW)
    return [
        Box(
            "call",
            by_path.get(call.module) or ModuleRecord(call.module, "", None),
            call.call,
            call.phase,
            call.how,
            flow.sizes[place] if flow.sizes else unsized,
            place not in with_parts or bool(call.fed_by),
            call.inside,
        )
        for place, call in enumerate(flow.calls)
    ]


def _modules(modules: Sequence[ModuleRecord]) -> list[Box]:
    places = {module.path: place for place, module in enumerate(modules)}
    parents = {module.parent for module in modules}
    around = [places.get(module.parent, OUTSIDE) if module.parent is not None else OUTSIDE for module in modules]
    return [
        Box(
            "module",
            module,
            size=_size_of(module),
            computes=module.path not in parents,  # for others, it is unknown whether they do
            inside=OUTSIDE if around[place] == place else around[place],
        )
        for place, module in enumerate(modules)
    ]


def _size_of(module: ModuleRecord) -> CallSize:
    forms: dict[str, list[TensorForm]] = {"input": [], "output": []}
    for name, shape in module.shapes:
        kind, _, place = name.partition(" ")
        if kind in forms:
            forms[kind].append(TensorForm(place, "", shape))
    return CallSize(tuple(forms["input"]), tuple(forms["output"]), why=UNKNOWN_FLOW)


def _fed(flow: Flow) -> Iterable[Fed]:
    for place, call in enumerate(flow.calls):
        for source in call.fed_by:
            yield source, place, call.how == "order"
        for source in call.returns:
            yield source, place, False


def _absent(modules: Sequence[ModuleRecord], flow: Flow) -> Iterable[str]:
    ran = {call.module for call in flow.calls}
    around = {path: module.parent for module in modules for path in (module.path, *module.aliases)}
    for path in list(ran):
        while (above := around.get(path)) is not None and above not in ran:
            ran.add(above)
            path = above
    for module in modules:
        if ran.isdisjoint((module.path, *module.aliases)) and (module.parent is None or module.parent in ran):
            yield module.path


def _arranged(boxes: Sequence[Box], fed: Iterable[Fed]) -> Anatomy:
    """Add each box to the parts of the box around it, and add all connections."""
    levels = levels_of([box.inside for box in boxes], fed)
    around: dict[int, list[int]] = {}
    for number in sorted(range(len(boxes)), key=lambda number: _begin(boxes, number)):
        around.setdefault(boxes[number].inside, []).append(number)
    for number, box in enumerate(boxes):
        box.parts, box.level = around.get(number, []), levels.get(number, {})
    return Anatomy(tuple(boxes), tuple(around.get(OUTSIDE, ())), levels.get(OUTSIDE, {}))


def _begin(boxes: Sequence[Box], number: int) -> int:
    """Return the place of a box in its order: that of its first part if it is a repeat, whose number is a later one."""
    return boxes[number].first if boxes[number].first >= 0 else number


def _with_repeats(anatomy: Anatomy) -> list[Box] | None:
    """Return the boxes with others around parts that repeat; None if no parts do."""
    boxes, kinds = list(anatomy.boxes), anatomy.kinds()
    for around, parts, level in (
        (OUTSIDE, anatomy.parts, anatomy.level),
        *((number, tuple(box.parts), box.level) for number, box in enumerate(anatomy.boxes)),
    ):
        for run in runs_of([kinds[part] for part in parts], parts, level):
            for part in parts[run.first : run.last]:
                boxes[part].inside = len(boxes)
            first = boxes[parts[run.first]]
            boxes.append(
                Box(
                    "repeat",
                    first.module,
                    phase=first.phase,
                    computes=False,
                    inside=around,
                    period=run.period,
                    first=parts[run.first],
                )
            )
    return boxes if len(boxes) > len(anatomy.boxes) else None

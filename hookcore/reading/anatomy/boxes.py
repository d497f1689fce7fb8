"""The boxes of a model: one for each call if the data flow is known, else one for each module; and repeats."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from hookcore.reading.anatomy.levels import OUTSIDE, Fed, Level, levels_of, runs_of
from hookcore.records import ModuleRecord, Phase
from hookcore.records.flow import CallSize, Flow, How, TensorForm

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
        found = [Total(0, "", 0)] * len(self.boxes)
        for number in self._from_inside():
            box = self.boxes[number]
            inside = [found[part] for part in box.parts]
            own = Total(0, "", 0) if box.kind == "repeat" else Total(box.size.flops or 0, box.size.why, box.size.memory)
            memories = [each.memory for each in (own, *inside)]
            found[number] = Total(
                sum(each.flops for each in (own, *inside)),
                next((each.why for each in (own, *inside) if each.why), ""),
                None if None in memories else sum(each for each in memories if each is not None),
            )
        return found

    def kinds(self) -> list[int]:
        """Return a number for each box; those with equal structure have the same one."""
        numbers: dict[Hashable, int] = {}
        found = [0] * len(self.boxes)
        for number in self._from_inside():
            box = self.boxes[number]
            at = {part: place for place, part in enumerate(box.parts)} | {OUTSIDE: OUTSIDE}
            structure = (
                box.module.type,
                box.module.trainable > 0,
                tuple(each for each in box.module.shapes if not each[0].startswith(("input", "output"))),
                box.phase,
                box.computes,
                box.size.made_by,
                tuple(found[part] for part in box.parts),
                frozenset((at[source], at[target]) for source, target in box.level),
            )
            found[number] = numbers.setdefault(structure, len(numbers))
        return found

    def _from_inside(self) -> list[int]:
        """Return all boxes, each after its parts."""
        depths = self.depths()
        return sorted(range(len(depths)), key=lambda number: -depths[number])

    def depths(self) -> list[int]:
        """Return the number of boxes around each box."""
        found = [-1] * len(self.boxes)
        for number in range(len(self.boxes)):
            way = [number]
            while (box := self.boxes[way[-1]].inside) != OUTSIDE and found[box] < 0:
                way.append(box)
            depth = 0 if box == OUTSIDE else found[box] + 1
            for each in reversed(way):
                found[each] = depth
                depth += 1
        return found


def anatomy_of(modules: Sequence[ModuleRecord], flow: Flow | None) -> Anatomy:
    """Return the boxes of a model. The boxes of modules that no longer exist have no parameters."""
    boxes = _modules(modules) if flow is None else _calls(modules, flow)
    fed = list(_fed(flow)) if flow is not None else []
    found = _arranged(boxes, fed)
    folded = _with_repeats(found)
    absent = () if flow is None else tuple(_absent(modules, flow))
    arranged = found if folded is None else _arranged(folded, fed)
    return Anatomy(arranged.boxes, arranged.parts, arranged.level, absent)


def _calls(modules: Sequence[ModuleRecord], flow: Flow) -> list[Box]:
    known = {path: module for module in modules for path in (*module.aliases, module.path)}
    with_parts = {call.inside for call in flow.calls}
    unsized = CallSize(why=UNKNOWN_FLOW)
    return [
        Box(
            "call",
            known.get(call.module) or ModuleRecord(call.module, "", None),
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
    around = [places.get(each.parent, OUTSIDE) if each.parent is not None else OUTSIDE for each in modules]
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

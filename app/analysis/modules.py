"""The modules of a run: as rows and as a tree, which ones a text means, and what is missing of their data."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from hookcore.config.patterns import STRUCTURE, Facts, Selection, literal, parse, parse_search, select_among
from hookcore.config.patterns import literal_expression as escaped
from hookcore.errors import ArgumentError, PatternError
from hookcore.reading import Reader
from hookcore.records import GRADIENT_KINDS, HookRecord, Kind, Phase, Tap
from hookcore.records.vocabulary import KIND_WORDS
from hookcore.store import Latest, Store, TapList

from ..runs import Run, ranks_in
from .figures.lines import Spark, spark_of

# A row for each module: its captured tensors, its number of calls, and its hooks.

ON_MODEL: Final = frozenset({"module", "parameter"})


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module: its captured tensors, and its number of calls in a step."""

    path: str
    type: str
    parent: str | None
    captured: bool
    kinds: tuple[Kind, ...]
    reason: str
    calls: int
    values: int  # number of values in its newest step, or in that of the steps asked for
    hooks: int  # not from hookcore


def types_of(reader: Reader) -> dict[str, str]:
    """Return the class of each module by path, in the model's order."""
    return {each.path: each.type for each in reader.coverage()}


def rows_of(store: Store, first: int | None = None, last: int | None = None) -> list[ModuleRow]:
    """Return a row for each module, in the model's order. With bounds, values are counted in these steps."""
    coverage = store.coverage()
    parents = {module.path: module.parent for module in store.modules()}
    latest = store.latest(stat="count", first=first, last=last, merged=True)
    calls, values = _calls_in(latest), _values_in(latest)
    paths = {each.path for each in coverage}
    foreign = Counter(_module_of(hook, paths) for hook in store.hooks() if not hook.ours and hook.scope in ON_MODEL)
    return [
        ModuleRow(
            each.path,
            each.type,
            parents.get(each.path),
            each.captured,
            each.kinds,
            each.reason,
            calls[each.path],
            values[each.path],
            foreign[each.path],
        )
        for each in coverage
    ]


def columns_of(rows: Sequence[ModuleRow]) -> dict[str, NDArray[np.int64] | list[str]]:
    """Return the columns of a file: numbers, and texts."""
    numbers = {name: np.array([getattr(row, name) for row in rows], np.int64) for name in ("calls", "values", "hooks")}
    return {
        "path": [row.path for row in rows],
        "type": [row.type for row in rows],
        "captured": ["yes" if row.captured else row.reason or "no" for row in rows],
        "kinds": [" ".join(row.kinds) for row in rows],
        **numbers,
    }


def calls_of(store: Store, taps: TapList, first: int | None = None, last: int | None = None) -> Counter[str]:
    """Return how often each module of these taps was called in its newest captured step, up to the limit of calls."""
    return _calls_in(store.latest(taps, "count", first=first, last=last, merged=True))


def _fresh(latest: Latest) -> Iterator[tuple[Tap, float]]:
    """Yield the taps and values of each module's newest step.

    Earlier steps may have had more calls: the forward pass of a loss that was given up belongs to the next step.
    """
    newest: dict[tuple[str, str, str], int] = {}
    every = [*zip(latest.taps, latest.steps.tolist(), latest.values[:, 0].tolist(), strict=True)]
    for tap, step, _ in every:
        key = tap.module, tap.kind, tap.phase
        newest[key] = max(step, newest.get(key, step))
    return ((tap, value) for tap, step, value in every if step == newest[tap.module, tap.kind, tap.phase])


def _calls_in(latest: Latest) -> Counter[str]:
    """Return the number of each module's calls in training, or in evaluation if it had none in training."""
    calls: dict[Phase, Counter[str]] = {"train": Counter(), "eval": Counter()}
    for tap, _ in _fresh(latest):
        if tap.kind == "output":
            calls[tap.phase][tap.module] = max(calls[tap.phase][tap.module], tap.call + 1)
    return Counter({**calls["eval"], **calls["train"]})


def _values_in(latest: Latest) -> Counter[str]:
    values: Counter[str] = Counter()
    for tap, count in _fresh(latest):
        values[tap.module] += 0 if math.isnan(count) else int(count)
    return values


def _module_of(hook: HookRecord, paths: Iterable[str]) -> str:
    """Return the module of a hook; for a hook on a parameter, the module that has the parameter."""
    return hook.owner if hook.scope == "module" or hook.owner in paths else hook.owner.rpartition(".")[0]


# The rows of a table as a tree that a reader folds, filters, and sorts.

ROOT_ID: Final = "."  # the root module in an address: its path is empty
MAX_FOLDS: Final = 4000  # letters of the folded groups in an address
_NUMBERS: Final = re.compile(r"([0-9]{1,18})")


@dataclass(slots=True, eq=False)
class Branch:
    """A module and the modules in it. Blocks that are built alike can be one branch, with a member for each block."""

    path: str
    name: str  # the path below the parent's
    members: list[ModuleRow]
    parent: Branch | None = None
    children: list[Branch] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The name of the branch in an address."""
        return quote(self.path, safe="") or ROOT_ID

    def every(self) -> list[ModuleRow]:
        """Return the rows of the branch and of everything below it."""
        return [row for branch in every_branch([self]) for row in branch.members]


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A row of the table."""

    branch: Branch
    level: int
    is_open: bool | None  # None without anything to open
    matches: bool  # or only contains modules that match

    @property
    def stands_for(self) -> list[ModuleRow]:
        """The modules that this row stands for: its own, and those below it if it is closed."""
        return self.branch.every() if self.is_open is False else self.branch.members

    def worst(self, column: str) -> ModuleRow:
        """Return the module to show in a column: the one with the largest rank of those that the row stands for."""
        rank = _RANKS.get(column)
        return self.branch.members[0] if rank is None else max(self.stands_for, key=rank)


_RANKS: Final[dict[str, Callable[[ModuleRow], int]]] = {
    "captured": lambda row: not row.captured,
    "calls": lambda row: row.calls,
    "values": lambda row: row.values,
    "hooks": lambda row: row.hooks,
}
_SORTED_BY: Final[dict[str, Callable[[ModuleRow], int | str]]] = {
    **_RANKS,
    "path": lambda row: row.path,
    "type": lambda row: row.type,
    "captured": lambda row: "yes" if row.captured else row.reason or "no",
    "kinds": lambda row: ", ".join(row.kinds),
}


@dataclass(frozen=True, slots=True)
class Folds:
    """Which groups are open: as `mode` says, except for those that the reader has turned."""

    mode: str = ""  # "" is all, "none", or "uncaptured": groups with uncaptured modules
    turned: tuple[str, ...] = ()  # ids

    @classmethod
    def read(cls, text: str) -> Folds:
        """Read the folds of an address: `*none,layers.3,layers.4`."""
        ids = [each for each in text.split(",") if each]
        mode = ids.pop(0)[1:] if ids and ids[0].startswith("*") else ""
        return cls(mode if mode in ("none", "uncaptured") else "", tuple(ids))

    def turn(self, branch: Branch) -> str:
        """Return the folds after a branch was opened or closed. If there are too many, the oldest ones are dropped."""
        ids = [each for each in self.turned if each != branch.id]
        ids += [branch.id] if len(ids) == len(self.turned) else []
        mode = [f"*{self.mode}"] if self.mode else []
        while len(",".join(mode + ids)) > MAX_FOLDS:
            ids.pop(0)
        return ",".join(mode + ids)

    def opened(self, roots: Sequence[Branch]) -> set[Branch]:
        """Return the open branches."""
        every = every_branch(roots)
        if self.mode == "uncaptured":
            usual = {branch for branch in every if any(_has_uncaptured(child) for child in branch.children)}
        elif self.mode == "none":
            usual = {branch for branch in roots if len(roots) == 1}
        else:
            usual = set(every)
        turned = set(self.turned)
        return {branch for branch in every if (branch in usual) != (branch.id in turned)}


def _has_uncaptured(branch: Branch) -> bool:
    return any(not row.captured for row in branch.every())


def grow(rows: Iterable[ModuleRow]) -> list[Branch]:
    """Return the roots of a tree. A module whose parent is not listed stands below its nearest listed ancestor."""
    known, roots = dict[str, Branch](), list[Branch]()
    for row in rows:
        parent = _parent_of(row, known)
        name = row.path[len(parent.path) + 1 :] if parent and parent.path else row.path
        branch = known[row.path] = Branch(row.path, name or row.type or "model", [row], parent)
        (roots if parent is None else parent.children).append(branch)
    return roots


def _parent_of(row: ModuleRow, known: Mapping[str, Branch]) -> Branch | None:
    if row.parent is not None and row.parent in known:
        return known[row.parent]
    path = row.path
    while (end := max(path.rfind("."), path.rfind("/"))) > 0:  # a slash ends the name of a root
        path = path[:end]
        if path in known:
            return known[path]
    return known.get("") if row.path else None


def every_branch(roots: Sequence[Branch]) -> list[Branch]:
    """Return all branches, each before its children."""
    found, waiting = list[Branch](), [*reversed(roots)]
    while waiting:
        found.append(waiting.pop())
        waiting += reversed(found[-1].children)
    return found


def fold_alike(roots: Sequence[Branch]) -> list[Branch]:
    """Return a tree in which numbered neighbors that are built alike are one: `layers.0` to `.31` are `layers.*`."""
    shapes, numbers = dict[Branch, int](), dict[object, int]()
    for branch in reversed(every_branch(roots)):
        shape = branch.members[0].type, tuple((child.name, shapes[child]) for child in branch.children)
        shapes[branch] = numbers.setdefault(shape, len(numbers))
    folded = [Branch(root.path, root.name, root.members) for root in roots]
    waiting = [([root], branch) for root, branch in zip(roots, folded, strict=True)]
    while waiting:
        alike, into = waiting.pop()
        first = alike[0]
        for places in _runs_of(first.children, shapes):
            child = first.children[places[0]]
            name = child.name if len(places) == 1 else "*"
            path = into.path + child.path[len(first.path) : len(child.path) - len(child.name)] + name
            below = [branch.children[place] for branch in alike for place in places]
            into.children.append(Branch(path, name, [row for each in below for row in each.members], into))
            waiting.append((below, into.children[-1]))
    return folded


def _runs_of(branches: Sequence[Branch], shapes: Mapping[Branch, int]) -> list[list[int]]:
    """Return the places of neighbors that are built alike and have numbers as names, and of each other branch."""
    runs = list[list[int]]()
    for place, branch in enumerate(branches):
        is_number, before = _NUMBERS.fullmatch(branch.name), branches[place - 1]
        if runs and is_number and _NUMBERS.fullmatch(before.name) and shapes[before] == shapes[branch]:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def shown_rows(
    roots: Sequence[Branch], fits: Callable[[str], bool], sort: str = "", folds: Folds = Folds()
) -> tuple[list[TreeRow], int]:
    """Return the rows of a tree, and the number of branches that match; sorted by a column, they are a plain list."""
    matching, shown = set[Branch](), set[Branch]()
    for branch in reversed(every_branch(roots)):
        if any(fits(row.path) for row in branch.members):
            matching.add(branch)
        if branch in matching or branch in shown:
            shown.add(branch)
            if branch.parent is not None:
                shown.add(branch.parent)
    if sort.removeprefix("-") in _SORTED_BY:
        return _list_rows([each for each in every_branch(roots) if each in matching], sort), len(matching)
    return _tree_rows(roots, shown, matching, folds.opened(roots)), len(matching)


def _tree_rows(
    roots: Sequence[Branch], shown: Collection[Branch], matching: Collection[Branch], opened: Collection[Branch]
) -> list[TreeRow]:
    rows, waiting = list[TreeRow](), list[TreeRow]()

    def await_rows(branches: Sequence[Branch], level: int) -> None:
        for branch in reversed([branch for branch in branches if branch in shown]):
            is_open = branch in opened if any(child in shown for child in branch.children) else None
            waiting.append(TreeRow(branch, level, is_open, branch in matching))

    await_rows(roots, 1)
    while waiting:
        row = waiting.pop()
        rows.append(row)
        if row.is_open:
            await_rows(row.branch.children, row.level + 1)
    return rows


def _list_rows(branches: Sequence[Branch], sort: str) -> list[TreeRow]:
    column = sort.removeprefix("-")
    rows = [TreeRow(branch, 1, None, True) for branch in branches]
    values = {row.branch: _SORTED_BY[column](row.worst(column)) for row in rows}
    known = [row for row in rows if values[row.branch] != ""]
    known.sort(key=lambda row: _natural(values[row.branch]), reverse=sort.startswith("-"))
    return known + [row for row in rows if values[row.branch] == ""]  # missing values come last either way


def _natural(value: int | str) -> list[tuple[int, int, str]]:
    """Return a key that sorts numbers by size, also those in words."""
    if not isinstance(value, str):
        return [(0, value, "")]
    parts = filter(None, _NUMBERS.split(value.casefold()))
    return [(0, int(part), "") if _NUMBERS.fullmatch(part) else (1, 0, part) for part in parts]


# Which modules of a run are meant: by a find box, or by settings that the trainer doesn't have yet.


@dataclass(frozen=True, slots=True)
class Finder:
    """The modules that a find box matches. If its text is invalid, every module fits and `problem` gives the reason."""

    problem: str
    fits: Callable[[str], bool]  # given a module's path


def finder_of(run: Run, text: str) -> Finder:
    """Return the modules of a run that the text of a find box matches."""
    try:
        condition = parse_search(text)
    except PatternError as error:
        return Finder(str(error), lambda _path: True)
    return Finder("", run.store.matcher_of(condition) if text.split() else lambda _path: True)


def found_by(run: Run, text: str) -> dict[str, Any]:
    """Return the paths that a find box matches, for the script. Incomplete text is not an error."""
    try:
        condition = parse_search(text)
    except PatternError as error:
        return {"problem": str(error), "fits": False, "paths": []}
    facts = run.store.facts(condition.states)
    return {"problem": "", **shorter_of(facts, {path for path, each in facts.items() if condition.fits(each)})}


def first_found(run: Run, text: str, most: int) -> dict[str, Any]:
    """Return the first modules that a find box matches, and how many there are. Invalid text matches none."""
    finder = finder_of(run, text)
    paths = [] if finder.problem else [module.path for module in run.store.modules() if finder.fits(module.path)]
    return {"problem": finder.problem, "total": len(paths), "paths": paths[:most]}


def shorter_of(paths: Collection[str], chosen: Collection[str]) -> dict[str, Any]:
    """Return the chosen paths, or the others if they are fewer: `fits` says which."""
    fits = len(chosen) <= len(paths) / 2
    return {"fits": fits, "paths": [path for path in paths if (path in chosen) == fits]}


@dataclass(frozen=True, slots=True)
class Patterns:
    """What to include and exclude."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Switch:
    """Modules to switch on or off; `whole`: with everything below them."""

    paths: tuple[str, ...]
    whole: bool
    on: bool


def preview(run: Run, patterns: Patterns, switch: Switch | None = None) -> dict[str, Any]:
    """Return the modules that patterns would select in a run, after a switch if one is given.

    `blocked` is the pattern that still excludes the switched modules. `problem` says what the trainer would reject;
    `is_malformed` if it would do so for any model.
    """
    modules, blocked, problem = settings_facts(run.store), "", ""
    answer: dict[str, Any] = {"modules": len(modules), "selected": 0}
    try:
        if switch is not None:
            patterns, blocked = switched(modules, patterns, switch)
        selection = select(modules, patterns)
    except PatternError as error:
        return answer | shorter_of(modules, ()) | {"problem": str(error), "is_malformed": True}
    if selection.unmatched and modules:
        try:
            select(modules, patterns, strict=True)
        except PatternError as error:
            problem = str(error)
    return (
        answer
        | shorter_of(modules, set(selection.chosen))
        | {"include": patterns.include, "exclude": patterns.exclude, "blocked": blocked}
        | {"problem": problem, "is_malformed": False, "selected": len(selection.chosen)}
    )


def select(modules: Mapping[str, Facts], patterns: Patterns, *, strict: bool = False) -> Selection:
    """Select modules as the trainer does. `modules` are those of `settings_facts`."""
    return select_among(modules, patterns.include, patterns.exclude, strict=strict)


def settings_facts(store: Store) -> dict[str, Facts]:
    """Return facts by full path. Their own paths begin below their root, because settings apply to each model."""
    modules, facts = store.modules(), store.facts()
    roots = [module.path for module in modules if module.parent is None and module.path]
    found = {}
    for module in modules:
        path, *others = (_below_root(each, roots) for each in (module.path, *module.aliases))
        found[module.path] = replace(facts[module.path], path=path, aliases=tuple(others))
    return found


def _below_root(path: str, roots: Iterable[str]) -> str:
    root = next((each for each in roots if path == each or path.startswith(f"{each}/")), "")
    return path[len(root) + 1 :] if root else path


def switched(modules: Mapping[str, Facts], before: Patterns, switch: Switch) -> tuple[Patterns, str]:
    """Return the patterns after a switch. If another pattern still excludes the modules, return it and `before`."""
    for path in switch.paths:
        if path not in modules:
            raise ArgumentError(f"this run has no module {path[:200]!r}: reload the page")
    wanted, on = _patterns_for(modules, switch.paths, switch.whole), switch.on
    module, after = modules[switch.paths[0]], _without(before, wanted, on)
    if on:
        blocking = next((each for each in after.exclude if parse(each, STRUCTURE).fits(module)), "")
        if blocking:
            return before, blocking
    if _is_watched(module, after) != on:
        name = "include" if on else "exclude"
        after = replace(after, **{name: tuple(dict.fromkeys([*getattr(after, name), *wanted]))})
    return after, ""


def _without(before: Patterns, wanted: Sequence[str], on: bool) -> Patterns:
    if on:
        return replace(before, exclude=tuple(each for each in before.exclude if each not in wanted))
    # Without any pattern every module is included, so the last one stays.
    left = tuple(each for each in before.include if each not in wanted)
    return replace(before, include=left or before.include)


def _is_watched(module: Facts, patterns: Patterns) -> bool:
    return not select({"": module}, patterns).reason("")


def _patterns_for(modules: Mapping[str, Facts], paths: Sequence[str], whole: bool) -> list[str]:
    own = [modules[path].path for path in paths]
    one = _expression_for(own)
    if one and len(select(modules, Patterns((one,))).chosen) == len(paths):
        return [f"{one}(\\..*)?" if whole else one]
    return [pattern for path in own for pattern in _patterns_for_one(path, whole)]


def _expression_for(paths: Sequence[str]) -> str:
    """Return one expression for paths that differ in their numbers only."""
    parts = [path.split(".") for path in paths]
    if len(paths) < 2 or len({len(part) for part in parts}) > 1:
        return ""
    same = [escaped(each[0]) if len(set(each)) == 1 else r"\d+" for each in zip(*parts, strict=True)]
    return "re:" + r"\.".join(same)


def _patterns_for_one(path: str, whole: bool) -> list[str]:
    own = literal(path)
    if not whole:
        return [own]
    if path == "":
        return ["*"]
    return [rf"{own}(\..*)?"] if own.startswith("re:") else [own, f"{own}.*"]


# Missing data of a run: lost data, and kinds without data.


def losses_of(run: Run) -> dict[str, int]:
    """Return how much was lost in the store, and on the way to it, by reason."""
    on_the_way = {f"sender {reason}": count for reason, count in run.received.counters.dropped.items()}
    on_the_way["commands queue-full"] = run.commands.dropped
    if (joint := ranks_in(run)) is not None:
        assembly = joint.sum.assembly
        on_the_way["steps without some rank"] = assembly.absences.incomplete
        on_the_way["frames of ranks that came too late"] = sum(rank.late for rank in assembly.ranks.values())
    return {reason: count for reason, count in (run.store.usage().dropped | on_the_way).items() if count}


def why_empty(store: Store, kind: str, live: bool) -> str:
    """Return why there is no data of a kind, with advice if the run is live; or an empty string."""
    if len(store.taps(None, kind).taps):
        return ""
    if store.steps().newest is None:
        return "No steps yet. The heatmap starts with the first step." if live else "No step was captured."
    if kind == "update":
        why = "Updates were not captured. They need a copy of every parameter, so they are off by default."
        return f"{why} To capture them, select update on the Capture page." if live else why
    words = KIND_WORDS.get(kind, kind)
    unselected = "this kind is not selected on the Capture page" if live else "this kind was not selected"
    if kind in GRADIENT_KINDS:
        return (
            f"No {words} was captured: no module has run a backward pass (model.eval()? torch.no_grad()?), "
            f"or {unselected}."
        )
    return f"No {words} was captured: no module has run, or {unselected}."


def why_uncaptured(store: Store, kind: str, live: bool, first: int | None = None, last: int | None = None) -> str:
    """Return why no value of a kind is shown at the newest captured step of some steps, or an empty string."""
    if why := why_empty(store, kind, live):
        return why
    captured = store.latest(stat="count", first=first, last=last, merged=True).steps
    # A held step is shown whether or not anything was captured in it.
    shown = last if (first is not None and first == last) or not len(captured) else int(captured.max())
    if shown is None or len(store.latest(kind, "count", first=shown, last=shown, merged=True).numbers):
        return ""
    ever = store.latest(kind, "count").steps
    rest = f"; the newest is at step {ever.max():,}" if len(ever) else ""
    return f"No {KIND_WORDS.get(kind, kind)} was captured at step {shown:,}{rest}."


SPARK_POINTS: Final = 60


def sparks_of(
    store: Store, paths: set[str], kind: Kind, stat: str, first: int | None, last: int | None
) -> dict[str, tuple[Spark, float]]:
    """Return a line over these steps for each module with such tensors, and its newest value."""
    taps = store.taps(None, kind)
    plain = [
        (place, tap) for place, tap in enumerate(taps.taps) if tap.phase == "train" and not (tap.index or tap.call)
    ]
    wanted = taps.at([place for place, tap in plain if tap.module in paths])
    heat = store.heatmap(wanted, stat, first, last, SPARK_POINTS)
    found = {}
    for place, tap in enumerate(heat.taps):
        there = heat.present[place] > 0
        spark = spark_of(heat.last_step[there], heat.worst[place][there], may_be_log=True)
        if spark is not None:
            found[tap.module] = spark, float(heat.worst[place][there][-1])
    return found

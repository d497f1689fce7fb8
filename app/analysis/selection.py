"""Which modules of a run are meant: by a find box, or by settings that the trainer doesn't have yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hookcore.config.patterns import STRUCTURE, Facts, Selection, literal, parse, parse_search, select_among
from hookcore.config.patterns.matching import literal as escaped
from hookcore.errors import ArgumentError, PatternError
from hookcore.store import Store

from ..runs import Run


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
    paths = [] if finder.problem else [each.path for each in run.store.modules() if finder.fits(each.path)]
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
    if len(paths) < 2 or len({len(each) for each in parts}) > 1:
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

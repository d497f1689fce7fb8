"""The facts about modules for the find box, for pages and scripts alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..runs import Run
from .coverage import coverage_of
from .find import Facts, parse


def facts_of(run: Run) -> dict[str, Facts]:
    """Return the facts about each module by path, in the model's order."""
    captured = {each.path: each.captured for each in coverage_of(run.store)}
    taps = run.store.taps()
    modules = dict(zip(taps.numbers.tolist(), (tap.module for tap in taps.taps), strict=True))
    nonfinite = {modules[number] for number in run.store.nonfinite_taps().numbers.tolist() if number in modules}
    dead = {each.module for each in run.findings.current() if each.rule == "dead"}
    return {
        module.path: Facts(
            module.path,
            module.type,
            module.aliases,
            module.parameters,
            module.trainable,
            captured.get(module.path),
            module.path in nonfinite,
            module.path in dead,
        )
        for module in run.store.modules()
    }


def facts_as_json(facts: Mapping[str, Facts]) -> list[list[Any]]:
    """Return a row per module with the fields of `Facts` in order, for js/finder.js."""
    return [
        [each.path, each.type, each.aliases, each.parameters, each.trainable, each.captured, each.nan, each.dead]
        for each in facts.values()
    ]


@dataclass(frozen=True, slots=True)
class Finder:
    """The modules that a text finds; if it is invalid, every module fits and `problem` gives the reason."""

    problem: str
    fits: Callable[[str], bool]  # given a module's path


def finder_of(run: Run, text: str) -> Finder:
    """Parse the text of the find box for the modules of a run."""
    found = parse(text)
    if found.problem or not text.strip():
        return Finder(found.problem, lambda _path: True)
    facts = facts_of(run)
    return Finder("", lambda path: found.test(facts.get(path) or Facts(path)))

"""Groups of the list of runs, by a value that they have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...analysis.overlay import grouped
from ...runs.traits import Traits, text_of_value
from .run_lines import RunLine

MAX_GROUPINGS: Final = 200  # to choose from
_ABOUT: Final = ("group", "state", "script", "host", "name")


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs with the same value, in the order of the list."""

    title: str  # "" for a list without groups
    value: str
    runs: tuple[RunLine, ...]

    @property
    def losses(self) -> tuple[float, float] | None:
        """The smallest and the largest newest loss, if they have a finite one."""
        known = [run.loss.value for run in self.runs if run.loss is not None and math.isfinite(run.loss.value)]
        return (min(known), max(known)) if known else None


def groups_of(lines: Sequence[RunLine], traits: Mapping[str, Traits], by: str) -> tuple[RunGroup, ...]:
    """Return the lines as one group, or grouped by a value; runs without it come last."""
    if not by:
        return (RunGroup("", "", tuple(lines)),)
    members: dict[str, list[RunLine]] = {}
    for line in lines:
        members.setdefault(traits[line.id].text(by), []).append(line)
    rest = tuple(members.pop("", ()))
    groups = [RunGroup(f"{by} {value}", value, tuple(members[value])) for value in grouped(members)]
    return (*groups, RunGroup(f"without {by}", "", rest)) if rest else tuple(groups)


def groupings_of(runs: Sequence[Traits], chosen: str) -> tuple[str, ...]:
    """Return the values by which runs can be grouped: those that differ between some of them and are shared by others.

    The chosen one is always among them.
    """
    names: dict[str, set[str]] = {name: set() for name in _ABOUT}
    for run in runs:
        for name, value in (*run.run.info.config.items(), *run.facts.items()):
            names.setdefault(name, set()).add(text_of_value(value))
    for name in _ABOUT:
        names[name] = {run.text(name) for run in runs}
    telling = [name for name, values in names.items() if 1 < len(values) < max(3, len(runs))]
    return tuple(dict.fromkeys([*([chosen] if chosen else []), *telling[:MAX_GROUPINGS]]))

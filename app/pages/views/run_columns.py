"""The columns of the list of runs that a reader chooses, or that show by themselves what differs between the runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, unquote

from hookcore.records import Value

from ...analysis.overlay import grouped
from ...runs.traits import Traits, text_of_value
from .run_lines import RunLine

Kind: TypeAlias = Literal["about", "config", "results", "facts"]
Cells: TypeAlias = Mapping[str, Mapping[str, Value]]  # by the run's id, by the column's name

NONE: Final = "-"  # as the choice: no columns
AUTO: Final = "*"  # those that show by themselves, whatever the reader's browser remembers
MAX_COLUMNS: Final = 20
MAX_BY_THEMSELVES: Final = 5  # of the configuration
MAX_CHOICES: Final = 300
TAGS: Final = "tags"
ABOUT: Final[dict[str, Callable[[Traits], Value]]] = {
    TAGS: lambda run: ", ".join(run.tags),
    "group": lambda run: run.run.edits.group,
    "notes": lambda run: run.run.edits.notes,
}
TITLES: Final[dict[Kind, str]] = {
    "about": "About the run",
    "config": "Configuration",
    "results": "Results",
    "facts": "Recognized",
}
# Of runs without a configuration.
_TELLING: Final = ("optimizer", "optimizer.lr", "parameters")


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and how the address names it."""

    name: str
    kind: Kind

    @property
    def token(self) -> str:
        """The name in the list of columns in an address, in which commas separate names."""
        return quote(self.name, safe="")

    @property
    def words(self) -> str:
        """The heading: the last part of a nested name."""
        return self.name.capitalize() if self.kind == "about" else self.name.rpartition(".")[2] or self.name


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that are shown, and all that can be."""

    shown: tuple[Column, ...]
    beyond: tuple[Column, ...]  # chosen ones that there is no room for
    sorting: Column | None  # by which the list is sorted
    choices: Mapping[str, tuple[Column, ...]]  # by title
    more: int  # choices that there is no room for
    chosen: bool  # by the reader, who may go back to those that show by themselves

    @property
    def after(self) -> Mapping[str, Sequence[Column]]:
        """The shown columns by the column that they follow: numbers are near the loss, last words near the end."""
        many = max((place for place, column in enumerate(self.shown, 1) if column.kind != "about"), default=0)
        return defaultdict(list, {"loss": list(self.shown[:many]), "started": list(self.shown[many:])})

    @property
    def names(self) -> set[str]:
        return {column.name for column in (*self.shown, *self.beyond)}


def columns_of(
    asked: Iterable[str], runs: Sequence[Traits], listed: Sequence[Traits] | None = None, sort: str = ""
) -> Columns:
    """Return the columns that an address names; if it names none, those that tell the listed runs apart.

    The list is sorted by the column `sort`, which may be hidden.
    """
    tokens = [token for each in asked for token in each.split(",") if token]
    tokens = [] if AUTO in tokens else tokens
    known = _known(runs)
    every = list(known.values())
    if tokens:
        wanted = dict.fromkeys(map(unquote, tokens))
        # A name that no run has yet may come; until then, the column is empty.
        shown = [known.get(name) or Column(name, "config") for name in wanted if name != NONE]
    else:
        shown = _by_themselves(every, runs if listed is None else listed)
    choices: dict[Kind, list[Column]] = {kind: [] for kind in TITLES}
    offered = list(dict.fromkeys([*shown, *every]))
    for column in offered[:MAX_CHOICES]:
        choices[column.kind].append(column)
    titled = {TITLES[kind]: tuple(columns) for kind, columns in choices.items() if columns}
    more = max(0, len(offered) - MAX_CHOICES)
    room, beyond = tuple(shown[:MAX_COLUMNS]), tuple(shown[MAX_COLUMNS:])
    return Columns(room, beyond, known.get(sort), titled, more, bool(tokens))


def cells_of(columns: Iterable[Column], runs: Sequence[Traits]) -> Cells:
    """Return the values of columns; a run without one has no cell."""
    found: dict[str, dict[str, Value]] = {each.run.id: {} for each in runs}
    for column in columns:
        for each in runs:
            if column.kind == "about":
                found[each.run.id][column.name] = ABOUT[column.name](each)
            elif column.name in (values := _values_of(each, column.kind)):
                found[each.run.id][column.name] = values[column.name]
            elif column.name in each.results():
                found[each.run.id][column.name] = each.value(column.name)
    return found


def _values_of(run: Traits, kind: Kind) -> Mapping[str, Value]:
    return run.run.info.config if kind == "config" else run.facts if kind == "facts" else {}


def order_of(value: Value) -> tuple[int, float, str]:
    """Return a sort key: numbers, then texts; NaN after all other numbers."""
    if isinstance(value, str) or value is None:
        return 2, 0.0, str(value or "").casefold()
    return (1, 0.0, "") if value != value else (0, float(value), "")


def _known(runs: Sequence[Traits]) -> dict[str, Column]:
    parts: tuple[tuple[Kind, Callable[[Traits], Iterable[str]]], ...] = (
        ("about", lambda _: ABOUT),
        ("config", lambda run: run.run.info.config),
        ("results", lambda run: run.results()),
        ("facts", lambda run: run.facts),
    )
    known: dict[str, Column] = {}
    for kind, names_of in parts:
        for run in runs:
            for name in names_of(run):
                known.setdefault(name, Column(name, kind))
    return known


def _by_themselves(every: Sequence[Column], runs: Sequence[Traits]) -> list[Column]:
    about = [column for column in every if column.kind == "about" and any(ABOUT[column.name](run) for run in runs)]
    config = [column for column in every if column.kind == "config"]
    telling = config or [column for column in every if column.name in _TELLING]
    differing = [column for column in telling if _differs(column, runs)] or telling
    return differing[:MAX_BY_THEMSELVES] + about


def _differs(column: Column, runs: Sequence[Traits]) -> bool:
    return len({repr(_values_of(each, column.kind).get(column.name)) for each in runs}) > 1


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

"""The list of runs: its lines, also of runs on disk, and its columns."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from hookcore.findings import key_figures_of
from hookcore.reading import Reader
from hookcore.reading.answers.runs import RankSummary, State
from hookcore.records import Failure, Value
from hookcore.records.vocabulary import titled
from hookcore.store import StepRange

from ...analysis.figures.lines import Spark, spark_of
from ...analysis.overlay import grouped
from ...formats import word_of
from ...runs import STATES, Run
from ...runs.joint import summary_of as summary_of_ranks
from ...runs.query import Traits, results_of, text_of_value
from ...runs.saved import noted_at
from ..frame import Alerts, address_of, alerts_of

# The lines of the list of runs, also of runs that are on disk, and their order.

SPARK_POINTS: Final = 90
MAX_ALERTS: Final = 1000  # of a run that is on disk
MAX_TEXT: Final = 1000
Points: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64]]

_log = logging.getLogger("hookcore.pages")


@dataclass(frozen=True, slots=True)
class Loss:
    """The newest loss, and its name."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class RunLine:
    """A row of the list of runs."""

    id: str
    name: str
    trouble: str  # why it can't be read, or ""
    address: str
    state: State
    steps: int
    newest: int | None
    pace: float | None  # steps per second
    loss: Loss | None
    spark: Spark | None
    alerts: Alerts
    noted_at: int | None  # the step up to which loss and alerts are known, if the run on disk has later ones
    script: str
    host: str
    started_s: float
    failure: Failure | None
    in_memory: bool
    on_disk: bool
    ranks: RankSummary | None

    @property
    def shown_name(self) -> str:
        return self.name or self.id


def _order_of_loss(line: RunLine) -> tuple[int, float]:
    """Sort finite losses first, then non-finite ones, then missing ones."""
    if line.loss is None:
        return 2, 0.0
    return (0, line.loss.value) if math.isfinite(line.loss.value) else (1, 0.0)


# The orders of the list: title, sort key of a line, and whether the largest comes first.
SORTS: Final[dict[str, tuple[str, Callable[[RunLine], Any], bool]]] = {
    "name": ("Run", lambda line: line.shown_name.casefold(), False),
    "state": ("State", lambda line: STATES.index(line.state), False),
    "steps": ("Steps", lambda line: line.steps, True),
    "loss": ("Loss", _order_of_loss, False),
    "alerts": ("Problems", lambda line: (line.alerts.worst == "error", line.alerts.count), True),
    "started": ("Started", lambda line: line.started_s, True),
}


def sorted_lines(lines: list[RunLine], sort: str) -> list[RunLine]:
    """Sort lines by name; `-` reverses the order. An unknown name means newest first."""
    _, key, falls = SORTS.get(sort.removeprefix("-"), SORTS["started"])
    return sorted(lines, key=key, reverse=falls != sort.startswith("-"))


def line_of(run: Run) -> RunLine:
    """Return the line of a run; a run that can't be read must not hide the others."""
    try:
        return _line_of(run) if run.loaded else _summarized(run)
    except Exception:
        _log.warning("hookcore: the run %s can't be listed", run.id, exc_info=True)
        return replace(
            _line(run, None, None, None, Alerts(unread=_UNNOTED), StepRange(None, None, 0)),
            trouble="This run can't be read; the server's log says why.",
        )


def _line_of(run: Run) -> RunLine:
    figures = key_figures_of(run.store)
    loss = None if figures.loss is None else Loss(figures.loss.name, figures.loss.value)
    points = _points_of(run.reader, loss.name) if loss is not None else None
    return _line(
        run, figures.steps_per_s if run.state == "live" else None, loss, points, alerts_of(run), run.reader.steps()
    )


def _line(
    run: Run, steps_per_s: float | None, loss: Loss | None, points: Points | None, alerts: Alerts, steps: StepRange
) -> RunLine:
    return RunLine(
        run.id,
        run.name,
        "",
        address_of(run),
        run.state,
        int(Traits(run).value("steps") or 0),
        steps.newest,
        steps_per_s,
        loss,
        None if points is None else spark_of(*points),
        alerts,
        None if run.loaded else noted_at(run),
        run.info.script,
        run.info.host,
        run.info.started_s,
        run.end.failure,
        run.loaded,
        run.saved.folder is not None,
        summary_of_ranks(run),
    )


def _points_of(reader: Reader, name: str) -> Points:
    series = reader.scalars(name, points=SPARK_POINTS)[name]
    return series.last_step, series.mean


_UNNOTED: Final = "Nothing is noted of its problems. Open the run to find them."
_OF_ALL: Final = "Those of one rank are noted. Open the run to find those of all ranks, such as a late one."


# -- runs that are on disk ------------------------------------------------------------------------------------------


def summary_of(run: Run) -> dict[str, Any]:
    """Return the list's data of a run on disk, in JSON types."""
    line = line_of(run)
    shown = line.alerts
    alerts = [list(shown.severities[:MAX_ALERTS]), shown.title, shown.where, shown.message, shown.hedge]
    results = {name: word_of(value) for name, value in results_of(run.store).items()}
    said: dict[str, Any] = {"alerts": alerts, "model": model_of(run), "results": results}
    if began := [incident.first_step for incident in run.store.incidents() if incident.severity == "error"]:
        said["began"] = min(began)
    if line.loss is not None:
        steps, values = _points_of(run.reader, line.loss.name)
        said["loss"] = [line.loss.name, word_of(line.loss.value)]
        said["points"] = [steps.tolist(), [word_of(value) for value in values.tolist()]]
    return said


def model_of(run: Run) -> str:
    """Return a digest of the paths and classes of a run's modules; "" if they are unknown."""
    if not run.loaded:
        return str(run.saved.summary.get("model", ""))
    types = sorted((module.path, module.type) for module in run.reader.modules(taps=False))
    return blake2b(repr(types).encode("utf-8", "replace"), digest_size=16).hexdigest() if types else ""


def _summarized(run: Run) -> RunLine:
    """Return the line of a run on disk. Unexpected values in the summary are ignored."""
    loss = points = None
    alerts = Alerts(unread=_UNNOTED)
    with contextlib.suppress(ValueError, TypeError, KeyError, IndexError):
        name, value = run.saved.summary["loss"]
        loss = Loss(str(name)[:MAX_TEXT], float(value))
        steps, values = run.saved.summary["points"]
        points = np.array(steps[:SPARK_POINTS], np.int64), np.array(values[:SPARK_POINTS], np.float64)
    with contextlib.suppress(ValueError, TypeError, KeyError, IndexError):
        severities, *words = run.saved.summary["alerts"]
        known = tuple(severity for severity in severities[:MAX_ALERTS] if severity in ("warning", "error"))
        noted = Alerts(known, *(str(word)[:MAX_TEXT] for word in words[:4]))
        alerts = replace(noted, unread=_OF_ALL if run.is_derived else "")
    return _line(run, None, loss, points, alerts, run.reader.steps())


# The columns of the list of runs that a reader chooses, or that show by themselves what differs between the runs.

Kind: TypeAlias = Literal["about", "config", "results", "facts"]
Cells: TypeAlias = Mapping[str, Mapping[str, Value]]  # by the run's id, by the column's name

NONE: Final = "-"  # as the choice: no columns
AUTO: Final = "*"  # those that show by themselves, whatever the reader's browser remembers
MAX_COLUMNS: Final = 20
MAX_BY_THEMSELVES: Final = 5  # of the configuration
LEAST_USED: Final = 1 / 3  # of the listed runs, for a column that shows by itself
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
        if self.kind == "about":
            return self.name.capitalize()
        return titled(self.name.rpartition(".")[2] or self.name)


@dataclass(frozen=True, slots=True)
class ListColumns:
    """The columns that are shown, and all that can be."""

    shown: tuple[Column, ...]
    beyond: tuple[Column, ...]  # chosen ones that there is no room for
    sorting: Column | None  # by which the list is sorted
    choices: Mapping[str, tuple[Column, ...]]  # by title
    more: int  # choices that there is no room for
    chosen: bool  # by the reader, who may go back to those that show by themselves

    @property
    def after(self) -> Mapping[str, Sequence[Column]]:
        """The shown columns by the column that they follow: numbers are near the loss, last words near the end.

        Tags that show by themselves, or come first, follow the name: many columns must not push them out of sight.
        """
        first = [column for column in self.shown[:1] if column.name == TAGS]
        rest = self.shown[len(first) :]
        many = max((place for place, column in enumerate(rest, 1) if column.kind != "about"), default=0)
        return defaultdict(list, {"name": first, "loss": list(rest[:many]), "started": list(rest[many:])})

    @property
    def names(self) -> set[str]:
        return {column.name for column in (*self.shown, *self.beyond)}

    def moved(self, column: Column, by: int) -> str:
        """Return the columns with one of them moved by places, as an address names them; at an end, it stays."""
        rest = [other for other in self.shown if other is not column]
        rest.insert(max(0, self.shown.index(column) + by), column)
        return ",".join(other.token for other in (*rest, *self.beyond))


def columns_of(
    asked: Iterable[str], runs: Sequence[Traits], listed: Sequence[Traits] | None = None, sort: str = ""
) -> ListColumns:
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
    return ListColumns(room, beyond, known.get(sort), titled, more, bool(tokens))


def cells_of(columns: Iterable[Column], runs: Sequence[Traits]) -> Cells:
    """Return the values of columns; a run without one has no cell."""
    found: dict[str, dict[str, Value]] = {run.run.id: {} for run in runs}
    for column in columns:
        for run in runs:
            if column.kind == "about":
                found[run.run.id][column.name] = ABOUT[column.name](run)
            elif column.name in (values := _values_of(run, column.kind)):
                found[run.run.id][column.name] = values[column.name]
            elif column.name in run.results():
                found[run.run.id][column.name] = run.value(column.name)
    return found


def others_of(column: Column, facts: Mapping[str, Value]) -> list[Value]:
    """Return what other optimizers of a run have in the column of the first one."""
    first, dot, rest = column.name.partition(".")
    if column.kind != "facts" or first != "optimizer" or rest.startswith("group"):
        return []
    names = itertools.takewhile(facts.__contains__, (f"optimizer{number}" for number in itertools.count(2)))
    return [facts.get(name + dot + rest) for name in names]


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
    tags = [column for column in about if column.name == TAGS]
    about = [column for column in about if column.name != TAGS and _is_used(column, runs)]
    config = [column for column in every if column.kind == "config" and _is_used(column, runs)]
    telling = config or [column for column in every if column.name in _TELLING and _is_used(column, runs)]
    differing = [column for column in telling if _differs(column, runs)] or telling
    return [*tags, *differing[:MAX_BY_THEMSELVES], *about]


def _is_used(column: Column, runs: Sequence[Traits]) -> bool:
    """Return whether enough of the listed runs have a value: columns that are mostly empty push others out of sight."""
    if column.kind == "about":
        having = sum(bool(ABOUT[column.name](run)) for run in runs)
    else:
        having = sum(column.name in _values_of(run, column.kind) for run in runs)
    return having >= len(runs) * LEAST_USED


def _differs(column: Column, runs: Sequence[Traits]) -> bool:
    return len({repr(_values_of(run, column.kind).get(column.name)) for run in runs}) > 1


# What of settings or facts tells runs apart in the charts.

# Facts that differ between any two runs, or only say the same again.
_NOISE: Final = re.compile(
    r"(arguments|git\.|version\.|steps\.|job|launcher|batch\d*\.(shape|dtype)|optimizer\d*\.initial_lr)"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting, or else a recognized fact, that differs between runs."""

    name: str
    source: Kind
    values: Mapping[str, Value]  # by run; none of a run without it


def differences_of(runs: Sequence[Traits]) -> list[Difference]:
    """Return what differs. A fact that repeats a setting, such as the optimizer's learning rate, is left out."""
    names = {
        Column(name, kind): None
        for kind in ("config", "facts")
        for run in runs
        for name in _values_of(run, kind)
        if kind == "config" or not _NOISE.match(name)
    }
    found: dict[tuple[str, ...], Difference] = {}
    for column in names:
        values = {each.run.id: _values_of(each, column.kind) for each in runs}
        key = tuple(repr(own.get(column.name)) for own in values.values())
        if len(set(key)) > 1:
            own = {run: values[run][column.name] for run in values if column.name in values[run]}
            found.setdefault(key, Difference(column.name, column.kind, own))
    return list(found.values())


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

"""The page with all runs; and what a run logged: its scalars, and the charts that were pinned."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, TypeAlias
from urllib.parse import parse_qsl

from fastapi import Query

from hookcore.errors import ArgumentError
from hookcore.reading.answers.live import RunNews
from hookcore.records.vocabulary import COORDCHECK, EXPONENTS, is_loss

from ..analysis.verdict import sweep_of
from ..formats import plain, script_json
from ..live.publisher import mark_of
from ..live.views import news_of
from ..runs import Run, Runs
from ..runs.query import EXAMPLE, RECENT_LOSS, Traits, find_runs, names_apart, names_in
from .page import Page, RowNumber, RunPage, TablePage, Text
from .views.overview import plans_of, scalar_lines
from .views.run_list import (
    SORTS,
    Cells,
    Column,
    RunLine,
    cells_of,
    columns_of,
    differences_of,
    groupings_of,
    groups_of,
    line_of,
    order_of,
    others_of,
    sorted_lines,
)

# The page with all runs.

MAX_GONE_SHOWN: Final = 5
MAX_DIFFERENCES: Final = 60  # on a page of their table
MAX_CHARTS: Final = 100  # of scalars
MAX_NEWS: Final = 200  # with more runs, the page asks for its parts once more when the socket tells of them
ColumnNames: TypeAlias = Annotated[Sequence[Text], Query(max_length=50)]


@dataclass(frozen=True, slots=True)
class Heading:
    """A column heading, and the order that a click selects."""

    words: str
    asks: str
    direction: str  # value of aria-sort: ascending, descending, or none


@dataclass(frozen=True, kw_only=True)
class RunListPage(Page):
    """The runs that match a query, newest first by default, and their charts."""

    folder = "runs"
    parts: ClassVar[tuple[str, ...]] = (
        "total",
        "problem",
        "list",
        "columns",
        "grouping",
        "views",
        "gone",
        "differences",
    )

    f: Text = ""
    sort: Text = "started"
    columns: ColumnNames = ()
    group: Text = ""  # the value by which the list is grouped, and the charts are colored
    shown: Annotated[str, Query(max_length=20_000)] = ""  # the runs of the charts
    result: Text = ""  # that the charts show settings against
    row: RowNumber = 0  # of the table of what differs

    def values(self) -> dict[str, Any]:
        """Return what all parts need."""
        runs, every = self.runs, self.runs.all()
        news = [] if self.part else [said for run in every[: MAX_NEWS + 1] if (said := _news_of(run))]
        known = [Traits(run) for run in every]
        found, problem = known, ""
        try:
            found = find_runs(self.f, known)
        except ArgumentError as error:
            problem = str(error)
        with_archived = "archived" in names_in(self.f)
        if not with_archived:
            found = [each for each in found if not each.run.edits.archived]
        lines = [line_of(each.run) for each in found]
        columns = columns_of(self.columns, known, found, _name_in(self.sort))
        wanted = [*columns.shown, *([columns.sorting] if columns.sorting is not None else [])]
        cells = cells_of(dict.fromkeys(wanted), found)
        shown = sorted_by(cells, lines, self.sort) if columns.sorting is not None else sorted_lines(lines, self.sort)
        return {
            "news": script_json(news if len(news) <= MAX_NEWS else []),
            "used": runs.used_bytes,
            "memory": runs.settings.memory,
            "keep": runs.settings.keep if runs.settings.keeps else "",
            "runs": shown,
            "groups": groups_of(shown, {each.run.id: each for each in found}, self.group),
            "group_query": lambda value: _group_query(self.f, self.group, value),
            "groupings": groupings_of(known, self.group),
            "views": _views_of(runs),
            "columns": columns,
            "cells": cells,
            "others_of": others_of,
            "about": {each.run.id: each.run for each in found},
            "archived": 0 if with_archived else sum(each.run.edits.archived for each in known),
            "total": len(known),
            "left_out": runs.unlisted.words,
            "live": sum(each.run.state == "live" for each in known),
            "problem": problem,
            "example": EXAMPLE,
            "now_s": time.time(),
        }

    def part_list(self) -> dict[str, Any]:
        fixed = {name: heading_of(name, words, falls, self.sort) for name, (words, _, falls) in SORTS.items()}
        return {"headings": fixed, "heading_of": lambda each: heading_of(_key_of(each), each.words, False, self.sort)}

    def part_differences(self) -> dict[str, Any]:
        """Return what differs between the runs of the charts, also as data for these."""
        chosen = [Traits(run) for each in self.shown.split(",") if (run := self.runs.get(each)) is not None]
        every = differences_of(chosen)
        table = TablePage.at(self.row, MAX_DIFFERENCES, len(every))
        return {
            "compared": [each.run for each in chosen],
            "differences": table.cut(every),
            "differences_table": table,
            "differences_json": script_json([{**asdict(each), "values": plain(each.values)} for each in every]),
            "reached": {each.run.id: each.result_values().get(self.result) for each in chosen} if self.result else {},
        }

    def part_gone(self) -> dict[str, Any]:
        gone = self.runs.gone()
        return {"gone": gone[:MAX_GONE_SHOWN], "gone_more": len(gone) - MAX_GONE_SHOWN}


def _group_query(f: str, group: str, value: str) -> str:
    """Return the query for the runs of a group; "" if no query can name them."""
    if not value:
        return ""
    text = value if re.fullmatch(r"[\w.+-]+", value) else "" if '"' in value else f'"{value}"'
    name = f"{group}={text}" if text and re.fullmatch(r"[^\s()\"'<>=!:]+", group) else ""
    return f"({f}) {name}" if f and name else name


@dataclass(frozen=True, kw_only=True)
class RunsPage(RunListPage):
    """All runs, or those that are found."""

    name = "runs"
    path = "/"


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure that a run has logged."""

    run: str
    number: int


@dataclass(frozen=True, kw_only=True)
class GroupPage(RunListPage):
    """Some runs, by a query: which is best by a result, which settings matter, and which runs diverged."""

    name = "group"
    path = "/group"
    parts = (*RunListPage.parts, "sweep", "picture")

    better: Text = ""  # low, high, or by the result's name

    def values(self) -> dict[str, Any]:
        """Return what all parts need, and what these runs are called."""
        given = RunListPage.values(self)
        return given | {"heading": _named(self.f), "script": RunsPage.name}

    def part_sweep(self) -> dict[str, Any]:
        """Return the best of the runs of the charts, or of all that match, and which settings matter."""
        chosen = self._compared
        results = dict.fromkeys(name for each in chosen for name in each.result_values())
        result = self.result if self.result in results or not results else _usual_result(list(results))
        found = {each.run.id: value for each in chosen if (value := each.result_values().get(result)) is not None}
        settings = {each.name: each.values for each in differences_of(chosen) if each.source == "config"}
        names = names_apart(chosen)
        crashed = [each.run.id for each in chosen if each.run.state == "crashed"]
        sweep = sweep_of(result, found, settings, names, _began_of(chosen), self.better, crashed)
        return {
            "sweep": sweep,
            "sweep_names": names,
            "sweep_results": list(results)[:MAX_CHARTS],
            "sweep_result": result,
            "sweep_runs": len(chosen),
        }

    def part_picture(self) -> dict[str, Any]:
        """Return the newest figure of exponents that a run of `hookcore coordcheck` has logged."""
        checked = [each.run for each in self._compared if COORDCHECK in each.run.edits.tags]
        run = max(checked, key=lambda each: each.info.started_s, default=None)
        found = [] if run is None else list(self.runs.read(run).reader.media(EXPONENTS))
        return {"picture": Picture(run.id, found[-1].number) if run is not None and found else None}

    @cached_property
    def _compared(self) -> list[Traits]:
        """The runs of the charts, or all that match."""
        ids = self.shown.split(",") if self.shown else self._matching
        return [Traits(run) for each in ids if (run := self.runs.get(each)) is not None]

    @property
    def _matching(self) -> list[str]:
        try:
            found = find_runs(self.f, [Traits(run) for run in self.runs.all()])
        except ArgumentError:
            return []
        return [each.run.id for each in found if not each.run.edits.archived]


def _usual_result(names: Sequence[str]) -> str:
    """Return the result by which runs are compared first: the recent loss, or a loss."""
    return next(
        (name for name in (RECENT_LOSS, *names) if name in names and (name == RECENT_LOSS or is_loss(name))), names[0]
    )


def _named(f: str) -> str:
    """Return what the runs of a query are called: the group that it names, or the query."""
    group = re.fullmatch(r'group[=:]("([^"]*)"|\S+)', f.strip())
    return "All runs" if not f.strip() else f"Group {group[2] or group[1]}" if group else f"Runs with {f}"


def _began_of(chosen: Sequence[Traits]) -> dict[str, int]:
    """Return the step at which each run had its first error, as far as it is in memory."""
    began = {
        each.run.id: [incident.first_step for incident in each.run.store.incidents() if incident.severity == "error"]
        for each in chosen
        if each.run.loaded
    } | {each.run.id: [step] for each in chosen if type(step := each.run.saved.summary.get("began")) is int}
    return {run: min(steps) for run, steps in began.items() if steps}


def _key_of(column: Column) -> str:
    """Return how the address names the order by a column; `=` tells a configuration's `name` from the run's."""
    return f"={column.name}" if column.name in SORTS else column.name


def _name_in(sort: str) -> str:
    """Return the name of the column of an order, or "" if it is one of those that each list has."""
    key = sort.removeprefix("-")
    return "" if key in SORTS else key.removeprefix("=")


def sorted_by(cells: Cells, lines: list[RunLine], sort: str) -> list[RunLine]:
    """Sort lines by a value of their runs; runs without it come last, whatever the direction."""
    name = _name_in(sort)
    having = [line for line in lines if cells[line.id].get(name) not in (None, "")]
    having.sort(key=lambda line: order_of(cells[line.id][name]), reverse=sort.startswith("-"))
    listed = {line.id for line in having}
    return [*having, *(line for line in lines if line.id not in listed)]


def heading_of(name: str, words: str, falls: bool, sort: str) -> Heading:
    """Return a column heading for the current order; `falls` if the first click sorts the largest first."""
    if sort.removeprefix("-") != name:
        return Heading(words, name, "none")
    turned = sort.startswith("-")
    return Heading(words, name if turned else f"-{name}", "descending" if falls != turned else "ascending")


def _views_of(runs: Runs) -> list[tuple[str, str, str | None]]:
    """Return the name and the query of each saved view, and why it can't be shown, if so."""
    saved = runs.views.all()
    if not saved:
        return []
    from ..api.rest import problem_of_view  # REST takes long to import, and the first page is waited for

    return [(name, query, problem_of_view(query)) for name, query in saved.items()]


def _news_of(run: Run) -> RunNews | None:
    """Return how far a run is; a run that can't be read, as its line says, must not hide the others."""
    try:
        return news_of(run.id, run.name, mark_of(run))
    except Exception:
        return None


@dataclass(frozen=True, kw_only=True)
class MetricsPage(RunPage):
    """The scalars of a run, each with its newest value and its line. The scripts draw the charts."""

    name = "metrics"
    parts = ("scalars",)

    def part_scalars(self) -> dict[str, Any]:
        lines, total = scalar_lines(self.run, MAX_CHARTS, self.span)
        return {
            "scalar_lines": lines,
            "scalars_total": total,
            "scalar_names": json.dumps([each.name for each in lines]),
        }


@dataclass(frozen=True, kw_only=True)
class BoardPage(RunPage):
    """The pinned charts. The scripts draw them."""

    name = "board"

    def values(self) -> dict[str, Any]:
        """Return each pinned chart, and why it can't be shown, if an earlier version has stored it unchecked."""
        from ..api.rest import charts_of, problem_of_chart  # late, as above

        charts = charts_of(self.runs)
        plans = [plans_of([value for name, value in parse_qsl(chart.query) if name == "name"]) for chart in charts]
        return {
            "charts": [
                (chart, problem_of_chart(chart), next(iter(plan), None))
                for chart, plan in zip(charts, plans, strict=True)
            ]
        }

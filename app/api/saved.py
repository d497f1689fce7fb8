"""Query strings that readers save, checked like a request with them: what is stored can be shown."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl

from fastapi import Query
from pydantic import BaseModel, Field, ValidationError

from hookcore.errors import ArgumentError, HookcoreError
from hookcore.reading.answers import PinnedChart
from hookcore.reading.answers.series import MAX_SCALARS, MAX_SERIES
from hookcore.store import STAT_NAMES
from hookcore.store.checks import require

from ..runs.query import find_runs
from ..serving.guard.query import is_list, what_is_wrong
from .params import OfKind, StatsOrQuantiles, match_of
from .series import ScalarNames, SeriesLimit, TapText, asked_stats

CHART_POINTS: Final = 1000  # of each line on the board
Asked = TypeVar("Asked", bound=BaseModel)
_Text = Annotated[str, Field(max_length=1000)]
_Short = Annotated[str, Field(max_length=50)]


class _SeriesChart(BaseModel):
    """What the route /series is asked for a chart. The board adds the run, its steps, and the number of points."""

    stat: StatsOrQuantiles
    tap: Annotated[list[TapText] | None, Query(max_length=MAX_SERIES)] = None
    match: _Text | None = None
    kind: OfKind = None
    limit: SeriesLimit = 20


class _ScalarsChart(BaseModel):
    """What the route /scalars is asked for a chart."""

    name: Annotated[ScalarNames, Query(max_length=MAX_SCALARS)]


class RunsView(BaseModel):
    """The address of the Runs page: what the server reads of it, then what only its script reads."""

    f: _Text = ""
    sort: _Text = ""
    columns: Annotated[list[_Text], Field(max_length=50)] = []
    group: _Text = ""
    runs: str = ""
    metric: _Text = ""
    tap: Annotated[str, Field(max_length=2100)] = ""
    stat: _Short = ""
    band: Literal["", "0", "1"] = ""
    result: _Text = ""
    setting: _Text = ""
    smooth: Annotated[str, Field(pattern=r"^\d{0,4}$")] = ""
    y: Literal["", "log"] = ""
    steps: _Short = ""
    by: Literal["", "step", "time", "samples"] = ""


def check_chart(path: str, query: str) -> None:
    """Raise HookcoreError if the board can't show a chart with this query of any run."""
    if path == "scalars":
        _read(_ScalarsChart, query)
        return
    if path != "series":
        raise ArgumentError(f"a chart of {path[:50]!r} can't be shown: pin series or scalars")
    asked = _read(_SeriesChart, query)
    match_of(asked.match)
    asked_stats(asked.tap, asked.match, asked.kind, asked.stat, asked.limit, CHART_POINTS)


def check_view(query: str) -> None:
    """Raise HookcoreError if the Runs page can't show what a query string asks for."""
    asked = _read(RunsView, query)
    find_runs(asked.f, ())  # a value that no run has yet may come
    if asked.stat:
        require("stat", asked.stat, STAT_NAMES)


def problem_of_chart(chart: PinnedChart) -> str:
    """Return why a chart can't be shown that an earlier version, or another program, has stored; "" if it can."""
    return _problem(check_chart, chart.path, chart.query)


def problem_of_view(query: str) -> str:
    """Return why a stored view can't be shown; "" if it can."""
    return _problem(check_view, query)


def _problem(check: Any, *given: str) -> str:
    try:
        check(*given)
    except HookcoreError as error:
        return str(error)
    return ""


def _read(kind: type[Asked], query: str) -> Asked:
    """Return the parameters of a query string. Raises ArgumentError for one that is unknown, repeated, or invalid."""
    pairs = parse_qsl(query)
    known = {name: is_list(field.annotation) for name, field in kind.model_fields.items()}
    if wrong := what_is_wrong(Counter(name for name, _ in pairs), known):
        raise ArgumentError(wrong)
    given: dict[str, Any] = {}
    for name, value in pairs:
        if known[name]:
            given.setdefault(name, []).append(value)
        else:
            given[name] = value
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
        raise ArgumentError("; ".join(problems)) from None

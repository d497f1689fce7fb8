"""The page Overview: a summary of the run and every layer's newest values. Its parts can be requested alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from hookcore.records import KINDS, Kind, Tap
from hookcore.store import STAT_NAMES, Latest, Store
from hookcore.store.checks import require

from ..analysis.coverage import coverage_of
from ..findings import key_figures_of
from ..runs import Run
from .frame import render, run_of
from .views.event_list import Line, all_lines
from .views.overview import SHOWN_SCALARS, scalar_lines, shown_alerts, tiles_of, why_empty
from .views.span import Span, span_of
from .views.verdict import claim_of, progress_of, stop_of

ROWS: Final = 50  # of the table on one page
NEWS: Final = 6
ALERTS: Final = 8
MAX_UNCAPTURED: Final = 100
MAX_REFRESH_S: Final = 3600
PICTURED: Final[tuple[Kind, ...]] = ("output_grad", "param_grad", "output", "input_grad", "input", "update", "param")
SHOWN_STATS: Final = ("norm", "mean", "std", "min", "max")

Part = Literal["figures", "findings", "scalars", "news", "values"]
PARTS: Final[tuple[Part, ...]] = ("figures", "findings", "scalars", "news", "values")

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: the newest values of one tap."""

    tap: Tap
    type: str
    step: int
    stats: tuple[float, ...]  # in the order of SHOWN_STATS
    zero_fraction: float
    nan: int
    inf: int

    @property
    def has_nonfinite(self) -> bool:
        """Whether the tensor had a NaN or an infinity."""
        return bool(self.nan or self.inf)


@dataclass(frozen=True, slots=True)
class Asked:
    """The query of the page."""

    match: str
    kind: str
    refresh: int | None
    row: int
    scalars: str
    scalar: str
    span: Span | None

    @property
    def last(self) -> int | None:
        """The step that the page is held at, if any."""
        return self.span.last if self.span is not None and self.span.held else None


def overview_rows(
    store: Store,
    match: str | None = None,
    kind: str | None = None,
    first: int = 0,
    many: int | None = None,
    last: int | None = None,
) -> tuple[list[Row], int]:
    """Return the newest values up to step `last`, of the taps from index `first`, and the number of taps.

    They are in the order of the model's modules, with each module's kinds together.
    """
    found = store.taps(match, kind)
    modules = store.modules()
    places = {
        path: place
        for place, path in enumerate(
            dict.fromkeys([*(each.path for each in modules), *(tap.module for tap in found.taps)])
        )
    }
    order = sorted(
        range(len(found.taps)), key=lambda each: (places[found.taps[each].module], _order_of(found.taps[each]))
    )
    shown = order[first:][:many]
    wanted = found.at(sorted(shown))
    types = {module.path: module.type for module in modules}
    rows = {row.tap: row for row in _rows(store.latest(wanted=wanted, last=last), types)}
    return [rows[found.taps[each]] for each in shown if found.taps[each] in rows], len(order)


def _order_of(tap: Tap) -> tuple[int, str, str, int]:
    return KINDS.index(tap.kind), tap.phase, tap.index, tap.call


def _rows(latest: Latest, types: dict[str, str]) -> list[Row]:
    column = {name: place for place, name in enumerate(latest.stats)}
    chosen = [column[name] for name in SHOWN_STATS]
    return [
        Row(
            tap,
            types.get(tap.module, ""),
            int(step),
            tuple(values[chosen].tolist()),
            float(values[column["zero_fraction"]]),
            int(values[column["nan"]]),
            int(values[column["inf"]]),
        )
        for tap, step, values in zip(latest.taps, latest.steps, latest.values, strict=True)
    ]


def usual_kind(store: Store) -> Kind:
    """Return the default kind of the heatmap: gradients, if there are any."""
    known = {tap.kind for tap in store.taps().taps}
    return next((kind for kind in PICTURED if kind in known), PICTURED[0])


def seconds_of(text: str) -> int | None:
    """Return the reload interval in seconds, or None for an invalid text."""
    return min(int(text), MAX_REFRESH_S) if text.isdecimal() and int(text) > 0 else None


@router.get("/runs/{run_id}", response_class=HTMLResponse)
def run_page(
    request: Request,
    run_id: str,
    match: Annotated[str | None, Query(max_length=1000, description="a glob on the module's path")] = None,
    kind: str | None = None,
    stat: Annotated[str, Query(max_length=50, description="the stat in the heatmap of all layers")] = "",
    refresh: Annotated[str, Query(max_length=20, description="seconds after which the page reloads")] = "",
    row: Annotated[int, Query(ge=0, le=10**9, description="the first row of the table")] = 0,
    scalar: Annotated[str, Query(max_length=1000, description="the scalar in the large chart")] = "",
    scalars: Annotated[Literal["", "all"], Query(description="all of them, not only the first few")] = "",
    part: Annotated[list[Part] | None, Query(max_length=9, description="only these parts, without the frame")] = None,
    steps: Annotated[str, Query(max_length=50, description="the steps shown: 100-200, or live:500")] = "",
    step: Annotated[str, Query(max_length=20, description="the step that the page is held at")] = "",
) -> HTMLResponse:
    """Show the overview. Empty form fields are ignored."""
    run = run_of(request, run_id)
    asked = Asked(match or "", kind or "", seconds_of(refresh), row, scalars, scalar, span_of(run, steps, step))
    if stat:
        require("stat", stat, STAT_NAMES)
    values: dict[str, Any] = {"asked": asked, "parts": part or PARTS, "heat_stat": stat or "norm"}
    values |= {"usual_kind": usual_kind(run.store), "heat_kind": kind or usual_kind(run.store)}
    for name in part or PARTS:
        values |= _MAKERS[name](run, asked)
    return render(request, "overview/parts" if part else "overview", run=run, **values)


def _figures(run: Run, asked: Asked) -> dict[str, Any]:
    figures = key_figures_of(run.store, asked.last)
    at = asked.span.last if asked.span is not None else None
    return {
        "tiles": tiles_of(run, figures, at),
        "progress": progress_of(run),
        "stop": stop_of(run),
        "held_at": asked.last,
        "labels": run.store.labels(),
        "empty": why_empty(run, figures),
    }


def _findings(run: Run, asked: Asked) -> dict[str, Any]:
    listed, alerts, notes = shown_alerts(run, asked.last, ALERTS)
    return {
        "listed": listed,
        "alerts_total": alerts,
        "notes_total": notes,
        "held_at": asked.last,
        "claim": claim_of(run, asked.last),
    }


def _scalars(run: Run, asked: Asked) -> dict[str, Any]:
    lines, total = scalar_lines(run.store, None if asked.scalars else SHOWN_SCALARS, asked.span)
    chosen = asked.scalar or next((line.name for line in lines), "")
    return {"span": asked.span, "scalar_lines": lines, "scalars_total": total, "chosen_scalar": chosen}


def _news(run: Run, asked: Asked) -> dict[str, Any]:
    lines: list[Line] = all_lines(run)
    shown = [line for line in lines if asked.last is None or line.step <= asked.last]
    return {"news": shown[:NEWS], "events_total": len(lines), "held_at": asked.last}


def _values(run: Run, asked: Asked) -> dict[str, Any]:
    store = run.store
    first = asked.row - asked.row % ROWS
    rows, total = overview_rows(store, asked.match or None, asked.kind or None, first, ROWS, asked.last)
    usage = store.usage()
    not_captured = [each for each in coverage_of(store) if not each.captured]
    return {
        "rows": rows,
        "rows_first": first,
        "rows_total": total,
        "rows_a_page": ROWS,
        "span": asked.span,
        "not_captured": not_captured[:MAX_UNCAPTURED],
        "not_captured_left_out": max(0, len(not_captured) - MAX_UNCAPTURED),
        "usage": usage,
        "dropped": {reason.replace("_", " "): count for reason, count in usage.dropped.items() if count},
        "stats": SHOWN_STATS,
    }


_MAKERS: Final = {"figures": _figures, "findings": _findings, "scalars": _scalars, "news": _news, "values": _values}

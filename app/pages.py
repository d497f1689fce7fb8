"""The pages: HTML by Jinja from the store's answers; no script is needed to read them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse

from hookcore.records import KINDS, Tap
from hookcore.store import Latest, StepRange, Store

from .runs import Run, Runs

FOLDER: Final = Path(__file__).parent
MAX_ROWS: Final = 5_000
MAX_EVENTS: Final = 20
MAX_REFRESH_S: Final = 3600
SHOWN_STATS: Final = ("mean", "std", "min", "max", "norm")

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the newest numbers of one tap."""

    tap: Tap
    type: str
    step: int
    stats: tuple[float, ...]  # in the order of SHOWN_STATS
    zero_fraction: float
    nan: int
    inf: int

    @property
    def has_nonfinite(self) -> bool:
        """Whether the tensor held a NaN or an infinity."""
        return bool(self.nan or self.inf)


def shown(value: float) -> str:
    """A number as a person reads it; NaN and the infinities by their names."""
    if math.isfinite(value):
        return f"{value:.4g}"
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def percent(fraction: float) -> str:
    """A share in percent; a small one that is not zero does not look like zero."""
    if not math.isfinite(fraction):
        return shown(fraction)
    return "< 0.1%" if 0 < fraction < 0.001 else f"{fraction:.1%}"


def overview_rows(store: Store, match: str | None = None, kind: str | None = None) -> list[Row]:
    """Every tap that was seen, in the order of the model's modules, each with its kinds together."""
    latest = store.latest(kind)
    types = {module.path: module.type for module in store.modules()}
    wanted = set(store.taps(match, kind).taps)
    rows = [row for row in _rows(latest, types) if row.tap in wanted]
    places = {path: place for place, path in enumerate(dict.fromkeys([*types, *(row.tap.module for row in rows)]))}
    return sorted(rows, key=lambda row: (places[row.tap.module], _order_of(row.tap)))


def _order_of(tap: Tap) -> tuple[int, str, str, int]:
    return KINDS.index(tap.kind), tap.phase, tap.index, tap.call


def _seconds_of(text: str) -> int | None:
    return min(int(text), MAX_REFRESH_S) if text.isdecimal() and int(text) > 0 else None


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


def _style_version() -> str:
    return hashlib.sha256((FOLDER / "static" / "app.css").read_bytes()).hexdigest()[:12]


def _make_templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"shown": shown, "percent": percent}
    templates.globals["style_version"] = _style_version()  # a changed style has a new address: nothing stale is shown
    return templates


_TEMPLATES: Final = _make_templates()


@dataclass(frozen=True, slots=True)
class RunLine:
    """One line of the list of runs."""

    id: str
    name: str
    state: str
    steps: StepRange
    script: str
    host: str


@router.get("/", response_class=HTMLResponse)
def runs_page(request: Request) -> HTMLResponse:
    """All runs, the newest first."""
    runs: Runs = request.app.state.runs
    lines = [
        RunLine(run.id, run.name, run.state, run.store.steps(), run.info.script, run.info.host) for run in runs.all()
    ]
    return _render(request, "runs.html", runs=lines)


@router.get("/runs/{run_id}", response_class=HTMLResponse)
def run_page(
    request: Request,
    run_id: str,
    match: Annotated[str | None, Query(max_length=1000, description="a glob on the module's path")] = None,
    kind: str | None = None,
    refresh: Annotated[str, Query(max_length=20, description="seconds after which the page reloads")] = "",
) -> HTMLResponse:
    """Every layer's newest activations and gradients. A form sends its empty fields too: they ask for nothing."""
    run: Run | None = request.app.state.runs.get(run_id)
    if run is None:
        raise HTTPException(404, "there is no run of that name: it was removed, or has made room for newer ones")
    store = run.store
    rows = overview_rows(store, match or None, kind or None)
    usage = store.usage()
    not_captured = [each for each in store.coverage() if not each.captured]
    return _render(
        request,
        "overview.html",
        run=run,
        rows=rows[:MAX_ROWS],
        rows_left_out=max(0, len(rows) - MAX_ROWS),
        not_captured=not_captured[:MAX_ROWS],
        not_captured_left_out=max(0, len(not_captured) - MAX_ROWS),
        labels=store.labels(),
        events=store.events(limit=MAX_EVENTS),
        steps=store.steps(),
        usage=usage,
        dropped={reason.replace("_", " "): count for reason, count in usage.dropped.items() if count},
        kinds=KINDS,
        stats=SHOWN_STATS,
        asked={"match": match or "", "kind": kind or "", "refresh": _seconds_of(refresh)},
    )


def _render(request: Request, name: str, **values: Any) -> HTMLResponse:
    root = request.scope.get("root_path", "")
    return HTMLResponse(
        _TEMPLATES.get_template(name).render(root=root, **values), headers={"Cache-Control": "no-cache"}
    )

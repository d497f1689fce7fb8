"""The page Events: findings and events, filtered and over steps, and the origin of a finding."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from ..runs import Run
from .frame import address_of, render, run_of
from .views.event_list import FINDING, SEVERITIES, Filter, Line, all_lines, markdown_of, modules_of, names_of
from .views.overview import layer_address
from .views.provenance import provenance_of
from .views.timeline import timeline_of

ROWS: Final = 100  # per page
MAX_COPIED: Final = 1000
PARTS: Final = ("timeline", "list", "detail")

router = APIRouter(include_in_schema=False)

Text = Annotated[str, Query(max_length=1000)]


@dataclass(frozen=True, slots=True)
class Shown:
    """A line and the addresses it links to."""

    line: Line
    layer: str
    here: str  # this page with the line's details


@router.get("/runs/{run_id}/events", response_class=HTMLResponse)
def events_page(
    request: Request,
    run_id: str,
    severity: Text = "",
    name: Text = "",
    f: Annotated[
        str, Query(max_length=1000, description="modules: part of the path, a glob, or /a regular expression/")
    ] = "",
    text: Text = "",
    span: Annotated[str, Query(alias="in", max_length=40, description="a range of steps, such as 100-200")] = "",
    hide: Annotated[Literal["", "0", "1"], Query(description="1 hides acknowledged lines")] = "",
    event: Annotated[str, Query(max_length=2300, description="the id of the line whose details are shown")] = "",
    row: Annotated[int, Query(ge=0, le=10**9)] = 0,
    format: Annotated[Literal["", "markdown"], Query(description="the list as a Markdown table")] = "",
    part: Annotated[list[Literal["timeline", "list", "detail"]] | None, Query(max_length=9)] = None,
) -> Response:
    """Show findings and events, newest first. Empty form fields match everything."""
    run = run_of(request, run_id)
    lines = all_lines(run)
    wanted = _filter_of(severity, name, f, text, span, hide)
    fitting = [line for line in lines if wanted.fits(line)]
    if format:
        return PlainTextResponse(_markdown(request, run, fitting), media_type="text/markdown")
    asked = {"severity": severity, "name": name, "f": f, "text": text, "in": span, "hide": hide.replace("0", "")}
    values: dict[str, Any] = {
        "parts": part or PARTS,
        "asked": asked | {"event": event, "row": row},
        "names": names_of(lines),
        "severities": SEVERITIES,
        "finding_name": FINDING,
        "total": len(lines),
        "alerting": sum(line.is_alert for line in lines),
        "fitting": len(fitting),
        "hidden_seen": sum(line.acknowledged for line in lines) if wanted.hides_seen else 0,
        "query": urlencode({key: value for key, value in asked.items() if value}),
    }
    chosen = _chosen(lines, fitting, event)
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "timeline": lambda: _timeline(run, lines, wanted),
        "list": lambda: _list(run, fitting, row, asked),
        "detail": lambda: _detail(run, chosen),
    }
    values["detail"] = chosen
    for each in part or PARTS:
        values |= makers[each]()
    return render(request, "events/parts" if part else "events", run=run, **values)


def _filter_of(severity: str, name: str, modules: str, text: str, span: str, hide: str) -> Filter:
    steps = re.fullmatch(r"(\d{1,15})(?:-(\d{1,15}))?", span.strip())
    first = int(steps[1]) if steps else None
    last = int(steps[2] or steps[1]) if steps else None
    return Filter(severity, name, modules_of(modules), text.strip(), first, last, hide == "1")


def _markdown(request: Request, run: Run, lines: list[Line]) -> str:
    root = str(request.base_url).rstrip("/")
    query = urlencode([(key, value) for key, value in request.query_params.multi_items() if key != "format"])
    address = f"{root}/{address_of(run, 'events')}{'?' + query if query else ''}"
    return markdown_of(lines[:MAX_COPIED], f"Events of {run.name or run.id}", address)


def _list(run: Run, lines: list[Line], row: int, asked: dict[str, str]) -> dict[str, Any]:
    first = min(row - row % ROWS, max(0, (len(lines) - 1) // ROWS * ROWS))
    return {
        "rows": [_shown(run, line, asked) for line in lines[first : first + ROWS]],
        "rows_first": first,
        "rows_a_page": ROWS,
    }


def _shown(run: Run, line: Line, asked: dict[str, str]) -> Shown:
    layer = address_of(run, "layer", **line.layer) if line.module else address_of(run, "flow", step=line.step)
    return Shown(line, layer, address_of(run, "events", **asked, event=line.id))


def _timeline(run: Run, lines: list[Line], wanted: Filter) -> dict[str, Any]:
    """Return the timeline of all lines that match, regardless of the step filter."""
    steps = run.store.steps()
    anywhere = replace(wanted, first=None, last=None)
    first, last = steps.first or 0, steps.newest or 0
    return {"timeline": timeline_of([line for line in lines if anywhere.fits(line)], first, last)}


def _chosen(lines: list[Line], fitting: list[Line], key: str) -> Line | None:
    """Return the requested line, or else the worst unacknowledged finding.

    A finding is found by its key even if its onset has moved since the link was created.
    """
    if key:
        kept = key.rpartition("@")[0]
        return next((each for wanted in (key, kept) for each in lines if wanted in (each.id, each.key)), None)
    findings = [each for each in fitting if each.finding is not None and not each.acknowledged]
    return min(findings, key=lambda each: SEVERITIES.index(each.severity), default=None)


def _detail(run: Run, line: Line | None) -> dict[str, Any]:
    finding = line.finding if line is not None else None
    # The cause of a bad loss is unknown, because a loss is not a layer's tensor.
    origin = provenance_of(run.store, finding) if finding is not None and finding.rule != "loss" else None
    return {
        "detail_layer": _shown(run, line, {}).layer if line is not None else "",
        "origin": origin,
        "layer_of": lambda tap, step: layer_address(run, tap, step),
    }

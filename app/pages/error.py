"""The error page for people; scripts get JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import Request
from starlette.responses import Response

from ..runs import Runs, why_gone
from .frame import address_of, render

TITLES: Final = {
    400: "Invalid request",
    403: "Not allowed",
    404: "Not found",
    405: "Not possible here",
    422: "Invalid request",
}


def wants_page(request: Request) -> bool:
    """Return whether a browser asks for a page."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    first = request.headers.get("accept", "").partition(",")[0].partition(";")[0].strip()
    return first == "text/html" and not path.startswith(("/api/", "/static/"))


def error_page(request: Request, sentence: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Render a page that says what was wrong and where to go next."""
    runs: Runs = request.app.state.runs
    newest = next(iter(runs.all()), None)
    run_id = request.path_params.get("run_id", "")
    run = runs.get(run_id)
    page = render(
        request,
        "error",
        code=status,
        title=TITLES.get(status, "Something went wrong"),
        sentence="There is no page at this address."
        if sentence == "Not Found"
        else f"{sentence[:1].upper()}{sentence[1:].rstrip('.')}.",
        newest=address_of(newest) if newest is not None else "",
        here=address_of(run) if run is not None else "",
        # Readers follow a trainer's link before its first batch has arrived.
        awaited=run_id if status == 404 and run is None and not why_gone(runs.gone(), run_id) else "",
    )
    page.status_code = status
    page.headers.update(headers or {})
    return page

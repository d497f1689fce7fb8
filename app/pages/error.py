"""The page of what went wrong, for people; scripts get JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import Request
from starlette.responses import Response

from ..runs import Runs
from .frame import address_of, render

TITLES: Final = {
    400: "That cannot be shown",
    404: "There is nothing here",
    405: "That cannot be done here",
    422: "That cannot be shown",
}


def wants_page(request: Request) -> bool:
    """Whether a person asks, with a browser and for a page."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    first = request.headers.get("accept", "").partition(",")[0].partition(";")[0].strip()
    return first == "text/html" and not path.startswith(("/api/", "/static/"))


def error_page(request: Request, sentence: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """What was wrong, and ways on."""
    runs: Runs = request.app.state.runs
    newest = next(iter(runs.all()), None)
    page = render(
        request,
        "error",
        code=status,
        title=TITLES.get(status, "Something went wrong"),
        sentence="No page has this address." if sentence == "Not Found" else f"{sentence[:1].upper()}{sentence[1:]}.",
        newest=address_of(newest) if newest is not None else "",
    )
    page.status_code = status
    page.headers.update(headers or {})
    return page

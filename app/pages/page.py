"""The base of all pages: classes whose fields are the query of their address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter, Signature
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import HTMLResponse, Response

from ..runs import Run, Runs
from .frame import path_of, render, run_of

Text = Annotated[str, Query(max_length=1000)]
Short = Annotated[str, Query(max_length=50)]
FindText = Annotated[str, Query(max_length=1000, description="the content of the find box")]
RowNumber = Annotated[int, Query(ge=0, le=10**9, description="the first row of the table")]


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page. Its template gets the result of `values`, and the result of the method `part_x` of each of its parts.

    The page's script requests parts separately to keep them live.
    """

    name: ClassVar[str]  # of its template, and of its place in the navigation
    path: ClassVar[str]
    parts: ClassVar[tuple[str, ...]] = ()

    request: Request
    part: list[str] | None = None

    def __init_subclass__(cls) -> None:
        cls.parts = tuple(name.removeprefix("part_") for name in vars(cls) if name.startswith("part_"))

    @property
    def runs(self) -> Runs:
        """All runs of the server."""
        runs: Runs = self.request.app.state.runs
        return runs

    def values(self) -> dict[str, Any]:
        """Return the template's values other than its parts."""
        return {}

    def respond(self) -> Response:
        """Render the page, or only the requested parts."""
        values: dict[str, Any] = {"parts": self.part or self.parts, "asked": self, **self.values()}
        for each in self.part or self.parts:
            values |= getattr(self, f"part_{each}")()
        return self.render(f"{self.name}/parts" if self.part else self.name, values)

    def render(self, template: str, values: dict[str, Any]) -> HTMLResponse:
        """Render a template in the frame."""
        return render(self.request, template, **values)


@dataclass(frozen=True, kw_only=True)
class RunPage(Page):
    """A page of one run."""

    run: Annotated[Run, Depends(run_of)]

    def render(self, template: str, values: dict[str, Any]) -> HTMLResponse:
        """Render a template in the frame of the run."""
        return render(self.request, template, run=self.run, **values)


def first_row_of_page(row: int, many: int, a_page: int) -> int:
    """Return the first row of the page with a row, or of the last page."""
    return min(row - row % a_page, max(0, (many - 1) // a_page * a_page))


def router_of(pages: Sequence[type[Page]]) -> APIRouter:
    """Return the routes of pages."""
    router = APIRouter(include_in_schema=False)
    for page in pages:
        path = f"/runs/{{run_id}}{path_of(page.name)}" if issubclass(page, RunPage) else page.path
        router.get(path, response_class=HTMLResponse, name=f"{page.name}_page")(_route_to(page))
    return router


def _route_to(page: type[Page]) -> Any:
    """Return the function of a route, whose parameters are the fields of the page."""
    hints: dict[str, Any] = get_type_hints(page, include_extras=True)
    if page.parts:
        hints["part"] = Annotated[list[Literal[page.parts]] | None, Query(max_length=9)]  # type: ignore[name-defined]

    def respond(**given: Any) -> Response:
        return page(**given).respond()

    parameters = [
        Parameter(
            each.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if each.default is MISSING else each.default,
            annotation=hints[each.name],
        )
        for each in fields(page)
        if page.parts or each.name != "part"
    ]
    respond.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return respond

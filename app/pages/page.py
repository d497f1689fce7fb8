"""The base of all pages: classes whose fields are the query of their address; the timeline; the page of an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from inspect import Parameter, Signature
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, get_type_hints
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from hookcore.reading.answers import Series, TimelineMark

from ..analysis.figures.lines import Strip, strip_of
from ..analysis.timeline import line_of, marks_of, quantity_of
from ..api.routing import SteadyRoute
from ..formats import words_of
from ..runs import Run, Runs, why_gone
from .frame import TABS, address_of, path_of, render, run_of
from .views.layer import note_of
from .views.span import AXES, SHARED, Shared, Span, Values, asked_values, span_of, usual_steps, words_of_values

Text = Annotated[str, Query(max_length=1000)]
Short = Annotated[str, Query(max_length=50)]
FindText = Annotated[str, Query(max_length=1000, description="the content of the find box")]
Row = TypeVar("Row")
RowNumber = Annotated[int, Query(ge=0, le=10**9, description="the first row of the table")]


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page. Its template gets the result of `values`, and that of the method `part_x` of each part that has one.

    The page's script requests parts separately to keep them live. Their templates are in the folder of the page's name.
    """

    name: ClassVar[str]  # of its template, and of its place in the navigation
    folder: ClassVar[str] = ""  # with the templates of its parts, if it isn't called like the page
    path: ClassVar[str]
    parts: ClassVar[tuple[str, ...]] = ()  # that scripts can request, in the order of the page

    request: Request
    part: list[str] | None = None

    def __init_subclass__(cls) -> None:
        unlisted = [name for name in vars(cls) if name.startswith("part_") and name[5:] not in cls.parts]
        if unlisted:
            raise TypeError(
                f"{cls.__name__}.parts lacks {', '.join(unlisted)}: add the name without part_, or rename it"
            )

    @property
    def runs(self) -> Runs:
        runs: Runs = self.request.app.state.runs
        return runs

    def values(self) -> dict[str, Any]:
        """Return the template's values other than its parts."""
        return {}

    def respond(self) -> Response:
        """Render the page, or only the requested parts."""
        values: dict[str, Any] = {"asked": self, **self.values()}
        for each in self.part or self.parts:
            values |= getattr(self, f"part_{each}", dict)()
        if self.part:
            return self.render(
                "parts", values | {"templates": [f"{self.folder or self.name}/{each}.html" for each in self.part]}
            )
        return self.render(self.name, values)

    def render(self, template: str, values: dict[str, Any]) -> HTMLResponse:
        """Render a template in the frame."""
        return render(self.request, template, **values)


@dataclass(frozen=True, kw_only=True)
class RunPage(Page):
    """A page of one run. It shows the steps of its `span`; the newest values are looked up in `span.values`."""

    run: Annotated[Run, Depends(run_of)]
    steps: Annotated[str, Query(max_length=50, description="the steps shown: all, live:500, or 100-200")] = ""
    step: Annotated[str, Query(max_length=20, description="the step that the page is held at")] = ""
    by: Annotated[str, Query(max_length=20, description="the axis of charts: step, time, or samples")] = ""

    @property
    def usual(self) -> Shared:
        """The default steps of the page."""
        return Shared(usual_steps(self.run))

    @property
    def shared(self) -> Shared:
        """What the run's other pages are to show, as far as it isn't what they show anyway.

        A page's own range goes along only if it is about a step, as an incident is.
        """
        steps = self.steps or (self.usual.steps if self.usual.step else "")
        return Shared("" if steps == usual_steps(self.run) else steps, self.step or self.usual.step, self.by)

    @cached_property
    def span(self) -> Span | None:
        """The steps shown; None before the first step."""
        return span_of(self.run, self.steps or self.usual.steps, self.step or self.usual.step)

    @property
    def values_in(self) -> Values:
        """The steps of which the newest values are shown: the held one, those of the chosen range, or any.

        What a script logged may have steps although none was captured.
        """
        if self.span is not None:
            return self.span.values
        return asked_values(self.steps or self.usual.steps, self.step or self.usual.step)

    @property
    def listed_in(self) -> tuple[int | None, int | None]:
        """The steps of which events are listed: those up to the held one, or of the chosen range, or all."""
        span = self.span
        if span is None or not span.held:
            return None, None
        return span.first if span.is_chosen else None, span.last if span.step is None else span.step

    @property
    def _listed(self) -> str | None:
        """The steps of listed events in words; None if all are."""
        first, last = self.listed_in
        if last is None:
            return None
        return f"up to {words_of(last, last)}" if first is None else f"in {words_of(first, last)}"

    def render(self, template: str, values: dict[str, Any]) -> HTMLResponse:
        """Render a template in the frame of the run."""
        shown: dict[str, Any] = {"span": self.span, "usual": self.usual, "axes": AXES, "listed_words": self._listed}
        shown["about"] = words_of_values(self.values_in)  # the steps of the values, if not the newest
        return render(self.request, template, run=self.run, shared=self.shared, **(shown | self._timeline() | values))

    def _timeline(self) -> dict[str, Any]:
        """Return the timeline of the frame, unless only parts are rendered."""
        timeline = None if self.part or self.span is None else timeline_view(self.run)
        if timeline is None or self.span is None:
            return {"timeline": None}
        query = self.request.query_params.multi_items()
        return {
            "timeline": timeline,
            "note": note_of(self.run.reader, self.span),
            "bar": bar_of(timeline, self.span, address_of(self.run, self.name), query),
        }


@dataclass(frozen=True, kw_only=True)
class PartsPage(RunPage):
    """Parts that other pages show. Without a part, it leads to a page with the same content."""

    instead: ClassVar[str]

    def respond(self) -> Response:
        """Render the parts, or lead to the page."""
        if self.part:
            return Page.respond(self)
        address = address_of(self.run, self.instead, **self.kept(), **dict(self.shared.parts))
        return RedirectResponse(f"{self.request.scope.get('root_path', '')}/{address}", 307)

    def kept(self) -> dict[str, Any]:
        """Return what the address of the page keeps, besides the steps."""
        return {}


@dataclass(frozen=True, slots=True)
class TablePage:
    """The rows that one page of a table shows: those from `first`, at most `size` of `total`."""

    first: int
    size: int
    total: int

    @classmethod
    def at(cls, row: int, size: int, total: int) -> TablePage:
        """Return the page with a row, or the last page."""
        return cls(min(row - row % size, max(0, (total - 1) // size * size)), size, total)

    @property
    def last(self) -> int:
        """The number of rows up to the end of this page."""
        return min(self.first + self.size, self.total)

    @property
    def words(self) -> str:
        """Which rows these are, counted from 1."""
        return f"{self.first + 1:,} to {self.last:,} of {self.total:,}"

    def cut(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows of this page."""
        return rows[self.first : self.last]


def router_of(pages: Sequence[type[Page]]) -> APIRouter:
    router = APIRouter(include_in_schema=False, route_class=SteadyRoute)
    for page in pages:
        path = f"/runs/{{run_id}}{path_of(page.name)}" if issubclass(page, RunPage) else page.path
        router.get(path, response_class=HTMLResponse, name=f"{page.name}_page")(_route_to(page))
    for tab in TABS.values():
        if tab.was:
            router.get(f"/runs/{{run_id}}{tab.was}", name=f"{tab.page}_was")(_redirect_to(tab.page))
    return router


def _redirect_to(page: str) -> Any:
    """Return the function of a route that leads from an older address to that of today, with the same query."""

    def respond(request: Request, run_id: str) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        path = f"runs/{quote(run_id, safe='')}{path_of(page)}{query}"
        return RedirectResponse(f"{request.scope.get('root_path', '')}/{path}", 307)

    return respond


def _route_to(page: type[Page]) -> Any:
    """Return the function of a route, whose parameters are the fields of the page."""
    hints: dict[str, Any] = get_type_hints(page, include_extras=True)
    if page.parts:
        hints["part"] = Annotated[list[Literal[page.parts]] | None, Query(max_length=9)]  # type: ignore[name-defined]

    def respond(**given: Any) -> Response:
        return page(**given).respond()

    parameters = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(page)
        if page.parts or field.name != "part"
    ]
    respond.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return respond


# The error page for people; scripts get JSON.

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


# The timeline under the header: the run as a strip, with marks where something happened. Positions are in percent.

NO_LOSS: Final = "No loss was logged, so this line shows {}. Log it with watcher.log(loss=loss.item())."


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark: where it is, its tooltip, and where it leads."""

    x: float
    step: int
    severity: str
    words: str
    address: str


@dataclass(frozen=True, slots=True)
class Note:
    """A reader's annotation of a step."""

    x: float
    step: int
    text: str


@dataclass(frozen=True, slots=True)
class TimelineView:
    """A run from its first to its newest step."""

    first: int
    last: int
    title: str
    about: str  # what the line is, in a sentence
    strip: Strip | None
    marks: tuple[Mark, ...]
    notes: tuple[Note, ...]


def timeline_view(run: Run) -> TimelineView | None:
    """Return the timeline of a run; None before its first step."""
    known, drawn = run.reader.steps(), quantity_of(run.store)
    if known.first is None or known.newest is None:
        return None
    first, last = known.first, known.newest
    line = None if drawn is None else line_of(run.store, drawn)
    strip = None if line is None else _strip_of(line, first, last)
    title, is_loss = ("", False) if drawn is None else (drawn.words, drawn.is_loss)
    kind = "" if strip is None or not strip.is_log else ", on a log scale"
    about = f"{title}, {words_of(first, last)}{kind}." if strip is not None else "Nothing to draw."
    marks = tuple(_mark_of(run, mark, first, last) for mark in marks_of(run))
    return TimelineView(
        first,
        last,
        title,
        about if is_loss or strip is None else f"{about} {NO_LOSS.format(title)}",
        strip,
        marks,
        tuple(
            Note(place_of(step, first, last), step, text)
            for step, text in run.edits.annotations.items()
            if first <= step <= last
        ),
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """The choices on the timeline, and the form that changes them without JavaScript."""

    range_x: float
    range_width: float
    step_x: float | None
    action: str
    others: list[tuple[str, str]]  # the rest of the address


def bar_of(timeline: TimelineView, span: Span, action: str, query: list[tuple[str, str]]) -> Bar:
    """Return where a page's steps are on the timeline."""
    first, last = timeline.first, timeline.last
    begin = place_of(max(span.first, first) - 0.5, first, last)
    end = place_of(min(span.last, last) + 0.5, first, last)
    step = None if span.step is None or not first <= span.step <= last else place_of(span.step, first, last)
    others = [(name, value) for name, value in query if name not in SHARED]
    return Bar(begin, round(end - begin, 3), step, action, others)


def place_of(step: float, first: int, last: int) -> float:
    """Return where the middle of a step is, in percent."""
    return round(100 * (step - first + 0.5) / (last - first + 1), 3)


def _strip_of(line: Series, first: int, last: int) -> Strip | None:
    bad = np.zeros(len(line.mean), bool) if line.nonfinite is None else line.nonfinite > 0
    return strip_of(line.first_step, line.last_step, (line.mean, line.min, line.max), bad, (first, last))


def _mark_of(run: Run, mark: TimelineMark, first: int, last: int) -> Mark:
    where = f" in {mark.module}" if mark.module else ""
    more = f", and {mark.count - 1:,} more" if mark.count > 1 else ""
    words = f"{mark.severity}, step {mark.step:,}: {mark.title}{where}{more}"
    if mark.incident:
        address = address_of(run, "incident", id=mark.incident)
    else:
        address = address_of(run, "incident", id=mark.event, step=mark.step)
    return Mark(place_of(mark.step, first, last), mark.step, mark.severity, words, address)

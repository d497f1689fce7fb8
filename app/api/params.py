"""What routes receive: the run, the span of steps, and the reply in the requested format."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, Path, Query, Request, Response
from starlette.exceptions import HTTPException

from hookcore.config.patterns import parse
from hookcore.config.patterns.matching import MAX_LENGTH
from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.reading.answers.base import SCHEMAS
from hookcore.records import Kind
from hookcore.store import STAT_NAMES
from hookcore.store.checks import unknown

from ..formats import ARRAYS, MEDIA_TYPES, Table, choose, json_of
from ..runs import Run, Runs, why_gone
from ..runs.ranked import rank_of
from ..runs.views import MAX_NAME, Views
from .examples import example_of

MAX_CELLS: Final = 2_000_000  # of a map
MAX_STEP: Final = 2**53
MAX_PAGE: Final = 10_000
MAX_RUN_ID: Final = 200  # characters
RUN_PATTERN: Final = rf"^[A-Za-z0-9_-]{{1,{MAX_RUN_ID}}}$"
_SALT: Final = secrets.token_hex(4)  # a restarted server counts its versions from the start

RunId = Annotated[str, Path(pattern=RUN_PATTERN, description="a run's id", examples=["run-1"])]
OfRun = Annotated[str | None, Query(pattern=RUN_PATTERN, description="a run's id; default: the newest run")]
OfRank = Annotated[
    int | None, Query(ge=0, le=2**31, description="one rank of a distributed training; default: all ranks together")
]
OfModule = Annotated[str | None, Query(max_length=1000, description="only the module with this path")]
OfKind = Annotated[Kind | None, Query(description="only taps of this kind")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="maximum number of items in this answer")]
After = Annotated[int, Query(ge=0, le=MAX_STEP, description="`next` of the previous answer")]
Format = Annotated[
    Literal["json", "arrow", "csv", "npy"] | None, Query(description="the format; overrides the Accept header")
]
# Described as a choice but read as a text, so that an unknown one gets the nearest as a hint.
StatName = Annotated[str, Query(max_length=50, json_schema_extra={"enum": list(STAT_NAMES)})]
StatsOrQuantiles = Annotated[
    str,
    Query(
        max_length=500,
        description="a stat, or a quantile such as p50 or p99.9; separate several with commas",
        json_schema_extra={"anyOf": [{"enum": list(STAT_NAMES)}, {"pattern": r"^p(\d{1,2}(\.\d{1,6})?|100)$"}]},
    ),
]


def match_of(
    match: Annotated[
        str | None,
        Query(
            max_length=MAX_LENGTH,
            description="a pattern for modules, such as layers.*.attn, type:Linear, or is:nan; see docs/patterns.md",
            examples=["layers.*"],
        ),
    ] = None,
) -> str | None:
    """Return a pattern for modules. A malformed one raises PatternError before anything is read."""
    if match is not None:
        parse(match)
    return match


MatchParam = Annotated[str | None, Depends(match_of)]


def runs_of(request: Request) -> Runs:
    runs: Runs = request.app.state.runs
    return runs


RunsParam = Annotated[Runs, Depends(runs_of)]
NameParam = Annotated[str, Query(min_length=1, max_length=MAX_NAME, description="the name it was saved under")]


def forget(kept: Views, name: str) -> None:
    """Delete the view or chart that readers saved under a name. Answers 404 if there is none."""
    if not kept.delete(name):
        raise HTTPException(404, unknown(kept.noun, name, list(kept.all())))


def listed_run(runs: Runs, run_id: str) -> Run:
    """Return a run from the list by its id, or 404. Its values may be on disk."""
    found = runs.look_up(run_id)
    if found is None:
        raise HTTPException(
            404,
            why_gone(runs.gone(), run_id)
            or " ".join(filter(None, [unknown("run", run_id, [run.id for run in runs.all()]), runs.partial])),
        )
    return found


def run_named(runs: Runs, run_id: str | None) -> Run:
    """Return a run with its values, by its id, or the newest one. 404 if there is none."""
    if run_id is not None:
        return runs.read(listed_run(runs, run_id))
    newest = next(iter(runs.all()), None)
    if newest is None:
        raise HTTPException(404, "there is no run yet: start a training that calls hookcore.watch(model)")
    return runs.read(newest)


def _run_of_path(runs: RunsParam, run: RunId) -> Run:
    return run_named(runs, run)


def _listed_run_of_path(runs: RunsParam, run: RunId) -> Run:
    return listed_run(runs, run)


def _run_of_query(runs: RunsParam, run: OfRun = None, rank: OfRank = None) -> Run:
    found = run_named(runs, run)
    return found if rank is None else runs.read(rank_of(found, rank))


PathRun = Annotated[Run, Depends(_run_of_path)]
ListedRun = Annotated[Run, Depends(_listed_run_of_path)]
RunParam = Annotated[Run, Depends(_run_of_query)]


@dataclass(frozen=True, slots=True)
class Span:
    """The steps from first to last, both inclusive. None means no bound."""

    first: int | None
    last: int | None


def _span(
    first: Annotated[int | None, Query(alias="from", ge=0, le=MAX_STEP, description="the first step")] = None,
    last: Annotated[int | None, Query(alias="to", ge=0, le=MAX_STEP, description="the last step")] = None,
) -> Span:
    if first is not None and last is not None and first > last:
        raise ArgumentError(f"from={first} is after to={last}: give the earlier step as from")
    return Span(first, last)


SpanParam = Annotated[Span, Depends(_span)]


def page_of(items: Sequence[Any], after: int, limit: int) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return a page of a list, and where the next one begins."""
    end = after + limit
    return items[after:end], {"total": len(items), "next": end if end < len(items) else None}


def version_of(run: Run) -> str:
    """Return a value that changes whenever an answer about the run may."""
    return f"{run.id}-{run.info.started_s!r}-{id(run)}-{run.changes.version}-{run.state}-{run.partial}"


class Reply:
    """The answer to one request, in the requested format, or 304 if the client has it already."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def json(self, versions: Sequence[str], content: Callable[[], Any]) -> Response:
        """Reply with JSON."""
        return self.any_of(("json",), None, versions, {"json": lambda: json_of(content())})

    def arrays(
        self,
        chosen: str | None,
        versions: Sequence[str],
        content: Callable[[], Any],
        *,
        matrix: str = "",
        table: Callable[[], Table] | None = None,
    ) -> Response:
        """Reply with JSON, or with a table: by default that of the answer's columns, and of the named matrix."""
        make = table or (lambda: Table.of(content(), matrix))
        makers: dict[str, Callable[[], bytes]] = {"json": lambda: json_of(content())}
        for name in ARRAYS[1:]:
            makers[name] = lambda name=name: make().encode(name)  # type: ignore[misc]
        return self.any_of(ARRAYS, chosen, versions, makers)

    def any_of(
        self,
        offered: Sequence[str],
        chosen: str | None,
        versions: Sequence[str],
        makers: dict[str, Callable[[], bytes]],
    ) -> Response:
        """Reply with the result of the maker for the chosen format, or 304 if the client's copy is current."""
        name = chosen or choose(self._request.headers.get("accept"), offered)
        # The version is read before the answer is made, so an answer is never older than its tag says.
        media_type = MEDIA_TYPES[name] + ("; charset=utf-8; header=present" if name == "csv" else "")
        return self._unless_known(self._tag(name, versions), makers[name], media_type)

    def content(self, data: bytes, media_type: str) -> Response:
        """Reply with data as it was received. Item numbers restart with each run, so the data itself is the version."""
        return self._unless_known(self._tag("", [hashlib.blake2b(data).hexdigest()]), lambda: data, media_type)

    def _unless_known(self, tag: str, make: Callable[[], bytes], media_type: str) -> Response:
        headers = {"Cache-Control": "private, no-cache", "Vary": "Accept", "ETag": tag}
        if _knows(self._request.headers.get("if-none-match", ""), tag):
            return Response(status_code=304, headers=headers)
        return Response(make(), headers=headers, media_type=media_type)

    def _tag(self, name: str, versions: Sequence[str]) -> str:
        """Return a weak tag: two answers with the same tag have the same content, if not the same bytes."""
        url = self._request.url
        text = "\n".join([_SALT, name, url.path, url.query, *versions])
        return f'W/"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"'


def _knows(given: str, tag: str) -> bool:
    known = {each.strip().removeprefix("W/") for each in given.split(",")}
    return tag.removeprefix("W/") in known or given.strip() == "*"


ReplyParam = Annotated[Reply, Depends(Reply)]


def check_cells(columns: int, rows: int) -> None:
    """Raise ArgumentError if a map has too many cells."""
    if columns * rows > MAX_CELLS:
        raise ArgumentError(f"columns={columns} by rows={rows} are more than {MAX_CELLS} cells: ask for fewer")


def ref_to(kind: type[Any]) -> dict[str, Any]:
    """Return the schema of an answer, for a route's description."""
    return {"$ref": f"{SCHEMAS}{kind.__name__}"}


PROBLEM: Final[dict[str, Any]] = {"application/json": {"schema": ref_to(answers.Problem)}}


def problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a route, for its description."""
    said = {
        400: "Unknown name or pattern; the message suggests the nearest match",
        404: "No such run, or no such part of it",
        406: "No format that the client accepts",
        409: "The run has no live trainer",
        422: "A parameter is unknown, missing, malformed, repeated, or out of bounds",
    }
    return {code: {"content": PROBLEM, "description": said[code]} for code in (400, 404, 406, *codes, 422)}


def described(
    kind: type[Any], offered: Sequence[str] = ("json",), also: type[Any] | None = None
) -> dict[int | str, dict[str, Any]]:
    """Return the answers of a route, for its description: an example, its formats and its errors."""
    content: dict[str, Any] = {MEDIA_TYPES[name]: {"schema": _BYTES[name]} for name in offered if name != "json"}
    content |= _json_of(kind)
    if also is not None:
        content["application/json"]["schema"] = {"anyOf": [ref_to(kind), ref_to(also)]}
    return {
        200: {"content": content, "headers": {"ETag": {"schema": {"type": "string"}, "description": "a weak tag"}}},
        304: {"description": "no new data since the answer with the ETag in If-None-Match"},
        **problems(),
    }


def answered(kind: type[Any], status: int = 200, *codes: int) -> dict[int | str, dict[str, Any]]:
    """Return the answers of a route that changes something, for its description."""
    return {status: {"content": _json_of(kind)}, **problems(*codes)}


def _json_of(kind: type[Any]) -> dict[str, Any]:
    return {"application/json": {"schema": ref_to(kind), "example": example_of(kind)}}


_BYTES: Final[dict[str, dict[str, str]]] = {
    name: {"type": "string"} if name == "csv" else {"type": "string", "format": "binary"} for name in MEDIA_TYPES
}

"""The routes of REST: how they are described, and how an answer is sent in the requested format."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

from fastapi import APIRouter, Depends, Query, Request, Response

from hookcore.reading import answers
from hookcore.reading.answers.base import SCHEMAS

from ..formats import ARRAYS, MEDIA_TYPES, StrictJson, Table, choose, json_of
from ..runs import Run
from ..serving.guard.query import ONLY_KNOWN
from .examples import example_of
from .steady import SteadyRoute

SomeRun = TypeVar("SomeRun", bound=Run)
Reading = TypeVar("Reading", bound=Callable[..., Any])
_SALT: Final = secrets.token_hex(4)  # a restarted server counts its versions from the start
Format = Annotated[
    Literal["json", "arrow", "csv", "npy"] | None, Query(description="the format; overrides the Accept header")
]


class Reply:
    """The answer to one request, in the requested format, or 304 if the client has it already."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.versions: list[str] = []  # of what the answer is about, read before it is made: it is never older

    def about(self, run: SomeRun) -> SomeRun:
        """Note that the answer is about a run, and return the run."""
        described = f"{run.info.started_s!r}-{id(run)}-{run.changes.version}-{run.state}-{run.partial}"
        self.versions.append(f"{run.id}-{described}")
        return run

    def json(self, content: Callable[[], Any]) -> Response:
        """Reply with JSON."""
        return self.any_of(("json",), None, {"json": lambda: json_of(content())})

    def arrays(
        self,
        chosen: str | None,
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
        return self.any_of(ARRAYS, chosen, makers)

    def any_of(self, offered: Sequence[str], chosen: str | None, makers: dict[str, Callable[[], bytes]]) -> Response:
        """Reply with the result of the maker for the chosen format, or 304 if the client's copy is current."""
        name = chosen or choose(self._request.headers.get("accept"), offered)
        media_type = MEDIA_TYPES[name] + ("; charset=utf-8; header=present" if name == "csv" else "")
        return self._unless_known(self._tag(name, self.versions), makers[name], media_type)

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


def described(offered: Sequence[str], kind: type[Any], *others: type[Any]) -> dict[int | str, dict[str, Any]]:
    """Return the answers of a route, for its description: an example, its formats and its errors."""
    content: dict[str, Any] = {MEDIA_TYPES[name]: {"schema": _BYTES[name]} for name in offered if name != "json"}
    content |= _json_of(kind)
    if others:
        content["application/json"]["schema"] = {"anyOf": [*map(ref_to, (kind, *others))]}
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


ReplyParam = Annotated[Reply, Depends(Reply)]


class Router(APIRouter):
    """The routes of REST."""

    def reads(
        self, path: str, summary: str, formats: Sequence[str] = ("json",), matrix: str = ""
    ) -> Callable[[Reading], Reading]:
        """Make a route of a function that returns an answer, which is called unless the client has its answer already.

        With the formats of tables, npy has the answer's `matrix` of this name.
        """

        def add(make: Reading) -> Reading:
            def as_json(*, reply: ReplyParam, **given: Any) -> Response:
                return reply.json(lambda: make(**given))

            def as_table(*, reply: ReplyParam, format: Format = None, **given: Any) -> Response:
                return reply.arrays(format, lambda: make(**given), matrix=matrix)

            answer, kind = as_table if formats is ARRAYS else as_json, signature(make, eval_str=True).return_annotation
            parameters = [*_named(make), *_named(answer)]
            wraps(make)(answer).__signature__ = Signature(parameters)  # type: ignore[attr-defined]
            self.get(path, summary=summary, responses=described(formats, *(get_args(kind) or [kind])))(answer)
            return make

        return add


def _named(function: Callable[..., Any]) -> list[Parameter]:
    """Return the named parameters of a function."""
    every = signature(function, eval_str=True).parameters.values()
    return [each.replace(kind=Parameter.KEYWORD_ONLY) for each in every if each.kind != Parameter.VAR_KEYWORD]


router: Final = Router(
    prefix="/api/v1",
    tags=["runs"],
    default_response_class=StrictJson,
    dependencies=[ONLY_KNOWN],
    route_class=SteadyRoute,
)

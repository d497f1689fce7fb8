"""The routes of REST: how they are described, with examples, and how an answer is sent in the requested format."""

from __future__ import annotations

import hashlib
import pathlib
import secrets
from collections.abc import Callable, Coroutine, Sequence
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from hookcore.reading import answers
from hookcore.reading.answers.base import SCHEMAS

from ..formats import ARRAYS, MEDIA_TYPES, StrictJson, Table, choose, json_of
from ..runs import Run
from ..runs.memory import has_swapped, watch_reads
from ..serving.guard.security import ONLY_KNOWN

ATTEMPTS: Final = 3
MAX_RUN_ID: Final = 200  # characters


class SteadyRoute(APIRoute):
    """A route that answers a GET again if a run that it reads was unloaded or read again meanwhile.

    The store that takes its place has only the range of steps, so the run's tensors would seem unknown.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        answer = super().get_route_handler()

        async def answer_steadily(request: Request) -> Response:
            if request.method != "GET":
                return await answer(request)
            for _ in range(ATTEMPTS):
                read = watch_reads()
                try:
                    made = await answer(request)
                except Exception:
                    if not has_swapped(read):
                        raise
                else:
                    if not has_swapped(read):
                        return made
            raise HTTPException(503, "the run leaves memory again and again: try again", {"Retry-After": "2"})

        return answer_steadily


# By class. A class also has the values of its base classes; parts without values are the examples of their classes.
# A name that isn't a class has values for one route.
WRITTEN: Final[dict[str, dict[str, Any]]] = msgspec.json.decode(
    pathlib.Path(__file__).with_name("examples.json").read_bytes()
)
_fields: Final[Callable[..., tuple[msgspec.structs.FieldInfo, ...]]] = cache(msgspec.structs.fields)


def example_of(answer: type[Any], given: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return an example of an answer, with the given values instead of those of its class."""
    values: dict[str, Any] = {}
    for kind in reversed(answer.__mro__):
        values |= WRITTEN.get(kind.__name__, {})
    values |= given or {}
    for field in _fields(answer):
        part, are_many = _part_of(field.type)
        own = values.get(field.encode_name, [{}] if are_many else {})
        if part is not None and own is not None:
            values[field.encode_name] = [example_of(part, each) for each in own] if are_many else example_of(part, own)
    return {field.encode_name: values[field.encode_name] for field in _fields(answer) if field.encode_name in values}


def _part_of(hint: Any) -> tuple[type[Any] | None, bool]:
    """Return the class of a field's answer or answers, if it has any, and whether it has several."""
    origin = get_origin(hint)
    if origin is None:
        return (hint, False) if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else (None, False)
    part, are_many = _part_of(get_args(hint)[0])
    return part, are_many or origin is tuple


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

    def about(self, run: Run) -> Run:
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
REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"content": PROBLEM, "description": "what was wrong, and what to do"}
}


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
    offered: Sequence[str], kind: type[Any], *others: type[Any], example: str = ""
) -> dict[int | str, dict[str, Any]]:
    """Return the answers of a route, for its description: an example, which may have a name, its formats and errors."""
    content: dict[str, Any] = {MEDIA_TYPES[name]: {"schema": _BYTES[name]} for name in offered if name != "json"}
    content |= _json_of(kind, WRITTEN.get(example))
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


def _json_of(kind: type[Any], values: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"application/json": {"schema": ref_to(kind), "example": example_of(kind, values)}}


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
    responses=REFUSALS,
    default_response_class=StrictJson,
    dependencies=[ONLY_KNOWN],
    route_class=SteadyRoute,
)

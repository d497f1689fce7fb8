"""Checks the query parameters and bodies of API requests. What its route would ignore is rejected.

Routers of the API have `ONLY_KNOWN`. Those of pages don't, so that a shared link opens whatever a chat added to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args, get_origin

from fastapi import Depends
from fastapi.dependencies.models import Dependant
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request

from hookcore.config import nearest

MAX_NAMES: Final = 5  # of an error
MAX_NAME: Final = 100  # characters


def parameters_of(dependant: Dependant) -> dict[str, bool]:
    """Return the parameters that a route reads from the query, and whether each can be repeated."""
    known: dict[str, bool] = {}
    for each in dependant.dependencies:
        known |= parameters_of(each)
    return known | {each.alias: is_list(each.field_info.annotation) for each in dependant.query_params}


def is_list(annotation: Any) -> bool:
    """Return whether a parameter can be repeated."""
    return any(get_origin(each) is list for each in (annotation, *get_args(annotation)))


async def _check(connection: HTTPConnection) -> None:
    """Refuse a query with a parameter that its route doesn't know, or reads only once, and a body that it ignores."""
    if isinstance(connection, Request) and connection.method == "POST":
        await _check_body(connection)
    given = Counter(name for name, _ in connection.query_params.multi_items())
    if not given:
        return
    dependant: Dependant = connection.scope["route"].dependant
    known = parameters_of(dependant)
    strange = [name for name in given if name not in known]
    wrong = (_misplaced(strange, dependant) if strange else "") or what_is_wrong(given, known)
    if wrong:
        raise HTTPException(422, wrong)


async def _check_body(request: Request) -> None:
    route = request.scope["route"]
    reads_it = route.dependant.body_params or (route.openapi_extra or {}).get("requestBody")
    if not reads_it and (await request.body()).strip() not in (b"", b"{}"):
        raise HTTPException(422, f"POST {request.url.path} reads no body: send none")


def what_is_wrong(given: Mapping[str, int], known: Mapping[str, bool]) -> str:
    """Return why parameters are refused, by how often each is given; "" if they aren't.

    `known` are the allowed ones, and whether each can be repeated.
    """
    strange = [name for name in given if name not in known]
    if strange:
        return _unknown(strange, known)
    often = next((name for name, times in given.items() if times > 1 and not known[name]), None)
    return "" if often is None else f"{often}= is given {given[often]} times: only one value is allowed. Give it once"


def _misplaced(names: list[str], dependant: Dependant) -> str:
    """Return an error if a name is a field of the body. Left out, it would have its default there."""
    bodies = [getattr(each.field_info.annotation, "model_fields", {}) for each in dependant.body_params]
    found = next((name for name in names for fields in bodies if name in fields), None)
    return f"{found}= is not a parameter of this address: send it in the JSON body" if found is not None else ""


def _unknown(names: list[str], known: Iterable[str]) -> str:
    """Return an error with names only: a value may be a token."""
    shown = [name[:MAX_NAME] for name in names[:MAX_NAMES]]
    near = dict.fromkeys(repr(each) for name in shown for each in nearest(name, known, limit=1))
    hint = f"; did you mean {', '.join(near)}?" if near else "."
    what = "parameter" if len(shown) == 1 else "parameters"
    allowed = f"{', '.join(known)}. Use one of these, or leave it out" if known else "none. Leave it out"
    return f"unknown {what} {', '.join(map(repr, shown))}{hint} Allowed: {allowed}"


ONLY_KNOWN: Final = Depends(_check)

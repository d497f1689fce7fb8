"""REST: the store's queries, one route each. Stateless; the store is on `app.state`."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request

from hookcore.store import Store

from .schemas import StrictJson, latest_as_json, series_as_json, taps_as_json

MAX_POINTS: Final = 10_000
MAX_TAPS: Final = 100_000

router = APIRouter(default_response_class=StrictJson)


def store_of(request: Request) -> Store:
    """The store that this server shows."""
    store: Store = request.app.state.store
    return store


GivenStore = Annotated[Store, Depends(store_of)]
Match = Annotated[str | None, Query(max_length=1000, description="a glob on the module's path; * crosses dots")]


@router.get("/healthz")
def healthz(store: GivenStore) -> dict[str, Any]:
    """That the server answers, and how far the run is."""
    steps = store.steps()
    return {"status": "ok", "steps": steps.count, "newest_step": steps.newest}


@router.get("/api/v1/taps", response_class=StrictJson)
def taps(store: GivenStore, match: Match = None, kind: str | None = None) -> StrictJson:
    """The observed tensor streams."""
    return StrictJson(taps_as_json(store.taps(match, kind)))


@router.get("/api/v1/latest", response_class=StrictJson)
def latest(
    store: GivenStore,
    kind: str | None = None,
    stat: str | None = None,
    sort: Annotated[str | None, Query(description="a stat, largest first; with - before it smallest first")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_TAPS)] = MAX_TAPS,
) -> StrictJson:
    """The newest values of every tap."""
    return StrictJson(latest_as_json(store.latest(kind, stat, sort, limit)))


@router.get("/api/v1/series", response_class=StrictJson)
def series(
    store: GivenStore,
    tap: Annotated[int, Query(ge=0)],
    stat: str,
    first: Annotated[int | None, Query(ge=0)] = None,
    last: Annotated[int | None, Query(ge=0)] = None,
    points: Annotated[int, Query(ge=1, le=MAX_POINTS)] = 1000,
) -> StrictJson:
    """One stat of one tap over time, in at most so many points."""
    return StrictJson(series_as_json(store.series(tap, stat, first, last, points)))

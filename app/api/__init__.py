"""REST: queries about the runs, and commands to their trainers. Thin and stateless; the runs are in `app.state`."""

from __future__ import annotations

from fastapi import APIRouter

from ..formats import StrictJson
from ..serving.guard.query import ONLY_KNOWN
from . import (
    capsules,
    compare,
    different,
    figure,
    incidents,
    media,
    notifications,
    overlay,
    overview,
    ranks,
    report,
    rollout,
    rules,
    runs,
    series,
    snapshots,
    timeline,
    trainer,
    views,
)

router = APIRouter(prefix="/api/v1", tags=["runs"], default_response_class=StrictJson, dependencies=[ONLY_KNOWN])
_PARTS = (
    runs,
    media,
    ranks,
    overview,
    timeline,
    overlay,
    rules,
    incidents,
    capsules,
    series,
    snapshots,
    rollout,
    trainer,
    compare,
    different,
    figure,
    report,
    notifications,
    views,
)
for _part in _PARTS:
    router.include_router(_part.router)

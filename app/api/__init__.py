"""REST: queries about the runs, and commands to their trainers. Thin and stateless; the runs are in `app.state`."""

from __future__ import annotations

from fastapi import APIRouter

from . import (
    capsules,
    compare,
    figure,
    incidents,
    notifications,
    overview,
    quiet,
    report,
    rollout,
    rules,
    runs,
    series,
    snapshots,
    trainer,
)

router = APIRouter(tags=["runs"])
_PARTS = (
    runs,
    overview,
    quiet,
    rules,
    incidents,
    capsules,
    series,
    snapshots,
    rollout,
    trainer,
    compare,
    figure,
    report,
    notifications,
)
for _part in _PARTS:
    router.include_router(_part.router)

__all__ = ["router"]

"""REST: questions about the runs, and commands to their trainers. Thin and stateless; the runs are on `app.state`."""

from __future__ import annotations

from fastapi import APIRouter

from . import compare, runs, series, snapshots, trainer

router = APIRouter(tags=["runs"])
for _part in (runs, series, snapshots, trainer, compare):
    router.include_router(_part.router)

__all__ = ["router"]

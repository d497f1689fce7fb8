"""REST: queries about the runs, and commands to their trainers. Thin and stateless; the runs are in `app.state`."""

from __future__ import annotations

from . import (  # each adds its routes to the router
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
from .routing import router

__all__ = ["router"]

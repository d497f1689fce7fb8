"""REST: queries about the runs, and commands to their trainers. Thin and stateless; the runs are in `app.state`."""

from __future__ import annotations

from . import compare, findings, runs, series, snapshots  # each adds its routes to the router
from . import compare as different
from . import compare as ranks
from . import runs as report
from .routing import router

__all__ = ["router"]

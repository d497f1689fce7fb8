"""All routes of REST but those that trainers, browsers, and monitoring need first. Imported when one is asked for."""

from __future__ import annotations

from . import compare, findings, runs, series, snapshots  # each adds its routes to the router
from .routing import router
from .runs import problem_of_view
from .series import charts_of, problem_of_chart

__all__ = [
    "charts_of",
    "compare",
    "findings",
    "problem_of_chart",
    "problem_of_view",
    "router",
    "runs",
    "series",
    "snapshots",
]

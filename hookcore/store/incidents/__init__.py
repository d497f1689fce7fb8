"""Incidents: what went wrong in a run, as it was seen when it happened. Needs no web, no torch, and no store."""

from __future__ import annotations

from .accounts import NONFINITE
from .book import KEPT_FIRST, KEPT_NEWEST, Incidents
from .evidence import AROUND
from .feeding import Feeding, fitting
from .incident import Evidence, Found, Incident, Link, Logged
from .occasions import FirstError
from .order import Rank, around, rank_of

__all__ = [
    "AROUND",
    "KEPT_FIRST",
    "KEPT_NEWEST",
    "NONFINITE",
    "Evidence",
    "Feeding",
    "FirstError",
    "Found",
    "Incident",
    "Incidents",
    "Link",
    "Logged",
    "Rank",
    "around",
    "fitting",
    "rank_of",
]

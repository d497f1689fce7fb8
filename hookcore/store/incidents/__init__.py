"""Incidents: what went wrong in a run, as it was seen when it happened. Needs no web, no torch, and no store."""

from __future__ import annotations

from hookcore.store.incidents.accounts import AROUND, GRACE, UNCAPTURED, WHOLE, Rank, around, rank_of
from hookcore.store.incidents.book import Feeding, fitting
from hookcore.store.incidents.replayed import Alarm, Replay

from .book import KEPT_FIRST, KEPT_NEWEST, Incidents
from .incident import NONFINITE, Evidence, Found, Incident, Link, LoggedValue, Source, is_named, since_words, when_words
from .replayed import FirstError, replay_of

__all__ = [
    "AROUND",
    "GRACE",
    "KEPT_FIRST",
    "KEPT_NEWEST",
    "NONFINITE",
    "UNCAPTURED",
    "WHOLE",
    "Alarm",
    "Evidence",
    "Feeding",
    "FirstError",
    "Found",
    "Incident",
    "Incidents",
    "Link",
    "LoggedValue",
    "Rank",
    "Replay",
    "Source",
    "around",
    "fitting",
    "is_named",
    "rank_of",
    "replay_of",
    "since_words",
    "when_words",
]

"""The findings of a run, and its key figures. Pure: a store in, records out; no web, no plots.

A layer is compared with its own past, because late layers are larger than early ones in every healthy network, and
many gradients are small for a whole run. A problem that exists from the first step has no healthy past, so rules
about the whole stack (`depth`), about zeros, and about the loss detect it. The scope says how much was examined.
"""

from __future__ import annotations

from .cache import FindingsCache
from .finding import RULES, Finding, Rule
from .follower import follow
from .keyfigures import KeyFigures, Reading, key_figures_of
from .ranking import Diagnosis, examine, findings_of
from .scope import Scope, Unjudged

__all__ = [
    "RULES",
    "Diagnosis",
    "Finding",
    "FindingsCache",
    "KeyFigures",
    "Reading",
    "Rule",
    "Scope",
    "Unjudged",
    "examine",
    "findings_of",
    "follow",
    "key_figures_of",
]

"""What in a run needs attention, and its key figures. Pure: a store in, records out; no web, no plots.

A layer is compared with its own past, because late layers are larger than early ones in every healthy network, and
many gradients are small for a whole run. What is ill from the first step on has no healthy past: rules about the whole
stack (`depth`), about zeros, and about the loss find it. The scope says how much all of it is based on.
"""

from __future__ import annotations

from .findings import RULES, Finding, Rule, key_of_event
from .keyfigures import KeyFigures, Reading, key_figures_of
from .memory import Attention
from .ranking import Diagnosis, attention_of, examine
from .scope import Scope, Unjudged

__all__ = [
    "RULES",
    "Attention",
    "Diagnosis",
    "Finding",
    "KeyFigures",
    "Reading",
    "Rule",
    "Scope",
    "Unjudged",
    "attention_of",
    "examine",
    "key_figures_of",
    "key_of_event",
]

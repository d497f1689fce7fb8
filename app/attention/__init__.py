"""What in a run needs attention, and its key figures. Pure: a store in, records out; no web, no plots.

A layer is compared with its own past. Absolute size alone is no finding: late layers are larger than early ones in
every healthy network, and many gradients are small for a whole run.
"""

from __future__ import annotations

from .findings import RULES, Finding, Rule, key_of_event
from .keyfigures import KeyFigures, Reading, key_figures_of
from .memory import Attention
from .ranking import attention_of

__all__ = [
    "RULES",
    "Attention",
    "Finding",
    "KeyFigures",
    "Reading",
    "Rule",
    "attention_of",
    "key_figures_of",
    "key_of_event",
]

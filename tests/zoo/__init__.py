"""A zoo of tiny models and training loops, each named after its oddity. No tests, and no use of hookcore."""

from __future__ import annotations

from tests.zoo import calls, copies, graphs, inplace, layers, loops, outputs, users
from tests.zoo.case import CASES, Case, Trait, Trial

__all__ = [
    "CASES",
    "Case",
    "Trait",
    "Trial",
    "calls",
    "copies",
    "graphs",
    "inplace",
    "layers",
    "loops",
    "outputs",
    "users",
]

"""A zoo of tiny models and training loops, each named after its oddity. It has no tests, and doesn't use hookcore."""

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

"""Charts as Plotly figures: takes the store's answers, returns dicts for Plotly. Pure: no web, no HTML.

Every chart has marks for non-finite values, never gaps. What was not captured is left out, and its place marked.
"""

from __future__ import annotations

from ..numerals import shown
from .lines import ends_of, profile, series
from .maps import EMPTY, INFINITE, NAN, captured_only, difference, fan, heatmap, histograms, same_maps, tensor
from .style import DARK, LIGHT, THEMES, Style

__all__ = [
    "DARK",
    "EMPTY",
    "INFINITE",
    "LIGHT",
    "NAN",
    "THEMES",
    "Style",
    "captured_only",
    "difference",
    "ends_of",
    "fan",
    "heatmap",
    "histograms",
    "profile",
    "same_maps",
    "series",
    "shown",
    "tensor",
]

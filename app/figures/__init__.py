"""Charts as Plotly figures: the store's answers in, dicts as Plotly reads them out. Pure: no web, no HTML.

What was not finite is a mark of its own in every chart, never a gap.
"""

from __future__ import annotations

from .aligned import same_maps
from .distributions import fan, histograms
from .lines import profile, series
from .maps import EMPTY, INFINITE, NAN, difference, heatmap, tensor
from .style import DARK, LIGHT, THEMES, Style, shown

__all__ = [
    "DARK",
    "EMPTY",
    "INFINITE",
    "LIGHT",
    "NAN",
    "THEMES",
    "Style",
    "difference",
    "fan",
    "heatmap",
    "histograms",
    "profile",
    "same_maps",
    "series",
    "shown",
    "tensor",
]

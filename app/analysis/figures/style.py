"""Shared parts of all figures: colors, axes, ticks with values, and marks of non-finite values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from hookcore.records.vocabulary import INFINITE_COLOR, NAN_COLOR, counted

from ..numerals import shown

Scale = Literal["auto", "log", "linear"]
Trace = dict[str, Any]
NEVER_NEGATIVE: Final = frozenset(
    {"count", "nan", "inf", "zero", "std", "rms", "norm", "parts", "sketched", "ratio", "zero_fraction", "nonfinite"}
)
_LINEAR: Final = frozenset({"zero_fraction"})  # shares, whose logarithm is meaningless
BAR: Final = MappingProxyType({"thickness": 14, "outlinewidth": 0})  # of colors
_MAX_TICKS: Final = 9


@dataclass(frozen=True, slots=True)
class Style:
    """The colors of a theme, as on the pages."""

    name: str
    paper: str
    ink: str
    quiet: str
    line: str
    nan: str
    infinite: str
    lines: tuple[str, ...]
    low: str  # of a difference
    high: str


LIGHT: Final = Style(
    "light",
    "#ffffff",
    "#171b21",
    "#545d68",
    "#d8dde3",
    NAN_COLOR,
    INFINITE_COLOR,
    ("#0b5cc0", "#b3470c", "#1a7f46", "#7a3fb8", "#8a5a00", "#00707a", "#b42318", "#545d68"),
    "#0b5cc0",
    "#b3470c",
)
DARK: Final = Style(
    "dark",
    "#161a20",
    "#e4e8ed",
    "#9aa4b0",
    "#2b313a",
    "#ff5fd2",
    "#ff9a57",
    ("#6cb0ff", "#ffa261", "#56c78a", "#c39bff", "#e5b454", "#5ad1dc", "#ff8f85", "#9aa4b0"),
    "#6cb0ff",
    "#ffa261",
)
THEMES: Final[Mapping[str, Style]] = MappingProxyType({"light": LIGHT, "dark": DARK})


def figure_of(style: Style, title: str, traces: list[Trace], **layout: Any) -> dict[str, Any]:
    """Return a figure as a dict; Plotly raises here for an invalid one. Arrays are typed, so NaN stays NaN."""
    common = {
        "template": "none",
        "title": {"text": escaped(title), "font": {"size": 15}, "x": 0, "xref": "container", "pad": {"l": 14}},
        "paper_bgcolor": style.paper,
        "plot_bgcolor": style.paper,
        "font": {"color": style.ink, "family": "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif", "size": 12},
        "colorway": list(style.lines),
        "margin": {"l": 64, "r": 24, "t": 48, "b": 48},
        "hoverlabel": {"font": {"color": style.ink}, "bgcolor": style.paper, "bordercolor": style.quiet},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 1, "xanchor": "right"},
    }
    made: dict[str, Any] = go.Figure({"data": traces, "layout": {**common, **layout}}).to_dict()
    return made


def escaped(text: str) -> str:
    """Escape a user-given name, because Plotly interprets some tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def axis(style: Style, title: str = "", **more: Any) -> dict[str, Any]:
    """Return an axis in the colors of the theme."""
    common = {"gridcolor": style.line, "linecolor": style.line, "zerolinecolor": style.line, "ticks": "outside"}
    more.setdefault("title", {"text": escaped(title), "font": {"color": style.quiet}})
    return {**common, "tickcolor": style.line, "automargin": True, "exponentformat": "e", **more}


_MAX_GAPS: Final = 200  # marks of an axis; with more, only its title says that steps are left out


@dataclass(frozen=True, slots=True)
class StepAxis:
    """Captured steps side by side, with marks where steps were left out; the true steps if none is.

    `layout` is the axis and its marks. Left-out steps make the axis one of categories, named by their first steps.
    """

    packs: bool
    layout: dict[str, Any]

    def x(self, first: NDArray[np.int64]) -> Any:
        """Return where points stand that begin at these steps."""
        return [str(step) for step in first.tolist()] if self.packs else first

    def cells(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> Any:
        """Return the columns of a map: their names, or their edges, so that each step is in the middle of its cell."""
        if self.packs or not len(first):
            return self.x(first)
        return np.append(first, last[-1] + 1).astype(np.float64) - 0.5


def step_axis(style: Style, ends: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> StepAxis:
    """Return the axis for points with these first and last steps."""
    known: dict[int, int] = {}
    for one, other in ends:
        for begin, end in zip(one.tolist(), other.tolist(), strict=True):
            known[begin] = max(end, known.get(begin, end))
    steps = sorted(known)
    gaps = [(place, step - known[before] - 1) for place, (before, step) in enumerate(itertools.pairwise(steps))]
    gaps = [(place, many) for place, many in gaps if many > 0]
    if not gaps:
        return StepAxis(False, {"xaxis": axis(style, "step", showgrid=False)})
    least, most = min(many for _, many in gaps), max(many for _, many in gaps)
    words = f"{least:,} to {most:,} steps" if least < most else counted(most, "step")
    marks = [
        {"type": "line", "xref": "x", "yref": "paper", "x0": place + 0.5, "x1": place + 0.5, "y0": 0, "y1": 0.02}
        for place, _ in gaps[:_MAX_GAPS]
    ]
    names = {"type": "category", "categoryorder": "array", "categoryarray": [str(step) for step in steps]}
    title = f"captured steps; {words} left out at {'the' if len(gaps) == 1 else 'each'} mark"
    return StepAxis(
        True,
        {
            "xaxis": axis(style, title, showgrid=False, nticks=8, tickangle=0, **names),
            "shapes": [{**mark, "line": {"color": style.quiet, "width": 1}} for mark in marks],
        },
    )


def value_axis(style: Style, title: str, log: bool, **more: Any) -> dict[str, Any]:
    """Return an axis of values; a logarithmic one shows values at its ticks, not exponents."""
    kind = {"type": "log", "exponentformat": "e", "dtick": "D1" if more.pop("narrow", False) else None} if log else {}
    return axis(style, title, **{name: value for name, value in kind.items() if value is not None}, **more)


def is_log(scale: Scale, stat: str, values: NDArray[np.float64]) -> bool:
    """Return whether a stat gets a logarithmic axis: if requested or usual, and possible."""
    if scale == "linear" or (scale == "auto" and (stat not in NEVER_NEGATIVE or stat in _LINEAR)):
        return False
    known = values[np.isfinite(values)]
    return bool((known > 0).any() and not (known < 0).any())


def log_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Return positions (exponents) and labels for a color bar from 10**low to 10**high."""
    first, last = math.floor(low), math.ceil(high)
    stride = max(1, math.ceil((last - first) / _MAX_TICKS))
    places = [float(place) for place in range(first, last + 1, stride) if low - 1e-9 <= place <= high + 1e-9]
    if len(places) < 2:
        places = [low, (low + high) / 2, high] if high > low else [low]
    return places, [shown(10.0**place) for place in places]


def marks(style: Style, steps: Any, nonfinite: NDArray[np.int64] | NDArray[np.uint32], name: str = "") -> list[Trace]:
    """Return crosses at non-finite values, on their own axis (`y2`), so that no value hides them."""
    bad = np.flatnonzero(nonfinite)
    if not len(bad):
        return []
    prefix = f"{escaped(name)}: " if name else ""
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "NaN or infinity",
            "legendgroup": "nonfinite",
            "x": [steps[place] for place in bad.tolist()] if isinstance(steps, list) else steps[bad],
            "y": np.zeros(len(bad)),
            "yaxis": "y2",
            "cliponaxis": False,
            "customdata": nonfinite[bad].astype(np.int32),
            "marker": {"symbol": "x", "color": style.nan, "size": 8},
            "hovertemplate": f"{prefix}not finite in %{{customdata}} steps<extra></extra>",
        }
    ]


def marks_axis() -> dict[str, Any]:
    """Return the invisible axis of `marks`, from the bottom of the chart to its top."""
    return {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}

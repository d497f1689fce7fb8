"""The distribution of a tensor's values, over steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from hookcore.reading.answers import Histograms, Series

from ..numerals import shown
from .maps import edges_of
from .style import BAR, Style, Trace, axis, figure_of, log_ticks, marks, marks_axis

_MAX_TICKS: Final = 9


def histograms(found: Histograms, style: Style, title: str) -> dict[str, Any]:
    """Plot steps over bins of values (as wide as in their sketch). The color is the logarithm of the count."""
    counts = found.counts.T.astype(np.float64)
    with np.errstate(divide="ignore"):
        logs = np.log10(counts)
    logs[np.isneginf(logs)] = np.nan
    known = logs[np.isfinite(logs)]
    places, texts = log_ticks(float(known.min()), float(known.max())) if len(known) else ([0.0], ["1"])
    bins = len(found.edges) - 1
    trace: Trace = {
        "type": "heatmap",
        "z": logs,
        "x": edges_of(found.first_step, found.last_step),
        "y": np.arange(max(bins, 0) + 1) - 0.5,
        "customdata": counts,
        "colorscale": "Viridis",
        "zsmooth": False,
        "hoverongaps": False,
        "colorbar": {**BAR, "tickvals": places, "ticktext": texts, "title": {"text": "values"}},
        "hovertemplate": "step %{x}<br>%{customdata} values<extra></extra>",
    }
    bad = (found.nan + found.negative_infinity + found.positive_infinity).astype(np.int64)
    ticks = np.unique(np.linspace(0, max(bins, 0), _MAX_TICKS).astype(int)) if bins > 0 else np.empty(0, int)
    return figure_of(
        style,
        title,
        [trace, *_value_marks(style, found, bad)],
        xaxis=axis(style, "step", showgrid=False),
        yaxis=axis(
            style,
            "value",
            showgrid=False,
            tickvals=(ticks - 0.5).tolist(),
            ticktext=[shown(float(found.edges[tick])) for tick in ticks],
        ),
        yaxis2=marks_axis(),
        showlegend=bool(bad.any()),
    )


def _value_marks(style: Style, found: Histograms, bad: Any) -> list[Trace]:
    said = "%{customdata} values not finite<extra></extra>"
    return [{**mark, "hovertemplate": said} for mark in marks(style, found.first_step, bad)]


def fan(quantiles: Sequence[Series], counted: Series, style: Style, title: str) -> dict[str, Any]:
    """Plot quantiles over steps: bands between matching pairs, and the middle one as a line.

    `counted` is a stat of the same tap that includes its non-finite steps.
    """
    color = style.lines[0]
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    edge: Trace = {"type": "scatter", "mode": "lines", "hovertemplate": "%{y:.5g}", "line": {"width": 0}}
    traces: list[Trace] = []
    pairs = len(quantiles) // 2
    for place, (low, high) in enumerate(zip(quantiles[:pairs], reversed(quantiles), strict=False)):
        fill = f"rgba({red},{green},{blue},{0.12 + 0.12 * place:.2f})"
        name = f"{_percent(low)} to {_percent(high)}"
        traces.append({**edge, "x": low.first_step, "name": _percent(low), "y": low.mean, "showlegend": False})
        traces.append(
            {**edge, "x": high.first_step, "name": name, "y": high.mean, "fill": "tonexty", "fillcolor": fill}
        )
    if len(quantiles) % 2:
        middle = quantiles[pairs]
        line = {"color": color, "width": 1.8}
        traces.append({**edge, "x": middle.first_step, "line": line, "name": _percent(middle), "y": middle.mean})
    if counted.nonfinite is not None:
        traces += marks(style, counted.first_step, counted.nonfinite)
    return figure_of(
        style,
        title,
        traces,
        xaxis=axis(style, "step", showgrid=False),
        yaxis=axis(style, "value"),
        yaxis2=marks_axis(),
        hovermode="x unified",
    )


def _percent(one: Series) -> str:
    return f"{one.name.removeprefix('p')} %"

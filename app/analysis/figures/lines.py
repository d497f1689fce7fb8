"""Values over steps, and over the depth of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.reading.answers import Series
from hookcore.records.vocabulary import KIND_WORDS

from .style import Scale, Style, Trace, axis, escaped, figure_of, is_log, marks, marks_axis, value_axis

Floats = NDArray[np.float64]
NOISE: Final = 1e-5  # of a value: float32 rounds at 6e-8, and sums of many at more
_RAW: Final = 0.35  # opacity of the line behind a smoothed one


def series(
    many: Sequence[tuple[str, Series]],
    style: Style,
    title: str,
    stat: str = "",
    scale: Scale = "auto",
    half_life: float = 0.0,
) -> dict[str, Any]:
    """Plot each series as its mean with the band of its extremes; if smoothed, the raw line stays visible."""
    known = [np.concatenate([each.min, each.max]) for _, each in many]
    log = is_log(scale, stat, np.concatenate(known) if known else np.empty(0))
    traces: list[Trace] = []
    for place, (name, each) in enumerate(many):
        color = style.lines[place % len(style.lines)]
        traces += [*_band(each, color), *_line(name, each, color, half_life)]
    counted = [(name, each.first_step, each.nonfinite) for name, each in many if each.nonfinite is not None]
    crosses = [mark for name, steps, nonfinite in counted for mark in marks(style, steps, nonfinite, name)]
    traces += [{**mark, "showlegend": place == 0} for place, mark in enumerate(crosses)]
    return figure_of(
        style,
        title,
        traces,
        xaxis=axis(style, "step", showgrid=False),
        yaxis=value_axis(style, stat, log, **_range_of(known, log)),
        yaxis2=marks_axis(),
        showlegend=len(many) > 1 or bool(crosses),
        hovermode="x unified" if len(many) <= 8 else "closest",
    )


def _range_of(known: Sequence[Floats], log: bool) -> dict[str, Any]:
    """Return a range around values that are constant except for rounding, so that noise doesn't fill the chart."""
    values = np.concatenate(known) if known else np.empty(0)
    values = values[np.isfinite(values)]
    value = float(values.mean()) if len(values) else 0.0
    if not value or float(values.max() - values.min()) > NOISE * abs(value):
        return {}
    ends = sorted((0.8 * value, 1.2 * value))
    return {"range": [float(np.log10(end)) for end in ends] if log else ends}


def _band(one: Series, color: str) -> list[Trace]:
    """Return the band of extremes, or nothing if every point is a single step."""
    if np.array_equal(one.min, one.max, equal_nan=True):
        return []
    edge = {"type": "scatter", "mode": "lines", "x": one.first_step, "line": {"width": 0}, "hoverinfo": "skip"}
    fill = "rgba({},{},{},0.18)".format(*(int(color[place : place + 2], 16) for place in (1, 3, 5)))
    return [
        {**edge, "name": "least", "y": one.min, "showlegend": False},
        {**edge, "name": "largest", "y": one.max, "showlegend": False, "fill": "tonexty", "fillcolor": fill},
    ]


def _line(name: str, one: Series, color: str, half_life: float) -> list[Trace]:
    mode = "lines" if len(one.first_step) > 1 else "markers"
    line = {"type": "scatter", "mode": mode, "x": one.first_step, "line": {"color": color, "width": 1.6}}
    plain = {**line, "name": escaped(name), "y": one.mean, "hovertemplate": "%{y:.5g}"}
    if half_life <= 0:
        return [plain]
    behind = {**plain, "opacity": _RAW, "showlegend": False, "name": f"{escaped(name)} (raw)"}
    return [behind, {**plain, "y": smoothed(one.last_step, one.mean, half_life)}]


def smoothed(steps: NDArray[np.int64], values: Floats, half_life: float) -> Floats:
    """Return the exponential mean whose weights halve every `half_life` steps, without a bias at the start.

    Non-finite values have no weight and stay unchanged.
    """
    total, weight, before = 0.0, 0.0, 0
    found = np.full(len(values), np.nan)
    for place, (step, value) in enumerate(zip(steps.tolist(), values.tolist(), strict=True)):
        keep = 0.5 ** ((step - before) / half_life)
        total, weight, before = total * keep, weight * keep, step
        if np.isfinite(value):
            total, weight = total + value, weight + 1.0
            found[place] = total / weight
    return found


def profile(
    kinds: Sequence[tuple[str, Sequence[Series]]], style: Style, title: str, stat: str, scale: Scale = "auto"
) -> dict[str, Any]:
    """Plot a bar per layer from input to output, with kinds side by side; each series has one point."""
    values = np.array([each.mean[0] for _, many in kinds for each in many])
    order = list(dict.fromkeys(_layer_of(each) for _, many in kinds for each in many))
    traces: list[Trace] = []
    for place, (kind, many) in enumerate(kinds):
        word = KIND_WORDS.get(kind, kind)
        traces.append(
            {
                "type": "bar",
                "name": word,
                "x": [_layer_of(each) for each in many],
                "y": np.array([each.mean[0] for each in many]),
                "marker": {"color": style.lines[place % len(style.lines)]},
                "hovertemplate": f"%{{x}}<br>{word} %{{y:.5g}}<extra></extra>",
            }
        )
    traces += [mark for each in kinds for mark in _bar_marks(style, *each)]
    layers = axis(style, "", type="category", categoryorder="array", categoryarray=order, showgrid=False)
    return figure_of(
        style,
        title,
        traces,
        barmode="group",
        bargap=0.15,
        xaxis=layers,
        yaxis=value_axis(style, stat, is_log(scale, stat, values)),
        yaxis2=marks_axis(),
        showlegend=len(traces) > 1,
    )


def ends_of(kinds: Sequence[tuple[str, Sequence[Series]]]) -> tuple[int, int]:
    """Return the first and the last step of a profile's values, which are means if these differ."""
    points = [each for _, many in kinds for each in many]
    return min(int(each.first_step[0]) for each in points), max(int(each.last_step[0]) for each in points)


def _bar_marks(style: Style, kind: str, many: Sequence[Series]) -> list[Trace]:
    bad = [_layer_of(each) for each in many if each.nonfinite is not None and each.nonfinite[0]]
    if not bad:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"{kind.replace('_', ' ')}: NaN or infinity",
            "x": bad,
            "y": np.zeros(len(bad)),
            "yaxis": "y2",
            "cliponaxis": False,
            "marker": {"symbol": "x", "color": style.nan, "size": 8},
            "hovertemplate": "%{x}: not finite<extra></extra>",
        }
    ]


def _layer_of(one: Series) -> str:
    """Return the name of a bar, the same for an output and its gradient."""
    return "" if one.tap is None else escaped(one.tap.record.name)

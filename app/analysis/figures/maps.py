"""Matrices as colors: layers over steps, the difference of two runs, and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.reading.answers import Heatmap, Row
from hookcore.records import Snapshot

from .style import BAR, NEVER_NEGATIVE, Scale, Style, Trace, axis, escaped, figure_of, is_log, log_ticks

Floats = NDArray[np.float64]
_COLORS: Final = "Viridis"
EMPTY, NAN, INFINITE = 0, 2, 3  # states of a cell
_MAX_DECADES: Final = 12.0  # of the colors of a difference


def heatmap(found: Heatmap, style: Style, title: str, scale: Scale = "auto") -> dict[str, Any]:
    """Plot layers from input (top) to output over steps; the color is the magnitude of a cell's worst value."""
    values = np.abs(found.worst)
    log = is_log(scale, found.stat if found.stat in NEVER_NEGATIVE else "rms", values)
    labels = _labels(found.rows)
    edges = edges_of(found.first_step, found.last_step)
    traces = [_cells(values, edges, labels, log, f"|{found.stat}|" if found.stat not in NEVER_NEGATIVE else found.stat)]
    traces += _nonfinite_cells(style, edges, labels, found.state == NAN, found.state == INFINITE)
    return _map_of(style, title, traces)


def difference(one: Heatmap, two: Heatmap, style: Style, title: str) -> dict[str, Any]:
    """Plot how many times as large the second run's values are as the first one's, at the same steps.

    Both maps have the same taps and columns. If only one of the two is finite, the cell has a separate mark.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log10(np.abs(two.worst)) - np.log10(np.abs(one.worst))
    ratio[(one.worst == 0) & (two.worst == 0)] = 0.0
    ratio = np.clip(ratio, -_MAX_DECADES, _MAX_DECADES)
    seen = (one.state > EMPTY) & (two.state > EMPTY)
    bad = (one.state >= NAN, two.state >= NAN)
    ratio[~seen | bad[0] | bad[1]] = np.nan
    known = np.abs(ratio[np.isfinite(ratio)])
    most = max(float(known.max(initial=0.0)), 0.01)
    labels = _labels(one.rows)
    edges = edges_of(one.first_step, one.last_step)
    places, texts = log_ticks(-most, most)
    trace = _trace(ratio, edges, labels, [[0, style.low], [0.5, style.paper], [1, style.high]])
    trace |= {
        "zmin": -most,
        "zmax": most,
        "customdata": 10.0**ratio,
        "hovertemplate": "%{y}<br>step %{x}<br>second / first %{customdata:.4g}<extra></extra>",
        "colorbar": {
            **BAR,
            "tickvals": places,
            "ticktext": [f"x {text}" for text in texts],
            "title": {"text": "second / first"},
        },
    }
    marks = (
        ("non-finite only in the second run", seen & bad[1] & ~bad[0], style.nan),
        ("non-finite only in the first run", seen & bad[0] & ~bad[1], style.infinite),
        ("non-finite in both runs", seen & bad[0] & bad[1], style.quiet),
    )
    return _map_of(style, title, [trace, *_flat_cells(edges, labels, marks)])


def tensor(snapshot: Snapshot, values: NDArray[Any], style: Style, title: str, scale: Scale = "auto") -> dict[str, Any]:
    """Plot a tensor with up to two dimensions: as a line, or as a picture whose first row is on top."""
    numbers = np.abs(values) if np.iscomplexobj(values) else values
    numbers = numbers.astype(np.float64)
    matrix = np.atleast_2d(numbers)
    if numbers.ndim < 2:
        return _vector(matrix[0], style, title)
    finite = np.isfinite(matrix)
    known = np.where(finite, matrix, np.nan)
    signed = bool((known < 0).any())
    rows, columns = (np.arange(size + 1) - 0.5 for size in matrix.shape)
    log = scale == "log" and not signed
    colors: Any = [[0, style.low], [0.5, style.paper], [1, style.high]] if signed else _COLORS
    trace = _cells(known, columns, rows, log, snapshot.dtype, colors)
    if signed:
        most = float(np.nanmax(np.abs(known)))
        trace |= {"zmin": -most, "zmax": most}
    traces = [trace, *_nonfinite_cells(style, columns, rows, np.isnan(matrix), np.isinf(matrix))]
    return figure_of(
        style,
        title,
        traces,
        xaxis=axis(style, "last dimension", showgrid=False, constrain="domain"),
        yaxis=axis(style, "", autorange="reversed", showgrid=False),
    )


def _vector(values: Floats, style: Style, title: str) -> dict[str, Any]:
    places = np.arange(len(values))
    finite = np.isfinite(values)
    line = {"type": "scatter", "mode": "lines" if len(values) > 1 else "markers", "x": places, "name": "value"}
    traces: list[Trace] = [{**line, "y": np.where(finite, values, np.nan), "hovertemplate": "%{y:.6g}<extra></extra>"}]
    for name, chosen, color in (("NaN", np.isnan(values), style.nan), ("infinity", np.isinf(values), style.infinite)):
        if chosen.any():
            mark = {"symbol": "x", "color": color, "size": 8}
            at = {"x": places[chosen], "y": np.zeros(int(chosen.sum())), "mode": "markers"}
            traces.append(
                {"type": "scatter", **at, "name": name, "marker": mark, "hovertemplate": f"{name}<extra></extra>"}
            )
    return figure_of(style, title, traces, xaxis=axis(style, "place"), yaxis=axis(style, "value"))


def edges_of(first_step: NDArray[np.int64], last_step: NDArray[np.int64]) -> Floats:
    """Return the edges of cells, so that each step is in the middle of its own cell."""
    if not len(first_step):
        return np.empty(0)
    return np.append(first_step, last_step[-1] + 1).astype(np.float64) - 0.5


def _labels(rows: Sequence[Row]) -> list[str]:
    return [escaped(row.record.name + (f" + {row.group - 1}" if row.group > 1 else "")) for row in rows]


def _trace(z: Floats, x: Any, y: Any, colors: Any) -> Trace:
    z = z.astype(np.float32)  # only colors: half the bytes
    return {"type": "heatmap", "z": z, "x": x, "y": y, "colorscale": colors, "zsmooth": False, "hoverongaps": False}


def _cells(values: Floats, x: Any, y: Any, log: bool, name: str, colors: Any = _COLORS) -> Trace:
    """Return a map of values as colors; a logarithmic color bar shows values at its ticks."""
    if not log:
        hover = {"hovertemplate": f"%{{y}}<br>step %{{x}}<br>{escaped(name)} %{{z:.5g}}<extra></extra>"}
        return {**_trace(values, x, y, colors), **hover, "colorbar": {**BAR, "exponentformat": "e"}}
    with np.errstate(divide="ignore"):
        logs = np.log10(values)
    known = logs[np.isfinite(logs)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    logs[np.isneginf(logs)] = low  # a zero is as dark as the smallest value, and labeled
    places, texts = log_ticks(low, high)
    return {
        **_trace(logs, x, y, colors),
        "customdata": values,
        "hovertemplate": f"%{{y}}<br>step %{{x}}<br>{escaped(name)} %{{customdata:.5g}}<extra></extra>",
        "colorbar": {**BAR, "tickvals": places, "ticktext": texts, "title": {"text": escaped(name)}},
    }


def _nonfinite_cells(style: Style, x: Any, y: Any, nan: NDArray[np.bool_], infinite: NDArray[np.bool_]) -> list[Trace]:
    return _flat_cells(x, y, (("NaN", nan, style.nan), ("infinity", infinite, style.infinite)))


def _flat_cells(x: Any, y: Any, marks: Sequence[tuple[str, NDArray[np.bool_], str]]) -> list[Trace]:
    """Return a separate map for each (name, cells, color) with any cell, with an entry in the legend."""
    traces = []
    for name, chosen, color in marks:
        if chosen.any():
            trace = _trace(np.where(chosen, 1.0, np.nan), x, y, [[0, color], [1, color]])
            about = {"name": name, "showlegend": True, "showscale": False}
            traces.append({**trace, **about, "hovertemplate": f"%{{y}}<br>step %{{x}}<br>{name}<extra></extra>"})
    return traces


def _map_of(style: Style, title: str, traces: list[Trace]) -> dict[str, Any]:
    rows = axis(style, "", type="category", autorange="reversed", showgrid=False)
    return figure_of(style, title, traces, xaxis=axis(style, "step", showgrid=False), yaxis=rows)

"""Matrices as colors: layers over steps, the difference of two runs, tensors, and distributions over steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.reading import Reader
from hookcore.reading.answers import Heatmap, Histograms, Row, Series
from hookcore.records import Kind, Snapshot, Tap

from ..numerals import shown
from .style import (
    BAR,
    NEVER_NEGATIVE,
    Scale,
    StepAxis,
    Style,
    Trace,
    axis,
    escaped,
    figure_of,
    is_log,
    log_ticks,
    marks,
    marks_axis,
    step_axis,
)

Floats = NDArray[np.float64]
_COLORS: Final = "Viridis"
EMPTY, NAN, INFINITE = 0, 2, 3  # states of a cell
_MAX_DECADES: Final = 12.0  # of the colors of a difference


def heatmap(found: Heatmap, style: Style, title: str, scale: Scale = "auto") -> dict[str, Any]:
    """Plot layers from input (top) to output over steps; the color is the magnitude of a cell's worst value."""
    found = captured_only(found)
    values = np.abs(found.worst)
    log = is_log(scale, found.stat if found.stat in NEVER_NEGATIVE else "rms", values)
    labels = _labels(found.rows)
    steps = step_axis(style, [(found.first_step, found.last_step)])
    edges = steps.cells(found.first_step, found.last_step)
    traces = [_cells(values, edges, labels, log, f"|{found.stat}|" if found.stat not in NEVER_NEGATIVE else found.stat)]
    traces += _nonfinite_cells(style, edges, labels, found.state == NAN, found.state == INFINITE)
    return _map_of(style, title, traces, steps)


def difference(one: Heatmap, two: Heatmap, style: Style, title: str) -> dict[str, Any]:
    """Plot how many times as large the second run's values are as the first one's, at the same steps.

    Both maps have the same taps and columns. If only one of the two is finite, the cell has a separate mark.
    """
    there = _columns_of(one) | _columns_of(two)
    one, two = _columns(one, there), _columns(two, there)
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
    steps = step_axis(style, [(one.first_step, one.last_step)])
    edges = steps.cells(one.first_step, one.last_step)
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
    return _map_of(style, title, [trace, *_flat_cells(edges, labels, marks)], steps)


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


def captured_only(found: Heatmap) -> Heatmap:
    """Return the map without the columns in which nothing was captured."""
    return _columns(found, _columns_of(found))


def _columns_of(found: Heatmap) -> NDArray[np.bool_]:
    there: NDArray[np.bool_] = np.any(found.state > EMPTY, axis=0)
    return there


def _columns(found: Heatmap, kept: NDArray[np.bool_]) -> Heatmap:
    return replace(
        found,
        first_step=found.first_step[kept],
        last_step=found.last_step[kept],
        worst=found.worst[:, kept],
        state=found.state[:, kept],
    )


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


def _map_of(style: Style, title: str, traces: list[Trace], steps: StepAxis) -> dict[str, Any]:
    rows = axis(style, "", type="category", autorange="reversed", showgrid=False)
    return figure_of(style, title, traces, **steps.layout, yaxis=rows)


Bounds = tuple[int | None, int | None]


def same_maps(
    one: Reader, two: Reader, kind: Kind, stat: str, match: str | None, bounds: Bounds, columns: int, rows: int
) -> tuple[Heatmap, Heatmap]:
    """Return maps of at most `rows` taps that both have, over the steps that both have, in the same cells."""
    taps = [[tap.record for tap in reader.taps(match, kind).taps] for reader in (one, two)]
    others = set(taps[1])
    shared = [tap for tap in taps[0] if tap in others][:rows]
    steps = [reader.steps() for reader in (one, two)]
    first = max(bounds[0] or 0, *(step.first or 0 for step in steps))
    last = min(step.newest if step.newest is not None else -1 for step in steps)
    last = last if bounds[1] is None else min(bounds[1], last)
    if not shared or last < first:
        raise ArgumentError("the two runs have no layer in common in these steps: choose others, or another kind=")
    maps = (
        _rows(reader.heatmap(kind, stat, match, first, last, columns, len(own)), shared)
        for reader, own in zip((one, two), taps, strict=True)
    )
    return _at_same_steps(*maps)


def _rows(found: Heatmap, taps: list[Tap]) -> Heatmap:
    known = {row.record: place for place, row in enumerate(found.rows)}
    places = [known[tap] for tap in taps if tap in known]
    rows = tuple(found.rows[place] for place in places)
    return replace(found, rows=rows, worst=found.worst[places], state=found.state[places])


def _at_same_steps(one: Heatmap, two: Heatmap) -> tuple[Heatmap, Heatmap]:
    """Return the columns that cover the same steps in both."""
    _, in_one, in_two = np.intersect1d(one.first_step, two.first_step, return_indices=True)
    same = one.last_step[in_one] == two.last_step[in_two]
    first, second = (
        replace(
            found,
            first_step=found.first_step[places],
            last_step=found.last_step[places],
            worst=found.worst[:, places],
            state=found.state[:, places],
        )
        for found, places in ((one, in_one[same]), (two, in_two[same]))
    )
    return first, second


# The distribution of a tensor's values, over steps.

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
    steps = step_axis(style, [(found.first_step, found.last_step)])
    trace: Trace = {
        "type": "heatmap",
        "z": logs,
        "x": steps.cells(found.first_step, found.last_step),
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
        [trace, *_value_marks(style, found, bad, steps)],
        **steps.layout,
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


def _value_marks(style: Style, found: Histograms, bad: Any, steps: StepAxis) -> list[Trace]:
    said = "%{customdata} values not finite<extra></extra>"
    return [{**mark, "hovertemplate": said} for mark in marks(style, steps.x(found.first_step), bad)]


def fan(quantiles: Sequence[Series], counted: Series, style: Style, title: str) -> dict[str, Any]:
    """Plot quantiles over steps: bands between matching pairs, and the middle one as a line.

    `counted` is a stat of the same tap that includes its non-finite steps.
    """
    steps = step_axis(style, [(each.first_step, each.last_step) for each in (*quantiles, counted)])
    color = style.lines[0]
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    edge: Trace = {"type": "scatter", "mode": "lines", "hovertemplate": "%{y:.5g}", "line": {"width": 0}}
    traces: list[Trace] = []
    pairs = len(quantiles) // 2
    for place, (low, high) in enumerate(zip(quantiles[:pairs], reversed(quantiles), strict=False)):
        fill = f"rgba({red},{green},{blue},{0.12 + 0.12 * place:.2f})"
        name = f"{_percent(low)} to {_percent(high)}"
        traces.append({**edge, "x": steps.x(low.first_step), "name": _percent(low), "y": low.mean, "showlegend": False})
        traces.append(
            {
                **edge,
                "x": steps.x(high.first_step),
                "name": name,
                "y": high.mean,
                "fill": "tonexty",
                "fillcolor": fill,
            }
        )
    if len(quantiles) % 2:
        middle = quantiles[pairs]
        line = {"color": color, "width": 1.8}
        traces.append(
            {**edge, "x": steps.x(middle.first_step), "line": line, "name": _percent(middle), "y": middle.mean}
        )
    if counted.nonfinite is not None:
        traces += marks(style, steps.x(counted.first_step), counted.nonfinite)
    return figure_of(
        style,
        title,
        traces,
        **steps.layout,
        yaxis=axis(style, "value"),
        yaxis2=marks_axis(),
        hovermode="x unified",
    )


def _percent(one: Series) -> str:
    return f"{one.name.removeprefix('p')} %"

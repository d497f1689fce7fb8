"""Values over steps, over the depth of the model, in a low strip, and as sparklines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.reading.answers import Series
from hookcore.records.vocabulary import KIND_WORDS

from .style import (
    Scale,
    StepAxis,
    Style,
    Trace,
    axis,
    escaped,
    figure_of,
    is_log,
    marks,
    marks_axis,
    step_axis,
    value_axis,
)

# Values over steps, and over the depth of the model.

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
    captured: bool = True,
) -> dict[str, Any]:
    """Plot each series as its mean with the band of its extremes; if smoothed, the raw line stays visible.

    `captured` says that values are missing where nothing was captured. Logged values exist where they were logged.
    """
    steps = step_axis(style, [(each.first_step, each.last_step) for _, each in many] if captured else [])
    known = [np.concatenate([each.min, each.max]) for _, each in many]
    log = is_log(scale, stat, np.concatenate(known) if known else np.empty(0))
    traces: list[Trace] = []
    for place, (name, each) in enumerate(many):
        color = style.lines[place % len(style.lines)]
        traces += [*_band(each, color, steps), *_line(name, each, color, half_life, steps)]
    counted = [(name, steps.x(each.first_step), each.nonfinite) for name, each in many if each.nonfinite is not None]
    crosses = [mark for name, x, nonfinite in counted for mark in marks(style, x, nonfinite, name)]
    traces += [{**mark, "showlegend": place == 0} for place, mark in enumerate(crosses)]
    return figure_of(
        style,
        title,
        traces,
        **steps.layout,
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


def _band(one: Series, color: str, steps: StepAxis) -> list[Trace]:
    """Return the band of extremes, or nothing if every point is a single step."""
    if np.array_equal(one.min, one.max, equal_nan=True):
        return []
    edge = {"type": "scatter", "mode": "lines", "x": steps.x(one.first_step), "line": {"width": 0}, "hoverinfo": "skip"}
    fill = "rgba({},{},{},0.18)".format(*(int(color[place : place + 2], 16) for place in (1, 3, 5)))
    return [
        {**edge, "name": "least", "y": one.min, "showlegend": False},
        {**edge, "name": "largest", "y": one.max, "showlegend": False, "fill": "tonexty", "fillcolor": fill},
    ]


def _line(name: str, one: Series, color: str, half_life: float, steps: StepAxis) -> list[Trace]:
    mode = "lines" if len(one.first_step) > 1 else "markers"
    line = {"type": "scatter", "mode": mode, "x": steps.x(one.first_step), "line": {"color": color, "width": 1.6}}
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
    return min(int(point.first_step[0]) for point in points), max(int(point.last_step[0]) for point in points)


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


# Sparklines as SVG paths. Pure.

SPARK_WIDTH: Final = 120
SPARK_HEIGHT: Final = 28
MARGIN: Final = 3
ROUNDING: Final = 1e-6
LOG_FROM: Final = 100.0  # the ratio of largest to smallest above which a linear sparkline would look flat


@dataclass(frozen=True, slots=True)
class Spark:
    """The path in its box. `bad_x` are the positions of non-finite values, which are gaps."""

    path: str
    bad_x: tuple[float, ...]
    mark_x: float | None = None  # of a marked step
    log: bool = False


def spark_of(
    steps: NDArray[np.int64],
    values: NDArray[np.float64],
    mark: int | None = None,
    may_be_log: bool = False,
    box: tuple[int, int] = (SPARK_WIDTH, SPARK_HEIGHT),
) -> Spark | None:
    """Return the line of values over steps in a box, or None if there is nothing to draw.

    With `may_be_log`, magnitudes that differ by more than LOG_FROM are drawn on a log scale, zeros at its lower end.
    """
    if not len(values):
        return None
    width, height = (each - 2 * MARGIN for each in box)
    span = max(1, int(steps[-1] - steps[0]))
    x = MARGIN + (steps - steps[0]) / span * width
    log = may_be_log and spans_decades(values)
    drawn = _logs(values) if log else values
    good = np.isfinite(drawn)
    y = MARGIN + (1 - _shares(drawn, good)) * height
    words = []
    for place in np.flatnonzero(good):
        starts = place == 0 or not good[place - 1]
        alone = starts and (place + 1 == len(values) or not good[place + 1])
        words.append(f"{'M' if starts else 'L'}{x[place]:.1f} {y[place]:.1f}{'h.1' if alone else ''}")
    # A non-finite stretch is marked at its two ends.
    edges = ~good & ~(np.append(False, ~good[:-1]) & np.append(~good[1:], False))
    inside = mark is not None and steps[0] <= mark <= steps[-1]
    mark_x = round(float(MARGIN + (mark - steps[0]) / span * width), 1) if mark is not None and inside else None
    return Spark("".join(words), tuple(round(float(each), 1) for each in x[edges]), mark_x, log)


def _shares(values: NDArray[np.float64], good: NDArray[np.bool_]) -> NDArray[np.float64]:
    low, high = (values[good].min(), values[good].max()) if good.any() else (0.0, 0.0)
    if high / 2 - low / 2 <= ROUNDING * max(abs(low), abs(high)):
        low = high = 0.0  # differences by rounding are not a wave
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        share = (values / 2 - low / 2) / (high / 2 - low / 2) if high > low else np.full(len(values), 0.5)
    return np.nan_to_num(share, nan=0.5).clip(0, 1)


def spans_decades(values: NDArray[np.float64]) -> bool:
    """Return whether values are positive and so far apart that a linear scale would show only the largest."""
    known = values[np.isfinite(values)]
    above = known[known > 0]
    return bool(len(above) and (known >= 0).all() and (above.max() > above.min() * LOG_FROM or len(above) < len(known)))


def _logs(values: NDArray[np.float64]) -> NDArray[np.float64]:
    above = values[np.isfinite(values) & (values > 0)]
    with np.errstate(invalid="ignore"):
        logs: NDArray[np.float64] = np.log10(np.where(values == 0, above.min() / 10, values))
    return logs


# The line of a whole run in a low strip: a band from the smallest to the largest value, and the mean. Pure.

STRIP_WIDTH: Final = 1000
STRIP_HEIGHT: Final = 100
AIR: Final = 6  # above and below


@dataclass(frozen=True, slots=True)
class Strip:
    """Paths in a box of WIDTH by HEIGHT, whose left end is where the first step begins."""

    line: str
    band: str
    bad: tuple[tuple[float, float], ...]  # from where to where values were not finite, in percent of the width
    is_log: bool


def strip_of(
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    values: tuple[Floats, Floats, Floats],
    bad: NDArray[np.bool_],
    span: tuple[int, int],
) -> Strip:
    """Return the strip of points that cover the steps from `first` to `last`: their mean, smallest, and largest value.

    It is drawn on a log scale if the values differ by a factor of more than 100.
    """
    length = span[1] - span[0] + 1
    x = ((first + last) / 2 - span[0] + 0.5) / length
    finite = np.concatenate([each[np.isfinite(each)] for each in values])
    is_log = spans_decades(finite)
    floor = float(finite[finite > 0].min()) / 10 if is_log else 0.0
    low, high = _bent(np.array([finite.min(), finite.max()]), is_log, floor) if len(finite) else np.array([0.0, 1.0])
    mean, least, most = (_heights(_bent(each, is_log, floor), low, high) for each in values)
    known = np.isfinite(mean)
    stretches = _stretches(known)
    line = "".join(_strip_line(x[part], mean[part]) for part in stretches)
    wide = (least - most)[known].max(initial=0) > 1
    band = "".join(_strip_band(x[part], most[part], least[part]) for part in stretches) if wide else ""
    left, right = ((first - span[0]) / length * 100).round(2), ((last - span[0] + 1) / length * 100).round(2)
    marked = tuple((float(left[part][0]), float(right[part][-1])) for part in _stretches(bad))
    return Strip(line, band, marked, is_log)


def _bent(values: Floats, is_log: bool, floor: float) -> Floats:
    if not is_log:
        return values
    with np.errstate(invalid="ignore"):
        bent: Floats = np.log10(np.maximum(values, floor))
    return bent


def _heights(values: Floats, low: float, high: float) -> Floats:
    share = (values / 2 - low / 2) / (high / 2 - low / 2) if high > low else np.full(len(values), 0.5)
    share = np.where(np.isfinite(values), share, np.nan)
    return AIR + (1 - share) * (STRIP_HEIGHT - 2 * AIR)


def _stretches(known: NDArray[np.bool_]) -> list[slice]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
    return [slice(begin, end) for begin, end in edges.reshape(-1, 2).tolist()]


def _strip_line(x: Floats, y: Floats) -> str:
    points = _points(x, y)
    return f"M{points[0]}{'h1' if len(points) == 1 else 'L' + ' '.join(points[1:])}"


def _strip_band(x: Floats, top: Floats, bottom: Floats) -> str:
    return f"M{' '.join([*_points(x, top), *_points(x[::-1], bottom[::-1])])}Z"


def _points(x: Floats, y: Floats) -> list[str]:
    return [f"{at:.1f},{high:.1f}" for at, high in zip((STRIP_WIDTH * x).tolist(), y.tolist(), strict=True)]

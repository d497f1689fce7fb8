"""The line of a whole run in a low strip: a band from the smallest to the largest value, and the mean. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .spark import spans_decades

WIDTH: Final = 1000
HEIGHT: Final = 100
AIR: Final = 6  # above and below

Floats = NDArray[np.float64]


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
    line = "".join(_line(x[part], mean[part]) for part in stretches)
    wide = (least - most)[known].max(initial=0) > 1
    band = "".join(_band(x[part], most[part], least[part]) for part in stretches) if wide else ""
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
    return AIR + (1 - share) * (HEIGHT - 2 * AIR)


def _stretches(known: NDArray[np.bool_]) -> list[slice]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
    return [slice(begin, end) for begin, end in edges.reshape(-1, 2).tolist()]


def _line(x: Floats, y: Floats) -> str:
    points = _points(x, y)
    return f"M{points[0]}{'h1' if len(points) == 1 else 'L' + ' '.join(points[1:])}"


def _band(x: Floats, top: Floats, bottom: Floats) -> str:
    return f"M{' '.join([*_points(x, top), *_points(x[::-1], bottom[::-1])])}Z"


def _points(x: Floats, y: Floats) -> list[str]:
    return [f"{at:.1f},{high:.1f}" for at, high in zip((WIDTH * x).tolist(), y.tolist(), strict=True)]

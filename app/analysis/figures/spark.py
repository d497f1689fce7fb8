"""Sparklines as SVG paths. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

WIDTH: Final = 120
HEIGHT: Final = 28
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
    box: tuple[int, int] = (WIDTH, HEIGHT),
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

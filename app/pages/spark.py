"""A line without axes, as the path of an SVG: for a first look at how a number went. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

WIDTH: Final = 120
HEIGHT: Final = 28
MARGIN: Final = 3
ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Spark:
    """The path in a box of WIDTH by HEIGHT. `bad_x` are the places where it was not finite; it has gaps there."""

    path: str
    bad_x: tuple[float, ...]


def spark_of(steps: NDArray[np.int64], values: NDArray[np.float64]) -> Spark | None:
    """The line of values over steps; None where there is nothing to draw."""
    if not len(values):
        return None
    span = max(1, int(steps[-1] - steps[0]))
    x = MARGIN + (steps - steps[0]) / span * (WIDTH - 2 * MARGIN)
    good = np.isfinite(values)
    low, high = (values[good].min(), values[good].max()) if good.any() else (0.0, 0.0)
    if high / 2 - low / 2 <= ROUNDING * max(abs(low), abs(high)):
        low = high = 0.0  # a constant that was rounded differently is not a wave
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        share = (values / 2 - low / 2) / (high / 2 - low / 2) if high > low else np.full(len(values), 0.5)
        share = np.nan_to_num(share, nan=0.5).clip(0, 1)
    y = HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN)
    words = []
    for place in np.flatnonzero(good):
        starts = place == 0 or not good[place - 1]
        alone = starts and (place + 1 == len(values) or not good[place + 1])
        words.append(f"{'M' if starts else 'L'}{x[place]:.1f} {y[place]:.1f}{'h.1' if alone else ''}")
    # Of a stretch that is not finite its two ends are marked: it began here, and it was over there.
    edges = ~good & ~(np.append(False, ~good[:-1]) & np.append(~good[1:], False))
    return Spark("".join(words), tuple(round(float(each), 1) for each in x[edges]))

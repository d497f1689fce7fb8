"""Pictures for readers without JavaScript: a line as SVG, a map as PNG."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from hookcore.answers import Heatmap
from hookcore.reading.pictures import address_of, image_of, map_of

WIDTH, HEIGHT = 640, 160
_MARGIN: Final = 4


def line_of(values: NDArray[np.float64], width: int = WIDTH, height: int = HEIGHT) -> Markup:
    """Draw a line through the finite values, with marks for non-finite ones at the bottom."""
    finite = np.isfinite(values)
    if not finite.any():
        return Markup("")
    low, high = float(values[finite].min()), float(values[finite].max())
    span = (high - low) or 1.0
    if not math.isfinite(span):
        return Markup("")
    x = _MARGIN + (width - 2 * _MARGIN) * np.arange(len(values)) / max(1, len(values) - 1)
    y = _MARGIN + (height - 2 * _MARGIN) * (1 - (np.where(finite, values, low) - low) / span)
    parts, breaks = [], np.flatnonzero(np.diff(finite.astype(np.int8), prepend=0, append=0))
    for begin, end in zip(breaks[::2].tolist(), breaks[1::2].tolist(), strict=True):
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[begin:end], y[begin:end], strict=True))
        parts.append(f'<polyline points="{points}"/>')
    marks = [f'<circle class="nan" cx="{place:.1f}" cy="{height - _MARGIN}" r="3"/>' for place in x[~finite].tolist()]
    inner = "".join([*parts, *marks[:200]])
    return Markup(  # numbers only
        f'<svg class="line" viewBox="0 0 {width} {height}" preserveAspectRatio="none" aria-hidden="true">{inner}</svg>'
    )


def picture_of(found: Heatmap) -> str:
    """Return a heatmap as a data URL: colors of the logarithms, and of non-finite values."""
    return address_of(image_of(map_of(found)))

"""Pictures for readers without JavaScript: a line as SVG, a map as PNG."""

from __future__ import annotations

from typing import Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from hookcore.reading.answers import Heatmap
from hookcore.reading.pictures import address_of, image_of, map_of

from ...analysis.figures.spark import MARGIN, spark_of

WIDTH, HEIGHT = 640, 160
MAX_MARKS: Final = 200


def line_of(values: NDArray[np.float64], width: int = WIDTH, height: int = HEIGHT) -> Markup:
    """Draw a line through the finite values, with marks at the bottom where a stretch of others begins and ends."""
    spark = spark_of(np.arange(len(values)), values, box=(width, height))
    if spark is None or not spark.path:
        return Markup("")
    marks = "".join(f'<circle class="nan" cx="{x}" cy="{height - MARGIN}" r="3"/>' for x in spark.bad_x[:MAX_MARKS])
    return Markup(  # numbers only
        f'<svg class="line" viewBox="0 0 {width} {height}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="{spark.path}"/>{marks}</svg>'
    )


def picture_of(found: Heatmap) -> str:
    """Return a heatmap as a data URL: colors of the logarithms, and of non-finite values."""
    return address_of(image_of(map_of(found)))

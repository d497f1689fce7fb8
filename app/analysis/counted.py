"""Series with the number of non-finite steps in each point. Quantiles have none of their own. Pure; no web."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from hookcore.reading import Reader, answers


def counted_series(
    reader: Reader, tap: answers.Tap, stat: str, first: int | None, last: int | None, points: int
) -> answers.Series:
    """Return a series with its non-finite steps. For a quantile, these are the ones of the stat rms."""
    found = reader.series(tap, stat, first, last, points)
    if found.nonfinite is not None:
        return found
    whole = reader.series(tap, "rms", first, last, points)
    bad = np.zeros(len(found.first_step), np.int64)
    at = np.clip(np.searchsorted(found.first_step, whole.first_step, side="right") - 1, 0, None)
    if len(bad) and whole.nonfinite is not None:
        np.add.at(bad, at, whole.nonfinite)
    return replace(found, nonfinite=bad)

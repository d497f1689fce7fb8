"""Histograms and quantiles over time, from the sketches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hookcore.sketch import BINS, EDGES, MAGNITUDES, NAN, NEG_INF, POS_INF, Sketch, group_starts
from hookcore.store.answers import Histograms, Quantiles, Steps
from hookcore.store.sketches import SketchRows

LEAST_BINS = 5  # too large, negative, around zero, positive, too large


def sketches_over_time(entries: Sequence[SketchRows], tap: int, most: int) -> tuple[Steps, Steps, list[Sketch]]:
    """The sketches of a tap in at most so many equal spans of steps: first steps, last steps, and their exact sums."""
    found = [(entry, sketch) for entry in entries if (sketch := entry.sketch(tap)) is not None]
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64), []
    first = np.array([entry.first for entry, _ in found], np.int64)
    last = np.array([entry.last for entry, _ in found], np.int64)
    span = int(last[-1] - first[0]) + 1
    place = (first - first[0]) * min(most, span) // span
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    ends = np.append(starts[1:], len(found))
    sums = [
        found[start][1].merge(*(sketch for _, sketch in found[start + 1 : end]))
        for start, end in zip(starts, ends, strict=True)
    ]
    return first[starts], last[ends - 1], sums


def histograms_of(entries: Sequence[SketchRows], tap: int, columns: int, bins: int) -> Histograms:
    """At most so many columns of at most so many bins, on the same edges."""
    first, last, sketches = sketches_over_time(entries, tap, columns)
    dense = np.array([sketch.counts for sketch in sketches], np.uint64).reshape(len(sketches), BINS)
    starts = _display_groups(dense.sum(axis=0, dtype=np.uint64) > 0, bins)
    if len(starts):  # the last group runs to the end of the array: nothing of the tap is beyond it
        counts = np.add.reduceat(dense[:, :POS_INF], starts[:-1], axis=1, dtype=np.uint64)
    else:
        counts = np.zeros((len(sketches), 0), np.uint64)
    apart = (dense[:, NAN].copy(), dense[:, NEG_INF].copy(), dense[:, POS_INF].copy())
    return Histograms(tap, first, last, EDGES[starts], counts, *apart)


def quantiles_of(entries: Sequence[SketchRows], tap: int, qs: ArrayLike, points: int) -> Quantiles:
    """Quantiles of the values that are not NaN, at most so many points."""
    first, last, sketches = sketches_over_time(entries, tap, points)
    wanted = np.atleast_1d(np.asarray(qs, np.float64))
    Sketch.empty().quantiles(wanted)  # refuses a wrong q even where there is nothing to answer with
    values = np.array([sketch.quantiles(wanted) for sketch in sketches]).reshape(len(sketches), len(wanted))
    return Quantiles(tap, wanted, first, last, values)


def _display_groups(used: NDArray[np.bool_], bins: int) -> NDArray[np.intp]:
    """The first bins of at most so many groups that hold every used finite bin, and the end of the last one."""
    filled = np.flatnonzero(used[:POS_INF])
    filled = filled[filled > NEG_INF]
    if not len(filled):
        return np.empty(0, np.intp)
    for k in range(1, MAGNITUDES + 1):
        starts = np.append(group_starts(k), POS_INF)
        low = int(np.searchsorted(starts, filled[0], side="right")) - 1
        high = int(np.searchsorted(starts, filled[-1], side="right"))
        if high - low <= bins:
            break
    return starts[low : high + 1]

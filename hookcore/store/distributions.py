"""Histograms and quantiles over time, from the sketches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hookcore.sketch import BINS, EDGES, MAGNITUDES, NAN, NEG_INF, POS_INF, Sketch, group_starts
from hookcore.store.answers import Histograms, Quantiles, Steps
from hookcore.store.sketches import SketchRows

LEAST_BINS = 5  # too large, negative, around zero, positive, too large


def counts_over_time(entries: Sequence[SketchRows], tap: int, most: int) -> tuple[Steps, Steps, NDArray[np.uint64]]:
    """The first and last steps of at most so many equal spans, and the exact sums of a tap's sketches [span, BINS]."""
    found = [(entry, row) for entry in entries if (row := entry.row(tap)) is not None]
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.zeros((0, BINS), np.uint64)
    first = np.array([entry.first for entry, _ in found], np.int64)
    last = np.array([entry.last for entry, _ in found], np.int64)
    span = int(last[-1] - first[0]) + 1
    place = (first - first[0]) * min(most, span) // span
    begins = np.diff(place, prepend=-1) > 0
    # All rows at once: one by one a window of 500 steps takes a hundred times as long.
    keys = np.repeat((np.cumsum(begins) - 1) * BINS, [len(bins) for _, (bins, _) in found])
    keys += np.concatenate([bins for _, (bins, _) in found])
    dense = np.zeros((int(begins.sum()), BINS), np.uint64)
    np.add.at(dense.reshape(-1), keys, np.concatenate([counts for _, (_, counts) in found]).astype(np.uint64))
    ends = np.append(np.flatnonzero(begins)[1:], len(found)) - 1
    return first[begins], last[ends], dense


def sketches_over_time(entries: Sequence[SketchRows], tap: int, most: int) -> tuple[Steps, Steps, list[Sketch]]:
    """The same as sketches."""
    first, last, dense = counts_over_time(entries, tap, most)
    return first, last, [Sketch(counts) for counts in dense]


def histograms_of(entries: Sequence[SketchRows], tap: int, columns: int, bins: int) -> Histograms:
    """At most so many columns of at most so many bins, on the same edges."""
    first, last, dense = counts_over_time(entries, tap, columns)
    starts = _display_groups(dense.sum(axis=0, dtype=np.uint64) > 0, bins)
    if len(starts):  # the last group runs to the end of the array: nothing of the tap is beyond it
        counts = np.add.reduceat(dense[:, :POS_INF], starts[:-1], axis=1, dtype=np.uint64)
    else:
        counts = np.zeros((len(dense), 0), np.uint64)
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

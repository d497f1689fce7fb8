"""Histograms and quantiles over time, from the sketches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hookcore.sketch import (
    BINS,
    EDGES,
    MAGNITUDES,
    MAX_EXPONENT,
    NAN,
    NEG_FIRST,
    NEG_INF,
    NEG_OVER,
    POS_INF,
    POS_OVER,
    ZERO,
    Sketch,
    bins_of,
    group_starts,
)
from hookcore.store.answers import Histograms, Quantiles, Steps
from hookcore.store.sketches import SketchRows

# For spans of steps: the smallest and the largest finite value, and the magnitude from which all is "too large".
BoundsOf = Callable[[Steps, Steps], list[tuple[float, float, float]]]
TOO_LARGE = 2.0**MAX_EXPONENT
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


def histograms_of(entries: Sequence[SketchRows], tap: int, columns: int, bins: int, bounds_of: BoundsOf) -> Histograms:
    """Return at most so many columns of at most so many bins, on the same edges."""
    first, last, dense = counts_over_time(entries, tap, columns)
    over = dense[:, [NEG_OVER, POS_OVER]].any()
    largest = min(each[2] for each in bounds_of(first, last)) if over else TOO_LARGE
    _fold_beyond(dense, largest)
    starts = _display_groups(dense.sum(axis=0, dtype=np.uint64) > 0, bins)
    if len(starts):  # the last group runs to the end of the array: nothing of the tap is beyond it
        counts = np.add.reduceat(dense[:, :POS_INF], starts[:-1], axis=1, dtype=np.uint64)
    else:
        counts = np.zeros((len(dense), 0), np.uint64)
    apart = (dense[:, NAN].copy(), dense[:, NEG_INF].copy(), dense[:, POS_INF].copy())
    edges = EDGES[starts]
    inner = (starts > NEG_OVER) & (starts < POS_INF)
    edges[inner] = np.clip(edges[inner], -largest, largest)
    kept = np.diff(edges, append=np.inf) > 0  # bins that "too large" took in are empty
    return Histograms(tap, first, last, edges[kept], counts[:, kept[:-1]], *apart)


def _fold_beyond(dense: NDArray[np.uint64], largest: float) -> None:
    """Move what "too large" may be smaller than into it: the order of these values is not known."""
    if largest < TOO_LARGE:
        edge = int(bins_of(largest))
        for over, beyond in ((POS_OVER, slice(edge, POS_OVER)), (NEG_OVER, slice(NEG_FIRST, 2 * ZERO - edge + 1))):
            dense[:, over] += dense[:, beyond].sum(axis=1, dtype=np.uint64)
            dense[:, beyond] = 0


def quantiles_of(entries: Sequence[SketchRows], tap: int, qs: ArrayLike, points: int, bounds_of: BoundsOf) -> Quantiles:
    """Return the quantiles of the values that are not NaN in at most so many points; NaN if one is not known."""
    first, last, sketches = sketches_over_time(entries, tap, points)
    wanted = np.atleast_1d(np.asarray(qs, np.float64))
    Sketch.empty().quantiles(wanted)  # raises for a wrong q even if there are no sketches
    values = np.full((len(sketches), len(wanted)), np.nan)
    reaching = [point for point, sketch in enumerate(sketches) if sketch.over or sketch.under]
    bounds = dict(zip(reaching, bounds_of(first[reaching], last[reaching]), strict=True)) if reaching else {}
    for point, sketch in enumerate(sketches):
        known = bounds.get(point)
        values[point] = sketch.quantiles(wanted) if known is None else sketch.known_quantiles(wanted, *known)
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

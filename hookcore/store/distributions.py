"""Histograms and quantiles over time, from the sketches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hookcore.records.sketch import (
    BINS,
    EDGES,
    MAGNITUDES,
    MAX_EXPONENT,
    NAN,
    NEG_INF,
    NEG_OVER,
    NEG_UNDER,
    POS_FIRST,
    POS_INF,
    POS_OVER,
    POS_UNDER,
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
MIN_BINS = 5  # too large, negative, around zero, positive, too large


@dataclass(frozen=True, slots=True)
class CountsOverTime:
    """The exact sums of a tap's sketches in spans of steps [span, bin], for the filled bins, ascending."""

    first: Steps
    last: Steps
    bins: NDArray[np.intp]
    counts: NDArray[np.uint64]

    @classmethod
    def of(cls, entries: Sequence[SketchRows], tap: int, most: int) -> CountsOverTime:
        """Sum up sketches in at most this many equal spans."""
        found = [(entry, row) for entry in entries if (row := entry.row(tap)) is not None]
        if not found:
            none = np.empty(0, np.int64)
            return cls(none, none, np.empty(0, np.intp), np.zeros((0, 0), np.uint64))
        first = np.array([entry.first for entry, _ in found], np.int64)
        last = np.array([entry.last for entry, _ in found], np.int64)
        span = int(last[-1] - first[0]) + 1
        place = (first - first[0]) * min(most, span) // span
        begins = np.diff(place, prepend=-1) > 0
        # All rows at once: one by one, a window of 500 steps takes a hundred times as long.
        every = np.concatenate([bins for _, (bins, _) in found])
        column_of = np.zeros(BINS, np.intp)
        column_of[every] = 1
        used = np.flatnonzero(column_of)
        column_of[used] = np.arange(len(used))
        keys = np.repeat((np.cumsum(begins) - 1) * len(used), [len(bins) for _, (bins, _) in found])
        keys += column_of[every]
        counts = np.zeros((int(begins.sum()), len(used)), np.uint64)
        np.add.at(counts.reshape(-1), keys, np.concatenate([counts for _, (_, counts) in found]).astype(np.uint64))
        ends = np.append(np.flatnonzero(begins)[1:], len(found)) - 1
        return cls(first[begins], last[ends], used, counts)

    def of_bin(self, number: int) -> NDArray[np.uint64]:
        """Return the counts of one bin, by span."""
        sums: NDArray[np.uint64] = self.counts[:, self.bins == number].sum(axis=1, dtype=np.uint64)
        return sums

    def folded(self, largest: float) -> CountsOverTime:
        """Return these counts with everything from a magnitude on in "too large", where the order is unknown."""
        edge = int(bins_of(largest))
        bins = np.where((self.bins >= edge) & (self.bins < POS_OVER), POS_OVER, self.bins)
        bins = np.where((bins > NEG_OVER) & (bins <= 2 * ZERO - edge), NEG_OVER, bins)
        begins = np.flatnonzero(np.diff(bins, prepend=-1))
        return replace(self, bins=bins[begins], counts=np.add.reduceat(self.counts, begins, axis=1, dtype=np.uint64))


def histograms_of(entries: Sequence[SketchRows], tap: int, columns: int, bins: int, bounds_of: BoundsOf) -> Histograms:
    """Return at most `columns` columns of at most `bins` bins, on the same edges."""
    found, largest = CountsOverTime.of(entries, tap, columns), TOO_LARGE
    if found.of_bin(NEG_OVER).any() or found.of_bin(POS_OVER).any():
        largest = min(each[2] for each in bounds_of(found.first, found.last))
        if largest < TOO_LARGE:
            found = found.folded(largest)
    finite = (found.bins > NEG_INF) & (found.bins < POS_INF)
    starts = display_groups(found.bins[finite], bins)
    counts = np.zeros((len(found.first), max(0, len(starts) - 1)), np.uint64)
    if len(starts):
        group = np.searchsorted(starts, found.bins[finite], side="right") - 1
        begins = np.flatnonzero(np.diff(group, prepend=-1))
        counts[:, group[begins]] = np.add.reduceat(found.counts[:, finite], begins, axis=1, dtype=np.uint64)
    apart = (found.of_bin(NAN), found.of_bin(NEG_INF), found.of_bin(POS_INF))
    edges = EDGES[starts]
    inner = (starts > NEG_OVER) & (starts < POS_INF)
    edges[inner] = np.clip(edges[inner], -largest, largest)
    kept = np.diff(edges, append=np.inf) > 0  # bins that "too large" has absorbed are empty
    return Histograms(tap, found.first, found.last, edges[kept], counts[:, kept[:-1]], *apart)


def quantiles_of(entries: Sequence[SketchRows], tap: int, qs: ArrayLike, points: int, bounds_of: BoundsOf) -> Quantiles:
    """Return the quantiles of the values that aren't NaN, with a limit for points; NaN if unknown."""
    found = CountsOverTime.of(entries, tap, points)
    wanted = np.atleast_1d(np.asarray(qs, np.float64))
    Sketch.empty().quantiles(wanted)  # raises for a wrong quantile even if there are no sketches
    values = np.full((len(found.first), len(wanted)), np.nan)
    out = np.isin(found.bins, (NEG_OVER, NEG_UNDER, POS_UNDER, POS_OVER))
    reaching = np.flatnonzero(found.counts[:, out].any(axis=1))
    known = bounds_of(found.first[reaching], found.last[reaching]) if len(reaching) else []
    bounds = dict(zip(reaching.tolist(), known, strict=True))
    for point, counts in enumerate(found.counts):
        sketch, known_here = Sketch.of_bins(found.bins, counts), bounds.get(point)
        values[point] = sketch.quantiles(wanted) if known_here is None else sketch.known_quantiles(wanted, *known_here)
    return Quantiles(tap, wanted, found.first, found.last, values)


def display_groups(filled: NDArray[np.intp], bins: int) -> NDArray[np.intp]:
    """Return the first bins of at most this many groups that hold every filled finite bin, and the end of the last one.

    Empty bins on both sides of zero belong to the group around zero. Otherwise they would take most of the groups.
    """
    if not len(filled):
        return np.empty(0, np.intp)
    steps = np.abs(filled - ZERO) - (POS_FIRST - ZERO)  # of the magnitudes, from the smallest one in range
    smallest = int(steps[steps >= 0].min(initial=MAGNITUDES))
    for k in range(1, MAGNITUDES + 1):
        reach = smallest // k * k
        starts = np.append(group_starts(k), POS_INF)
        starts = starts[(starts <= NEG_UNDER - reach) | (starts >= POS_FIRST + reach)]
        low = int(np.searchsorted(starts, filled[0], side="right")) - 1
        high = int(np.searchsorted(starts, filled[-1], side="right"))
        if high - low <= bins:
            break
    return starts[low : high + 1]

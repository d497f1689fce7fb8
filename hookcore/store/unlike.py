"""How much the distributions of taps differ between two samples of steps, from their sketches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records.sketch import (
    BINS,
    CENTRES,
    NAN,
    NEG_INF,
    NEG_OVER,
    NEG_UNDER,
    POS_INF,
    POS_OVER,
    POS_UNDER,
    ZERO,
    group_starts,
)
from hookcore.store.sketches import SketchRows

_BINS_PER_GROUP: Final = 4  # half an octave: finer bins would show chance, coarser ones would hide small changes
_GROUPS: Final = np.concatenate([[NEG_INF], group_starts(_BINS_PER_GROUP), [POS_INF, NAN]])
_GROUP_OF: Final = np.repeat(np.arange(len(_GROUPS)), np.diff(_GROUPS, append=BINS))  # by bin
_TAPS_AT_ONCE: Final = 64  # rows (0.5 MB) that are compared at a time, to stay in the cache

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sample:
    """The sketches of some steps of a run. Sums of older steps are in it as a whole, so it may reach further."""

    entries: tuple[SketchRows, ...]

    @property
    def first(self) -> int | None:
        """The first step in it."""
        return min((entry.first for entry in self.entries), default=None)

    @property
    def last(self) -> int | None:
        """The last step in it."""
        return max((entry.last for entry in self.entries), default=None)

    @property
    def steps(self) -> int:
        """The number of captured steps in it."""
        single = len({entry.first for entry in self.entries if entry.steps == 1})  # parts of one step count once
        return single + sum(entry.steps for entry in self.entries if entry.steps > 1)

    def windows(self, steps: int, most: int) -> list[Sample]:
        """Return neighboring parts of at least so many steps each, at most `most` of them."""
        least = max(steps, -(-self.steps // most))
        found: list[Sample] = []
        part: list[SketchRows] = []
        for entry in self.entries:
            part.append(entry)
            if Sample(tuple(part)).steps >= least:
                found.append(Sample(tuple(part)))
                part = []
        return found

    def sums(self, numbers: Numbers) -> NDArray[np.float64]:
        """Return the sums [tap, bin] of some taps. They are exact up to 2 ** 53 values in a bin."""
        return self._summed(numbers, np.arange(BINS), BINS)

    def grouped(self, numbers: Numbers) -> NDArray[np.float64]:
        """Return the sums [tap, group of bins] of some taps."""
        return self._summed(numbers, _GROUP_OF, len(_GROUPS))

    def _summed(self, numbers: Numbers, column_of: Numbers, width: int) -> NDArray[np.float64]:
        cells, counts = [np.empty(0, np.int64)], [np.empty(0)]
        for entry in self.entries:
            places, lengths, picked = _rows_of(entry, numbers)
            cells.append(np.repeat(places * width, lengths) + column_of[entry.bins[picked]])
            counts.append(entry.counts[picked])
        size = len(numbers) * width
        summed: NDArray[Any] = np.bincount(np.concatenate(cells), weights=np.concatenate(counts), minlength=size)
        return summed.reshape(len(numbers), width)


def _rows_of(entry: SketchRows, numbers: Numbers) -> tuple[Numbers, Numbers, Any]:
    """Return which of the taps have rows in an entry, the lengths of these rows, and where their bins are."""
    at = np.searchsorted(entry.taps, numbers)
    at[at == len(entry.taps)] = 0
    places = np.flatnonzero(entry.taps[at] == numbers) if len(entry.taps) else np.empty(0, np.int64)
    rows, start = at[places], entry.start.astype(np.int64)
    lengths = start[rows + 1] - start[rows]
    if not len(rows):
        return places, lengths, slice(0)
    if rows[-1] - rows[0] == len(rows) - 1 and bool((rows[1:] > rows[:-1]).all()):
        return places, lengths, slice(int(start[rows[0]]), int(start[rows[-1] + 1]))
    ends = np.cumsum(lengths)
    return places, lengths, np.arange(int(lengths.sum())) + np.repeat(start[rows] - (ends - lengths), lengths)


def shares_apart(one: Sample, two: Sample, numbers: tuple[Numbers, Numbers]) -> NDArray[np.float64]:
    """Return which share of each tap's values would have to move to make the two samples alike, beyond chance.

    NaN if a tap has no values in one of them. `numbers` are the taps' numbers in the runs of the two samples.
    """
    found = np.full(len(numbers[0]), np.nan)
    for low in range(0, len(found), _TAPS_AT_ONCE):
        part = slice(low, low + _TAPS_AT_ONCE)
        found[part] = _groups_apart(one.grouped(numbers[0][part]), two.grouped(numbers[1][part]))
    return found


def apart(one: NDArray[np.float64], two: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return which share of the values of each row [row, bin] would have to move to make it that of the other one."""
    return _groups_apart(*(np.add.reduceat(each, _GROUPS, axis=1) for each in (one, two)))


def _groups_apart(*counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return half the sum of the differences of the shares in all groups of bins, less what chance explains."""
    many = [each.sum(axis=1, keepdims=True) for each in counts]
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = [each / number for each, number in zip(counts, many, strict=True)]
        both = (counts[0] + counts[1]) / (many[0] + many[1])
        # The standard deviation of the difference of two binomial shares of equal probability. Its expected magnitude
        # is between 0.8 and 1 of that.
        chance = np.sqrt(both * (1 - both) * (1 / many[0] + 1 / many[1]))
        distance = np.abs(shares[0] - shares[1]).sum(axis=1) / 2 - chance.sum(axis=1) / 2
    result: NDArray[np.float64] = np.where(np.isnan(distance), np.nan, np.maximum(distance, 0.0))
    return result


@dataclass(frozen=True, slots=True)
class Distribution:
    """What the sum of a tap's sketches says in a few numbers."""

    counts: NDArray[np.float64]  # [BINS]

    @property
    def number(self) -> int:
        """The number of values."""
        return int(self.counts.sum())

    @property
    def nan(self) -> float:
        """The share of NaN."""
        return self._share(self.counts[NAN])

    @property
    def infinite(self) -> float:
        """The share of infinities."""
        return self._share(self.counts[NEG_INF] + self.counts[POS_INF])

    @property
    def zero(self) -> float:
        """The share of zeros."""
        return self._share(self.counts[ZERO])

    @property
    def positive(self) -> float:
        """The share of positive values among those that are positive or negative; NaN if there are none."""
        positive, negative = self.counts[POS_UNDER : POS_INF + 1].sum(), self.counts[NEG_INF : NEG_UNDER + 1].sum()
        return float(positive / (positive + negative)) if positive + negative else float("nan")

    @property
    def magnitude(self) -> float:
        """The median magnitude of the finite values that aren't zero, within 6 %; NaN if there are none."""
        magnitudes = self.counts[POS_UNDER : POS_OVER + 1] + self.counts[NEG_OVER : NEG_UNDER + 1][::-1]
        cumulated = np.cumsum(magnitudes)
        if not cumulated[-1]:
            return float("nan")
        return float(CENTRES[POS_UNDER + int(np.searchsorted(cumulated, cumulated[-1] / 2))])

    def _share(self, number: float) -> float:
        return float(number / self.counts.sum()) if self.number else float("nan")


def distributions(sample: Sample, numbers: Numbers) -> Iterator[Distribution]:
    """Yield the distribution of each of some taps."""
    return map(Distribution, sample.sums(numbers))

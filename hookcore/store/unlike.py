"""How much distributions of taps differ between two samples of steps, from their sketches; and how alike what layers
make of a batch is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
_BIN_OF: Final = np.arange(BINS)
_TAPS_AT_ONCE: Final = 32  # whose sums, and the bins that are added, stay in the cache

Numbers = NDArray[np.int64]
Picked = tuple[
    Numbers, NDArray[np.uint16], NDArray[Any]
]  # the number of filled bins of each tap, the bins, their counts


@dataclass(frozen=True, slots=True)
class Sample:
    """The sketches of some steps of a run. Sums of older steps are in it as a whole, so it may reach further."""

    entries: tuple[SketchRows, ...]

    @property
    def first(self) -> int | None:
        return min((entry.first for entry in self.entries), default=None)

    @property
    def last(self) -> int | None:
        return max((entry.last for entry in self.entries), default=None)

    @property
    def steps(self) -> int:
        """The number of captured steps in it."""
        single = len({entry.first for entry in self.entries if entry.steps == 1})  # parts of one step count once
        return single + sum(entry.steps for entry in self.entries if entry.steps > 1)

    def windows(self, steps: int, most: int) -> list[Sample]:
        """Return adjacent parts with a minimum number of steps each, at most `most` of them."""
        least = max(steps, -(-self.steps // most))
        windows: list[Sample] = []
        part: list[SketchRows] = []
        for entry in self.entries:
            part.append(entry)
            if Sample(tuple(part)).steps >= least:
                windows.append(Sample(tuple(part)))
                part = []
        return windows

    def sums(self, numbers: Numbers) -> NDArray[np.float64]:
        """Return the sums [tap, bin] of some taps. They are exact up to 2 ** 53 values in a bin."""
        return np.concatenate([np.empty((0, BINS)), *self._summed(numbers, _BIN_OF, BINS)])

    def grouped(self, numbers: Numbers) -> Iterator[NDArray[np.float64]]:
        """Yield the sums [tap, group of bins] of a few taps after the other."""
        return self._summed(numbers, _GROUP_OF, len(_GROUPS))

    def _summed(self, numbers: Numbers, column_of: Numbers, width: int) -> Iterator[NDArray[np.float64]]:
        spans = [_Spans.of(entry, numbers) for entry in self.entries if len(entry.taps)]
        narrow: Any = np.uint16 if _TAPS_AT_ONCE * width <= 2**16 else np.uint32  # a quarter of the memory
        columns = column_of.astype(narrow)
        for low in range(0, len(numbers), _TAPS_AT_ONCE):
            part = slice(low, min(low + _TAPS_AT_ONCE, len(numbers)))
            picked = [span.pick(part) for span in spans]
            yield _sums_of(picked, part.stop - low, columns, width) if picked else np.zeros((part.stop - low, width))


def _sums_of(picked: list[Picked], taps: int, columns: NDArray[Any], width: int) -> NDArray[np.float64]:
    """Return the sums [tap, column] of selected values of some entries for these taps."""
    lengths, bins, counts = zip(*picked, strict=True)
    rows = np.arange(taps, dtype=columns.dtype) * columns.dtype.type(width)
    cells = np.repeat(np.tile(rows, len(picked)), np.concatenate(lengths))
    cells += columns.take(np.concatenate(bins), mode="clip")  # none is outside, and checking takes longer
    summed: NDArray[Any] = np.bincount(cells, weights=np.concatenate(counts), minlength=taps * width)
    return summed.reshape(taps, width)


@dataclass(frozen=True, slots=True)
class _Spans:
    """Where the bins of some taps begin and end in an entry."""

    entry: SketchRows
    begin: Numbers
    end: Numbers
    gaps: list[int]  # before each tap: between the bins of taps up to it

    @classmethod
    def of(cls, entry: SketchRows, numbers: Numbers) -> _Spans:
        at = np.searchsorted(entry.taps, numbers)
        is_there = entry.taps.take(at, mode="clip") == numbers
        begin, end = (entry.start[each].astype(np.int64) for each in (at, at + is_there))
        return cls(entry, begin, end, [0, *np.cumsum(begin[1:] != end[:-1]).tolist()])

    def pick(self, part: slice) -> Picked:
        """Return the numbers of filled bins of some of the taps, and these bins with their counts."""
        begin, end = self.begin[part], self.end[part]
        lengths = end - begin
        picked: Any = slice(int(begin[0]), int(end[-1]))
        if self.gaps[part.start] != self.gaps[part.stop - 1]:
            picked = np.arange(int(lengths.sum())) + np.repeat(end - np.cumsum(lengths), lengths)
        return lengths, self.entry.bins[picked], self.entry.counts_at(picked)


def shares_apart(one: Sample, two: Sample, numbers: tuple[Numbers, Numbers]) -> NDArray[np.float64]:
    """Return which share of each tap's values would have to move to make the two samples alike, beyond chance.

    NaN if a tap has no values in one of them. `numbers` are the taps' numbers in the runs of the two samples.
    """
    both = zip(one.grouped(numbers[0]), two.grouped(numbers[1]), strict=True)
    return np.concatenate([np.empty(0), *(_groups_apart(*sides) for sides in both)])


def apart(one: NDArray[np.float64], two: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return which share of the values of each row [row, bin] would have to move to make it that of the other one."""
    return _groups_apart(*(np.add.reduceat(side, _GROUPS, axis=1) for side in (one, two)))


def _groups_apart(*counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return half the sum of the differences of the shares in all groups of bins, less what chance explains."""
    filled = np.flatnonzero(counts[0] + counts[1])  # most groups are empty in both
    rows = filled // counts[0].shape[1]
    many = [count.sum(axis=1) for count in counts]
    here, there = (count.ravel()[filled] for count in counts)
    all_here, all_there = (rates[rows] for rates in many)
    with np.errstate(invalid="ignore", divide="ignore"):
        both = (here + there) / (all_here + all_there)
        # The standard deviation of the difference of two binomial shares of equal probability. Its expected magnitude
        # is between 0.8 and 1 of that.
        chance = np.sqrt(both * (1 - both) * (1 / all_here + 1 / all_there))
        beyond = np.abs(here / all_here - there / all_there) - chance
    distance = np.bincount(rows, weights=beyond, minlength=len(many[0])) / 2
    return np.where((many[0] > 0) & (many[1] > 0), np.maximum(distance, 0.0), np.nan)


@dataclass(frozen=True, slots=True)
class Distribution:
    """The sum of a tap's sketches, in a few numbers."""

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


# How alike representations are: centered kernel alignment (CKA).


def cka(one: Sequence[NDArray[Any]], two: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return the linear CKA of each representation in `one` with each in `two`: 1 if they are alike up to a rotation.

    A representation is a matrix of the products of its samples. The estimate is that of Song et al. (2012), which is
    about 0 for unrelated representations of few samples, too. NaN if a sample has NaN, or all are alike.
    """
    left, right = (np.stack([_pairs_of(each) for each in some]) for some in (one, two))
    found: NDArray[np.float64] = (left @ right.T).clip(-1.0, 1.0)
    return found


def _pairs_of(products: NDArray[Any]) -> NDArray[np.float64]:
    """Return the products of different samples as a vector of length 1, of which no sample has more than others.

    The product of two of these is CKA, because they are centered without their diagonal (Székely and Rizzo, 2014).
    """
    size, most = len(products), float(np.abs(products).max())
    pairs = products.astype(np.float64) / most if 0 < most < np.inf else np.full((size, size), np.nan)
    np.fill_diagonal(pairs, 0.0)
    sums = pairs.sum(axis=0) / (size - 2)
    found: NDArray[np.float64] = (pairs - sums - sums[:, None] + sums.sum() / (size - 1))[np.triu_indices(size, 1)]
    length = float(np.linalg.norm(found))
    rounding = 1e-6 * float(np.linalg.norm(pairs))
    return found / length if length > rounding else np.full_like(found, np.nan)

"""Mergeable histograms with fixed signed-log bins, and the layout of those bins that every kernel shares.

A bin is one eighth of a power of two, so the point that a quantile answers with is at most 5.9 % from any value of
the bin. Bins ascend with the value: negative magnitudes from large to small, then zero, then positive ones from small
to large. What has no place on that line (NaN, the infinities, magnitudes out of range) has a bin of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hookcore.errors import ArgumentError
from hookcore.records import SketchBlock

STEPS_PER_OCTAVE: Final = 8
# The range of float32, but for the subnormal ones: only float64 and a divided loss scale reach beyond it.
MIN_EXPONENT: Final = -126  # smallest magnitude in range: 2 ** -126, about 1.2e-38
MAX_EXPONENT: Final = 128  # magnitudes from 2 ** 128, about 3.4e38, are out of range
MAGNITUDES: Final = (MAX_EXPONENT - MIN_EXPONENT) * STEPS_PER_OCTAVE  # 2032 bins a sign

# Ascending order of values:
NEG_INF: Final = 0
NEG_OVER: Final = 1  # finite, magnitude out of range above
NEG_FIRST: Final = 2  # NEG_FIRST + i holds the magnitudes of step MAGNITUDES - 1 - i
NEG_UNDER: Final = NEG_FIRST + MAGNITUDES  # not zero, magnitude out of range below
ZERO: Final = NEG_UNDER + 1
POS_UNDER: Final = ZERO + 1
POS_FIRST: Final = POS_UNDER + 1  # POS_FIRST + i holds the magnitudes of step i
POS_OVER: Final = POS_FIRST + MAGNITUDES
POS_INF: Final = POS_OVER + 1
NAN: Final = POS_INF + 1
BINS: Final = NAN + 1  # 4072

RELATIVE_ERROR: Final = 1 / 17  # of a quantile inside the range: half a bin against its middle, worst where b/a = 9/8
_TOP_BITS: Final = 15  # sign, exponent and three bits of the mantissa of a float64


def _magnitude_edges() -> NDArray[np.float64]:
    steps = np.arange(MAGNITUDES + 1)
    mantissa = 1.0 + (steps % STEPS_PER_OCTAVE) / STEPS_PER_OCTAVE
    return np.ldexp(mantissa, MIN_EXPONENT + steps // STEPS_PER_OCTAVE)


def _bin_edges() -> NDArray[np.float64]:
    magnitudes, largest = _magnitude_edges(), float(np.finfo(np.float64).max)
    negative = [-np.inf, -largest, *-magnitudes[::-1]]  # lower edges of NEG_INF .. NEG_UNDER
    positive = [0.0, 0.0, *magnitudes, largest, np.inf]  # lower edges of ZERO .. POS_INF, and the end
    return np.array(negative + positive)


def _bin_centres(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = edges[:-1], edges[1:]
    centres = np.full(BINS, np.nan)
    ranges = [slice(NEG_FIRST, NEG_UNDER), slice(POS_FIRST, POS_OVER)]
    for part in ranges:  # the point with the least worst relative error to any value between a and b
        centres[part] = 2 * low[part] * high[part] / (low[part] + high[part])
    centres[[NEG_INF, NEG_OVER, NEG_UNDER]] = -np.inf, -(2.0**MAX_EXPONENT), -(2.0**MIN_EXPONENT)
    centres[[ZERO, POS_UNDER, POS_OVER, POS_INF]] = 0.0, 2.0**MIN_EXPONENT, 2.0**MAX_EXPONENT, np.inf
    return centres


def _bins_by_top_bits() -> NDArray[np.uint16]:
    step = np.arange(1 << (_TOP_BITS - 1)) - ((1023 + MIN_EXPONENT) << 3)
    positive = np.clip(POS_FIRST + step, POS_UNDER, POS_OVER)
    positive[0x7FF << 3 :] = POS_INF  # NaN has the same exponent: told apart by the value
    return np.concatenate([positive, 2 * ZERO - positive]).astype(np.uint16)


EDGES: Final = _bin_edges()  # bin i lies between EDGES[i] and EDGES[i + 1]; NaN has none; BINS long
CENTRES: Final = _bin_centres(EDGES)
_BIN_OF_TOP_BITS: Final = _bins_by_top_bits()
for _constant in (EDGES, CENTRES, _BIN_OF_TOP_BITS):
    _constant.flags.writeable = False


def bins_of(values: ArrayLike) -> NDArray[np.uint16]:
    """The bin of every value: exact bit arithmetic on float64, which holds every smaller float without rounding."""
    given = np.asarray(values, dtype=np.float64)
    floats = np.atleast_1d(given)
    bins: NDArray[np.uint16] = _BIN_OF_TOP_BITS[floats.view(np.uint64) >> np.uint64(64 - _TOP_BITS)]
    bins[floats == 0] = ZERO
    bins[np.isnan(floats)] = NAN
    return bins.reshape(given.shape)


def centre(bin_number: int) -> float:
    """The value that stands for a bin: at most RELATIVE_ERROR from each of its values; NaN for the NaN bin."""
    if not 0 <= bin_number < BINS:
        raise ArgumentError(f"bin {bin_number} does not exist: bins are 0 to {BINS - 1}")
    return float(CENTRES[bin_number])


def group_starts(k: int) -> NDArray[np.intp]:
    """The first bins of groups that cover the finite values: k neighbouring steps each, counted from zero outwards.

    Zeros and what is too small for the range are one group; so is each side's "too large".
    """
    if not 1 <= k <= MAGNITUDES:
        raise ArgumentError(f"cannot put {k} steps in one: give a number from 1 to {MAGNITUDES}")
    positive = np.arange(POS_FIRST, POS_OVER, k)
    negative = np.maximum(NEG_UNDER - k - (positive[::-1] - POS_FIRST), NEG_FIRST)
    return np.concatenate([[NEG_OVER], negative, [NEG_UNDER], positive, [POS_OVER]])


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between ascending edges: counts[i] lies between edges[i] and edges[i + 1]."""

    edges: NDArray[np.float64]
    counts: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """How often each bin was met. Merging is adding, so it is exact and in any order the same."""

    counts: NDArray[np.uint64]  # [BINS], read-only

    def __post_init__(self) -> None:
        if self.counts.shape != (BINS,):
            raise ArgumentError(f"a sketch has {BINS} bins, but the counts have shape {self.counts.shape}")
        self.counts.flags.writeable = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and np.array_equal(self.counts, other.counts)

    def __hash__(self) -> int:
        return hash(self.counts.tobytes())

    @classmethod
    def of(cls, values: ArrayLike) -> Sketch:
        """The sketch of every value given."""
        return cls(np.bincount(bins_of(values).ravel(), minlength=BINS).astype(np.uint64))

    @classmethod
    def of_bins(cls, bins: NDArray[Any], counts: NDArray[Any]) -> Sketch:
        """The sketch with these counts in these bins; a bin may be named twice."""
        dense = np.zeros(BINS, np.uint64)
        np.add.at(dense, bins, counts.astype(np.uint64))
        return cls(dense)

    @classmethod
    def empty(cls) -> Sketch:
        """The sketch of nothing."""
        return cls(np.zeros(BINS, np.uint64))

    @property
    def total(self) -> int:
        """How many values, NaN included."""
        return int(self.counts.sum())

    @property
    def zero(self) -> int:
        """How many values are zero (of either sign)."""
        return int(self.counts[ZERO])

    @property
    def nan(self) -> int:
        """How many values are NaN."""
        return int(self.counts[NAN])

    @property
    def positive_infinity(self) -> int:
        """How many values are +Inf."""
        return int(self.counts[POS_INF])

    @property
    def negative_infinity(self) -> int:
        """How many values are -Inf."""
        return int(self.counts[NEG_INF])

    @property
    def under(self) -> int:
        """How many values are not zero, yet closer to zero than the smallest bin in range."""
        return int(self.counts[NEG_UNDER] + self.counts[POS_UNDER])

    @property
    def over(self) -> int:
        """How many finite values have a magnitude above the largest bin in range."""
        return int(self.counts[NEG_OVER] + self.counts[POS_OVER])

    def merge(self, *others: Sketch) -> Sketch:
        """The sketch of all values of this one and the others."""
        return Sketch(np.sum([self.counts, *(other.counts for other in others)], axis=0, dtype=np.uint64))

    def quantile(self, q: float, *, minimum: float | None = None, maximum: float | None = None) -> float:
        """The value of rank ceil(q * n) among the n values that are not NaN; see `quantiles`."""
        return float(self.quantiles([q], minimum=minimum, maximum=maximum)[0])

    def quantiles(
        self, qs: ArrayLike, *, minimum: float | None = None, maximum: float | None = None
    ) -> NDArray[np.float64]:
        """The values of rank ceil(q * n) among the n that are not NaN, within RELATIVE_ERROR; NaN where n is 0.

        Values out of range are answered by the edge of the range, or by the known finite minimum or maximum.
        """
        bins = self._bins_at(qs)
        return np.full(bins.shape, np.nan) if self.total == self.nan else _answers(bins, minimum, maximum)

    def known_quantiles(
        self, qs: ArrayLike, minimum: float, maximum: float, largest: float = 2.0**MAX_EXPONENT
    ) -> NDArray[np.float64]:
        """Return the quantiles that are known within RELATIVE_ERROR, and NaN for the others.

        `minimum` and `maximum` are those of the finite values (NaN if unknown). A value out of range lies between the
        edge of the range and these, which is an answer if both are close enough. `largest` is the smallest
        magnitude that "too large" may stand for: less than 2 ** MAX_EXPONENT if magnitudes were divided after counting.
        """
        bins = self._bins_at(qs)
        if self.total == self.nan:
            return np.full(bins.shape, np.nan)
        answers = CENTRES[bins]
        edge = int(bins_of(largest))  # from here on the order of magnitudes is not known
        for over, is_out in (
            (NEG_OVER, (bins > NEG_INF) & (bins <= max(NEG_OVER, 2 * ZERO - edge))),
            (POS_OVER, (bins < POS_INF) & (bins >= min(POS_OVER, edge))),
        ):
            if self.counts[over]:
                sign = 1.0 if over == POS_OVER else -1.0
                near, far = (minimum, maximum) if sign > 0 else (-maximum, -minimum)
                answers[is_out] = sign * _between(float(np.fmax(largest, near)), far)
        least = 2.0**MIN_EXPONENT
        answers[bins == POS_UNDER] = _between(float(np.fmax(0.0, minimum)), float(np.fmin(least, maximum)))
        answers[bins == NEG_UNDER] = -_between(float(np.fmax(0.0, -maximum)), float(np.fmin(least, -minimum)))
        number = int(self.counts[:NAN].sum())
        ranks, lost = np.ceil(np.asarray(qs, np.float64) * number), np.isnan(answers)
        answers[lost & (ranks <= 1)] = minimum
        answers[lost & (ranks >= number)] = maximum
        return answers

    def _bins_at(self, qs: ArrayLike) -> NDArray[np.intp]:
        """Return the bins of the values of rank ceil(q * n)."""
        wanted = np.asarray(qs, dtype=np.float64)
        if not np.all((wanted >= 0) & (wanted <= 1)):
            raise ArgumentError(f"quantiles {qs!r} were asked for: each must be between 0 and 1")
        cumulated = np.cumsum(self.counts[:NAN])
        n = int(cumulated[-1])
        rank = np.clip(np.ceil(wanted * n), 1, max(1, n))
        return np.minimum(np.searchsorted(cumulated, rank.astype(np.uint64)), NAN)

    def coarsen(self, k: int) -> Histogram:
        """The finite values with every k neighbouring steps of a sign in one, the same ones on either side of zero.

        The values too small for the range and the zeros share the one bin around zero.
        """
        first = group_starts(k)
        counts = np.add.reduceat(self.counts[:POS_INF], first, dtype=np.uint64)
        return Histogram(np.append(EDGES[first], EDGES[POS_INF]), counts)

    def rebin(self, edges: ArrayLike) -> Histogram:
        """The finite values on other, ascending edges: each bin goes whole to where its centre lies.

        A bin outside of the edges is not counted; the last edge belongs to the last interval.
        """
        given = np.asarray(edges, dtype=np.float64)
        if given.ndim != 1 or given.size < 2 or not np.all(np.diff(given) > 0):
            raise ArgumentError(f"edges of shape {given.shape} cannot bound bins: give at least two, ascending")
        finite = slice(NEG_OVER, POS_INF)
        points = CENTRES[finite].copy()
        points[[NEG_UNDER - 1, POS_UNDER - 1]] /= 2  # these four are answered by an edge, but lie beyond it
        points[[0, -1]] *= 1 + RELATIVE_ERROR
        place = np.searchsorted(given, points, side="right") - 1
        place[points == given[-1]] = given.size - 2
        inside = (place >= 0) & (place < given.size - 1)
        counts = np.zeros(given.size - 1, np.uint64)
        np.add.at(counts, place[inside], self.counts[finite][inside])
        return Histogram(given, counts)

    def shifted(self, steps: int) -> Sketch:
        """Every magnitude moved by so many bins: STEPS_PER_OCTAVE of them multiply by two, negative ones divide.

        A magnitude that leaves the range goes to the under or over bin; one that was already there stays, because
        how far out it was is not known.
        """
        moved = np.zeros(BINS, np.uint64)
        np.add.at(moved, _moved_bins(steps), self.counts)
        return Sketch(moved)


def _between(low: float, high: float) -> float:
    """Return the value that stands for all between two magnitudes; NaN if it can be too far from one of them."""
    known = 0 < low <= high <= low * (1 + 1 / STEPS_PER_OCTAVE)
    return 2 / (1 / low + 1 / high) if known else float("nan")


def _answers(bins: NDArray[np.intp], minimum: float | None, maximum: float | None) -> NDArray[np.float64]:
    answers = CENTRES[bins]
    finite = np.isfinite(answers)
    if minimum is not None:
        answers[bins == NEG_OVER] = minimum
        answers[finite] = np.maximum(answers[finite], minimum)
    if maximum is not None:
        answers[bins == POS_OVER] = maximum
        answers[finite] = np.minimum(answers[finite], maximum)
    return answers


def _moved_bins(steps: int) -> NDArray[np.uint16]:
    """The bin that each bin goes to when magnitudes move by so many steps; ascending as the bins do."""
    target = np.arange(BINS)
    magnitude = np.arange(POS_FIRST, POS_OVER)
    target[magnitude] = np.clip(magnitude + steps, POS_UNDER, POS_OVER)
    target[2 * ZERO - magnitude] = 2 * ZERO - target[magnitude]
    return target.astype(np.uint16)


def block_of(sketches: Sequence[Sketch]) -> SketchBlock:
    """The sparse block whose row i is sketches[i]; a count above what uint32 holds is refused."""
    dense = np.array([sketch.counts for sketch in sketches], np.uint64).reshape(len(sketches), BINS)
    return _block_of_dense(dense)


def sketch_of_row(block: SketchBlock, row: int) -> Sketch:
    """The sketch in one row of a block."""
    part = slice(int(block.start[row]), int(block.start[row + 1]))
    return Sketch.of_bins(block.bins[part], block.counts[part])


def merge_blocks(blocks: Sequence[SketchBlock]) -> SketchBlock:
    """The block whose row i is the exact sum of the rows i; all blocks must have the same number of rows."""
    rows = {len(block.start) - 1 for block in blocks}
    if len(rows) != 1:
        raise ArgumentError(f"blocks with {sorted(rows)} rows cannot be merged: give at least one, all of one height")
    dense = np.zeros((rows.pop(), BINS), np.uint64)
    for block in blocks:
        add_block(dense, block)
    return _block_of_dense(dense)


def shifted_rows(block: SketchBlock, rows: NDArray[np.bool_], steps: int) -> SketchBlock:
    """The block with the magnitudes of the chosen rows moved by so many bins; see `Sketch.shifted`."""
    if not steps or not block.bins.size:
        return block
    starts = block.start.astype(np.int64)
    lengths = starts[1:] - starts[:-1]
    row = np.repeat(np.arange(len(lengths)), lengths)
    moved = np.where(np.asarray(rows, bool)[row], _moved_bins(steps)[block.bins], block.bins)
    first = np.flatnonzero(np.diff(row * BINS + moved, prepend=-1))  # bins that fell together are neighbours
    counts = np.add.reduceat(block.counts, first, dtype=np.uint32)
    start = np.zeros(len(lengths) + 1, np.uint32)
    np.cumsum(np.bincount(row[first], minlength=len(lengths)), out=start[1:])
    return SketchBlock(start, moved[first].astype(np.uint16), counts)


def add_block(dense: NDArray[np.uint64], block: SketchBlock) -> None:
    """Adds each row of a block to the same row of a dense [rows, BINS] array."""
    if not dense.flags.c_contiguous:
        raise ArgumentError("the dense array is not contiguous: give one as np.zeros makes it")
    start = block.start.astype(np.int64)
    lengths = start[1:] - start[:-1]
    keys = np.repeat(np.arange(len(lengths), dtype=np.int64) * BINS, lengths) + block.bins
    dense.reshape(-1)[keys] += block.counts  # a bin occurs once in a row


def _block_of_dense(dense: NDArray[np.uint64]) -> SketchBlock:
    if dense.size and dense.max() > np.iinfo(np.uint32).max:
        raise ArgumentError(f"a count of {dense.max()} does not fit a block: at most {np.iinfo(np.uint32).max} a bin")
    row, bins = np.nonzero(dense)
    start = np.zeros(len(dense) + 1, np.uint32)
    np.cumsum(np.bincount(row, minlength=len(dense)), out=start[1:])
    return SketchBlock(start, bins.astype(np.uint16), dense[row, bins].astype(np.uint32))

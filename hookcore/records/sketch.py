"""Mergeable histograms with fixed signed-log bins, their layout for all kernels, and what casts make of their values.

A bin is one eighth of a power of two, so a quantile's value is at most 5.9 % from any value of its bin. Bins ascend
with the value: negative magnitudes from large to small, zero, positive magnitudes from small to large. Values outside
that order (NaN, infinities, magnitudes out of range) have their own bins.
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
# The range of float32 without the subnormal numbers: only float64 and a divided loss scale exceed it.
MIN_EXPONENT: Final = -126  # smallest magnitude in range: 2 ** -126, about 1.2e-38
MAX_EXPONENT: Final = 128  # magnitudes from 2 ** 128, about 3.4e38, are out of range
MAGNITUDES: Final = (MAX_EXPONENT - MIN_EXPONENT) * STEPS_PER_OCTAVE  # 2032 bins per sign

# Ascending order of values:
NEG_INF: Final = 0
NEG_OVER: Final = 1  # finite, magnitude out of range above
NEG_FIRST: Final = 2  # NEG_FIRST + i counts the magnitudes of step MAGNITUDES - 1 - i
NEG_UNDER: Final = NEG_FIRST + MAGNITUDES  # nonzero, magnitude out of range below
ZERO: Final = NEG_UNDER + 1
POS_UNDER: Final = ZERO + 1
POS_FIRST: Final = POS_UNDER + 1  # POS_FIRST + i counts the magnitudes of step i
POS_OVER: Final = POS_FIRST + MAGNITUDES
POS_INF: Final = POS_OVER + 1
NAN: Final = POS_INF + 1
BINS: Final = NAN + 1  # 4072

RELATIVE_ERROR: Final = 1 / 17  # of a quantile inside the range: half a bin relative to its middle, worst for b/a = 9/8
_TOP_BITS: Final = 15  # sign, exponent, and three bits of the mantissa of a float64


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
    for part in ranges:  # the point with the smallest worst-case relative error for all values between a and b
        centres[part] = 2 * low[part] * high[part] / (low[part] + high[part])
    centres[[NEG_INF, NEG_OVER, NEG_UNDER]] = -np.inf, -(2.0**MAX_EXPONENT), -(2.0**MIN_EXPONENT)
    centres[[ZERO, POS_UNDER, POS_OVER, POS_INF]] = 0.0, 2.0**MIN_EXPONENT, 2.0**MAX_EXPONENT, np.inf
    return centres


def _bins_by_top_bits() -> NDArray[np.uint16]:
    step = np.arange(1 << (_TOP_BITS - 1)) - ((1023 + MIN_EXPONENT) << 3)
    positive = np.clip(POS_FIRST + step, POS_UNDER, POS_OVER)
    positive[0x7FF << 3 :] = POS_INF  # NaN has the same exponent; it is distinguished by its value
    return np.concatenate([positive, 2 * ZERO - positive]).astype(np.uint16)


EDGES: Final = _bin_edges()  # bin i lies between EDGES[i] and EDGES[i + 1]; NaN has no edges; BINS entries
CENTRES: Final = _bin_centres(EDGES)
_BIN_OF_TOP_BITS: Final = _bins_by_top_bits()
for _constant in (EDGES, CENTRES, _BIN_OF_TOP_BITS):
    _constant.flags.writeable = False


def bins_of(values: ArrayLike) -> NDArray[np.uint16]:
    """Return the bin of each value, by exact bit arithmetic on float64, which represents all smaller floats exactly."""
    given = np.asarray(values, dtype=np.float64)
    floats = np.atleast_1d(given)
    bins: NDArray[np.uint16] = _BIN_OF_TOP_BITS[floats.view(np.uint64) >> np.uint64(64 - _TOP_BITS)]
    bins[floats == 0] = ZERO
    bins[np.isnan(floats)] = NAN
    return bins.reshape(given.shape)


def group_starts(k: int) -> NDArray[np.intp]:
    """Return the first bins of groups that cover the finite values: k neighboring steps each, from zero outwards.

    Zeros and values below the range are one group, and so are the values above the range of each sign.
    """
    if not 1 <= k <= MAGNITUDES:
        raise ArgumentError(f"k={k} is invalid: use a number of steps from 1 to {MAGNITUDES}")
    positive = np.arange(POS_FIRST, POS_OVER, k)
    negative = np.maximum(NEG_UNDER - k - (positive[::-1] - POS_FIRST), NEG_FIRST)
    return np.concatenate([[NEG_OVER], negative, [NEG_UNDER], positive, [POS_OVER]])


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """A count per bin. Merging adds the counts, so it is exact and independent of the order."""

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
        """Return the sketch of all given values."""
        return cls(np.bincount(bins_of(values).ravel(), minlength=BINS).astype(np.uint64))

    @classmethod
    def of_bins(cls, bins: NDArray[Any], counts: NDArray[Any]) -> Sketch:
        """Return the sketch with these counts in these bins; a bin may occur twice."""
        dense = np.zeros(BINS, np.uint64)
        np.add.at(dense, bins, counts.astype(np.uint64))
        return cls(dense)

    @classmethod
    def empty(cls) -> Sketch:
        """Return a sketch without values."""
        return cls(np.zeros(BINS, np.uint64))

    @property
    def total(self) -> int:
        """The number of values, including NaN."""
        return int(self.counts.sum())

    @property
    def nan(self) -> int:
        """The number of NaN values."""
        return int(self.counts[NAN])

    def quantiles(self, qs: ArrayLike) -> NDArray[np.float64]:
        """Return the values of rank ceil(q * n) among the n that are not NaN, within RELATIVE_ERROR; NaN if n is 0.

        A value out of range is represented by the edge of the range.
        """
        bins = self._bins_at(qs)
        return np.full(bins.shape, np.nan) if self.total == self.nan else CENTRES[bins]

    def known_quantiles(
        self, qs: ArrayLike, minimum: float, maximum: float, largest: float = 2.0**MAX_EXPONENT
    ) -> NDArray[np.float64]:
        """Return the quantiles that are known within RELATIVE_ERROR, and NaN for the others.

        `minimum` and `maximum` are those of the finite values (NaN if unknown). A value out of range lies between the
        edge of the range and these, which is an answer if both are close enough. `largest` is the smallest magnitude in
        the bins above the range: less than 2 ** MAX_EXPONENT if magnitudes were divided after counting.
        """
        bins = self._bins_at(qs)
        if self.total == self.nan:
            return np.full(bins.shape, np.nan)
        answers = CENTRES[bins]
        edge = int(bins_of(largest))  # the order of larger magnitudes is unknown
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
            raise ArgumentError(f"quantiles {qs!r} are invalid: each must be between 0 and 1")
        cumulated = np.cumsum(self.counts[:NAN])
        n = int(cumulated[-1])
        rank = np.clip(np.ceil(wanted * n), 1, max(1, n))
        return np.minimum(np.searchsorted(cumulated, rank.astype(np.uint64)), NAN)


def _between(low: float, high: float) -> float:
    """Return the value that represents all values between two magnitudes; NaN if it can be too far from one of them."""
    known = 0 < low <= high <= low * (1 + 1 / STEPS_PER_OCTAVE)
    return 2 / (1 / low + 1 / high) if known else float("nan")


def _moved_bins(steps: int) -> NDArray[np.uint16]:
    """Return the target of each bin when magnitudes move by `steps` bins; ascending like the bins."""
    target = np.arange(BINS)
    magnitude = np.arange(POS_FIRST, POS_OVER)
    target[magnitude] = np.clip(magnitude + steps, POS_UNDER, POS_OVER)
    target[2 * ZERO - magnitude] = 2 * ZERO - target[magnitude]
    return target.astype(np.uint16)


def rows_of(block: SketchBlock, rows: NDArray[np.integer[Any]]) -> SketchBlock:
    """Return some rows of a block, in this order."""
    start, places = places_of(block.start.astype(np.int64), rows)
    return SketchBlock(start.astype(np.uint32), block.bins[places], block.counts[places])


def places_of(start: NDArray[np.int64], rows: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each of some rows of different lengths will start, and the places of their elements now."""
    lengths = start[rows + 1] - start[rows]
    ends = np.cumsum(lengths)
    places = np.arange(int(lengths.sum())) + np.repeat(start[rows] - (ends - lengths), lengths)
    return np.append(0, ends), places


def flaw_of(start: NDArray[Any], bins: NDArray[Any]) -> str | None:
    """Return what is wrong with the bins of rows; None if they are known bins, and ascend in each row."""
    if bins.max(initial=0) >= BINS:
        return f"bin {bins.max()} of {BINS}"
    ascends = bins[1:] > bins[:-1]
    borders = start[1:-1].astype(np.int64)
    ascends[borders[(borders > 0) & (borders < len(bins))] - 1] = True
    return None if ascends.all() else "bins that do not ascend"


def shifted_rows(block: SketchBlock, rows: NDArray[np.bool_], steps: int) -> SketchBlock:
    """Return the block with the magnitudes of the chosen rows moved by `steps` bins.

    STEPS_PER_OCTAVE bins multiply by two, negative numbers divide. A magnitude that leaves the range goes to the under
    or over bin. One that was already there stays, because its exact value is unknown.
    """
    if not steps or not block.bins.size:
        return block
    starts = block.start.astype(np.int64)
    lengths = starts[1:] - starts[:-1]
    row = np.repeat(np.arange(len(lengths)), lengths)
    moved = np.where(np.asarray(rows, bool)[row], _moved_bins(steps)[block.bins], block.bins)
    first = np.flatnonzero(np.diff(row * BINS + moved, prepend=-1))  # bins moved to the same place are neighbors
    counts = np.add.reduceat(block.counts, first, dtype=np.uint32)
    start = np.zeros(len(lengths) + 1, np.uint32)
    np.cumsum(np.bincount(row[first], minlength=len(lengths)), out=start[1:])
    return SketchBlock(start, moved[first].astype(np.uint16), counts)


# Formats of low precision: what a cast makes of the values of a histogram.

_POINTS: Final = np.arange(1, 17) * 0.6180339887 % 1.0  # of a bin, at which a cast is computed: on no format's grid
_SIGMAS: Final = 3.0  # of what sampling may have changed
_LEAST: Final = 2.0**-149  # the smallest magnitude below the range
MOST: Final = 0.99  # of a tensor's values: without those that may be outliers
APART: Final = 16.0  # the least factor between two groups of values


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A floating-point format: its largest value, the exponent of its smallest normal one, and bits of its mantissa."""

    name: str
    largest: float
    exponent: int
    bits: int
    is_scaled: bool  # whether tensors are scaled before a cast to it

    @property
    def limits(self) -> tuple[float, float, float]:
        """Magnitudes up to which a value becomes zero, below which it is subnormal, and above which it is too large."""
        least = np.ldexp(1.0, self.exponent - self.bits)
        ulp = np.ldexp(1.0, int(np.floor(np.log2(self.largest))) - self.bits)
        return float(least / 2), float(np.ldexp(1.0, self.exponent) - least / 2), float(self.largest + ulp / 2)

    def unit(self, magnitudes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how far its values are apart at these magnitudes."""
        exponents = np.maximum(np.frexp(magnitudes)[1] - 1, self.exponent)
        unit: NDArray[np.float64] = np.ldexp(1.0, exponents - self.bits)
        return unit

    def round(self, magnitudes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the nearest magnitudes that it has, ties to even; the largest one for larger ones."""
        unit = self.unit(magnitudes)
        return np.minimum(np.rint(magnitudes / unit) * unit, self.largest)

    def fates(self, magnitudes: NDArray[np.float64]) -> NDArray[np.intp]:
        """Return what each becomes: 0 for zero, 1 for a subnormal value, 2 for a normal one, 3 if it is too large."""
        return np.searchsorted(np.array(self.limits), magnitudes)


FORMATS: Final = {
    each.name: each
    for each in (
        NumberFormat("bf16", float(np.ldexp(255.0, 120)), -126, 7, False),
        NumberFormat("fp16", 65504.0, -14, 10, False),
        NumberFormat("e5m2", 57344.0, -14, 2, True),
        NumberFormat("e4m3", 448.0, -6, 3, True),
        NumberFormat("e2m1", 6.0, 0, 1, True),
    )
}


@dataclass(frozen=True, slots=True)
class Cast:
    """What a cast makes of a tensor's nonzero finite values: shares, with their least and largest possible value."""

    underflow: tuple[float, float, float]  # share that becomes zero
    subnormal: tuple[float, float, float]
    saturated: tuple[float, float, float]  # share above the largest value
    error: float  # the mean relative error of a value
    noise: float  # the root mean square of the errors, relative to that of the values
    most_noise: float  # the same without the largest values, which may have most of the power
    most: float  # the share of the values that this is about
    limits: tuple[float, float, float]  # magnitudes that become zero, that are subnormal, and that fit


@dataclass(frozen=True, slots=True, eq=False)
class Magnitudes:
    """The nonzero finite magnitudes of a histogram: filled bins from `low` to `high`, and their counts."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    counts: NDArray[np.float64]
    places: NDArray[np.intp]  # of the bins: 1 to MAGNITUDES, or next to these if out of range
    is_whole: bool  # whether all values are counted, not only a sample

    @classmethod
    def of(cls, counts: NDArray[np.float64], largest: float, is_whole: bool) -> Magnitudes:
        """Take them from a row of bins. `largest` is the largest magnitude; NaN if it is unknown."""
        one, two = counts[NEG_FIRST:NEG_UNDER][::-1], counts[POS_FIRST:POS_OVER]
        ends = counts[[NEG_UNDER, NEG_OVER]] + counts[[POS_UNDER, POS_OVER]]
        every = np.concatenate([ends[:1], one + two, ends[1:]])
        filled, edges = np.flatnonzero(every), _magnitude_edges()
        low = np.concatenate([[_LEAST], edges])[filled]
        high = np.concatenate([edges, [np.fmax(largest, 2.0 * edges[-1])]])[filled]
        if len(high) and low[-1] <= largest < high[-1]:
            high[-1] = largest
        return cls(low, high, every[filled], filled, is_whole)

    @property
    def total(self) -> float:
        """The number of values."""
        return float(self.counts.sum())

    def level(self, share: float, largest: float) -> tuple[float, float, float]:
        """Return the magnitude below which this share lies: as estimated, and its least and largest possible value."""
        if share >= 1.0:
            known = largest >= self.low[-1]
            return (largest,) * 3 if known else (float(self.high[-1]), float(self.low[-1]), float(self.high[-1]))
        ends = np.cumsum(self.counts)
        rank = share * ends[-1]
        spread = 0.0 if self.is_whole else _SIGMAS * float(np.sqrt(rank * (1 - share)))
        at, least, most = np.minimum(np.searchsorted(ends, [rank, rank - spread, rank + spread]), len(ends) - 1)
        part = 1 - (ends[at] - rank) / self.counts[at]
        value = self.low[at] + part * (self.high[at] - self.low[at])
        return float(value), float(self.low[least]), float(self.high[most])

    @property
    def most(self) -> float:
        """The share of the values without the largest ones: without 1 %, or without a group far above the others.

        Between two groups, hardly any value lies within a factor of 16. The group below has at least half of the
        values, and the one above at least as many as may lie between them.
        """
        ends = np.cumsum(self.counts) / self.total
        above = np.searchsorted(self.high, APART * self.high, side="right") - 1  # the last bin in between
        between = ends[above] - ends
        parts = (between <= 1 - MOST) & (ends >= 0.5) & (ends[above] <= MOST)
        return float(ends[np.argmin(np.where(parts, between, np.inf))]) if parts.any() else MOST


def casts_of(many: Sequence[Magnitudes], share: float, largest: Sequence[float]) -> list[dict[str, Cast]]:
    """Cast tensors that have values to each format: together, because calls of numpy take longer than bins.

    `share` of the values fit below the largest one of a format that is scaled. `largest` are the tensors' own.
    """
    if not many:
        return []
    together = _Together.of(many)
    levels = np.array([one.level(share, size) for one, size in zip(many, largest, strict=True)]).T
    every = [together.cast(to, levels if to.is_scaled else np.full_like(levels, to.largest)) for to in FORMATS.values()]
    return [dict(zip(FORMATS, each, strict=True)) for each in zip(*every, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class _Together:
    """The bins of tensors, one after the other."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    counts: NDArray[np.float64]
    used: NDArray[np.float64]  # the counts without the largest values
    places: NDArray[np.intp]
    is_regular: NDArray[np.bool_]  # whether 2 ** k times a bin is another bin
    starts: NDArray[np.intp]  # of each tensor
    owner: NDArray[np.intp]  # of each bin
    total: NDArray[np.float64]
    most: NDArray[np.float64]
    whole: NDArray[np.bool_]

    @classmethod
    def of(cls, many: Sequence[Magnitudes]) -> _Together:
        low, high, counts, places = (
            np.concatenate(each)
            for each in zip(*((one.low, one.high, one.counts, one.places) for one in many), strict=True)
        )
        sizes = np.array([len(each.counts) for each in many])
        starts, owner = np.cumsum(sizes) - sizes, np.repeat(np.arange(len(many)), sizes)
        is_regular = (places > 0) & (places <= MAGNITUDES)
        is_regular[starts + sizes - 1] = False  # it may end at the largest value
        total, most = np.add.reduceat(counts, starts), np.array([each.most for each in many])
        before = np.concatenate([np.cumsum(each.counts) - each.counts for each in many])
        used = np.clip((most * total)[owner] - before, 0.0, counts)
        whole = np.array([each.is_whole for each in many])
        return cls(low, high, counts, used, places, is_regular, starts, owner, total, most, whole)

    def cast(self, to: NumberFormat, levels: NDArray[np.float64]) -> list[Cast]:
        """Cast them, each so that its level becomes the format's largest value: as estimated, least, and largest."""
        scale, upper, lower = to.largest / levels
        own = scale[self.owner]
        low, high, counts = self.low * own, self.high * own, self.counts
        fates_low = to.fates(self.low * lower[self.owner])
        fates_high = to.fates(np.nextafter(self.high, 0) * upper[self.owner])
        # All values of a bin become zero, or all become normal ones: so do those of a bin that is 2 ** k times as far.
        is_lost, is_normal = high <= to.limits[0], (low >= np.ldexp(1.0, to.exponent)) & (high <= to.largest)
        alike = self.owner * 2 * STEPS_PER_OCTAVE + is_normal * STEPS_PER_OCTAVE + self.places % STEPS_PER_OCTAVE
        others = 2 * STEPS_PER_OCTAVE * len(self.total) + np.arange(len(low))
        _, at, back = np.unique(
            np.where(self.is_regular & (is_lost | is_normal), alike, others), return_index=True, return_inverse=True
        )
        width = (high - low)[at, None]
        values = np.maximum(low[at, None] + width * _POINTS, np.finfo(float).tiny)  # a scale may make zeros of them
        fates, rounded = to.fates(values), to.round(values)

        def shares(fate: int) -> NDArray[np.float64]:
            """Return shares of the values: as estimated, and their least and largest possible value."""
            usual = (fates == fate).mean(axis=1)[back]
            surely, maybe = (fates_low == fate) & (fates_high == fate), (fates_low <= fate) & (fates_high >= fate)
            found, least, most = (self._summed(counts * each) / self.total for each in (usual, surely, maybe))
            ends = (
                np.where(self.whole, end, _sampled(end, self.total, sign)) for end, sign in ((least, -1), (most, 1))
            )
            return np.stack([found, *ends], axis=1)

        # In a bin with many values of the format, each error up to half a unit is equally likely.
        unit = to.unit(values)
        is_fine = (width >= 4 * unit) & (values <= to.largest)
        lost = np.where(is_fine, unit / np.sqrt(12), np.abs(rounded - values))
        errors = (np.where(is_fine, unit / 4, lost) / values).mean(axis=1)[back]
        top = values.max(axis=1)  # squares of the values may be too large for a float
        losses, powers = (((each / top[:, None]) ** 2).mean(axis=1)[back] for each in (lost, values))
        tops = np.ldexp(top[back], (self.places - self.places[at][back]) // STEPS_PER_OCTAVE)

        def noise(used: NDArray[np.float64]) -> NDArray[np.float64]:
            """Return the root mean square of errors, relative to that of the values."""
            filled = np.where(used > 0, tops, 0.0)
            weights = (filled / np.maximum.reduceat(filled, self.starts)[self.owner]) ** 2 * used
            return np.sqrt(self._summed(losses * weights) / self._summed(powers * weights))

        numbers = self._summed(errors * counts) / self.total, noise(counts), noise(self.used), self.most
        made = (shares(0), shares(1), shares(3), *numbers, np.array(to.limits) / scale[:, None])
        return [
            Cast(tuple(zero), tuple(small), tuple(large), error, all_noise, most_noise, most, tuple(limits))
            for zero, small, large, error, all_noise, most_noise, most, limits in zip(
                *(each.tolist() for each in made), strict=True
            )
        ]

    def _summed(self, each: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.add.reduceat(each, self.starts)
        return found


def _sampled(share: NDArray[np.float64], n: NDArray[np.float64], sign: int) -> NDArray[np.float64]:
    """Return the ends of Wilson's intervals for shares that were found in samples."""
    z = _SIGMAS
    middle, width = share + z * z / (2 * n), z * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return np.clip((middle + sign * width) / (1 + z * z / n), 0.0, 1.0)


# Casts in blocks: of a tensor's values, because its histogram doesn't say what is next to what.

MAX_BLOCKED: Final = 2**22  # values of a tensor that are cast


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format whose values share scales: one for each block along the last dimension; one for all if `size` is 0."""

    element: NumberFormat
    size: int
    has_powers: bool = False  # of two as scales; otherwise, the scales of blocks are in E4M3, times one of the tensor

    def scales(self, largest: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the scale of each block, by its largest magnitude. A block of zeros has any."""
        some = np.where(largest > 0, largest, 1.0)
        if self.has_powers:
            top = np.frexp(self.element.largest)[1]
            return np.asarray(np.ldexp(1.0, np.clip(np.frexp(some)[1] - top, -127, 127)))
        whole = some / self.element.largest
        if not self.size:
            return whole
        kept = FORMATS["e4m3"]
        of_tensor = float(largest.max(initial=0.0)) / self.element.largest / kept.largest or 1.0
        return kept.round(whole / of_tensor) * of_tensor


BLOCKS: Final = {
    "e4m3": BlockFormat(FORMATS["e4m3"], 0),
    "mxfp8": BlockFormat(FORMATS["e4m3"], 32, True),
    "e2m1": BlockFormat(FORMATS["e2m1"], 0),
    "mxfp4": BlockFormat(FORMATS["e2m1"], 32, True),
    "nvfp4": BlockFormat(FORMATS["e2m1"], 16),
}


@dataclass(frozen=True, slots=True)
class BlockCast:
    """What a cast makes of a tensor's nonzero finite values, exactly."""

    underflow: float  # share that becomes zero
    saturated: float  # share above the largest value of its block
    noise: float
    most_noise: float  # without the largest values


def cast_blocks(values: NDArray[np.float64], to: BlockFormat) -> BlockCast | None:
    """Cast rows of values; None if all are zero. Values that aren't finite count as zeros."""
    rows = np.abs(np.where(np.isfinite(values), values, 0.0))
    if not rows.any():
        return None
    if to.size:
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % to.size)))
    blocks = rows.reshape(-1, to.size or rows.size)
    scales = to.scales(blocks.max(axis=1))[:, None]
    nonzero = blocks > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(scales > 0, blocks / scales, 0.0)  # a scale may be too small for its own format
    found = (to.element.round(scaled) * scales)[nonzero]
    given, is_large = blocks[nonzero], (scaled > to.element.limits[2])[nonzero]
    order = np.argsort(given)
    lost, given_in_order = np.abs(found - given)[order], given[order]
    most = max(1, int(MOST * len(order)))
    noise, most_noise = (
        float(np.linalg.norm(lost[:many]) / np.linalg.norm(given_in_order[:many])) for many in (len(order), most)
    )
    return BlockCast(float((found == 0).mean()), float(is_large.mean()), noise, most_noise)

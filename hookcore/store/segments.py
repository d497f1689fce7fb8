"""Blocks of rows in time: exact rows of single steps, and merged rows of several. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, STATS

# A row is one step or several merged ones, a column is a statistic, and a lane is a tap or a scalar. Arrays are
# [column, row, lane]: a query reads one column of many rows, and so touches a thirteenth of the bytes.

Floats = NDArray[np.float64]
Narrow = NDArray[np.floating[Any]]  # of float16, float32, or float64
Counts = NDArray[np.uint32]
Steps = NDArray[np.int64]
Lanes = slice | NDArray[np.intp]
Column = Callable[[int], Floats]  # reads one stored column
Scalar = TypeVar("Scalar", bound=np.generic)

_OBJECT_BYTES: Final = 128  # of an array, beside its values
_BLOCK_BYTES: Final = 1 << 17  # of columns merged together: narrow ones need fewer calls, wide ones stay cached


def lanes_of(numbers: NDArray[np.integer[Any]]) -> Lanes:
    """Return numbers of lanes: as a slice if they are neighbors in order, which NumPy reads ten times as fast."""
    first, behind = (int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (0, 0)
    if behind - first == len(numbers) and (numbers[1:] > numbers[:-1]).all():
        return slice(first, behind)
    return numbers.astype(np.intp, copy=False)


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a row. The first one is NaN exactly where a lane was absent in a step."""

    columns: tuple[str, ...]
    nonfinite: tuple[int, ...]  # the value of a lane was non-finite where the sum of these columns is positive
    derived: dict[str, Callable[[Column], Floats]] = field(default_factory=dict)  # computed from the stored ones

    @property
    def names(self) -> tuple[str, ...]:
        """The stored and derived columns."""
        return (*self.columns, *self.derived)

    def read(self, column: int, stored: Column) -> Floats:
        """Return one column of `names`, with non-finite values as NaN."""
        if column < len(self.columns):
            return _only_finite(stored(column))
        return _only_finite(list(self.derived.values())[column - len(self.columns)](stored))

    def count_nonfinite(self, stored: Column) -> NDArray[np.bool_]:
        """Return where the value of a lane was non-finite."""
        total = stored(self.nonfinite[0])
        for column in self.nonfinite[1:]:
            total = total + stored(column)
        return total > 0

    def exact_row_bytes(self, lanes: int) -> int:
        """Return the size of one row of ExactRows."""
        return 8 + lanes * 8 * len(self.columns)

    def merged_row_bytes(self, lanes: int) -> int:
        """Return the size of one row of MergedRows."""
        return 16 + lanes * (28 * len(self.names) + 8)


@dataclass(slots=True, eq=False)
class ExactRows:
    """Single steps, unmerged. Rows from `used` on are not written yet."""

    steps: Steps  # [rows]
    values: Floats | tuple[Narrow, ...]  # [column, row, lane]; a tuple is packed, and no row can follow
    used: int = 0

    @classmethod
    def make(cls, schema: Schema, rows: int, lanes: int) -> ExactRows:
        """Return unwritten rows."""
        return cls(np.empty(rows, np.int64), np.empty((len(schema.columns), rows, lanes)))

    @property
    def rows(self) -> int:
        return len(self.values[0])

    @property
    def lanes(self) -> int:
        return int(self.values[0].shape[1])

    @property
    def nbytes(self) -> int:
        if isinstance(self.values, tuple):
            return sum(column.nbytes + _OBJECT_BYTES for column in self.values) + self.steps.nbytes
        return self.values.nbytes + self.steps.nbytes

    @property
    def first(self) -> Steps:
        return self.steps

    @property
    def last(self) -> Steps:
        return self.steps

    def view(self, first: int | None, last: int | None) -> ExactRows:
        """Return a view of the rows of the steps."""
        steps = self.steps[: self.used]
        begin = 0 if first is None else int(np.searchsorted(steps, first))
        end = len(steps) if last is None else int(np.searchsorted(steps, last, side="right"))
        return ExactRows(steps[begin:end], tuple(each[begin:end] for each in self.values), max(0, end - begin))

    def pack(self, rows: slice) -> ExactRows:
        """Return a copy of some rows, all of them used, with each column in the smallest type that holds its values.

        Counts, and the extremes of float32 tensors, take half or a quarter of the bytes.
        """
        steps = self.steps[rows].copy()
        packed = ExactRows(steps, _together([_smallest(each[rows]) for each in self.values]), len(steps))
        plain = ExactRows(steps, self.read(slice(None), rows), len(steps))
        return min(packed, plain, key=lambda rows: rows.nbytes)

    def read(self, columns: slice, rows: Lanes, lanes: Lanes = slice(None)) -> Floats:
        """Return a copy of some values, [column, row, lane]."""
        return np.array([each[rows, lanes] for each in self.values[columns]], np.float64)


def _smallest(column: Narrow) -> Narrow:
    for kind in (np.float16, np.float32):
        for some in (column[:1], column):  # the first row tells of most columns
            with np.errstate(over="ignore"):
                narrow = some.astype(kind)
            if not ((narrow == some) | np.isnan(some)).all():
                break
        else:
            return narrow
    return column


def _together(columns: list[Narrow]) -> tuple[Narrow, ...]:
    """Copy columns into one piece of memory: many small ones would leave gaps in it."""
    whole = np.empty(sum(each.nbytes for each in columns), np.uint8)
    found, begin = dict[int, Narrow](), 0
    for place in sorted(range(len(columns)), key=lambda place: -columns[place].itemsize):  # so that each is aligned
        column = columns[place]
        found[place] = whole[begin : begin + column.nbytes].view(column.dtype).reshape(column.shape)
        found[place][:] = column
        begin += column.nbytes
    return tuple(found[place] for place in range(len(columns)))


@dataclass(slots=True, eq=False)
class MergedRows:
    """Consecutive steps merged into rows. Immutable, so readers need no lock."""

    first: Steps  # [row]
    last: Steps
    mean: Floats  # [name, row, lane], over the finite values; NaN if there were none
    low: Floats
    high: Floats
    finite: Counts  # [name, row, lane]: number of finite values
    present: Counts  # [row, lane]: number of steps with the lane
    nonfinite: Counts  # [row, lane]: number of steps with a non-finite value
    level: int = 0  # how many times its rows were merged in pairs

    @classmethod
    def make(cls, names: int, rows: int, lanes: int, level: int = 0) -> MergedRows:
        """Return rows to fill."""
        wide, flat = (names, rows, lanes), (rows, lanes)
        ends = np.empty(rows, np.int64), np.empty(rows, np.int64)
        numbers = np.empty(wide), np.empty(wide), np.empty(wide)
        counts = np.empty(wide, np.uint32), np.empty(flat, np.uint32), np.empty(flat, np.uint32)
        return cls(*ends, *numbers, *counts, level)

    @property
    def used(self) -> int:
        return int(self.mean.shape[1])

    @property
    def lanes(self) -> int:
        return int(self.mean.shape[2])

    @property
    def nbytes(self) -> int:
        counts = self.finite.nbytes + self.present.nbytes + self.nonfinite.nbytes
        return 3 * self.mean.nbytes + counts + 2 * self.first.nbytes


def condense(schema: Schema, parts: Sequence[ExactRows], factor: int) -> MergedRows:
    """Merge exact rows, `factor` to one; the last row takes the remainder."""
    steps = np.concatenate([part.steps[: part.used] for part in parts])
    lanes = max(part.lanes for part in parts)
    merged = MergedRows.make(len(schema.names), -(-len(steps) // factor), lanes)
    merged.first[:] = steps[::factor]
    merged.last[:] = np.append(steps[factor - 1 :: factor], steps[-1])[: merged.used]

    def block_of(columns: slice) -> Floats:
        return _stack([part.read(columns, slice(part.used)) for part in parts], lanes, np.nan)

    def stored(column: int) -> Floats:
        found: Floats = block_of(slice(column, column + 1))[0]
        return found

    columns = len(schema.columns)
    for block in _blocks(columns, 8 * len(steps) * lanes):
        _fold_values(_only_finite(block_of(block)), factor, merged, block)
    for column in range(columns, len(schema.names)):
        _fold_values(schema.read(column, stored)[None], factor, merged, slice(column, column + 1))
    merged.present[:] = _fold(np.add, ~np.isnan(stored(0)), factor)
    merged.nonfinite[:] = _fold(np.add, schema.count_nonfinite(stored), factor)
    return merged


def merge(parts: Sequence[MergedRows], factor: int) -> MergedRows:
    """Merge merged rows, `factor` to one; the last row takes the remainder. A factor of one joins them unchanged."""
    lanes = max(part.lanes for part in parts)
    rows = sum(part.used for part in parts)
    merged = MergedRows.make(parts[0].mean.shape[0], -(-rows // factor), lanes, max(part.level for part in parts))
    merged.first[:] = np.concatenate([part.first for part in parts])[::factor]
    last = np.concatenate([part.last for part in parts])
    merged.last[:] = np.append(last[factor - 1 :: factor], last[-1])[: merged.used]
    merged.present[:] = _fold(np.add, _stack([part.present for part in parts], lanes, 0), factor)
    merged.nonfinite[:] = _fold(np.add, _stack([part.nonfinite for part in parts], lanes, 0), factor)
    for block in _blocks(len(merged.mean), 8 * rows * lanes):
        finite = _stack([part.finite[block] for part in parts], lanes, 0)
        merged.finite[block] = _fold(np.add, finite, factor)
        means = _stack([part.mean[block] for part in parts], lanes, np.nan)
        merged.mean[block] = _mean_of_means(means, finite, merged.finite[block], factor)
        merged.low[block] = _fold(np.fmin, _stack([part.low[block] for part in parts], lanes, np.nan), factor)
        merged.high[block] = _fold(np.fmax, _stack([part.high[block] for part in parts], lanes, np.nan), factor)
    return merged


def _only_finite(values: Floats) -> Floats:
    """Return the values, with non-finite ones as NaN."""
    return np.where(np.isfinite(values), values, np.nan)


def _blocks(columns: int, column_bytes: int) -> Iterator[slice]:
    together = max(1, _BLOCK_BYTES // max(1, column_bytes))
    return (slice(first, min(columns, first + together)) for first in range(0, columns, together))


def _fold_values(values: Floats, factor: int, merged: MergedRows, block: slice) -> None:
    finite = ~np.isnan(values)
    if finite.all():
        rows = values.shape[-2]
        merged.finite[block] = _fold(np.add, np.ones((rows, 1), np.uint32), factor)
        merged.mean[block] = _fold(np.add, values / factor, factor)
        if rest := rows % factor:
            merged.mean[block, -1] *= factor / rest
    else:
        merged.finite[block] = _fold(np.add, finite, factor)
        merged.mean[block] = _mean_of_means(values, finite, merged.finite[block], factor)
    merged.low[block] = _fold(np.fmin, values, factor)
    merged.high[block] = _fold(np.fmax, values, factor)


def _mean_of_means(means: Floats, weights: NDArray[Any], totals: Counts, factor: int) -> Floats:
    if factor == 1:
        return means
    scale = max(1.0, float(totals.max(initial=0)))  # divide first: the sum of large values must not overflow
    with np.errstate(invalid="ignore"):
        parts = np.where(weights > 0, means * (weights / scale), 0.0)
        mean: Floats = _fold(np.add, parts, factor) / (totals / scale)
    return mean


def _stack(parts: Sequence[NDArray[Scalar]], lanes: int, fill: float) -> NDArray[Scalar]:
    """Stack parts [..., row, lane], with narrow ones padded with `fill`."""
    if len(parts) == 1 and parts[0].shape[-1] == lanes:
        return parts[0]
    if all(part.shape[-1] == lanes for part in parts):
        return np.concatenate(parts, axis=-2)
    shape = (*parts[0].shape[:-2], sum(part.shape[-2] for part in parts), lanes)
    stacked = np.full(shape, fill, parts[0].dtype)
    row = 0
    for part in parts:
        stacked[..., row : row + part.shape[-2], : part.shape[-1]] = part
        row += part.shape[-2]
    return stacked


def _fold(operation: np.ufunc, values: NDArray[Any], factor: int) -> NDArray[Any]:
    """Reduce rows [..., row, lane] `factor` to one; the last row takes the remainder."""
    if factor == 1:
        return values
    *outer, rows, lanes = values.shape
    groups = rows // factor
    whole: NDArray[Any] = operation.reduce(
        values[..., : groups * factor, :].reshape(*outer, groups, factor, lanes), axis=-2
    )
    if groups * factor == rows:
        return whole
    rest = operation.reduce(values[..., groups * factor :, :], axis=-2, keepdims=True)
    return np.concatenate([whole, rest], axis=-2)


# The two row schemas of the store, and the merging of two parts of a step.

SKIPPED_STEP: Final = "skipped-step"  # the event for a step that a gradient scaler skipped

_ADDED: Final = tuple(STAT_COLUMN[name] for name in ("count", "nan", "inf", "zero", "parts", "sketched"))
_COUNT, _NAN, _INF, _ZERO = (STAT_COLUMN[name] for name in ("count", "nan", "inf", "zero"))
_MEAN, _STD, _RMS, _NORM = (STAT_COLUMN[name] for name in ("mean", "std", "rms", "norm"))
_MIN, _MAX, _RATIO = (STAT_COLUMN[name] for name in ("min", "max", "ratio"))


def _zero_fraction(stored: Column) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return stored(_ZERO) / stored(_COUNT)


def _nonfinite(stored: Column) -> Floats:
    return stored(_NAN) + stored(_INF)


STAT_SCHEMA: Final = Schema(STATS, (_NAN, _INF), {"zero_fraction": _zero_fraction, "nonfinite": _nonfinite})
SCALAR_SCHEMA: Final = Schema(("present", "bad", "value"), (1,))


def merge_stats(known: Floats, new: Floats) -> Floats:
    """Merge the stats [column, lane] of two parts; moments by Chan's formula, over the finite values."""
    merged = np.empty_like(known)
    merged[_ADDED, :] = known[_ADDED, :] + new[_ADDED, :]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        one = known[_COUNT] - known[_NAN] - known[_INF]
        two = new[_COUNT] - new[_NAN] - new[_INF]
        share = two / (one + two)  # NaN if neither part has a finite value, as are its moments
        delta = new[_MEAN] - known[_MEAN]
        own, other = np.sqrt(1 - share), np.sqrt(share)
        merged[_MEAN] = known[_MEAN] + delta * share
        within = np.hypot(known[_STD] * own, new[_STD] * other)  # hypot: squares of large values must not overflow
        merged[_STD] = np.hypot(within, delta * own * other)
        merged[_RMS] = np.hypot(known[_RMS] * own, new[_RMS] * other)
        merged[_NORM] = np.hypot(known[_NORM], new[_NORM])
    moments = [_MEAN, _STD, _RMS, _NORM]
    for empty, other in ((one == 0, new), (two == 0, known)):  # a part without finite values has no moments to add
        if np.count_nonzero(empty):
            merged[np.ix_(moments, empty)] = other[np.ix_(moments, empty)]
    merged[_MIN] = np.fmin(known[_MIN], new[_MIN])
    merged[_MAX] = np.fmax(known[_MAX], new[_MAX])
    merged[_RATIO] = np.fmax(known[_RATIO], new[_RATIO])  # of two updates of one parameter, the larger one
    return merged


def merge_ranks(known: Floats, new: Floats) -> Floats:
    """Merge the stats of parts of a step in which ranks have parts of weights: an update is relative to all of them."""
    merged = merge_stats(known, new)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weights = np.hypot(known[_NORM] / known[_RATIO], new[_NORM] / new[_RATIO])
        ratio = np.where(merged[_NORM] == 0, 0.0, merged[_NORM] / weights)
    merged[_RATIO] = np.where(np.isnan(known[_RATIO]) | np.isnan(new[_RATIO]), merged[_RATIO], ratio)
    return merged


def later_wins(known: Floats, new: Floats) -> Floats:
    """Merge scalars: the later value of a step wins."""
    return new

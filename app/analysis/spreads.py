"""How far the ranks are apart: the least, the median, and the largest of their values, and the odd one out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.store import Store, TapList
from hookcore.store.together import RowsOf, rows_of_all

from .rankstores import OfRank

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
SpreadSort = Literal["model", "apart", "high", "low", "median"]
SORTS: Final[tuple[SpreadSort, ...]] = get_args(SpreadSort)
APART: Final = 2.0  # the odd one out is so many times as far from the median as every other rank


@dataclass(frozen=True, slots=True, eq=False)
class Spreads:
    """One for each column of a matrix of values [rank, column]."""

    low: Floats  # of the finite values; NaN if there is none
    median: Floats
    high: Floats
    odd: Integers  # the place of the rank that stands apart from all others; -1 if none does
    finite: Integers  # ranks with a finite value
    present: Integers  # ranks with a value

    @property
    def apart(self) -> Floats:
        """How far the largest and the least are apart, relative to the median; infinite if some rank isn't finite."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            apart = np.where(self.high == self.low, 0.0, (self.high - self.low) / np.abs(self.median))
        return np.where(self.finite < self.present, np.inf, apart)


def spreads_in(values: Floats) -> Spreads:
    """Return the spread of each column. NaN is no value, and an infinity stands for a value that isn't finite."""
    finite, present = np.isfinite(values), ~np.isnan(values)
    some = finite.any(axis=0)
    known = np.where(finite, values, np.nan)
    low, median, high = (np.full(values.shape[1], np.nan) for _ in range(3))
    if some.any():
        low[some], high[some] = np.nanmin(known[:, some], axis=0), np.nanmax(known[:, some], axis=0)
        median[some] = 2 * np.nanmedian(known[:, some] / 2, axis=0)  # the sum of two large values would be infinite
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.where(finite, np.abs(known - median), np.where(present, np.inf, -1.0))
    odd = np.full(values.shape[1], -1, np.int64)
    if len(values):
        most, rest = off.max(axis=0), np.sort(off, axis=0)[-2:][0]
        with np.errstate(invalid="ignore", over="ignore"):
            found = (most > 0) & (rest >= 0) & (most >= APART * rest) & (rest < np.inf)
        odd[found] = off.argmax(axis=0)[found]
    return Spreads(low, median, high, odd, finite.sum(axis=0), present.sum(axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """The values of all ranks of some taps in one step, and their spreads."""

    first_step: int  # another one than `step` if some value is the mean of merged steps
    step: int
    ranks: tuple[int, ...]
    taps: TapList  # of the run of all ranks; those that some rank has a value of
    values: Floats  # [rank, tap]
    spreads: Spreads

    def order(self, sort: SpreadSort) -> list[int]:
        """Return the places of the taps: in the model's order, or with the largest first."""
        if sort == "model":
            return list(range(len(self.taps.taps)))
        keys = getattr(self.spreads, sort)
        return [int(place) for place in np.argsort(-np.where(np.isnan(keys), -np.inf, keys), kind="stable")]


def layers_of(
    all_: Store,
    stores_at: Callable[[int], Sequence[OfRank]],
    wanted: TapList,
    stat: str,
    first: int | None,
    last: int | None,
) -> Layers | None:
    """Return the spread of one stat of taps over the ranks, in the newest of these steps that all ranks have sent.

    Of steps that are merged by now, values are means, and the answer has the first and the last of these steps.
    `all_` is the store of the run of all ranks, whose taps they are, and `stores_at` returns those of the ranks that a
    step is of. None if no such step was captured.
    """
    newest = all_.latest(first=first, last=last, wanted=wanted, merged=True)
    if not len(newest.steps):
        return None
    step = int(newest.steps.max())
    step = step if last is None else min(step, last)  # merged steps may end after those that are asked for
    ranks = stores_at(step)
    values, ends = np.full((len(ranks), len(wanted.taps)), np.nan), [(step, step)]
    asked = [_asked_of(each, wanted, stat, step) for each in ranks]
    for place, (each, rows) in enumerate(zip(ranks, rows_of_all([rows for _, rows in asked]), strict=True)):
        if len(rows.first):
            mean = np.where(rows.nonfinite[-1] > 0, np.inf, rows.mean[-1])
            values[place, asked[place][0]] = np.where(rows.present[-1] > 0, mean, np.nan)
            ends.append((int(rows.first[-1]) + each.shift, int(rows.last[-1]) + each.shift))
    some = np.flatnonzero(~np.isnan(values).all(axis=0)) if len(ranks) else np.empty(0, np.intp)
    values = values[:, some]
    begin, end = min(begin for begin, _ in ends), max(end for _, end in ends)
    numbers = tuple(each.rank for each in ranks)
    return Layers(begin, end, numbers, wanted.at(some.tolist()), values, spreads_in(values))


def _asked_of(each: OfRank, wanted: TapList, stat: str, step: int) -> tuple[NDArray[np.bool_], RowsOf]:
    """Return which of the taps a rank has, and what to ask its store."""
    numbers = np.full(int(wanted.numbers.max(initial=-1)) + 1, -1, np.int64)
    fit = each.lanes < len(numbers)
    numbers[each.lanes[fit]] = np.flatnonzero(fit)
    found = numbers[wanted.numbers]
    here = found >= 0
    return here, RowsOf(each.store, found[here], stat, (step - each.shift, step - each.shift))


def spreads_of(found: Layers, places: Sequence[int]) -> tuple[answers.LayerSpread, ...]:
    spreads, apart = found.spreads, found.spreads.apart
    shown = []
    for place in places:
        odd = int(spreads.odd[place])
        each = answers.LayerSpread(
            tap=answers.Tap.of(int(found.taps.numbers[place]), found.taps.taps[place]),
            low=Number(spreads.low[place]),
            median=Number(spreads.median[place]),
            high=Number(spreads.high[place]),
            apart=Number(apart[place]),
            odd=None if odd < 0 else found.ranks[odd],
            odd_value=Number("nan" if odd < 0 else found.values[odd, place]),
            finite=int(spreads.finite[place]),
            present=int(spreads.present[place]),
        )
        shown.append(each)
    return tuple(shown)

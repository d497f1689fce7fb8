"""A value by rank and span of steps, and how far the ranks are apart in one of them. Pure; no web."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.reading.answers import Number, RankSpread
from hookcore.records import Tap
from hookcore.store.deep import MAX_ROWS
from hookcore.store.rows import Rows
from hookcore.store.together import RowsOf, rows_of_all

from .rankstores import OfRank
from .spreads import spreads_in

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
ROWS_PER_COLUMN: Final = 4  # at least, of a rank, since a merged row counts in one column only


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """Values by rank and column."""

    ranks: tuple[int, ...]
    first: Steps
    last: Steps
    values: Floats

    def spread(self, column: int) -> RankSpread | None:
        """Return the spread of a column; None if no rank has a value."""
        found = spreads_in(self.values[:, column : column + 1])
        if not found.finite[0]:
            return None
        odd = None if found.odd[0] < 0 else self.ranks[int(found.odd[0])]
        low, median, high = (Number(each[0]) for each in (found.low, found.median, found.high))
        return RankSpread(int(self.first[column]), int(self.last[column]), low, median, high, odd, int(found.finite[0]))

    def newest(self) -> RankSpread | None:
        """Return the spread of the last column in which as many ranks have a value as in any other near the end."""
        counts = (~np.isnan(self.values)).sum(axis=0)
        if not len(counts) or not counts.max():
            return None
        most = counts[-8:].max()
        return self.spread(int(np.flatnonzero(counts[-8:] == most)[-1]) + max(0, len(counts) - 8))


def map_of(
    ranks: Sequence[OfRank], what: Tap | str, stat: str, first: int | None, last: int | None, columns: int
) -> Map:
    """Return the mean of a tap's stat, or of a logged value, by rank and equal spans of steps."""
    asked = [(each, one) for each in ranks if (one := _asked_of(each, what, stat, first, last)) is not None]
    if not asked:
        name = what if isinstance(what, str) else what.label
        raise ArgumentError(f"no rank has {name!r}: name a tap or a logged value that some rank captured")
    answers = rows_of_all([one for _, one in asked], max(MAX_ROWS, ROWS_PER_COLUMN * columns))
    rows = [
        (each, replace(found, first=found.first + each.shift, last=found.last + each.shift))
        for (each, _), found in zip(asked, answers, strict=True)
    ]
    known = [(found.first, found.last) for _, found in rows if len(found.first)]
    begin = min((int(starts[0]) for starts, _ in known), default=0) if first is None else first
    end = max((int(ends[-1]) for _, ends in known), default=0) if last is None else last
    width = max(1, -(-(end - begin + 1) // columns))
    many = (end - begin) // width + 1 if known else 0
    starts = begin + width * np.arange(many, dtype=np.int64)
    numbers = sorted({each.rank for each in ranks})
    values = np.full((len(numbers), many), np.nan)
    for each, found in rows:  # of a rank that was restarted, there are several
        binned = _binned(found, begin, width, many)
        place = numbers.index(each.rank)
        values[place] = np.where(np.isnan(binned), values[place], binned)
    ends = np.minimum(starts + width - 1, end)
    return Map(tuple(numbers), starts, ends, values)


def _asked_of(each: OfRank, what: Tap | str, stat: str, first: int | None, last: int | None) -> RowsOf | None:
    """Return what to ask the store of a rank; None if it doesn't have that."""
    store, shift = each.store, each.shift
    span = None if first is None else first - shift, None if last is None else last - shift
    if isinstance(what, str):
        return RowsOf(store, what, span=span) if what in store.scalar_names() else None
    try:
        number = store.find_tap(what)[0]
    except ArgumentError:
        return None
    return RowsOf(store, np.array([number], np.int64), stat, span)


def _binned(rows: Rows, begin: int, width: int, columns: int) -> Floats:
    """Return the mean of each column: NaN without a value, infinite if none is finite.

    A merged row counts in the column of its middle.
    """
    place = ((rows.first + rows.last) // 2 - begin) // width
    inside = (place >= 0) & (place < columns) & (rows.present[:, 0] > 0)
    place, mean = place[inside], rows.mean[inside, 0]
    weight = np.where(np.isfinite(mean), rows.finite[inside, 0], 0).astype(np.float64)
    total = np.bincount(place, weight, columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.bincount(place, np.nan_to_num(mean, nan=0.0, posinf=0.0, neginf=0.0) * weight, columns) / total
    bad = np.bincount(place, rows.nonfinite[inside, 0].astype(np.float64), columns) > 0
    found[bad & (total == 0)] = np.inf
    return found

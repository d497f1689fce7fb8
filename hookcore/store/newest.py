"""The newest values: of the whole run, or in some steps, whose rows may be merged by now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import Tap
from hookcore.store import checks
from hookcore.store.answers import Latest, TapList
from hookcore.store.deep import Deep
from hookcore.store.past import Span
from hookcore.store.rows import overlap
from hookcore.store.segments import STAT_SCHEMA, Floats, MergedRows, Steps

STAT_NAMES: Final = STAT_SCHEMA.names  # the recorded and the derived ones: zero_fraction, nonfinite
Places = NDArray[np.intp]
_COUNTED: Final = tuple(STAT_NAMES.index(name) for name in ("nan", "inf", "nonfinite"))


@dataclass(frozen=True, slots=True)
class _Found:
    """The newest rows of some taps, each of steps from `begin` to `end`. `read` returns a stat of those at places."""

    numbers: Steps
    begin: Steps
    end: Steps
    read: Callable[[str, Places], Floats]

    def arranged(
        self, taps: Sequence[Tap], wanted: TapList, stat: str | None, sort: str | None, limit: int | None
    ) -> Latest:
        """Return one stat or all, sorted, of the first taps. `taps` are those of the run."""
        order = np.arange(len(self.numbers))
        if sort:
            order = _order(self.read(sort.removeprefix("-"), order), sort.startswith("-"))
        order = order[:limit]
        numbers = self.numbers[order]
        shown = wanted.taps if np.array_equal(numbers, wanted.numbers) else tuple(taps[number] for number in numbers)
        chosen = STAT_NAMES if stat is None else (stat,)
        values = np.stack([self.read(name, order) for name in chosen], axis=1)
        return Latest(chosen, numbers, shown, self.end[order], values, self.begin[order], len(self.numbers))


class Newest(Deep):
    """Reads the newest values, from any thread. `first` and `last` are inclusive steps; None means no bound."""

    def latest(
        self,
        kind: str | None = None,
        stat: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
        first: int | None = None,
        last: int | None = None,
        wanted: TapList | None = None,
        *,
        merged: bool = False,
    ) -> Latest:
        """Return the newest values of every tap; `sort` is a stat, largest and non-finite first ("-norm": smallest).

        With bounds, return the taps seen in these steps; with `merged`, also those whose steps are merged by now: then
        stats are means, and counts of non-finite values are the largest of a step. `wanted` names the taps and skips
        the search by kind.
        """
        require_stats(stat, sort)
        wanted = self.taps(None, kind) if wanted is None else wanted
        steps, stored = self._latest((first, last))
        numbers = wanted.numbers[wanted.numbers < len(steps)]
        numbers = numbers[steps[numbers] >= 0]
        found = _Found(numbers, steps[numbers], steps[numbers], partial(_column_of, stored, numbers))
        if merged and (first, last) != (None, None):
            found = self._with_merged(found, wanted, (first, last))
        return found.arranged(self._parts.taps, wanted, stat, sort, limit)

    def _with_merged(self, exact: _Found, wanted: TapList, span: Span) -> _Found:
        """Add the taps that only merged rows have in these steps."""
        lanes = wanted.numbers[~np.isin(wanted.numbers, exact.numbers)]
        parts = self._parts.stats.merged(*span) if len(lanes) and not self._has_past(span) else ()
        if not len(parts):
            return exact
        begin, end, means = _newest_merged(parts, *span, lanes)
        found = np.flatnonzero(end >= 0)
        numbers = np.concatenate([exact.numbers, lanes[found]])
        order = np.argsort(numbers)

        def read(name: str, places: Places) -> Floats:
            values = exact.read(name, np.arange(len(exact.numbers)))
            return np.concatenate([values, means[STAT_NAMES.index(name), found]])[order][places]

        begin, end = (np.concatenate(each)[order] for each in ((exact.begin, begin[found]), (exact.end, end[found])))
        return _Found(numbers[order], begin, end, read)

    def captured_rows(self, first: int | None = None, last: int | None = None) -> tuple[Steps, Steps]:
        """Return the steps in which tensors were captured, oldest first: the first and the last step of each row.

        They are the same for a step that is still exact.
        """
        return self._rows_between((first, last))


def require_stats(stat: str | None, sort: str | None) -> None:
    """Raise ArgumentError if one of these isn't a stat; `sort` may begin with a minus."""
    for given in (stat, sort.removeprefix("-") if sort else None):
        if given is not None:
            checks.require("stat", given, STAT_NAMES)


def _column_of(stored: Floats, numbers: Steps, name: str, places: Places) -> Floats:
    lanes = numbers[places]
    if name in STAT_SCHEMA.derived:
        return STAT_SCHEMA.derived[name](lambda column: stored[column, lanes])
    values: Floats = stored[STAT_NAMES.index(name), lanes]
    return values


def _order(values: NDArray[np.float64], smallest_first: bool) -> NDArray[np.intp]:
    keys = values if smallest_first else -values
    return np.argsort(np.where(np.isfinite(values), keys, -np.inf), kind="stable")


def _newest_merged(
    parts: Sequence[MergedRows], first: int | None, last: int | None, lanes: NDArray[np.int64]
) -> tuple[Steps, Steps, Floats]:
    """Return the newest merged row of each lane that overlaps the steps: its ends (-1 if there is none), [name, lane].

    Values are means over the row's steps; of counts of non-finite values, the largest.
    """
    begin, end = np.full((2, len(lanes)), -1, np.int64)
    values = np.full((len(parts[0].mean) if parts else 0, len(lanes)), np.nan)
    for part in reversed(parts):
        rows = overlap(part.first, part.last, first, last)
        wanted = np.flatnonzero((end < 0) & (lanes < part.lanes))
        present = part.present[rows][:, lanes[wanted]] > 0
        found = np.flatnonzero(present.any(axis=0)) if len(present) else np.empty(0, np.intp)
        if not len(found):
            continue
        row = rows.stop - 1 - present[::-1][:, found].argmax(axis=0)  # the newest one of each lane
        found = wanted[found]
        begin[found], end[found] = part.first[row], part.last[row]
        values[:, found] = part.mean[:, row, lanes[found]]
        for column in _COUNTED:
            values[column, found] = part.high[column, row, lanes[found]]
        if (end >= 0).all():
            break
    return begin, end, values

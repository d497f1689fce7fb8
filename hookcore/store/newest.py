"""The newest values: of the whole run, or in some steps, whose rows may be merged by now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.store import checks
from hookcore.store.answers import Latest, TapList
from hookcore.store.deep import Deep
from hookcore.store.rows import overlap
from hookcore.store.schemas import STAT_SCHEMA
from hookcore.store.segments import Floats, MergedRows, Steps

STAT_NAMES: Final = STAT_SCHEMA.names  # the recorded and the derived ones: zero_fraction, nonfinite
_COUNTED: Final = tuple(STAT_NAMES.index(name) for name in ("nan", "inf", "nonfinite"))


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
    ) -> Latest:
        """Return the newest values of every tap; `sort` is a stat, largest and non-finite first ("-norm": smallest).

        With bounds, return the taps seen in these steps. `wanted` names the taps and skips the search by kind.
        """
        require_stats(stat, sort)
        wanted = self.taps(None, kind) if wanted is None else wanted
        steps, stored = self._latest((first, last))
        numbers = wanted.numbers[wanted.numbers < len(steps)]
        numbers = numbers[steps[numbers] >= 0]
        if sort:
            keys = _column_of(stored, sort.removeprefix("-"), numbers)
            numbers = numbers[_order(keys, sort.startswith("-"))]
        total, numbers = len(numbers), numbers[:limit]
        chosen = STAT_NAMES if stat is None else (stat,)
        values = np.stack([_column_of(stored, name, numbers) for name in chosen], axis=1)
        whole = len(numbers) == len(wanted.taps) and not sort
        taps = wanted.taps if whole else tuple(self._parts.taps[number] for number in numbers)
        return Latest(chosen, numbers, taps, steps[numbers], values, steps[numbers], total)

    def newest(
        self,
        kind: str | None = None,
        stat: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
        first: int | None = None,
        last: int | None = None,
        wanted: TapList | None = None,
    ) -> Latest:
        """Return the newest values of every tap in these steps, as `latest` does, and also those of merged steps.

        Of merged steps, stats are means, and counts of non-finite values are the largest of a step.
        """
        if first is None and last is None:
            return self.latest(kind, stat, sort, limit, wanted=wanted)
        require_stats(stat, sort)
        return _arranged(self._newest(kind, first, last, wanted), stat, sort, limit)

    def _newest(self, kind: str | None, first: int | None, last: int | None, wanted: TapList | None) -> Latest:
        wanted = self.taps(None, kind) if wanted is None else wanted
        exact = self.latest(first=first, last=last, wanted=wanted)
        lanes = wanted.numbers[~np.isin(wanted.numbers, exact.numbers)]
        parts = self._parts.stats.merged(first, last) if len(lanes) and not self._has_past((first, last)) else ()
        if not len(parts):
            return exact
        begin, end, values = _newest_merged(parts, first, last, lanes)
        found = np.flatnonzero(end >= 0)
        if not len(found):
            return exact
        numbers = np.concatenate([exact.numbers, lanes[found]])
        order = np.argsort(numbers)
        return Latest(
            exact.stats,
            numbers[order],
            tuple(self._parts.taps[number] for number in numbers[order]),
            np.concatenate([exact.steps, end[found]])[order],
            np.concatenate([exact.values, values[:, found].T])[order],
            np.concatenate([exact.first_steps, begin[found]])[order],
            len(numbers),
        )

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


def _column_of(stored: Floats, name: str, numbers: NDArray[np.int64]) -> Floats:
    if name in STAT_SCHEMA.derived:
        return STAT_SCHEMA.derived[name](lambda column: stored[column, numbers])
    values: Floats = stored[STAT_NAMES.index(name), numbers]
    return values


def _arranged(found: Latest, stat: str | None, sort: str | None, limit: int | None) -> Latest:
    """Return one stat or all, sorted, of the first taps."""
    order = np.arange(len(found.numbers))
    if sort:
        order = _order(found.values[:, STAT_NAMES.index(sort.removeprefix("-"))], sort.startswith("-"))
    order = order[:limit]
    columns = slice(None) if stat is None else slice(STAT_NAMES.index(stat), STAT_NAMES.index(stat) + 1)
    return Latest(
        found.stats[columns],
        found.numbers[order],
        tuple(found.taps[place] for place in order),
        found.steps[order],
        found.values[order][:, columns],
        found.first_steps[order],
        found.total,
    )


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

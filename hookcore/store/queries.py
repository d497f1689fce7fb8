"""The queries of a store. Everything is down-sampled here to the requested size, and keeps its extremes."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hookcore.errors import ArgumentError
from hookcore.incidents import Incident
from hookcore.records import GRADIENT_KINDS, PROBE
from hookcore.records.sketch import MAX_EXPONENT
from hookcore.records.vocabulary import GRAD_SCALE
from hookcore.store import checks
from hookcore.store.answers import Channels, Heatmap, Histograms, Latest, Quantiles, Series, TapList
from hookcore.store.contents import Contents, TapName
from hookcore.store.distributions import MIN_BINS, histograms_of, quantiles_of
from hookcore.store.heatmap import Cells, Columns, Streaks, columns_over
from hookcore.store.ladder import Ladder
from hookcore.store.ledger import NonfiniteTaps
from hookcore.store.peaks import Peaks
from hookcore.store.rows import Rows, down_sample
from hookcore.store.schemas import SCALAR_SCHEMA, STAT_SCHEMA
from hookcore.store.segments import Floats, Lanes, Steps

STAT_NAMES: Final = STAT_SCHEMA.names  # the recorded and the derived ones: zero_fraction, nonfinite
_VALUE: Final = SCALAR_SCHEMA.columns.index("value")


class Queries(Contents):
    """Reads a store's state, from any thread. `first` and `last` are inclusive steps; None means no bound."""

    def series(
        self, tap: TapName, stat: str, first: int | None = None, last: int | None = None, points: int = 1000
    ) -> Series:
        """Return one stat of one tap in at most `points` points."""
        checks.require("stat", stat, STAT_NAMES)
        number = self.find_tap(tap)[0]
        return _series(self._parts.stats, stat, number, STAT_NAMES.index(stat), number, (first, last, points))

    def rows(self, numbers: NDArray[np.int64], stat: str, first: int | None = None, last: int | None = None) -> Rows:
        """Return one stat of some taps [row, tap] without down-sampling; `present` is 0 for uncaptured taps."""
        checks.require("stat", stat, STAT_NAMES)
        parts = self._parts.stats.gather(STAT_NAMES.index(stat), _lanes(numbers), first, last) if len(numbers) else []
        if not parts:
            return Rows.empty(len(numbers))
        return Rows.stack(parts)

    def peaks(self, numbers: NDArray[np.int64], stat: str, width: int, first: int, last: int) -> Peaks:
        """Return the largest value of one stat of taps in columns of `width` steps. Unlike `rows`, it copies little."""
        checks.require("stat", stat, STAT_NAMES)
        known = self._parts.ledger.taps()  # most runs have no non-finite value, so there is nothing to read about them
        suspects = np.flatnonzero(np.isin(numbers, known.numbers[known.last_step >= first]))
        found = Peaks.make((first, last), width, numbers.astype(np.intp), _lanes(numbers), suspects)
        return self._parts.stats.peaks(STAT_NAMES.index(stat), found)

    def scalars(self, name: str, first: int | None = None, last: int | None = None, points: int = 1000) -> Series:
        """Return one scalar in at most `points` points."""
        lane = self._parts.scalar_lanes.get(name)
        if lane is None:
            raise ArgumentError(checks.unknown("scalar", name, self.scalar_names()))
        return _series(self._parts.scalars, name, None, _VALUE, lane, (first, last, points))

    def scalar_names(self) -> list[str]:
        """Return the names of logged scalars, and of hookcore's own, which start with "hookcore/"."""
        return self._parts.scalar_lanes.names()

    def heatmap(
        self,
        kind: str,
        stat: str,
        match: str | None = None,
        first: int | None = None,
        last: int | None = None,
        columns: int = 500,
        rows: int | None = None,
        wanted: TapList | None = None,
    ) -> Heatmap:
        """Return the worst value of each tap of a kind over time, in at most `columns` by `rows` cells.

        Callers that ask for the same taps again and again pass them as `wanted`, which skips the search.
        """
        checks.require("stat", stat, STAT_NAMES)
        checks.require_at_least("columns", columns, 1)
        checks.require_at_least("rows", 1 if rows is None else rows, 1)
        wanted = self.taps(match, kind) if wanted is None else wanted
        if not len(wanted.taps):
            return _empty_heatmap(stat)
        parts = self._parts.stats.gather(STAT_NAMES.index(stat), _lanes(wanted.numbers), first, last)
        over = columns_over(parts, first, last, columns)
        if over is None:
            return _empty_heatmap(stat)
        cells = Cells.make(over.number, len(wanted.taps))
        streaks = self._streaks_of(wanted.numbers)
        for part in parts:
            cells.add(over, part, streaks)
        cells, starts = cells.group(rows or len(wanted.taps))
        groups = np.diff(np.append(starts, len(wanted.taps)))
        shown = tuple(wanted.taps[start] for start in starts)
        return Heatmap(
            stat,
            wanted.numbers[starts],
            shown,
            groups,
            over.first_steps(),
            over.last_steps(),
            cells.worst().T,
            cells.nonfinite.T,
            cells.present.T,
            self._infinite(wanted, over, cells, (first, last)).T,
        )

    def _streaks_of(self, numbers: NDArray[np.int64]) -> Streaks:
        """Return the first and the newest streak of non-finite steps of taps. No others are known exactly."""
        known = self._parts.ledger.taps()
        place = np.searchsorted(known.numbers, numbers)
        place[place == len(known.numbers)] = 0
        first, last = np.zeros((2, len(numbers)), np.int64), np.full((2, len(numbers)), -1, np.int64)
        found = np.flatnonzero(known.numbers[place] == numbers) if len(known.numbers) else np.empty(0, np.intp)
        at = place[found]
        first[0, found], last[0, found] = known.first_step[at], known.first_until[at]
        several = known.streaks[at] > 1
        first[1, found[several]], last[1, found[several]] = known.since[at[several]], known.last_step[at[several]]
        return Streaks(first, last)

    def _infinite(
        self, wanted: TapList, over: Columns, cells: Cells, bounds: tuple[int | None, int | None]
    ) -> NDArray[np.bool_]:
        """Return the cells that are non-finite but had no NaN."""
        infinite = cells.nonfinite > 0
        if infinite.any():
            nans = Cells.make(over.number, len(wanted.taps))
            for part in self._parts.stats.gather(STAT_NAMES.index("nan"), _lanes(wanted.numbers), *bounds):
                nans.add(over, part, self._streaks_of(wanted.numbers))
            infinite &= ~(nans.group(cells.low.shape[1])[0].high > 0)
        return infinite

    def histograms(
        self, tap: TapName, first: int | None = None, last: int | None = None, columns: int = 200, bins: int = 80
    ) -> Histograms:
        """Return the distribution of a tap over time, in at most `columns` by `bins`; counts are exact sums."""
        checks.require_at_least("columns", columns, 1)
        checks.require_at_least("bins", bins, MIN_BINS)
        number = self.find_tap(tap)[0]
        entries = self._parts.sketches.entries(first, last)
        return histograms_of(entries, number, columns, bins, lambda begin, end: self._bounds_of(number, begin, end))

    def channels(
        self, tap: TapName, first: int | None = None, last: int | None = None, columns: int = 240, rows: int = 512
    ) -> Channels:
        """Return the numbers of a probe in their order over time; in a cell, the largest value wins, or NaN."""
        checks.require_at_least("columns", columns, 1)
        checks.require_at_least("rows", rows, 1)
        return self._parts.channels.read(self.find_tap(tap)[1], first, last, columns, rows)

    def channel_taps(self, match: str | None = None) -> TapList:
        """Return the taps whose numbers are kept in their order, of modules that match a pattern."""
        kept = set(self._parts.channels.taps())
        found = self.taps(match, PROBE)
        return found.at([place for place, tap in enumerate(found.taps) if tap in kept])

    def quantiles(
        self, tap: TapName, qs: ArrayLike, first: int | None = None, last: int | None = None, points: int = 1000
    ) -> Quantiles:
        """Return quantiles of a tap over time in at most `points` points: within 6 %, or NaN if unknown."""
        checks.require_at_least("points", points, 1)
        number = self.find_tap(tap)[0]
        entries = self._parts.sketches.entries(first, last)
        return quantiles_of(entries, number, qs, points, lambda begin, end: self._bounds_of(number, begin, end))

    def _bounds_of(self, number: int, first: Steps, last: Steps) -> list[tuple[float, float, float]]:
        """Return a tap's extremes in spans of steps, and the magnitude where its sketches end, unscaled."""
        numbers, span = np.array([number], np.int64), (int(first[0]), int(last[-1]))
        least, most = (self.rows(numbers, stat, *span) for stat in ("min", "max"))
        lane = self._parts.scalar_lanes.get(GRAD_SCALE) if self._parts.taps[number].kind in GRADIENT_KINDS else None
        scales = [] if lane is None else self._parts.scalars.gather(_VALUE, slice(lane, lane + 1), *span)
        scale = Rows.join(scales)
        found = []
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            divisor = np.fmax.reduce(scale.high[_within(scale, begin, end), 0], initial=1.0)
            inside = _within(least, begin, end)
            if ((least.first < begin) | (least.last > end))[inside].any():
                inside[:] = False  # merged rows reach further, so these are not the extremes of this span
            minimum = np.fmin.reduce(least.low[inside, 0], initial=np.nan)
            maximum = np.fmax.reduce(most.high[inside, 0], initial=np.nan)
            found.append((float(minimum), float(maximum), 2.0**MAX_EXPONENT / float(divisor)))
        return found

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
        for given in (stat, sort.removeprefix("-") if sort else None):
            if given is not None:
                checks.require("stat", given, STAT_NAMES)
        wanted = self.taps(None, kind) if wanted is None else wanted
        steps, stored = self._parts.stats.latest(first, last)
        numbers = wanted.numbers[wanted.numbers < len(steps)]
        numbers = numbers[steps[numbers] >= 0]
        if sort:
            keys = _column_of(stored, sort.removeprefix("-"), numbers)
            numbers = numbers[_order(keys, sort.startswith("-"))]
        numbers = numbers[:limit]
        chosen = STAT_NAMES if stat is None else (stat,)
        values = np.stack([_column_of(stored, name, numbers) for name in chosen], axis=1)
        whole = len(numbers) == len(wanted.taps) and not sort
        taps = wanted.taps if whole else tuple(self._parts.taps[number] for number in numbers)
        return Latest(chosen, numbers, taps, steps[numbers], values)

    def nonfinite_taps(self) -> NonfiniteTaps:
        """Return the exact record of every tap that was ever non-finite."""
        return self._parts.ledger.taps()

    def masks(self) -> dict[int, int]:
        """Return the taps whose infinities do no harm, and the first step of each."""
        return dict(self._parts.incidents.masks.since)

    def nonfinite_since(self, name: str) -> int | None:
        """Return the exact step since which a scalar is NaN or infinite; None if its newest value is finite."""
        lane, known = self._parts.scalar_lanes.get(name), self._parts.scalar_ledger.taps()
        at = np.flatnonzero((known.numbers == lane) & ~known.is_over)
        return int(known.since[at[0]]) if len(at) else None

    def incidents(self) -> list[Incident]:
        """Return the first and the newest incidents, oldest first. The usage counts the others."""
        return self._parts.incidents.all()

    def incident_heads(self) -> list[Incident]:
        """Return the same incidents without their chains and evidence, which is faster."""
        return self._parts.incidents.heads()

    @property
    def dropped_alerts(self) -> int:
        """The number of dropped incidents that were warnings or errors."""
        return self._parts.incidents.dropped_alerts

    @property
    def incidents_version(self) -> int:
        """A number that changes with every change of an incident."""
        return self._parts.incidents.version

    def captured(self, first: int | None = None) -> int:
        """Return how many steps were captured, of the whole run or from `first` on (of the newest 1,024)."""
        return self._parts.ledger.captured(first)

    def captured_step(self, back: int) -> int | None:
        """Return the captured step `back` steps before the newest one, or the oldest of the newest 1,024."""
        return self._parts.ledger.captured_step(back)


def _within(rows: Rows, first: int, last: int) -> NDArray[np.bool_]:
    """Return which rows have a step between first and last."""
    inside: NDArray[np.bool_] = (rows.last >= first) & (rows.first <= last)
    return inside


def _series(
    ladder: Ladder, name: str, tap: int | None, column: int, lane: int, bounds: tuple[int | None, int | None, int]
) -> Series:
    first, last, points = bounds
    checks.require_at_least("points", points, 1)
    rows = down_sample(Rows.join(ladder.gather(column, slice(lane, lane + 1), first, last)), points)
    values = rows.mean[:, 0], rows.low[:, 0], rows.high[:, 0]
    return Series(name, tap, rows.first, rows.last, *values, rows.present[:, 0], rows.nonfinite[:, 0])


def _column_of(stored: Floats, name: str, numbers: NDArray[np.int64]) -> Floats:
    if name in STAT_SCHEMA.derived:
        return STAT_SCHEMA.derived[name](lambda column: stored[column, numbers])
    values: Floats = stored[STAT_NAMES.index(name), numbers]
    return values


def _lanes(numbers: NDArray[np.int64]) -> Lanes:
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers.astype(np.intp)


def _order(values: NDArray[np.float64], smallest_first: bool) -> NDArray[np.intp]:
    keys = values if smallest_first else -values
    return np.argsort(np.where(np.isfinite(values), keys, -np.inf), kind="stable")


def _empty_heatmap(stat: str) -> Heatmap:
    none = np.empty(0, np.int64)
    counts = np.empty((0, 0), np.uint32)
    return Heatmap(stat, none, (), none, none, none, np.empty((0, 0)), counts, counts, np.empty((0, 0), bool))

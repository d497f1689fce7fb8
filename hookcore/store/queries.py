"""The queries of a store. Everything is down-sampled here to the requested size, and keeps its extremes."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hookcore.errors import ArgumentError
from hookcore.records import GRADIENT_KINDS, PROBE
from hookcore.records.sketch import MAX_EXPONENT
from hookcore.records.vocabulary import GRAD_SCALE
from hookcore.store import checks
from hookcore.store.answers import Channels, Heatmap, Histograms, Quantiles, Series, TapList
from hookcore.store.contents import TapName
from hookcore.store.deep import Source
from hookcore.store.incidents import Incident
from hookcore.store.ladder import Peaks
from hookcore.store.ledger import NonfiniteTaps
from hookcore.store.newest import STAT_NAMES, Newest
from hookcore.store.past import Span
from hookcore.store.rows import Rows, Streaks, columns_over, down_sample, norm_of
from hookcore.store.segments import SCALAR_SCHEMA, Steps, lanes_of
from hookcore.store.sketches import MIN_BINS, histograms_of, quantiles_of
from hookcore.store.unlike import Sample

MAX_CELLS: Final = 2**23  # of a heatmap, before neighboring taps share a row: 24 bytes each
_VALUE: Final = SCALAR_SCHEMA.columns.index("value")


class Queries(Newest):
    """Reads a store's state, from any thread. `first` and `last` are inclusive steps; None means no bound."""

    def series(
        self, tap: TapName, stat: str, first: int | None = None, last: int | None = None, points: int = 1000
    ) -> Series:
        """Return one stat of one tap in at most `points` points."""
        checks.require("stat", stat, STAT_NAMES)
        number = self.find_tap(tap)[0]
        return self._series(stat, number, self.source_of_taps(stat, np.array([number])), (first, last), points)

    def norm(
        self, numbers: NDArray[np.int64], first: int | None = None, last: int | None = None, points: int = 1000
    ) -> Series:
        """Return the norm of all values of some taps together, of those that each step captured."""
        checks.require_at_least("points", points, 1)
        parts = (
            self._parts.stats.gather(STAT_NAMES.index("norm"), lanes_of(numbers), first, last) if len(numbers) else []
        )
        return _series_of("norm", None, [norm_of(part) for part in parts], points)

    def rows(self, numbers: NDArray[np.int64], stat: str, first: int | None = None, last: int | None = None) -> Rows:
        """Return one stat of some taps [row, tap] without down-sampling; `present` is 0 for uncaptured taps."""
        checks.require("stat", stat, STAT_NAMES)
        parts = self._gather(self.source_of_taps(stat, numbers), (first, last)) if len(numbers) else []
        if not parts:
            return Rows.empty(len(numbers))
        return Rows.stack(parts)

    def peaks(self, numbers: NDArray[np.int64], stat: str, width: int, first: int, last: int) -> Peaks:
        """Return the largest value of one stat of taps in columns of `width` steps. Unlike `rows`, it copies little."""
        checks.require("stat", stat, STAT_NAMES)
        known = self._parts.ledger.taps()  # most runs have no non-finite value, so there is nothing to read about them
        suspects = np.flatnonzero(np.isin(numbers, known.numbers[known.last_step >= first]))
        found = Peaks.make((first, last), width, numbers.astype(np.intp), lanes_of(numbers), suspects)
        return self._parts.stats.peaks(STAT_NAMES.index(stat), found)

    def scalars(self, name: str, first: int | None = None, last: int | None = None, points: int = 1000) -> Series:
        """Return one scalar in at most `points` points."""
        return self._series(name, None, self.source_of_scalar(name), (first, last), points)

    def scalar_names(self) -> list[str]:
        """Return the names of logged scalars, and of hookcore's own, which start with "hookcore/"."""
        return [*self._parts.scalars.lanes.names(), *self._parts.system.lanes.names()]

    def source_of_scalar(self, name: str) -> Source:
        """Return where a scalar is."""
        log = self._parts.log_of(name)
        lane = log.lanes.get(name)
        if lane is None:
            raise ArgumentError(checks.unknown("scalar", name, self.scalar_names()))
        return Source(log.ladder, _VALUE, slice(lane, lane + 1), "mean", (name,))

    def source_of_taps(self, stat: str, numbers: NDArray[np.int64]) -> Source:
        """Return where a stat of taps is."""
        return Source(self._parts.stats, STAT_NAMES.index(stat), lanes_of(numbers), stat, tuple(numbers.tolist()))

    def _series(self, name: str, tap: int | None, source: Source, span: Span, points: int) -> Series:
        checks.require_at_least("points", points, 1)
        return _series_of(name, tap, self._gather(source, span, points), points)

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

        Callers that ask for the same taps again and again pass them as `wanted`, which skips the search. Very many taps
        get fewer columns, so that the memory is bounded.
        """
        checks.require("stat", stat, STAT_NAMES)
        checks.require_at_least("columns", columns, 1)
        checks.require_at_least("rows", 1 if rows is None else rows, 1)
        wanted = self.taps(match, kind) if wanted is None else wanted
        if not len(wanted.taps):
            return _empty_heatmap(stat)
        columns = max(1, min(columns, MAX_CELLS // len(wanted.taps)))
        span, streaks = (first, last), self._streaks_of(wanted.numbers)
        view = self._view(self.source_of_taps(stat, wanted.numbers), span)
        over = columns_over(view.kept, *span, columns, view.past)
        if over is None:
            return _empty_heatmap(stat)
        cells, starts = self._cells(stat, wanted, over, view, streaks).group(rows or len(wanted.taps))
        infinite = cells.nonfinite > 0
        if infinite.any():
            view = self._view(self.source_of_taps("nan", wanted.numbers), span)
            infinite &= ~(self._cells("nan", wanted, over, view, streaks).group(len(starts))[0].high > 0)
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
            cells.valued().T,
            infinite.T,
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

    def histograms(
        self, tap: TapName, first: int | None = None, last: int | None = None, columns: int = 200, bins: int = 80
    ) -> Histograms:
        """Return the distribution of a tap over time, in at most `columns` by `bins`; counts are exact sums."""
        checks.require_at_least("columns", columns, 1)
        checks.require_at_least("bins", bins, MIN_BINS)
        number = self.find_tap(tap)[0]
        entries = self._entries(number, (first, last), columns)
        return histograms_of(entries, number, columns, bins, lambda begin, end: self._bounds_of(number, begin, end))

    def sample(self, first: int | None = None, last: int | None = None, but: Sample | None = None) -> Sample:
        """Return the sketches of all taps in some steps, except for those of another sample of this run.

        Sums of older steps are in it if they overlap the steps.
        """
        if but is None or but.first is None or but.last is None:
            return Sample(tuple(self._all_entries((first, last))))
        before = first, min(but.first - 1, but.first - 1 if last is None else last)
        after = max(but.last + 1, first or 0), last
        entries = self._all_entries(before) if before[1] >= (first or 0) else []
        entries += self._all_entries(after) if last is None or last >= after[0] else []
        return Sample(tuple(each for each in entries if each.last < but.first or each.first > but.last))

    def scalar_rows(self, name: str) -> Rows:
        """Return the rows of one scalar over the whole run."""
        return Rows.join(self._gather(self.source_of_scalar(name), (None, None)))

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
        entries = self._entries(number, (first, last), points)
        return quantiles_of(entries, number, qs, points, lambda begin, end: self._bounds_of(number, begin, end))

    def _bounds_of(self, number: int, first: Steps, last: Steps) -> list[tuple[float, float, float]]:
        """Return a tap's extremes in spans of steps, and the magnitude where its sketches end, unscaled."""
        numbers, span = np.array([number], np.int64), (int(first[0]), int(last[-1]))
        least, most = (self.rows(numbers, stat, *span) for stat in ("min", "max"))
        is_scaled = self._parts.taps[number].kind in GRADIENT_KINDS and GRAD_SCALE in self.scalar_names()
        scale = Rows.join(self._gather(self.source_of_scalar(GRAD_SCALE), span)) if is_scaled else Rows.empty(1)
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

    def nonfinite_taps(self) -> NonfiniteTaps:
        """Return the exact record of every tap that was ever non-finite."""
        return self._parts.ledger.taps()

    def masks(self) -> dict[int, int]:
        """Return the taps whose infinities do no harm, and the first step of each."""
        return dict(self._parts.incidents.masks.since)

    def nonfinite_since(self, name: str) -> int | None:
        """Return the exact step since which a scalar is NaN or infinite; None if its newest value is finite."""
        lane, known = self._parts.scalars.lanes.get(name), self._parts.scalar_ledger.taps()
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


def _series_of(name: str, tap: int | None, parts: list[Rows], points: int) -> Series:
    rows = down_sample(Rows.join(parts), points)
    values = rows.mean[:, 0], rows.low[:, 0], rows.high[:, 0]
    return Series(name, tap, rows.first, rows.last, *values, rows.present[:, 0], rows.nonfinite[:, 0])


def _within(rows: Rows, first: int, last: int) -> NDArray[np.bool_]:
    """Return which rows have a step between first and last."""
    inside: NDArray[np.bool_] = (rows.last >= first) & (rows.first <= last)
    return inside


def _empty_heatmap(stat: str) -> Heatmap:
    none = np.empty(0, np.int64)
    counts = np.empty((0, 0), np.uint32)
    return Heatmap(stat, none, (), none, none, none, np.empty((0, 0)), counts, counts, np.empty((0, 0), bool))

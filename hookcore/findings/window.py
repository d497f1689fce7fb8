"""The input of the rules: the magnitudes of all taps over the newest steps, in columns of a few steps each."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import COLUMNS, EARLY, MIN_CAPTURED, MIN_PAST, RECENT, SPARK, WARM_UP, WINDOW
from hookcore.store import StepRange, Store, TapList
from hookcore.store.incidents import Feeding, fitting
from hookcore.store.ladder import Peaks

Logs = NDArray[np.float32]
Floats = NDArray[np.float64]
Places = NDArray[np.intp]
AFTER_SPIKE: Final = 6  # columns
_UNKNOWN: Final = np.float32(np.nan)
_QUARTILE: Final = np.float32(0.6745)  # standard deviations from the median, for a normal distribution


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns [column, tap] of `width` steps each, on a fixed grid; columns without a row are left out."""

    width: int
    at: NDArray[np.int64]  # the position of each on the grid
    size: Floats  # the largest magnitude; NaN if a value was non-finite or missing
    logs: Logs  # its decimal logarithm; NaN if there is none
    bad: NDArray[np.bool_]  # whether a value was non-finite

    @classmethod
    def empty(cls, width: int, taps: int) -> Columns:
        """Return no columns."""
        none = np.empty((0, taps))
        return cls(width, np.empty(0, np.int64), none, none.astype(np.float32), none.astype(bool))

    @classmethod
    def of(cls, peaks: Peaks) -> Columns:
        """Return the columns of peaks, which must not be used afterwards."""
        at, size, bad = peaks.found()
        size[bad] = np.nan
        return cls(peaks.width, at, size, _logs_of(size), bad)

    def then(self, newer: Columns) -> Columns:
        """Append newer columns, replacing those from their start; new taps have no earlier values."""
        if not len(newer.at):
            return self
        if not len(self.at) or newer.at[0] <= self.at[0]:
            return newer
        kept = slice(0, int(np.searchsorted(self.at, newer.at[0])))
        more = newer.size.shape[1] - self.size.shape[1]
        joined = [np.concatenate([self.at[kept], newer.at])]
        for own, others, fill in zip(self._values, newer._values, (np.nan, np.nan, False), strict=True):
            old = np.pad(own[kept], ((0, 0), (0, more)), constant_values=fill) if more else own[kept]
            joined.append(np.concatenate([old, others]))
        return Columns(self.width, *joined)

    def since(self, place: int) -> Columns:
        """Return the columns from a grid position on."""
        kept = slice(int(np.searchsorted(self.at, place)), None)
        return Columns(self.width, self.at[kept], *(each[kept] for each in self._values))

    @property
    def _values(self) -> tuple[NDArray[Any], ...]:
        return self.size, self.logs, self.bad


@dataclass(frozen=True, slots=True)
class UsualValues:
    """The usual value of each tap, and its spread below and above, separately: a rise doesn't affect the one below."""

    usual: Logs
    below: Logs
    above: Logs


@dataclass(frozen=True)
class MagnitudeWindow:
    """One nonnegative stat of some taps over the newest steps [tap, column]."""

    store: Store
    taps: TapList
    stat: str
    steps: StepRange
    columns: Columns
    early: Logs  # the usual value of each tap early in the run; NaN if unknown
    begun: dict[tuple[int, bool], int]  # the column in which a change began that is now older than the window

    @classmethod
    def of(
        cls, store: Store, taps: TapList, stat: str, before: MagnitudeWindow | None = None
    ) -> MagnitudeWindow | None:
        """Read from a store, or only the data since `before`; None if there is none."""
        steps = store.steps()
        if steps.first is None or steps.newest is None or not len(taps.taps):
            return None
        begin = window_first(store)
        width = _width_of(steps.newest - begin + 1)
        oldest = begin // width
        known = Columns.empty(width, len(taps.taps))
        if before is not None and before.columns.width == width and before.columns.at.size:
            known = before.columns.since(oldest)
        # The newest column may have grown since.
        begin = max(oldest, int(known.at[-1])) if known.at.size else oldest
        known = known.then(Columns.of(store.peaks(taps.numbers, stat, width, begin * width, steps.newest)))
        if not known.at.size:
            return None
        begun = before.begun if before is not None and before.columns.width == width else {}
        return cls(weakref.proxy(store), taps, stat, steps, known, _early_of(store, taps, stat, steps, before), begun)

    def outline(self) -> MagnitudeWindow:
        """Return only what can't be read again once old steps are merged."""
        return replace(self, columns=Columns.empty(self.columns.width, len(self.taps.taps)))

    @cached_property
    def feeding(self) -> Feeding | None:
        """Which call feeds which, if it is known."""
        taps = self.store.taps()
        flow = fitting(self.store.flows(), taps.taps, self.taps.numbers.tolist())
        return None if flow is None else Feeding(flow, taps.taps)

    @property
    def number(self) -> int:
        return len(self.columns.at)

    @cached_property
    def seen(self) -> NDArray[np.intp]:
        """The number of columns in which each tap was captured."""
        known = ~np.isnan(self.columns.size) | self.columns.bad
        return np.asarray(known.sum(axis=0), np.intp)

    @property
    def starts_run(self) -> bool:
        """Whether the first column contains the first step of the run."""
        return self.first_step(0) <= (self.steps.first or 0)

    def first_step(self, column: int) -> int:
        """Return the first step of a column; a negative column is a grid position before the window."""
        place = int(self.columns.at[max(column, 0)]) + min(column, 0)
        return max(place * self.columns.width, self.steps.first or 0)

    def last_step(self, column: int) -> int:
        return min((int(self.columns.at[column]) + 1) * self.columns.width - 1, self.steps.newest or 0)

    def column_of(self, step: int) -> int:
        """Return the column of a step, or the next existing one."""
        return int(np.searchsorted(self.columns.at, step // self.columns.width))

    @property
    def settled(self) -> int:
        """The step up to which it is known whether a large value was a spike, because longer growth is none."""
        return (self.steps.newest or 0) - AFTER_SPIKE * self.columns.width

    @property
    def have_past(self) -> bool:
        """Whether there are enough columns to know the usual values."""
        return self.number >= RECENT + MIN_PAST

    @cached_property
    def logs(self) -> Logs:
        """The decimal logarithms; NaN for a missing or zero magnitude."""
        return np.ascontiguousarray(self.columns.logs.T)

    @cached_property
    def past(self) -> UsualValues:
        """The columns before the recent ones; NaN if too little is known."""
        ordered = np.sort(self.logs[:, :-RECENT], axis=1)  # NaN sorts last
        known = (ordered.shape[1] - np.isnan(ordered).sum(axis=1)).astype(np.intp)
        low, middle, high = (_nth(ordered, (known * quarter) // 4) for quarter in (1, 2, 3))
        unknown = known < MIN_PAST
        middle[unknown] = _UNKNOWN
        return UsualValues(middle, (middle - low) / _QUARTILE, (high - middle) / _QUARTILE)

    @cached_property
    def now(self) -> Logs:
        """Return the median of the recent columns; NaN if fewer than half of them have a value."""
        recent = np.sort(self.logs[:, -RECENT:], axis=1)
        known = RECENT - np.isnan(recent).sum(axis=1)
        middle = _nth(recent, (known // 2).astype(np.intp))
        middle[known * 2 < RECENT] = _UNKNOWN
        return middle

    @cached_property
    def is_nothing(self) -> NDArray[np.bool_]:
        """Return which taps were zero in most of the recent columns."""
        zeros: NDArray[np.bool_] = (self.columns.size[-RECENT:] == 0).sum(axis=0) * 2 > RECENT
        return zeros

    def beyond_from(self, places: Places, borders: Floats, above: bool) -> list[int]:
        """Return, for each tap, the column since which it has always been beyond its border; see `first_step`."""
        columns = _behind_last(_within(self.logs[places].T, borders, above))
        if not self.starts_run:
            self._look_back(places, borders, above, columns)
        found: list[int] = np.minimum(columns, self.number - 1).tolist()
        return found

    def _look_back(self, places: Places, borders: Floats, above: bool, columns: Places) -> None:
        """Find onsets before the window. Done once per tap, because the rows are merged later."""
        keys = [(int(number), above) for number in self.taps.numbers[places]]
        old = np.flatnonzero(columns == 0).tolist()
        for key in {key for key in self.begun if key[1] == above} - {keys[each] for each in old}:
            del self.begun[key]
        unknown = np.array([each for each in old if keys[each] not in self.begun], np.intp)
        if len(unknown):
            rows = self.store.rows(self.taps.numbers[places[unknown]], self.stat, None, self.first_step(0) - 1)
            with np.errstate(divide="ignore"):
                behind = _behind_last(_within(np.log10(rows.high), borders[unknown], above))
            begins = np.append(rows.first, self.first_step(0))[behind] // self.columns.width
            self.begun.update(zip((keys[each] for each in unknown), begins.tolist(), strict=True))
        for each in old:
            columns[each] = self.begun[keys[each]] - self.columns.at[0]

    def spark(self, place: int) -> tuple[float, ...]:
        """Return the newest finite magnitudes, oldest first; none of a tap that came after the window was read."""
        row = self.columns.size[:, place : place + 1]
        return tuple(row[np.isfinite(row)][-SPARK:].tolist())


def _logs_of(size: Floats) -> Logs:
    """Return decimal logarithms; NaN for zero. A large float64 has a small logarithm."""
    with np.errstate(divide="ignore"):
        logs = np.log10(size).astype(np.float32)
    logs[np.isinf(logs)] = _UNKNOWN
    return logs


def window_first(store: Store) -> int:
    """Return the first step to examine, so that there are enough columns and captured steps."""
    steps = store.steps()
    newest, captured = steps.newest or 0, store.captured_step(MIN_CAPTURED - 1)
    begin = newest - WINDOW + 1
    return max(steps.first or 0, store.whole_since, begin if captured is None else min(begin, captured))


def _early_of(store: Store, taps: TapList, stat: str, steps: StepRange, before: MagnitudeWindow | None) -> Logs:
    """Return the usual values early in the run. Read once they are over; until then, the window includes them."""
    first = (steps.first or 0) + WARM_UP
    unknown = np.full(len(taps.taps), _UNKNOWN)
    if (steps.newest or 0) < first + EARLY:
        return unknown
    if before is not None and len(before.early) == len(unknown) and (before.steps.newest or 0) >= first + EARLY:
        return before.early
    rows = store.rows(taps.numbers, stat, first, first + EARLY - 1)
    if not len(rows.last):
        return unknown
    ordered = np.sort(_logs_of(np.where(rows.nonfinite > 0, np.nan, rows.high)).T, axis=1)
    known = (ordered.shape[1] - np.isnan(ordered).sum(axis=1)).astype(np.intp)
    middle = _nth(ordered, known // 2)
    middle[(known == 0) | (rows.present.sum(axis=0) < MIN_PAST)] = _UNKNOWN
    return middle


def _within(logs: NDArray[np.floating[Any]], borders: Floats, above: bool) -> NDArray[np.bool_]:
    """Return which [column, tap] are on the usual side of each tap's border; NaN is on neither side."""
    inside: NDArray[np.bool_] = logs <= borders if above else logs >= borders
    return inside


def _behind_last(marked: NDArray[np.bool_]) -> Places:
    """For each column of a table, return the row after the last marked one, or the first row."""
    rows = np.arange(1, len(marked) + 1)[:, None]
    behind: Places = np.where(marked, rows, 0).max(axis=0, initial=0).astype(np.intp)
    return behind


def _width_of(steps: int) -> int:
    """Return the number of steps per column: one in a young run, and no more than needed."""
    width = 1
    while width * COLUMNS < steps:
        width *= 2
    return width


def _nth(ordered: Logs, at: Places) -> Logs:
    """Return the value at one position of each row."""
    found: Logs = np.take_along_axis(ordered, np.minimum(at, ordered.shape[1] - 1)[:, None], axis=1)[:, 0].copy()
    return found

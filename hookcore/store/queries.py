"""The queries of a store. Everything is down-sampled here to the requested size, and keeps its extremes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import fields, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hookcore import patterns
from hookcore.errors import ArgumentError, PatternError
from hookcore.records import GRADIENT_KINDS, Coverage, Event, HookRecord, Kind, ModuleRecord, Severity, Snapshot, Tap
from hookcore.records.sketch import MAX_EXPONENT
from hookcore.records.vocabulary import GRAD_SCALE
from hookcore.store import checks
from hookcore.store.answers import Heatmap, Histograms, Latest, Quantiles, Series, StepRange, TapList
from hookcore.store.distributions import MIN_BINS, histograms_of, quantiles_of
from hookcore.store.facts import facts_of
from hookcore.store.heatmap import Cells, Columns, Streaks, columns_over
from hookcore.store.ladder import Ladder
from hookcore.store.ledger import Episode, NonfiniteTaps
from hookcore.store.parts import Parts
from hookcore.store.rows import Rows, down_sample
from hookcore.store.schemas import SCALAR_SCHEMA, STAT_SCHEMA
from hookcore.store.segments import Floats, Lanes, Steps

STAT_NAMES: Final = STAT_SCHEMA.names  # the recorded and the derived ones: zero_fraction, nonfinite
UNREPORTED: Final = "not reported by the trainer yet"
TapName = int | str | Tap  # a tap by its number, its label, or itself
_VALUE: Final = SCALAR_SCHEMA.columns.index("value")


def _find_no_dead() -> Collection[str]:
    raise PatternError("'is:dead' needs the findings of a server: ask it through hookcore.Client")


class Queries:
    """Reads a store's state, from any thread. `first` and `last` are inclusive steps; None means no bound."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.find_dead: Callable[[], Collection[str]] = _find_no_dead  # set by a server, which has findings

    def steps(self) -> StepRange:
        """Return the first and newest step, and the number of steps."""
        return self._parts.steps

    @property
    def taps_announced(self) -> int:
        """The number of announced taps, including those without room."""
        return self._parts.taps_announced

    @property
    def modules_known(self) -> int:
        """The number of described modules."""
        return len(self._parts.modules)

    def taps(self, match: str | None = None, kind: str | None = None) -> TapList:
        """Return the taps of a kind whose module matches a pattern (see docs/patterns.md)."""
        checks.require_kind(kind)
        fits = self.matcher(match)
        found = [
            (number, tap)
            for number, tap in enumerate(self._parts.taps[:])
            if (kind is None or tap.kind == kind) and fits(tap.module)
        ]
        return TapList(np.array([number for number, _ in found], np.int64), tuple(tap for _, tap in found))

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
        return Rows(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Rows)))

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
        return Latest(chosen, numbers, tuple(self._parts.taps[number] for number in numbers), steps[numbers], values)

    def nonfinite_taps(self) -> NonfiniteTaps:
        """Return the exact record of every tap that was ever non-finite."""
        return self._parts.ledger.taps()

    def nonfinite_since(self, name: str) -> int | None:
        """Return the exact step since which a scalar is NaN or infinite; None if its newest value is finite."""
        lane, known = self._parts.scalar_lanes.get(name), self._parts.scalar_ledger.taps()
        at = np.flatnonzero((known.numbers == lane) & ~known.is_over)
        return int(known.since[at[0]]) if len(at) else None

    def episodes(self) -> list[Episode]:
        """Return the kept stretches of steps with non-finite values, oldest first, each with its exact steps."""
        return self._parts.ledger.episodes()

    def captured(self, first: int | None = None) -> int:
        """Return how many steps were captured, of the whole run or from `first` on (of the newest 1,024)."""
        return self._parts.ledger.captured(first)

    def captured_step(self, back: int) -> int | None:
        """Return the captured step `back` steps before the newest one, or the oldest of the newest 1,024."""
        return self._parts.ledger.captured_step(back)

    def events(
        self,
        first: int | None = None,
        last: int | None = None,
        name: str | None = None,
        severity: Severity | None = None,
        limit: int | None = None,
    ) -> list[Event]:
        """Return the newest matching events, oldest first."""
        found = [
            event
            for event in self._parts.events.items()
            if (first is None or event.step >= first)
            and (last is None or event.step <= last)
            and name in (None, event.name)
            and severity in (None, event.severity)
        ]
        return found if limit is None else found[max(0, len(found) - limit) :]

    def events_after(self, taken: int) -> tuple[int, list[Event]]:
        """Return the events after the first `taken`, and the number of all events. For followers."""
        return self._parts.events.items_after(taken)

    def snapshots(self) -> list[Snapshot]:
        """Return the stored snapshots, oldest first; their values are read-only."""
        return self._parts.snapshots.items()

    def snapshots_after(self, taken: int) -> tuple[int, list[Snapshot]]:
        """Return the snapshots after the first `taken`, and the number of all. For readers that number them."""
        return self._parts.snapshots.items_after(taken)

    def numbered_snapshots(self) -> list[tuple[int, Snapshot]]:
        """Return the snapshots by the numbers that name them: their commands', or else their places in time."""
        taken, kept = self.snapshots_after(0)
        first = taken - len(kept)
        return [(each.number if each.number >= 0 else first + place, each) for place, each in enumerate(kept)]

    def modules(self) -> list[ModuleRecord]:
        """Return the modules of the run."""
        return self._parts.modules.items()

    def module_types(self) -> dict[str, str]:
        """Return the class of each module, by path."""
        return {module.path: module.type for module in self.modules()}

    def matcher(self, match: str | None) -> Callable[[str], bool]:
        """Return a test of module paths for a pattern; None matches every path."""
        return (lambda path: True) if match is None else self.matcher_of(patterns.parse(match))

    def matcher_of(self, condition: patterns.Condition) -> Callable[[str], bool]:
        """Return a test of module paths for a condition. The facts are those at the first path."""
        facts: dict[str, patterns.Facts] = {}

        def fits(path: str) -> bool:
            if not facts:
                facts.update(self.facts(condition.states))
            return condition.fits(facts.get(path) or patterns.Facts(path))

        return fits

    def facts(self, states: Set[str] = frozenset()) -> dict[str, patterns.Facts]:
        """Return what patterns can test of each module by path, in the model's order, then of other tensors.

        Of the states that change, only those in `states` are looked up.
        """
        taps = self._parts.taps[:]
        nonfinite = self.nonfinite_taps().numbers.tolist() if "nan" in states else ()
        return facts_of(
            self.modules(),
            dict.fromkeys(tap.module for tap in taps),
            {each.path: each.captured for each in self.coverage()} if {"captured", "uncaptured"} & states else {},
            {taps[number].module for number in nonfinite if number < len(taps)},
            self.find_dead() if "dead" in states else (),
        )

    def coverage(self) -> list[Coverage]:
        """Return every known module: captured, or why not. Refused taps count as not captured."""
        return self._with_unreported(self.without_refused(self._parts.coverage.items()))

    def _with_unreported(self, coverage: list[Coverage]) -> list[Coverage]:
        """Return coverage of all modules in the model's order, also of those whose coverage wasn't reported."""
        modules = self._parts.modules.items()
        if len(coverage) >= len(modules):
            return coverage
        known = {each.path: each for each in coverage}
        kinds: dict[str, dict[Kind, None]] = {}
        for tap in self._parts.taps[:]:
            kinds.setdefault(tap.module, {})[tap.kind] = None
        for path, type_ in ((module.path, module.type) for module in modules if module.path not in known):
            seen = tuple(kinds.get(path, ()))
            known[path] = Coverage(path, type_, bool(seen), seen, "" if seen else UNREPORTED)
        order = {module.path: place for place, module in enumerate(modules)}
        return sorted(known.values(), key=lambda each: order.get(each.path, len(order)))

    @property
    def refused_taps(self) -> int:
        """The number of taps without room, which have the highest numbers."""
        return self._parts.taps_announced - len(self._parts.taps)

    def without_refused(self, coverage: Sequence[Coverage]) -> list[Coverage]:
        """Return coverage that calls a module captured only if the store has one of its taps, with these kinds."""
        refused = self.refused_taps
        if not refused:
            return list(coverage)
        kept: dict[str, set[Kind]] = {}
        for tap in self._parts.taps[:]:
            kept.setdefault(tap.module, set()).add(tap.kind)
        room = f"{len(self._parts.taps):,} of {self._parts.taps_announced:,} tensors"
        have = f"no room for its values, the store has room for {room}"
        return [
            _without_refused(each, kept.get(each.path, set()), have) if each.captured else each for each in coverage
        ]

    def hooks(self) -> tuple[HookRecord, ...]:
        """Return the hooks of the last inventory."""
        return self._parts.hooks

    def labels(self) -> dict[str, str]:
        """Return the newest label of each name."""
        return dict(self._parts.labels.items())

    def find_tap(self, tap: TapName) -> tuple[int, Tap]:
        """Return a tap's number and the tap."""
        taps = self._parts.taps
        if isinstance(tap, str):
            return checks.find_tap(enumerate(taps[:]), tap)
        if isinstance(tap, Tap):
            number = self._parts.tap_numbers.get(tap)
            if number is None:
                raise ArgumentError(checks.unknown("tap", tap.label, [each.label for each in taps]))
            return number, tap
        if not 0 <= tap < len(taps):
            raise ArgumentError(f"unknown tap number {tap}: there are {len(taps)} taps, numbered from 0")
        return int(tap), taps[tap]


def _without_refused(covered: Coverage, kept: set[Kind], have: str) -> Coverage:
    kinds = tuple(kind for kind in covered.kinds if kind in kept)
    if not covered.captured or (kept and len(kinds) == len(covered.kinds)):
        return covered
    missing = ", ".join(kind for kind in covered.kinds if kind not in kept)
    what = f"{missing} refused by the store" if kept else "refused by the store"
    return replace(covered, captured=bool(kept), kinds=kinds, reason=f"{what}: {have}; give it more memory")


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

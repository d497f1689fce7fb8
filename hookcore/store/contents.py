"""The contents of a run: its steps, taps, modules and their coverage, hooks, events, and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from hookcore.config import patterns
from hookcore.errors import ArgumentError, PatternError
from hookcore.records import Coverage, Event, HookRecord, Kind, ModuleRecord, Severity, Snapshot, Tap
from hookcore.records.flow import Flow
from hookcore.store import checks
from hookcore.store.answers import StepRange, TapList
from hookcore.store.checks import facts_of
from hookcore.store.parts import Parts


class OfTap(Protocol):
    """A tap in an answer of `hookcore.reading`."""

    @property
    def record(self) -> Tap: ...


TapName = int | str | Tap | OfTap  # a tap by its number, its label, or itself
UNREPORTED: Final = "not reported by the trainer yet"


def _find_no_dead() -> Collection[str]:
    raise PatternError("'is:dead' needs the findings of a server: ask it through hookcore.Client")


class Contents:
    """Reads what a run consists of from a store's state, from any thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._all_taps = TapList(np.empty(0, np.int64), ())
        self._covered: tuple[tuple[int, ...], tuple[Coverage, ...]] = (), ()
        self._find_dead: Callable[[], Collection[str]] = _find_no_dead

    def find_dead_by(self, find: Callable[[], Collection[str]]) -> None:
        """Set the function that returns the paths of the modules that match `is:dead`, which only findings know."""
        self._find_dead = find

    def steps(self) -> StepRange:
        """Return the first and newest step, and the number of steps."""
        return self._parts.steps

    @property
    def taps_announced(self) -> int:
        """The number of announced taps, including those without room."""
        return self._parts.taps_announced

    @property
    def taps_known(self) -> int:
        """The number of taps with room."""
        return len(self._parts.taps)

    @property
    def modules_known(self) -> int:
        """The number of described modules."""
        return len(self._parts.modules)

    def taps(self, match: str | None = None, kind: str | None = None) -> TapList:
        """Return the taps of a kind whose module matches a pattern (see docs/patterns.md)."""
        checks.require_kind(kind)
        every = self._every_tap()
        found = every if kind is None else every.of_kind(kind)
        if match is None:
            return found
        fits = self.matcher(match)
        return found.at([place for place, tap in enumerate(found.taps) if fits(tap.module)])

    def _every_tap(self) -> TapList:
        """Return the same list until there are more taps, so that facts about it are found once."""
        known = self._all_taps
        if len(known.taps) != len(self._parts.taps):
            taps = tuple(self._parts.taps)
            known = self._all_taps = TapList(np.arange(len(taps)), taps)
        return known

    def events(
        self,
        first: int | None = None,
        last: int | None = None,
        name: str | None = None,
        severity: Severity | None = None,
        limit: int | None = None,
    ) -> list[Event]:
        """Return the newest matching events, oldest first."""
        found = [event for event in self._parts.events.items() if event.fits(first, last, name, severity)]
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

    def numbered_media(self) -> list[tuple[int, Snapshot]]:
        """Return the logged images, texts, tables, and figures, by their position in the log."""
        taken, kept = self._parts.media.items_after(0)
        return list(enumerate(kept, taken - len(kept)))

    def modules(self) -> list[ModuleRecord]:
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
        nonfinite = self._parts.ledger.taps().numbers.tolist() if "nan" in states else ()
        return facts_of(
            self.modules(),
            dict.fromkeys(tap.module for tap in taps),
            {each.path: each.captured for each in self.coverage()} if {"captured", "uncaptured"} & states else {},
            {taps[number].module for number in nonfinite if number < len(taps)},
            self._find_dead() if "dead" in states else (),
        )

    def coverage(self) -> list[Coverage]:
        """Return every known module: captured, or why not. Refused taps count as not captured."""
        parts = self._parts
        mark = parts.coverage.changes, parts.modules.changes, len(parts.taps), parts.taps_announced
        if self._covered[0] != mark:
            reported = self.without_refused(parts.coverage.items())
            self._covered = mark, tuple(self._with_unreported(reported))
        return list(self._covered[1])

    def _with_unreported(self, coverage: list[Coverage]) -> list[Coverage]:
        """Return coverage of all modules in the model's order, also of those whose coverage wasn't reported."""
        modules = self._parts.modules.items()
        known = {each.path: each for each in coverage}
        unreported: dict[str, dict[Kind, None]] = {each.path: {} for each in modules if each.path not in known}
        if not unreported:
            return coverage
        for tap in self._parts.taps[:]:
            if tap.module in unreported:
                unreported[tap.module][tap.kind] = None
        for path, type_ in ((module.path, module.type) for module in modules if module.path in unreported):
            seen = tuple(unreported[path])
            known[path] = Coverage(path, type_, bool(seen), seen, "" if seen else UNREPORTED)
        in_order = {module.path: known[module.path] for module in modules}
        return list((in_order | known).values())

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
        have = f"no room for its values: the store has room for {room}"
        return [
            _without_refused(each, kept.get(each.path, set()), have) if each.captured else each for each in coverage
        ]

    def hooks(self) -> tuple[HookRecord, ...]:
        """Return the hooks of the last inventory."""
        return self._parts.hooks

    def flows(self) -> tuple[Flow, ...]:
        """Return which call fed which, in the structures that the model had, oldest first."""
        return self._parts.flows

    def labels(self) -> dict[str, str]:
        """Return the newest label of each name."""
        return dict(self._parts.labels.items())

    def find_tap(self, tap: TapName) -> tuple[int, Tap]:
        """Return a tap's number and the tap."""
        taps = self._parts.taps
        if not isinstance(tap, str | int | np.integer | Tap):
            tap = tap.record
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

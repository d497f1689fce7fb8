"""Comparison of two stores: shared taps, their differences, and the first difference. Pure; no web."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.reading.answers import ComparedLayer, Number
from hookcore.records import Tap
from hookcore.store import Store
from hookcore.store.rows import Rows

from .renaming import renamer

MAX_COMPARED: Final = 5000  # maximum taps of one query
_AT_ONCE: Final = 64  # taps read together


@dataclass(frozen=True, slots=True)
class ComparisonQuery:
    """What to compare: a stat of the matching taps, within some steps. Values within `tolerance` are equal."""

    stat: str
    kind: str | None = None
    match: str | None = None
    first: int | None = None
    last: int | None = None
    tolerance: float = 0.0
    rename: str = ""


@dataclass(frozen=True, slots=True)
class Pairs:
    """The shared taps, by the first store's names, with their numbers in both; and the taps of one store only."""

    taps: tuple[Tap, ...]
    numbers: tuple[tuple[int, int], ...]
    alone: tuple[dict[Tap, int], dict[Tap, int]]

    @classmethod
    def of(cls, one: Store, two: Store, asked: ComparisonQuery) -> Pairs:
        """Pair the taps of two stores; `rename` maps module paths of the second store."""
        fits, fits_in_two, rename = one.matcher(asked.match), two.matcher(asked.match), renamer(asked.rename)
        own = {tap: number for number, tap in one.taps(None, asked.kind) if fits(tap.module)}
        other: dict[Tap, int] = {}
        known = {tap.module for tap in one.taps().taps}
        for number, tap in two.taps(None, asked.kind):
            module = rename(tap.module)
            if fits(module) if module in known else fits_in_two(tap.module):
                other.setdefault(Tap(module, tap.kind, tap.index, tap.call, tap.phase), number)
        shared = tuple(tap for tap in own if tap in other)
        if len(shared) > MAX_COMPARED:
            raise ArgumentError(f"{len(shared)} taps are more than {MAX_COMPARED}: narrow them with match= or kind=")
        alone = (_without(own, other), _without(other, own))
        return cls(shared, tuple((own[tap], other[tap]) for tap in shared), alone)


def _without(taps: dict[Tap, int], others: dict[Tap, int]) -> dict[Tap, int]:
    return {tap: number for tap, number in taps.items() if tap not in others}


@dataclass(frozen=True, slots=True)
class Compared:
    """Some lanes [row, lane] at the shared spans of steps."""

    first_step: NDArray[np.int64]
    last_step: NDArray[np.int64]
    difference: NDArray[np.float64]
    share: NDArray[np.float64]  # of the larger magnitude; infinite if only one is a number
    steps: NDArray[np.int64]  # the steps that both captured in a span; 0 if their numbers differ
    nonfinite: NDArray[np.bool_]  # whether both have NaN or infinities

    @classmethod
    def of(cls, one: Rows, two: Rows) -> Compared:
        """Compare lanes. NaN equals NaN, and an infinity equals itself. Spans need equal step counts in both runs."""
        _, in_one, in_two = np.intersect1d(one.first, two.first, return_indices=True)
        same = one.last[in_one] == two.last[in_two]
        in_one, in_two = in_one[same], in_two[same]
        bad = one.nonfinite[in_one], two.nonfinite[in_two]
        share = np.where(bad[0] != bad[1], np.inf, 0.0)
        for name in ("mean", "low", "high"):  # the extremes distinguish merged steps with equal means
            share = np.maximum(share, _distance(getattr(one, name)[in_one], getattr(two, name)[in_two]))
        values = one.mean[in_one], two.mean[in_two]
        with np.errstate(invalid="ignore", over="ignore"):
            equal = (values[0] == values[1]) | (np.isnan(values[0]) & np.isnan(values[1]))
            difference = np.where(equal, 0.0, values[1] - values[0])
        present = one.present[in_one], two.present[in_two]
        steps = np.where(present[0] == present[1], present[0], 0).astype(np.int64)
        return cls(one.first[in_one], one.last[in_one], difference, share, steps, (bad[0] > 0) & (bad[1] > 0))

    def apart(self, place: int, tolerance: float) -> dict[str, Any]:
        """Return the fields of an `answers.Apart` for one lane."""
        seen = np.flatnonzero(self.steps[:, place])
        share, first, last = self.share[seen, place], self.first_step[seen], self.last_step[seen]
        apart, bad = np.flatnonzero(share > tolerance), np.flatnonzero(self.nonfinite[seen, place])
        worst = int(share.argmax()) if len(seen) else None
        outcome = "different" if len(apart) else "NaN in both" if len(bad) else "no difference"
        return {
            "outcome": outcome if len(seen) else "not compared",
            "points": len(seen),
            "steps": int(self.steps[seen, place].sum()),
            "parts_at": int(first[apart[0]]) if len(apart) else None,
            "parts_by": int(last[apart[0]]) if len(apart) else None,
            "largest": Number(np.abs(self.difference[seen, place]).max() if len(seen) else np.nan),
            "share": Number(np.nan if worst is None else share[worst]),
            "at_step": None if worst is None else int(first[worst]),
            "nonfinite": len(bad),
            "nonfinite_at": int(first[bad[0]]) if len(bad) else None,
            "nonfinite_by": int(last[bad[0]]) if len(bad) else None,
        }

    def layer(self, place: int, tap: Tap, numbers: tuple[int, int], tolerance: float, points: int) -> ComparedLayer:
        """Return one tap with at most `points` points: of neighbors, the one with the largest difference stays."""
        seen = np.flatnonzero(self.steps[:, place])
        difference = self.difference[seen, place]
        kept = _thinned(np.abs(difference), points)
        return ComparedLayer(
            **self.apart(place, tolerance),
            tap=answers.Tap.of(numbers[0], tap),
            numbers=numbers,
            first_step=self.first_step[seen[kept]],
            last_step=self.last_step[seen[kept]],
            difference=difference[kept],
        )


def _thinned(magnitudes: NDArray[np.float64], points: int) -> NDArray[np.intp]:
    """Return the indexes of at most `points` points, the largest of each group of neighbors; NaN is largest."""
    size = len(magnitudes)
    if size <= points or not points:
        return np.arange(min(size, points))
    keys = np.where(np.isnan(magnitudes), np.inf, magnitudes)
    borders = (np.arange(points + 1) * size // points).tolist()
    return np.array([low + int(keys[low:high].argmax()) for low, high in itertools.pairwise(borders)], np.intp)


def _distance(one: NDArray[np.float64], two: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the difference as a share of the larger magnitude; infinite if only one is a number."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        share = np.abs(two - one) / np.maximum(np.abs(one), np.abs(two))
        both_nan = np.isnan(one) & np.isnan(two)
        return np.where((one == two) | both_nan, 0.0, np.where(np.isfinite(share), share, np.inf))


def compare(
    one: Store, two: Store, pairs: Pairs, asked: ComparisonQuery, points: int, only: Sequence[int] | None = None
) -> list[ComparedLayer]:
    """Compare all pairs, or only some by index, with `points` points each."""
    places = list(range(len(pairs.taps))) if only is None else list(only)
    layers = []
    for some, _, compared in chunks(one, two, pairs, asked, places):
        layers += layers_of(some, compared, pairs, asked, points)
    return layers


def layers_of(
    some: list[int], compared: Compared, pairs: Pairs, asked: ComparisonQuery, points: int
) -> list[ComparedLayer]:
    """Return the layers of one chunk."""
    return [
        compared.layer(lane, pairs.taps[place], pairs.numbers[place], asked.tolerance, points)
        for lane, place in enumerate(some)
    ]


def chunks(
    one: Store, two: Store, pairs: Pairs, asked: ComparisonQuery, places: list[int]
) -> Iterator[tuple[list[int], tuple[Rows, Rows], Compared]]:
    """Yield chunks of pairs by index: the rows of both runs, and their comparison."""
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        rows = []
        for side, store in enumerate((one, two)):
            numbers = np.array([pairs.numbers[place][side] for place in some], np.int64)
            order = np.argsort(numbers)  # a store reads its lanes in their order
            found = store.rows(numbers[order], asked.stat, asked.first, asked.last)
            rows.append(found.take(np.argsort(order)))
        yield some, (rows[0], rows[1]), Compared.of(rows[0], rows[1])


@dataclass(frozen=True, slots=True)
class Differences:
    """The largest share in each cell [row, column]. A row is a group of neighbors, a column a span of steps."""

    starts: NDArray[np.int64]  # the position of the first pair of each row
    groups: NDArray[np.int64]  # the number of pairs in it
    first_step: NDArray[np.int64]
    last_step: NDArray[np.int64]
    share: NDArray[np.float64]  # NaN if nothing was compared, infinite if only one was finite
    nonfinite: NDArray[np.bool_]  # whether a value of the cell is NaN or infinite in both

    @property
    def worst(self) -> NDArray[np.float32]:
        """The shares as a heatmap has them: NaN also where only one was finite, which `state` says."""
        return np.where(np.isinf(self.share), np.nan, self.share).astype(np.float32)

    @property
    def state(self) -> NDArray[np.uint8]:
        """What each cell is, by the numbers in `ComparisonHeatmap`."""
        found = (~np.isnan(self.share)).astype(np.uint8) + np.isinf(self.share)
        found[self.nonfinite & (self.share == 0)] = 3
        return found


def differences(one: Store, two: Store, pairs: Pairs, asked: ComparisonQuery, columns: int, rows: int) -> Differences:
    """Compare all pairs over all shared steps."""
    span = _common(one, two, asked)
    many, height = len(pairs.taps), min(len(pairs.taps), rows)
    starts = -(-np.arange(height, dtype=np.int64) * many // height) if height else np.empty(0, np.int64)
    groups = np.diff(starts, append=many)
    if span is None:
        nothing = np.empty(0, np.int64)
        return Differences(starts, groups, nothing, nothing, np.empty((height, 0)), np.empty((height, 0), np.bool_))
    length = span[1] - span[0] + 1
    width = min(columns, length)
    borders = span[0] + -(-np.arange(width + 1, dtype=np.int64) * length // width)
    share = np.full((width, height), np.nan)
    bad = np.zeros((width, height), np.bool_)
    for some, _, compared in chunks(one, two, pairs, asked, list(range(many))):
        if not len(compared.first_step):
            continue
        row = np.searchsorted(starts, some, side="right") - 1
        firsts = np.flatnonzero(np.diff(row, prepend=-1))  # of the pairs that share a row
        cells = np.where(compared.steps > 0, compared.share, np.nan)
        place = np.clip(np.searchsorted(borders, compared.first_step, side="right") - 1, 0, width - 1)
        begins = np.flatnonzero(np.diff(place, prepend=-1))
        at = place[begins][:, None], row[firsts]
        in_both = compared.nonfinite & (compared.steps > 0)
        share[at] = np.fmax(share[at], np.fmax.reduceat(np.fmax.reduceat(cells, begins, axis=0), firsts, axis=1))
        bad[at] |= np.logical_or.reduceat(np.logical_or.reduceat(in_both, begins, axis=0), firsts, axis=1)
    return Differences(starts, groups, borders[:-1], borders[1:] - 1, share.T, bad.T)


def _common(one: Store, two: Store, asked: ComparisonQuery) -> tuple[int, int] | None:
    """Return the first and the last step that both runs can have."""
    ranges = one.steps(), two.steps()
    if any(each.first is None or each.newest is None for each in ranges):
        return None
    first = max(each.first or 0 for each in ranges)
    last = min(each.newest or 0 for each in ranges)
    first = max(first, asked.first or 0)
    last = last if asked.last is None else min(last, asked.last)
    return (first, last) if first <= last else None

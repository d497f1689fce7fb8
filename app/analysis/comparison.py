"""Comparison of two stores: shared taps, their differences, the largest of them, and the first."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import re2  # type: ignore[import-untyped]
from msgspec.structs import replace
from numpy.typing import NDArray

from hookcore.config.patterns import expression
from hookcore.errors import ArgumentError, PatternError
from hookcore.reading import Reader, answers
from hookcore.reading.answers import ComparedLayer, Number
from hookcore.records import Kind, Tap
from hookcore.records.sketch import EDGES, NAN, NEG_INF, POS_INF
from hookcore.records.vocabulary import ELAPSED
from hookcore.store import Store
from hookcore.store.rows import Rows
from hookcore.store.sketches import display_groups
from hookcore.store.unlike import Distribution, Sample, apart, distributions, shares_apart

from .numerals import percent, shown

# Layers and logged values that differ in some steps, the largest difference first. Pure; no web.

WINDOWS: Final = 8  # parts of the other steps whose difference is called usual
_CLEAR: Final = 0.05  # a change of a share that is worth a sentence
_SCALED: Final = 1.2  # a change of the magnitude that is, three bins
_KS_MEAN: Final = 0.8687  # the expected Kolmogorov-Smirnov distance of two equal samples, times sqrt(nm / (n + m))

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Side:
    """A store, and some of its steps."""

    store: Store
    sample: Sample
    run: str = ""  # the id

    @property
    def answer(self) -> answers.StepSample:
        return answers.StepSample(self.run, self.sample.first, self.sample.last, self.sample.steps)


def what_differs(
    one: Side, two: Side, fits: Callable[[str], bool], kind: Kind | None = None, limit: int = 20, bins: int = 60
) -> answers.Differences:
    """Compare two samples of steps, of one run or of two. The first one is called inside, the other outside.

    `fits` says which modules to compare.
    """
    taps, numbers = _shared(one.store, two.store, fits, kind)
    shares = shares_apart(one.sample, two.sample, (numbers[:, 0], numbers[:, 1]))
    known = np.flatnonzero(~np.isnan(shares))
    shown = known[np.argsort(-shares[known], kind="stable")][:limit]
    shown = shown[shares[shown] > 0]
    usual, outside = _usual(one.sample, two.sample, numbers[shown, 1])
    both = zip(distributions(one.sample, numbers[shown, 0]), map(Distribution, outside), strict=True)
    layers = [
        _layer(taps[place], int(numbers[place, 0]), float(shares[place]), usual_here, found, bins)
        for place, usual_here, found in zip(shown.tolist(), usual, both, strict=True)
    ]
    logged = _logged(one, two, limit)
    counts = len(known), len(shares) - len(known)
    return answers.Differences(one.answer, two.answer, *counts, tuple(layers), tuple(logged))


def _shared(
    one: Store, two: Store, fits: Callable[[str], bool], kind: Kind | None
) -> tuple[tuple[Tap, ...], NDArray[np.int64]]:
    """Return the taps of both stores, and their numbers [tap, store]."""
    others = {tap: number for number, tap in two.taps(None, kind)}
    both = [(tap, number, others[tap]) for number, tap in one.taps(None, kind) if tap in others and fits(tap.module)]
    return tuple(tap for tap, *_ in both), np.array([pair for _, *pair in both], np.int64).reshape(-1, 2)


def _usual(inside: Sample, outside: Sample, numbers: NDArray[np.int64]) -> tuple[Sequence[float | None], Floats]:
    """Return how different other windows of as many steps are from the rest of the other steps, and the sums of all.

    The difference is the median of the windows, or None if there aren't two.
    """
    windows = outside.windows(max(1, inside.steps), WINDOWS)
    in_windows = sum(len(window.entries) for window in windows)
    sums = [window.sums(numbers) for window in windows]
    whole = sum(sums, Sample(outside.entries[in_windows:]).sums(numbers))  # exact, so each step is read once
    if len(windows) < 2 or not len(numbers):
        return [None] * len(numbers), whole
    found = np.array([apart(each, whole - each) for each in sums])
    known = np.count_nonzero(~np.isnan(found), axis=0) >= 2
    columns = zip(found.T, known, strict=True)
    return [float(np.nanmedian(column)) if is_known else None for column, is_known in columns], whole


def _layer(
    tap: Tap, number: int, share: float, usual: float | None, both: tuple[Distribution, Distribution], bins: int
) -> answers.DifferentLayer:
    finite = [each.counts[NEG_INF + 1 : POS_INF] for each in both]
    filled = np.flatnonzero(finite[0] + finite[1]) + NEG_INF + 1
    starts = display_groups(filled, bins)
    counts = [np.add.reduceat(each.counts, starts)[:-1] if len(starts) else np.empty(0) for each in both]
    bad = [int(each.counts[[NEG_INF, POS_INF, NAN]].sum()) for each in both]
    return answers.DifferentLayer(
        answers.Tap.of(number, tap),
        Number(share),
        None if usual is None else Number(usual),
        message_of(*both),
        EDGES[starts],
        counts[0],
        counts[1],
        (both[0].number, both[1].number),
        (bad[0], bad[1]),
    )


def message_of(inside: Distribution, outside: Distribution) -> str:
    """Describe the difference in plain words."""
    said = []
    for name, here, there in (
        ("NaN", inside.nan, outside.nan),
        ("infinite", inside.infinite, outside.infinite),
    ):
        if (here > 0) != (there > 0) or abs(here - there) > _CLEAR:
            said.append(f"{percent(here)} {name} instead of {percent(there)}")
    if abs(inside.zero - outside.zero) > _CLEAR:
        said.append(f"{percent(inside.zero)} zeros instead of {percent(outside.zero)}")
    if abs(inside.positive - outside.positive) > _CLEAR:
        said.append(f"{percent(inside.positive)} positive instead of {percent(outside.positive)}")
    here, there = inside.magnitude, outside.magnitude
    if here > there * _SCALED or there > here * _SCALED:
        factor = max(here, there) / min(here, there)
        size = "larger" if here > there else "smaller"
        said.append(f"{_rough(factor)} times {size} (median magnitude {_rough(here)} instead of {_rough(there)})")
    return "; ".join(said) or "a different shape at the same scale"


def _rough(value: float) -> str:
    """Write three digits: medians of a sketch aren't more exact."""
    return shown(float(f"{value:.3g}"))


def _logged(one: Side, two: Side, limit: int) -> list[answers.DifferentScalar]:
    own = [name for name in one.store.scalar_names() if not name.startswith("hookcore/") or name == ELAPSED]
    others = set(two.store.scalar_names())
    rows = [(name, one.store.scalar_rows(name), two.store.scalar_rows(name)) for name in own if name in others]
    found = [_logged_of(name, _in(here, one.sample), _in(there, two.sample)) for name, here, there in rows]
    differing = [each for each in found if each is not None and each.share > 0]
    return sorted(differing, key=lambda each: -each.share)[:limit]


def _in(rows: Rows, sample: Sample) -> Rows:
    """Return the rows of the steps of a sample."""
    ends = np.array(sorted((entry.first, entry.last) for entry in sample.entries), np.int64).reshape(-1, 2)
    at = np.searchsorted(ends[:, 0], rows.first, side="right") - 1  # entries don't overlap, except for parts of a step
    keep = np.flatnonzero((at >= 0) & (rows.last <= ends[at, 1])) if len(ends) else np.empty(0, np.intp)
    return rows.some(keep)


def _logged_of(name: str, here: Rows, there: Rows) -> answers.DifferentScalar | None:
    if not len(here.first) or not len(there.first):
        return None
    values = [np.where(np.isnan(rows.mean[:, 0]), np.inf, rows.mean[:, 0]) for rows in (here, there)]
    points = np.sort(np.concatenate(values))
    below = [np.searchsorted(np.sort(each), points, side="right") / len(each) for each in values]
    chance = _KS_MEAN * np.sqrt(1 / len(values[0]) + 1 / len(values[1]))
    share = max(0.0, float(np.abs(below[0] - below[1]).max()) - chance)
    pairs: tuple[Any, ...] = (
        (Number(_mean_of(here)), Number(_mean_of(there))),
        tuple(Number(np.fmin.reduce(rows.low[:, 0])) for rows in (here, there)),
        tuple(Number(np.fmax.reduce(rows.high[:, 0])) for rows in (here, there)),
    )
    return answers.DifferentScalar(name, Number(share), _logged_message(here, there), *pairs)


def _mean_of(rows: Rows) -> float:
    """Return the mean of the finite values."""
    weights = rows.finite[:, 0]
    return float(np.average(np.where(weights > 0, rows.mean[:, 0], 0.0), weights=weights)) if weights.any() else np.nan


def _logged_message(here: Rows, there: Rows) -> str:
    means = [each if np.isfinite(each) else None for each in map(_mean_of, (here, there))]
    words = " instead of ".join("none" if mean is None else shown(mean) for mean in means)
    bad, of = ([int(getattr(rows, name).sum()) for rows in (here, there)] for name in ("nonfinite", "present"))
    if not any(bad):
        return f"mean {words}"
    count = f"{bad[0]:,} of {of[0]:,} values are NaN or infinite instead of {bad[1]:,} of {of[1]:,}"
    return f"{count}; mean of the finite values: {words}"


def counted_series(
    reader: Reader, tap: answers.Tap, stat: str, first: int | None, last: int | None, points: int
) -> answers.Series:
    """Return a series with its non-finite steps. For a quantile, these are the ones of the stat rms."""
    found = reader.series(tap, stat, first, last, points)
    if found.nonfinite is not None:
        return found
    whole = reader.series(tap, "rms", first, last, points)
    bad = np.zeros(len(found.first_step), np.int64)
    at = np.clip(np.searchsorted(found.first_step, whole.first_step, side="right") - 1, 0, None)
    if len(bad) and whole.nonfinite is not None:
        np.add.at(bad, at, whole.nonfinite)
    return replace(found, nonfinite=bad)


def renamer(rule: str) -> Callable[[str], str]:
    """Return the mapping of module paths that "expression -> replacement" describes; groups are \\1, \\2, ..."""
    if not rule.strip():
        return lambda module: module
    pattern, arrow, replacement = (part.strip() for part in rule.partition("->"))
    if not arrow or not pattern:
        raise ArgumentError(f"rename={rule[:80]!r} is not a rule: write an expression, ->, and its replacement")
    expression(pattern)  # raises if it is invalid or too large
    compiled = re2.compile(pattern)
    for sign in re.findall(r"\\(.?)", replacement):
        if sign != "\\" and not (sign.isascii() and sign.isdigit() and 1 <= int(sign) <= compiled.groups):
            raise PatternError(
                f"{replacement[:80]!r} is not a valid replacement: \\{sign} is not one of the {compiled.groups} groups"
            )

    def rename(module: str) -> str:
        try:
            return str(compiled.sub(replacement, module))
        except UnicodeEncodeError:  # half a surrogate pair, which no expression can match
            return module

    return rename


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
            rows.append(found.of_lanes(np.argsort(order)))
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
    if any(steps.first is None or steps.newest is None for steps in ranges):
        return None
    first = max(steps.first or 0 for steps in ranges)
    last = min(steps.newest or 0 for steps in ranges)
    first = max(first, asked.first or 0)
    last = last if asked.last is None else min(last, asked.last)
    return (first, last) if first <= last else None

"""Layers and logged values that differ in some steps, the largest difference first. Pure; no web."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.records import Kind, Tap
from hookcore.records.sketch import EDGES, NAN, NEG_INF, POS_INF
from hookcore.records.vocabulary import ELAPSED
from hookcore.store import Store
from hookcore.store.distributions import display_groups
from hookcore.store.rows import Rows
from hookcore.store.unlike import Distribution, Sample, apart, distributions, shares_apart

from .numerals import percent, shown

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
    words = " instead of ".join("none" if each is None else shown(each) for each in means)
    bad, of = ([int(getattr(rows, name).sum()) for rows in (here, there)] for name in ("nonfinite", "present"))
    if not any(bad):
        return f"mean {words}"
    count = f"{bad[0]:,} of {of[0]:,} values are NaN or infinite instead of {bad[1]:,} of {of[1]:,}"
    return f"{count}; mean of the finite values: {words}"

"""Values over time of many runs in one picture: of each run, or the mean and the range of each group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import ArgumentError
from hookcore.findings.keyfigures import NORM_KINDS
from hookcore.records.vocabulary import loss_among
from hookcore.store import STAT_NAMES, Series, Store
from hookcore.store.checks import require

LOSS: Final = "loss"  # also the name of the loss of a run that logs it under another one
GRADIENT_NORM: Final = "gradient norm"

Floats: TypeAlias = NDArray[np.float64]
Steps: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OverlayQuery:
    """The overlaid value: a scalar, the norm of all gradients, or a stat of a tap."""

    scalar: str = ""
    tap: str = ""
    stat: str = "rms"

    def __post_init__(self) -> None:
        if bool(self.scalar) == bool(self.tap):
            raise ArgumentError("use either scalar=, such as scalar=loss, or tap= and stat=")
        if self.tap:
            require("stat", self.stat, STAT_NAMES)


def find_series(
    store: Store, wanted: OverlayQuery, points: int, first: int | None = None, last: int | None = None
) -> Series | None:
    """Return the wanted values of a run in some steps, or None if it has none at all."""
    if wanted.tap:
        try:
            tap = store.find_tap(wanted.tap)[1]
        except ArgumentError:
            return None
        return store.series(tap, wanted.stat, first, last, points)
    name = name_of(wanted.scalar, store.scalar_names())
    if name is not None:
        return store.scalars(name, first, last, points)
    return gradient_norm(store, points, first, last) if wanted.scalar == GRADIENT_NORM else None


def name_of(wanted: str, names: Sequence[str]) -> str | None:
    """Return the scalar of this name, or which one is meant: `loss` is also `train/loss`."""
    if wanted in names:
        return wanted
    if wanted == LOSS:
        return loss_among(names)
    return next((name for name in names if name.endswith(f"/{wanted}")), None)


def gradient_norm(store: Store, points: int, first: int | None = None, last: int | None = None) -> Series | None:
    """Return the norm of all gradients of parameters, or of outputs if those aren't captured."""
    found = (store.taps(None, kind) for kind in NORM_KINDS)
    taps = next((each for each in found if len(each.numbers)), None)
    return None if taps is None else store.norm(taps.numbers, first, last, points)


@dataclass(frozen=True, slots=True)
class Band:
    """The mean of several runs, and the smallest and the largest value of any of them, in spans of steps."""

    first: Steps
    last: Steps
    mean: Floats
    low: Floats
    high: Floats
    nonfinite: Steps  # in how many steps of the runs there was a NaN or an infinity
    runs: Steps  # how many have a finite value in the span


def band_of(lines: Sequence[Series]) -> Band:
    """Return the mean and the range of some runs. Each run counts once, whatever the number of its captured steps.

    Runs are captured at steps of their own, so spans are as wide as needed for each run to have a value in every span
    that it reaches. Nothing is interpolated.
    """
    kept = [line for line in lines if len(line.mean)]
    if not kept:
        steps, values = np.empty(0, np.int64), np.empty(0)
        return Band(steps, steps, values, values, values, steps, steps)
    middles = [(each.first_step + each.last_step) / 2 for each in kept]
    start, end = min(middle[0] for middle in middles), max(middle[-1] for middle in middles)
    spans = max(len(middle) for middle in middles)
    while spans > 1 and not all(_fills(middle, start, end, spans) for middle in middles):
        spans = spans * 3 // 4
    return _in_spans(kept, [_places(middle, start, end, spans) for middle in middles], spans)


def _places(middles: Floats, start: float, end: float, spans: int) -> NDArray[np.intp]:
    width = max(end - start, 1e-9) / spans
    return np.minimum(((middles - start) / width).astype(np.intp), spans - 1)


def _fills(middles: Floats, start: float, end: float, spans: int) -> bool:
    """Return whether points are in each span between the first and the last one."""
    places = _places(middles, start, end, spans)
    return bool(len(np.unique(places)) == places[-1] - places[0] + 1)


def _in_spans(lines: Sequence[Series], places: Sequence[NDArray[np.intp]], spans: int) -> Band:
    values = np.full((len(lines), spans), np.nan)
    low, high = np.full(spans, np.nan), np.full(spans, np.nan)
    first, last = np.full(spans, np.iinfo(np.int64).max), np.full(spans, -1)
    nonfinite = np.zeros(spans, np.int64)
    for row, (line, at) in enumerate(zip(lines, places, strict=True)):
        np.minimum.at(first, at, line.first_step)
        np.maximum.at(last, at, line.last_step)
        np.add.at(nonfinite, at, line.nonfinite.astype(np.int64))
        finite = np.isfinite(line.mean)
        steps = (line.present.astype(np.float64) - line.nonfinite)[finite]  # of each point, with a finite value
        counts = np.bincount(at[finite], steps, minlength=spans)
        sums = np.bincount(at[finite], line.mean[finite] * steps, minlength=spans)
        values[row] = np.divide(sums, counts, out=np.full(spans, np.nan), where=counts > 0)
        np.fmin.at(low, at[finite], line.min[finite])
        np.fmax.at(high, at[finite], line.max[finite])
    there = np.isfinite(values)
    runs = there.sum(axis=0)
    kept = np.flatnonzero((runs > 0) | (nonfinite > 0))
    some, many = values[:, kept], runs[kept]
    mean = np.divide(np.nansum(some, axis=0), many, out=np.full(len(kept), np.nan), where=many > 0)
    return Band(first[kept], last[kept], mean, low[kept], high[kept], nonfinite[kept], many.astype(np.int64))


def grouped(values: Iterable[str]) -> list[str]:
    """Return the groups in the order in which they are shown: numbers by size, then texts."""

    def key(text: str) -> tuple[bool, float, str]:
        try:
            return False, float(text), ""
        except ValueError:
            return True, 0.0, text

    return sorted(set(values), key=key)

"""The speed of a training: the one definition of its steps, samples, and tokens per second."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from hookcore.records.vocabulary import SAMPLES_RATE, STEPS_RATE, TIME, TOKENS_RATE
from hookcore.store import Series, Store

RECENT_STEPS: Final = 200  # newest steps of which the rate of a running training is
_POINTS: Final = 1000


@dataclass(frozen=True, slots=True)
class Rates:
    """What a training does per second, over some steps; None for what isn't known."""

    steps: float | None = None
    samples: float | None = None
    tokens: float | None = None


def rates_of(store: Store, first: int | None = None, last: int | None = None) -> Rates:
    """Return the number of steps, divided by the time from the end of the step before them to the end of the last.

    Samples and tokens are that rate times how many of them a step had, as measured now and then: their median.
    """
    steps = _pace(store, first, last)
    if steps is None:
        return Rates()
    return Rates(steps, *(_of_step(store, name, steps, first, last) for name in (SAMPLES_RATE, TOKENS_RATE)))


def recent(store: Store) -> int | None:
    """Return the first of the steps of which the rate of a running training is."""
    newest = store.steps().newest
    return None if newest is None else max(0, newest - RECENT_STEPS)


def _pace(store: Store, first: int | None, last: int | None) -> float | None:
    if TIME not in store.scalar_names():
        return None
    series = store.scalars(TIME, max(0, first - 1) if first else None, last, _POINTS)
    known = np.flatnonzero(np.isfinite(series.mean))
    if len(known) < 2:
        return None
    begin, end = known[0], known[-1]
    elapsed_s = float(series.max[end] - series.min[begin])
    return float(series.last_step[end] - series.first_step[begin]) / elapsed_s if elapsed_s > 0 else None


def _of_step(store: Store, name: str, pace: float, first: int | None, last: int | None) -> float | None:
    """Return the rate of what a step has several of."""
    if not {name, STEPS_RATE} <= set(store.scalar_names()):
        return None
    for begin in dict.fromkeys((first, None)):  # some steps have no measurement of their own
        found, steps = (store.scalars(each, begin, last, _POINTS) for each in (name, STEPS_RATE))
        each_step = _ratio(found, steps)
        if each_step is not None:
            return each_step * pace
    return None


def _ratio(found: Series, steps: Series) -> float | None:
    """Return the median of how many a step had, or None."""
    pace = dict(zip(steps.last_step.tolist(), steps.mean.tolist(), strict=True))
    many = [
        value / pace[step]
        for step, value in zip(found.last_step.tolist(), found.mean.tolist(), strict=True)
        if pace.get(step, 0.0) > 0 and math.isfinite(value)
    ]
    return float(np.median(many)) if many else None

"""The time of a training: its speed, what it waits for, and which rank is late."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import Finding
from hookcore.findings.losses import last_output, of_training
from hookcore.findings.rules import RULES, limits_of
from hookcore.records.vocabulary import (
    ELAPSED,
    EVALUATED,
    GRADIENT_WAIT,
    LATE_RANK,
    REDUCTION_WAIT,
    SAMPLES_RATE,
    STEPS_RATE,
    SYSTEM,
    TIME,
    TIME_BACKWARD,
    TIME_BEFORE,
    TIME_FORWARD,
    TIME_HOOKCORE,
    TIME_LOADING,
    TIME_OPTIMIZER,
    TIME_OTHER,
    TOKENS_RATE,
)
from hookcore.store import Series, Store, TapList
from hookcore.store.incidents import Found

PARTS: Final = {  # of the time of a step, in their order, and their words
    TIME_LOADING: "data loading",
    TIME_BEFORE: "before the model",
    TIME_FORWARD: "forward",
    TIME_BACKWARD: "backward",
    TIME_OPTIMIZER: "optimizer",
    TIME_OTHER: "other",
    TIME_HOOKCORE: "hookcore",
}
_UTILIZATION: Final = re.compile(re.escape(SYSTEM) + r"gpu(\d+)/utilization")
_POINTS: Final = 1000


def find_waits(store: Store, taps: TapList) -> list[Finding]:
    """Return what the training spends its time with, if that isn't training."""
    names = set(store.scalar_names())
    if not len(taps.taps) or (names.isdisjoint((TIME_LOADING, EVALUATED)) and not _gpus(names)):
        return []
    found = _slow_loading(store, taps, names), _long_evaluation(store, taps, names), _idle_gpu(store, taps, names)
    return [each for each in found if each is not None]


def _gpus(names: set[str]) -> list[str]:
    return sorted(filter(_UTILIZATION.fullmatch, names))


def _newest(store: Store, name: str, many: int) -> Series:
    """Return the newest values of a scalar that has one now and then."""
    found = store.scalars(name, points=_POINTS)
    begin = int(found.first_step[-many]) if len(found.mean) >= many else None
    return found if begin is None else store.scalars(name, begin, points=_POINTS)


def _slow_loading(store: Store, taps: TapList, names: set[str]) -> Finding | None:
    limits = limits_of(store, "slow-data-loading")
    loading = _newest(store, TIME_LOADING, int(limits["steps"])) if TIME_LOADING in names else None
    if loading is None or len(loading.mean) < limits["steps"]:
        return None
    since, last = int(loading.first_step[0]), int(loading.last_step[-1])
    known = [store.scalars(name, since, last, _POINTS) for name in PARTS if name in names and name != TIME_HOOKCORE]
    total = sum(float(np.nansum(each.mean * each.present)) for each in known) / float(loading.present.sum())
    each_s = float(np.nansum(loading.mean * loading.present)) / float(loading.present.sum())
    if not (total > 0 and each_s >= limits["share"] * total and each_s >= limits["least_s"]):
        return None
    text = (
        f"a step waits {_seconds(each_s)} of its {_seconds(total)} for the data loader, {each_s / total:.0%} of its "
        f"time, on average over {len(loading.mean):,} measured steps up to step {last:,}"
    )
    return of_training("slow-data-loading", taps, loading, (each_s, total), since, text)


def _long_evaluation(store: Store, taps: TapList, names: set[str]) -> Finding | None:
    limits = limits_of(store, "long-evaluation")
    if not {EVALUATED, TIME} <= names:
        return None
    spent, clock = store.scalars(EVALUATED, points=_POINTS), store.scalars(TIME, points=_POINTS)
    total = float(np.nanmax(clock.max) - np.nanmin(clock.min)) if np.isfinite(clock.mean).any() else 0.0
    evaluated = float(np.nanmax(spent.max)) if np.isfinite(spent.mean).any() else 0.0
    if total < limits["least_s"] or evaluated < limits["share"] * total:
        return None
    text = f"the model was in evaluation mode for {_seconds(evaluated)} of {_seconds(total)}, {evaluated / total:.0%}"
    first = int(spent.first_step[int((spent.max > 0).argmax())])
    return of_training("long-evaluation", taps, spent, (evaluated, total), first, f"{text} of the time")


def _idle_gpu(store: Store, taps: TapList, names: set[str]) -> Finding | None:
    limits = limits_of(store, "idle-gpu")
    for name in _gpus(names):
        used = _newest(store, name, int(limits["samples"]))
        mean = float(np.nanmean(used.mean)) if np.isfinite(used.mean).any() else float("nan")
        if len(used.mean) < limits["samples"] or not mean < 100 * limits["share"]:
            continue
        number, since = name.removeprefix(f"{SYSTEM}gpu").partition("/")[0], int(used.first_step[0])
        text = f"GPU {number} has been busy {mean:.0f}% of the time since step {since:,}{_longest(store, names)}"
        return of_training("idle-gpu", taps, used, (mean, 100.0), since, text)
    return None


def _longest(store: Store, names: set[str]) -> str:
    """Say what the newest measured steps spend most of their time with."""
    known = {name: _newest(store, name, 8) for name in PARTS if name in names}
    seconds = {name: float(np.nanmean(each.mean)) for name, each in known.items() if np.isfinite(each.mean).any()}
    total = sum(seconds.values())
    if not total > 0:
        return ""
    longest = max(seconds, key=lambda name: seconds[name])
    return f"; a step takes {_seconds(total)}, {seconds[longest] / total:.0%} of it {PARTS[longest]}"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 else f"{value:.2g} s" if value >= 1 else f"{1000 * value:.3g} ms"


# Which rank is late, from how long each one waits for the others at the end of a step's backward passes. Pure.
#
# The rank that waits least arrived last: the reduction of gradients ends for all at once. No clocks are compared.

Floats = NDArray[np.float64]
POINTS: Final = 2**13  # more in the same steps would be merged
STEPS: Final = 64  # the newest ones that all ranks have captured
REACHES: Final = (2**10, 2**13, 2**16)  # how many steps back they are searched, until there are enough


class OfRank(Protocol):
    """A rank's store, and by how much its steps are shifted in the run of all ranks."""

    @property
    def rank(self) -> int: ...

    @property
    def store(self) -> Store: ...

    @property
    def shift(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Seconds per rank, as means over the same steps."""

    name: str  # of the measured value
    steps: int
    first: int
    last: int
    ranks: tuple[int, ...]
    wait_s: Floats
    share: Floats  # of a step's time
    after_first_s: Floats  # how much later its last gradient came than that of the first rank
    was_last: NDArray[np.int64]  # the number of steps
    elapsed_s: float

    def latest(self, limits: Mapping[str, float]) -> int | None:
        """Return the rank that is noticeably late in most steps, or None."""
        place = int(self.was_last.argmax())
        often = self.was_last[place] >= limits["mostly"] * self.steps and self.steps >= limits["steps"]
        return self.ranks[place] if often and self.after_first_s[place] >= limits["share"] * self.elapsed_s else None

    def of(self, rank: int) -> int | None:
        """Return the place of a rank."""
        return self.ranks.index(rank) if rank in self.ranks else None


def waits_of(ranks: Sequence[OfRank], first: int | None = None, last: int | None = None) -> Waits | None:
    """Return how long ranks wait in these steps, or the newest; None unless two know it of the same steps."""
    for name in (REDUCTION_WAIT, GRADIENT_WAIT):
        having = [rank for rank in ranks if name in rank.store.scalar_names()]
        if len(having) > 1:
            return _waits(name, having, first, last)
    return None


def late_rank(joint: Store, ranks: Sequence[OfRank], last: int) -> Found | None:
    """Return what is found in the run of all ranks if one kept the others waiting in the steps up to `last`."""
    waits, taps = waits_of(ranks, None, last), joint.taps()
    latest = None if waits is None else waits.latest(limits_of(joint, LATE_RANK))
    if waits is None or latest is None or not len(taps.taps):
        return None
    place = waits.ranks.index(latest)
    late, often = float(waits.after_first_s[place]), int(waits.was_last[place])
    text = (
        f"rank {latest} is late: it was last in {often:,} of {waits.steps:,} steps, on average {1000 * late:.3g} ms "
        f"after the first rank, {late / waits.elapsed_s:.0%} of a step, in which the others wait"
    )
    number = int(taps.numbers[taps.fact(last_output)])
    severity = RULES[LATE_RANK].severity
    about = number, late, waits.elapsed_s, waits.first, None, text, ((number, waits.first),)
    return Found(LATE_RANK, severity, *about, placed=False)


def _waits(name: str, ranks: Sequence[OfRank], first: int | None, last: int | None) -> Waits | None:
    steps, longest = np.empty(0, np.int64), max(_length_of(rank.store) for rank in ranks)
    for reach in REACHES:
        read = [[_exact(rank, what, first, last, reach) for rank in ranks] for what in (name, ELAPSED)]
        common = reduce(np.intersect1d, [found[0] for found in (*read[0], *read[1])])[-STEPS:]
        if len(common) > len(steps):
            steps, (waits, times) = common, read
        if len(steps) == STEPS or reach >= longest:
            break
    if not len(steps):
        return None
    wait, time = (np.stack([values[np.isin(at, steps)] for at, values in found]) for found in (waits, times))
    after_first = wait.max(axis=0) - wait
    is_least = wait == wait.min(axis=0)
    was_last = (is_least & (is_least.sum(axis=0) == 1)).sum(axis=1)
    elapsed_s = float(time.mean())
    share = wait.mean(axis=1) / time.mean(axis=1)
    numbers = tuple(rank.rank for rank in ranks)
    means = wait.mean(axis=1), share, after_first.mean(axis=1)
    return Waits(name, len(steps), int(steps[0]), int(steps[-1]), numbers, *means, was_last, elapsed_s)


def _length_of(store: Store) -> int:
    known = store.steps()
    return 0 if known.first is None or known.newest is None else known.newest - known.first + 1


def _exact(
    each: OfRank, name: str, first: int | None, last: int | None, reach: int
) -> tuple[NDArray[np.int64], Floats]:
    """Return the steps with an exact value, in the count of the run of all ranks, and the values."""
    store: Store = each.store
    newest = store.steps().newest
    if newest is None or name not in store.scalar_names():
        return np.empty(0, np.int64), np.empty(0)
    end = newest if last is None else min(newest, last - each.shift)
    begin = end - reach + 1 if first is None else max(end - reach + 1, first - each.shift)
    series = store.scalars(name, begin, end, POINTS)
    exact = (series.first_step == series.last_step) & np.isfinite(series.mean)
    return series.first_step[exact] + each.shift, series.mean[exact]


# The speed of a training: the one definition of its steps, samples, and tokens per second.

RECENT_STEPS: Final = 200  # newest steps of which the rate of a running training is


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

"""Which rank is late, from how long each one waits for the others at the end of a step's backward passes. Pure.

The rank that waits least arrived last: the reduction of gradients ends for all at once. No clocks are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.loss import last_output
from hookcore.findings.rules import RULES, limits_of
from hookcore.records.vocabulary import ELAPSED, GRADIENT_WAIT, LATE_RANK, REDUCTION_WAIT
from hookcore.store import Store
from hookcore.store.incidents import Found

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


@dataclass(frozen=True, slots=True)
class RankTimes:
    """A rank that may be late."""

    rank: int
    store: Store
    shift: int = 0


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
        having = [each for each in ranks if name in each.store.scalar_names()]
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
    return Found(LATE_RANK, severity, *about)


def _waits(name: str, ranks: Sequence[OfRank], first: int | None, last: int | None) -> Waits | None:
    steps, longest = np.empty(0, np.int64), max(_length_of(each.store) for each in ranks)
    for reach in REACHES:
        read = [[_exact(each, what, first, last, reach) for each in ranks] for what in (name, ELAPSED)]
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
    numbers = tuple(each.rank for each in ranks)
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

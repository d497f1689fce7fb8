"""Adds up what all ranks of a training have stored, and stores the sums over steps, so that questions read few rows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, STATS, Tap
from hookcore.records.vocabulary import ELAPSED, GRAD_SCALE, MICRO_BATCHES, SAMPLES_RATE, TIME, TOKENS_RATE

from .adding import sums_of
from .asked import LARGE, Asked
from .attempts import Attempt
from .groups import begins_of
from .names import lane_of_scalar, lane_of_sum
from .rankrows import Logged, merge_scalar
from .rankshares import RankShares
from .ranksteps import RanksSteps
from .ranksums import Marks, number_of_sum
from .steprows import StepRows
from .sums import rollups_of
from .sumstore import Reach, are_named, count_lanes, count_scalars, insert, logged, mark, missing, read, ready
from .tables import BOTH, LEAF, SUM_LEVELS

MOST: Final = 100_000  # rows that are read at once
SETTLED_S: Final = 120.0  # after which steps that all ranks have stored are taken for whole: a collector may be late
DAMAGED_S: Final = 600.0  # for which steps that lack something are left alone
_LEAF: Final = 1 << LEAF  # steps
_OF_LEAVES: Final = SUM_LEVELS[: SUM_LEVELS.index(LEAF) + 1]
_RATES: Final = (SAMPLES_RATE, TOKENS_RATE)  # which of the ranks have batches of their own isn't known here
# Logged values that aren't simply the mean of the ranks, by lane. Names may be stored later than values.
_OTHERS: Final = {lane_of_scalar(name): name for name in (ELAPSED, GRAD_SCALE, MICRO_BATCHES, TIME, *_RATES)}
_VALUES: Final = [STAT_COLUMN[name] for name in ("mean", "min", "max")]


@dataclass(slots=True)
class _Known:
    """What was seen of one attempt."""

    seen: deque[tuple[float, Reach]] = field(default_factory=deque)  # how far it was, oldest first
    done: Reach | None = None  # up to which everything is stored that can be
    damaged: dict[int, float] = field(default_factory=dict)  # leaves, and when that was seen

    def settled(self, reach: Reach, after_s: float) -> Reach:
        """Return how far it was so long ago."""
        now = time.monotonic()
        if not self.seen or self.seen[-1][1] != reach:
            self.seen.append((now, reach))
        while len(self.seen) > 1 and self.seen[1][0] <= now - after_s:
            self.seen.popleft()
        at, found = self.seen[0]
        return found if at <= now - after_s else Reach(-1, False)

    def is_damaged(self, leaf: int) -> bool:
        return time.monotonic() - self.damaged.get(leaf, float("-inf")) < DAMAGED_S


class Adder:
    """Does this for one training. Any number of servers may: they store the same, and it counts once.

    `rest` is called now and then, with the seconds since its last call, to leave the processor to others.
    """

    def __init__(
        self,
        attempts: Callable[[], Sequence[Attempt]],
        steps: RanksSteps,
        rest: Callable[[float], object] = lambda seconds: None,
        settled_s: float = SETTLED_S,
    ) -> None:
        self._attempts, self._steps, self._rest, self._settled_s = attempts, steps, rest, settled_s
        self._shares = RankShares(steps.progress_of, self._note)
        self._about: dict[int, _Known] = {}  # by the number of the sum
        self._lacks = False  # something of the steps that are added up just now
        self._since = time.monotonic()  # the last rest

    def advance(self) -> bool:
        """Store sums of some steps; return whether there may be more. Raises HookcoreError if that isn't possible."""
        self._since = time.monotonic()
        self._steps.stored_until()
        is_done = not any(self._advance(each) for each in self._attempts() if 0 < len(each.ranks) == each.world)
        self._pause()
        return not is_done

    def _pause(self) -> None:
        self._rest(time.monotonic() - self._since)
        self._since = time.monotonic()

    def _note(self, question: Hashable, why: str) -> None:
        self._lacks = True

    def _advance(self, attempt: Attempt) -> bool:
        known = self._about.setdefault(number_of_sum(attempt), _Known())
        reach = known.settled(self._reach_of(attempt), self._settled_s)
        if reach.last < 0 or reach == known.done or self._is_small(attempt):
            return False
        marks = Marks.of(attempt)
        if leaves := [each for each in missing(marks, LEAF, reach) if not known.is_damaged(each)]:
            self._add_leaves(attempt, known, leaves, reach)
            return True
        for below, level in pairwise(SUM_LEVELS[1:]):
            if buckets := ready(marks, below, level, reach):
                self._join(attempt, below, level, buckets, reach)
                return True
        known.done = None if known.damaged else reach
        return False

    def _reach_of(self, attempt: Attempt) -> Reach:
        newest = {each: self._steps.progress_of(each).newest for each in attempt.ranks}
        waited = [newest[each] for each in attempt.ranks if not each.is_settled]
        last = min(waited) if waited else max(newest.values())
        if attempt.end is None or last < attempt.end - attempt.shift:
            return Reach(last, not waited)
        return Reach(attempt.end - 1 - attempt.shift, True)

    def _is_small(self, attempt: Attempt) -> bool:
        """Return whether any question about an attempt is answered at once."""
        return sum(self._steps.progress_of(each).captured * max(1, len(each.taps())) for each in attempt.ranks) <= LARGE

    def _add_leaves(self, attempt: Attempt, known: _Known, leaves: Sequence[int], reach: Reach) -> None:
        """Store the sums of some neighboring leaves, as many as can be added up at once."""
        numbers = {each: each.taps() for each in attempt.ranks}
        taps = [*dict.fromkeys(tap for each in numbers.values() for tap in each)]
        progress = [self._steps.progress_of(each) for each in attempt.ranks]
        captured = sum(each.captured / max(1, each.newest + 1) for each in progress)
        each = max(1.0, _LEAF * captured)  # about so many rows has a tap in a leaf
        many = _neighbors(leaves, MOST / (each * len(taps) + _LEAF * len(progress) * count_scalars(attempt) + 1))
        steps = leaves[0] << LEAF, min(reach.last, ((leaves[0] + many) << LEAF) - 1)
        self._lacks, width = not are_named(attempt, numbers, steps), max(1, int(MOST / (each * many)))
        parts = [taps[first : first + width] for first in range(0, len(taps), width)]
        sums = [self._sums_of_scalars(attempt, steps)]
        sums += [self._sums_of_taps(attempt, part, steps) for part in parts]
        if not self._lacks:
            for rows in sums:
                insert(attempt, rollups_of(rows, _OF_LEAVES), reach)
            known.damaged.pop(leaves[0], None)
            mark(attempt, LEAF, leaves[:many], reach)
        elif many > 1:  # find out which ones these are
            for leaf in leaves[:many]:
                self._add_leaves(attempt, known, [leaf], reach)
        else:
            known.damaged[leaves[0]] = time.monotonic()

    def _sums_of_taps(self, attempt: Attempt, taps: Sequence[Tap], steps: tuple[int, int]) -> StepRows:
        found = []
        asked = Asked.of(attempt, steps, taps, lambda tap: False)
        self._shares.note_without_rows(asked)
        lanes = np.array([lane_of_sum(tap) for tap in taps], np.uint64)
        for sums in sums_of(asked, STATS, self._shares) if asked.rows else ():
            found.append(_rows(lanes[sums.lane], sums.step, sums.stats.T))
        self._pause()
        return StepRows.join([_rows(lanes[:0], np.empty(0), np.empty((len(STATS), 0))), *found])

    def _sums_of_scalars(self, attempt: Attempt, steps: tuple[int, int]) -> StepRows:
        lane, said = logged(attempt, steps)
        self._shares.without_lost(attempt.ranks, steps, said)
        frames = np.unique(said.some(lane == lane_of_scalar(TIME)).step, return_counts=True)
        found = [_rows(lane[:0], np.empty(0), np.empty((len(STATS), 0)))]
        begins = begins_of(lane)
        for begin, end in zip(begins, np.append(begins[1:], len(lane)), strict=True):
            number, part = int(lane[begin]), slice(begin, end)
            name = _OTHERS.get(number, "")  # of all others, it doesn't matter
            if name not in _RATES:
                step, value = merge_scalar(name, Logged(said.rank[part], said.step[part], said.value[part]), frames)
                stats = np.zeros((len(STATS), len(value)))
                stats[_VALUES] = np.where(np.isfinite(value), value, np.nan)
                stats[STAT_COLUMN["nan"]] = ~np.isfinite(value)
                found.append(_rows(np.full(len(step), number, np.uint64), step, stats))
        return StepRows.join(found)

    @staticmethod
    def _join(attempt: Attempt, below: int, level: int, buckets: Sequence[int], reach: Reach) -> None:
        """Store neighboring buckets of a level as the sums of those below, as many as can be read at once."""
        up, most = level - below, max(1, count_lanes(attempt, below, buckets[0] << (level - below)))
        many = _neighbors(buckets, MOST / (most << up))
        found = read(attempt, below, (buckets[0] << up, (buckets[0] + many << up) - 1))
        insert(attempt, [found.coarser(level)], reach)
        mark(attempt, level, buckets[:many], reach)


def _neighbors(numbers: Sequence[int], most: float) -> int:
    """Return how many of ascending numbers follow each other from the first one on: one at least, and not too many."""
    many = 1
    while many + 1 <= min(most, len(numbers)) and numbers[many] == numbers[0] + many:
        many += 1
    return many


def _rows(lane: NDArray[np.uint64], step: NDArray[Any], stats: NDArray[Any]) -> StepRows:
    many = len(lane)
    about = np.zeros(many, np.uint64), np.zeros(many, np.int32), np.full(many, BOTH, np.uint8)
    return StepRows(lane, step.astype(np.uint64), *about, stats)

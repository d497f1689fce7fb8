"""Adds up what all ranks of a training have stored, and stores the sums over steps, so that questions read few rows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from .asked import LARGE, LARGE_SKETCHES
from .attempts import Attempt
from .leafsums import WINDOW, LeafSums
from .ranksteps import RanksSteps
from .ranksums import Marks, number_of_sum
from .sumstore import MOST, Reach, are_named, count_lanes, insert, mark, missing, read, ready
from .tables import LEAF, RANK_ROLLUPS, RANK_SKETCH_ROLLUPS, SumTable

SETTLED_S: Final = 120.0  # after which steps that all ranks have stored are taken for whole: a collector may be late
DAMAGED_S: Final = 600.0  # for which steps that lack something are left alone
_LEAF: Final = 1 << LEAF  # steps
_TABLES: Final = (RANK_ROLLUPS, RANK_SKETCH_ROLLUPS)  # values first, since they take less


@dataclass(slots=True)
class _Known:
    """The known state of one attempt."""

    seen: deque[tuple[float, Reach]] = field(default_factory=deque)  # how far it was, oldest first
    done: Reach | None = None  # up to which everything is stored that can be
    damaged: dict[tuple[str, int], float] = field(default_factory=dict)  # leaves of a table, and when that was seen

    def settled(self, reach: Reach, after_s: float) -> Reach:
        """Return how far it was so long ago."""
        now = time.monotonic()
        if not self.seen or self.seen[-1][1] != reach:
            self.seen.append((now, reach))
        while len(self.seen) > 1 and self.seen[1][0] <= now - after_s:
            self.seen.popleft()
        at, found = self.seen[0]
        return found if at <= now - after_s else Reach(-1, False)

    def is_damaged(self, table: SumTable, leaf: int) -> bool:
        return time.monotonic() - self.damaged.get((table.name, leaf), float("-inf")) < DAMAGED_S


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
        self._sums = LeafSums(steps.progress_of, self._note, self._pause)
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
        if reach.last < 0 or reach == known.done:
            return False
        if any(self._advance_in(table, attempt, known, reach) for table in _TABLES):
            return True
        known.done = None if known.damaged else reach
        return False

    def _advance_in(self, table: SumTable, attempt: Attempt, known: _Known, reach: Reach) -> bool:
        """Store some sums in a table; return whether there were any."""
        rows, at_once = self._rows_of(attempt), LARGE if table is RANK_ROLLUPS else LARGE_SKETCHES
        if rows <= at_once:  # any question is answered at once
            return False
        marks = Marks.of(attempt, table)
        leaves = [each for each in missing(marks, LEAF, reach) if not known.is_damaged(table, each)]
        is_enough = len(leaves) >= WINDOW or len(leaves) * rows / ((reach.last >> LEAF) + 1) > at_once
        if leaves and (is_enough or reach.is_last):
            self._add_leaves(table, attempt, known, leaves, reach)
            return True
        for below, level in pairwise(table.levels[table.levels.index(LEAF) :]):
            if buckets := ready(marks, below, level, reach):
                self._join(table, attempt, below, level, buckets, reach)
                return True
        return False

    def _reach_of(self, attempt: Attempt) -> Reach:
        newest = {each: self._steps.progress_of(each).newest for each in attempt.ranks}
        waited = [newest[each] for each in attempt.ranks if not each.is_settled]
        last = min(waited) if waited else max(newest.values())
        if attempt.end is None or last < attempt.end - attempt.shift:
            return Reach(last, not waited)
        return Reach(attempt.end - 1 - attempt.shift, True)

    def _rows_of(self, attempt: Attempt) -> int:
        """Return about how many rows the ranks of an attempt have."""
        return sum(self._steps.progress_of(each).captured * max(1, len(each.taps())) for each in attempt.ranks)

    def _add_leaves(
        self, table: SumTable, attempt: Attempt, known: _Known, leaves: Sequence[int], reach: Reach
    ) -> None:
        """Store the sums of some neighboring leaves, as many as can be added up at once."""
        numbers = {each: each.taps() for each in attempt.ranks}
        taps = [*dict.fromkeys(tap for each in numbers.values() for tap in each)]
        progress = [self._steps.progress_of(each) for each in attempt.ranks]
        each = max(1.0, _LEAF * sum(each.captured / max(1, each.newest + 1) for each in progress))  # rows of a tap
        many = _neighbors(leaves, self._sums.most_leaves(table, attempt, len(taps), each))
        steps = leaves[0] << LEAF, min(reach.last, ((leaves[0] + many) << LEAF) - 1)
        self._lacks = not are_named(attempt, numbers, steps)
        found = self._sums.of(table, attempt, taps, steps)
        if not self._lacks:
            insert(table, attempt, found, reach)
            known.damaged.pop((table.name, leaves[0]), None)
            mark(table, attempt, LEAF, leaves[:many], reach)
        elif many > 1:  # find out which ones these are
            for leaf in leaves[:many]:
                self._add_leaves(table, attempt, known, [leaf], reach)
        else:
            known.damaged[table.name, leaves[0]] = time.monotonic()

    def _join(
        self, table: SumTable, attempt: Attempt, below: int, level: int, buckets: Sequence[int], reach: Reach
    ) -> None:
        """Store neighboring buckets of a level as the sums of those below, as many as can be read at once."""
        up, most = level - below, MOST[table.name]
        each = max(1, count_lanes(table, attempt, below, buckets[0] << up)) << up
        many = _neighbors(buckets, most / each)
        for part in range(parts := -(-each * many // most)):  # of the lanes, if one bucket of all is too much
            found = read(table, attempt, below, (buckets[0] << up, (buckets[0] + many << up) - 1), (part, parts))
            insert(table, attempt, [found.coarser(level)], reach)
            self._pause()
        mark(table, attempt, level, buckets[:many], reach)


def _neighbors(numbers: Sequence[int], most: float) -> int:
    """Return how many of ascending numbers follow each other from the first one on: one at least, and not too many."""
    many = 1
    while many + 1 <= min(most, len(numbers)) and numbers[many] == numbers[0] + many:
        many += 1
    return many

"""Adds up what all ranks of a training have stored, and stores the sums over steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, STATS, Tap
from hookcore.records.sketch import places_of
from hookcore.records.vocabulary import ELAPSED, GRAD_SCALE, MICRO_BATCHES, THROUGHPUT, TIME

from .attempts import Attempt, Marks, Progress, RankRun
from .questions import RunQuery, begins_of, pieces_of, sketches_sql
from .rankrows import Logged, Sums, merge_scalar
from .rankshares import RankShares, sums_of
from .rankspast import RanksPast
from .ranksquery import LARGE, LARGE_SKETCHES, Part, RanksQuery
from .ranksums import (
    MOST,
    Reach,
    StepSpan,
    SumMarks,
    are_named,
    count_frames,
    count_lanes,
    count_scalars,
    insert,
    logged,
    mark,
    missing,
    number_of_sum,
    read,
    ready,
)
from .schema import (
    BOTH,
    LEAF,
    RANK_ROLLUPS,
    RANK_SKETCH_ROLLUPS,
    SKETCH_LEVELS,
    SUM_LEVELS,
    Table,
    lane_of_scalar,
    lane_of_sum,
)
from .steprows import Buckets, SketchBuckets, StepRows, rollups_of

WINDOW: Final = 16  # leaves for which a live training waits: ClickHouse reads 1,024 neighboring rows at least
_LEAF: Final = 1 << LEAF  # steps
_OF_LEAVES: Final = SUM_LEVELS[: SUM_LEVELS.index(LEAF) + 1]
_PER_LEAF: Final = sum(_LEAF >> level for level in _OF_LEAVES)  # rows that are stored of a lane
# Logged values that aren't simply the mean of the ranks, by lane. Names may be stored later than values.
_OTHERS: Final = {lane_of_scalar(name): name for name in (ELAPSED, GRAD_SCALE, MICRO_BATCHES, TIME, *THROUGHPUT)}
_VALUES: Final = [STAT_COLUMN[name] for name in ("mean", "min", "max")]
_NEEDED: Final = ("count", "nan", "inf", "sketched")


class LeafSums:
    """Makes them. `note` gets the reason if something is missing; `pause` is called now and then."""

    def __init__(
        self,
        progress_of: Callable[[RankRun], Progress],
        note: Callable[[Hashable, str], None],
        pause: Callable[[], None],
    ) -> None:
        self._progress_of, self._pause = progress_of, pause
        self._shares = RankShares(progress_of, note)
        self._marks = Marks()

    def most_leaves(self, table: Table, attempt: Attempt, taps: int, rows_of_tap: float) -> float:
        """Return how many leaves can be added up together, given the approximate number of rows of a tap in each."""
        most, ranks = MOST[table.name], len(attempt.ranks)
        if table is RANK_ROLLUPS:
            logged_values = _LEAF * ranks * count_scalars(attempt) / 4  # of which few columns are read
            read, stored = max(rows_of_tap, logged_values), _PER_LEAF * taps
        else:
            read, stored = ranks, taps
        return most / max(1, read, stored)

    def of(
        self, table: Table, attempt: Attempt, taps: Sequence[Tap], steps: StepSpan
    ) -> Sequence[Buckets] | Sequence[SketchBuckets]:
        """Return what a table has of leaves."""
        if table is RANK_SKETCH_ROLLUPS:
            return [self._histograms(attempt, taps, steps)]
        return [rollup for rows in self._values(attempt, taps, steps) for rollup in rollups_of(rows, _OF_LEAVES)]

    # -- values --------------------------------------------------------------------------------------------------------

    def _values(self, attempt: Attempt, taps: Sequence[Tap], steps: StepSpan) -> Iterator[StepRows]:
        """Yield the sums of each step."""
        yield self._of_scalars(attempt, steps)
        frames = max(1, count_frames(attempt, steps))
        for some in _parts(taps, MOST[RANK_ROLLUPS.name] / frames):
            yield self._of_taps(attempt, some, steps, frames * len(some))

    def _of_taps(self, attempt: Attempt, taps: Sequence[Tap], steps: StepSpan, rows: int) -> StepRows:
        found = []
        asked = RanksQuery.of(attempt, steps, taps, rows=rows)
        self._shares.note_without_rows(asked)
        lanes = _lanes(taps)
        for sums in sums_of(asked, STATS, self._shares):
            found.append(_rows(lanes[sums.lane], sums.step, sums.stats.T))
        self._pause()
        return StepRows.join([_rows(lanes[:0], np.empty(0), np.empty((len(STATS), 0))), *found])

    def _of_scalars(self, attempt: Attempt, steps: StepSpan) -> StepRows:
        lane, said = logged(attempt, steps)
        self._shares.without_lost(attempt.ranks, steps, said)
        frames = np.unique(said.some(lane == lane_of_scalar(TIME)).step, return_counts=True)
        found = [_rows(lane[:0], np.empty(0), np.empty((len(STATS), 0)))]
        begins = begins_of(lane)
        for begin, end in zip(begins, np.append(begins[1:], len(lane)), strict=True):
            number, part = int(lane[begin]), slice(begin, end)
            name = _OTHERS.get(number, "")  # of all others, it doesn't matter
            if name not in THROUGHPUT:  # they depend on the steps before
                step, value = merge_scalar(name, Logged(said.rank[part], said.step[part], said.value[part]), frames)
                stats = np.zeros((len(STATS), len(value)))
                stats[_VALUES] = np.where(np.isfinite(value), value, np.nan)
                stats[STAT_COLUMN["nan"]] = ~np.isfinite(value)
                found.append(_rows(np.full(len(step), number, np.uint64), step, stats))
        return StepRows.join(found)

    # -- histograms ----------------------------------------------------------------------------------------------------

    def _histograms(self, attempt: Attempt, taps: Sequence[Tap], steps: StepSpan) -> SketchBuckets:
        """Return the sums of leaves."""
        leaves, parts = ((steps[1] - steps[0]) >> LEAF) + 1, [_no_buckets()]
        if not count_frames(attempt, steps, "sketches"):
            return parts[0]
        self._shares.note_lost_histograms(attempt.ranks, steps)  # sums over the steps of ranks don't show it
        for some in _parts(taps, MOST[RANK_SKETCH_ROLLUPS.name] / (leaves * len(attempt.ranks))):
            asked = RanksQuery.of(attempt, steps, some)
            self._shares.note_without_rows(asked)
            lanes = _lanes(some)
            if asked.held and self._marks.are_sure(attempt.ranks, self._progress_of):
                parts += [_of_ranks(part, asked.held, steps, lanes) for part in asked.held_parts()]
                asked = asked.others()
            if asked.parts and asked.rows:
                for sums in sums_of(asked, _NEEDED, self._shares, with_sketches=True):
                    parts.append(_of_steps(sums, lanes))
                    self._pause()
            self._pause()
        return SketchBuckets.join(parts)


def _of_ranks(
    part: Part, held: Mapping[int, frozenset[int]], steps: StepSpan, lanes: NDArray[np.uint64]
) -> SketchBuckets:
    """Return the sums of what ranks have stored over their steps, which are the same steps of all ranks that count."""
    pieces = tuple(pieces_of(*steps, LEAF, SKETCH_LEVELS))
    found = part.shard.read(sketches_sql([RunQuery(rank.run, tuple(part.numbers), pieces) for rank in part.ranks]))
    if not len(found.numbers("run")):
        return _no_buckets()
    place, counting = part.lanes_of(found), np.zeros(len(lanes), np.int64)
    counting[part.places] = [min(held[each]) for each in part.places.tolist()]  # the rank whose steps are counted
    captured = np.where(part.ranks_of(found) == counting[place], found.numbers("steps"), 0).astype(np.uint32)
    about = LEAF, lanes[place], found.numbers("first") >> np.uint64(LEAF), captured
    bins, counts = found.histograms()
    return SketchBuckets(*about, bins.starts, bins.values, counts.astype(np.uint64))


def _of_steps(sums: Sums, lanes: NDArray[np.uint64]) -> SketchBuckets:
    """Return the sums of what all ranks have in single steps."""
    begins = sums.block.start.astype(np.int64)
    has = np.flatnonzero(np.diff(begins))
    starts, places = places_of(begins, has)
    lane, bucket = lanes[sums.lane[has]], sums.step[has].astype(np.uint64) >> np.uint64(LEAF)
    values = sums.block.bins[places], sums.block.counts[places].astype(np.uint64)
    return SketchBuckets.join([SketchBuckets(LEAF, lane, bucket, np.ones(len(has), np.uint32), starts, *values)])


def _no_buckets() -> SketchBuckets:
    none = np.empty(0, np.uint64)
    return SketchBuckets(LEAF, none, none, none.astype(np.uint32), np.zeros(1, np.int64), none.astype(np.uint16), none)


def _parts(taps: Sequence[Tap], most: float) -> Iterator[Sequence[Tap]]:
    width = max(1, int(most))
    for first in range(0, len(taps), width):
        yield taps[first : first + width]


def _lanes(taps: Sequence[Tap]) -> NDArray[np.uint64]:
    return np.array([lane_of_sum(tap) for tap in taps], np.uint64)


def _rows(lane: NDArray[np.uint64], step: NDArray[Any], stats: NDArray[Any]) -> StepRows:
    many = len(lane)
    about = np.zeros(many, np.uint64), np.zeros(many, np.int32), np.full(many, BOTH, np.uint8)
    return StepRows(lane, step.astype(np.uint64), *about, stats)


SETTLED_S: Final = 120.0  # after which steps that all ranks have stored are taken for whole: a collector may be late
DAMAGED_S: Final = 600.0  # for which steps that lack something are left alone
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

    def is_damaged(self, table: Table, leaf: int) -> bool:
        return time.monotonic() - self.damaged.get((table.name, leaf), float("-inf")) < DAMAGED_S


class Adder:
    """Does this for one training. Any number of servers may: they store the same, and it counts once.

    `rest` is called now and then, with the seconds since its last call, to leave the processor to others.
    """

    def __init__(
        self,
        attempts: Callable[[], Sequence[Attempt]],
        steps: RanksPast,
        rest: Callable[[float], object] = lambda seconds: None,
        settled_s: float = SETTLED_S,
    ) -> None:
        self._attempts, self._steps, self._rest, self.settled_s = attempts, steps, rest, settled_s
        self._sums = LeafSums(steps.progress_of, self._note, self._pause)
        self._about: dict[int, _Known] = {}  # by the number of the sum
        self._lacks = False  # something of the steps that are added up just now
        self._since = time.monotonic()  # the last rest

    def advance(self) -> bool:
        """Store sums of some steps; return whether there may be more. Raises HookcoreError if that isn't possible."""
        self._since = time.monotonic()
        self._steps.stored_until()
        is_done = not any(
            self._advance(attempt) for attempt in self._attempts() if 0 < len(attempt.ranks) == attempt.world
        )
        self._pause()
        return not is_done

    def _pause(self) -> None:
        self._rest(time.monotonic() - self._since)
        self._since = time.monotonic()

    def _note(self, question: Hashable, why: str) -> None:
        self._lacks = True

    def _advance(self, attempt: Attempt) -> bool:
        known = self._about.setdefault(number_of_sum(attempt), _Known())
        reach = known.settled(self._reach_of(attempt), self.settled_s)
        if reach.last < 0 or reach == known.done:
            return False
        if any(self._advance_in(table, attempt, known, reach) for table in _TABLES):
            return True
        known.done = None if known.damaged else reach
        return False

    def _advance_in(self, table: Table, attempt: Attempt, known: _Known, reach: Reach) -> bool:
        """Store some sums in a table; return whether there were any."""
        rows, at_once = self._rows_of(attempt), LARGE if table is RANK_ROLLUPS else LARGE_SKETCHES
        if rows <= at_once:  # any question is answered at once
            return False
        marks = SumMarks.of(attempt, table)
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
        newest = {rank: self._steps.progress_of(rank).newest for rank in attempt.ranks}
        waited = [newest[rank] for rank in attempt.ranks if not rank.is_settled]
        last = min(waited) if waited else max(newest.values())
        if attempt.end is None or last < attempt.end - attempt.shift:
            return Reach(last, not waited)
        return Reach(attempt.end - 1 - attempt.shift, True)

    def _rows_of(self, attempt: Attempt) -> int:
        """Return about how many rows the ranks of an attempt have."""
        return sum(self._steps.progress_of(rank).captured * max(1, len(rank.taps())) for rank in attempt.ranks)

    def _add_leaves(self, table: Table, attempt: Attempt, known: _Known, leaves: Sequence[int], reach: Reach) -> None:
        """Store the sums of some neighboring leaves, as many as can be added up at once."""
        numbers = {rank: rank.taps() for rank in attempt.ranks}
        taps = [*dict.fromkeys(tap for theirs in numbers.values() for tap in theirs)]
        progress = [self._steps.progress_of(rank) for rank in attempt.ranks]
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
        self, table: Table, attempt: Attempt, below: int, level: int, buckets: Sequence[int], reach: Reach
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

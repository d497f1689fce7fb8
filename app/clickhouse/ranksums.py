"""Sums of ranks over steps, as some server has stored them: which steps they cover, and their rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.store.rows import Rows
from hookcore.store.sketches import SketchRows

from .asked import LARGE, LARGE_SKETCHES
from .attempts import Attempt, Progress, RankRun
from .client import Shard
from .groups import begins_of
from .levels import EXACT, Budget
from .names import number_of_run
from .native import Answer
from .questions import in_lanes
from .rankanswers import sketches_over
from .runanswers import rows_of
from .tables import LEAF, MARK, RANK_ROLLUPS, RANK_SKETCH_ROLLUPS, SKETCH_LEVELS, SUM_LEVELS, SumTable

FRESH_S: Final = 5.0  # for which it is believed what is stored
MAX_NAMED: Final = 2000  # lanes that are named in a question; of more, all are read
MAX_STRETCHES: Final = 64  # of covered steps for one question

Steps = tuple[int, int]
OfAttempt = tuple[Attempt, Steps]  # some steps of an attempt
Places = NDArray[np.intp]


def number_of_sum(attempt: Attempt) -> int:
    """Return the number under which the sums of an attempt are stored. Those of other ranks have another one."""
    return number_of_run(" ".join(["ranks", *sorted(each.id for each in attempt.ranks)]))


def home_of(attempt: Attempt) -> Shard:
    """Return the shard that has the sums: that of the lowest rank."""
    return min(attempt.ranks, key=lambda each: each.rank).shard


def newest_of(found: Answer) -> Places:
    """Return the rows that count, by level, lane, and bucket: of those that are there several times, the newest."""
    level, lane, bucket = (found.numbers(name) for name in ("level", "lane", "bucket"))
    if not len(level):
        return np.empty(0, np.intp)
    order = np.lexsort((found.numbers("version"), bucket, lane, level))
    begins = begins_of(level[order], lane[order], bucket[order])
    found_at: Places = order[np.append(begins[1:], len(order)) - 1]
    return found_at


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Neighboring buckets of a level, and the last step that is in them."""

    level: int
    first: int
    last: int
    end: int

    @property
    def begin(self) -> int:
        """The first step."""
        return self.first << self.level

    @property
    def where(self) -> str:
        return f"level = {self.level} AND bucket BETWEEN {self.first} AND {self.last}"


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """Which buckets a table has, by level: ascending, with how many of their steps are in them."""

    stored: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)
    levels: tuple[int, ...] = SUM_LEVELS

    @classmethod
    def of(cls, attempt: Attempt, table: SumTable = RANK_ROLLUPS) -> Marks:
        run = number_of_sum(attempt)
        found = home_of(attempt).read(
            f"SELECT level, bucket, max(present) AS steps FROM {table.name} WHERE run = {run} AND lane = {MARK} "
            "GROUP BY level, bucket ORDER BY level, bucket"
        )
        level, bucket, steps = (found.numbers(name).astype(np.int64) for name in ("level", "bucket", "steps"))
        here = {each: np.flatnonzero(level == each) for each in np.unique(level).tolist()}
        return cls({each: (bucket[rows], steps[rows]) for each, rows in here.items()}, table.levels)

    def until(self, step: int) -> tuple[int, ...]:
        """Return how many buckets of each level are stored up to a step."""
        return tuple(int(buckets.searchsorted((step >> level) + 1)) for level, (buckets, _) in self.stored.items())

    def stretches(self, level: int, steps: Steps) -> list[Stretch]:
        """Return the buckets of a level with steps of these only, of which all that there are is in them."""
        is_part = level < LEAF  # those of a leaf are stored with it
        buckets, counts = self.stored.get(LEAF if is_part else level, (np.empty(0, np.int64),) * 2)
        if is_part:
            ends = (buckets << LEAF) + counts
            buckets = (buckets[:, None] * (1 << (LEAF - level)) + np.arange(1 << (LEAF - level))).ravel()
            counts = np.minimum(np.repeat(ends, 1 << (LEAF - level)) - (buckets << level), 1 << level)
            buckets, counts = buckets[counts > 0], counts[counts > 0]
        begins = buckets << level
        inside = (begins >= steps[0]) & (begins + counts - 1 <= steps[1])
        buckets, ends = buckets[inside], (begins + counts - 1)[inside]
        if not len(buckets):
            return []
        is_new = np.append(True, (np.diff(buckets) > 1) | (ends[:-1] + 1 != buckets[1:] << level))
        firsts = np.flatnonzero(is_new)
        lasts = np.append(firsts[1:], len(buckets)) - 1
        return [
            Stretch(level, *each)
            for each in zip(buckets[firsts].tolist(), buckets[lasts].tolist(), ends[lasts].tolist(), strict=True)
        ]

    def cover(self, level: int, steps: Steps) -> tuple[list[Stretch], list[Steps]]:
        """Return buckets of a level, or of finer ones, and the steps that none of them has."""
        covered: list[Stretch] = []
        left = [steps]
        for each in sorted((each for each in self.levels if each <= level), reverse=True):
            rest: list[Steps] = []
            for part in left:
                found = self.stretches(each, part)
                covered += found
                rest += _without(part, found)
            left = rest
        return (covered, left) if len(covered) <= MAX_STRETCHES else ([], [steps])


def _without(steps: Steps, found: Sequence[Stretch]) -> Iterator[Steps]:
    """Yield the remaining steps."""
    begin = steps[0]
    for each in found:
        if begin < each.begin:
            yield begin, each.begin - 1
        begin = each.end + 1
    if begin <= steps[1]:
        yield begin, steps[1]


class RankSums:
    """Reads the sums, and caches for a moment what is stored."""

    def __init__(self, progress_of: Callable[[RankRun], Progress]) -> None:
        self._progress_of = progress_of
        self._marks: dict[tuple[int, str], tuple[float, Marks]] = {}  # by number and table

    def marks_of(self, attempt: Attempt, table: SumTable = RANK_ROLLUPS) -> Marks:
        """Return which sums of an attempt are stored; none while some of its ranks aren't known."""
        if len(attempt.ranks) < attempt.world:
            return Marks()
        key, now = (number_of_sum(attempt), table.name), time.monotonic()
        at, known = self._marks.get(key, (float("-inf"), Marks()))
        if now - at > FRESH_S:
            known = Marks.of(attempt, table)
            self._marks[key] = now, known
        return known

    def rows(
        self, stat: str, lanes: Sequence[int], within: Iterable[OfAttempt], budget: Budget, most: int
    ) -> tuple[list[Rows], list[OfAttempt]]:
        """Return the rows of some lanes where that saves much, and what is left, to be added up.

        That is what isn't stored or isn't much, or is too short for a level. Of more than `most` rows, any will do.
        """
        found: list[Rows] = []
        left: list[OfAttempt] = []
        for attempt, steps in within:
            level, many = budget.level(steps[1] - steps[0] + 1, SUM_LEVELS), len(lanes) * self._rows_in(attempt, steps)
            if many > most:
                level = max(level, SUM_LEVELS[0])
            if many <= LARGE or level == EXACT:
                left.append((attempt, steps))
                continue
            rows, rest = self._read(attempt, stat, lanes, level, steps)
            found.append(replace(rows, first=rows.first + attempt.shift, last=rows.last + attempt.shift))
            left += [(attempt, each) for each in rest]
        return found, left

    def sketches(
        self, lanes: Mapping[int, int], within: Iterable[OfAttempt], budget: Budget, most: int
    ) -> tuple[list[SketchRows], list[OfAttempt]]:
        """Return the sketches of some lanes, given with their taps, where that saves much, and what is left.

        If what is left at the ends of the steps is more than `most`, whole buckets are read there.
        """
        found: list[SketchRows] = []
        left: list[OfAttempt] = []
        for attempt, steps in within:
            level, of_step = (
                budget.level(steps[1] - steps[0] + 1, SKETCH_LEVELS),
                len(lanes) * self._rows_in(attempt, (0, 0)),
            )
            many = of_step * (steps[1] - steps[0] + 1)
            if many > most:
                level = max(level, LEAF)
            if many <= LARGE_SKETCHES or level == EXACT:
                left.append((attempt, steps))
                continue
            marks = self.marks_of(attempt, RANK_SKETCH_ROLLUPS)
            covered, rest = marks.cover(level, steps)
            if of_step * sum(last - first + 1 for first, last in rest) > most:
                whole = steps[0] >> LEAF << LEAF, (steps[1] | ((1 << LEAF) - 1))
                covered, rest = marks.cover(level, whole)
                rest = [
                    each for first, last in rest if (each := (max(first, steps[0]), min(last, steps[1])))[0] <= each[1]
                ]
            found += self._read_sketches(attempt, lanes, covered)
            left += [(attempt, each) for each in rest]
        return found, left

    @staticmethod
    def _read_sketches(attempt: Attempt, lanes: Mapping[int, int], covered: Sequence[Stretch]) -> list[SketchRows]:
        """Return the sketches of some lanes in buckets."""
        if not covered:
            return []
        where = " OR ".join(f"({each.where})" for each in covered)
        named = in_lanes(sorted(lanes)) if len(lanes) <= MAX_NAMED else f"lane != {MARK}"
        found = home_of(attempt).read(
            f"SELECT level, lane, bucket, version, present, bins, counts FROM rank_sketch_rollups "
            f"WHERE run = {number_of_sum(attempt)} AND {named} AND ({where})"
        )
        newest = newest_of(found)
        if len(lanes) > MAX_NAMED:
            newest = newest[np.isin(found.numbers("lane")[newest], np.array([*lanes], np.uint64))]
        return sketches_over(found, newest, lanes, [each.end for each in covered], attempt.shift)

    def _rows_in(self, attempt: Attempt, steps: Steps) -> float:
        """Return about how many rows of a lane the ranks have in some steps."""
        known = [self._progress_of(each) for each in attempt.ranks]
        return (steps[1] - steps[0] + 1) * sum(each.captured / (each.newest + 1) for each in known if each.captured)

    def _read(
        self, attempt: Attempt, stat: str, lanes: Sequence[int], level: int, steps: Steps
    ) -> tuple[Rows, list[Steps]]:
        """Return the rows of some lanes on a level, or on finer ones, and the steps that aren't stored."""
        covered, left = self.marks_of(attempt).cover(level, steps)
        if not covered:
            return Rows.empty(len(lanes)), left
        where = " OR ".join(f"({each.where})" for each in covered)
        named = f"{in_lanes(sorted(lanes))} AND " if len(lanes) <= MAX_NAMED else f"lane != {MARK} AND "
        found = home_of(attempt).read(
            f"SELECT level, lane, bucket, version, {stat}_sum AS total, {stat}_n AS finite, {stat}_lo AS low, "
            f"{stat}_hi AS high, present, bad FROM rank_rollups "
            f"WHERE run = {number_of_sum(attempt)} AND {named}({where})"
        )
        newest = newest_of(found)
        if len(lanes) > MAX_NAMED:
            newest = newest[np.isin(found.numbers("lane")[newest], np.array(lanes, np.uint64))]
        rows = rows_of(found, newest, lanes)
        ends = np.sort(np.array([each.end for each in covered], np.int64))
        last = np.minimum(rows.last, ends[np.searchsorted(ends, rows.first)]) if len(rows.first) else rows.last
        return replace(rows, last=last), left

"""Sums of ranks over steps: stored, found again, and which ones are missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookcore.records import Tap
from hookcore.records.sketch import places_of
from hookcore.store import STAT_NAMES
from hookcore.store.rows import Rows
from hookcore.store.sketches import SketchRows

from .attempts import Attempt, Progress, RankRun, by_shard, frames_of, of_runs
from .client import Shard
from .native import Answer, Column, Lists, encode, join
from .questions import EXACT, Budget, begins_of, in_lanes, in_steps
from .rankrows import Logged, sketches_over
from .ranksquery import LARGE, LARGE_SKETCHES
from .runpast import rows_of
from .schema import (
    LEAF,
    MARK,
    PART,
    RANK_ROLLUPS,
    RANK_SKETCH_ROLLUPS,
    SCALARS,
    SKETCH_LEVELS,
    SUM_LEVELS,
    Table,
    number_of_run,
)
from .steprows import Buckets, SketchBuckets

# Sums of ranks over steps, as some server has stored them: which steps they cover, and their rows.

FRESH_S: Final = 5.0  # for which it is believed what is stored
MAX_NAMED: Final = 2000  # lanes that are named in a question; of more, all are read
MAX_STRETCHES: Final = 64  # of covered steps for one question

StepSpan = tuple[int, int]
OfAttempt = tuple[Attempt, StepSpan]  # some steps of an attempt
Places = NDArray[np.intp]


def number_of_sum(attempt: Attempt) -> int:
    """Return the number under which the sums of an attempt are stored. Those of other ranks have another one."""
    return number_of_run(" ".join(["ranks", *sorted(rank.id for rank in attempt.ranks)]))


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
class SumMarks:
    """Which buckets a table has, by level: ascending, with how many of their steps are in them."""

    stored: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)
    levels: tuple[int, ...] = SUM_LEVELS

    @classmethod
    def of(cls, attempt: Attempt, table: Table = RANK_ROLLUPS) -> SumMarks:
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

    def stretches(self, level: int, steps: StepSpan) -> list[Stretch]:
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

    def cover(self, level: int, steps: StepSpan) -> tuple[list[Stretch], list[StepSpan]]:
        """Return buckets of a level, or of finer ones, and the steps that none of them has."""
        covered: list[Stretch] = []
        left = [steps]
        for each in sorted((each for each in self.levels if each <= level), reverse=True):
            rest: list[StepSpan] = []
            for part in left:
                found = self.stretches(each, part)
                covered += found
                rest += _without(part, found)
            left = rest
        return (covered, left) if len(covered) <= MAX_STRETCHES else ([], [steps])


def _without(steps: StepSpan, found: Sequence[Stretch]) -> Iterator[StepSpan]:
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
        self._marks: dict[tuple[int, str], tuple[float, SumMarks]] = {}  # by number and table

    def marks_of(self, attempt: Attempt, table: Table = RANK_ROLLUPS) -> SumMarks:
        """Return which sums of an attempt are stored; none while some of its ranks aren't known."""
        if len(attempt.ranks) < attempt.world:
            return SumMarks()
        key, now = (number_of_sum(attempt), table.name), time.monotonic()
        at, known = self._marks.get(key, (float("-inf"), SumMarks()))
        if now - at > FRESH_S:
            known = SumMarks.of(attempt, table)
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

    def _rows_in(self, attempt: Attempt, steps: StepSpan) -> float:
        """Return about how many rows of a lane the ranks have in some steps."""
        known = [self._progress_of(rank) for rank in attempt.ranks]
        return (steps[1] - steps[0] + 1) * sum(each.captured / (each.newest + 1) for each in known if each.captured)

    def _read(
        self, attempt: Attempt, stat: str, lanes: Sequence[int], level: int, steps: StepSpan
    ) -> tuple[Rows, list[StepSpan]]:
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


# Storing sums of ranks over steps: their tables, their sources, and which ones are missing.

MOST: Final = {RANK_ROLLUPS.name: 100_000, RANK_SKETCH_ROLLUPS.name: 20_000}  # rows that are read or stored at once


class Reach(NamedTuple):
    """Up to which step all ranks of an attempt have stored what they sent, and whether nothing comes after it."""

    last: int
    is_last: bool

    def steps_in(self, level: int, buckets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many steps some buckets have."""
        steps: NDArray[np.int64] = np.minimum((buckets + 1) << level, self.last + 1) - (buckets << level)
        return steps


# -- what is missing ---------------------------------------------------------------------------------------------------


def missing(marks: SumMarks, level: int, reach: Reach) -> list[int]:
    """Return the buckets of a level that aren't stored, and could be."""
    every = np.arange((reach.last >> level) + 1)
    lacks = reach.steps_in(level, every)
    buckets, counts = marks.stored.get(level, (every[:0], every[:0]))
    known = buckets < len(every)
    lacks[buckets[known]] -= counts[known]
    found: list[int] = every[(lacks > 0) & (reach.is_last | (every < (reach.last + 1) >> level))].tolist()
    return found


def ready(marks: SumMarks, below: int, level: int, reach: Reach) -> list[int]:
    """Return the buckets of a level that aren't stored, and of which all buckets below are."""
    buckets, covered = np.array(missing(marks, level, reach), np.int64), marks.stretches(below, (0, reach.last))
    if not covered:
        return []
    begins, ends = (np.array([getattr(each, name) for each in covered], np.int64) for name in ("begin", "end"))
    first = buckets << level
    place = np.searchsorted(begins, first, side="right") - 1
    found: list[int] = buckets[(place >= 0) & (first + reach.steps_in(level, buckets) - 1 <= ends[place])].tolist()
    return found


# -- what sums are made of ---------------------------------------------------------------------------------------------


def are_named(attempt: Attempt, numbers: Mapping[RankRun, Mapping[Tap, int]], steps: tuple[int, int]) -> bool:
    """Return whether the taps of all rows have names, which may be stored later than these."""
    known = {each.run: len(taps) for each, taps in numbers.items()}
    for shard, ranks in by_shard(attempt.ranks):
        found = shard.read(
            f"SELECT run, max(lane) AS most FROM rows WHERE {of_runs(ranks)} AND {in_steps(*steps)} "
            f"AND lane < {SCALARS} AND role > {PART} GROUP BY run"
        )
        most = zip(found.numbers("run").tolist(), found.numbers("most").tolist(), strict=True)
        if any(number >= known[run] for run, number in most):
            return False
    return True


def count_frames(attempt: Attempt, steps: tuple[int, int], what: str = "rows") -> int:
    """Return how many frames with values of tensors, or with sketches, all ranks have in some steps."""
    return sum(
        shard.read(f"SELECT count() AS found FROM items {where} AND {what} > 0").one("found")
        for shard, where in frames_of(attempt, steps)
    )


def count_scalars(attempt: Attempt) -> int:
    """Return about how many values the ranks log."""
    where = f"lane BETWEEN {SCALARS} AND {MARK - 1}"
    found = [
        shard.read(f"SELECT uniqExact(lane) AS found FROM lanes WHERE {of_runs(ranks)} AND {where}").one("found")
        for shard, ranks in by_shard(attempt.ranks)
    ]
    return max(found)


def logged(attempt: Attempt, steps: tuple[int, int]) -> tuple[NDArray[np.uint64], Logged]:
    """Return the values of all scalars that the ranks logged, by lane, step, and rank, with the lanes."""
    where = f"lane BETWEEN {SCALARS} AND {MARK - 1} AND {in_steps(*steps)} AND role > {PART}"
    found = [
        shard.read(f"SELECT lane, rank, step, mean FROM rows WHERE {of_runs(ranks)} AND {where}")
        for shard, ranks in by_shard(attempt.ranks)
    ]
    # An answer without rows has no types.
    lane = np.concatenate([each.numbers("lane").astype(np.uint64) for each in found])
    rank, step = (np.concatenate([each.numbers(name).astype(np.int64) for each in found]) for name in ("rank", "step"))
    value = np.concatenate([each.numbers("mean").astype(np.float64) for each in found])
    order = np.lexsort((rank, step, lane))
    order = order[begins_of(lane[order], step[order], rank[order])]
    return lane[order], Logged(rank[order], step[order], value[order])


# -- what is stored ----------------------------------------------------------------------------------------------------


def count_lanes(table: Table, attempt: Attempt, level: int, bucket: int) -> int:
    """Return how many lanes have something in a bucket."""
    where = f"run = {number_of_sum(attempt)} AND level = {level} AND bucket = {bucket}"
    return home_of(attempt).read(f"SELECT count() AS lanes FROM {table.name} WHERE {where}").one("lanes")


def read(
    table: Table, attempt: Attempt, level: int, buckets: tuple[int, int], part: tuple[int, int]
) -> Buckets | SketchBuckets:
    """Return the buckets of a level between two of them, of a part of all lanes, given as its number and how many."""
    number, parts = part
    found = home_of(attempt).read(
        f"SELECT `{'`, `'.join(table.columns)}` FROM {table.name} WHERE run = {number_of_sum(attempt)} "
        f"AND level = {level} AND bucket BETWEEN {buckets[0]} AND {buckets[1]} AND lane != {MARK}"
        + (f" AND lane % {parts} = {number}" if parts > 1 else "")
    )
    newest = newest_of(found)

    def of(name: str, kind: type[np.generic]) -> NDArray[Any]:
        return found.numbers(name)[newest].astype(kind)

    def of_stats(part: str, kind: type[np.generic]) -> NDArray[Any]:
        return np.array([of(f"{stat}_{part}", kind) for stat in STAT_NAMES])

    about = of("lane", np.uint64), of("bucket", np.uint64), of("present", np.uint32)
    if table is RANK_SKETCH_ROLLUPS:
        bins, counts_of_bins = found.histograms()
        starts, places = places_of(bins.starts, newest)
        values = bins.values[places].astype(np.uint16), counts_of_bins[places].astype(np.uint64)
        return SketchBuckets(level, *about, starts, *values)
    counts, sums = (of_stats(part, kind) for part, kind in (("n", np.uint32), ("sum", np.float64)))
    extremes = of_stats("lo", np.float64), of_stats("hi", np.float64)
    return Buckets(level, *about, of("bad", np.uint32), sums, counts, *extremes)


def insert(table: Table, attempt: Attempt, found: Sequence[Buckets | SketchBuckets], reach: Reach) -> None:
    """Store buckets."""
    columns: dict[str, Column] = {
        "level": np.repeat([each.level for each in found], [len(each.lane) for each in found]),
        "lane": np.concatenate([each.lane for each in found]),
        "bucket": np.concatenate([each.bucket for each in found]),
        "present": np.concatenate([each.steps for each in found]),
    }
    values = [each for each in found if isinstance(each, Buckets)]
    for part, of in (("sum", "sums"), ("n", "finite"), ("lo", "low"), ("hi", "high")) if values else ():
        every = np.concatenate([getattr(each, of) for each in values], axis=1)
        columns |= {f"{stat}_{part}": every[place] for place, stat in enumerate(STAT_NAMES)}
        columns["bad"] = np.concatenate([each.bad_steps for each in values])
    sketches = [each for each in found if isinstance(each, SketchBuckets)]
    for name in ("bins", "counts") if sketches else ():
        columns[name] = join([Lists(sketch.starts, getattr(sketch, name)) for sketch in sketches])
    _write(table, attempt, columns, reach)


def mark(table: Table, attempt: Attempt, level: int, buckets: Sequence[int], reach: Reach) -> None:
    """Store that some buckets have all that there is of their steps."""
    numbers = np.array(buckets, np.int64)
    lane, levels = np.full(len(numbers), MARK, np.uint64), np.full(len(numbers), level)
    steps = reach.steps_in(level, numbers)
    _write(table, attempt, {"level": levels, "lane": lane, "bucket": numbers, "present": steps}, reach)


def _write(table: Table, attempt: Attempt, columns: Mapping[str, Column], reach: Reach) -> None:
    many = len(columns["lane"])
    if not many:
        return
    about: dict[str, Column] = {
        "day": np.full(many, min(attempt.ranks, key=lambda each: each.rank).day),
        "run": np.full(many, number_of_sum(attempt), np.uint64),
        "version": np.full(many, reach.last, np.uint64),  # of the last bucket, the row with the most steps counts
        **columns,
    }
    none = Lists(np.zeros(many + 1, np.int64), np.empty(0))
    block = {
        name: (kind, about.get(name, none if kind.startswith("Array") else np.zeros(many)))
        for name, kind in table.columns.items()
    }
    home_of(attempt).insert(table.name, encode(block))

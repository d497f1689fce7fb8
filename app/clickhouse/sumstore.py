"""Storing sums of ranks over steps: their tables, their sources, and which ones are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookcore.records import Tap
from hookcore.records.sketch import places_of
from hookcore.store import STAT_NAMES

from .attempts import Attempt, RankRun, by_shard, frames_of, of_runs
from .groups import begins_of
from .names import SCALARS
from .native import Column, Lists, encode, join
from .questions import in_steps
from .rankrows import Logged
from .ranksums import Marks, home_of, newest_of, number_of_sum
from .sums import Buckets, SketchBuckets
from .tables import MARK, PART, RANK_ROLLUPS, RANK_SKETCH_ROLLUPS, SumTable

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


def missing(marks: Marks, level: int, reach: Reach) -> list[int]:
    """Return the buckets of a level that aren't stored, and could be."""
    every = np.arange((reach.last >> level) + 1)
    lacks = reach.steps_in(level, every)
    buckets, counts = marks.stored.get(level, (every[:0], every[:0]))
    known = buckets < len(every)
    lacks[buckets[known]] -= counts[known]
    found: list[int] = every[(lacks > 0) & (reach.is_last | (every < (reach.last + 1) >> level))].tolist()
    return found


def ready(marks: Marks, below: int, level: int, reach: Reach) -> list[int]:
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


def count_lanes(table: SumTable, attempt: Attempt, level: int, bucket: int) -> int:
    """Return how many lanes have something in a bucket."""
    where = f"run = {number_of_sum(attempt)} AND level = {level} AND bucket = {bucket}"
    return home_of(attempt).read(f"SELECT count() AS lanes FROM {table.name} WHERE {where}").one("lanes")


def read(
    table: SumTable, attempt: Attempt, level: int, buckets: tuple[int, int], part: tuple[int, int]
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
        starts, places = places_of(found.lists("bins").starts, newest)
        bins, sums_of_bins = (found.lists(name).values[places] for name in ("bins", "counts"))
        return SketchBuckets(level, *about, starts, bins.astype(np.uint16), sums_of_bins.astype(np.uint64))
    counts, sums = (of_stats(part, kind) for part, kind in (("n", np.uint32), ("sum", np.float64)))
    extremes = of_stats("lo", np.float64), of_stats("hi", np.float64)
    return Buckets(level, *about, of("bad", np.uint32), sums, counts, *extremes)


def insert(table: SumTable, attempt: Attempt, found: Sequence[Buckets | SketchBuckets], reach: Reach) -> None:
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
        columns[name] = join([Lists(each.starts, getattr(each, name)) for each in sketches])
    _write(table, attempt, columns, reach)


def mark(table: SumTable, attempt: Attempt, level: int, buckets: Sequence[int], reach: Reach) -> None:
    """Store that some buckets have all that there is of their steps."""
    numbers = np.array(buckets, np.int64)
    lane, levels = np.full(len(numbers), MARK, np.uint64), np.full(len(numbers), level)
    steps = reach.steps_in(level, numbers)
    _write(table, attempt, {"level": levels, "lane": lane, "bucket": numbers, "present": steps}, reach)


def _write(table: SumTable, attempt: Attempt, columns: Mapping[str, Column], reach: Reach) -> None:
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

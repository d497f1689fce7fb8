"""The queries for numbers over time, as SQL, at the level that answers them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import HookcoreError
from hookcore.records import STATS
from hookcore.store.rows import Columns

from .schema import CHUNK, FRAME, PART

# Which rows of ClickHouse answer a question: exact ones, or enough buckets, but not too many. Pure.

EXACT: Final = 0  # the level of single steps


@dataclass(frozen=True, slots=True)
class Piece:
    """Steps that are read on one level: buckets, or single steps, from `first` to `last`."""

    level: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of what is read of one lane: the fewest buckets, the most exact rows, and the most buckets."""

    least: int
    exact: int
    buckets: int

    def level(self, steps: int, levels: Sequence[int], spread: float = 1.0) -> int:
        """Return the level for so many steps, of which one in `spread` is captured: the finest that isn't too much."""
        if steps <= self.exact * spread:
            return EXACT
        enough = [level for level in levels if steps >> level >= self.least]
        cheap = [level for level in enough if steps >> level <= self.buckets]
        return min(cheap) if cheap else max(enough, default=EXACT)


def pieces_of(first: int, last: int, level: int, levels: Sequence[int]) -> Iterator[Piece]:
    """Split a span into whole buckets of a level, and what is left at its ends, on finer levels."""
    if level == EXACT:
        yield Piece(EXACT, first, last)
        return
    begin, end = (first + (1 << level) - 1) >> level, (last + 1) >> level
    finer = max((each for each in levels if each < level), default=EXACT)
    if begin >= end:
        yield from pieces_of(first, last, finer, levels)
        return
    if first < begin << level:
        yield from pieces_of(first, (begin << level) - 1, finer, levels)
    yield Piece(level, begin << level, (end << level) - 1)
    if end << level <= last:
        yield from pieces_of(end << level, last, finer, levels)


_DERIVED: Final = {"zero_fraction": "`zero` / `count`", "nonfinite": "`nan` + `inf`"}


def _value(stat: str) -> str:
    return f"({_DERIVED[stat]})" if stat in _DERIVED else f"`{stat}`"


def in_lanes(lanes: Sequence[int]) -> str:
    if len(lanes) == 1:
        return f"lane = {lanes[0]}"  # for `IN`, ClickHouse makes a set
    if len(lanes) > 1 and lanes[-1] - lanes[0] == len(lanes) - 1 and list(lanes) == sorted(lanes):
        return f"lane BETWEEN {lanes[0]} AND {lanes[-1]}"
    return f"lane IN ({', '.join(map(str, lanes))})"


def in_runs(runs: Sequence[int]) -> str:
    return f"run = {runs[0]}" if len(runs) == 1 else f"run IN ({', '.join(map(str, runs))})"


def in_steps(first: int, last: int) -> str:
    return f"chunk BETWEEN {first >> CHUNK} AND {last >> CHUNK} AND step BETWEEN {first} AND {last}"


def _any(conditions: Iterable[str]) -> str:
    """Return the condition that one of some holds; empty if there are none."""
    found = [*conditions]
    return found[0] if len(found) == 1 else f"({' OR '.join(f'({each})' for each in found)})" if found else ""


def _buckets(pieces: Iterable[Piece]) -> str:
    """Return the condition for the buckets of some pieces; empty if there are none."""
    return _any(
        f"level = {piece.level} AND bucket BETWEEN {piece.first >> piece.level} AND {piece.last >> piece.level}"
        for piece in pieces
        if piece.level != EXACT
    )


def _exact(pieces: Iterable[Piece]) -> Iterator[str]:
    """Yield the conditions for the single steps of some pieces."""
    for piece in pieces:
        if piece.level == EXACT:
            yield in_steps(piece.first, piece.last)


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A query about one run: some lanes, or all of them if none are given, in some pieces."""

    run: int
    lanes: tuple[int, ...]
    pieces: tuple[Piece, ...]


def _of_runs(asked: Sequence[RunQuery]) -> tuple[str, str]:
    """Return the conditions for the single steps of all runs, and for their buckets; empty if there are none."""
    alike: dict[tuple[tuple[int, ...], tuple[Piece, ...]], list[int]] = {}
    for each in asked:
        alike.setdefault((each.lanes, each.pieces), []).append(each.run)
    exact, buckets = [], []
    for (lanes, pieces), runs in alike.items():
        of_lanes = f"{in_runs(runs)} AND {in_lanes(lanes)}" if lanes else in_runs(runs)
        exact += [f"{of_lanes} AND {where}" for where in _exact(pieces)]
        if where := _buckets(pieces):
            buckets.append(f"{of_lanes} AND {where}")
    return _any(exact), _any(buckets)


_BEGIN: Final = "bitShiftLeft(bucket, level)"
_END: Final = f"toUInt64({_BEGIN} + bitShiftLeft(toUInt64(1), level) - 1)"


def newest_sql(runs: Sequence[tuple[int, int]]) -> str:
    """Return the query for how far runs are stored, given each with the number of an item that was seen."""
    seen = _any(f"run = {run} AND number >= {number}" for run, number in runs)
    return (
        f"SELECT run, max(number) AS newest, max(step) AS until FROM items WHERE {seen} AND kind = {FRAME} GROUP BY run"
    )


def rows_sql(stat: str, asked: Sequence[RunQuery]) -> str:
    """Return the query for rows of some runs; empty if there is nothing to ask.

    A bucket is several rows until ClickHouse has merged them. It isn't asked to add them up, since NumPy is faster.
    """
    value, (exact, buckets) = _value(stat), _of_runs(asked)
    parts = []
    if exact:
        parts.append(
            f"SELECT run, lane, toUInt8({EXACT}) AS level, step AS bucket, {value} AS low, {value} AS high, "
            f"{value} AS total, toUInt32(isFinite({value})) AS finite, toUInt32(1) AS present, "
            f"toUInt32(`nan` + `inf` > 0) AS bad FROM rows WHERE {exact} AND role > {PART}"
        )
    if buckets:
        parts.append(
            f"SELECT run, lane, level, bucket, finalizeAggregation({stat}_lo) AS low, "
            f"finalizeAggregation({stat}_hi) AS high, {stat}_sum AS total, {stat}_n AS finite, present, bad "
            f"FROM rollups WHERE {buckets}"
        )
    return " UNION ALL ".join(parts)


def cells_sql(run: int, stat: str, taps: Sequence[int], columns: Columns, pieces: Sequence[Piece]) -> str:
    """Return the query for the contents of a heatmap's cells.

    A bucket in two columns counts in the first, and shows in both: it is in one column `more`. Buckets aren't added up
    here, because to find those of one cell takes ClickHouse several times as long as to read them.
    """
    value, of_taps = _value(stat), f"run = {run} AND {in_lanes(taps)}"
    parts = [
        f"SELECT toUInt32(lane) AS tap, {_cell('step', columns)} AS cell, toUInt8(0) AS more, "
        f"minIf({value}, isFinite({value})) AS low, maxIf({value}, isFinite({value})) AS high, "
        f"toUInt32(countIf(isFinite({value}))) AS finite, toUInt32(count()) AS present, "
        f"toUInt32(countIf(`nan` + `inf` > 0)) AS bad "
        f"FROM rows WHERE {of_taps} AND {where} AND role > {PART} GROUP BY tap, cell"
        for where in _exact(pieces)
    ]
    if where := _buckets(pieces):
        one, two = _cell(_BEGIN, columns), _cell(_END, columns)
        parts.append(
            f"SELECT toUInt32(lane) AS tap, {one} AS cell, toUInt8({two} > {one}) AS more, "
            f"finalizeAggregation({stat}_lo) AS low, finalizeAggregation({stat}_hi) AS high, "
            f"{stat}_n AS finite, present, bad FROM rollups WHERE {of_taps} AND {where}"
        )
    return " UNION ALL ".join(parts)


def _cell(step: str, columns: Columns) -> str:
    """Return the column of a step, as `Columns.of` has it."""
    # The first step may be negative, in columns of a run whose steps are counted from elsewhere.
    inside = f"(least(greatest(toInt64({step}), {columns.first}), {columns.last}) - ({columns.first}))"
    return f"toUInt32(intDiv({inside} * {columns.number}, {columns.last - columns.first + 1}))"


def sketches_sql(asked: Sequence[RunQuery]) -> str:
    """Return the query for sketches of some runs; empty if there is nothing to ask."""
    exact, buckets = _of_runs(asked)
    parts = []
    if exact:
        parts.append(
            "SELECT run, lane, step AS first, step AS last, toUInt64(1) AS steps, bins, "
            f"arrayMap(count -> toUInt64(count), counts) AS counts FROM sketches WHERE {exact} AND role > {PART}"
        )
    if buckets:
        sums = "sumMap(`sumsMap.bin`, `sumsMap.count`)"
        parts.append(
            f"SELECT run, lane, {_BEGIN} AS first, {_END} AS last, sum(steps) AS steps, "
            f"tupleElement({sums}, 1) AS bins, tupleElement({sums}, 2) AS counts "
            f"FROM sketch_rollups WHERE {buckets} GROUP BY run, lane, level, bucket"
        )
    return " UNION ALL ".join(parts)


def latest_sql(run: int, taps: Sequence[int], chunks: tuple[int, int], steps: tuple[int, int]) -> str:
    """Return the query for the newest values of taps in some chunks and steps."""
    stats = ", ".join(f"argMax(`{stat}`, step) AS {stat}_then" for stat in STATS)
    return (
        f"SELECT lane, toInt64(max(step)) AS newest, {stats} FROM rows WHERE run = {run} AND {in_lanes(taps)} "
        f"AND chunk BETWEEN {chunks[0]} AND {chunks[1]} AND step BETWEEN {steps[0]} AND {steps[1]} "
        f"AND role > {PART} GROUP BY lane"
    )


def ranks_sql(runs: Sequence[int], lanes: Sequence[int], steps: tuple[int, int]) -> str:
    """Return the part of a query that chooses the rows of some runs."""
    return f"{in_runs(runs)} AND {in_lanes(lanes)} AND {in_steps(*steps)}"


# Groups of neighbors: of rows that are alike, and of items that can be read at once. Pure.

Item = TypeVar("Item")


def begins_of(*columns: NDArray[Any]) -> NDArray[np.intp]:
    """Return where a new group begins among rows that are sorted by these columns."""
    is_new = np.ones(len(columns[0]), bool)
    is_new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(is_new)


def portions(
    items: Iterable[Item], sizes_of: Callable[[Item], tuple[int, ...]], most: tuple[int, ...]
) -> Iterator[list[Item]]:
    """Divide items into parts whose sizes, added up, aren't larger than these. One that is larger is a part."""
    part: list[Item] = []
    used = (0,) * len(most)
    for item in items:
        sizes = sizes_of(item)
        used = tuple(map(sum, zip(used, sizes, strict=True)))
        if part and any(one > limit for one, limit in zip(used, most, strict=True)):
            yield part
            part, used = [], sizes
        part.append(item)
    if part:
        yield part


# How much is added up for one question, at most.

Found = TypeVar("Found")


class TooManyError(HookcoreError):
    """More rows than are added up for one question. `rest` is the answer without them, if there is one."""

    def __init__(self, message: str, rest: Any = None) -> None:
        super().__init__(message)
        self.rest = rest


def or_too_many(find: Callable[[], Found]) -> Found | TooManyError:
    """Return an answer, or that it would be too much."""
    try:
        return find()
    except TooManyError as error:
        return error


def check(count: int, most: int, what: str) -> None:
    """Raise TooManyError if a count is above its limit."""
    if count > most:
        raise TooManyError(
            f"this needs the sum of {count:,} {what} of ranks, and {most:,} is the limit: choose "
            "fewer steps or tensors, or open the run of a single rank"
        )

"""The queries for numbers over time, as SQL. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from hookcore.records import STATS
from hookcore.store.heatmap import Columns

from .levels import EXACT, Piece
from .tables import CHUNK, PART

_DERIVED: Final = {"zero_fraction": "`zero` / `count`", "nonfinite": "`nan` + `inf`"}


def _value(stat: str) -> str:
    return f"({_DERIVED[stat]})" if stat in _DERIVED else f"`{stat}`"


def in_lanes(lanes: Sequence[int]) -> str:
    """Return the condition for some lanes."""
    if len(lanes) == 1:
        return f"lane = {lanes[0]}"  # for `IN`, ClickHouse makes a set
    if len(lanes) > 1 and lanes[-1] - lanes[0] == len(lanes) - 1 and list(lanes) == sorted(lanes):
        return f"lane BETWEEN {lanes[0]} AND {lanes[-1]}"
    return f"lane IN ({', '.join(map(str, lanes))})"


def in_steps(first: int, last: int) -> str:
    """Return the condition for some steps."""
    return f"chunk BETWEEN {first >> CHUNK} AND {last >> CHUNK} AND step BETWEEN {first} AND {last}"


def _buckets(pieces: Iterable[Piece]) -> str:
    """Return the condition for the buckets of some pieces, which are asked for together; empty if there are none."""
    parts = [
        f"level = {each.level} AND bucket BETWEEN {each.first >> each.level} AND {each.last >> each.level}"
        for each in pieces
        if each.level != EXACT
    ]
    return f"({' OR '.join(f'({part})' for part in parts)})" if parts else ""


def _exact(pieces: Iterable[Piece]) -> Iterator[str]:
    """Yield the conditions for the single steps of some pieces."""
    for each in pieces:
        if each.level == EXACT:
            yield f"{in_steps(each.first, each.last)} AND role > {PART}"


_BEGIN: Final = "bitShiftLeft(bucket, level)"
_END: Final = f"toUInt64({_BEGIN} + bitShiftLeft(toUInt64(1), level) - 1)"


def rows_sql(run: int, stat: str, lanes: Sequence[int], pieces: Sequence[Piece]) -> str:
    """Return the query for rows of some lanes; empty if there is nothing to ask."""
    value, of_lanes = _value(stat), f"run = {run} AND {in_lanes(lanes)}"
    parts = [
        f"SELECT lane, toUInt8({EXACT}) AS level, step AS bucket, {value} AS low, {value} AS high, {value} AS total, "
        f"toUInt64(isFinite({value})) AS finite, toUInt64(1) AS present, toUInt64(`nan` + `inf` > 0) AS bad "
        f"FROM rows WHERE {of_lanes} AND {where}"
        for where in _exact(pieces)
    ]
    if where := _buckets(pieces):
        parts.append(
            f"SELECT lane, level, bucket, minIfMerge({stat}_lo) AS low, maxIfMerge({stat}_hi) AS high, "
            f"sum({stat}_sum) AS total, sum({stat}_n) AS finite, sum(present) AS present, sum(bad) AS bad "
            f"FROM rollups WHERE {of_lanes} AND {where} GROUP BY lane, level, bucket"
        )
    return " UNION ALL ".join(parts)


def cells_sql(run: int, stat: str, taps: Sequence[int], columns: Columns, pieces: Sequence[Piece]) -> str:
    """Return the query for the cells of a heatmap. A bucket in two columns counts in the first, and shows in both."""
    value, of_taps = _value(stat), f"run = {run} AND {in_lanes(taps)}"
    parts = [
        f"SELECT lane, {_cell('step', columns)} AS cell, minIf({value}, isFinite({value})) AS low, "
        f"maxIf({value}, isFinite({value})) AS high, countIf(isFinite({value})) AS finite, "
        f"count() AS present, countIf(`nan` + `inf` > 0) AS bad "
        f"FROM rows WHERE {of_taps} AND {where} GROUP BY lane, cell"
        for where in _exact(pieces)
    ]
    if where := _buckets(pieces):
        one, two = _cell(_BEGIN, columns), _cell(_END, columns)
        parts.append(
            f"SELECT lane, cell, minIfMerge({stat}_lo) AS low, maxIfMerge({stat}_hi) AS high, "
            f"sum({stat}_n) AS finite, sumIf(present, cell = {one}) AS present, sumIf(bad, cell = {one}) AS bad "
            f"FROM rollups ARRAY JOIN if({one} = {two}, [{one}], [{one}, {two}]) AS cell "
            f"WHERE {of_taps} AND {where} GROUP BY lane, cell"
        )
    return " UNION ALL ".join(parts)


def _cell(step: str, columns: Columns) -> str:
    """Return the column of a step, as `Columns.of` has it."""
    # The first step may be negative, in columns of a run whose steps are counted from elsewhere.
    inside = f"(least(greatest(toInt64({step}), {columns.first}), {columns.last}) - ({columns.first}))"
    return f"toUInt32(intDiv({inside} * {columns.number}, {columns.last - columns.first + 1}))"


def sketches_sql(run: int, tap: int | None, pieces: Sequence[Piece]) -> str:
    """Return the query for the sketches of a tap, or of all taps."""
    of_tap = f"run = {run}" if tap is None else f"run = {run} AND lane = {tap}"
    parts = [
        "SELECT lane, step AS first, step AS last, toUInt64(1) AS steps, bins, "
        f"arrayMap(count -> toUInt64(count), counts) AS counts FROM sketches WHERE {of_tap} AND {where}"
        for where in _exact(pieces)
    ]
    if where := _buckets(pieces):
        sums = "sumMap(`sumsMap.bin`, `sumsMap.count`)"
        parts.append(
            f"SELECT lane, {_BEGIN} AS first, {_END} AS last, sum(steps) AS steps, "
            f"tupleElement({sums}, 1) AS bins, tupleElement({sums}, 2) AS counts "
            f"FROM sketch_rollups WHERE {of_tap} AND {where} GROUP BY lane, level, bucket"
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
    return f"run IN ({', '.join(map(str, runs))}) AND {in_lanes(lanes)} AND {in_steps(*steps)}"

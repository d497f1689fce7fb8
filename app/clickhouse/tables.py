"""The tables of the schema, as data: their columns, engines, and keys. See docs/clickhouse.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from hookcore.records import STATS
from hookcore.store import STAT_NAMES

LEVELS: Final = (3, 5, 7, 9, 11, 13, 15, 17)  # of rollups: binary logarithms of the steps in a bucket
SKETCH_LEVELS: Final = (6, 9, 12, 15)
SUM_LEVELS: Final = (4, 6, 8, 10, 12, 14)  # of the sums of ranks
LEAF: Final = SUM_LEVELS[1]  # the steps that are added up together, on the level on which they are marked
CHUNK: Final = 12  # the binary logarithm of the number of steps that are next to each other on disk
MARK: Final = 2**64 - 1  # the lane of the row that says which segment a block came from
PART, BOTH, MERGED = 0, 1, 2  # a row as the trainer sent it; also the value of its step; only that
FRAME, SNAPSHOT, END = 0, 1, 2  # kinds of items
LABELS, FLOW = 0, 1  # kinds of facts

_RUN: Final = {"day": "Date", "run": "UInt64"}
_OF_STEP: Final = {**_RUN, "chunk": "UInt32", "lane": "UInt64", "step": "UInt64", "number": "UInt64"}
_OF_BUCKET: Final = {**_RUN, "level": "UInt8", "lane": "UInt64", "bucket": "UInt64"}
_MIN: Final = "AggregateFunction(minIf, Float64, UInt8)"
_MAX: Final = "AggregateFunction(maxIf, Float64, UInt8)"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """One table: its key, the engine that merges rows of one key, and the condition that finds a segment's mark."""

    name: str
    columns: Mapping[str, str]
    order: str
    engine: str = "MergeTree"
    arguments: str = ""
    granularity: int = 8192
    marked: str = ""  # the column that has the number of a segment, in rows whose run is a spool


@dataclass(frozen=True, slots=True, eq=False)
class SumTable(Table):
    """Sums of the ranks of one training. Any server may store a bucket, as a whole, so the newest one counts."""

    levels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Inlet:
    """A table that keeps nothing: a view adds up what is inserted, for another table."""

    name: str
    columns: Mapping[str, str]
    target: Table
    select: str = field(repr=False)


def _columns(text: str) -> dict[str, str]:
    """Return columns that are written as in SQL."""
    return dict(each.split(" ", 1) for each in text.split(", "))


def _rolled(kinds: Mapping[str, str]) -> dict[str, str]:
    return {f"{stat}_{part}": kind for stat in STAT_NAMES for part, kind in kinds.items()}


def _select_rollups() -> str:
    stats = ", ".join(
        f"sum({stat}_s) AS {stat}_sum, toUInt32(sum({stat}_c)) AS {stat}_n, "
        f"minIfState({stat}_l, {stat}_c > 0) AS {stat}_lo, maxIfState({stat}_h, {stat}_c > 0) AS {stat}_hi"
        for stat in STAT_NAMES
    )
    keys = "day, run, level, lane, bucket"
    counts = "toUInt32(sum(steps)) AS present, toUInt32(sum(bad_steps)) AS bad"
    return f"SELECT {keys}, {counts}, {stats} FROM rollups_in GROUP BY {keys}"


# A row for each tap and frame, and for each scalar, whose value is the mean. Lanes are described in `lanes`.
ROWS: Final = Table(
    "rows",
    {**_OF_STEP, **_columns("rank UInt32, attempt UInt32, owner Int32, role UInt8"), **dict.fromkeys(STATS, "Float64")},
    "run, chunk, lane, step",
    granularity=1024,
    marked="step",
)
_OF_STAT: Final = {"sum": "Float64", "n": "UInt32", "lo": _MIN, "hi": _MAX}
ROLLUPS: Final = Table(
    "rollups",
    {**_OF_BUCKET, "present": "UInt32", "bad": "UInt32", **_rolled(_OF_STAT)},
    "run, level, lane, bucket",
    "SummingMergeTree",
    f"(present, bad, {', '.join(_rolled(_OF_STAT))})",
    granularity=1024,
    marked="bucket",
)
ROLLUPS_IN: Final = Inlet(
    "rollups_in",
    {
        **_OF_BUCKET,
        **_columns("steps UInt32, bad_steps UInt32"),
        **_rolled(_columns("s Float64, c UInt32, l Float64, h Float64")),
    },
    ROLLUPS,
    _select_rollups(),
)
RANK_ROLLUPS: Final = SumTable(
    "rank_rollups",
    {
        **_OF_BUCKET,
        **_columns("version UInt64, present UInt32, bad UInt32"),
        **_rolled(_columns("sum Float64, n UInt32, lo Float64, hi Float64")),
    },
    "run, level, lane, bucket",
    "ReplacingMergeTree",
    "version",
    granularity=1024,
    levels=SUM_LEVELS,
)
RANK_SKETCH_ROLLUPS: Final = SumTable(
    "rank_sketch_rollups",
    {**_OF_BUCKET, "version": "UInt64", "present": "UInt32", "bins": "Array(UInt16)", "counts": "Array(UInt64)"},
    "run, level, lane, bucket",
    "ReplacingMergeTree",
    "version",
    granularity=256,
    levels=SKETCH_LEVELS,
)
SKETCHES: Final = Table(
    "sketches",
    {**_OF_STEP, "role": "UInt8", "bins": "Array(UInt16)", "counts": "Array(UInt32)"},
    "run, chunk, lane, step",
    granularity=256,
    marked="step",
)
SKETCH_ROLLUPS: Final = Table(
    "sketch_rollups",
    {**_OF_BUCKET, "steps": "UInt32", "sumsMap.bin": "Array(UInt16)", "sumsMap.count": "Array(UInt64)"},
    "run, level, lane, bucket",
    "SummingMergeTree",
    "(steps, sumsMap)",
    granularity=256,
    marked="bucket",
)
# What is not in rows and sketches: the rest of each frame, snapshots, and the end, in the order of the trainer.
ITEMS: Final = Table(
    "items",
    {
        **_RUN,
        **_columns("number UInt64, kind UInt8, step UInt64, rows UInt32, sketches UInt32, rank UInt32"),
        **_columns("attempt UInt32, spool UInt64, head String, content String"),
    },
    "run, number",
    granularity=1024,
    marked="number",
)
EVENTS: Final = Table(
    "events",
    {**_RUN, "number": "UInt64", "place": "UInt32", "step": "UInt64", "name": "String", "content": "String"},
    "run, number, place",
    marked="number",
)
# Labels and data flows, which say something about all later frames.
FACTS: Final = Table(
    "facts", {**_RUN, "number": "UInt64", "kind": "UInt8", "content": "String"}, "run, number, kind", marked="number"
)
LANES: Final = Table("lanes", {**_RUN, "lane": "UInt64", "content": "String"}, "run, lane", "ReplacingMergeTree")
DESCRIPTIONS: Final = Table(
    "descriptions", {**_RUN, "version": "UInt64", "content": "String"}, "run", "ReplacingMergeTree", "version"
)
CLAIMS: Final = Table(
    "claims", {**_RUN, "term": "UInt32", "spool": "UInt64", "at": "DateTime DEFAULT now()"}, "run, term"
)
RUNS: Final = Table(
    "runs",
    {**_RUN, "id": "String", "version": "UInt64", "at": "DateTime DEFAULT now()", "content": "String"},
    "run",
    "ReplacingMergeTree",
    "version",
)
# What servers share: edits of readers, and commands to trainers.
PAGES: Final = Table(
    "pages",
    {**_RUN, "version": "UInt64", "at": "DateTime DEFAULT now()", "content": "String"},
    "run",
    "ReplacingMergeTree",
    "version",
)
COMMANDS: Final = Table(
    "commands", {**_RUN, "number": "UInt64", "at": "DateTime DEFAULT now()", "content": "String"}, "run, number"
)

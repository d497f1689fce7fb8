"""The tables as data, and how those of a server are created, migrated from an earlier release, or refused."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from functools import lru_cache
from typing import Final

from hookcore.errors import HookcoreError
from hookcore.records import STATS, Tap
from hookcore.store import STAT_NAMES

from .client import OF_INSERTS, Cluster, ClusterAddress, Node, quoted
from .native import decode

# The tables of the schema, as data: their columns, engines, and keys. See docs/clickhouse.md.

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
    # Of sums of the ranks of one training. Any server may store a bucket, as a whole, so the newest one counts.
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
RANK_ROLLUPS: Final = Table(
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
RANK_SKETCH_ROLLUPS: Final = Table(
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


# Creates the tables of a server, migrates those of an earlier release, and refuses those of a later one.

OF_SUMS: Final = (RANK_ROLLUPS, RANK_SKETCH_ROLLUPS)  # what servers can make again
# All tables with something of runs, the list of runs last.
OF_RUNS: Final = (
    ROWS,
    ROLLUPS,
    *OF_SUMS,
    SKETCHES,
    SKETCH_ROLLUPS,
    ITEMS,
    EVENTS,
    FACTS,
    LANES,
    DESCRIPTIONS,
    CLAIMS,
    PAGES,
    COMMANDS,
    RUNS,
)
MODERN: Final = (20, 1)  # from this release on, columns have codecs
# What helps ZSTD: differences of what ascends in most parts, and no leading zeros of small counts.
_CODECS: Final = {
    **dict.fromkeys(("step", "number", "bucket", "lane", "chunk", "bins", "sumsMap.bin"), "Delta"),
    **dict.fromkeys(("counts", "sumsMap.count"), "T64"),
}


class SchemaError(HookcoreError):
    """A database that this release can't use."""


@dataclass(frozen=True, slots=True)
class Server:
    """The server that a statement depends on."""

    database: str
    version: tuple[int, ...]
    path: str = ""  # in ZooKeeper; empty for a server without replicas

    def create(self, table: Table) -> str:
        """Return the statement that creates a table."""
        engine, arguments = table.engine, [table.arguments] if table.arguments else []
        settings = f"index_granularity = {table.granularity}"
        if self.path:
            engine = f"Replicated{engine}"
            arguments = [quoted(f"{self.path}/{table.name}"), "'{replica}'", *arguments]
            # So many blocks are known by their hashes, for a week: a repetition of one is ignored.
            settings += ", replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800"
        columns = ", ".join(f"`{name}` {kind}{self._codec(name, kind)}" for name, kind in table.columns.items())
        return (
            f"CREATE TABLE IF NOT EXISTS {table.name} ({columns}) ENGINE = {engine}({', '.join(arguments)}) "
            f"PARTITION BY day ORDER BY ({table.order}) SETTINGS {settings}"
        )

    def _codec(self, name: str, kind: str) -> str:
        if self.version < MODERN or kind.startswith("AggregateFunction"):
            return ""
        return f" CODEC({', '.join(filter(None, (_CODECS.get(name), 'ZSTD(1)')))})"


def _create_inlet(inlet: Inlet) -> Iterator[str]:
    columns = ", ".join(f"`{name}` {kind}" for name, kind in inlet.columns.items())
    yield f"CREATE TABLE IF NOT EXISTS {inlet.name} ({columns}) ENGINE = Null"
    yield f"CREATE MATERIALIZED VIEW IF NOT EXISTS {inlet.name}_view TO {inlet.target.name} AS {inlet.select}"


def _first(server: Server) -> Iterator[str]:
    for table in (ROWS, ROLLUPS, SKETCHES, SKETCH_ROLLUPS, ITEMS, EVENTS, LANES, DESCRIPTIONS, CLAIMS, RUNS):
        yield server.create(table)
    yield from _create_inlet(ROLLUPS_IN)


def _second(server: Server) -> Iterator[str]:
    for table in (FACTS, PAGES, COMMANDS):
        yield server.create(table)


def _third(server: Server) -> Iterator[str]:
    yield server.create(RANK_ROLLUPS)


def _fourth(server: Server) -> Iterator[str]:
    yield server.create(RANK_SKETCH_ROLLUPS)


# The statements that lead from each version to the next one. All can be repeated, as after a lost connection.
MIGRATIONS: Final[tuple[Callable[[Server], Iterator[str]], ...]] = (_first, _second, _third, _fourth)
_VERSIONS: Final = (
    "CREATE TABLE IF NOT EXISTS versions (version UInt32, at DateTime, writer String) "
    "ENGINE = MergeTree ORDER BY version"
)


@dataclass(slots=True)
class Schema:
    """Prepares the servers of one cluster."""

    address: ClusterAddress
    writer: str  # the release of hookcore, for people who look into the table
    migrations: tuple[Callable[[Server], Iterator[str]], ...] = MIGRATIONS
    _shards: dict[str, int] = field(default_factory=dict)  # by the name that the servers give them
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self, node: Node) -> None:
        """Create or migrate the tables of a server. Raises SchemaError if a later release has written them."""
        database = self.address.database
        node.for_inserts = _known_to(node)
        node.send(f"CREATE DATABASE IF NOT EXISTS {_identifier(database)}", database=False)
        node.send(_VERSIONS)
        known = self._version_of(node)
        if known > len(self.migrations):
            raise SchemaError(
                f"the database {database} of {node.address.name} has schema {known}, and this hookcore "
                f"({self.writer}) knows up to {len(self.migrations)}: a later release wrote it. Use that release"
            )
        if known == len(self.migrations):
            return
        server = Server(database, _release_of(node), self._path_of(node))
        for version, migrate in enumerate(self.migrations[known:], known + 1):
            for statement in migrate(server):
                node.send(statement)
            node.send(f"INSERT INTO versions SELECT {version}, now(), {quoted(self.writer)}")

    @staticmethod
    def _version_of(node: Node) -> int:
        return decode(node.send("SELECT max(version) AS version FROM versions FORMAT Native")).one("version")

    def _path_of(self, node: Node) -> str:
        """Return where ZooKeeper keeps what the replicas of a shard have in common."""
        if not self.address.replicated:
            return ""
        found = decode(node.send("SELECT macro, substitution FROM system.macros FORMAT Native", database=False))
        macros = dict(zip(found.texts("macro"), found.texts("substitution"), strict=True))
        if b"replica" not in macros:
            raise SchemaError(
                f"{node.address.name} has no macro `replica`: give each server of a shard its own name in the "
                "section <macros> of its configuration, and those of different shards another `shard`"
            )
        shard = macros.get(b"shard", b"").decode() or "single"
        number = next(place for place, shards in enumerate(self.address.shards) if node.address in shards)
        with self._lock:
            if self._shards.setdefault(shard, number) != number:
                raise SchemaError(
                    f"{node.address.name} says that it belongs to shard {shard!r}, as a server of another shard of "
                    "the address does: separate replicas by commas and shards by semicolons, and check the macros"
                )
        return f"/clickhouse/hookcore/{self.address.database}/{shard}"


def _known_to(node: Node) -> dict[str, int]:
    """Return the settings of inserts that a server knows. Any other would be an error."""
    names = ", ".join(map(quoted, OF_INSERTS))
    sql = f"SELECT name FROM system.settings WHERE name IN ({names}) FORMAT Native"
    known = decode(node.send(sql, database=False)).texts("name")
    return {name: value for name, value in OF_INSERTS.items() if name.encode() in known}


def _release_of(node: Node) -> tuple[int, ...]:
    found = decode(node.send("SELECT version() AS version FORMAT Native", database=False))
    return tuple(int(part) for part in found.texts("version")[0].decode().split(".")[:2])


def _identifier(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def connect(address: ClusterAddress, writer: str) -> Cluster:
    """Return a cluster whose servers are prepared when they are first used."""
    return Cluster(address, Schema(address, writer).prepare)


# The numbers of runs and lanes in the tables. They are computed from the names, not assigned.

DAY_S: Final = 86_400
_LAST_DAY: Final = 2**16 - 1
SCALARS: Final = 2**63  # lanes of scalars begin here; those of taps are the taps' numbers


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=10_000)
def number_of_run(run_id: str) -> int:
    """Return the number of a run, or of a spool."""
    return _hash(run_id)


@lru_cache(maxsize=100_000)
def lane_of_scalar(name: str) -> int:
    """Return the lane of a scalar. That of a tap is the tap's number."""
    lane = _hash(name) | SCALARS
    return lane if lane != MARK else MARK - 1


@lru_cache(maxsize=100_000)
def lane_of_sum(tap: Tap) -> int:
    """Return the lane of a tap in the sums of ranks, each of which numbers its taps as it met them."""
    return _hash(repr(astuple(tap))) & ~SCALARS


def day_of(started_s: float) -> int:
    """Return the day on which a run began, since 1970, as ClickHouse counts them."""
    return min(int(started_s) // DAY_S, _LAST_DAY)


def rank_shards(run_id: str, shards: int) -> list[int]:
    """Return the shards in the order in which a new run prefers them. A shard that is added takes its share of runs."""
    return sorted(range(shards), key=lambda shard: _hash(f"{shard} {run_id}"), reverse=True)

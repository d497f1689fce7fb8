"""Creates the tables of a server, migrates those of an earlier release, and refuses those of a later one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from hookcore.errors import HookcoreError

from .address import ClusterAddress
from .client import OF_INSERTS, Cluster, Node, quoted
from .native import decode
from .tables import (
    CLAIMS,
    COMMANDS,
    DESCRIPTIONS,
    EVENTS,
    FACTS,
    ITEMS,
    LANES,
    PAGES,
    RANK_ROLLUPS,
    RANK_SKETCH_ROLLUPS,
    ROLLUPS,
    ROLLUPS_IN,
    ROWS,
    RUNS,
    SKETCH_ROLLUPS,
    SKETCHES,
    Inlet,
    Table,
)

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

"""Writing to a shard: blocks that must not be duplicated, names, and signs of life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from hookcore.delivery.archive.folder import key_hash
from hookcore.records import Tap
from hookcore.records.wire import DeliveryCounters, Description, EndItem, Item, RunInfo

from .client import Shard
from .native import Column, encode
from .questions import in_runs
from .schema import CHUNK, CLAIMS, DESCRIPTIONS, FRAME, LANES, MARK, RUNS, Inlet, Table, lane_of_scalar, number_of_run

_encoder: Final = msgspec.msgpack.Encoder()


class Sign(msgspec.Struct, frozen=True):
    """A receiving process's regular message about a run."""

    info: RunInfo  # with a hash of the key
    counters: DeliveryCounters
    spool: str  # the id of the process's spool
    silent_s: float  # since the trainer's last message
    acknowledged: int  # the highest item in the spool
    stored: int  # the highest item that is inserted
    commands_done: int
    has_ended: bool
    end: EndItem | None = None
    first_step: int = -1  # of the inserted frames
    newest_step: int = -1
    steps: int = 0
    every_s: float = 5.0  # about which the next sign comes


def is_stored(shard: Shard, table: Table | Inlet, spool: str, segment: int) -> bool:
    """Return whether the block of a segment is in a table, as this replica knows it."""
    target = table.target if isinstance(table, Inlet) else table
    keys = {"run": number_of_run(spool), target.marked: segment}
    if "lane" in target.columns:
        keys["lane"] = MARK
    if "level" in target.columns:
        keys["level"] = 0
    elif "chunk" in target.columns:
        keys["chunk"] = 0
    where = " AND ".join(f"{name} = {value}" for name, value in keys.items())
    return shard.read(f"SELECT count() AS count FROM {target.name} WHERE {where}").one("count") > 0


def stored_numbers(shard: Shard, run: int, items: Sequence[Item]) -> set[int]:
    """Return the numbers of the items that are stored, or of which the insert has begun."""
    numbers = f"run = {run} AND number BETWEEN {items[0].number} AND {items[-1].number}"
    steps = [item.step for item in items]
    chunks = f"chunk BETWEEN {min(steps) >> CHUNK} AND {max(steps) >> CHUNK}"
    found = shard.read(
        f"SELECT number FROM items WHERE {numbers} UNION ALL "
        f"SELECT number FROM rows WHERE {numbers} AND {chunks} GROUP BY number"
    )
    return set(found.numbers("number").tolist())


def are_stored(shard: Shard, run: int, items: Sequence[Item]) -> bool:
    """Return whether items are stored completely, which their entries in the list of items say last."""
    where = f"run = {run} AND number BETWEEN {items[0].number} AND {items[-1].number}"
    found = set(shard.read(f"SELECT number FROM items WHERE {where}").numbers("number").tolist())
    return all(item.number in found for item in items)


class Known(NamedTuple):
    """The stored state of a run."""

    newest_step: int  # before some item; -1 for none
    spool: int  # of the first item
    first_step: int
    steps: int  # different ones


def known_of(shard: Shard, run: int, number: int) -> Known | None:
    """Return the stored state of a run, with the newest step before an item, or None."""
    found = shard.read(
        f"SELECT count() AS count, argMin(spool, number) AS spool, countIf(number < {number}) AS earlier, "
        f"maxIf(step, number < {number}) AS until, min(step) AS since, uniqExact(step) AS steps "
        f"FROM items WHERE run = {run} AND kind = {FRAME}"
    )
    until = found.one("until") if found.one("earlier") else -1
    return Known(until, *map(found.one, ("spool", "since", "steps"))) if found.one("count") else None


class Claim(NamedTuple):
    """Which spool inserts the items of a run, since how many seconds. A later term counts more."""

    term: int
    spool: int
    age_s: int


BEGUN: Final = 0  # the term with which a spool says that it has the first item of a run


def claims_of(shard: Shard, runs: Sequence[int]) -> dict[int, Claim]:
    """Return the newest claim of each run that has one."""
    if not runs:
        return {}
    found = shard.read(
        "SELECT run, term, spool, toInt64(now()) - toInt64(at) AS age FROM claims "
        f"WHERE {in_runs(runs)} AND term > {BEGUN} ORDER BY term, spool"
    )
    columns = (found.numbers(name).tolist() for name in ("run", "term", "spool", "age"))
    return {run: Claim(*about) for run, *about in zip(*columns, strict=True)}


def begun_elsewhere(shard: Shard, runs: Sequence[int], spool: int) -> set[int]:
    """Return the runs of which another spool says that it has the first item."""
    where = f"{in_runs(runs)} AND term = {BEGUN} AND spool != {spool}"
    return set(shard.read(f"SELECT run FROM claims WHERE {where} GROUP BY run").numbers("run").tolist())


def claims_block(runs: Sequence[tuple[int, int]], term: int, spool: int) -> bytes:
    """Return the block that claims runs, each with the day on which it began."""
    numbers, days = zip(*runs, strict=True)
    about = {"day": list(days), "term": [term] * len(runs), "run": np.array(numbers, np.uint64)}
    return block_of(CLAIMS, {**about, "spool": np.full(len(runs), spool, np.uint64)})


def block_of(table: Table, columns: Mapping[str, Any]) -> bytes:
    """Return a block with these columns; the others have their defaults."""
    typed: dict[str, tuple[str, Column]] = {}
    for name, values in columns.items():
        kind = table.columns[name].partition(" DEFAULT")[0]
        typed[name] = kind, list(values) if kind == "String" else np.array(list(values))
    return encode(typed)


class Names(NamedTuple):
    """Some lanes of a run: taps by their numbers, and scalars."""

    run: int
    day: int
    taps: Mapping[int, Tap]
    scalars: Sequence[str]

    @property
    def size(self) -> int:
        return len(self.taps) + len(self.scalars)


def names_block(names: Sequence[Names]) -> bytes:
    """Return the block that names lanes of runs."""
    lanes, content = [], []
    for name in names:
        lanes += [*name.taps, *map(lane_of_scalar, name.scalars)]
        content += [*map(_encoder.encode, name.taps.values()), *map(_encoder.encode, name.scalars)]
    counts = [name.size for name in names]
    about = {
        "day": np.repeat([name.day for name in names], counts),
        "run": np.repeat(np.array([name.run for name in names], np.uint64), counts),
    }
    return block_of(LANES, {**about, "lane": np.array(lanes, np.uint64), "content": content})


def descriptions_block(described: Sequence[tuple[int, int, Description]]) -> bytes:
    """Return the block with the descriptions of runs' models: run, day, and content."""
    runs, days, said = zip(*described, strict=True)
    about = {"day": days, "run": np.array(runs, np.uint64), "version": [each.version for each in said]}
    return block_of(DESCRIPTIONS, {**about, "content": list(map(_encoder.encode, said))})


def signs_block(signs: Sequence[tuple[int, int, int, Sign]]) -> bytes:
    """Return the block with signs of life: run, day, version, and content. A run's highest version counts."""
    runs, days, versions, said = zip(*signs, strict=True)
    about = {
        "day": days,
        "run": np.array(runs, np.uint64),
        "id": [sign.info.id.encode() for sign in said],
        "version": versions,
    }
    return block_of(RUNS, {**about, "content": list(map(_encoder.encode, said))})


def without_key(info: RunInfo) -> RunInfo:
    """Return the description of a run with a hash of its key, which is a secret of the trainer."""
    return msgspec.structs.replace(info, key=key_hash(info.key), keep="")

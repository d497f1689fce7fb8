"""Writing to a shard: the blocks of a segment, names, claims, and signs of life."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hookcore.delivery.archive.folder import key_hash
from hookcore.records import STATS, Tap
from hookcore.records.wire import DeliveryCounters, Description, EndItem, FrameItem, Item, RunInfo, SnapshotItem
from hookcore.store import STAT_NAMES
from hookcore.store.bounded import scalars_of

from .client import Shard
from .native import Column, Lists, encode, join
from .questions import in_runs
from .schema import (
    CHUNK,
    CLAIMS,
    DESCRIPTIONS,
    END,
    EVENTS,
    FACTS,
    FLOW,
    FRAME,
    ITEMS,
    LABELS,
    LANES,
    LEVELS,
    MARK,
    ROLLUPS_IN,
    ROWS,
    RUNS,
    SKETCH_LEVELS,
    SKETCH_ROLLUPS,
    SKETCHES,
    SNAPSHOT,
    Inlet,
    Table,
    lane_of_scalar,
    number_of_run,
)
from .steprows import Sketched, StepRows, rollups_of, rows_of, sketch_rollups_of, sketches_of

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


# A segment: whole steps of some runs as the blocks that are inserted. The same items always make the same bytes.

_KINDS: Final = {FrameItem: FRAME, SnapshotItem: SNAPSHOT, EndItem: END}
_NO_ARRAYS: Final = {"taps": b"", "stats": b"", "start": b"", "bins": b"", "counts": b"", "owners": None}
_NO_SKETCHES: Final = bytes(4)  # the start of the first sketch, if there is none
_decoder: Final = msgspec.msgpack.Decoder(FrameItem | SnapshotItem | EndItem)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Items of one run, oldest first, all of them checked."""

    run: int
    day: int  # since 1970: that on which the run began
    rank: int
    attempt: int
    taps: int  # known so far
    before: int  # the newest step of earlier pieces
    items: Sequence[Item]

    @property
    def frames(self) -> list[FrameItem]:
        return [item for item in self.items if isinstance(item, FrameItem)]

    @property
    def rows(self) -> int:
        """The number of values of taps."""
        return sum(len(frame.taps) // 4 for frame in self.frames)

    @property
    def scalars(self) -> set[str]:
        """The names of the scalars."""
        return {name for frame in self.frames for name in scalars_of(frame)}


def head_of(item: Item) -> tuple[bytes, bytes]:
    """Return what an item says besides its rows and sketches, and the values of a snapshot."""
    if isinstance(item, FrameItem):
        return _encoder.encode(msgspec.structs.replace(item, **_NO_ARRAYS)), b""
    if isinstance(item, SnapshotItem):
        return _encoder.encode(msgspec.structs.replace(item, values=b"")), item.values
    return _encoder.encode(item), b""


def item_of(head: bytes, content: bytes) -> Item:
    """Return an item as `head_of` wrote it. Its rows and sketches are still missing."""
    item = _decoder.decode(head)
    if isinstance(item, FrameItem):
        return msgspec.structs.replace(item, start=_NO_SKETCHES)
    return msgspec.structs.replace(item, values=content) if isinstance(item, SnapshotItem) else item


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A piece with its rows and sketches."""

    spool: int
    piece: Piece
    rows: StepRows
    sketches: Sketched


def blocks_of(spool: str, segment: int, pieces: Sequence[Piece]) -> dict[Table | Inlet, bytes]:
    """Return the block of each table, if it has any rows. A mark in it says which segment of which spool it is."""
    parts = [
        _Part(
            number_of_run(spool),
            piece,
            rows_of(piece.frames, piece.rank, piece.taps, piece.before),
            sketches_of(piece.frames, piece.taps, piece.before),
        )
        for piece in pieces
    ]
    mark = {"run": number_of_run(spool), "day": pieces[0].day, "lane": MARK, "steps": 1}
    found = {}
    for table, make in _MAKERS.items():
        columns = [(part.piece.run, make(part)) for part in parts]
        if any(len(each["run"]) for _, each in columns):
            target = table.target if isinstance(table, Inlet) else table
            found[table] = _block(table, mark | {target.marked: segment}, columns)
    return found


def _block(table: Table | Inlet, mark: Mapping[str, int], parts: Sequence[tuple[int, Mapping[str, Column]]]) -> bytes:
    """Join the columns of all runs, and put the mark where ClickHouse would sort it to."""
    marks = {name: _one(kind, mark.get(name, 0)) for name, kind in table.columns.items()}
    ordered = [part for _, part in sorted([*parts, (mark["run"], marks)], key=lambda part: part[0])]
    return encode({name: (kind, join([part[name] for part in ordered])) for name, kind in table.columns.items()})


def _one(kind: str, value: int) -> Column:
    if kind == "String":
        return [b""]
    if kind.startswith("Array"):
        return Lists(np.zeros(2, np.int64), np.empty(0, np.uint8))
    return np.array([value], np.uint64)


def _full(rows: int, value: int, dtype: Any) -> NDArray[Any]:
    return np.full(rows, value, dtype)


def _key(piece: Piece, rows: int) -> dict[str, Column]:
    return {"day": _full(rows, piece.day, np.uint16), "run": _full(rows, piece.run, np.uint64)}


def _rows(part: _Part) -> dict[str, Column]:
    piece, rows = part.piece, part.rows
    return {
        **_key(piece, len(rows)),
        "chunk": (rows.step >> np.uint64(CHUNK)).astype(np.uint32),
        "lane": rows.lane,
        "step": rows.step,
        "number": rows.number,
        "rank": _full(len(rows), piece.rank, np.uint32),
        "attempt": _full(len(rows), piece.attempt, np.uint32),
        "owner": rows.owner,
        "role": rows.role,
        **dict(zip(STATS, rows.stats, strict=True)),
    }


def _rollups(part: _Part) -> dict[str, Column]:
    found = rollups_of(part.rows)
    columns: dict[str, Column] = {
        **_key(part.piece, sum(len(each.lane) for each in found)),
        "level": np.repeat(LEVELS, [len(each.lane) for each in found]),
        **{name: join([getattr(each, name) for each in found]) for name in ("lane", "bucket", "steps", "bad_steps")},
    }
    for name, letter in (("sums", "s"), ("finite", "c"), ("low", "l"), ("high", "h")):
        values = np.concatenate([getattr(each, name) for each in found], axis=1)
        columns |= {f"{stat}_{letter}": values[place] for place, stat in enumerate(STAT_NAMES)}
    return columns


def _sketch_rows(part: _Part) -> dict[str, Column]:
    sketches = part.sketches
    return {
        **_key(part.piece, len(sketches.lane)),
        "chunk": (sketches.step >> np.uint64(CHUNK)).astype(np.uint32),
        "lane": sketches.lane,
        "step": sketches.step,
        "number": sketches.number,
        "role": sketches.role,
        "bins": Lists(sketches.starts, sketches.bins),
        "counts": Lists(sketches.starts, sketches.counts),
    }


def _sketch_rollups(part: _Part) -> dict[str, Column]:
    found = sketch_rollups_of(part.sketches)
    return {
        **_key(part.piece, sum(len(each.lane) for each in found)),
        "level": np.repeat(SKETCH_LEVELS, [len(each.lane) for each in found]),
        **{name: join([getattr(each, name) for each in found]) for name in ("lane", "bucket", "steps")},
        "sumsMap.bin": join([Lists(each.starts, each.bins) for each in found]),
        "sumsMap.count": join([Lists(each.starts, each.counts) for each in found]),
    }


def _events(part: _Part) -> dict[str, Column]:
    piece = part.piece
    found = [(frame.number, place, event) for frame in piece.frames for place, event in enumerate(frame.events)]
    return {
        **_key(piece, len(found)),
        "number": np.array([number for number, _, _ in found], np.uint64),
        "place": np.array([place for _, place, _ in found], np.uint32),
        "step": np.array([max(0, event.step) for _, _, event in found], np.uint64),
        "name": [event.name.encode() for _, _, event in found],
        "content": [_encoder.encode(event) for _, _, event in found],
    }


def _facts(part: _Part) -> dict[str, Column]:
    found: list[tuple[int, int, object]] = []
    for frame in part.piece.frames:
        found += [(frame.number, LABELS, frame.labels)] if frame.labels else []
        found += [(frame.number, FLOW, frame.flow)] if frame.flow is not None else []
    return {
        **_key(part.piece, len(found)),
        "number": np.array([number for number, _, _ in found], np.uint64),
        "kind": np.array([kind for _, kind, _ in found], np.uint8),
        "content": [_encoder.encode(content) for _, _, content in found],
    }


def _items(part: _Part) -> dict[str, Column]:
    piece = part.piece
    heads = list(map(head_of, piece.items))
    frames = [item if isinstance(item, FrameItem) else None for item in piece.items]
    count = len(heads)
    return {
        **_key(piece, count),
        "number": np.array([item.number for item in piece.items], np.uint64),
        "kind": np.array([_KINDS[type(item)] for item in piece.items], np.uint8),
        "step": np.array([item.step for item in piece.items], np.uint64),
        "rows": np.array([0 if frame is None else len(frame.taps) // 4 for frame in frames], np.uint32),
        "sketches": np.array([0 if frame is None else _sketched(frame) for frame in frames], np.uint32),
        "rank": _full(count, piece.rank, np.uint32),
        "attempt": _full(count, piece.attempt, np.uint32),
        "spool": _full(count, part.spool, np.uint64),
        "head": [head for head, _ in heads],
        "content": [content for _, content in heads],
    }


def _sketched(frame: FrameItem) -> int:
    """Return how many taps of a frame have a sketch."""
    return int(np.count_nonzero(np.diff(np.frombuffer(frame.start, "<u4").astype(np.int64)))) if frame.bins else 0


_MAKERS: Final[dict[Table | Inlet, Callable[[_Part], dict[str, Column]]]] = {  # in the order of the inserts
    ROWS: _rows,
    ROLLUPS_IN: _rollups,
    SKETCHES: _sketch_rows,
    SKETCH_ROLLUPS: _sketch_rollups,
    EVENTS: _events,
    FACTS: _facts,
    ITEMS: _items,  # last: who follows a run looks for these
}

"""A segment: whole steps of some runs as the blocks that are inserted. The same items always make the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from hookcore.records import STATS
from hookcore.records.wire import EndItem, FrameItem, Item, SnapshotItem
from hookcore.store import STAT_NAMES
from hookcore.store.bounded import scalars_of

from .native import Column, Lists, encode, join
from .schema import (
    CHUNK,
    END,
    EVENTS,
    FACTS,
    FLOW,
    FRAME,
    ITEMS,
    LABELS,
    LEVELS,
    MARK,
    ROLLUPS_IN,
    ROWS,
    SKETCH_LEVELS,
    SKETCH_ROLLUPS,
    SKETCHES,
    SNAPSHOT,
    Inlet,
    Table,
    number_of_run,
)
from .steprows import Sketched, StepRows, rollups_of, rows_of, sketch_rollups_of, sketches_of

_KINDS: Final = {FrameItem: FRAME, SnapshotItem: SNAPSHOT, EndItem: END}
_NO_ARRAYS: Final = {"taps": b"", "stats": b"", "start": b"", "bins": b"", "counts": b"", "owners": None}
_NO_SKETCHES: Final = bytes(4)  # the start of the first sketch, if there is none
_encoder: Final = msgspec.msgpack.Encoder()
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

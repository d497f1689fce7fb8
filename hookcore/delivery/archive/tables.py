"""Conversion between records and Arrow tables. Pure: touches no files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import groupby
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from hookcore.delivery.archive.arrow import pa
from hookcore.delivery.archive.folder import TAP_COLUMNS, schemas
from hookcore.records import STATS, Event, Frame, Names, SketchBlock, Snapshot, Tap, Value
from hookcore.records.flow import CallSize, Flow, FlowCall
from hookcore.records.sketch import rows_of
from hookcore.records.wire import SnapshotItem, frame_item, frame_of, snapshot_item, snapshot_of
from hookcore.store import TapList

Numbered = tuple[int, Frame]
ROWS_AT_ONCE: Final = 1000
_SIZES: Final = tuple(each.name for each in fields(CallSize))


def frame_tables(frames: Sequence[Numbered], taps: TapList) -> dict[str, pa.Table]:
    """Return the rows of frames; rows of unknown taps are left out, as in the store."""
    fitting = [(number, _of_known_taps(frame, len(taps.taps))) for number, frame in frames]
    return {
        "steps": _steps_table(fitting),
        "stats": _stats_table(fitting, taps),
        "sketches": _sketches_table(fitting),
        "scalars": _scalars_table(fitting),
        "flows": _flows_table(fitting),
    }


def _of_known_taps(frame: Frame, known: int) -> Frame:
    if not len(frame.taps) or int(frame.taps.max()) < known:
        return frame
    rows = np.flatnonzero(frame.taps < known)
    owners = None if frame.owners is None else frame.owners[rows]
    sketches = rows_of(frame.sketches, rows)
    return replace(frame, taps=frame.taps[rows], stats=frame.stats[rows], sketches=sketches, owners=owners)


def _steps_table(frames: Sequence[Numbered]) -> pa.Table:
    columns: dict[str, list[Any]] = {"frame": [number for number, _ in frames]}
    columns |= {name: [getattr(frame, name) for _, frame in frames] for name in schemas()["steps"].names[1:]}
    columns["micro_batches"] = [min(many, 2**31 - 1) for many in columns["micro_batches"]]
    return pa.table(columns, schema=schemas()["steps"])


def _places(frames: Sequence[Numbered]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    rows = [len(frame.taps) for _, frame in frames]
    numbers = np.repeat(np.array([number for number, _ in frames], np.int64), rows)
    steps = np.repeat(np.array([frame.step for _, frame in frames], np.int64), rows)
    taps = np.concatenate([frame.taps for _, frame in frames] or [np.empty(0, np.uint32)])
    return numbers, steps, taps.astype(np.int32)


def _stats_table(frames: Sequence[Numbered], taps: TapList) -> pa.Table:
    numbers, steps, rows = _places(frames)
    stats = np.concatenate([frame.stats for _, frame in frames] or [np.empty((0, len(STATS)))])
    columns: dict[str, Any] = {"frame": numbers, "step": steps, "tap": rows}
    columns |= {name: of_taps.take(pa.array(rows)) for name, of_taps in taps.fact(_columns_of).items()}
    columns |= {name: np.ascontiguousarray(stats[:, place]) for place, name in enumerate(STATS)}
    if any(frame.owners is not None for _, frame in frames):
        columns["owner"] = pa.chunked_array([_owners(frame) for _, frame in frames], pa.int32())
    else:
        columns["owner"] = pa.nulls(len(rows), pa.int32())
    return pa.table(columns, schema=schemas()["stats"])


def _owners(frame: Frame) -> pa.Array:
    return pa.nulls(len(frame.taps), pa.int32()) if frame.owners is None else pa.array(frame.owners, pa.int32())


def _columns_of(taps: TapList) -> dict[str, pa.Array]:
    """Return the names of taps, as columns with an element for each tap."""
    columns = {name: pa.array([getattr(tap, name) for tap in taps.taps], pa.string()) for name in TAP_COLUMNS}
    calls = pa.array([tap.call for tap in taps.taps], pa.int32())
    return {**{name: column.dictionary_encode() for name, column in columns.items()}, "call": calls}


def _sketches_table(frames: Sequence[Numbered]) -> pa.Table:
    frames = [(number, frame) for number, frame in frames if len(frame.sketches.bins)]
    numbers, steps, rows = _places(frames)
    lengths = np.concatenate(
        [np.diff(frame.sketches.start.astype(np.int64)) for _, frame in frames] or [np.empty(0, np.int64)]
    )
    offsets = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
    bins = np.concatenate([frame.sketches.bins for _, frame in frames] or [np.empty(0, np.uint16)])
    counts = np.concatenate([frame.sketches.counts for _, frame in frames] or [np.empty(0, np.uint32)])
    columns = {
        "frame": numbers,
        "step": steps,
        "tap": rows,
        "bins": pa.ListArray.from_arrays(offsets, pa.array(bins.astype(np.uint16, copy=False))),
        "counts": pa.ListArray.from_arrays(offsets, pa.array(counts.astype(np.uint32, copy=False))),
    }
    return pa.table(columns, schema=schemas()["sketches"])


def _scalars_table(frames: Sequence[Numbered]) -> pa.Table:
    columns = {
        "frame": [number for number, frame in frames for _ in frame.scalars],
        "step": [frame.step for _, frame in frames for _ in frame.scalars],
        "name": [name for _, frame in frames for name in frame.scalars],
        "value": [value for _, frame in frames for value in frame.scalars.values()],
    }
    return pa.table(columns, schema=schemas()["scalars"])


def _flows_table(frames: Sequence[Numbered]) -> pa.Table:
    rows = [
        {"frame": number, "step": frame.step, "seconds": frame.flow.seconds, **asdict(call), **size}
        for number, frame in frames
        if frame.flow is not None
        for call, size in zip(frame.flow.calls, _size_rows(frame.flow), strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=schemas()["flows"])


def _size_rows(flow: Flow) -> list[dict[str, Any]]:
    return [asdict(size) for size in flow.sizes] or [dict.fromkeys(_SIZES)] * len(flow.calls)


def records_table(name: str, records: Sequence[Any]) -> pa.Table:
    """Return a table of records, with a column per field."""
    schema = schemas()[name]
    rows = [{field: _cell(value) for field, value in asdict(record).items()} for record in records]
    return pa.Table.from_pylist(rows, schema=schema)


def _cell(value: Any) -> Any:
    """Return the value of a field as its column has it."""
    return (msgspec.json.encode(value).decode() if value else None) if isinstance(value, dict) else value


def taps_table(taps: Sequence[Tap]) -> pa.Table:
    """Return a table of all taps with their numbers."""
    return pa.Table.from_pylist([{"tap": number, **asdict(tap)} for number, tap in enumerate(taps)], schemas()["taps"])


def snapshots_table(snapshots: Sequence[tuple[int, Snapshot]]) -> pa.Table:
    """Return a table of snapshots, with their numbers on the wire, and their values as little-endian bytes."""
    rows = []
    for on_wire, snapshot in snapshots:
        item = snapshot_item(0, snapshot)
        names = None if item.names is None else msgspec.json.encode(item.names).decode()
        rows.append(
            {**asdict(snapshot.tap), **structs.asdict(item), "number": item.request, "names": names, "item": on_wire}
        )
    return pa.Table.from_pylist(rows, schema=schemas()["snapshots"])


# -- and back ----------------------------------------------------------------------------------------------------------


def events_of(table: pa.Table) -> Iterator[Event]:
    """Yield the events of a table."""
    for row in _rows(table):
        about = row.pop("about", None)  # files of older releases have none
        yield Event(**row, about={} if about is None else msgspec.json.decode(about, type=dict[str, Value]))


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows, converting only some of them to Python objects at a time."""
    for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
        yield from batch.to_pylist()


def snapshots_of(table: pa.Table) -> Iterator[tuple[int, Snapshot]]:
    """Yield snapshots with their numbers on the wire (-1 if unknown); raise WireError if an array doesn't fit."""
    for row in _rows(table):
        tap = Tap(**{name: row[name] for name in (*TAP_COLUMNS, "call")})
        names = row.get("names")  # files of older releases have none
        rest = {name: row[name] for name in ("step", "time_s", "dtype", "stored", "values", "truncated")}
        rest |= {"shape": tuple(row["shape"]), "request": row["number"]}
        rest["names"] = None if names is None else msgspec.json.decode(names, type=Names)
        on_wire = row.get("item")
        yield -1 if on_wire is None else on_wire, snapshot_of(SnapshotItem(0, tap, **rest))


def flows_of(table: pa.Table) -> Iterator[tuple[int, Flow]]:
    """Yield which call fed which, with the number of the frame that brought it."""
    for (frame, step, seconds), rows in groupby(_rows(table), lambda row: (row["frame"], row["step"], row["seconds"])):
        calls = list(rows)
        sized = calls if calls[0].get("outputs") is not None else ()  # files of older releases have no sizes
        sizes = msgspec.convert([{name: size[name] for name in _SIZES} for size in sized], tuple[CallSize, ...])
        yield frame, Flow(step, msgspec.convert(calls, tuple[FlowCall, ...]), seconds, sizes)


def frames_of(tables: dict[str, pa.Table], flows: Mapping[int, Flow]) -> Iterator[Numbered]:
    """Yield the frames of some tables in order with their numbers, checked like those from the network."""
    order = _numbers(tables["steps"]["frame"])
    cut = {name: _cuts(tables[name], order) for name in ("stats", "sketches", "scalars")}
    stats = np.stack([_floats(tables["stats"][name]) for name in STATS], axis=1)
    taps = _numbers(tables["stats"]["tap"])
    owners = tables["stats"]["owner"].combine_chunks() if "owner" in tables["stats"].column_names else None
    blocks = _Blocks(tables["sketches"])
    names, values = tables["scalars"]["name"], _floats(tables["scalars"]["value"])
    for place, row in enumerate(_rows(tables["steps"])):
        mine, logged = slice(*cut["stats"][place]), slice(*cut["scalars"][place])
        frame = Frame(
            row["step"],
            row["time_s"],
            taps[mine].astype(np.uint32),
            stats[mine],
            blocks.block_of(taps[mine], slice(*cut["sketches"][place])),
            scalars=dict(zip(names[logged].to_pylist(), values[logged].tolist(), strict=True)),
            micro_batches=row["micro_batches"] or 0,
            grad_scale=row["grad_scale"],
            elapsed_s=float("nan") if row["elapsed_s"] is None else row["elapsed_s"],
            flow=flows.get(row["frame"]),
            owners=None if owners is None else _known(owners[mine]),
        )
        yield row["frame"], frame_of(frame_item(0, frame))


def _known(owners: pa.Array) -> NDArray[np.int32] | None:
    return None if owners.null_count else np.asarray(owners, np.int32)


class _Blocks:
    """The sketches of a table, row by row."""

    def __init__(self, table: pa.Table) -> None:
        self._taps = _numbers(table["tap"])
        bins, counts = (table[name].combine_chunks() for name in ("bins", "counts"))
        self._start = np.asarray(bins.offsets, np.int64)
        self._same = np.array_equal(self._start, np.asarray(counts.offsets, np.int64))
        self._bins, self._counts = _flat(bins, np.uint16), _flat(counts, np.uint32)

    def block_of(self, taps: NDArray[np.int64], rows: slice) -> SketchBlock:
        """Return the sketches of a frame, or none if they don't match its taps."""
        if not self._same or not np.array_equal(self._taps[rows], taps):
            return SketchBlock.empty(len(taps))
        start = self._start[rows.start : rows.stop + 1]
        picked = slice(int(start[0]), int(start[-1]))
        return SketchBlock((start - start[0]).astype(np.uint32), self._bins[picked], self._counts[picked])


def _cuts(table: pa.Table, order: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the first row of each frame, and the end of the last one."""
    frames = _numbers(table["frame"])
    return np.stack([np.searchsorted(frames, order, side="left"), np.searchsorted(frames, order, side="right")], axis=1)


def _numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    return column.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _floats(column: pa.ChunkedArray) -> NDArray[np.float64]:
    return column.to_numpy().astype(np.float64)  # type: ignore[no-any-return]


def _flat(lists: pa.ListArray, kind: type) -> NDArray[Any]:
    return np.asarray(lists.values.to_numpy(zero_copy_only=False), kind)

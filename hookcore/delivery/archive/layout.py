"""The files in the folder of a saved run, and the columns of its tables."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

import pyarrow as pa

from hookcore.records import STATS, Coverage, Event, HookRecord, ModuleRecord, Value
from hookcore.records.flow import CallSize, FlowCall

FORMAT: Final = 2
OTHER_BINS: Final = frozenset({1})  # formats that are read without their sketches, which have other bins
SUFFIX: Final = ".hookcore"
RUN_FILE: Final = "run.json"
MAX_RUN_FILE_BYTES: Final = 2**22
TAP_COLUMNS: Final = ("module", "kind", "index", "phase")

_COLUMN_TYPES: Final[dict[Any, pa.DataType]] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    str | None: pa.string(),
    int | None: pa.int64(),
    bool: pa.bool_(),
    dict[str, Value]: pa.string(),  # as JSON; null if it is empty
    tuple[tuple[str, str], ...]: pa.map_(pa.string(), pa.string()),
    tuple[tuple[str, tuple[int, ...]], ...]: pa.map_(pa.string(), pa.list_(pa.int64())),
}


def _schema_of(record: type) -> pa.Schema:
    """Return the schema of a table whose columns are the fields of a record."""
    return pa.schema([(name, _type_of(hint)) for name, hint in get_type_hints(record).items()])


def _type_of(hint: Any) -> pa.DataType:
    if hint in _COLUMN_TYPES:
        return _COLUMN_TYPES[hint]
    if get_origin(hint) is tuple:
        return pa.list_(_type_of(get_args(hint)[0]))
    if is_dataclass(hint):
        return pa.struct(list(_schema_of(hint)))  # type: ignore[arg-type]
    return _type_of(type(get_args(hint)[0]))  # one of some words


_WORD: Final = pa.dictionary(pa.int32(), pa.string())
_TAP: Final = [*((name, _WORD) for name in TAP_COLUMNS), ("call", pa.int32())]
_PLACE: Final = [("frame", pa.int64()), ("step", pa.int64())]

# Tables that grow by parts. `frame` numbers the frames in order of arrival and connects the rows of the tables: one
# step may have several frames.
TABLES: Final = {
    "steps": pa.schema(
        [
            *_PLACE,
            ("time_s", pa.float64()),
            ("micro_batches", pa.int32()),
            ("grad_scale", pa.float64()),
            ("elapsed_s", pa.float64()),
        ]
    ),
    "stats": pa.schema(
        [*_PLACE, ("tap", pa.int32()), *_TAP, *((name, pa.float64()) for name in STATS), ("owner", pa.int32())]
    ),
    "sketches": pa.schema(
        [*_PLACE, ("tap", pa.int32()), ("bins", pa.list_(pa.uint16())), ("counts", pa.list_(pa.uint32()))]
    ),
    "scalars": pa.schema([*_PLACE, ("name", pa.string()), ("value", pa.float64())]),
    # A row for each call; the columns of its size are null if that isn't known.
    "flows": pa.schema([*_PLACE, ("seconds", pa.float64()), *_schema_of(FlowCall), *_schema_of(CallSize)]),
    "events": _schema_of(Event),
    "snapshots": pa.schema(
        [
            ("step", pa.int64()),
            ("time_s", pa.float64()),
            *((name, pa.string()) for name in TAP_COLUMNS),
            ("call", pa.int32()),
            ("dtype", pa.string()),
            ("shape", pa.list_(pa.int64())),
            ("stored", pa.string()),
            ("values", pa.binary()),
            ("truncated", pa.bool_()),
            ("number", pa.int64()),
            ("names", pa.string()),  # as JSON; null if there are none
            ("item", pa.int64()),  # its number on the wire; -1 if it has none
        ]
    ),
}
OF_FRAMES: Final = ("steps", "stats", "sketches", "scalars")  # rows of every frame
# Tables that are rewritten whole whenever they change.
WHOLE: Final = {
    "taps": pa.schema([("tap", pa.int32()), *((name, pa.string()) for name in TAP_COLUMNS), ("call", pa.int32())]),
    "modules": _schema_of(ModuleRecord),
    "coverage": _schema_of(Coverage),
    "hooks": _schema_of(HookRecord),
}
# Files of older releases don't have these.
LATER_COLUMNS: Final = frozenset(
    ("about", "bases", "owner", "source", "placements", "inside", "names", "item", *_schema_of(CallSize).names)
)

_PART: Final = re.compile(r"part-(\d{1,12})-(\d{1,12})\.parquet")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def folder_name(name: str, run_id: str) -> str:
    """Return the name of a run's folder, from its name and id, without path separators."""
    word = _UNSAFE.sub("-", name).strip("-.")[:60]
    return f"{word or 'run'}-{_UNSAFE.sub('-', run_id)[:64]}{SUFFIX}"


def part_name(first: int, last: int) -> str:
    """Return the file name of the parts from first to last."""
    return f"part-{first:06d}-{last:06d}.parquet"


def parts_in(folder: Path) -> list[tuple[int, int, Path]]:
    """Return the valid parts in order; one inside a larger one was merged into it."""
    found = []
    for path in folder.glob("part-*.parquet"):
        match = _PART.fullmatch(path.name)
        if match and int(match[1]) <= int(match[2]):
            found.append((int(match[1]), int(match[2]), path))
    found.sort(key=lambda part: (part[0], -part[1]))
    counting: list[tuple[int, int, Path]] = []
    for part in found:
        if not counting or part[1] > counting[-1][1]:
            counting.append(part)
    return counting

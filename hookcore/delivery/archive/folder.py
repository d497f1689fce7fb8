"""The folder of a saved run: its files, their layout, its state, and how they are written atomically."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from hookcore.delivery.archive.arrow import pa, pq
from hookcore.delivery.dashboard.private import UNFINISHED, make_folder, parsed, read_regular, whole_file
from hookcore.platform import lock_file
from hookcore.records import STATS, Coverage, Event, HookRecord, ModuleRecord, Value
from hookcore.records.flow import CallSize, FlowCall
from hookcore.records.wire import EndItem, RunInfo
from hookcore.store import StepRange

# The files in the folder of a saved run, and the columns of its tables.

FORMAT: Final = 2
OTHER_BINS: Final = frozenset({1})  # formats that are read without their sketches, which have other bins
SUFFIX: Final = ".hookcore"
RUN_FILE: Final = "run.json"
MAX_RUN_FILE_BYTES: Final = 2**22
TAP_COLUMNS: Final = ("module", "kind", "index", "phase")

# Tables that grow by parts. `frame` numbers the frames in order of arrival and connects the rows of the tables: one
# step may have several frames.
TABLES: Final = ("steps", "stats", "sketches", "scalars", "flows", "events", "snapshots")
OF_FRAMES: Final = TABLES[:4]  # rows of every frame
# Files of older releases don't have these.
LATER_COLUMNS: Final = frozenset(
    (
        *("about", "bases", "owner", "source", "placements", "inside", "names", "item"),
        *(field.name for field in fields(CallSize)),
    )
)


@cache
def schemas() -> dict[str, pa.Schema]:
    """Return the columns of each table: of TABLES, and of those that are rewritten whole whenever they change."""
    place = [("frame", pa.int64()), ("step", pa.int64())]
    word = pa.dictionary(pa.int32(), pa.string())
    texts = [(name, pa.string()) for name in TAP_COLUMNS]
    stats = [(name, pa.float64()) for name in STATS]
    return {
        "steps": pa.schema(
            [
                *place,
                ("time_s", pa.float64()),
                ("micro_batches", pa.int32()),
                ("grad_scale", pa.float64()),
                ("elapsed_s", pa.float64()),
            ]
        ),
        "stats": pa.schema(
            [
                *place,
                ("tap", pa.int32()),
                *((name, word) for name in TAP_COLUMNS),
                ("call", pa.int32()),
                *stats,
                ("owner", pa.int32()),
            ]
        ),
        "sketches": pa.schema(
            [*place, ("tap", pa.int32()), ("bins", pa.list_(pa.uint16())), ("counts", pa.list_(pa.uint32()))]
        ),
        "scalars": pa.schema([*place, ("name", pa.string()), ("value", pa.float64())]),
        # A row for each call; the columns of its size are null if that isn't known.
        "flows": pa.schema([*place, ("seconds", pa.float64()), *_schema_of(FlowCall), *_schema_of(CallSize)]),
        "events": _schema_of(Event),
        "snapshots": pa.schema(
            [
                ("step", pa.int64()),
                ("time_s", pa.float64()),
                *texts,
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
        "taps": pa.schema([("tap", pa.int32()), *texts, ("call", pa.int32())]),
        "modules": _schema_of(ModuleRecord),
        "coverage": _schema_of(Coverage),
        "hooks": _schema_of(HookRecord),
    }


def _schema_of(record: type) -> pa.Schema:
    """Return the schema of a table whose columns are the fields of a record."""
    return pa.schema([(name, _type_of(hint)) for name, hint in get_type_hints(record).items()])


def _type_of(hint: Any) -> pa.DataType:
    if hint in (types := _column_types()):
        return types[hint]
    if get_origin(hint) is tuple:
        return pa.list_(_type_of(get_args(hint)[0]))
    if is_dataclass(hint):
        return pa.struct(list(_schema_of(hint)))  # type: ignore[arg-type]
    return _type_of(type(get_args(hint)[0]))  # one of some words


@cache
def _column_types() -> dict[Any, pa.DataType]:
    return {
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
    parts = []
    for path in folder.glob("part-*.parquet"):
        match = _PART.fullmatch(path.name)
        if match and int(match[1]) <= int(match[2]):
            parts.append((int(match[1]), int(match[2]), path))
    parts.sort(key=lambda part: (part[0], -part[1]))
    counting: list[tuple[int, int, Path]] = []
    for part in parts:
        if not counting or part[1] > counting[-1][1]:
            counting.append(part)
    return counting


# Atomic files: written under a temporary name, synced, renamed.

MERGE_AT: Final = 8  # this many parts of about one size become one
MERGED_BYTES: Final = 64 * 2**20  # larger ones are left as they are
LEFT_BYTES: Final = 2**19  # so are parts that are at least as large, while there are few of them: to merge takes longer
LEFT_PARTS: Final = 256  # than to write
PORTION_BYTES: Final = 8 * 2**20  # unpacked, of the rows that are merged at once


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> int:
    """Write a file atomically; a crash leaves the old one, or none. Return by how many bytes the folder grew."""
    before = path.stat().st_size if path.exists() else 0
    with whole_file(path) as file:
        write(file)
        grown = file.tell() - before
    _sync_folder(path.parent)
    return grown


def _sync_folder(folder: Path) -> None:
    """Sync a folder, because a power failure could otherwise undo a renaming."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_json(path: Path, content: dict[str, Any]) -> int:
    """Write a JSON file atomically. Return by how many bytes the folder grew."""
    data = json.dumps(content, indent=1).encode()
    return write_whole(path, lambda file: file.write(data))


def write_table(path: Path, table: pa.Table) -> int:
    """Write a Parquet file atomically. Return by how many bytes the folder grew."""
    return _write_tables(path, table.schema, [table])


def _write_tables(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    # A dictionary of numbers that hardly repeat saves nothing, and takes time to make.
    words = [field.name for field in schema if pa.types.is_dictionary(field.type) or field.type == pa.string()]
    options = {"compression": "zstd", "compression_level": 1, "use_dictionary": words, "write_statistics": True}

    def write(file: IO[bytes]) -> None:
        with pq.ParquetWriter(file, schema, **options) as writer:
            for table in tables:
                writer.write_table(table)

    return write_whole(path, write)


def _read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    with path.open("rb") as file:  # Arrow opens only paths that are valid UTF-8
        return pq.read_table(file, columns=columns)


def last_frame(folder: Path) -> int:
    """Return the highest frame number in the readable parts of a table, or -1."""
    for _, _, path in reversed(parts_in(folder)):
        with contextlib.suppress(OSError, pa.ArrowException, IndexError):
            return int(_read_table(path, ["frame"])["frame"][-1].as_py())
    return -1


def remove_unfinished(folder: Path) -> None:
    """Remove what a crash left: unfinished files, and parts that were merged into others."""
    for path in folder.rglob(f"*{UNFINISHED}"):
        path.unlink()
    for below in folder.iterdir():
        if below.is_dir():
            counting = {path for _, _, path in parts_in(below)}
            for path in below.glob("part-*.parquet"):
                if path not in counting:
                    path.unlink()


def merge_parts(folder: Path) -> int:
    """Merge small parts, if there are many. Return by how many bytes the folder grew.

    The merged part is complete before the others are removed, so that no data is ever missing. A crash in between
    leaves duplicate rows for programs that read all files; hookcore checks the ranges, and the next writer cleans up.
    """
    run = _mergeable(parts_in(folder))
    if not run:
        return 0
    before = sum(path.stat().st_size for _, _, path in run)
    with contextlib.ExitStack() as files:
        parts = [pq.ParquetFile(files.enter_context(path.open("rb"))) for _, _, path in run]
        schema = pa.unify_schemas([part.schema_arrow for part in parts], promote_options="default")
        after = _write_tables(folder / part_name(run[0][0], run[-1][1]), schema, _portions(parts, schema))
    for _, _, path in run:
        path.unlink()
    return after - before


def _portions(parts: Sequence[pq.ParquetFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of all parts, some at a time: all together may take a gigabyte."""
    taken, nbytes = [schema.empty_table()], 0
    for part in parts:
        for number in range(part.num_row_groups):
            size = part.metadata.row_group(number).total_byte_size
            if nbytes and nbytes + size > PORTION_BYTES:
                yield joined(taken)
                taken, nbytes = taken[:1], 0
            taken.append(part.read_row_group(number))
            nbytes += size
    yield joined(taken)


def joined(parts: list[pa.Table]) -> pa.Table:
    """Return the rows of all parts. In those of an older release, a later column is null."""
    return pa.concat_tables(parts, promote_options="default").unify_dictionaries()


def _mergeable(parts: list[tuple[int, int, Path]]) -> list[tuple[int, int, Path]]:
    """Return the newest neighbors of one size class, if there are enough."""
    by_class: list[tuple[int, list[tuple[int, int, Path]]]] = []
    sizes = [path.stat().st_size for _, _, path in parts]
    large = min(MERGED_BYTES // 2, max(LEFT_BYTES, sum(sizes) // LEFT_PARTS))
    for part, size in zip(parts, sizes, strict=True):
        level = _level_of(part[1] - part[0] + 1) if size < large else -1
        if not by_class or by_class[-1][0] != level:
            by_class.append((level, []))
        by_class[-1][1].append(part)
    for level, run in reversed(by_class):
        if level >= 0 and len(run) >= MERGE_AT:
            return run[:MERGE_AT]
    return []


def _level_of(parts: int) -> int:
    level = 0
    while parts >= MERGE_AT:
        parts //= MERGE_AT
        level += 1
    return level


# The state of a saved run: how much of it is on disk, who may continue it, and whether it is being written.

LOCK_FILE: Final = "writing.lock"
_METADATA: Final = b"hookcore"


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """The counters of a run on disk, over all of its writers."""

    acknowledged: int = -1  # the highest number, on the wire, of what was written
    written: int = 0  # frames and snapshots
    lost: int = 0

    def as_metadata(self) -> dict[bytes, bytes]:
        """Return the counters as metadata of a part, so that a crash can't separate them from its data."""
        return {_METADATA: msgspec.json.encode(self)}

    @classmethod
    def of(cls, folder: Path) -> DiskCounters:
        """Return the counters of the run in a folder: the newer of run.json and its last part."""
        counts = [cls()]
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            counts.append(msgspec.convert(parsed(read_regular(folder / RUN_FILE, MAX_RUN_FILE_BYTES)), cls))
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, LookupError, pa.ArrowException):
            content = pq.read_schema(parts_in(folder / "steps")[-1][2]).metadata[_METADATA]
            counts.append(msgspec.json.decode(content, type=cls))
        return max(counts, key=lambda counters: (counters.acknowledged, counters.written))


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """Counters of received, written, and lost frames and snapshots, and the bytes on disk."""

    taken: int
    written: int
    lost: int
    nbytes: int
    stopped: str | None  # why nothing is being written


def key_hash(key: str) -> str:
    """Return a hash of a run's key: enough to recognize its trainer, useless to anyone else."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest() if key else ""


def hold(folder: Path) -> int | None:
    """Lock a run against other writers; None if another process has the lock. It ends with the descriptor."""
    number = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock_file(number)
    except BlockingIOError:
        os.close(number)
        return None
    except OSError:
        pass  # a file system without locks
    return number


def is_held(folder: Path) -> bool:
    """Return whether a process is writing to this run."""
    try:
        number = hold(folder)
    except OSError:
        return False
    if number is None:
        return True
    os.close(number)
    return False


_ORDER: Final = ("events", "snapshots", "flows", "scalars", "sketches", "stats", "steps")


class RunFolder:
    """Files of one run. Everything is called by one thread; what fails raises, and can be repeated."""

    def __init__(self, path: Path, info: RunInfo) -> None:
        self.path = path
        self.nbytes = 0
        self.is_open = False
        self.first_frame = 0  # of this writer: a folder that is opened again already has frames
        self.before = DiskCounters()  # of earlier writers of this run
        self.info = info
        self._part = 0
        self._unmergeable: set[str] = set()
        self._whole: dict[str, Any] = {}  # the last written contents of the files that are rewritten whole
        self._held: int | None = None  # the descriptor that keeps other processes from writing here

    def open(self) -> None:
        """Create the folder, or continue the run in it."""
        make_folder(self.path.parent)
        # Closed to other users, whatever the umask, because it may hold training data.
        self.path.mkdir(mode=0o700, exist_ok=True)
        self._hold()
        for name in TABLES:
            (self.path / name).mkdir(exist_ok=True)
        remove_unfinished(self.path)
        last = [parts[-1][1] for name in TABLES if (parts := parts_in(self.path / name))]
        self._part = max(last, default=-1) + 1
        self.first_frame = last_frame(self.path / "steps") + 1
        self.before = DiskCounters.of(self.path)
        self.nbytes = sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())
        self.is_open = True

    def _hold(self) -> None:
        if self._held is None:
            self._held = hold(self.path)
            if self._held is None:
                raise OSError(f"another process is writing to {self.path}")

    def release(self) -> None:
        """Let other processes write here."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def write_part(self, tables: Mapping[str, pa.Table]) -> None:
        """Write tables as the next part."""
        # `steps` comes last: if a step is there, its frames and everything captured with them are too.
        filled = [name for name in _ORDER if name in tables and tables[name].num_rows]
        for name in filled:
            self.nbytes += write_table(self.path / name / part_name(self._part, self._part), tables[name])
        self._part += bool(filled)

    def write_whole(self, name: str, rows: Any, make: Callable[[Any], pa.Table]) -> None:
        """Write a table again if its rows have changed."""
        if rows and self._whole.get(name) != rows:
            self.nbytes += write_table(self.path / f"{name}.parquet", make(rows))
            self._whole[name] = rows

    def write_run_file(
        self,
        counters: DiskCounters,
        end: EndItem | None,
        steps: StepRange,
        labels: Mapping[str, str],
        finished: bool,
    ) -> None:
        """Write run.json again if anything in it has changed. `finished`: no more will be written."""
        failure = end.failure if end is not None else None
        ended = "live" if end is None else "ended"
        info = {name: value for name, value in msgspec.to_builtins(self.info).items() if name not in ("key", "keep")}
        content = {
            "format": FORMAT,
            "state": ended if failure is None else failure.outcome,
            "finished": finished,
            "failure": None if failure is None else msgspec.to_builtins(failure),
            **msgspec.to_builtins(counters),
            "key_hash": key_hash(self.info.key),
            "first_step": steps.first,
            "last_step": steps.newest,
            "steps": steps.count,
            "labels": labels,
            "run": json.loads(msgspec.json.encode(info)),
        }
        if self._whole.get(RUN_FILE) != content:
            self.nbytes += write_json(self.path / RUN_FILE, content)
            self._whole[RUN_FILE] = content

    def merge(self) -> None:
        """Merge small files. The data is already safe, so a failure only costs the merge."""
        for name in TABLES:
            if name not in self._unmergeable:
                try:
                    self.nbytes += merge_parts(self.path / name)
                except Exception:  # a full disk, or a part that has become damaged
                    self._unmergeable.add(name)
        pa.default_memory_pool().release_unused()  # it would keep what it needed to merge large parts

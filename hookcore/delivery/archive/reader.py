"""Reads a saved run, or fills a store with it. Damaged parts are skipped and reported; no code in a file is run."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import not_
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeVar

import msgspec

from hookcore.delivery.archive.arrow import pa, pc, pq
from hookcore.delivery.archive.folder import (
    FORMAT,
    LATER_COLUMNS,
    MAX_RUN_FILE_BYTES,
    OF_FRAMES,
    OTHER_BINS,
    RUN_FILE,
    TABLES,
    joined,
    parts_in,
    schemas,
)
from hookcore.delivery.archive.tables import events_of, flows_of, frames_of, snapshots_of
from hookcore.delivery.dashboard.private import open_regular, parsed, read_regular
from hookcore.errors import ArgumentError, HookcoreError
from hookcore.records import Coverage, Event, Failure, Frame, HookRecord, ModuleRecord, Snapshot, Tap
from hookcore.records.flow import Flow
from hookcore.records.vocabulary import NONFINITE_STEP, OWN_RULE
from hookcore.records.wire import RunInfo
from hookcore.store import Store
from hookcore.store.segments import SKIPPED_STEP

# Reads a saved run. Damaged parts are skipped and reported; nothing in a file is ever executed.

MAX_FILE_BYTES: Final = 2**29
MAX_PART_BYTES: Final = 2**30  # unpacked; a file that holds more is not read
MAX_WHOLE_BYTES: Final = 2**26  # unpacked, of a table whose rows all become objects at once
MAX_PART_ROWS: Final = 50_000_000
MAX_WHOLE_ROWS: Final = 300_000
ROWS_AT_ONCE: Final = 2**16
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_MERGES: Final = 1000  # during one reading; more are no longer a writer's
Record = TypeVar("Record", Tap, ModuleRecord, Coverage, HookRecord)


def read_errors() -> tuple[type[Exception], ...]:
    """Return all errors that reading a foreign file can cause."""
    own = (OSError, HookcoreError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)
    return (*own, pa.ArrowException)


class _MergedError(Exception):
    """A part is gone, because a writer has merged it into another one: the folder must be listed again."""


@dataclass(slots=True)
class Archive:
    """A saved run. `frames()` and the later methods read the disk; `damages` lists what could not be read.

    The run may still be written by another process. If it isn't, and `is_cut`, what wrote it was killed, or its disk
    was full: what had arrived and was not written yet is missing, and nothing says how much that is.
    """

    folder: Path
    info: RunInfo
    state: str
    last_step: int | None
    lost: int
    labels: dict[str, str]
    failure: Failure | None = None
    key_hash: str = ""
    damages: list[str] = field(default_factory=list)
    has_sketches: bool = True  # in this version's bins; others are left out
    is_cut: bool = False  # whether its writer hasn't finished
    first_step: int | None = None
    steps: int | None = None  # how many are on disk; None if an earlier version wrote it
    _merges: int = 0  # parts that a writer merged into others while they were about to be read

    def taps(self) -> tuple[Tap, ...]:
        """The taps by number."""
        rows = self._whole("taps")
        if [row.pop("tap") for row in rows] != list(range(len(rows))):
            self.damages.append("taps.parquet: the numbers of the taps have gaps")
            return ()
        return tuple(self._records("taps", rows, Tap))

    def modules(self) -> list[ModuleRecord]:
        return self._records("modules", self._whole("modules"), ModuleRecord)

    def coverage(self) -> list[Coverage]:
        """The coverage of the run."""
        return self._records("coverage", self._whole("coverage"), Coverage)

    def hooks(self) -> list[HookRecord]:
        """The hooks of the last inventory."""
        return self._records("hooks", self._whole("hooks"), HookRecord)

    def frames(self) -> Iterator[Frame]:
        """Yield all complete frames in order."""
        return (frame for _, frame in self.numbered_frames())

    def numbered_frames(self, least: int = 0) -> Iterator[tuple[int, Frame]]:
        """Yield all complete frames in order with their numbers, from a number on."""
        flows = self.flows()
        done = newest = -1  # the last part, and the last frame
        # Parts of the tables may be merged differently, so a range of parts is read from all tables together.
        while ranges := [parts for parts in _common_ranges(self.folder) if parts[1] > done]:
            for first, last in ranges:
                try:
                    tables = {"steps": self._range("steps", first, last)}
                    if least and max(tables["steps"]["frame"].to_pylist(), default=-1) < least:
                        done = last
                        continue
                    tables = {name: self._range(name, first, last) for name in OF_FRAMES}
                except _MergedError:
                    break
                if least:
                    tables["steps"] = tables["steps"].filter(pc.greater_equal(tables["steps"]["frame"], least))
                if first <= done:  # a part that is known was merged into a larger one
                    tables["steps"] = tables["steps"].filter(pc.greater(tables["steps"]["frame"], newest))
                done, newest = last, max([newest, *tables["steps"]["frame"].to_pylist()])
                yield from self._each(self._frames(tables, flows), f"parts {first} to {last}")

    def _frames(self, tables: dict[str, pa.Table], flows: dict[int, Flow]) -> Iterator[tuple[int, Frame]]:
        if not self.has_sketches:
            tables["sketches"] = schemas()["sketches"].empty_table()
        yield from frames_of(tables, flows)

    def _each(self, frames: Iterator[Any], what: str) -> Iterator[Any]:
        while True:
            try:
                frame = next(frames)
            except StopIteration:
                return
            except read_errors() as error:
                self.damages.append(f"{what}: {error}")
                return
            yield frame

    def flows(self) -> dict[int, Flow]:
        """Return which call fed which, by the number of the frame that brought it."""
        flows: dict[int, Flow] = {}
        for table, name in self._parts("flows", True):
            flows |= dict(self._each(flows_of(table), name))
        return flows

    def snapshots(self) -> Iterator[Snapshot]:
        """Yield all snapshots."""
        return (snapshot for _, snapshot in self.numbered_snapshots())

    def numbered_snapshots(self) -> Iterator[tuple[int, Snapshot]]:
        """Yield all snapshots with their numbers on the wire, or -1."""
        for table, name in self._parts("snapshots"):
            yield from self._each(snapshots_of(table), name)

    def events(self) -> Iterator[Event]:
        """Return all events, oldest first."""
        for table, name in self._parts("events"):
            yield from self._each(events_of(table), name)

    def _parts(self, name: str, whole: bool = False) -> Iterator[tuple[pa.Table, str]]:
        """Yield the parts of a table with their names, without rows that were in an earlier one."""
        rows: dict[int, int] = {}  # by the last part
        done = -1
        while left := [written for written in parts_in(self.folder / name) if written[1] > done]:
            for first, last, path in left:
                try:
                    table = self._read(path, schemas()[name], whole)
                except _MergedError:
                    break
                read = sum(count for part, count in rows.items() if part >= first)
                done, rows[last] = last, table.num_rows - read
                yield table.slice(read), path.name

    def _range(self, name: str, first: int, last: int) -> pa.Table:
        paths = [path for begin, end, path in parts_in(self.folder / name) if first <= begin and end <= last]
        tables = [self._read(path, schemas()[name]) for path in paths]
        return joined(tables) if tables else schemas()[name].empty_table()

    def _whole(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.parquet"
        rows: list[dict[str, Any]] = self._read(path, schemas()[name], True).to_pylist() if path.exists() else []
        return rows

    def _records(self, name: str, rows: list[dict[str, Any]], kind: type[Record]) -> list[Record]:
        try:
            return msgspec.convert(rows, list[kind])  # type: ignore[valid-type]
        except msgspec.ValidationError as error:
            self.damages.append(f"{name}.parquet: {error}")
            return []

    def _read(self, path: Path, schema: pa.Schema, whole: bool = False) -> pa.Table:
        most_bytes, most_rows = (MAX_WHOLE_BYTES, MAX_WHOLE_ROWS) if whole else (MAX_PART_BYTES, MAX_PART_ROWS)
        try:
            with open_regular(path, MAX_FILE_BYTES) as file:
                return _table_of(file, schema, most_bytes, most_rows)
        except read_errors() as error:
            if isinstance(error, FileNotFoundError) and self._merges < MAX_MERGES and not os.path.lexists(path):
                self._merges += 1
                raise _MergedError from None
            self.damages.append(f"{path.relative_to(self.folder)}: {error}")
            return schema.empty_table()


def _table_of(file: BinaryIO, schema: pa.Schema, most_bytes: int, most_rows: int) -> pa.Table:
    """Read a table in pieces, so that a small file that unpacks to a large table is rejected early.

    The size that the file states is checked but not trusted. Texts stay in dictionaries until their total length is
    known, because a file may repeat one long text in every row.
    """
    parts = pq.ParquetFile(file)
    about = parts.metadata
    size = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    _require_size(size, about.num_rows, most_bytes, most_rows)
    written = parts.schema_arrow.names
    schema = pa.schema([field for field in schema if field.name in written or field.name not in LATER_COLUMNS])
    columns = [parts.schema.column(place) for place in range(len(parts.schema))]
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    batches, size = [], 0
    for batch in pq.ParquetFile(file, read_dictionary=texts).iter_batches(ROWS_AT_ONCE, columns=schema.names):
        batch.validate(full=True)
        size += batch.nbytes + sum(map(_text_bytes, batch.columns))
        _require_size(size, about.num_rows, most_bytes, most_rows)
        batches.append(batch.select(schema.names))
    table = pa.Table.from_batches(batches) if batches else schema.empty_table()
    return table.cast(schema).unify_dictionaries()


def _require_size(size: int, rows: int, most_bytes: int, most_rows: int) -> None:
    if size > most_bytes or rows > most_rows:
        size_words = f"{size} bytes or more in {rows} rows"
        raise ArgumentError(f"it contains {size_words}; at most {most_bytes} bytes in {most_rows} rows are allowed")


def _text_bytes(array: pa.Array) -> int:
    """Return the size of all strings in an array, counting each occurrence."""
    if pa.types.is_dictionary(array.type):
        lengths = pc.fill_null(pc.binary_length(array.dictionary), 0)
        return pc.sum(pc.take(lengths, array.indices)).as_py() or 0
    if pa.types.is_map(array.type):
        return _text_bytes(array.keys) + _text_bytes(array.items)
    return _text_bytes(array.flatten()) if pa.types.is_list(array.type) else 0


def read_archive(folder: str | Path) -> Archive:
    """Open a saved run by its folder or a file in it; raise ArgumentError if it isn't one."""
    path = Path(folder).expanduser()
    if path.is_file():
        path = path.parent if path.parent.name not in TABLES else path.parent.parent
    try:
        content = parsed(read_regular(path / RUN_FILE, MAX_RUN_FILE_BYTES))
        if content["format"] not in {FORMAT, *OTHER_BINS}:
            raise ArgumentError(
                f"{path} has format {content['format']}; this version of hookcore reads format {FORMAT}"
            )
        info = msgspec.convert({**content["run"], "key": ""}, RunInfo)
        if not _ID.fullmatch(info.id):
            raise ArgumentError(f"{path} has an invalid run id: {info.id[:80]!r}")
        labels = msgspec.convert(content.get("labels", {}), dict[str, str])
        first_step, last_step, steps = (
            msgspec.convert(content.get(name), int | None) for name in ("first_step", "last_step", "steps")
        )
        lost = msgspec.convert(content.get("lost", 0), int)
        failure = msgspec.convert(_renamed(content.get("failure")), Failure | None)
        state = failure.outcome if failure is not None else "ended" if content.get("state") == "ended" else "lost"
        hashed = msgspec.convert(content.get("key_hash", ""), str)
        is_cut = state == "lost" and content.get("finished") is False
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"{path} is not a saved run: its {RUN_FILE} can't be read ({error}). Give the folder that ends in .hookcore"
        ) from None
    has_sketches = content["format"] not in OTHER_BINS
    about = path, info, state, last_step, lost, labels, failure, hashed
    return Archive(*about, has_sketches=has_sketches, is_cut=is_cut, first_step=first_step, steps=steps)


def _renamed(failure: Any) -> Any:
    """Return a saved failure in today's words: a run that Ctrl+C stopped was once called interrupted."""
    if isinstance(failure, dict) and failure.get("outcome") == "interrupted":
        return {**failure, "outcome": "stopped", "signal": "SIGINT"}
    return failure


def _common_ranges(folder: Path) -> list[tuple[int, int]]:
    """Return ranges of frames that no part of any table crosses."""
    parts = sorted((first, last) for name in OF_FRAMES for first, last, _ in parts_in(folder / name))
    ranges: list[tuple[int, int]] = []
    for first, last in parts:
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(last, ranges[-1][1])
        else:
            ranges.append((first, last))
    return ranges


# Fills a store with a recorded run, part by part.


class Recorded(Protocol):
    """The source for filling a store: a run on disk, or in a database."""

    damages: list[str]  # what could not be read

    @property
    def labels(self) -> dict[str, str]: ...
    def taps(self) -> tuple[Tap, ...]: ...
    def modules(self) -> Sequence[ModuleRecord]: ...
    def coverage(self) -> Sequence[Coverage]: ...
    def hooks(self) -> Sequence[HookRecord]: ...
    def events(self) -> Iterator[Event]: ...
    def frames(self) -> Iterator[Frame]: ...
    def snapshots(self) -> Iterator[Snapshot]: ...


def load_into(store: Store, archive: Recorded) -> None:
    """Load a saved run into a store, part by part; the store's limits bound the memory."""
    store.announce(archive.taps())
    store.describe(archive.modules(), archive.coverage(), archive.hooks())
    load_frames(store, archive)


def load_frames(store: Store, archive: Recorded) -> None:
    """Load all that a run's steps brought into a store that knows its taps and modules."""
    labels = archive.labels
    # While the run was live, an incident was known to be skipped before it made room for later ones.
    skipped = deque(sorted(event.step for event in archive.events() if event.name == SKIPPED_STEP))
    unheard = Unheard(archive.events())
    for frame in archive.frames():
        unheard.tell(store, frame)
        while skipped and skipped[0] < frame.step:
            store.note_skipped(skipped.popleft())
        try:
            store.append(replace(frame, labels=labels) if labels else frame)
        except HookcoreError as error:
            archive.damages.append(f"step {frame.step}: {error}")
        labels = {}
    unheard.tell(store)
    for snapshot in archive.snapshots():
        store.add_snapshot(snapshot)
    # Events that the store added while it was being filled may be recorded too.
    told = {(event.step, event.name, event.message) for event in store.events()}
    for event in archive.events():
        if (event.step, event.name, event.message) not in told:
            store.add_saved_event(event)


class Unheard:
    """The events of a saved run that its rules and incidents must hear when they did while the run was live."""

    def __init__(self, events: Iterable[Event]) -> None:
        unheard = [event for event in events if event.name.startswith(OWN_RULE) or event.name == NONFINITE_STEP]
        is_late = [bool(own.about.get("late")) for own in unheard]  # it came with a frame of a later step
        self._late = deque(sorted(compress(unheard, is_late), key=lambda own: own.time_s))
        self._others = deque(sorted(compress(unheard, map(not_, is_late)), key=lambda own: own.step))

    def tell(self, store: Store, frame: Frame | None = None, shift: int = 0) -> None:
        """Let a store hear the events that came with a frame or before it; without a frame, all others."""
        while self._others and (frame is None or self._others[0].step <= frame.step):
            store.hear(self._others.popleft().moved(shift))
        while self._late and (frame is None or self._late[0].time_s <= frame.time_s):
            store.hear(self._late.popleft().moved(shift))

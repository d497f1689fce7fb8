"""Writes a run to disk while it goes on. Failures are reported, and stop nothing else."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from hookcore.archive.files import last_frame, merge_parts, remove_unfinished, write_json, write_table
from hookcore.archive.layout import FORMAT, RUN_FILE, TABLES, folder_name, part_name, parts_in
from hookcore.archive.scribe import PART_S, Scribe
from hookcore.archive.tables import frame_tables, records_table, snapshots_table, taps_table
from hookcore.records import Event, Frame, Snapshot
from hookcore.store import Store
from hookcore.wire import EndItem, RunInfo

PART_BYTES: Final = 16 * 2**20  # of records, in memory
MAX_QUEUE_BYTES: Final = 64 * 2**20
RETRY_S: Final = 30.0
DEFAULT_LIMIT: Final = 10_000_000_000
CLOSE_S: Final = 2.0
_ORDER: Final = ("events", "snapshots", "scalars", "sketches", "stats", "steps")

Tell = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Kept:
    """The accounts: frames and snapshots that came, were written, or were lost, and the bytes on disk."""

    taken: int
    written: int
    lost: int
    nbytes: int
    stopped: str  # why nothing is written now; empty while all is well


class ArchiveWriter:
    """Keeps a run in a folder below `parent`. Names, modules and events are read from the run's store.

    `take` never waits and never raises. A disk that is full, or the limit, stops the writing, is told once through
    `tell(name, message)`, and is tried again after a while.
    """

    def __init__(
        self,
        parent: str | Path,
        info: RunInfo,
        store: Store,
        *,
        tell: Tell | None = None,
        limit_bytes: int = DEFAULT_LIMIT,
        used_elsewhere: Callable[[], int] = lambda: 0,
        part_s: float = PART_S,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
        start: bool = True,
        scribe: Scribe | None = None,
    ) -> None:
        self.folder = Path(parent).expanduser().absolute() / folder_name(info.name, info.id)
        self._info = info
        self._store = store
        self._tell = tell or (lambda name, message: store.add_event(_event(store, name, message)))
        self._limit, self._used_elsewhere = limit_bytes, used_elsewhere
        self._retry_s, self._clock = retry_s, clock
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, Frame | Snapshot]] = deque()
        self._queued_bytes = 0
        self._frames = self._taken = self._written = self._lost = self._nbytes = 0
        self._events_seen = 0
        self._part = 0
        self._first_frame = 0  # of this writer: a folder that is opened again has frames already
        self._unmergeable: set[str] = set()
        self._opened = False
        self._whole: dict[str, Any] = {}  # what was last written of the tables that are written whole
        self._stopped = ""
        self._try_at = 0.0
        self._ending = False
        self._state = "live"
        self._finished = threading.Event()
        self._scribe = (scribe or Scribe(part_s)) if start else None
        if self._scribe is not None:
            self._scribe.add(self)

    @property
    def kept(self) -> Kept:
        """The accounts of this moment."""
        with self._changed:
            return Kept(self._taken, self._written, self._lost, self._nbytes, self._stopped)

    def take(self, record: Frame | Snapshot | EndItem) -> None:
        """A record to keep; the oldest one that waits is lost, and counted, where the disk cannot follow."""
        with self._changed:
            if isinstance(record, EndItem):
                self._state = "ended"
                return
            self._taken += 1
            if self._ending:
                self._lost += 1
                return
            self._queue.append((self._frames, record))
            self._frames += isinstance(record, Frame)
            self._queued_bytes += _size_of(record)
            while self._queued_bytes > MAX_QUEUE_BYTES and len(self._queue) > 1:
                self._queued_bytes -= _size_of(self._queue.popleft()[1])
                self._lost += 1
            is_full = self._queued_bytes > PART_BYTES
        if is_full:
            self._poke()

    def _poke(self) -> None:
        if self._scribe is not None:
            self._scribe.poke()

    def close(self, deadline_s: float = CLOSE_S) -> None:
        """Write what waits and stop. Records that are not on disk in time are lost. A second call does nothing.

        With a deadline of 0 the writing goes on in the background.
        """
        with self._changed:
            self._ending = True
        self._poke()
        if self._scribe is not None and deadline_s:
            self._finished.wait(deadline_s)

    def abandon(self) -> None:
        """In a forked child: write nothing, and wait for no lock of the parent."""
        self._changed = threading.Condition()
        self._queue.clear()
        self._ending = True
        self._scribe = None

    def write_part(self) -> bool:
        """Write one part; called by the scribe. Return False after the last one."""
        with self._changed:
            ending = self._ending
        self.write()
        if ending:
            self._finished.set()
        return not ending

    def write(self) -> None:
        """Writes one part of all that waits; called by the thread. Lets no exception out."""
        with self._changed:
            if self._stopped and self._clock() < self._try_at and not self._ending:
                self._lose_what_is_too_much()
                return
            records = list(self._queue)
            self._queue.clear()
            self._queued_bytes = 0
        try:
            self._write(records)
        except Exception as error:
            self._stop(records, _sentence(error))
        else:
            with self._changed:
                self._written += len(records)
                self._stopped = ""
            self._merge()

    def _lose_what_is_too_much(self) -> None:
        """While the disk takes nothing the newest records wait, up to a part."""
        while self._queue and (self._queued_bytes > PART_BYTES or self._ending):
            self._queued_bytes -= _size_of(self._queue.popleft()[1])
            self._lost += 1

    def _stop(self, records: list[tuple[int, Frame | Snapshot]], why: str) -> None:
        with self._changed:
            self._queue.extendleft(reversed(records))
            self._queued_bytes += sum(_size_of(record) for _, record in records)
            self._lose_what_is_too_much()
            self._try_at = self._clock() + self._retry_s
            told, self._stopped = self._stopped, why
        if not told:
            self._tell("keep-stopped", f"the run is not written to {self.folder} any more: {why}")

    def _write(self, records: list[tuple[int, Frame | Snapshot]]) -> None:
        self._open()
        if self._nbytes + self._used_elsewhere() >= self._limit:
            raise OSError(
                f"kept runs may take {self._limit} bytes on disk, and they do: raise keep_limit or remove some"
            )
        taps = self._store.taps().taps
        self._write_if_new("taps", taps, taps_table)
        for name, rows in (
            ("modules", tuple(self._store.modules())),
            ("coverage", tuple(self._store.coverage())),
            ("hooks", self._store.hooks()),
        ):
            self._write_if_new(name, rows, partial(records_table, name))
        first = self._first_frame
        frames = [(first + number, record) for number, record in records if isinstance(record, Frame)]
        tables = frame_tables(frames, taps) if frames else {}
        snapshots = [record for _, record in records if isinstance(record, Snapshot)]
        if snapshots:
            tables["snapshots"] = snapshots_table(snapshots)
        seen, events = self._store.events_after(self._events_seen)
        if events:
            tables["events"] = records_table("events", events)
        # `steps` comes last: frames are there when their step is.
        filled = [name for name in _ORDER if name in tables and tables[name].num_rows]
        for name in filled:
            self._nbytes += write_table(self.folder / name / part_name(self._part, self._part), tables[name])
        self._part += bool(filled)
        self._events_seen = seen
        self._write_run_file()

    def _merge(self) -> None:
        """Fewer files. What is written is safe already: a merge that fails costs nothing but the merge."""
        for name in TABLES:
            if name not in self._unmergeable:
                try:
                    self._nbytes += merge_parts(self.folder / name)
                except Exception:  # a full disk, or a part that was damaged since
                    self._unmergeable.add(name)

    def _open(self) -> None:
        if self._opened:
            return
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)  # closed to others, whatever the umask: it may hold training data
        for name in TABLES:
            (self.folder / name).mkdir(exist_ok=True)
        remove_unfinished(self.folder)
        last = [parts[-1][1] for name in TABLES if (parts := parts_in(self.folder / name))]
        self._part = max(last, default=-1) + 1
        self._first_frame = last_frame(self.folder / "steps") + 1
        self._nbytes = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        self._opened = True
        self._write_run_file()

    def _write_if_new(self, name: str, rows: Any, make: Callable[[Any], pa.Table]) -> None:
        if rows and self._whole.get(name) != rows:
            write_table(self.folder / f"{name}.parquet", make(rows))
            self._whole[name] = rows

    def _write_run_file(self) -> None:
        info = {name: value for name, value in msgspec.to_builtins(self._info).items() if name not in ("key", "keep")}
        content = {
            "format": FORMAT,
            "state": self._state,
            "last_step": self._store.steps().newest,
            "lost": self._lost,
            "labels": self._store.labels(),
            "run": json.loads(msgspec.json.encode(info)),
        }
        if self._whole.get(RUN_FILE) != content:
            write_json(self.folder / RUN_FILE, content)
            self._whole[RUN_FILE] = content


def _event(store: Store, name: str, message: str) -> Event:
    return Event(store.steps().newest or 0, time.time(), name, message, "warning")


def _size_of(record: Frame | Snapshot) -> int:
    if isinstance(record, Snapshot):
        return record.values.nbytes + 500
    block = record.sketches
    return record.stats.nbytes + record.taps.nbytes + block.start.nbytes + block.bins.nbytes + block.counts.nbytes + 500


def _sentence(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"

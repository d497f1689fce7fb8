"""The folder of a run that is being written: its parts, the tables that are rewritten whole, and the lock."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from hookcore.delivery.archive.files import last_frame, merge_parts, remove_unfinished, write_json, write_table
from hookcore.delivery.archive.layout import FORMAT, RUN_FILE, TABLES, part_name, parts_in
from hookcore.delivery.archive.state import DiskCounters, hold, key_hash
from hookcore.delivery.dashboard.whole import make_folder
from hookcore.records.wire import EndItem, RunInfo
from hookcore.store import StepRange

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

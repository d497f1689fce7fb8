"""Saved runs that another process is still writing: a server that only shows them reads them again while they grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from hookcore.delivery.archive import is_held, read_archive
from hookcore.delivery.archive.layout import RUN_FILE
from hookcore.errors import ArgumentError
from hookcore.records import Command

from .limits import tamed
from .run import Run
from .runs import Runs
from .saved import call_logged, end_of, load

LOOK_EVERY_S: Final = 1.0
REST: Final = 10  # times as long as reading took, before the next time


class Growing:
    """Looks after the runs of a server that receives none. While a process writes a run, the run is live."""

    def __init__(self, runs: Runs, clock: Callable[[], float] = time.monotonic) -> None:
        self._runs = runs
        self._clock = clock
        self._read: dict[str, int] = {}  # when the newest file that was looked at was written, by the run's id
        self._not_before = 0.0

    def start(self, stopping: threading.Event) -> None:
        """Look each second, until the server stops."""
        threading.Thread(target=self._work, args=(stopping,), name="hookcore-growing", daemon=True).start()

    def _work(self, stopping: threading.Event) -> None:
        while not stopping.wait(LOOK_EVERY_S):
            self.look()

    def look(self) -> None:
        """Read runs that have grown, or that are no longer being written."""
        began = self._clock()
        if began < self._not_before:
            return
        for run in self._runs.all():  # ranks of a distributed training are read once, since their sum is
            if run.saved.folder is not None and not run.end.is_known:
                call_logged(run.saved.folder, partial(self._look_at, run))
        self._not_before = self._clock() + REST * (self._clock() - began)

    def _look_at(self, run: Run, folder: Path) -> None:
        file, was_written = folder / RUN_FILE, run.commands.local is not None
        written_at = file.stat().st_mtime_ns if file.exists() else -1  # it may be removed
        has_grown = self._read.get(run.id) != written_at
        if not (was_written or has_grown):
            return  # without a look at its lock, which would be in the way of a writer at that moment
        self._read[run.id] = written_at
        is_written = is_held(folder)
        if not (is_written or was_written) or (is_written and was_written and not has_grown):
            return
        _call_live(run, is_written)
        archive = read_archive(folder)
        run.info, run.end = tamed(archive.info), end_of(archive)
        _call_live(run, is_written and not run.end.is_known)
        if run.loaded:
            load(self._runs, run)
        run.changes.tell()


def _call_live(run: Run, is_live: bool) -> None:
    run.saved.from_disk, run.commands.local = not is_live, _refuse if is_live else None


def _refuse(_command: Command) -> None:
    raise ArgumentError("this server only reads the run: use the server that the training sends to")

"""Runs on disk: written while they go on, and shown again."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from pathlib import Path
from typing import Final
from weakref import WeakSet

from hookcore.archive import SUFFIX, ArchiveWriter, Scribe, load_into, read_archive
from hookcore.errors import HookcoreError
from hookcore.records import Frame, Snapshot
from hookcore.store import Store
from hookcore.wire import EndItem, keep_folder

from .limits import tamed
from .runs import Changes, Run, Runs, say
from .settings import ServerSettings

logger = logging.getLogger("hookcore")

MAX_RUN_BYTES: Final = 512_000_000  # of memory, for one that is shown again
CLOSE_S: Final = 2.0
LOOK_EVERY_S: Final = 5.0


class Keeper:
    """Keeps runs in the server's folder, and those of this user's own trainers where they say."""

    def __init__(self, runs: Runs, settings: ServerSettings) -> None:
        self._runs = runs
        self._settings = settings
        self._writers: dict[str, tuple[Run, ArchiveWriter]] = {}
        self._uses: dict[str, DiskUse] = {}
        self._lock = threading.Lock()
        self._scribe = Scribe()  # one thread for all runs
        self._closing: WeakSet[ArchiveWriter] = WeakSet()  # the scribe holds each until it is finished
        self._closed = False
        runs.on_removed = self.removed
        if settings.keep:
            threading.Thread(target=self._show_kept, name="hookcore-kept-runs", daemon=True).start()

    def opened(self, run: Run, may_name_folder: bool) -> None:
        """A trainer opened a run: it is kept, if the server keeps runs or the trainer may say where to."""
        folder = self._settings.keep or (keep_folder(run.info.keep) if may_name_folder else "")
        if not folder:
            if run.info.keep:
                say(run, "not-kept", "this server keeps no runs: start it with --keep FOLDER", "warning")
            return
        before = self._writers.get(run.id)
        if before is not None and before[0] is not run:
            before[1].close(CLOSE_S)  # the run was removed, and its trainer made it anew
        with self._lock:
            if self._closed or self._writers.get(run.id, (None,))[0] is run:
                return
            use = self._uses.setdefault(folder, DiskUse(Path(folder)))
            writer = ArchiveWriter(
                folder,
                run.info,
                run.store,
                tell=lambda name, message: say(run, name, message, "warning"),
                limit_bytes=self._settings.keep_limit,
                used_elsewhere=lambda: use.besides(writer.folder.name),
                scribe=self._scribe,
            )
            self._writers[run.id] = run, writer
        run.on_record = _Follower(self, run, writer)

    def ended(self, run: Run) -> None:
        """Write the rest of a run that is over, in the background."""
        self._release(run)

    def removed(self, run: Run) -> None:
        """Let go of a run that is no longer shown: a writer of its own would keep its store in memory."""
        run.on_record = None
        self._release(run)

    def _release(self, run: Run) -> None:
        with self._lock:
            known, writer = self._writers.get(run.id, (None, None))
            if known is not run or writer is None:
                return
            del self._writers[run.id]
            self._closing.add(writer)
        writer.close(0)

    def close(self) -> None:
        """Write what is left of all runs."""
        with self._lock:
            self._closed = True
            writers = [*self._closing, *(writer for _, writer in self._writers.values())]
            self._writers = {}
        for writer in writers:
            writer.close(CLOSE_S)

    def _show_kept(self) -> None:
        folders = sorted(Path(self._settings.keep).glob(f"*{SUFFIX}"), key=_changed_at, reverse=True)
        for folder in folders[: self._settings.max_runs // 2]:
            try:
                show(self._runs, folder)
            except HookcoreError as error:
                logger.warning("hookcore: %s", error)


class _Follower:
    """Hands the records of one run on to its writer."""

    def __init__(self, keeper: Keeper, run: Run, writer: ArchiveWriter) -> None:
        self._keeper, self._run, self._writer = keeper, run, writer

    def __call__(self, record: Frame | Snapshot | EndItem) -> None:
        self._writer.take(record)
        if isinstance(record, EndItem):
            self._keeper.ended(self._run)


def show(runs: Runs, path: Path) -> Run:
    """Reads a kept run and shows it; raises HookcoreError where it cannot be read."""
    archive = read_archive(path)
    known = runs.get(archive.info.id)
    if known is not None:
        return known
    room = min(archive.info.memory or MAX_RUN_BYTES, MAX_RUN_BYTES, max(2**22, runs.free_bytes // 4))
    store = Store(room)
    load_into(store, archive)
    run = Run(tamed(archive.info), store, itertools.count(), Changes(), name=archive.info.name, kept=True)
    run.ended_at_step = store.steps().newest
    for sentence in archive.damages:
        say(run, "damaged", f"a part of this kept run could not be read: {sentence}", "warning")
    if archive.lost:
        say(run, "not-kept", f"{archive.lost} frames and snapshots of this run were not written", "warning")
    runs.add(run)
    return run


class DiskUse:
    """What the runs of a folder take on disk, looked up now and then: all of them share one limit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._looked_at = float("-inf")
        self._lock = threading.Lock()

    def besides(self, own: str) -> int:
        """The bytes of all runs but one."""
        with self._lock:
            if time.monotonic() - self._looked_at > LOOK_EVERY_S:
                self._sizes = {path.name: _bytes_below(path) for path in self._folder.glob(f"*{SUFFIX}")}
                self._looked_at = time.monotonic()
            return sum(size for name, size in self._sizes.items() if name != own)


def _bytes_below(folder: Path) -> int:
    return sum(_size_of(path) for path in folder.rglob("*"))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # it went in the meantime


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

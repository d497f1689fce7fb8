"""Runs on disk: written while they are running, listed, loaded on demand, and continued after a restart."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from weakref import WeakSet

from hookcore.config import NO_FOLDER
from hookcore.delivery.archive import (
    SUFFIX,
    ArchiveWriter,
    DiskCounters,
    Recorded,
    Scribe,
    folder_name,
    is_held,
    read_archive,
)
from hookcore.delivery.archive.folder import RUN_FILE, key_hash
from hookcore.delivery.dashboard.private import lives_as
from hookcore.errors import ArgumentError, HookcoreError
from hookcore.platform import background
from hookcore.records import Command
from hookcore.records.wire import EndItem, RunInfo, keep_folder

from ..settings import ServerSettings
from .disk import Why, WrongKeyError
from .joint import joint_in
from .limits import tamed
from .parts import End, Record
from .run import Run, emit_event
from .runs import Runs
from .saved import PageFiles, Summarize, apply_folder, archive_of, call_logged, end_of, fill_store, load, make_known
from .shelf import REMOVED_FILE, TRASH, Shelf, is_run, may_go, number_of, read_json

MAX_LISTED: Final = 2000  # maximum number of runs from disk in the list


class Catalog:
    """Lists runs by their folders, and those in the trash as removed."""

    def __init__(self, runs: Runs, pages: PageFiles) -> None:
        self._runs = runs
        self._pages = pages
        self.is_complete = threading.Event()  # all runs that are to be listed are

    def read(self, shelf: Shelf) -> None:
        """List the runs of a folder and its trash."""
        try:
            paths = shelf.runs()
            for path in paths[:MAX_LISTED]:
                call_logged(path, self._list_at_start, self._runs.unlisted.unread)
            self._runs.unlisted.too_many |= {*paths[MAX_LISTED:]}
            self._runs.changes.tell()
        finally:
            self.is_complete.set()
        for path in shelf.trashed():
            call_logged(path, self.list_trashed)

    def find(self, run_id: str) -> Run | None:
        """Return a run that wasn't listed because there were too many, and list it."""
        for path in [each for each in list(self._runs.unlisted.too_many) if each.name.endswith(f"-{run_id}{SUFFIX}")]:
            with contextlib.suppress(HookcoreError, OSError):
                run = make_known(self._runs, path)
                if run.id == run_id:
                    self._runs.unlisted.forget(path)
                    return self._list(run)
        return None

    def _list_at_start(self, path: Path) -> None:
        """List a run on disk. Its trainer may come back, unless its process is known to be gone."""
        run = make_known(self._runs, path)
        run.saved.is_awaited = lives_as(run.info.pid, run.info.process) is not False
        self._list(run)

    def _list(self, run: Run) -> Run:
        """Put a run on disk into the list, unless it is listed already."""
        run.saved.on_edit = partial(self._pages.save_edit, run)
        return self._runs.add_known(run)

    def list_trashed(self, path: Path) -> None:
        """Put a run in the trash into the list of removed ones."""
        run = make_known(self._runs, path)
        content = read_json(path / REMOVED_FILE)
        why: Why = "disk" if content.get("why") == "disk" else "deleted"
        self._runs.put_aside(run, why, number_of(content.get("at_s")))


logger = logging.getLogger("hookcore")

CLOSE_S: Final = 2.0
LIST_S: Final = 60.0


class Keeper:
    """Saves runs to the server's folder, and runs of this user's own trainers to the folders that they name.

    A run whose server was killed stays one run: the new server loads it from disk, and its trainer sends the rest.
    """

    def __init__(
        self,
        runs: Runs,
        settings: ServerSettings,
        summarize: Summarize = lambda run: {},
        trouble: str = "",
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._runs, self._settings, self._is_busy = runs, settings, is_busy
        self.pages = PageFiles(summarize)
        self._catalog = Catalog(runs, self.pages)
        self.writers: dict[str, tuple[Run, ArchiveWriter]] = {}
        self._shelves: dict[Path, Shelf] = {}
        self._lock = threading.Lock()
        self.scribes: dict[Path, Scribe] = {}  # a thread per folder: one that hangs must not stop the others
        self.closing: WeakSet[ArchiveWriter] = WeakSet()  # the scribe holds each writer until it has finished
        self._closed, self._trouble = False, trouble  # why the server can't save runs, if it should
        runs.disk = self
        if settings.keeps:
            background("hookcore-kept-runs", self._list).start()
        else:
            self._catalog.is_complete.set()

    # -- runs of trainers -------------------------------------------------------------------------------------------

    def opened(self, run: Run, may_name_folder: bool) -> None:
        """Start to save a run, if the server saves runs or the trainer may name a folder."""
        folder = self._folder_for(run.info, may_name_folder)
        if folder is None:
            why = "this server doesn't save runs: start it with --keep FOLDER" if run.info.keep else self._trouble
            if why and run.info.keep != NO_FOLDER:
                emit_event(run, "not-kept", why, "warning")
            return
        path = folder / folder_name(run.info.name, run.info.id)
        if is_run(path):
            self._take_up(run, path)
        self._write(run, path)

    def _folder_for(self, info: RunInfo, may_name_folder: bool) -> Path | None:
        if info.keep == NO_FOLDER:
            return None
        if info.keep and may_name_folder:
            return Path(keep_folder(info.keep))
        return Path(self._settings.keep) if self._settings.keeps else None

    def resume(self, run: Run, info: RunInfo) -> None:
        """Continue a run on disk whose trainer is back. Raises WrongKeyError for another trainer."""
        run.signs.see()  # to read the run may take long
        with run.lock:
            if not run.saved.from_disk:
                return  # a concurrent request did it
            saved = run.saved
            if not saved.key_hash or saved.key_hash != key_hash(info.key) or saved.folder is None:
                raise WrongKeyError(f"another trainer started the run {run.id}: each trainer needs its own run")
            saved.is_back = True
            self._runs.read(run)
            self._continue(run, info, DiskCounters.of(saved.folder))
        self._write(run, saved.folder)

    def _take_up(self, run: Run, path: Path) -> None:
        """Continue a run that turns out to be on disk, because the server was restarted."""
        try:
            archive = read_archive(path)
        except HookcoreError as error:
            emit_event(run, "damaged", f"this run's files can't be read: {error}", "warning")
            if (joint := joint_in(run)) is not None and run.info.place is not None:
                joint.lack(run, run.info.place.rank, error)
            return
        if archive.key_hash and archive.key_hash != key_hash(run.info.key):
            raise WrongKeyError(f"another trainer started the run {run.id}: each trainer needs its own run")
        with run.lock:
            apply_folder(run, path, archive)
            fill_store(archive, run.store)
            run.saved.remember(run.store)
            self._continue(run, run.info, DiskCounters.of(path))
            if (joint := joint_in(run)) is not None:
                joint.expect_disk(gathers=not self._is_ours(path))

    @staticmethod
    def _continue(run: Run, info: RunInfo, counters: DiskCounters) -> None:
        run.info, run.end = info, End()
        run.received.acknowledged, run.received.described = counters.acknowledged, -1
        run.saved.from_disk, run.saved.is_awaited, run.saved.writer = False, False, None
        run.saved.count = counters.written + counters.lost
        newest = run.store.steps().newest
        run.saved.known_until = -1 if newest is None else newest

    def _write(self, run: Run, path: Path) -> None:
        other, before = self.writers.get(run.id, (run, run.saved.writer))
        if before is not None and (other is not run or run.saved.writer is not None):
            before.close(CLOSE_S)  # of a run that was removed or lost, and is back
        with self._lock:
            if self._closed or self.writers.get(run.id, (None,))[0] is run:
                return
            shelf = self.shelf_of(path)
            writer = ArchiveWriter(
                path.parent,
                run.info,
                run.store,
                tell=lambda name, message: emit_event(run, name, message, "warning"),
                limit_bytes=self._settings.keep_limit,
                used_elsewhere=lambda: shelf.besides(path),
                make_room=lambda: self.make_room(shelf),
                scribe=self.scribes.setdefault(path.parent, Scribe(is_busy=self._is_busy)),
                folder=path,
                events_seen=run.saved.writer.events_seen if run.saved.writer is not None else run.saved.seen_events,
                after_part=partial(self.pages.write_after_part, run),
            )
            self.writers[run.id] = run, writer
        run.saved.folder, run.saved.key_hash = path, key_hash(run.info.key)
        run.saved.on_record, run.saved.on_disk = partial(self._follow, run, writer), writer
        run.saved.on_edit = partial(self.pages.save_edit, run)

    def shelf_of(self, path: Path) -> Shelf:
        return self._shelves.setdefault(path.parent, Shelf(path.parent, self._settings.keep_limit))

    def _follow(self, run: Run, writer: ArchiveWriter, record: Record, number: int = -1) -> None:
        """Pass a record of a run to its writer, which finishes in the background after the last one."""
        writer.inform(run.info)  # its facts and its settings may have changed
        writer.take(record, number)
        if isinstance(record, EndItem):
            self._let_go(run)

    # -- what Runs asks for -----------------------------------------------------------------------------------------

    def load(self, run: Run) -> None:
        """Read a run that is on disk into memory."""
        if run.ranks is not None:
            return run.ranks.read_all()
        load(self._runs, run)
        self.pages.renew(run)

    @property
    def partial(self) -> str:
        """Why runs may be missing now: a folder is here or not at all."""
        return ""

    def find(self, run_id: str) -> Run | None:
        """Return a run that wasn't listed because there were too many, and list it."""
        return self._catalog.find(run_id)

    def recorded(self, runs: Sequence[Run]) -> dict[str, Recorded | HookcoreError]:
        """Return the archives of runs, or why they can't be read, by their ids."""
        return {run.id: archive_of(run) for run in runs}

    def recall(self, run: Run) -> None:
        """Do nothing: all steps are read."""

    def wait_until_listed(self) -> None:
        """Wait until the runs in the server's folder are in the list, but not forever."""
        self._catalog.is_complete.wait(LIST_S)

    def is_whole(self, run: Run) -> bool:
        """Whether all of a run is on disk, so that it can leave memory."""
        if run.saved.folder is None or run.id in self.writers or not run.finished:
            return False
        writer: ArchiveWriter | None = run.saved.writer
        return run.saved.from_disk or (writer is not None and writer.is_complete)

    def is_saving(self, run: Run) -> bool:
        """Return whether the rest of a run is being written, so that all of it will be on disk soon."""
        writer: ArchiveWriter | None = run.saved.writer
        return run.saved.folder is not None and writer is not None and writer.is_closing

    def release(self, run: Run) -> None:
        """Write the rest of a run and close its writer, which would keep the store in memory."""
        run.saved.on_record = partial(self._reopen, run) if run.saved.folder is not None else None
        self._let_go(run)

    def _reopen(self, run: Run, record: Record, number: int = -1) -> None:
        """Write again to a run whose writer was closed, because its trainer is back."""
        run.saved.on_record = None
        if run.saved.folder is not None:
            self._write(run, run.saved.folder)
        if run.saved.on_record is not None:
            run.saved.on_record(record, number)

    def _let_go(self, run: Run, wait_s: float = 0.0) -> None:
        with self._lock:
            writing, writer = self.writers.get(run.id, (None, None))
            if writing is not run or writer is None:
                return
            del self.writers[run.id]
            self.closing.add(writer)
        run.saved.writer = writer
        writer.close(wait_s)

    def discard(self, run: Run, why: Why) -> None:
        """Move a run's folder into the trash. A folder that a trainer named stays where it is."""
        run.saved.on_record = run.saved.on_disk = None
        self._let_go(run)
        if run.saved.folder is None or not self._is_ours(run.saved.folder):
            return
        try:
            if run.saved.writer is not None and not run.saved.writer.close(CLOSE_S):
                raise OSError("its last part is still being written")  # the last part would be lost
            self.pages.write(run)
            run.saved.folder = self.shelf_of(run.saved.folder).discard(run.saved.folder, why)
        except OSError as error:
            logger.warning("hookcore: %s can't be moved to the trash: %s", run.saved.folder, error)

    def restore(self, run: Run) -> None:
        """Move a run's folder back."""
        if run.saved.folder is None or run.saved.folder.parent.name != TRASH:
            return
        shelf = self.shelf_of(run.saved.folder.parent)
        try:
            run.saved.folder = shelf.restore(run.saved.folder)
        except OSError as error:
            emit_event(run, "not-kept", f"the run's folder can't be moved back from the trash: {error}", "warning")
        run.saved.on_edit = partial(self.pages.save_edit, run)

    def _is_ours(self, folder: Path) -> bool:
        return bool(self._settings.keeps) and folder.parent == Path(self._settings.keep)

    def close(self) -> None:
        """Write the rest of all runs."""
        with self._lock:
            self._closed = True
            runs = [run for run, _ in self.writers.values()]
            writers = [*self.closing, *(writer for _, writer in self.writers.values())]
            self.writers = {}
        deadline = time.monotonic() + CLOSE_S * len(writers)  # one thread writes all of them, in any order
        for writer in writers:
            writer.close(max(0.0, deadline - time.monotonic()))
        for run in runs:
            if run.saved.folder is not None and run.saved.folder.is_dir():
                self.pages.write(run)

    def make_room(self, shelf: Shelf) -> None:
        for run, _ in list(self.writers.values()):
            if run.state == "lost":
                self.release(run)  # no trainer writes to it, so it can be removed
        shelf.make_room(self._discard_oldest, lambda path: self._runs.forget(path.name))

    def _discard_oldest(self, path: Path) -> bool:
        if not self._is_ours(path) or not may_go(path):
            return False
        run = next((run for run in self._runs.every() if run.saved.folder == path), None)
        if run is None:
            # From another server, beyond the limit of the list, or damaged.
            gone = self.shelf_of(path).discard(path, "disk")
            self._runs.unlisted.forget(path)
            call_logged(gone, self._catalog.list_trashed)
            return True
        return self._runs.remove(run.id, "disk")

    def _list(self) -> None:
        """List the runs of the server's folder and its trash, and make room for new ones."""
        shelf = self.shelf_of(Path(self._settings.keep) / "any")
        self._catalog.read(shelf)
        try:
            self.make_room(shelf)
        except OSError as error:
            logger.warning("hookcore: can't make room in %s: %s", shelf.folder, error)


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
        background("hookcore-growing", self._work, stopping).start()

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

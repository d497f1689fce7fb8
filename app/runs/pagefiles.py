"""The page file of each saved run: what readers edited, and a summary for the list."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from hookcore.delivery.archive import is_held
from hookcore.delivery.dashboard.whole import make_folder

from .joint import JointRun
from .merging import merged
from .run import Run, emit_event, follow_rules
from .saved import apply_page, noted_at, page_as_read, steps_of
from .shelf import PAGE_FILE, read_json, write_page

logger = logging.getLogger("hookcore")

NOTE_EVERY_S: Final = 30.0  # between two summaries of a live run
LOCK_S: Final = 2.0  # another server has stopped in the middle of its edit, if it takes longer
LOOK_S: Final = 0.01

Summarize = Callable[[Run], dict[str, Any]]


class PageFiles:
    """Writes the name, notes, tags, acknowledgements, mutes, and annotations of runs, and their summaries."""

    def __init__(self, summarize: Summarize) -> None:
        self._summarize = summarize
        self._noted_at: dict[str, float] = {}  # by the run's id
        self._lock = threading.Lock()

    def note(self, run: Run) -> None:
        """Save the page file of a run."""
        self._write(run, lambda path, error: logger.warning("hookcore: %s can't be written: %s", path, error))

    def note_part(self, run: Run, is_last: bool) -> None:
        """Write it from time to time, and with the last part of the run."""
        if is_last or time.monotonic() - self._noted_at.get(run.id, float("-inf")) > NOTE_EVERY_S:
            self._noted_at[run.id] = time.monotonic()
            self.note(run)
        if is_last:
            self._noted_at.pop(run.id)

    def renew(self, run: Run) -> None:
        """Write it for a run that was just read, if its server was killed before it wrote the last summary."""
        if noted_at(run) is not None and run.saved.folder is not None and not is_held(run.saved.folder):
            self.note(run)

    def save_edit(self, run: Run) -> None:
        """Write what a reader has changed of a run, or say on its pages that this isn't possible."""
        why = "changes to the run's name, notes, and the like can't be saved, and will be lost when the server stops"
        self._write(run, lambda path, error: emit_event(run, "not-kept", f"{why}: {error}", "warning"))

    def _write(self, run: Run, failed: Callable[[Path, OSError], None]) -> None:
        folder = run.saved.folder
        if folder is None:
            return
        try:
            if run.loaded:
                run.saved.summary = steps_of(run) | self._summarize(run)
            make_folder(folder)
            with self._lock, locked(folder):
                self._merge(run, folder)
        except OSError as error:
            failed(folder / PAGE_FILE, error)

    @staticmethod
    def _merge(run: Run, folder: Path) -> None:
        """Write what was changed here, and take what other servers over the same folder have changed."""
        own, saved = page_as_read(run), read_json(folder / PAGE_FILE)
        before = own if run.saved.page is None else run.saved.page
        content = merged(before, own, {**own, **saved})
        write_page(folder, content)
        if any(content[name] != own[name] for name in own if name != "summary"):
            rules, now = run.rules, page_as_read(run)  # a reader may just be editing it
            apply_page(run, content if now == own else merged(own, now, content))
            follow_rules(run, rules)
            if isinstance(run.joint, JointRun):
                run.joint.follow_edit(run)
            run.changes.tell()
        run.saved.page = {name: content[name] for name in own}


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other servers while the block runs, but don't wait for long."""
    number = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + LOCK_S
        while time.monotonic() < until:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOOK_S)
            except OSError:
                break  # a file system without locks
        yield
    finally:
        os.close(number)

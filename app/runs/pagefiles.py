"""The page file of each saved run: what readers edited, and a summary for the list."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hookcore.delivery.archive import is_held

from .run import Run, emit_event
from .saved import noted_at, page_of, steps_of
from .shelf import PAGE_FILE, read_json, write_page

logger = logging.getLogger("hookcore")

NOTE_EVERY_S: Final = 30.0  # between two summaries of a live run

Summarize = Callable[[Run], dict[str, Any]]


class PageFiles:
    """Writes the name, notes, tags, acknowledgements, mutes, and annotations of runs, and their summaries."""

    def __init__(self, summarize: Summarize) -> None:
        self._summarize = summarize
        self._noted_at: dict[str, float] = {}  # by the run's id

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
            write_page(folder, {**read_json(folder / PAGE_FILE), **page_of(run)})
        except OSError as error:
            failed(folder / PAGE_FILE, error)

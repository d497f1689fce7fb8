"""The runs of the server's folder, as they get into the list."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from pathlib import Path
from typing import Final

from hookcore.delivery.archive import SUFFIX
from hookcore.delivery.dashboard.lives import lives_as
from hookcore.errors import HookcoreError

from .gone import Why
from .pagefiles import PageFiles
from .run import Run
from .runs import Runs
from .saved import call_logged, make_known
from .shelf import REMOVED_FILE, Shelf, number_of, read_json

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
        said = read_json(path / REMOVED_FILE)
        why: Why = "disk" if said.get("why") == "disk" else "deleted"
        self._runs.put_aside(run, why, number_of(said.get("at_s")))

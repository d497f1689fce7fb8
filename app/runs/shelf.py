"""A folder of saved runs: their sizes, the trash from which they can be restored, and what readers keep by name."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from hookcore.delivery.archive import SUFFIX, is_held
from hookcore.delivery.archive.folder import RUN_FILE, write_json
from hookcore.delivery.dashboard.private import make_folder, parsed, read_regular
from hookcore.errors import ArgumentError, HookcoreError
from hookcore.records.wire import LATEST_TIME_S

PAGE_FILE: Final = "page.json"  # name, notes, acknowledgements, mutes, and a summary for the list
REMOVED_FILE: Final = "removed.json"  # in the trash: when a run was removed, and why
TRASH: Final = ".trash"
ROOM_FOR_UNDO: Final = 0.1  # of the limit: removed runs stay in the trash while they fit into this share
TRASH_S: Final = 7 * 86_400.0  # maximum time in the trash
MAX_JSON_BYTES: Final = 64 * 2**20  # 10,000 long acknowledgements take 22 MB
LOOK_EVERY_S: Final = 5.0  # at sizes that are near the limit
FAR: Final = 0.5  # of the limit: below, sizes are looked at less often
LOOK_FAR_S: Final = 60.0


class Shelf:
    """The runs of a folder, which share one limit. The oldest are moved to the trash first."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._sizes: dict[Path, int] = {}
        self._looked_at = float("-inf")
        self._lock = threading.Lock()

    def runs(self) -> list[Path]:
        """Return the folders of the runs, newest first."""
        return _folders_in(self.folder)

    def trashed(self) -> list[Path]:
        """Return the folders of the runs in the trash, latest removal first."""
        removed = [path for path in _folders_in(self.folder / TRASH) if (path / REMOVED_FILE).is_file()]
        return sorted(removed, key=lambda path: number_of(read_json(path / REMOVED_FILE).get("at_s")), reverse=True)

    def besides(self, own: Path) -> int:
        """Return the bytes of all runs but one, trash included."""
        with self._lock:
            is_far = sum(self._sizes.values()) < FAR * self.limit_bytes
            if time.monotonic() - self._looked_at > (LOOK_FAR_S if is_far else LOOK_EVERY_S):
                self._look()
            return sum(size for path, size in self._sizes.items() if path != own)

    def _look(self) -> None:
        paths = [*self.runs(), *_folders_in(self.folder / TRASH)]
        self._sizes = {path: bytes_below(path) for path in paths}
        self._looked_at = time.monotonic()

    def make_room(self, discard: Callable[[Path], bool], purged: Callable[[Path], None]) -> None:
        """Move the oldest runs to the trash until the rest fits, and empty as much of the trash as needed."""
        with self._lock:
            self._look()
            sizes = dict(self._sizes)
        kept = sum(size for path, size in sizes.items() if path.parent == self.folder)
        for path in sorted(self.runs(), key=_age_of):
            if kept <= self.limit_bytes * (1 - ROOM_FOR_UNDO):
                break
            if discard(path):
                kept -= sizes.get(path, 0)
        with self._lock:
            self._look()
            total = sum(self._sizes.values())
            for path in reversed(self.trashed()):
                age_s = time.time() - number_of(read_json(path / REMOVED_FILE).get("at_s"))
                if total > self.limit_bytes or age_s > TRASH_S:
                    total -= self._sizes.pop(path, 0)
                    shutil.rmtree(path, ignore_errors=True)
                    purged(path)

    def discard(self, path: Path, why: str) -> Path:
        """Move a run to the trash and return its new path."""
        trash = self.folder / TRASH
        trash.mkdir(mode=0o700, exist_ok=True)
        target = trash / path.name
        if target.exists():
            shutil.rmtree(target, ignore_errors=True)  # an older run with the same id
        write_json(path / REMOVED_FILE, {"at_s": time.time(), "why": why})
        path.rename(target)
        self._looked_at = float("-inf")
        return target

    def restore(self, path: Path) -> Path:
        """Restore a run from the trash. It counts as new, so that it isn't the next one to be removed."""
        target = self.folder / path.name
        path.rename(target)
        (target / REMOVED_FILE).unlink(missing_ok=True)
        write_page(target, {**read_json(target / PAGE_FILE), "restored_s": time.time()})
        self._looked_at = float("-inf")
        return target


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of hookcore; return an empty dict if it is missing, damaged, too large, or not a file."""
    with contextlib.suppress(OSError, ValueError):
        content = parsed(read_regular(path, MAX_JSON_BYTES))
        return content if isinstance(content, dict) else {}
    return {}


def write_page(folder: Path, page: dict[str, Any]) -> None:
    """Write the page file of a run."""
    write_json(folder / PAGE_FILE, page)


def bytes_below(folder: Path) -> int:
    """Return the total size of all files in a folder."""
    return sum(_size_of(path) for path in folder.rglob("*"))


def is_run(path: Path) -> bool:
    """Return whether a folder is a saved run."""
    return (path / RUN_FILE).is_file()


def _folders_in(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(folder.glob(f"*{SUFFIX}"), key=_changed_at, reverse=True)
    return []


def _age_of(path: Path) -> float:
    """Return when a run was created or restored."""
    restored = number_of(read_json(path / PAGE_FILE).get("restored_s"))
    started = read_json(path / RUN_FILE).get("run")
    return max(restored, number_of(started.get("started_s")) if isinstance(started, dict) else 0.0)


def may_go(path: Path) -> bool:
    """Return whether a folder is a finished run that no process is writing to."""
    return is_run(path) and not is_held(path)


def number_of(value: object) -> float:
    """Return a time from a JSON file, or 0 if it isn't one."""
    return float(value) if isinstance(value, int | float) and 0 <= value < LATEST_TIME_S else 0.0


def _size_of(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0  # removed in the meantime


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


# What readers keep by name: views of the list of runs, and charts on the board, each as a query string; and rules, each
# as JSON of its thresholds.

VIEWS_FILE: Final = "views.json"  # in the folder of the saved runs
BOARD_FILE: Final = "board.json"
RULES_FILE: Final = "rules.json"
MAX_VIEWS: Final = 100
MAX_NAME: Final = 100  # characters
MAX_QUERY: Final = 4000
MAX_CHART: Final = MAX_QUERY - 10  # the query of a chart, which is kept behind its path


class Kept(Protocol):
    """Where views outlast the server. Others may change them there, too."""

    def read(self) -> Mapping[str, object]:
        """Return the newest views."""

    def write(self, views: Mapping[str, str]) -> None:
        """Keep these views instead."""


@dataclass(frozen=True, slots=True)
class _File:
    path: Path

    def read(self) -> Mapping[str, object]:
        return read_json(self.path)

    def write(self, views: Mapping[str, str]) -> None:
        make_folder(self.path.parent)
        write_json(self.path, dict(views))


class Views:
    """The views of a server, the charts, or the rules for later runs, by name.

    They last as long as the server, unless they are kept somewhere.
    `noun` is what one of them is called. `changed` is called after each change.
    """

    def __init__(
        self,
        folder: Path | None,
        file: str = VIEWS_FILE,
        noun: str = "view",
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.noun = noun
        self._kept: Kept | None = None if folder is None else _File(folder / file)
        self._changed = changed
        self._lock = threading.Lock()
        self._views: dict[str, str] | None = None  # read when they are first asked for

    def all(self) -> Mapping[str, str]:
        """Return the query strings by name, in the order of their names."""
        with self._lock:
            return dict(sorted(self._known().items(), key=lambda view: view[0].casefold()))

    def save(self, name: str, query: str) -> None:
        """Save a view, instead of one of the same name. Raises ArgumentError if there are too many."""
        with self._lock:
            views = {**self._newest(), name: query}
            if len(views) > MAX_VIEWS:
                raise ArgumentError(f"{MAX_VIEWS} {self.noun}s are already saved: delete one first")
            self._put(views)
        self._changed()

    def delete(self, name: str) -> bool:
        """Delete a view. Return False if there is no view of this name."""
        with self._lock:
            newest = self._newest()
            if name not in newest:
                return False
            self._put({other: query for other, query in newest.items() if other != name})
        self._changed()
        return True

    def keep_in(self, kept: Kept) -> None:
        """Store them elsewhere from now on. Changes made there are passed to `follow`."""
        with self._lock:
            self._kept, self._views = kept, {}

    def follow(self) -> None:
        """Take the saved state, because others have changed it."""
        with self._lock:
            self._newest()
        self._changed()

    def _known(self) -> dict[str, str]:
        return self._newest() if self._views is None else self._views

    def _newest(self) -> dict[str, str]:
        """Return the views with the changes of others."""
        views = (self._views or {}) if self._kept is None else _fitting(self._kept.read())
        self._views = views
        return views

    def _put(self, views: dict[str, str]) -> None:
        if self._kept is not None:
            try:
                self._kept.write(views)
            except OSError as error:
                raise HookcoreError(f"the {self.noun} can't be saved: {error}. Make room, and try again") from None
        self._views = views


def _fitting(saved: Mapping[str, object]) -> dict[str, str]:
    """Return what are views, within their limits."""
    fits = (
        (name, query)
        for name, query in saved.items()
        if isinstance(query, str) and len(name) <= MAX_NAME and len(query) <= MAX_QUERY
    )
    return dict(list(fits)[:MAX_VIEWS])

"""What readers keep by name: views of the list of runs, and charts on the board. Each is a query string."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from hookcore.delivery.archive.files import write_json
from hookcore.delivery.dashboard.whole import make_folder
from hookcore.errors import ArgumentError, HookcoreError

from .shelf import read_json

VIEWS_FILE: Final = "views.json"  # in the folder of the saved runs
BOARD_FILE: Final = "board.json"
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
    """The views of a server, or the charts, by name. They last as long as the server, unless they are kept somewhere.

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
            return dict(sorted(self._known().items(), key=lambda each: each[0].casefold()))

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
            self._put({each: query for each, query in newest.items() if each != name})
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


def _fitting(said: Mapping[str, object]) -> dict[str, str]:
    """Return what are views, within their limits."""
    fits = (
        (name, query)
        for name, query in said.items()
        if isinstance(query, str) and len(name) <= MAX_NAME and len(query) <= MAX_QUERY
    )
    return dict(list(fits)[:MAX_VIEWS])

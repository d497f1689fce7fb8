"""What readers keep by name: views of the list of runs, and charts on the board. Each is a query string."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from hookcore.archive.files import write_json
from hookcore.errors import ArgumentError

from .shelf import read_json

VIEWS_FILE: Final = "views.json"  # in the folder of the saved runs
BOARD_FILE: Final = "board.json"
MAX_VIEWS: Final = 100
MAX_NAME: Final = 100  # characters
MAX_QUERY: Final = 4000


class Views:
    """The views of a server, or the charts, by name. Without a folder, they last as long as the server.

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
        self._file = None if folder is None else folder / file
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
            views = {**self._known(), name: query}
            if len(views) > MAX_VIEWS:
                raise ArgumentError(f"{MAX_VIEWS} {self.noun}s are saved already: delete one first")
            self._put(views)
        self._changed()

    def delete(self, name: str) -> bool:
        """Delete a view. Return False if there is none of this name."""
        with self._lock:
            views = {each: query for each, query in self._known().items() if each != name}
            if len(views) == len(self._known()):
                return False
            self._put(views)
        self._changed()
        return True

    def _known(self) -> dict[str, str]:
        if self._views is None:
            said = {} if self._file is None else read_json(self._file)
            fits = (
                (name, query)
                for name, query in said.items()
                if isinstance(query, str) and len(name) <= MAX_NAME and len(query) <= MAX_QUERY
            )
            self._views = dict(list(fits)[:MAX_VIEWS])
        return self._views

    def _put(self, views: dict[str, str]) -> None:
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, views)
        self._views = views

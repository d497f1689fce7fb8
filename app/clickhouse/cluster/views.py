"""Saved views and the board in ClickHouse, for all servers: as pages of runs that don't exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...runs.views import Views
from ..client import Shard
from ..names import number_of_run
from ..sharing import History, SharedPage, pages_of

DAY: Final = 2**15 - 1  # in 2059: days are dropped when their runs are old, and no run begins on this one


class SharedViews:
    """The views of all servers, or the charts. The first shard has them, because others may be added after it."""

    def __init__(self, views: Views, shard: Shard, name: str) -> None:
        self.number = number_of_run(f"hookcore/{name}")  # no run has such an id
        self._views, self._shard = views, shard
        self._history = History()
        self._content: dict[str, Any] = {}  # of the newest version that is known
        views.keep_in(self)

    def read(self) -> Mapping[str, object]:
        """Return the newest views. Raises HookcoreError if the shard can't be asked."""
        page = next(iter(pages_of(self._shard, run=self.number)), None)
        if page is not None and page.version > self._history.version:
            self._content, mended = self._history.follow(page)
            if mended != self._content:  # another server wrote at the same moment as this one
                self.write(mended)
        return self._content

    def write(self, views: Mapping[str, str]) -> None:
        """Save views for all servers. Raises HookcoreError if that isn't possible."""
        self._history.write(self._shard, DAY, self.number, self._content, views)
        self._content = dict(views)

    def follow(self, page: SharedPage) -> None:
        """Take what another server has saved."""
        if page.version > self._history.version:
            self._views.follow()

"""Saved views and the board in ClickHouse, for all servers: as pages of runs that don't exist."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from ...runs.views import Views
from ..client import Shard
from ..names import number_of_run
from ..sharing import SharedPage, pages_of, save_page

DAY: Final = 2**15 - 1  # in 2059: days are dropped when their runs are old, and no run begins on this one


class SharedViews:
    """The views of all servers, or the charts. The first shard has them, because others may be added after it."""

    def __init__(self, views: Views, shard: Shard, name: str) -> None:
        self.number = number_of_run(f"hookcore/{name}")  # no run has such an id
        self._views, self._shard = views, shard
        self._version = -1
        views.keep_in(self)

    def read(self) -> Mapping[str, object]:
        """Return the newest views. Raises HookcoreError if the shard can't be asked."""
        page = next(iter(pages_of(self._shard, run=self.number)), None)
        if page is None:
            return {}
        self._version = max(self._version, page.version)
        return page.content

    def write(self, views: Mapping[str, str]) -> None:
        """Save views for all servers. Raises HookcoreError if that isn't possible."""
        version = max(time.time_ns() // 1_000_000, self._version + 1)
        save_page(self._shard, DAY, SharedPage(self.number, version, dict(views)))
        self._version = version

    def follow(self, page: SharedPage) -> None:
        """Take what another server has saved."""
        if page.version > self._version:
            self._version = page.version
            self._views.follow(page.content)

"""The list of the runs in a ClickHouse, as a server shows it: signs of life, edits, and removals."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from hookcore.errors import HookcoreError

from ...runs.limits import tamed
from ...runs.run import Run
from ...runs.runs import Runs
from ...settings import ServerSettings
from ..client import Cluster, Shard
from ..names import number_of_run, rank_shards
from ..reading import Listed, count_runs, listed
from ..sharing import SharedPage, pages_of
from .entry import Entry
from .retention import dropped_days
from .views import SharedViews

logger = logging.getLogger("hookcore")

RECENT_S: Final = 120  # of signs and edits that are read again; servers' clocks may differ
LIST_S: Final = 60.0
MAX_LISTED: Final = 2000  # runs of a shard


class Listing:
    """Keeps the list of a server in sync with the cluster."""

    def __init__(self, runs: Runs, cluster: Cluster, settings: ServerSettings) -> None:
        self._runs, self._cluster, self._settings = runs, cluster, settings
        self._entries: dict[str, Entry] = {}  # by run
        self._pages: dict[int, SharedPage] = {}  # edits of runs that aren't listed yet, by number
        self._troubles: dict[int, str] = {}  # by shard
        self._unlisted: dict[int, int] = {}  # runs that were too many to list, by shard
        self._listed = threading.Event()
        views = [
            SharedViews(runs.views, cluster.shards[0], "views"),
            SharedViews(runs.board, cluster.shards[0], "board"),
        ]
        self._views = {each.number: each for each in views}
        self._lock = threading.Lock()

    @property
    def partial(self) -> str:
        """Why runs may be missing, or may be older than they look."""
        away = [
            f"Runs of {self._cluster.shards[number].name} may be missing or out of date: {text}"
            for number, text in sorted(self._troubles.items())
            if text
        ]
        more = sum(self._unlisted.values())
        if more:
            away.append(f"{more:,} older runs aren't listed; their links work")
        return ". ".join(away)

    def _look(self, shard: Shard) -> None:
        """Read the news in the list of runs."""
        is_first = shard.number not in self._unlisted
        within_s = None if is_first else RECENT_S
        for page in pages_of(shard, within_s):
            self._read_page(page)
        for each in listed(shard, MAX_LISTED, within_s):
            self._list(shard, each)
        if is_first:
            self._unlisted[shard.number] = max(0, count_runs(shard) - MAX_LISTED)

    def _list(self, shard: Shard, each: Listed) -> Entry:
        with self._lock:
            entry = self._entries.get(each.sign.info.id)
            if entry is None:
                entry = self._entries[each.sign.info.id] = self._make(shard, each)
                self._show(entry)
        entry.hear(each)
        self._runs.place(entry.run, entry.run.info.place)
        return entry

    def _make(self, shard: Shard, each: Listed) -> Entry:
        run = self._runs.known(tamed(each.sign.info))
        entry = Entry(run, shard, self._settings.lost_after_s, is_new=shard.number in self._unlisted)
        entry.hear(each)
        if (page := self._pages.pop(each.run, None)) is not None:
            entry.read_page(page)
        run.saved.on_edit, run.commands.relay = entry.write_page, entry
        return entry

    def _show(self, entry: Entry) -> None:
        if entry.removed:
            self._runs.put_aside(entry.run, "deleted", time.time())
        else:
            self._runs.add_known(entry.run)

    def _read_page(self, page: SharedPage) -> None:
        if page.run in self._views:
            self._views[page.run].follow(page)
            return
        entry = next((each for each in list(self._entries.values()) if each.number == page.run), None)
        if entry is None:
            self._pages[page.run] = page
            return
        entry.read_page(page)
        is_listed = self._runs.get(entry.run.id) is not None  # an edit here may have brought a removal with it
        if entry.removed and is_listed:
            self._runs.remove(entry.run.id)
        elif not entry.removed and not is_listed:
            self._runs.restore(entry.run.id)

    def _unlist_dropped(self, shard: Shard) -> None:
        """Take runs off the list whose day was dropped, here or by another server."""
        here = [each for each in list(self._entries.values()) if each.shard is shard]
        days = dropped_days(shard, {each.day for each in here})
        for entry in here:
            if entry.day in days:
                with self._lock:
                    self._entries.pop(entry.run.id, None)
                self._runs.drop(entry.run)

    def find(self, run_id: str) -> Run | None:
        """Return a run that wasn't listed because there were too many, or that has just begun."""
        for number in rank_shards(run_id, len(self._cluster.shards)):
            shard = self._cluster.shards[number]
            try:
                found = listed(shard, 1, run=number_of_run(run_id))
                for page in pages_of(shard, run=number_of_run(run_id)) if found else ():
                    self._read_page(page)
            except HookcoreError as error:
                self._note(shard, error)
                continue
            if found:
                entry = self._list(shard, found[0])
                return None if entry.removed else entry.run
        return None

    def wait_until_listed(self) -> None:
        """Wait until the runs of all shards that can be asked are listed, but not forever."""
        self._listed.wait(LIST_S)

    def _note(self, shard: Shard, error: Exception | None) -> None:
        text = "" if error is None else str(error) or type(error).__name__
        before = self._troubles.get(shard.number, "")
        if text and text != before:
            is_ours = not isinstance(error, HookcoreError)
            logger.warning("hookcore: runs of %s can't be read: %s", shard.name, text, exc_info=is_ours)
        elif before and not text:
            logger.warning("hookcore: runs of %s can be read again", shard.name)
        self._troubles[shard.number] = text
        if text != before:
            self._runs.changes.tell()

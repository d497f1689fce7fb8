"""What all servers of a cluster share: saved views, and how long runs are kept."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from hookcore.errors import ArgumentError

from ...runs.shelf import Views
from ..client import Shard, quoted
from ..schema import DAY_S, OF_RUNS, OF_SUMS, number_of_run
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


# How long runs are kept: after that, the partition with all runs of a day is dropped.

logger = logging.getLogger("hookcore")

EVERY_S: Final = 3600.0
_AGE: Final = re.compile(r"(\d{1,5})d")


def days_of(text: str) -> int | None:
    """Return how many days `30d` is; None for `""`, which keeps everything. Raises ArgumentError."""
    if not text:
        return None
    found = _AGE.fullmatch(text)
    if found is None or not int(found[1]):
        raise ArgumentError(f"retain={text!r} is invalid: use a number of days such as 30d")
    return int(found[1])


def dropped_days(shard: Shard, days: Iterable[int]) -> set[int]:
    """Return the days without any data left on a shard, whichever server dropped them. New runs may arrive later."""
    today = int(time.time() // DAY_S)
    left = shard.read("SELECT toUInt16(day) AS number FROM runs GROUP BY day").numbers("number").tolist()
    return {day for day in days if day < today - 1} - set(left)


def _days_of_sums(shard: Shard, days: int) -> list[str]:
    """Return the days longer ago of which a shard has nothing but sums of ranks."""
    tables = ", ".join(quoted(table.name) for table in OF_SUMS)
    found = shard.read(
        f"SELECT DISTINCT partition FROM system.parts WHERE database = currentDatabase() AND active "
        f"AND table IN ({tables}) AND toDate(partition) < today() - {days} "
        "AND toDate(partition) NOT IN (SELECT day FROM runs) ORDER BY partition"
    )
    return [name.decode() for name in found.texts("partition")]


class Retention:
    """Drops days whose runs have all been silent for long enough. Any number of servers may do so."""

    def __init__(self, retain: str) -> None:
        self._days = days_of(retain)
        self._looked_at: dict[int, float] = {}  # by shard

    def keep(self, shard: Shard) -> list[str]:
        """From time to time, drop expired data on a shard. Return the days that were dropped."""
        now = time.monotonic()
        if self._days is None or now - self._looked_at.get(shard.number, float("-inf")) < EVERY_S:
            return []
        self._looked_at[shard.number] = now
        # A run that began long ago may still be training, so its last sign of life counts.
        found = shard.read(
            "SELECT toString(day) AS name FROM runs GROUP BY day "
            f"HAVING max(at) < now() - {self._days * DAY_S} AND day < today() - {self._days} ORDER BY day"
        )
        days = [name.decode() for name in found.texts("name")]
        for day in _days_of_sums(shard, self._days):  # another server may have stored some when their day was dropped
            for sums in OF_SUMS:
                shard.do(f"ALTER TABLE {sums.name} DROP PARTITION '{day}'")
        for day in days:
            for table in OF_RUNS:  # the list last, so that what fails is tried again
                shard.do(f"ALTER TABLE {table.name} DROP PARTITION '{day}'")
            logger.warning("hookcore: all runs that began on %s were deleted, because of retain=%dd", day, self._days)
        return days

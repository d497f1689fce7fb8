"""How long runs are kept: after that, the partition with all runs of a day is dropped."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from typing import Final

from hookcore.errors import ArgumentError

from ..client import Shard, quoted
from ..names import DAY_S
from ..schema import OF_RUNS, OF_SUMS

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

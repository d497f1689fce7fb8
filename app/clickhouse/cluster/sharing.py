"""What all servers of a cluster share: edits of runs, saved views, commands to trainers, and how long runs are kept."""

from __future__ import annotations

import json
import logging
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from hookcore.errors import ArgumentError
from hookcore.records import Command

from ...runs.edits import changes, merged
from ...runs.shelf import Views
from ..client import Shard, quoted
from ..schema import COMMANDS, DAY_S, OF_RUNS, OF_SUMS, PAGES, Table, number_of_run
from ..writing import block_of

# The data that servers of one ClickHouse share: edits of runs, saved views, and commands to trainers.

EARLIER: Final = ""  # the versions that the writer of a page had seen, in its content; no view has this name
MAX_EARLIER: Final = 50
_encoder: Final = msgspec.msgpack.Encoder()


class SharedPage(NamedTuple):
    """The newest edit of a run."""

    run: int
    version: int
    content: dict[str, Any]


def pages_of(shard: Shard, within_s: int | None = None, run: int | None = None) -> list[SharedPage]:
    """Return the newest edit of each run that was edited lately, of all runs, or of one."""
    where = "1" if within_s is None else f"at >= now() - {within_s}"
    where += "" if run is None else f" AND run = {run}"
    found = shard.read(
        f"SELECT run, version, content FROM pages WHERE {where} ORDER BY run, version DESC LIMIT 1 BY run"
    )
    about = (found.numbers(name).tolist() for name in ("run", "version"))
    return list(map(SharedPage, *about, map(json.loads, found.texts("content"))))


class _Change(NamedTuple):
    """An edit of this server: the version that it made, and what it changed."""

    version: int
    before: dict[str, Any]
    after: dict[str, Any]


@dataclass(slots=True)
class History:
    """What a server knows of the versions of one page, and the newest changes that it wrote itself.

    Servers that write at the same moment don't see each other's changes, and the highest version counts. So each
    version names those that it has, and a server that doesn't find all of its own among them writes these again. A
    version may also be overtaken much later, by a third server, so a server remembers many of its own.
    """

    version: int = -1  # the newest that is known
    _earlier: tuple[int, ...] = ()  # those that the content has, with this one
    _own: deque[_Change] = field(default_factory=lambda: deque(maxlen=MAX_EARLIER))

    def follow(self, page: SharedPage) -> tuple[dict[str, Any], dict[str, Any]]:
        """Note a newer version. Return its content, and the same with the own changes that it lacks."""
        content = {name: value for name, value in page.content.items() if name != EARLIER}
        has = page.content.get(EARLIER)
        if not isinstance(has, list):  # an earlier release doesn't say it
            has = [each.version for each in self._own]
        lacked = [each for each in self._own if _lacks(has, each.version)]
        mended = content
        for each in lacked:
            mended = merged(each.before, each.after, mended, yields=True)
        self.version = page.version
        self._earlier = tuple(sorted({*has, page.version, *(each.version for each in lacked)}))[-MAX_EARLIER:]
        return content, mended

    def write(self, shard: Shard, day: int, number: int, before: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        """Save the next version of a page, which changes the content before."""
        version = max(time.time_ns(), self.version + 1)
        save_page(shard, day, SharedPage(number, version, {**content, EARLIER: self._earlier}))
        self.version, self._earlier = version, (*self._earlier, version)[-MAX_EARLIER:]
        self._own.append(_Change(version, *changes(before, content)))


def _lacks(earlier: Sequence[int], version: int) -> bool:
    is_known = len(earlier) < MAX_EARLIER or earlier[0] <= version  # the list is of the newest ones
    return is_known and version not in earlier


def save_page(shard: Shard, day: int, page: SharedPage) -> None:
    about = {"day": [day], "run": np.array([page.run], np.uint64), "version": [page.version]}
    shard.insert(PAGES.name, block_of(PAGES, {**about, "content": [json.dumps(page.content).encode()]}))


def newest_command(shard: Shard, run: int) -> int:
    """Return the highest number of a command for a run's trainer; -1 for none."""
    found = shard.read(f"SELECT max(number) AS newest, count() AS found FROM commands WHERE run = {run}")
    return found.one("newest") if found.one("found") else -1


def save_commands(shard: Shard, day: int, run: int, commands: Sequence[Command]) -> None:
    """Save commands for the trainer of a run, which the process that it sends to hands on."""
    many = len(commands)
    block = block_of(
        COMMANDS,
        {
            "day": [day] * many,
            "run": np.full(many, run, np.uint64),
            "number": [command.number for command in commands],
            "content": list(map(_encoder.encode, commands)),
        },
    )
    shard.insert(COMMANDS.name, block)


def commands_after(shard: Shard, done: Mapping[int, int]) -> dict[int, tuple[Command, ...]]:
    """Return the commands of some runs after the numbers that their trainers have received, oldest first."""
    if not done:
        return {}
    runs = " OR ".join(f"(run = {run} AND number >= {number + 1})" for run, number in done.items())
    found = shard.read(f"SELECT run, content FROM commands WHERE {runs} ORDER BY run, number")
    commands: dict[int, tuple[Command, ...]] = {}
    for run, content in zip(found.numbers("run").tolist(), found.texts("content"), strict=True):
        commands[run] = (*commands.get(run, ()), msgspec.msgpack.decode(content, type=Command))
    return commands


def versions_of(shard: Shard, table: Table, runs: Iterable[int]) -> dict[int, int]:
    """Return the highest version in a table of each of some runs that is in it."""
    numbers = ", ".join(map(str, runs))
    if not numbers:
        return {}
    found = shard.read(f"SELECT run, max(version) AS newest FROM {table.name} WHERE run IN ({numbers}) GROUP BY run")
    return dict(zip(found.numbers("run").tolist(), found.numbers("newest").tolist(), strict=True))


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

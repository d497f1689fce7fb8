"""The data that servers of one ClickHouse share: edits of runs, saved views, and commands to trainers."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from hookcore.records import Command

from ..runs.edits import changes, merged
from .client import Shard
from .schema import COMMANDS, PAGES, Table
from .writing import block_of

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

"""The data that servers of one ClickHouse share: edits of runs, saved views, and commands to trainers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from hookcore.records import Command

from .client import Shard
from .tables import COMMANDS, PAGES, Table
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


def merged(before: Mapping[str, Any], mine: Mapping[str, Any], newest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the newest content with only the changes made here since `before`."""
    content = dict(newest)
    for name in {**before, **mine}:
        old, new, theirs = (each.get(name) for each in (before, mine, newest))
        if new == old and (name in mine) == (name in before):
            continue
        if isinstance(old, dict) and isinstance(new, dict) and isinstance(theirs, dict):
            content[name] = merged(old, new, theirs)
        elif name in mine:
            content[name] = new
        else:
            content.pop(name, None)
    return content


@dataclass(slots=True)
class History:
    """What a server knows of the versions of one page, and the newest change that it wrote itself.

    Two servers that write at the same moment don't see each other's change, and the higher version counts. So each
    version names those before it, and a server that doesn't find its own among them writes its change again.
    """

    version: int = -1  # the newest that is known
    _earlier: tuple[int, ...] = ()  # with this one
    _written: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None  # before and after it, if it is an own one

    def follow(self, page: SharedPage) -> tuple[dict[str, Any], dict[str, Any]]:
        """Note a newer version. Return its content, and the same with the own change, if that was overtaken by it."""
        content = {name: value for name, value in page.content.items() if name != EARLIER}
        mended, said = content, page.content.get(EARLIER)  # an earlier release doesn't say it
        if self._written is not None and isinstance(said, list) and self._is_overtaken(said):
            mended = merged(*self._written, content)
        self.version, self._written = page.version, None
        self._earlier = (*(said if isinstance(said, list) else ()), page.version)
        return content, mended

    def _is_overtaken(self, earlier: Sequence[int]) -> bool:
        is_known = len(earlier) < MAX_EARLIER or earlier[0] <= self.version  # the list is of the newest ones
        return is_known and self.version not in earlier

    def write(self, shard: Shard, day: int, number: int, before: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        """Save the next version of a page, which changes the content before."""
        version = max(time.time_ns(), self.version + 1)
        save_page(shard, day, SharedPage(number, version, {**content, EARLIER: self._earlier[-MAX_EARLIER:]}))
        self.version, self._earlier, self._written = version, (*self._earlier, version), (before, content)


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

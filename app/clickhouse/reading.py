"""Reading runs: the list, names, and items as their trainers sent them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hookcore.records import STATS, Event, Tap
from hookcore.records.flow import Flow
from hookcore.records.wire import Description, EndItem, FrameItem, Item, SnapshotItem
from hookcore.store.segments import Floats

from .client import Shard
from .groups import portions
from .names import SCALARS
from .native import Lists
from .questions import in_steps
from .segments import item_of
from .tables import END, FLOW, LABELS, MERGED
from .writing import Sign

MAX_ROWS: Final = 400_000  # of the frames that are read at once
MAX_BYTES: Final = 128 * 2**20  # of the snapshots
_NOTHING: Final = slice(0, 0)


class Listed(NamedTuple):
    """A run in the list, and how many seconds old that is."""

    run: int
    version: int
    age_s: int
    sign: Sign


def listed(shard: Shard, most: int, within_s: int | None = None, run: int | None = None) -> list[Listed]:
    """Return the newest sign of life of each run that had one lately, of the newest runs, or of one."""
    where = "1" if within_s is None else f"at >= now() - {within_s}"
    where += "" if run is None else f" AND run = {run}"
    found = shard.read(
        "SELECT run, version, content, toInt64(now()) - toInt64(at) AS age FROM "
        f"(SELECT day, run, version, content, at FROM runs WHERE {where} ORDER BY run, version DESC LIMIT 1 BY run) "
        f"ORDER BY day DESC, version DESC LIMIT {most}"
    )
    about = (found.numbers(name).tolist() for name in ("run", "version", "age"))
    signs = (msgspec.msgpack.decode(content, type=Sign) for content in found.texts("content"))
    return [Listed(*each) for each in zip(*about, signs, strict=True)]


def count_runs(shard: Shard) -> int:
    return shard.read("SELECT uniqExact(run) AS count FROM runs").one("count")


def names_of(shard: Shard, run: int) -> tuple[tuple[Tap, ...], tuple[str, ...]]:
    """Return the taps of a run by their numbers, as far as all names are known, and the names of its scalars."""
    found = shard.read(f"SELECT lane, any(content) AS name FROM lanes WHERE run = {run} GROUP BY lane ORDER BY lane")
    taps: list[Tap] = []
    scalars: list[str] = []
    for lane, content in zip(found.numbers("lane").tolist(), found.texts("name"), strict=True):
        if lane >= SCALARS:
            scalars.append(msgspec.msgpack.decode(content, type=str))
        elif lane == len(taps):
            taps.append(msgspec.msgpack.decode(content, type=Tap))
    return tuple(taps), tuple(scalars)


def description_of(shard: Shard, run: int, after: int = -1) -> Description | None:
    """Return the newest description of a run's model, if there is one after a version."""
    where = f"run = {run} AND version >= {after + 1}"
    texts = shard.read(f"SELECT content FROM descriptions WHERE {where} ORDER BY version DESC LIMIT 1").texts("content")
    return msgspec.msgpack.decode(texts[0], type=Description) if texts else None


def facts_of(shard: Shard, run: int, before: int) -> tuple[dict[str, str], list[Flow]]:
    """Return the labels and the data flows of the frames before an item."""
    where = f"run = {run} AND number < {before}"
    found = shard.read(f"SELECT kind, content FROM facts WHERE {where} ORDER BY number")
    labels: dict[str, str] = {}
    flows: list[Flow] = []
    for kind, content in zip(found.numbers("kind").tolist(), found.texts("content"), strict=True):
        if kind == LABELS:
            labels |= msgspec.msgpack.decode(content, type=dict[str, str])
        elif kind == FLOW:
            flows.append(msgspec.msgpack.decode(content, type=Flow))
    return labels, flows


def events_of(shard: Shard, run: int, before: int, most: int) -> list[Event]:
    """Return the newest events of the frames before an item, oldest first."""
    where = f"run = {run} AND number < {before}"
    found = shard.read(f"SELECT content FROM events WHERE {where} ORDER BY number DESC, place DESC LIMIT {most}")
    return [msgspec.msgpack.decode(content, type=Event) for content in reversed(found.texts("content"))]


def end_of(shard: Shard, run: int, last: int) -> EndItem | None:
    """Return how a run ended, if an item up to `last` contains it."""
    where = f"run = {run} AND kind = {END} AND number < {last + 1}"
    heads = shard.read(f"SELECT head FROM items WHERE {where} ORDER BY number DESC LIMIT 1").texts("head")
    item = item_of(heads[0], b"") if heads else None
    return item if isinstance(item, EndItem) else None


class Stored(NamedTuple):
    """An item without its rows and sketches, of which it says how many it has, and without a snapshot's values."""

    run: int
    number: int
    step: int
    rows: int
    sketches: int
    nbytes: int  # of a snapshot's values
    item: Item


def items_after(shard: Shard, cursors: Mapping[int, int], most: int, where: str = "1") -> list[Stored]:
    """Return the oldest items of some runs after the numbers given, up to `most` in all, by run and number.

    Each run has its part, so that one with many, or one that waits for a replica, keeps no other from arriving.
    """
    if not cursors:
        return []
    runs = " OR ".join(f"(run = {run} AND number >= {number + 1})" for run, number in cursors.items())
    found = shard.read(
        "SELECT run, number, step, rows, sketches, length(content) AS nbytes, head FROM items "
        f"WHERE ({runs}) AND {where} ORDER BY run, number "
        f"LIMIT {max(1, most // len(cursors))} BY run LIMIT {most}"
    )
    about = (found.numbers(name).tolist() for name in ("run", "number", "step", "rows", "sketches", "nbytes"))
    return list(map(Stored, *about, (item_of(head, b"") for head in found.texts("head"))))


def read_at_once(stored: Sequence[Stored]) -> Iterator[list[Stored]]:
    """Divide items into parts that can be read at once."""
    return portions(stored, lambda each: (each.rows, each.nbytes), (MAX_ROWS, MAX_BYTES))


class Mismatch(NamedTuple):
    """A frame with other rows or sketches than its item says."""

    number: int
    step: int
    rows: int
    rows_said: int
    sketches: int
    sketches_said: int

    @property
    def is_real(self) -> bool:
        """Whether there is a difference."""
        return not self.rows_fit or self.sketches != self.sketches_said

    @property
    def rows_fit(self) -> bool:
        """Whether it has the rows that it should have."""
        return self.rows == self.rows_said

    @property
    def has_more(self) -> bool:
        """Whether it has more than it should, so that waiting doesn't help."""
        return self.rows > self.rows_said or self.sketches > self.sketches_said


class Completed(NamedTuple):
    """Items of one run with all they have."""

    items: list[Item]
    damaged: list[Mismatch]  # frames among them that are without what doesn't fit
    waits: Mismatch | None  # the frame after them, if it isn't here completely


def complete(shard: Shard, stored: Sequence[Stored], lost_until: int = -1) -> Completed:
    """Return items of one run with all they have, oldest first, up to the first that isn't here completely.

    A replica may have an item before the rows of its frame. Frames up to the item `lost_until` have waited for long
    enough: what they lack is lost.
    """
    filled = [each for each in stored if each.rows or each.sketches]
    rows = sketches = None
    if filled:
        numbers = f"number BETWEEN {filled[0].number} AND {filled[-1].number}"
        steps = [each.step for each in filled]
        where = f"run = {filled[0].run} AND {in_steps(min(steps), max(steps))} AND {numbers} AND lane < {SCALARS}"
        stats = ", ".join(f"`{stat}`" for stat in STATS)
        rows = _Rows.of(shard, f"SELECT number, lane, owner, {stats} FROM rows WHERE {where} AND role < {MERGED}")
        sketches = _Sketches.of(shard, f"SELECT number, lane, bins, counts FROM sketches WHERE {where}")
    values = _values_of(shard, [each for each in stored if each.nbytes])
    found: list[Item] = []
    damaged: list[Mismatch] = []
    for each in stored:
        item = each.item
        if isinstance(item, FrameItem) and rows is not None and sketches is not None:
            mine, sketched = _part(rows.numbers, each.number), _part(sketches.numbers, each.number)
            counts = mine.stop - mine.start, each.rows, sketched.stop - sketched.start, each.sketches
            mismatch = Mismatch(each.number, each.step, *counts)
            if mismatch.is_real:
                if each.number > lost_until and not mismatch.has_more:
                    return Completed(found, damaged, mismatch)
                damaged.append(mismatch)
                mine, sketched = mine if mismatch.rows_fit else _NOTHING, _NOTHING
            item = sketches.put(rows.put(item, mine), rows.lanes[mine], sketched)
        elif isinstance(item, SnapshotItem):
            item = msgspec.structs.replace(item, values=values.get(each.number, b""))
        found.append(item)
    return Completed(found, damaged, None)


def _values_of(shard: Shard, snapshots: Sequence[Stored]) -> dict[int, bytes]:
    if not snapshots:
        return {}
    numbers = ", ".join(str(each.number) for each in snapshots)
    found = shard.read(f"SELECT number, content FROM items WHERE run = {snapshots[0].run} AND number IN ({numbers})")
    return dict(zip(found.numbers("number").tolist(), found.texts("content"), strict=True))


def _part(numbers: NDArray[np.uint64], number: int) -> slice:
    first, last = np.searchsorted(numbers, np.array([number, number + 1], np.uint64)).tolist()
    return slice(first, last)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The rows of several frames, by frame and tap."""

    numbers: NDArray[np.uint64]
    lanes: NDArray[np.uint64]
    owners: NDArray[np.int32]
    stats: Floats  # [row, stat]

    @classmethod
    def of(cls, shard: Shard, sql: str) -> _Rows:
        found = shard.read(sql)
        order = np.lexsort((found.numbers("lane"), found.numbers("number")))
        numbers, lanes, owners = (found.numbers(name)[order] for name in ("number", "lane", "owner"))
        return cls(numbers, lanes, owners, np.stack([found.numbers(stat)[order] for stat in STATS], axis=1))

    def put(self, item: FrameItem, mine: slice) -> FrameItem:
        return msgspec.structs.replace(
            item,
            taps=self.lanes[mine].astype("<u4").tobytes(),
            stats=self.stats[mine].astype("<f8").tobytes(),
            owners=self.owners[mine].astype("<i4").tobytes(),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Sketches:
    """The sketches of several frames, by frame and tap."""

    numbers: NDArray[np.uint64]
    lanes: NDArray[np.uint64]
    parts: list[slice]  # of the bins
    bins: Lists
    counts: NDArray[np.uint32]

    @classmethod
    def of(cls, shard: Shard, sql: str) -> _Sketches:
        found = shard.read(sql)
        order = np.lexsort((found.numbers("lane"), found.numbers("number")))
        bins = found.lists("bins")
        begins, ends = bins.starts[:-1][order].tolist(), bins.starts[1:][order].tolist()
        numbers, lanes = found.numbers("number")[order], found.numbers("lane")[order]
        return cls(numbers, lanes, list(map(slice, begins, ends)), bins, found.lists("counts").values)

    def put(self, item: FrameItem, lanes: NDArray[np.uint64], mine: slice) -> FrameItem:
        """Return an item with the sketches of some of its taps."""
        parts = self.parts[mine]
        lengths = np.zeros(len(lanes) + 1, np.int64)
        lengths[np.searchsorted(lanes, self.lanes[mine]) + 1] = [part.stop - part.start for part in parts]
        return msgspec.structs.replace(
            item,
            start=np.cumsum(lengths).astype("<u4").tobytes(),
            bins=b"".join(self.bins.values[part].astype("<u2").tobytes() for part in parts),
            counts=b"".join(self.counts[part].astype("<u4").tobytes() for part in parts),
        )

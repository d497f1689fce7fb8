"""Reading runs: the list, names, and items as their trainers sent them, in the form in which stores read saved runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hookcore.errors import HookcoreError
from hookcore.records import STATS, Coverage, Event, Frame, HookRecord, ModuleRecord, Snapshot, Tap
from hookcore.records.flow import Flow
from hookcore.records.wire import Description, EndItem, FrameItem, Item, SnapshotItem, frame_of, snapshot_of
from hookcore.store import StepRange
from hookcore.store.bounded import scalars_of
from hookcore.store.segments import Floats

from .client import Shard
from .native import Lists
from .questions import in_steps, portions
from .schema import END, FLOW, FRAME, LABELS, MERGED, SCALARS, SNAPSHOT
from .writing import Sign, item_of

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
    numbers = ", ".join(str(snapshot.number) for snapshot in snapshots)
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
        bins, counts = found.histograms()
        begins, ends = bins.starts[:-1][order].tolist(), bins.starts[1:][order].tolist()
        numbers, lanes = found.numbers("number")[order], found.numbers("lane")[order]
        return cls(numbers, lanes, list(map(slice, begins, ends)), bins, counts)

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


# A run in ClickHouse in the form in which stores read saved runs.

MAX_ITEMS: Final = 5000  # that are asked for at once
FRAME_ROWS: Final = 20  # a frame takes as long to read as so many values of taps, besides those that it has
MAX_EVENTS: Final = 20_000
SNAPSHOT_BYTES: Final = 128 * 2**20  # of the newest ones, which are read


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a run is stored."""

    rows: int = 0  # values of taps, and what a frame takes besides
    last: int = -1  # the newest item's number, -1 for none
    newest: int = -1  # the newest frame's step, -1 for none
    newest_at: int = -1  # the number of a frame of this step


def extents_of(shard: Shard, runs: Iterable[int]) -> dict[int, Extent]:
    """Return how much each of some runs has, if it has anything."""
    numbers = ", ".join(map(str, runs))
    if not numbers:
        return {}
    found = shard.read(
        f"SELECT run, sum(rows + {FRAME_ROWS}) AS size, max(number) AS last, countIf(kind = {FRAME}) AS frames, "
        f"maxIf(step, kind = {FRAME}) AS newest, argMaxIf(number, step, kind = {FRAME}) AS newest_at "
        f"FROM items WHERE run IN ({numbers}) GROUP BY run"
    )
    columns = (found.numbers(name).tolist() for name in ("run", "size", "last", "frames", "newest", "newest_at"))
    return {
        run: Extent(size, last, *(newest if frames else (-1, -1)))
        for run, size, last, frames, *newest in zip(*columns, strict=True)
    }


def extent_of(shard: Shard, run: int) -> Extent:
    """Return how much a run has."""
    return extents_of(shard, [run]).get(run, Extent())


def steps_before(shard: Shard, run: int, step: int) -> tuple[StepRange, int]:
    """Return the steps of a run before one, and how many of them have values of taps."""
    found = shard.read(
        "SELECT min(step) AS first, max(step) AS newest, uniqExact(step) AS steps, count() AS frames, "
        "uniqExactIf(step, rows > 0) AS captured FROM items "
        f"WHERE run = {run} AND kind = {FRAME} AND step < {step}"
    )
    if not found.one("frames"):
        return StepRange(None, None, 0), 0
    steps = StepRange(*(found.one(name) for name in ("first", "newest", "steps", "frames")))
    return steps, found.one("captured")


def begin_of_newest(shard: Shard, run: int, last: int, rows: int, frames: int) -> tuple[int, int]:
    """Return the number and the step of the first frame of the newest whole steps that aren't more than so much."""
    found = shard.read(
        f"SELECT number, step, rows FROM items WHERE run = {run} AND kind = {FRAME} AND number <= {last} "
        f"ORDER BY number DESC LIMIT {max(1, min(rows, frames + 1))}"
    )
    numbers, steps = found.numbers("number").astype(np.int64), found.numbers("step").astype(np.int64)
    sizes = np.cumsum(found.numbers("rows").astype(np.int64) + FRAME_ROWS)
    fitting = min(frames, int(np.searchsorted(sizes, rows, "right")))
    if fitting >= len(numbers):
        return int(numbers[-1]), int(steps[-1])
    ends = np.flatnonzero(np.diff(steps[: fitting + 1]))  # the last frame of each whole step
    place = int(ends[-1]) if len(ends) else 0
    return int(numbers[place]), int(steps[place])


def lost_in(damaged: Sequence[Mismatch], name: str) -> str:
    """Return what frames of a run lack for good, and where to look, in sentences."""
    steps = sorted({each.step for each in damaged})
    first, last = steps[0], steps[-1]
    some = f"Step {first:,} is" if first == last else f"{len(steps):,} steps from {first:,} to {last:,} are"
    left_out = "Histograms" if all(each.rows_fit for each in damaged) else "Statistics of tensors and histograms"
    return (
        f"{some} incomplete in ClickHouse: there are {_counts_of(damaged)}. {left_out} of the damaged frames are left "
        f"out here; losses and events are shown. ClickHouse may have lost its newest data in a power failure, or "
        f"stored a block twice: see the log of {name}"
    )


def awaited_in(waits: Mismatch) -> str:
    """Return why a run's newest steps aren't shown yet, in sentences."""
    return (
        f"Steps from {waits.step:,} on aren't shown yet: step {waits.step:,} has {_counts_of([waits])} in "
        f"ClickHouse. hookcore waits for the rest for about a minute, because another replica may have it."
    )


def _counts_of(mismatches: Sequence[Mismatch]) -> str:
    """Return how much there is of some frames, and how much there should be."""
    counts = (
        (
            "rows of statistics",
            sum(mismatch.rows for mismatch in mismatches),
            sum(mismatch.rows_said for mismatch in mismatches),
        ),
        (
            "histograms",
            sum(mismatch.sketches for mismatch in mismatches),
            sum(mismatch.sketches_said for mismatch in mismatches),
        ),
    )
    return " and ".join(f"{found:,} {what} instead of {said:,}" for what, found, said in counts if found != said)


@dataclass
class StoredRun:
    """A run's items from `first` to `last`, and what is known of it otherwise."""

    shard: Shard
    run: int
    last: int  # the newest item that counts
    first: int = 0
    lost_until: int = -1  # frames up to this item aren't waited for
    damages: list[str] = field(default_factory=list)
    waits: Mismatch | None = None  # the frame before which reading stopped, as it isn't here completely
    newest: int = -1  # the newest frame that was read

    def first_at(self, step: int) -> int:
        """Return the number of the first frame of a step or a later one."""
        where = f"run = {self.run} AND kind = {FRAME} AND step >= {step}"
        found = self.shard.read(f"SELECT min(number) AS first, count() AS found FROM items WHERE {where}")
        return found.one("first") if found.one("found") else self.last + 1

    def count_frames(self, first: int, end: int) -> int:
        """Return how many frames there are from one item up to another one, without that."""
        if first >= end:
            return 0
        where = f"run = {self.run} AND kind = {FRAME} AND number >= {first} AND number < {end}"
        return self.shard.read(f"SELECT count() AS frames FROM items WHERE {where}").one("frames")

    @cached_property
    def _names(self) -> tuple[tuple[Tap, ...], tuple[str, ...]]:
        return names_of(self.shard, self.run)

    @cached_property
    def description(self) -> Description | None:
        return description_of(self.shard, self.run)

    @cached_property
    def labels(self) -> dict[str, str]:
        """The labels of the frames before the first one."""
        return facts_of(self.shard, self.run, self.first)[0] if self.first else {}

    def taps(self) -> tuple[Tap, ...]:
        return self._names[0]

    def scalars(self) -> tuple[str, ...]:
        """Return the names of all scalars: first those of the first frame, in its order."""
        first = items_after(self.shard, {self.run: -1}, 1, f"kind = {FRAME}")
        named = [name for each in first if isinstance(each.item, FrameItem) for name in scalars_of(each.item)]
        return tuple(dict.fromkeys([*named, *sorted(self._names[1])]))

    def modules(self) -> Sequence[ModuleRecord]:
        return () if self.description is None else self.description.modules

    def coverage(self) -> Sequence[Coverage]:
        return () if self.description is None else self.description.coverage

    def hooks(self) -> Sequence[HookRecord]:
        return () if self.description is None else self.description.hooks

    def events(self) -> Iterator[Event]:
        """Yield nothing: frames have their events."""
        return iter(())

    def earlier_events(self) -> list[Event]:
        """Return the newest events of the frames before the first one, oldest first."""
        return events_of(self.shard, self.run, self.first, MAX_EVENTS)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames in order, up to the first that isn't here completely."""
        flows = facts_of(self.shard, self.run, self.first)[1] if self.first else []
        cursor = self.first - 1
        while stored := items_after(
            self.shard, {self.run: cursor}, MAX_ITEMS, f"kind = {FRAME} AND number <= {self.last}"
        ):
            for part in read_at_once(stored):
                read = complete(self.shard, part, self.lost_until)
                if read.damaged:
                    self.damages.append(lost_in(read.damaged, self.shard.name))
                for item in read.items:
                    frame = self._frame_of(item)
                    if frame is not None:
                        # What calls what was last said before the first frame, which is what still holds.
                        if flows and frame.flow is None:
                            frame = replace(frame, flow=flows[-1])
                        flows = []
                        self.newest = item.number
                        yield frame
                if read.waits is not None:
                    self.waits = read.waits
                    self.last = max(self.newest, self.first - 1)  # the rest comes when it is here
                    return
            cursor = stored[-1].number

    def _frame_of(self, item: Item) -> Frame | None:
        try:
            return frame_of(item) if isinstance(item, FrameItem) else None
        except HookcoreError as error:
            self.damages.append(f"item {item.number}: {error}")
            return None

    def snapshots(self, since: int = 0) -> Iterator[Snapshot]:
        """Yield the newest snapshots from an item on, oldest first."""
        found = self.shard.read(
            f"SELECT number, length(content) AS nbytes FROM items WHERE run = {self.run} AND kind = {SNAPSHOT} "
            f"AND number >= {since} AND number <= {self.last} ORDER BY number DESC"
        )
        fitting = int(np.searchsorted(np.cumsum(found.numbers("nbytes").astype(np.int64)), SNAPSHOT_BYTES, "right"))
        if not fitting:
            return
        first = int(found.numbers("number")[fitting - 1])
        where = f"kind = {SNAPSHOT} AND number <= {self.last}"
        for part in read_at_once(items_after(self.shard, {self.run: first - 1}, fitting, where)):
            yield from self._snapshots_of(part)

    def _snapshots_of(self, part: Sequence[Stored]) -> Iterator[Snapshot]:
        for item in complete(self.shard, part).items:
            try:
                if isinstance(item, SnapshotItem):
                    yield snapshot_of(item)
            except HookcoreError as error:
                self.damages.append(f"item {item.number}: {error}")

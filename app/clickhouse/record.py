"""A run in ClickHouse in the form in which stores read saved runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from hookcore.errors import HookcoreError
from hookcore.records import Coverage, Event, Frame, HookRecord, ModuleRecord, Snapshot, Tap
from hookcore.records.wire import Description, FrameItem, Item, SnapshotItem, frame_of, snapshot_of
from hookcore.store import StepRange
from hookcore.store.scalars import scalars_of

from .client import Shard
from .reading import (
    Mismatch,
    Stored,
    complete,
    description_of,
    events_of,
    facts_of,
    items_after,
    names_of,
    read_at_once,
)
from .tables import FRAME, SNAPSHOT

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
        ("rows of statistics", sum(each.rows for each in mismatches), sum(each.rows_said for each in mismatches)),
        ("histograms", sum(each.sketches for each in mismatches), sum(each.sketches_said for each in mismatches)),
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

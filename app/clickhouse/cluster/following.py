"""Follows the runs in memory: reads their new data from ClickHouse, in the order of their steps."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from hookcore.errors import HookcoreError
from hookcore.records.wire import EndItem, FrameItem, Item

from ...analysis.numerals import size
from ...runs.joint import JointRun
from ...runs.parts import record_of
from ...runs.run import Run, emit_event
from ..client import Shard
from ..reading import Completed, Mismatch, Stored, complete, description_of, items_after, names_of, read_at_once
from ..record import lost_in
from ..sharing import versions_of
from ..tables import DESCRIPTIONS
from .entry import Entry
from .loading import Loading

logger = logging.getLogger("hookcore")

MAX_ITEMS: Final = 2000  # of all followed runs of a shard, in one look
WAITS: Final = 30  # looks for the names of taps, before their values are counted as lost
FULL: Final = 0.8  # of the memory: beyond that, runs are loaded only when a user opens them


class Following(Loading):
    """Reads new data, and loads more live runs into memory if there is room."""

    def advance(self, shard: Shard) -> None:
        """Read the new data of the runs in memory, and load more live runs if there is room."""
        here = [each for each in list(self._entries.values()) if each.shard is shard and not each.removed]
        followed = {each.number: each for each in here if each.is_followed}
        self._describe(shard, followed)
        taken = {number: each.run.received.acknowledged for number, each in followed.items()}
        stored = items_after(shard, taken, MAX_ITEMS)
        halted: set[int] = set()
        unnamed: set[int] = set()
        waiting: dict[int, Mismatch | None] = {}
        lost_until = {number: each.lost_until for number, each in followed.items()}
        attempts = {number: each.attempt for number, each in followed.items()}
        for part in read_at_once(in_order(stored, attempts)):
            items, read = read_all(shard, part, halted, lost_until)
            for number, item in items:
                if number not in unnamed and not self._take(followed[number], item):
                    unnamed.add(number)
            halted |= unnamed
            for number, each in read.items():
                self._say_lost(followed[number], each.damaged)
                waiting[number] = each.waits
        for number, entry in followed.items():
            entry.wait_for(waiting.get(number))
        for entry in here:
            if not entry.run.loaded and not entry.run.finished:
                self._admit(entry.run)

    @staticmethod
    def _say_lost(entry: Entry, damaged: Sequence[Mismatch]) -> None:
        taken = [each for each in damaged if each.number <= entry.run.received.acknowledged]
        if taken:
            emit_event(entry.run, "damaged", lost_in(taken, entry.shard.name), "warning")

    def _admit(self, run: Run) -> None:
        """Take a live run into memory if there is room. If not, the sum of its ranks must not wait for it."""
        full = self._why_full()
        if not full:
            self._runs.read(run)
        elif isinstance(run.joint, JointRun):
            run.joint.do_without(run, full)

    def _why_full(self) -> str:
        """Return why no run is loaded into memory before a user opens it; empty if there is room."""
        loaded = sum(each.loaded and each.joint is None for each in self._runs.every())
        used, most = self._runs.used_bytes, self._settings.memory
        if loaded >= self._settings.max_runs:
            return f"there are {loaded:,} runs, the maximum of --max-runs"
        if used >= FULL * most:
            return f"runs take {size(used)}, more than {FULL:.0%} of --memory ({size(most)})"
        return ""

    def _gather(self, run: Run) -> None:
        """Take the live ranks of a training into memory before the sum is read, so that what follows comes to all."""
        if not isinstance(run.joint, JointRun) or run.joint.loaded:
            return
        for member in list(run.joint.members.values()):
            if not member.run.loaded and not member.run.finished and not self._why_full():
                try:
                    self._runs.read(member.run)
                except HookcoreError as error:  # the thread of its shard says so, too
                    logger.debug("hookcore: a rank can't be read yet: %s", error)

    def _describe(self, shard: Shard, followed: Mapping[int, Entry]) -> None:
        for number, version in versions_of(shard, DESCRIPTIONS, followed).items():
            entry = followed[number]
            if version > entry.described and (said := description_of(shard, number, entry.described)) is not None:
                entry.described = said.version
                entry.run.store.describe(said.modules, said.coverage, said.hooks)
                if entry.run.joint is not None:
                    entry.run.joint.describe_of(entry.run, said)

    def _take(self, entry: Entry, item: Item) -> bool:
        """Take an item; return False if it must wait for the names of its taps."""
        run = entry.run
        self._gather(run)
        with entry.lock:
            if not run.loaded or run.received.acknowledged >= item.number:
                return True  # it was loaded again in the meantime
            if isinstance(item, FrameItem) and item.taps and not self._names_are_known(entry, item):
                return False
            try:
                run.take_stored(record_of(item), item.number)
            except HookcoreError as error:
                emit_event(run, "damaged", f"item {item.number} of this run can't be read: {error}", "warning")
                run.received.acknowledged = item.number
            entry.summed = item.number
        run.changes.tell()
        if isinstance(item, EndItem):
            self._summarize_once(entry)
        return True

    @staticmethod
    def _names_are_known(entry: Entry, item: FrameItem) -> bool:
        store, highest = entry.run.store, int(np.frombuffer(item.taps, "<u4").max())
        if highest >= store.taps_announced:
            store.announce(names_of(entry.shard, entry.number)[0][store.taps_announced :])
        if highest >= store.taps_announced and entry.waits < WAITS:
            entry.waits += 1
            return False
        entry.waits = 0
        return True


def in_order(stored: Sequence[Stored], attempts: Mapping[int, int]) -> list[Stored]:
    """Return items by the attempts of their trainings and by their steps, those of each run in their order.

    So the ranks of a training come together, as they would have come to a server without ClickHouse.
    """
    reached: dict[int, int] = {}
    places = []
    for each in stored:
        reached[each.run] = max(reached.get(each.run, -1), each.step)
        places.append((attempts.get(each.run, 0), reached[each.run]))
    return [each for _, each in sorted(zip(places, stored, strict=True), key=lambda pair: pair[0])]


def read_all(
    shard: Shard, part: Sequence[Stored], halted: set[int], lost_until: Mapping[int, int]
) -> tuple[list[tuple[int, Item]], dict[int, Completed]]:
    """Return items with the numbers of their runs, in their order, and what was read of each run.

    Runs of which something isn't here yet are halted.
    """
    read: dict[int, Completed] = {}
    for run in dict.fromkeys(each.run for each in part):
        if run not in halted:
            read[run] = complete(shard, [each for each in part if each.run == run], lost_until[run])
    found = {(run, item.number): item for run, each in read.items() for item in each.items}
    halted |= {run for run, each in read.items() if each.waits is not None}
    keys = ((each.run, each.number) for each in part)
    return [(run, found[run, number]) for run, number in keys if (run, number) in found], read

"""The runs of a ClickHouse cluster in the list of a server: listed, followed, and loaded."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np

from hookcore.delivery.archive import Recorded
from hookcore.delivery.failures import event_of
from hookcore.errors import HookcoreError
from hookcore.findings import follow
from hookcore.records import Event, Frame, Snapshot
from hookcore.records.wire import EndItem, FrameItem, Item
from hookcore.store import Store

from ...analysis.numerals import size
from ...runs.disk import Why
from ...runs.joint import joint_in
from ...runs.limits import tamed
from ...runs.parts import End, record_of
from ...runs.run import Run, emit_event
from ...runs.runs import Runs
from ...runs.saved import steps_of
from ...settings import ServerSettings
from ..adder import Adder
from ..client import Cluster, Shard, UnreachableError
from ..reading import (
    Completed,
    Extent,
    Listed,
    Mismatch,
    Stored,
    StoredRun,
    awaited_in,
    complete,
    count_runs,
    description_of,
    end_of,
    extent_of,
    extents_of,
    items_after,
    listed,
    lost_in,
    names_of,
    read_at_once,
)
from ..runpast import RunPast
from ..schema import DESCRIPTIONS, number_of_run, rank_shards
from .entry import Entry, fill, limit, said_of
from .ranks import SumOfRanks
from .sharing import Retention, SharedPage, SharedViews, dropped_days, pages_of, versions_of

logger = logging.getLogger("hookcore")

RECENT_S: Final = 120  # of signs and edits that are read again; servers' clocks may differ
LIST_S: Final = 60.0
MAX_LISTED: Final = 2000  # runs of a shard


REST: Final = 3.0  # times as long as ranks were added up, until that goes on

Summarize = Callable[[Run], dict[str, Any]]


# Follows the runs in memory: reads their new data from ClickHouse, in the order of their steps.

MAX_ITEMS: Final = 2000  # of all followed runs of a shard, in one look
WAITS: Final = 30  # looks for the names of taps, before their values are counted as lost
FULL: Final = 0.8  # of the memory: beyond that, runs are loaded only when a user opens them


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


LOOK_S: Final = 1.0
ADD_S: Final = 5.0  # between two looks for steps to add up, if there were none
UNLIST_LOOKS: Final = 60  # between two looks for runs that were dropped


class SharedRuns:
    """Manages the runs of a cluster, as a disk does for a server without ClickHouse."""

    def __init__(
        self, runs: Runs, cluster: Cluster, settings: ServerSettings, summarize: Summarize = lambda run: {}
    ) -> None:
        self._runs, self.cluster, self._settings = runs, cluster, settings
        self._entries: dict[str, Entry] = {}  # by run
        self._pages: dict[int, SharedPage] = {}  # edits of runs that aren't listed yet, by number
        self._troubles: dict[int, str] = {}  # by shard
        self._unlisted: dict[int, int] = {}  # runs that were too many to list, by shard
        self.listed = threading.Event()
        views = [
            SharedViews(runs.views, cluster.shards[0], "views"),
            SharedViews(runs.board, cluster.shards[0], "board"),
        ]
        self._views = {view.number: view for view in views}
        self._lock = threading.Lock()
        self._summarize = summarize
        self._sums: dict[str, SumOfRanks] = {}  # that are being read
        self.adders: dict[str, tuple[Store, Adder]] = {}  # of runs of all ranks, as long as they have this store
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        runs.disk = self

    # -- the threads ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """List the runs, and follow them. Raises HookcoreError if this server can't use the database."""
        for shard in self.cluster.shards:
            try:
                self.look(shard)
            except UnreachableError as error:  # it may come back
                self._note(shard, error)
        self.listed.set()
        retention = Retention(self._settings.retain)
        for shard in self.cluster.shards:
            self._begin(f"hookcore-shard-{shard.number}", partial(self._follow, shard, retention))
        self._begin("hookcore-sums", self._add_up)

    def _begin(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self, wait_s: float = 2.0) -> None:
        """Stop following."""
        self._stopping.set()
        deadline = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.cluster.close()

    def _follow(self, shard: Shard, retention: Retention) -> None:
        looks = 0
        while not self._stopping.wait(LOOK_S):
            try:
                self.look(shard)
                self.advance(shard)
                looks += 1
                if retention.keep(shard) or looks % UNLIST_LOOKS == 0:
                    self._unlist_dropped(shard)
            except Exception as error:  # also our own bug must not end the thread silently
                self._note(shard, error)
            else:
                self._note(shard, None)

    def _add_up(self) -> None:
        """Store sums over the steps of the trainings in memory, of each a part in turn."""
        is_done = True
        while not self._stopping.wait(ADD_S if is_done else 0.0):
            is_done = not any([self._advance(adder) for adder in list(self.adders)])

    def _advance(self, run_id: str) -> bool:
        """Store sums of some steps of a training; return whether there may be more."""
        run, (store, adder) = self._runs.get(run_id), self.adders[run_id]
        if run is None or run.store is not store:
            self.adders.pop(run_id, None)
            return False
        try:
            return run.loaded and adder.advance()
        except HookcoreError as error:  # the thread of its shard says so, too
            logger.debug("hookcore: sums of ranks can't be stored: %s", error)
        except Exception:  # also our own bug must not end the thread silently
            logger.exception("hookcore: sums of the ranks of %s can't be stored", run_id)
            self.adders.pop(run_id, None)
        return False

    # -- leaving memory ---------------------------------------------------------------------------------------------

    def is_whole(self, run: Run) -> bool:
        """Return whether a run can leave memory: it is all in ClickHouse, and no more data is expected."""
        return run.id in self._entries and run.finished

    def is_saving(self, run: Run) -> bool:
        """Return False: nothing is written here."""
        return False

    def release(self, run: Run) -> None:
        """Do nothing: nothing is written here."""

    def discard(self, run: Run, why: Why) -> None:
        """Remove a run from the lists of all servers. Its data stays until its time is over."""
        self._mark(run, why == "deleted")

    def restore(self, run: Run) -> None:
        """Put a run back into the lists of all servers."""
        self._mark(run, False)

    def _mark(self, run: Run, removed: bool) -> None:
        entry = self._entries.get(run.id)
        if entry is not None and entry.removed != removed:
            entry.removed = removed
            entry.write_page()

    # Keeps the list of a server in sync with the cluster

    @property
    def partial(self) -> str:
        """Why runs may be missing, or may be older than they look."""
        away = [
            f"Runs of {self.cluster.shards[number].name} may be missing or out of date: {text}"
            for number, text in sorted(self._troubles.items())
            if text
        ]
        more = sum(self._unlisted.values())
        if more:
            away.append(f"{more:,} older runs aren't listed; their links work")
        return ". ".join(away)

    def look(self, shard: Shard) -> None:
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
        for number in rank_shards(run_id, len(self.cluster.shards)):
            shard = self.cluster.shards[number]
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
        self.listed.wait(LIST_S)

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

    # Reads runs when a user opens them or there is room

    def load(self, run: Run) -> None:
        """Read a run into memory. Raises HookcoreError if its shard can't be asked."""
        if run.ranks is not None:
            for rank in run.ranks.runs():
                if not rank.loaded and not rank.finished:
                    self.load(rank)  # what follows comes to all ranks from here
            run.ranks.read_all()
        elif (entry := self._entries.get(run.id)) is not None:
            with entry.lock:
                if not run.loaded:
                    self._load(entry)

    def _load(self, entry: Entry) -> None:
        run, shard = entry.run, entry.shard
        extent = extent_of(shard, entry.number)
        store = follow(Store(self._runs.store_bytes(run.info.memory)), run.edits.rule_changes, run.info.rank)
        stored = StoredRun(shard, entry.number, extent.last, lost_until=entry.lost_until)
        beginning = fill(store, RunPast(shard, run.id, store.steps), stored, extent.rows)
        store.choose(run.rules)  # also those that were changed after the last step
        end = end_of(shard, entry.number, stored.last)  # a later one comes with the items that follow
        if end is not None:
            store.settle()
            if end.failure is not None:
                store.add_event(event_of(end.failure))
        for sentence in stored.damages:
            store.add_event(Event(store.steps().newest or 0, time.time(), "damaged", sentence, "warning"))
        entry.described = -1 if stored.description is None else stored.description.version
        if not entry.is_new:
            run.saved.remember(store)
        run.fill(
            store,
            stored.last,
            run.end if end is None else End(end.step, end.failure),
            beginning=beginning,
            behind="" if stored.waits is None else awaited_in(stored.waits),
        )
        self._catch_up(entry, stored)
        if end is not None:
            self._summarize_once(entry)

    @staticmethod
    def _catch_up(entry: Entry, stored: StoredRun) -> None:
        """Pass frames to the sum of all ranks that it lacks, because they came while the rank wasn't in memory."""
        joint, after = joint_in(entry.run), entry.summed
        entry.summed = max(after, stored.last)
        if joint is not None and joint.run.loaded and stored.last > after:
            first = max(after + 1, stored.first)
            newer = StoredRun(stored.shard, stored.run, stored.last, first, lost_until=stored.last)
            records: chain[Frame | Snapshot] = chain(newer.frames(), newer.snapshots(after + 1))
            joint.catch_up(entry.run, stored.count_frames(after + 1, first), records)

    def recorded(self, runs: Sequence[Run]) -> Mapping[str, Recorded | HookcoreError]:
        """Return the ranks of a training as far as their own runs have followed them."""
        entries = {run.id: entry for run in runs if (entry := self._entries.get(run.id)) is not None}  # others are gone
        found: dict[str, StoredRun] = {}
        attempts: dict[int, list[tuple[StoredRun, Extent]]] = {}
        joint = joint_in(runs[0])
        members = {} if joint is None else joint.rounds.members
        for shard in self.cluster.shards:
            here = [entry for entry in entries.values() if entry.shard is shard]
            extents = extents_of(shard, [entry.number for entry in here])
            for entry in here:
                run, extent = entry.run, extents.get(entry.number, Extent())
                last = run.received.acknowledged if run.loaded else extent.last
                # Nobody waits for what isn't here completely: it has been taken, or isn't followed.
                found[run.id] = stored = StoredRun(shard, entry.number, last, lost_until=last)
                entry.summed = max(entry.summed, last)
                if (member := members.get(run.id)) is not None and member.round >= 0:
                    attempts.setdefault(member.round, []).append((stored, extent))
        if joint is not None:
            begin = limit([attempts[attempt] for attempt in sorted(attempts)])
            joint.run.received.beginning = "" if begin is None else said_of(begin)
            self._sums[joint.run.id] = SumOfRanks(joint, self._shard_of, found, begin)
        return found

    def _shard_of(self, run_id: str) -> Shard | None:
        entry = self._entries.get(run_id)
        return None if entry is None else entry.shard

    def recall(self, run: Run) -> None:
        """Give the run of all ranks the steps that only ClickHouse has."""
        if (sum_ := self._sums.pop(run.id, None)) is not None:
            self.adders[run.id] = run.store, sum_.recall(self._rest)

    def _rest(self, seconds: float) -> None:
        """Leave the processor to others for a while, after something that took so long."""
        self._stopping.wait(REST * seconds)

    def _summarize_once(self, entry: Entry) -> None:
        """Save what the list shows of a run, for the time when it isn't in memory."""
        if entry.summarized or entry.run.received.beginning:
            return
        entry.summarized = True
        entry.run.saved.summary = steps_of(entry.run) | self._summarize(entry.run)
        entry.write_page()

    # Reads new data, and loads more live runs into memory if there is room

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
        elif (joint := joint_in(run)) is not None:
            joint.sum.do_without(run, full)

    def _why_full(self) -> str | None:
        """Return why no run is loaded into memory before a user opens it; None if there is room."""
        loaded = sum(each.loaded and each.joint is None for each in self._runs.every())
        used, most = self._runs.used_bytes, self._settings.memory
        if loaded >= self._settings.max_runs:
            return f"there are {loaded:,} runs, the maximum of --max-runs"
        if used >= FULL * most:
            return f"runs take {size(used)}, more than {FULL:.0%} of --memory ({size(most)})"
        return None

    def _gather(self, run: Run) -> None:
        """Take the live ranks of a training into memory before the sum is read, so that what follows comes to all."""
        if run.training is None or run.training.run.loaded:
            return
        for rank in run.training.runs():
            if not rank.loaded and not rank.finished and not self._why_full():
                try:
                    self._runs.read(rank)
                except HookcoreError as error:  # the thread of its shard says so, too
                    logger.debug("hookcore: a rank can't be read yet: %s", error)

    def _describe(self, shard: Shard, followed: Mapping[int, Entry]) -> None:
        for number, version in versions_of(shard, DESCRIPTIONS, followed).items():
            entry = followed[number]
            if version > entry.described and (said := description_of(shard, number, entry.described)) is not None:
                entry.described = said.version
                entry.run.store.describe(said.modules, said.coverage, said.hooks)
                if entry.run.training is not None:
                    entry.run.training.describe_of(entry.run, said)

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

"""Runs of a ClickHouse that are read into a server's memory, and the sums of their ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from hookcore.delivery.archive import Recorded
from hookcore.delivery.failures import event_of
from hookcore.errors import HookcoreError
from hookcore.findings import follow
from hookcore.records import Event, Frame, Snapshot
from hookcore.store import Store

from ...runs.joint import JointRun
from ...runs.parts import End
from ...runs.run import Run
from ...runs.runs import Runs
from ...runs.saved import steps_of
from ...settings import ServerSettings
from ..adder import Adder
from ..client import Cluster, Shard
from ..reading import end_of
from ..record import Extent, StoredRun, awaited_in, extent_of, extents_of
from ..runpast import RunPast
from .entry import Entry
from .listing import Listing
from .opening import fill, limit, said_of
from .ranks import SumOfRanks

REST: Final = 3.0  # times as long as ranks were added up, until that goes on

Summarize = Callable[[Run], dict[str, Any]]


class Loading(Listing):
    """Reads runs when a user opens them or there is room."""

    def __init__(
        self, runs: Runs, cluster: Cluster, settings: ServerSettings, summarize: Summarize = lambda run: {}
    ) -> None:
        super().__init__(runs, cluster, settings)
        self._summarize = summarize
        self._sums: dict[str, SumOfRanks] = {}  # that are being read
        self._adders: dict[str, tuple[Store, Adder]] = {}  # of runs of all ranks, as long as they have this store
        self._stopping = threading.Event()

    def load(self, run: Run) -> None:
        """Read a run into memory. Raises HookcoreError if its shard can't be asked."""
        if isinstance(run, JointRun):
            for member in list(run.members.values()):
                if not member.run.loaded and not member.run.finished:
                    self.load(member.run)  # what follows comes to all ranks from here
            run.read_all()
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
        joint, after = entry.run.joint, entry.summed
        entry.summed = max(after, stored.last)
        if isinstance(joint, JointRun) and joint.loaded and stored.last > after:
            first = max(after + 1, stored.first)
            newer = StoredRun(stored.shard, stored.run, stored.last, first, lost_until=stored.last)
            records: chain[Frame | Snapshot] = chain(newer.frames(), newer.snapshots(after + 1))
            joint.catch_up(entry.run, stored.count_frames(after + 1, first), records)

    def recorded(self, runs: Sequence[Run]) -> Mapping[str, Recorded | HookcoreError]:
        """Return the ranks of a training as far as their own runs have followed them."""
        entries = {run.id: entry for run in runs if (entry := self._entries.get(run.id)) is not None}  # others are gone
        found: dict[str, StoredRun] = {}
        attempts: dict[int, list[tuple[StoredRun, Extent]]] = {}
        joint = runs[0].joint
        members = joint.members if isinstance(joint, JointRun) else {}
        for shard in self._cluster.shards:
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
        if isinstance(joint, JointRun):
            begin = limit([attempts[each] for each in sorted(attempts)])
            joint.received.beginning = "" if begin is None else said_of(begin)
            self._sums[joint.id] = SumOfRanks(joint, self._shard_of, found, begin)
        return found

    def _shard_of(self, run_id: str) -> Shard | None:
        entry = self._entries.get(run_id)
        return None if entry is None else entry.shard

    def recall(self, run: Run) -> None:
        """Give the run of all ranks the steps that only ClickHouse has."""
        if (sum_ := self._sums.pop(run.id, None)) is not None:
            self._adders[run.id] = run.store, sum_.recall(self._rest)

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

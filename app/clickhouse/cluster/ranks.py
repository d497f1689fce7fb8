"""The run of all ranks over ClickHouse: its past, and where it begins if it is opened late."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from hookcore.records import Event, Tap
from hookcore.store import StepRange

from ...runs.joint import Joint
from ...runs.ranks import events_of
from ...runs.rounds import Member
from ...runs.run import Run
from ..adder import Adder
from ..attempts import Attempt, RankRun
from ..client import Shard
from ..rankspast import RanksPast
from ..reading import StoredRun, names_of
from ..runpast import FRESH_S
from ..schema import day_of, number_of_run

LOST_S: Final = 3600.0  # of silence, after which nothing more is expected of a lost rank


@dataclass(frozen=True, slots=True, eq=False)
class SumOfRanks:
    """The sum of all ranks while it is read: from the beginning, or from a step on."""

    joint: Joint
    shard_of: Callable[[str], Shard | None]  # by run
    stored: Mapping[str, StoredRun]
    begin: int | None
    _names: dict[str, dict[Tap, int]] = field(default_factory=dict)  # of taps, by run
    _named_at: dict[str, float] = field(default_factory=dict)  # when ClickHouse was asked for them

    def recall(self, rest: Callable[[float], object]) -> Adder:
        """Give the store its past. If it begins late, give it what is known of the steps before.

        Return what adds up the steps that the ranks store.
        """
        joint = self.joint
        store, assembly = joint.run.store, joint.sum.assembly
        past = RanksPast(self.attempts, lambda: store.taps().taps, assembly.leaves_out)
        if self.begin is not None:
            self._begin_after(past, self.begin)
        store.recall_from(past)
        return Adder(self.attempts, past, rest)

    def _begin_after(self, past: RanksPast, begin: int) -> None:
        store = self.joint.run.store
        store.announce(self.joint.sum.assembly.number_taps())
        steps, captured = past.frames((None, begin - 1))
        if len(steps):
            first, last = int(steps[0]), int(steps[-1])
            scalars = dict.fromkeys(name for stored in self.stored.values() for name in stored.scalars())
            latest = past.latest(len(store.taps().taps), (first, last))
            store.begin_after(StepRange(first, last, len(steps), len(steps)), len(captured), [*scalars], latest)
        for event in self._earlier_events():
            store.add_event(event)

    def _earlier_events(self) -> Iterator[Event]:
        """Yield the events of all ranks before what is read of them, each once, as they were in memory."""
        world = self.joint.rounds.world
        said: defaultdict[int, list[tuple[int, Event]]] = defaultdict(list)
        for member, shift in self._members():
            if (stored := self.stored.get(member.run.id)) is not None:
                for event in stored.earlier_events():
                    said[event.step + shift].append((member.place.rank, event.moved(shift)))
        for step in sorted(said):
            yield from events_of(sorted(said[step], key=lambda each: each[0]), world)

    def _members(self) -> Iterator[tuple[Member, int]]:
        shifts = dict(self.joint.sum.shifts)
        for member in list(self.joint.rounds.members.values()):
            if member.round in shifts:
                yield member, shifts[member.round]

    def attempts(self) -> Sequence[Attempt]:
        """Return the attempts as they are now."""
        found: defaultdict[int, list[Member]] = defaultdict(list)
        shifts: dict[int, int] = {}
        for member, shift in self._members():
            found[member.round].append(member)
            shifts[member.round] = shift
        rounds = sorted(found)
        # One that had no step when the next one began has none here.
        ends = [*(shifts[each] for each in rounds[1:]), None]
        return [
            Attempt(shifts[each], end, max(member.place.world for member in found[each]), [*self._ranks(found[each])])
            for each, end in zip(rounds, ends, strict=True)
        ]

    def _ranks(self, members: Sequence[Member]) -> Iterator[RankRun]:
        for member in sorted(members, key=lambda each: each.place.rank):
            run, shard = member.run, self.shard_of(member.run.id)
            if shard is not None:
                taps, day = partial(self._taps_of, run, shard), day_of(run.info.started_s)
                # A lost rank may be on a node that can't be reached now, whose collector keeps its data.
                is_settled = run.finished and (run.state != "lost" or run.is_silent(LOST_S))
                about = run.finished, run.trained or 0, day, is_settled
                yield RankRun(shard, run.id, member.place.rank, taps, *about)

    def _taps_of(self, run: Run, shard: Shard) -> Mapping[Tap, int]:
        """Return the taps of a rank, with their numbers."""
        known = self._names.get(run.id, {})
        if run.loaded:
            taps = run.store.taps().taps if len(known) < run.store.taps_known else ()
        else:
            taps = () if known and run.finished else self._named(run, shard)
        if len(taps) > len(known):
            known = self._names[run.id] = {tap: number for number, tap in enumerate(taps)}
        return known

    def _named(self, run: Run, shard: Shard) -> tuple[Tap, ...]:
        """Return the taps that ClickHouse has of a run; none if it was asked just now."""
        if time.monotonic() - self._named_at.get(run.id, float("-inf")) <= FRESH_S:
            return ()
        taps = names_of(shard, number_of_run(run.id))[0]
        self._named_at[run.id] = time.monotonic()
        return taps

"""The sum of all ranks: it reads what they send, assembles each step, and writes it into the run of all ranks."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

from hookcore.delivery.archive import Recorded, Unheard
from hookcore.findings.times import late_rank
from hookcore.records import Frame, SketchBlock, Snapshot, adds_up
from hookcore.records.vocabulary import DESYNC, GRADIENT_WAIT, LATE_RANK, NONFINITE_STEP, REDUCTION_WAIT
from hookcore.records.wire import DeliveryCounters
from hookcore.store import RankStore, Store
from hookcore.store.rankstep import Difference

from .assembly import GRACE_S, Assembly
from .parts import End, Record
from .ranks import Structures, desync_of, of_rank, words_of
from .rounds import WAITING, Held, Member, Rounds
from .run import Run, emit_event

logger = logging.getLogger("hookcore")

COUNT_EVERY_S: Final = 1.0  # between two sums of the ranks' counters
REST_S: Final = 20.0  # in which the last steps of an attempt may come after the first ones of the next
NO_ROUND: Final = -1
LATE_EVERY: Final = 64  # steps between two looks for a rank that is late
_WAITS: Final = frozenset((REDUCTION_WAIT, GRADIENT_WAIT))
_WAITS_BYTES: Final = 1 << 21  # enough for exact values of the newest 64 steps
_SHARE: Final = 4  # the steps that wait for ranks may take a quarter of the store's size


@dataclass(slots=True, eq=False)
class Sum:
    """The sum of all ranks. It gets their records in any order of ranks, and writes ordinary frames.

    Whoever calls it holds the lock of the run of all ranks, except for `tick` and `do_without`, and readers of what is
    replaced and never changed.
    """

    run: Run  # of all ranks
    rounds: Rounds
    assembly: Assembly = field(init=False)
    shifts: dict[int, int] = field(default_factory=dict)  # of the steps of each round; replaced, never changed
    unread: set[str] = field(default_factory=set)  # runs of ranks that are saved, and can't be read
    reading: bool = False  # saved runs are being added up, in their order
    follows: bool = False  # frames of trainers were taken, besides what is on disk
    _round: int = NO_ROUND  # the one whose steps are added up
    _structures: Structures = field(default_factory=Structures)
    joined: dict[str, int] = field(default_factory=dict)  # ranks of the runs that the assembly expects; replaced, too
    _held: dict[str, Held] = field(default_factory=dict)  # by run: what ranks sent that were started again
    _counted_at: float = float("-inf")
    _saved: tuple[RankStore, ...] = ()  # how long saved ranks waited, while their steps are added up

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin with the first step, in a store that is empty."""
        store, clock = self.run.store, self.run.signs.clock
        self.assembly = Assembly(self._write, max(store.usage().max_bytes // _SHARE, 2**22), clock)
        store.name_ranks(self._words_of_bad, self._rank_stores)
        self.shifts, self._round, self.joined, self._held = {}, NO_ROUND, {}, {}
        self.follows = False

    @property
    def shift(self) -> int:
        """By how much the steps of the current round are shifted here."""
        return self.shifts.get(self._round, 0)

    def report_bug(self) -> None:
        """Log an exception, and say on the pages that something is missing."""
        logger.exception("hookcore: a frame can't be added to the run of all ranks, %s", self.run.id)
        self.assembly.absences.report("not-added", -1, "frames of a rank can't be added up: the server's log says why")

    def tick(self) -> None:
        """Look for ranks that went silent or ended, so that the others needn't wait for them. Called now and then."""
        if not self.run.loaded or not self.run.lock.acquire(blocking=False):
            return
        try:
            self._let_go()
            self._give_up()
            self.assembly.advance()
            self._end()
            self.emit_reports()
        finally:
            self.run.lock.release()
        self.run.changes.tell()

    def do_without(self, run: Run, why: str) -> None:
        """Don't wait for a live rank whose own run isn't in memory, so that its frames don't come here."""
        if not self.run.loaded or not self.run.lock.acquire(blocking=False):
            return  # it is asked for again
        try:
            member = self.rounds.members.get(run.id)
            rank = None if member is None else self.rank_in_round(member)
            if rank is not None and self.assembly.do_without(rank):
                first = self.assembly.ranks[rank].newest + 1
                message = (
                    f"rank {rank} isn't in this server's memory, because {why}: the sum of all ranks doesn't include "
                    f"it from step {first:,} on. The rank's own run has these steps; open it to load it into memory"
                )
                self.assembly.absences.report("rank-not-in-memory", rank, message)
                self.emit_reports()
        finally:
            self.run.lock.release()

    def resume(self) -> None:
        """Go on with what trainers send, after what was saved of the ranks has been read."""
        self.assembly.be_patient()
        self._let_go()
        self._end()
        self.emit_reports()

    def _let_go(self) -> None:
        """Don't wait for ranks that have ended, or are gone."""
        for run_id, rank in list(self.joined.items()):
            member = self.rounds.members.get(run_id)
            if member is None:
                self.assembly.leave(rank, is_gone=True)
            elif member.round == self._round and self._is_over(member.run):
                self._leave(rank, member.run)

    def _leave(self, rank: int, run: Run) -> None:
        """Expect no more frames of a rank that has ended, or is gone."""
        is_through = run.end.is_known and run.end.failure is None
        self.assembly.leave(rank, 0 if run.trained is None else run.trained + self.shift, not is_through)

    def _is_over(self, run: Run) -> bool:
        """Return whether no more frames are expected. After a restart of the server, trainers may return."""
        return run.end.is_known or (run.finished and not (run.saved.from_disk and self.assembly.is_patient))

    def take(self, run: Run, record: Record) -> None:
        """Take a record of a rank."""
        member = self.rounds.members.get(run.id)
        if member is None:
            return
        self.run.signs.see()
        self.follows |= isinstance(record, Frame)
        rank = self.rank_in_round(member, record.step)
        if rank is None:
            if isinstance(record, Frame):
                self._leave_out(member, record)
        elif isinstance(record, Frame):
            if not self.assembly.ranks[rank].open:
                self.assembly.return_(rank, record.step + self.shift)
            self.assembly.take(rank, shifted(record, self.shift))
        elif isinstance(record, Snapshot):
            if rank == min(self.assembly.ranks) or adds_up(record.tap):
                self.run.store.add_snapshot(replace(record, step=record.step + self.shift))
        else:
            self._leave(rank, run)
            self._end()
        self.emit_reports()
        if self.run.signs.clock() - self._counted_at >= COUNT_EVERY_S:
            self._count()

    def _leave_out(self, member: Member, frame: Frame) -> None:
        """Hold a frame of a rank that was started again, as most others may follow; leave out any other."""
        if member.round != WAITING and member.round <= self._round:
            self.report_left_out(member)
            return
        self._held.setdefault(member.run.id, Held(self.run.signs.clock())).take(frame)
        self._give_up()

    def _must_wait(self, member: Member) -> bool:
        """Return whether a rank begins a round while steps of the one before are still on their way."""
        if NO_ROUND < self._round < member.round and not self.reading:
            held = self._held.get(member.run.id)
            if held is None or self.run.signs.clock() - held.since <= REST_S:
                runs = (other.run for other in self.rounds.members_in(self._round))
                return any(run.loaded and run.received.sent > run.received.acknowledged for run in runs)
        return False

    def _give_up(self) -> None:
        """Leave out ranks that were started again, and that most others didn't follow in time."""
        held = {run_id: member for run_id in self._held if (member := self.rounds.members.get(run_id)) is not None}
        newest = max(held.values(), key=lambda member: member.round, default=None)
        is_much = sum(waiting.nbytes for waiting in self._held.values()) > self.assembly.max_bytes
        if newest is not None and newest.round > self._round and (is_much or not self._must_wait(newest)):
            self._begin_round(newest.round)
        is_much = sum(waiting.nbytes for waiting in self._held.values()) > self.assembly.max_bytes
        for run_id, waiting in self._held.items():
            waits = run_id in held and held[run_id].round > self._round
            if not waiting.given_up and not waits and (is_much or self.run.signs.clock() - waiting.since > GRACE_S):
                waiting.give_up()
                if run_id in held:
                    self.report_left_out(held[run_id])

    def report_left_out(self, member: Member) -> None:
        """Say of a rank that the sum doesn't include its steps."""
        rank, without = member.place.rank, "the sum of all ranks doesn't include its steps. The rank's own run has them"
        if member.round != WAITING:
            name, why = "rank-of-before", f"rank {rank} of an earlier attempt sent frames"
        else:
            name, why = "rank-alone", f"rank {rank} was restarted and counts from 0, but most other ranks were not"
        self.assembly.absences.report(name, rank, f"{why}: {without}")

    def rank_in_round(self, member: Member, step: int | None = None) -> int | None:
        """Return the member's rank if it belongs to the current round, which it may begin, with a step of its own."""
        if member.round < max(self._round, 0) or self._must_wait(member):
            return None
        if member.round > self._round:
            self._begin_round(member.round)
        if member.run.id not in self.joined:
            self._join(member, step)
        return member.place.rank

    def _begin_round(self, number: int) -> None:
        self.assembly.begin_round()
        self.shifts = {**self.shifts, number: self.assembly.newest + 1}
        if self._round != NO_ROUND:
            message = (
                f"the training was restarted (attempt {number + 1}): its steps continue from "
                f"{self.shifts[number]:,} here, but count from 0 in the ranks' own runs"
            )
            emit_event(self.run, "restarted", message)
        self._round, self.joined = number, {}
        self.run.end = End()
        for member in self.rounds.members_in(number):
            held = self._held.pop(member.run.id, None)
            for frame in () if held is None else held.frames:
                if member.run.id not in self.joined:
                    self._join(member, frame.step)
                self.assembly.take(member.place.rank, shifted(frame, self.shift))

    def _join(self, member: Member, step: int | None) -> None:
        """Expect frames of a rank from a step on. If it has earlier ones, the sum is without them."""
        run, rank = member.run, member.place.rank
        first = run.store.steps().first
        is_late = step is not None and first is not None and first < step
        begins = step + self.shift if step is not None and (is_late or run.id in self.unread) else 0
        self.joined = {**self.joined, run.id: rank}
        self.assembly.join(rank, member.place.world, lambda: run.store.taps().taps, begins)
        if is_late:
            message = (
                f"rank {rank} has steps from {first:,} on, but the sum of all ranks includes only those from {step:,} "
                "on, because the server learned too late that they belong together. The rank's own run has them"
            )
            self.assembly.absences.report("rank-joined-late", rank, message)

    def _write(self, frame: Frame, differences: Sequence[Difference] | None) -> None:
        if frame.new_taps:
            self.run.store.announce(frame.new_taps)
            frame = replace(frame, new_taps=())
        if differences is not None:
            self._follow_desync(frame.step, differences)
        if self.assembly.steps % LATE_EVERY == 0:
            self._follow_lateness(frame.step)
        self.run.keep(frame)

    def _follow_desync(self, step: int, differences: Sequence[Difference]) -> None:
        follower, taps = self.run.store.follower, self.run.store.taps().taps
        is_on = self.run.store.rules.get(DESYNC) is not False
        shown = [difference for difference in differences if difference.lane < len(taps) and is_on]
        if follower is not None:
            follower.hold(DESYNC, desync_of(step, shown, taps) if shown else None)

    def _follow_lateness(self, step: int) -> None:
        """Look whether one of the ranks keeps the others waiting."""
        follower, is_on = self.run.store.follower, self.run.store.rules.get(LATE_RANK) is not False
        if follower is not None:
            follower.hold(LATE_RANK, late_rank(self.run.store, self._rank_stores(), step) if is_on else None)

    def _rank_stores(self) -> list[RankStore]:
        """Return the stores of the current round's ranks that are in memory. Any thread may ask."""
        return list(self._saved) or [
            RankStore(member.place.rank, member.run.store, self.shift)
            for member in self.rounds.current()
            if member.run.loaded and member.run.id in self.joined
        ]

    def _words_of_bad(self, number: int, step: int) -> str:
        ranks = self.assembly.bad_ranks(number, step)
        world = max(self.assembly.world, len(self.assembly.ranks))
        if not ranks:
            return ""
        words = words_of(ranks, world)
        return f"It was in {words}." if len(ranks) == world else f"It was in {words} of {world:,}."

    def describe(self, run: Run, modules: Any, coverage: Any, hooks: Any) -> None:
        """Take the description of a rank's model."""
        if (member := self.rounds.members.get(run.id)) is not None:
            self._structures.describe(member.place.rank, modules)
            self.assembly.part(self._structures.parted)
        is_lead = any(first.run is run for first in self.rounds.current()[:1])  # none if all ranks were just removed
        described = {} if is_lead else self.run.store.module_types()
        self.run.store.describe(
            [module for module in modules if module.path not in described],
            self._structures.cover([covered for covered in coverage if covered.path not in described]),
            hooks if is_lead else (),
        )

    def _end(self) -> None:
        current = [member for member in self.rounds.current() if member.run.id in self.joined]
        if self.run.end.failure is None:
            failed = ((member.run.end.failure, member.place.rank) for member in current)
            failure, rank = next((pair for pair in failed if pair[0] is not None), (None, 0))
            if failure is not None:
                failure = replace(failure, step=failure.step + self.shift, error=f"rank {rank}: {failure.error}")
                self.run.end = replace(self.run.end, failure=failure)
        silent = any(
            member.run.id not in self.joined and not self._is_over(member.run) for member in self.rounds.current()
        )
        if self.follows and (silent or self.rounds.missing()) and self.assembly.is_patient:
            return  # others may have trained, too, and be slower to arrive
        if current and all(self._is_over(member.run) for member in current) and self.run.end.step is None:
            self.assembly.flush()
            self.run.store.settle()
            steps = [member.run.end.step for member in current if member.run.end.step is not None]
            self.run.end = replace(self.run.end, step=max(steps) + self.shift if steps else None)
            self._count()

    def _count(self) -> None:
        self._counted_at = self.run.signs.clock()
        every = [member.run.received.counters for member in self.rounds.members.values()]
        dropped: dict[str, int] = {}
        for counters in every:
            for name, number in counters.dropped.items():
                dropped[name] = dropped.get(name, 0) + number
        names = ("produced", "acknowledged", "waiting", "in_flight")
        self.run.received.counters = DeliveryCounters(
            **{name: sum(getattr(counters, name) for counters in every) for name in names}, dropped=dropped
        )

    def emit_reports(self) -> None:
        """Add events about what the sum lacks."""
        for name, message in self.assembly.absences.trouble:
            emit_event(self.run, name, message, "warning")
        self.assembly.absences.trouble.clear()

    # -- what is saved of the ranks -----------------------------------------------------------------------------------

    def expect(self, members: Sequence[tuple[Member, Recorded]]) -> None:
        """Begin a round with ranks that are saved, with their taps and descriptions."""
        for member, archive in members:
            self.rank_in_round(member)
            taps = archive.taps()
            self.assembly.ranks[member.place.rank].taps = lambda taps=taps: taps  # type: ignore[misc]
            self.describe(member.run, archive.modules(), archive.coverage(), archive.hooks())

    def read(self, members: Sequence[tuple[Member, Recorded]]) -> None:
        """Take what is saved of the ranks of a round, in the order of their steps."""
        streams = [_frames_of(member, archive, place) for place, (member, archive) in enumerate(members)]
        unheard = Unheard(event for _, archive in members for event in archive.events() if event.name == NONFINITE_STEP)
        self._saved = tuple(RankStore(member.place.rank, Store(_WAITS_BYTES), self.shift) for member, _ in members)
        for _, place, _, member, frame in heapq.merge(*streams):
            unheard.tell(self.run.store, frame, self.shift)
            if not _WAITS.isdisjoint(frame.scalars):
                self._saved[place].store.append(_waits_in(frame))
            self.assembly.take(member.place.rank, shifted(frame, self.shift))
        self._saved = ()
        unheard.tell(self.run.store, shift=self.shift)
        # Steps that still wait need the names, which the run of a rank that isn't in memory doesn't have.
        self.run.store.announce(self.assembly.number_taps())
        for member, archive in members:
            rank = self.assembly.ranks[member.place.rank]
            rank.taps = lambda run=member.run: run.store.taps().taps  # type: ignore[misc]
            self._read_events(member, archive)

    def _read_events(self, member: Member, archive: Recorded) -> None:
        for event in archive.events():
            keep = self.run.store.keep_event if event.name == NONFINITE_STEP else self.run.store.add_event
            keep(of_rank(event.moved(self.shift), member.place.rank))
        is_lead = member.place.rank == min(self.assembly.ranks)
        for snapshot in archive.snapshots():
            if is_lead or adds_up(snapshot.tap):
                self.run.store.add_snapshot(replace(snapshot, step=snapshot.step + self.shift))
        if archive.damages:
            emit_event(self.run, "damaged", f"rank {member.place.rank}: {archive.damages[0]}", "warning")


def _waits_in(frame: Frame) -> Frame:
    """Return a frame without its tensors."""
    nothing = frame.taps[:0], frame.stats[:0], SketchBlock.empty(0)
    scalars = {name: frame.scalars[name] for name in _WAITS & frame.scalars.keys()}
    return Frame(frame.step, frame.time_s, *nothing, scalars=scalars, elapsed_s=frame.elapsed_s)


def shifted(frame: Frame, steps: int) -> Frame:
    """Return a frame that is moved by some steps."""
    if not steps:
        return frame
    flow = None if frame.flow is None else replace(frame.flow, step=frame.flow.step + steps)
    events = tuple(event.moved(steps) for event in frame.events)
    return replace(frame, step=frame.step + steps, flow=flow, events=events)


def _frames_of(member: Member, archive: Recorded, place: int) -> Iterator[tuple[int, int, int, Member, Frame]]:
    labels = archive.labels
    for number, frame in zip(count(), archive.frames(), strict=False):
        yield frame.step, place, number, member, replace(frame, labels=labels) if number == 0 and labels else frame

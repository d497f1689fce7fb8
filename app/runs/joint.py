"""All ranks of a distributed training as one run, with the values that one process with all data would have had."""

from __future__ import annotations

import heapq
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from hookcore.delivery.archive import SUFFIX, Recorded, folder_name
from hookcore.errors import HookcoreError
from hookcore.findings import follow
from hookcore.reading.answers.runs import State
from hookcore.records import Command, Frame, Snapshot
from hookcore.records.vocabulary import DESYNC
from hookcore.records.wire import DeliveryCounters, Description, Place
from hookcore.store import StepRange, Store
from hookcore.store.copies import Difference
from hookcore.store.rankstep import MAX_WORLD

from .assembly import GRACE_S, Assembly
from .commands import Ask
from .disk import Disk
from .gone import Gone
from .parts import End, Record
from .rankwords import desync_of, of_rank, words_of
from .rounds import WAITING, Held, Member, Rounds
from .run import Run, emit_event, follow_rules
from .structures import Structures

logger = logging.getLogger("hookcore")

PREFIX: Final = "ranks-"  # of the id, before the job
COUNT_EVERY_S: Final = 1.0  # between two sums of the ranks' counters
REST_S: Final = 20.0  # in which the last steps of an attempt may come after the first ones of the next
READ_AGAIN_S: Final = 10.0  # after the ranks couldn't be read
_OF_RANK: Final = re.compile(r" rank \d+$")
NO_ROUND: Final = -1
_SHARE: Final = 4  # the steps that wait for ranks may take a quarter of the store's size


def joint_id(place: Place | None) -> str | None:
    """Return the id of the run of all ranks; None for a process without others."""
    return None if place is None or not 2 <= place.world <= MAX_WORLD else PREFIX + place.job


def as_joint(gone: Gone) -> Gone:
    """Return the removal of a rank as that of the run of all ranks, and others as they are."""
    run_id = None if gone.run is None else joint_id(gone.run.info.place)
    return gone if run_id is None else replace(gone, id=run_id, name=_OF_RANK.sub("", gone.name))


@dataclass(slots=True)
class JointRun(Run):
    """The run of all ranks. Its members feed it; commands go to them."""

    rounds: Rounds = field(default_factory=Rounds)
    unread: set[str] = field(default_factory=set)  # runs of ranks that are saved, and can't be read
    assembly: Assembly = field(init=False)
    shifts: dict[int, int] = field(default_factory=dict)  # of the steps of each round
    _disk: Callable[[], Disk | None] = lambda: None  # where the runs of the ranks are saved
    _store_bytes: Callable[[int], int] = int  # the limit of a store
    _unlisted: Mapping[Path, str] = field(default_factory=dict)  # folders that couldn't be listed, and why
    _round: int = NO_ROUND  # the one whose steps are added up
    _structures: Structures = field(default_factory=Structures)
    _joined: dict[str, int] = field(default_factory=dict)  # ranks of the runs that the assembly expects
    _held: dict[str, Held] = field(default_factory=dict)  # by run: what ranks sent that were started again
    _follows: bool = False  # frames of trainers were taken, besides what is on disk
    _reading: bool = False
    _gathers_until: float = float("-inf")  # ranks that continue saved runs wait for each other
    _counted_at: float = float("-inf")
    _read_again_at: float = float("-inf")
    _shaping: threading.Lock = field(default_factory=threading.Lock)  # the order of the members, and the outline

    def __post_init__(self) -> None:
        Run.__post_init__(self)
        self._begin()

    def _begin(self) -> None:
        self.assembly = Assembly(self._store_step, max(self.store.usage().max_bytes // _SHARE, 2**22), self.signs.clock)
        self.store.name_ranks(self._words_of_bad)
        self.shifts, self._round, self._joined, self._held = {}, NO_ROUND, {}, {}
        self._follows = False

    def connect(
        self, disk: Callable[[], Disk | None], store_bytes: Callable[[int], int], unlisted: Mapping[Path, str]
    ) -> None:
        """Read the runs of the ranks from there when they are needed."""
        self._disk, self._store_bytes, self._unlisted = disk, store_bytes, unlisted

    @property
    def shift(self) -> int:
        """By how much the steps of the current round are shifted here."""
        return self.shifts.get(self._round, 0)

    # -- its members -------------------------------------------------------------------------------------------------

    @property
    def members(self) -> dict[str, Member]:
        """The runs of all ranks, by their ids."""
        return self.rounds.members

    @property
    def world(self) -> int:
        """The number of ranks, as the newest round says."""
        return max((each.place.world for each in self.current()), default=0)

    def current(self) -> list[Member]:
        """Return the run of each rank of the newest round, by rank."""
        return self.rounds.current()

    @property
    def lead(self) -> Run:
        """The run that speaks for all: that of the lowest rank, of those that are live if there are any."""
        current = self.current()
        return next((each.run for each in current if each.run.state == "live"), current[0].run)

    def missing(self) -> list[int]:
        """Return the ranks that were never seen in this round."""
        seen = {each.place.rank for each in self.current()}
        return [rank for rank in range(self.world) if rank not in seen]

    def admit(self, run: Run, place: Place) -> None:
        """Add a rank's run. One of a rank that has another run already is a restart (the list's lock must be held)."""
        if run.id in self.members:
            return
        with self._shaping:  # a thread that reads the ranks from disk fills the store, and goes by their order
            is_listed = not self.loaded and not self._reading
            (self.rounds.admit_unordered if is_listed else self.rounds.admit)(run, place)
            run.joint = self
            self._follow_lead()
            if is_listed:
                self._outline()

    def locate(self, run: Run, place: Place) -> None:
        """Note what else became known of a rank's place: its device, and its coordinates on a mesh."""
        member = self.members.get(run.id)
        if member is not None:
            member.place = place

    def dismiss(self, run: Run) -> None:
        """Forget a rank's run that was removed. What it added stays."""
        with self._shaping:
            self.rounds.dismiss(run)
        run.joint = None

    def _follow_lead(self) -> None:
        current = self.current()
        if not current:
            return
        lead = current[0].run
        started_s = min(each.run.info.started_s for each in current)
        own = {"id": self.info.id, "name": self.info.name, "key": "", "keep": "", "place": None}
        self.info = msgspec.structs.replace(lead.info, started_s=started_s, **own)
        if not self.edits.count:
            self.name, self.saved.summary = _OF_RANK.sub("", lead.name), lead.saved.summary
            self.edits.follow(lead.edits)

    def _outline(self) -> None:
        every = [each.run.store.steps() for each in self.members.values()]
        known = [steps for steps in every if steps.first is not None and steps.newest is not None]
        if known:
            first, newest = min(each.first or 0 for each in known), max(each.newest or 0 for each in known)
            self.store = Store.outline(StepRange(first, newest, max(each.count for each in known)))

    @property
    def state(self) -> State:
        """Live while some rank is; else how the first one that broke off ended."""
        states = {each.run.state for each in self.current()}
        order: tuple[State, ...] = ("live", "crashed", "interrupted", "lost", "ended")
        return next((state for state in order if state in states), "lost")

    @property
    def steps(self) -> int:
        """The number of steps that it trained; while it is on disk only, that of its longest rank."""
        steps: int = Run.steps.__get__(self)
        return steps if self.loaded else max((each.run.steps for each in self.current()), default=steps)

    # -- frames ------------------------------------------------------------------------------------------------------

    def take_of(self, run: Run, record: Record) -> None:
        """Take a record of a member, whose lock is held. Nothing that goes wrong here costs the member its data."""
        try:
            with self.lock:
                if self._is_read():
                    self._take(run, record)
        except Exception:
            self._tell_bug()
        self.changes.tell()

    def _is_read(self) -> bool:
        """Return whether the sum is in memory. If not, read the ranks, but not again at once if they can't be read."""
        if self.loaded:
            return True
        if self.signs.clock() < self._read_again_at:
            return False  # what is kept of the ranks has the frame when they are read
        try:
            self._read_all()
        except Exception as error:
            self._read_again_at = self.signs.clock() + READ_AGAIN_S
            is_ours = not isinstance(error, HookcoreError)
            why = f"trying again in {READ_AGAIN_S:g} s: {error}"
            logger.warning("hookcore: the run of all ranks, %s, can't be read, %s", self.id, why, exc_info=is_ours)
            return False
        return True

    def _tell_bug(self) -> None:
        logger.exception("hookcore: a frame can't be added to the run of all ranks, %s", self.id)
        self.assembly.tell("not-added", -1, "frames of some rank can't be added up: the server's log says why")

    def catch_up(self, run: Run, passed: int, records: Iterable[Frame | Snapshot]) -> None:
        """Take what a member's own run has read by itself, and count the frames that it has passed over.

        Those of steps that were added up without the rank come too late, like those of any rank that was away.
        """
        with self.lock:
            member = self.members.get(run.id)
            if not self.loaded or member is None:
                return  # they are read with all the rest
            try:
                for record in records:
                    self._take(run, record)
                rank = self._rank_in_round(member)
                if passed and rank is not None:
                    self.assembly.miss(rank, passed)
            except HookcoreError as error:
                without = "the sum of all ranks is without some of its steps"
                message = (
                    f"rank {member.place.rank} can't be read now, so {without}: {error}. The rank's own run has them"
                )
                emit_event(self, "rank-not-read", message, "warning")
            except Exception:
                self._tell_bug()
            self._tell()
        self.changes.tell()

    def describe_of(self, run: Run, described: Description) -> None:
        """Take the description of a member."""
        with self.lock:
            if not self.loaded:
                return  # reading the members reads their descriptions
            self._describe(run, described.modules, described.coverage, described.hooks)
            self._follow_lead()

    @property
    def partial(self) -> str:
        """Why answers may lack something; empty if they don't."""
        return " ".join(filter(None, (self.received.beginning, self.coarse, self.away)))

    @property
    def coarse(self) -> str:
        """Which steps are merged, although the runs of the ranks have each of them; empty if none are."""
        since = None if self.store.past is not None else self.store.exact_since
        if since is None or all(each.run.store.past is None for each in list(self.members.values())):
            return ""
        begin = min(since, (self.store.steps().newest or 0) + 1)
        return (
            f"Values of tensors before step {begin:,} are of several steps together, because the sum of all ranks is "
            f"in memory only. The runs of the ranks have each step."
        )

    @property
    def away(self) -> str:
        """Why steps can't be read now, of a rank or of their sum."""
        own: str = Run.away.__get__(self)
        return " ".join(dict.fromkeys(filter(None, (own, *(each.run.away for each in list(self.members.values()))))))

    def tick(self) -> None:
        """Look for ranks that went silent or ended, so that the others needn't wait for them. Called now and then."""
        if not self.loaded or not self.lock.acquire(blocking=False):
            return
        try:
            self._let_go()
            self._give_up()
            self.assembly.advance()
            self._end()
            self._tell()
        finally:
            self.lock.release()
        self.changes.tell()

    def do_without(self, run: Run, why: str) -> None:
        """Don't wait for a live rank whose own run isn't in memory, so that its frames don't come here."""
        if not self.loaded or not self.lock.acquire(blocking=False):
            return  # it is asked for again
        try:
            member = self.members.get(run.id)
            rank = None if member is None else self._rank_in_round(member)
            if rank is not None and self.assembly.do_without(rank):
                first = self.assembly.ranks[rank].newest + 1
                message = (
                    f"rank {rank} isn't in this server's memory, because {why}: the sum of all ranks is without it "
                    f"from step {first:,} on. The rank's own run has these steps; open it to take it into memory"
                )
                self.assembly.tell("rank-not-in-memory", rank, message)
                self._tell()
        finally:
            self.lock.release()

    def _let_go(self) -> None:
        """Don't wait for ranks that have ended, or are gone."""
        for run_id, rank in list(self._joined.items()):
            member = self.members.get(run_id)
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

    def _take(self, run: Run, record: Record) -> None:
        member = self.members.get(run.id)
        if member is None:
            return
        self.signs.see()
        self._follows |= isinstance(record, Frame)
        rank = self._rank_in_round(member, record.step)
        if rank is None:
            if isinstance(record, Frame):
                self._leave_out(member, record)
        elif isinstance(record, Frame):
            if not self.assembly.ranks[rank].open:
                self.assembly.return_(rank, record.step + self.shift)
            self.assembly.take(rank, _shifted(record, self.shift))
        elif isinstance(record, Snapshot):
            if rank == min(self.assembly.ranks):
                self.store.add_snapshot(replace(record, step=record.step + self.shift))
        else:
            self._leave(rank, run)
            self._end()
        self._tell()
        if self.signs.clock() - self._counted_at >= COUNT_EVERY_S:
            self._count()

    def _leave_out(self, member: Member, frame: Frame) -> None:
        """Hold a frame of a rank that was started again, as most others may follow; leave out any other."""
        if member.round != WAITING and member.round <= self._round:
            self._tell_left_out(member)
            return
        self._held.setdefault(member.run.id, Held(self.signs.clock())).take(frame)
        self._give_up()

    def _must_wait(self, member: Member) -> bool:
        """Return whether a rank begins a round while steps of the one before are still on their way."""
        if NO_ROUND < self._round < member.round and not self._reading:
            held = self._held.get(member.run.id)
            if held is None or self.signs.clock() - held.since <= REST_S:
                every = (each.run for each in self.rounds.of(self._round))
                return any(run.loaded and run.received.sent > run.received.acknowledged for run in every)
        return False

    def _give_up(self) -> None:
        """Leave out ranks that were started again, and that most others didn't follow in time."""
        held = {run_id: member for run_id in self._held if (member := self.members.get(run_id)) is not None}
        newest = max(held.values(), key=lambda member: member.round, default=None)
        is_much = sum(each.nbytes for each in self._held.values()) > self.assembly.max_bytes
        if newest is not None and newest.round > self._round and (is_much or not self._must_wait(newest)):
            self._begin_round(newest.round)
        is_much = sum(each.nbytes for each in self._held.values()) > self.assembly.max_bytes
        for run_id, each in self._held.items():
            waits = run_id in held and held[run_id].round > self._round
            if not each.given_up and not waits and (is_much or self.signs.clock() - each.since > GRACE_S):
                each.give_up()
                if run_id in held:
                    self._tell_left_out(held[run_id])

    def _tell_left_out(self, member: Member) -> None:
        rank, without = member.place.rank, "the sum of all ranks is without its steps. The rank's own run has them"
        if member.round != WAITING:
            self.assembly.tell("rank-of-before", rank, f"rank {rank} of an earlier attempt sent frames: {without}")
        else:
            message = f"rank {rank} was started again, and counts from 0, but most other ranks were not: {without}"
            self.assembly.tell("rank-alone", rank, message)

    def _rank_in_round(self, member: Member, step: int | None = None) -> int | None:
        """Return the member's rank if it belongs to the current round, which it may begin, with a step of its own."""
        if member.round < max(self._round, 0) or self._must_wait(member):
            return None
        if member.round > self._round:
            self._begin_round(member.round)
        if member.run.id not in self._joined:
            self._join(member, step)
        return member.place.rank

    def _begin_round(self, number: int) -> None:
        self.assembly.begin_round()
        self.shifts[number] = self.assembly.newest + 1
        if self._round != NO_ROUND:
            message = (
                f"the training was restarted (attempt {number + 1}): its steps continue from "
                f"{self.shifts[number]:,} here, and count from 0 in the runs of the ranks"
            )
            emit_event(self, "restarted", message)
        self._round, self._joined = number, {}
        self.end = End()
        for member in self.rounds.of(number):
            held = self._held.pop(member.run.id, None)
            for frame in () if held is None else held.frames:
                if member.run.id not in self._joined:
                    self._join(member, frame.step)
                self.assembly.take(member.place.rank, _shifted(frame, self.shift))

    def _join(self, member: Member, step: int | None) -> None:
        """Expect frames of a rank from a step on. If it has earlier ones, the sum is without them."""
        run, rank = member.run, member.place.rank
        first = run.store.steps().first
        is_late = step is not None and first is not None and first < step
        begins = step + self.shift if step is not None and (is_late or run.id in self.unread) else 0
        self._joined[run.id] = rank
        self.assembly.join(rank, member.place.world, lambda: run.store.taps().taps, begins)
        if is_late:
            message = (
                f"rank {rank} has steps from {first:,} on, but the sum of all ranks has only those from {step:,} on, "
                f"because the server learned too late that they belong to it. The rank's own run has them"
            )
            self.assembly.tell("rank-joined-late", rank, message)

    def _store_step(self, frame: Frame, differences: Sequence[Difference] | None) -> None:
        if frame.new_taps:
            self.store.announce(frame.new_taps)
            frame = replace(frame, new_taps=())
        if differences is not None:
            self._follow_desync(frame.step, differences)
        self._keep(frame)

    def _follow_desync(self, step: int, differences: Sequence[Difference]) -> None:
        follower, taps = self.store.follower, self.store.taps().taps
        is_on = self.store.rules.get(DESYNC) is not False
        known = [each for each in differences if each.lane < len(taps) and is_on]
        if follower is not None:
            follower.hold(DESYNC, desync_of(step, known, taps) if known else None)

    def _words_of_bad(self, number: int, step: int) -> str:
        ranks = self.assembly.bad_ranks(number, step)
        world = max(self.assembly.world, len(self.assembly.ranks))
        if not ranks:
            return ""
        words = words_of(ranks, world)
        return f"It was in {words}." if len(ranks) == world else f"It was in {words} of {world:,}."

    def _describe(self, run: Run, modules: Any, coverage: Any, hooks: Any) -> None:
        if run.id in self.members:
            self._structures.note(self.members[run.id].place.rank, modules)
            self.assembly.part(self._structures.parted)
        is_lead = run is self.current()[0].run
        known = {} if is_lead else self.store.module_types()
        self.store.describe(
            [each for each in modules if each.path not in known],
            [each for each in coverage if each.path not in known],
            hooks if is_lead else (),
        )

    def _end(self) -> None:
        current = [each for each in self.current() if each.run.id in self._joined]
        if self.end.failure is None:
            failed = ((each.run.end.failure, each.place.rank) for each in current)
            failure, rank = next((each for each in failed if each[0] is not None), (None, 0))
            if failure is not None:
                error = f"{failure.error} (rank {rank})"
                self.end = replace(self.end, failure=replace(failure, step=failure.step + self.shift, error=error))
        silent = any(each.run.id not in self._joined and not self._is_over(each.run) for each in self.current())
        if self._follows and (silent or self.missing()) and self.assembly.is_patient:
            return  # others may have trained, too, and be slower to arrive
        if current and all(self._is_over(each.run) for each in current) and self.end.step is None:
            self.assembly.flush()
            self.store.settle()
            steps = [each.run.end.step for each in current if each.run.end.step is not None]
            self.end = replace(self.end, step=max(steps) + self.shift if steps else None)
            self._count()

    def _count(self) -> None:
        self._counted_at = self.signs.clock()
        every = [each.run.received.counters for each in self.members.values()]
        dropped: dict[str, int] = {}
        for each in every:
            for name, number in each.dropped.items():
                dropped[name] = dropped.get(name, 0) + number
        names = ("produced", "acknowledged", "waiting", "in_flight")
        self.received.counters = DeliveryCounters(
            **{name: sum(getattr(each, name) for each in every) for name in names}, dropped=dropped
        )

    def _tell(self) -> None:
        for name, message in self.assembly.trouble:
            emit_event(self, name, message, "warning")
        self.assembly.trouble.clear()

    # -- from disk ---------------------------------------------------------------------------------------------------

    def expect_disk(self, gathers: bool) -> None:
        """Read the ranks from disk before the first frame is taken, because the server was restarted.

        `gathers` says that no folder is known before its trainer is back, so that ranks must wait for each other.
        """
        with self.lock:
            if self._follows:
                return
            self.loaded = False
            if gathers and self._gathers_until == float("-inf"):
                self._gathers_until = self.signs.clock() + GRACE_S

    @property
    def gathers(self) -> bool:
        """Whether ranks that are back must wait for others, so that their saved runs are added up together."""
        return self.signs.clock() < self._gathers_until and bool(self.missing())

    def read_all(self) -> None:
        """Read the runs of all ranks from disk, and add them up again."""
        with self.lock:
            if not self.loaded:
                self._read_all()

    def _read_all(self) -> None:
        if (disk := self._disk()) is not None:
            disk.wait_until_listed()
        with self._shaping:
            self._reading = True
        try:
            self._read_rounds()
            self.loaded = True
        except Exception:
            self._outline()  # again: a part of the ranks isn't their sum
            raise
        finally:
            self._reading = False
        self._judge()
        self.assembly.be_patient()
        self._let_go()
        self._end()
        self._tell()

    def _read_rounds(self) -> None:
        self.store = follow(Store(self._store_bytes(self.info.memory)), self.edits.rule_changes)
        self._begin()
        self.end = End()
        members = sorted(self.members.values(), key=lambda each: (each.round, each.place.rank))
        disk = self._disk()
        kept = {} if disk is None else disk.recorded([each.run for each in members])
        for turn in sorted({each.round for each in members}):
            in_turn = [(each, kept.get(each.run.id)) for each in members if each.round == turn]
            readable = [(each, found) for each, found in in_turn if not isinstance(found, HookcoreError | None)]
            if turn >= 0:
                self._read_round(readable, is_newest=turn == members[-1].round)
            else:
                for each, _ in readable:
                    self._tell_left_out(each)
        self.store.choose(self.rules)  # also those that were changed after the last step
        self._say_unread(members, kept)

    def _say_unread(self, members: Sequence[Member], kept: Mapping[str, Recorded | HookcoreError]) -> None:
        self.unread.clear()
        for each in members:
            why = kept.get(each.run.id)
            if isinstance(why, HookcoreError) and each.run.store.steps().newest is not None:
                self.lack(each.run, each.place.rank, why)
        for unlisted in self.unlisted_folders().values():
            ranks, verb = words_of(self.missing(), -1), "is" if len(self.missing()) == 1 else "are"
            named = f"By its name, it may be of this training, and {ranks} {verb} missing"
            emit_event(self, "rank-not-read", f"a saved run can't be read: {unlisted}. {named}", "warning")

    def lack(self, run: Run, rank: int, why: HookcoreError) -> None:
        """Note that the saved run of a rank can't be read."""
        self.unread.add(run.id)
        message = f"the saved run of rank {rank} can't be read, so the sum of all ranks is without it: {why}"
        emit_event(self, "rank-not-read", message, "warning")

    def unlisted_folders(self) -> dict[Path, str]:
        """Return the folders that can't be read and have this training's name, and why, if ranks are missing."""
        if not self._unlisted or not self.missing():
            return {}
        begin = folder_name(_OF_RANK.sub("", self.current()[0].run.info.name), "").removesuffix(SUFFIX)
        return {path: why for path, why in list(self._unlisted.items()) if path.name.startswith(begin)}

    def _read_round(self, members: list[tuple[Member, Recorded]], is_newest: bool) -> None:
        for member, archive in members:
            self._rank_in_round(member)
            taps = archive.taps()
            self.assembly.ranks[member.place.rank].taps = lambda taps=taps: taps  # type: ignore[misc]
            self._describe(member.run, archive.modules(), archive.coverage(), archive.hooks())
        if is_newest and (disk := self._disk()) is not None:
            disk.recall(self)
        streams = [_frames_of(member, archive, place) for place, (member, archive) in enumerate(members)]
        for _, _, _, member, frame in heapq.merge(*streams):
            self.assembly.take(member.place.rank, _shifted(frame, self.shift))
        # Steps that still wait need the names, which the run of a rank that isn't in memory doesn't have.
        self.store.announce(self.assembly.number_taps())
        for member, archive in members:
            rank = self.assembly.ranks[member.place.rank]
            rank.taps = lambda run=member.run: run.store.taps().taps  # type: ignore[misc]
            self._read_events(member, archive)

    def _read_events(self, member: Member, archive: Recorded) -> None:
        for event in archive.events():
            self.store.add_event(of_rank(replace(event, step=event.step + self.shift), member.place.rank))
        if member.place.rank == min(self.assembly.ranks):
            for snapshot in archive.snapshots():
                self.store.add_snapshot(replace(snapshot, step=snapshot.step + self.shift))
        if archive.damages:
            emit_event(self, "damaged", f"rank {member.place.rank}: {archive.damages[0]}", "warning")

    def follow_edit(self, run: Run) -> None:
        """Take what was edited elsewhere, if this rank speaks for all."""
        if self.members and run is self.current()[0].run:
            before, self.name = self.rules, _OF_RANK.sub("", run.name)
            self.edits.follow(run.edits)
            follow_rules(self, before)
            self.changes.tell()

    # -- commands and edits ------------------------------------------------------------------------------------------

    def _ask_all(self, name: Ask, each: Sequence[dict[str, Any]]) -> list[Command]:
        """Ask all live ranks, but only the lowest one for tensors."""
        live = [member.run for member in self.current() if member.run.state == "live"]
        if name == "snapshot":
            live = live[:1]
        asked = [run._ask_all(name, each) for run in live]
        return asked[0] if asked else self.commands.make(name, each)

    def _ask_for_step(self) -> None:
        """Do nothing: the ranks ask for themselves."""

    def edited(self) -> None:
        """Announce a change, and save it with the lowest rank's run."""
        lead = self.current()[0].run if self.members else None
        if lead is not None:
            before, lead.name = lead.rules, self.name
            lead.edits.follow(self.edits)
            follow_rules(lead, before)
            lead.edited()
        Run.edited(self)


def _frames_of(member: Member, archive: Recorded, place: int) -> Iterator[tuple[int, int, int, Member, Frame]]:
    labels = archive.labels
    for number, frame in zip(count(), archive.frames(), strict=False):
        yield frame.step, place, number, member, replace(frame, labels=labels) if number == 0 and labels else frame


def _shifted(frame: Frame, steps: int) -> Frame:
    if not steps:
        return frame
    flow = None if frame.flow is None else replace(frame.flow, step=frame.flow.step + steps)
    events = tuple(replace(event, step=event.step + steps) for event in frame.events)
    return replace(frame, step=frame.step + steps, flow=flow, events=events)

"""All ranks of a distributed training: their runs, and the run with the values that one process would have had."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from hookcore.delivery.archive import SUFFIX, Recorded, folder_name
from hookcore.delivery.facts import joint_id
from hookcore.errors import ArgumentError, HookcoreError
from hookcore.findings import follow
from hookcore.reading import answers
from hookcore.reading.answers.runs import Outcome, State
from hookcore.records import Command, Frame, Kind, Snapshot
from hookcore.records.wire import Description, Place
from hookcore.store import StepRange, Store

from .assembly import GRACE_S
from .disk import Disk, Gone
from .parts import Ask, End, Record
from .ranks import words_of
from .rounds import Member, Rounds
from .run import Run, emit_event, follow_rules
from .summing import Sum

logger = logging.getLogger("hookcore")

OF_RANK: Final = re.compile(r" rank \d+$")  # at the end of a run's name
MAX_MISSING: Final = 100  # ranks that are listed
READ_AGAIN_S: Final = 10.0  # after the ranks couldn't be read


def as_joint(gone: Gone) -> Gone:
    """Return the removal of a rank as that of the run of all ranks, and others as they are."""
    run_id = None if gone.run is None else joint_id(gone.run.info.place)
    return gone if run_id is None else replace(gone, id=run_id, name=OF_RANK.sub("", gone.name))


class Joint:
    """All ranks of a distributed training. Their runs feed their sum, or it is read from what is saved of them.

    Edits of the run of all ranks are saved with the lowest rank, and its commands go to the ranks.
    """

    def __init__(
        self,
        run: Run,
        disk: Callable[[], Disk | None],
        store_bytes: Callable[[int], int],
        unlisted: Mapping[Path, str],
    ) -> None:
        self.run = run  # of all ranks
        run.training = self
        self.rounds = Rounds()
        self.sum = Sum(run, self.rounds)
        self.disk = disk  # where the runs of the ranks are saved
        self._store_bytes = store_bytes  # the limit of a store
        self._unlisted = unlisted  # folders that couldn't be listed, and why
        self._shaping = threading.Lock()  # the order of the members, and the outline
        self._gathers_until = float("-inf")  # ranks that continue saved runs wait for each other
        self._read_again_at = float("-inf")

    # -- its members ------------------------------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """Return the runs of all ranks, of all attempts."""
        return [member.run for member in self.rounds.members.values()]

    def members_at(self, step: int) -> tuple[list[Member], int]:
        """Return the runs of the attempt that a step belongs to, by rank, and by how much its steps are shifted."""
        begun = {number: shift for number, shift in self.sum.shifts.items() if shift <= step}
        number = max(begun, default=None)
        if number is None:
            return self.rounds.current(), self.sum.shift
        by_rank = {member.place.rank: member for member in self.rounds.members.values() if member.round == number}
        return [by_rank[rank] for rank in sorted(by_rank)], begun[number]

    def shift_of(self, member: Member) -> int | None:
        """Return by how much the steps of a rank's run are shifted; None if the sum has not begun its round."""
        return self.sum.shifts.get(member.round, None if self.sum.shifts else 0)

    def summary(self) -> answers.RankSummary:
        """Return how many ranks there are."""
        current, missing = self.rounds.current(), tuple(self.rounds.missing()[:MAX_MISSING])
        live = sum(member.run.state == "live" for member in current)
        attempts = 1 + max((member.round for member in current), default=0)
        return answers.RankSummary(self.rounds.world, len(current), live, missing, attempts)

    def admit(self, run: Run, place: Place) -> None:
        """Add a rank's run. One of a rank that has another run already is a restart (the list's lock must be held)."""
        if run.id in self.rounds.members:
            return
        with self._shaping:  # a thread that reads the ranks from disk fills the store, and goes by their order
            is_listed = not self.run.loaded and not self.sum.reading
            (self.rounds.admit_unordered if is_listed else self.rounds.admit)(run, place)
            run.training = self
            if run.store.follower is not None:
                run.store.follower.take_turns(place.rank)
            self._follow_lead()
            if is_listed:
                self._outline()

    def locate(self, run: Run, place: Place) -> None:
        """Note what else became known of a rank's place: its device, and its coordinates on a mesh."""
        member = self.rounds.members.get(run.id)
        if member is not None:
            member.place = place

    def dismiss(self, run: Run) -> None:
        """Forget a rank's run that was removed. What it added stays."""
        with self._shaping:
            self.rounds.dismiss(run)
        run.training = None

    def _follow_lead(self) -> None:
        current, run = self.rounds.current(), self.run
        if not current:
            return
        lead = current[0].run
        started_s = min(member.run.info.started_s for member in current)
        own = {"id": run.id, "name": run.info.name, "key": "", "keep": "", "place": None}
        run.info = msgspec.structs.replace(lead.info, started_s=started_s, **own)
        if not run.edits.count:
            run.name, run.saved.summary = OF_RANK.sub("", lead.name), lead.saved.summary
            run.edits.follow(lead.edits)

    def _outline(self) -> None:
        every = [run.store.steps() for run in self.runs()]
        begun = [steps for steps in every if steps.first is not None and steps.newest is not None]
        if begun:
            first, newest = min(steps.first or 0 for steps in begun), max(steps.newest or 0 for steps in begun)
            self.run.store = Store.outline(StepRange(first, newest, max(steps.count for steps in begun)))

    # -- what the run of all ranks says and does --------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Live while some rank is, waiting while some may come back; else how the first one that broke off ended."""
        current = self.rounds.current()
        if any(member.run.state == "live" for member in current):  # live pages ask for it at every change
            return "live"
        states = {member.run.state for member in current}
        order: tuple[State, ...] = ("waiting", "crashed", "stopped", "lost", "ended")
        return next((state for state in order if state in states), "lost")

    @property
    def steps(self) -> int:
        """The number of steps that the longest rank trained."""
        return max((member.run.steps for member in self.rounds.current()), default=0)

    @property
    def coarse(self) -> str | None:
        """Which steps are merged, although the runs of the ranks have each of them; None if none are."""
        store = self.run.store
        since = None if store.past is not None else store.exact_since
        if since is None or all(run.store.past is None for run in self.runs()):
            return None
        begin = min(since, (store.steps().newest or 0) + 1)
        return (
            f"Before step {begin:,}, several steps share their tensor values, because the sum of all ranks is "
            "only in memory. The ranks' own runs have every step."
        )

    def why_away(self) -> list[str]:
        """Return why steps of ranks can't be read now."""
        return [run.away for run in self.runs() if run.away]

    def ask_all(self, name: Ask, contents: Sequence[dict[str, Any]]) -> list[Command]:
        """Ask all live ranks, but only the lowest one for tensors."""
        live = [member.run for member in self.rounds.current() if member.run.state == "live"]
        if name == "snapshot":
            live = live[:1]
        with ExitStack() as others:  # in the order of the ranks: no one waits for the other
            for run in live:
                others.enter_context(run.commands.asking)
                run.learn_numbers()
                self.run.commands.number_above(run.commands.newest)
            commands = self.run.commands.make(name, contents)  # with the same numbers for all ranks
            for run in live:
                run.hand_on(commands)
        return commands

    def outcome(self, number: int) -> Outcome:
        """Return what became of a command at the rank that needs a look first, of those that were asked."""
        of_ranks = [member.run.outcome(number) for member in self.rounds.current()]
        reported = [outcome for outcome in of_ranks if outcome.outcome != "unknown"] or of_ranks
        order = ("waiting", "received", "refused", "dropped", "superseded", "applied", "unknown")
        return min(reported, key=lambda outcome: order.index(outcome.outcome))

    def follow_edit(self, run: Run) -> None:
        """Apply edits made elsewhere, if this rank represents all ranks."""
        if self.rounds.members and run is self.rounds.current()[0].run:
            joint = self.run
            before, joint.name = joint.rules, OF_RANK.sub("", run.name)
            joint.edits.follow(run.edits)
            follow_rules(joint, before)
            joint.changes.tell()

    def save_edit(self) -> None:
        """Save what readers edited of the run of all ranks with the lowest rank's run."""
        lead = self.rounds.current()[0].run if self.rounds.members else None
        if lead is not None:
            before, lead.name = lead.rules, self.run.name
            lead.edits.follow(self.run.edits)
            follow_rules(lead, before)
            lead.edited()

    # -- what the ranks send ----------------------------------------------------------------------------------------

    def take_of(self, run: Run, record: Record) -> None:
        """Take a record of a member, whose lock is held. Nothing that goes wrong here costs the member its data."""
        try:
            with self.run.lock:
                if self._is_read():
                    self.sum.take(run, record)
        except Exception:
            self.sum.report_bug()
        self.run.changes.tell()

    def _is_read(self) -> bool:
        """Return whether the sum is in memory. If not, read the ranks, but not again at once if they can't be read."""
        if self.run.loaded:
            return True
        if self._now() < self._read_again_at:
            return False  # what is kept of the ranks has the frame when they are read
        try:
            self._read_all()
        except Exception as error:
            self._read_again_at = self._now() + READ_AGAIN_S
            is_ours = not isinstance(error, HookcoreError)
            why = f"trying again in {READ_AGAIN_S:g} s: {error}"
            logger.warning("hookcore: the run of all ranks, %s, can't be read, %s", self.run.id, why, exc_info=is_ours)
            return False
        return True

    def catch_up(self, run: Run, passed: int, records: Iterable[Frame | Snapshot]) -> None:
        """Take what a member's own run has read by itself, and count the frames that it has passed over.

        Those of steps that were added up without the rank come too late, like those of any rank that was away.
        """
        with self.run.lock:
            member = self.rounds.members.get(run.id)
            if not self.run.loaded or member is None:
                return  # they are read with all the rest
            try:
                for record in records:
                    self.sum.take(run, record)
                rank = self.sum.rank_in_round(member)
                if passed and rank is not None:
                    self.sum.assembly.absences.note_away(rank, passed)
            except HookcoreError as error:
                without = "the sum of all ranks doesn't include some of its steps"
                message = (
                    f"rank {member.place.rank} can't be read now, so {without}: {error}. The rank's own run has them"
                )
                emit_event(self.run, "rank-not-read", message, "warning")
            except Exception:
                self.sum.report_bug()
            self.sum.emit_reports()
        self.run.changes.tell()

    def describe_of(self, run: Run, described: Description) -> None:
        """Take the description of a member."""
        with self.run.lock:
            if not self.run.loaded:
                return  # reading the members reads their descriptions
            self.sum.describe(run, described.modules, described.coverage, described.hooks)
            self._follow_lead()

    def expect_disk(self, gathers: bool) -> None:
        """Read the ranks from disk before the first frame is taken, because the server was restarted.

        `gathers` says that no folder is known before its trainer is back, so that ranks must wait for each other.
        """
        with self.run.lock:
            if self.sum.follows:
                return
            self.run.loaded = False
            if gathers and self._gathers_until == float("-inf"):
                self._gathers_until = self._now() + GRACE_S

    def _now(self) -> float:
        return self.run.signs.clock()

    @property
    def gathers(self) -> bool:
        """Whether ranks that are back must wait for others, so that their saved runs are added up together."""
        return self._now() < self._gathers_until and bool(self.rounds.missing())

    def read_all(self) -> None:
        """Read the runs of all ranks from disk, and add them up again."""
        with self.run.lock:
            if not self.run.loaded:
                self._read_all()

    def _read_all(self) -> None:
        if (disk := self.disk()) is not None:
            disk.wait_until_listed()
        with self._shaping:
            self.sum.reading = True
        try:
            self._read_rounds()
            self.run.loaded = True
        except Exception:
            self._outline()  # again: a part of the ranks isn't their sum
            raise
        finally:
            self.sum.reading = False
        self.run.renew_findings()
        self.sum.resume()

    def _read_rounds(self) -> None:
        run, disk = self.run, self.disk()
        run.store = follow(Store(self._store_bytes(run.info.memory)), run.edits.rule_changes)
        run.end = End()
        self.sum.begin()
        members = sorted(self.rounds.members.values(), key=lambda each: (each.round, each.place.rank))
        kept = {} if disk is None else disk.recorded([member.run for member in members])
        for turn in sorted({member.round for member in members}):
            in_turn = [(member, kept.get(member.run.id)) for member in members if member.round == turn]
            readable = [(each, found) for each, found in in_turn if not isinstance(found, HookcoreError | None)]
            if turn >= 0:
                self.sum.expect(readable)
                if turn == members[-1].round and disk is not None:
                    disk.recall(run)
                self.sum.read(readable)
            else:
                for each, _ in readable:
                    self.sum.report_left_out(each)
        run.store.choose(run.rules)  # also those that were changed after the last step
        self._say_unread(members, kept)

    def _say_unread(self, members: Sequence[Member], kept: Mapping[str, Recorded | HookcoreError]) -> None:
        self.sum.unread.clear()
        for member in members:
            why = kept.get(member.run.id)
            if isinstance(why, HookcoreError) and member.run.store.steps().newest is not None:
                self.lack(member.run, member.place.rank, why)
        for unlisted in self.unlisted_folders().values():
            ranks, verb = words_of(self.rounds.missing(), -1), "is" if len(self.rounds.missing()) == 1 else "are"
            named = f"By its name, it may belong to this training, and {ranks} {verb} missing"
            emit_event(self.run, "rank-not-read", f"a saved run can't be read: {unlisted}. {named}", "warning")

    def lack(self, run: Run, rank: int, why: HookcoreError) -> None:
        """Note that the saved run of a rank can't be read."""
        self.sum.unread.add(run.id)
        message = f"the saved run of rank {rank} can't be read, so the sum of all ranks doesn't include it: {why}"
        emit_event(self.run, "rank-not-read", message, "warning")

    def unlisted_folders(self) -> dict[Path, str]:
        """Return the folders that can't be read and have this training's name, and why, if ranks are missing."""
        if not self._unlisted or not self.rounds.missing():
            return {}
        begin = folder_name(OF_RANK.sub("", self.rounds.current()[0].run.info.name), "").removesuffix(SUFFIX)
        return {path: why for path, why in list(self._unlisted.items()) if path.name.startswith(begin)}


def joint_in(run: Run) -> Joint | None:
    """Return the training that a run is a rank of, or the sum of all ranks of; None for a single process."""
    return run.training if isinstance(run.training, Joint) else None


def ranks_in(run: Run) -> Joint | None:
    """Return the training whose ranks a run is the sum of; None if a trainer sends it."""
    return joint_in(run) if run.is_derived else None


def joint_of(run: Run) -> Joint:
    """Return the training that a run is a rank of, or the sum of all. Raises ArgumentError for a single process."""
    joint = joint_in(run)
    if joint is None:
        raise ArgumentError(f"the run {run.id} is a single process: only distributed trainings have ranks")
    return joint


def rank_of(run: Run, rank: int) -> Run:
    """Return the run of one rank. Raises ArgumentError if there is none."""
    joint = joint_of(run)
    ranks = {member.place.rank: member.run for member in joint.rounds.current()}
    if rank not in ranks:
        seen = ", ".join(map(str, [*ranks][:20]))
        raise ArgumentError(f"rank {rank} of {joint.run.id} has sent nothing yet; seen were {seen or 'none'}")
    return ranks[rank]


def summary_of(run: Run) -> answers.RankSummary | None:
    """Return how many ranks a run is the sum of; None for any other."""
    joint = ranks_in(run)
    return None if joint is None else joint.summary()


def local_kinds(run: Run) -> frozenset[Kind]:
    """Return the kinds of gradients that each rank has of its own loss, before any reduction."""
    joint = joint_in(run)
    return frozenset() if joint is None else joint.sum.assembly.local_kinds


def is_unsure(run: Run, number: int) -> bool:
    """Return whether it isn't known if the ranks have parts or copies of a tap of the run of all ranks."""
    joint = ranks_in(run)
    return joint is not None and joint.sum.assembly.shares.is_unknown(number)

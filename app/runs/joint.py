"""All ranks of a distributed training as one run, with the values that one process with all data would have had."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final

from hookcore.delivery.archive import SUFFIX, Recorded, Unheard, folder_name
from hookcore.delivery.facts import joint_id
from hookcore.errors import HookcoreError
from hookcore.findings import follow
from hookcore.records import Frame, Snapshot
from hookcore.records.vocabulary import NONFINITE_STEP
from hookcore.records.wire import Description, Place
from hookcore.store import Store

from .assembly import GRACE_S
from .disk import Disk, Gone
from .parts import End, Record
from .ranks import of_rank, words_of
from .rounds import Member
from .run import Run, emit_event
from .summing import OF_RANK, Summing, shifted

logger = logging.getLogger("hookcore")

READ_AGAIN_S: Final = 10.0  # after the ranks couldn't be read


def as_joint(gone: Gone) -> Gone:
    """Return the removal of a rank as that of the run of all ranks, and others as they are."""
    run_id = None if gone.run is None else joint_id(gone.run.info.place)
    return gone if run_id is None else replace(gone, id=run_id, name=OF_RANK.sub("", gone.name))


@dataclass(slots=True)
class JointRun(Summing):
    """The run of all ranks. Its members feed it, and it is read from their saved runs; commands go to them."""

    _disk: Callable[[], Disk | None] = lambda: None  # where the runs of the ranks are saved
    _store_bytes: Callable[[int], int] = int  # the limit of a store
    _unlisted: Mapping[Path, str] = field(default_factory=dict)  # folders that couldn't be listed, and why
    _gathers_until: float = float("-inf")  # ranks that continue saved runs wait for each other
    _read_again_at: float = float("-inf")

    def connect(
        self, disk: Callable[[], Disk | None], store_bytes: Callable[[int], int], unlisted: Mapping[Path, str]
    ) -> None:
        """Read the runs of the ranks from there when they are needed."""
        self._disk, self._store_bytes, self._unlisted = disk, store_bytes, unlisted

    def admit(self, run: Run, place: Place) -> None:
        """Add a rank's run. One of a rank that has another run already is a restart (the list's lock must be held)."""
        if run.id in self.members:
            return
        with self._shaping:  # a thread that reads the ranks from disk fills the store, and goes by their order
            is_listed = not self.loaded and not self._reading
            (self.rounds.admit_unordered if is_listed else self.rounds.admit)(run, place)
            run.joint = self
            if run.store.follower is not None:
                run.store.follower.take_turns(place.rank)
            self._follow_lead()
            if is_listed:
                self._outline()

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
            f"Before step {begin:,}, several steps share their tensor values, because the sum of all ranks is "
            "only in memory. The ranks' own runs have every step."
        )

    def take_of(self, run: Run, record: Record) -> None:
        """Take a record of a member, whose lock is held. Nothing that goes wrong here costs the member its data."""
        try:
            with self.lock:
                if self._is_read():
                    self._take(run, record)
        except Exception:
            self._report_bug()
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
                    self.assembly.absences.note_away(rank, passed)
            except HookcoreError as error:
                without = "the sum of all ranks doesn't include some of its steps"
                message = (
                    f"rank {member.place.rank} can't be read now, so {without}: {error}. The rank's own run has them"
                )
                emit_event(self, "rank-not-read", message, "warning")
            except Exception:
                self._report_bug()
            self._emit_reports()
        self.changes.tell()

    def describe_of(self, run: Run, described: Description) -> None:
        """Take the description of a member."""
        with self.lock:
            if not self.loaded:
                return  # reading the members reads their descriptions
            self._describe(run, described.modules, described.coverage, described.hooks)
            self._follow_lead()

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
        self.judge()
        self.assembly.be_patient()
        self._let_go()
        self._end()
        self._emit_reports()

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
                    self._report_left_out(each)
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
            named = f"By its name, it may belong to this training, and {ranks} {verb} missing"
            emit_event(self, "rank-not-read", f"a saved run can't be read: {unlisted}. {named}", "warning")

    def lack(self, run: Run, rank: int, why: HookcoreError) -> None:
        """Note that the saved run of a rank can't be read."""
        self.unread.add(run.id)
        message = f"the saved run of rank {rank} can't be read, so the sum of all ranks doesn't include it: {why}"
        emit_event(self, "rank-not-read", message, "warning")

    def unlisted_folders(self) -> dict[Path, str]:
        """Return the folders that can't be read and have this training's name, and why, if ranks are missing."""
        if not self._unlisted or not self.missing():
            return {}
        begin = folder_name(OF_RANK.sub("", self.current()[0].run.info.name), "").removesuffix(SUFFIX)
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
        unheard = Unheard(each for _, archive in members for each in archive.events() if each.name == NONFINITE_STEP)
        for _, _, _, member, frame in heapq.merge(*streams):
            unheard.tell(self.store, frame, self.shift)
            self.assembly.take(member.place.rank, shifted(frame, self.shift))
        unheard.tell(self.store, shift=self.shift)
        # Steps that still wait need the names, which the run of a rank that isn't in memory doesn't have.
        self.store.announce(self.assembly.number_taps())
        for member, archive in members:
            rank = self.assembly.ranks[member.place.rank]
            rank.taps = lambda run=member.run: run.store.taps().taps  # type: ignore[misc]
            self._read_events(member, archive)

    def _read_events(self, member: Member, archive: Recorded) -> None:
        for event in archive.events():
            keep = self.store.keep_event if event.name == NONFINITE_STEP else self.store.add_event
            keep(of_rank(event.moved(self.shift), member.place.rank))
        if member.place.rank == min(self.assembly.ranks):
            for snapshot in archive.snapshots():
                self.store.add_snapshot(replace(snapshot, step=snapshot.step + self.shift))
        if archive.damages:
            emit_event(self, "damaged", f"rank {member.place.rank}: {archive.damages[0]}", "warning")


def _frames_of(member: Member, archive: Recorded, place: int) -> Iterator[tuple[int, int, int, Member, Frame]]:
    labels = archive.labels
    for number, frame in zip(count(), archive.frames(), strict=False):
        yield frame.step, place, number, member, replace(frame, labels=labels) if number == 0 and labels else frame

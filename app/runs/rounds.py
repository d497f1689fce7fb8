"""Which runs of ranks belong to the same start of their training, as far as launchers and clocks tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from hookcore.records import Frame
from hookcore.records.wire import Place

from .ranks import bytes_of
from .run import Run

WAITING: Final = -1  # the round of a rank that was started again, while most others weren't
BEFORE: Final = -2  # the round of a run that another one of its rank has replaced, or whose attempt is over
TOGETHER_S: Final = 600.0  # ranks that start further apart don't meet: NCCL's process groups give up after this time


@dataclass(slots=True)
class Member:
    """A rank's run. A rank that was restarted has several."""

    run: Run
    place: Place
    round: int = WAITING  # how often the training was restarted before


class Rounds:
    """The runs of all ranks, by the starts of their training.

    A training was restarted if a rank has a higher attempt, or if most ranks have started again: one rank alone never
    takes the run from the others, even if they have ended. Launchers that don't count attempts always say 0.

    Whoever changes the rounds must hold a lock. Readers need none, because collections are replaced, never changed.
    """

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}  # by the run's id
        self._rounds: list[dict[int, Member]] = []  # by rank
        self._waiting: dict[int, Member] = {}  # the newest run of each rank that was started again
        self._gathered = False  # whether the newest round began with runs that had waited

    def current(self) -> list[Member]:
        """Return the runs of the newest round, by rank."""
        here = next((each for each in reversed(self._rounds) if each), None)
        if here is None:
            here = {member.place.rank: member for member in self.members.values()}
        return [here[rank] for rank in sorted(here)]

    @property
    def world(self) -> int:
        """The number of ranks, as the newest round says."""
        return max((member.place.world for member in self.current()), default=0)

    def missing(self) -> list[int]:
        """Return the ranks that were never seen in the newest round."""
        seen = {member.place.rank for member in self.current()}
        return [rank for rank in range(self.world) if rank not in seen]

    def members_in(self, number: int) -> list[Member]:
        """Return the runs of a round, by rank."""
        here = self._rounds[number] if 0 <= number < len(self._rounds) else {}
        return [here[rank] for rank in sorted(here)]

    def admit(self, run: Run, place: Place) -> None:
        """Add a rank's run. One of a rank that has another run already is a restart."""
        member = Member(run, place)
        self._put(member)
        self.members = {**self.members, run.id: member}

    def admit_unordered(self, run: Run, place: Place) -> None:
        """Add a run that may have begun before others that are known, because runs on disk are found in any order."""
        members = self.members.values()
        if all(member.place.rank != place.rank and member.place.attempt == place.attempt for member in members):
            self.admit(run, place)
            return
        # The first run of each rank comes first: clocks of machines may differ by more than a restart took.
        every = sorted(
            [*members, Member(run, place)], key=lambda member: (member.place.attempt, member.run.info.started_s)
        )
        count: Counter[tuple[int, int]] = Counter()
        turns = []
        for member in every:
            turns.append((member.place.attempt, count[member.place.attempt, member.place.rank]))
            count[member.place.attempt, member.place.rank] += 1
        again = Rounds()
        for _, member in sorted(zip(turns, every, strict=True), key=lambda pair: pair[0]):
            again.members[member.run.id] = fresh = Member(member.run, member.place)
            again._put(fresh)
        self.members, self._rounds = again.members, again._rounds
        self._waiting, self._gathered = again._waiting, again._gathered

    def dismiss(self, run: Run) -> None:
        member = self.members.get(run.id)
        if member is None:
            return
        self.members = {run_id: other for run_id, other in self.members.items() if other is not member}
        self._rounds = [{rank: other for rank, other in here.items() if other is not member} for here in self._rounds]
        self._waiting = {rank: other for rank, other in self._waiting.items() if other is not member}

    def _put(self, member: Member) -> None:
        here = self._rounds[-1] if self._rounds else {}
        newest = next(iter(here.values()), member).place
        current = here.get(member.place.rank)
        if not self._rounds or member.place.attempt > newest.attempt:
            self._begin([member], gathered=False)
        elif member.place.attempt < newest.attempt:
            self._put_before(member)
        elif current is None and member.place.world == newest.world:
            self._join(member, len(self._rounds) - 1)
        elif current is not None and self._gathered and _is_nearer(member, current, here.values()):
            current.round = BEFORE
            self._join(member, len(self._rounds) - 1)
        else:
            self._wait(member, min(member.place.world, len(here)))

    def _begin(self, members: Sequence[Member], gathered: bool) -> None:
        for waiting in self._waiting.values():
            waiting.round = BEFORE
        self._rounds, self._waiting, self._gathered = [*self._rounds, {}], {}, gathered
        for member in members:
            self._join(member, len(self._rounds) - 1)

    def _join(self, member: Member, number: int) -> None:
        member.round = number
        here = {**self._rounds[number], member.place.rank: member}
        self._rounds = [*self._rounds[:number], here, *self._rounds[number + 1 :]]

    def _put_before(self, member: Member) -> None:
        """Put a run into the newest round of its attempt that has none of its rank."""
        for number, here in reversed([*enumerate(self._rounds)]):
            attempt = next((other.place.attempt for other in here.values()), None)
            if attempt == member.place.attempt and member.place.rank not in here:
                self._join(member, number)
                return
        member.round = BEFORE

    def _wait(self, member: Member, others: int) -> None:
        """Let a run wait for those of most ranks, which make a restart of it."""
        replaced = self._waiting.get(member.place.rank)
        if replaced is not None:
            replaced.round = BEFORE
        self._waiting = {**self._waiting, member.place.rank: member}
        every = [waiting for waiting in self._waiting.values() if waiting.place.world == member.place.world]
        newest_s = max(waiting.run.info.started_s for waiting in every)
        together = [waiting for waiting in every if newest_s - waiting.run.info.started_s <= TOGETHER_S]
        if 2 * len(together) > others:
            self._begin(together, gathered=True)


def _is_nearer(member: Member, current: Member, here: Iterable[Member]) -> bool:
    """Return whether of two runs of a rank, the one that isn't in a round began when most of its other ranks did."""
    others = [other.run.info.started_s for other in here if other is not current]
    if not others:
        return False
    begun_s = median(others)
    return abs(member.run.info.started_s - begun_s) < abs(current.run.info.started_s - begun_s)


@dataclass(slots=True)
class Held:
    """The frames of a rank that was started again, until it is known whether most others were, too."""

    since: float
    frames: list[Frame] = field(default_factory=list)
    nbytes: int = 0
    given_up: bool = False

    def take(self, frame: Frame) -> None:
        """Keep a frame, unless it is too late for that."""
        if not self.given_up:
            self.frames.append(frame)
            self.nbytes += bytes_of(frame)

    def give_up(self) -> None:
        """Keep nothing: the others continue without this rank."""
        self.frames, self.nbytes, self.given_up = [], 0, True

"""The ranks of a distributed training as one run: who they are, how they are together, and what is asked of all."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from hookcore.reading.answers.runs import State
from hookcore.records import Command
from hookcore.records.wire import Place
from hookcore.store import StepRange, Store

from .commands import Ask
from .rounds import Member, Rounds
from .run import Run, follow_rules

OF_RANK: Final = re.compile(r" rank \d+$")  # at the end of a run's name


@dataclass(slots=True)
class Membership(Run):
    """A run with members, the runs of all ranks."""

    rounds: Rounds = field(default_factory=Rounds)
    _reading: bool = False  # the members' stores are being added up
    _shaping: threading.Lock = field(default_factory=threading.Lock)  # the order of the members, and the outline

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

    def missing(self) -> list[int]:
        """Return the ranks that were never seen in this round."""
        seen = {each.place.rank for each in self.current()}
        return [rank for rank in range(self.world) if rank not in seen]

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
            self.name, self.saved.summary = OF_RANK.sub("", lead.name), lead.saved.summary
            self.edits.follow(lead.edits)

    def _outline(self) -> None:
        every = [each.run.store.steps() for each in self.members.values()]
        known = [steps for steps in every if steps.first is not None and steps.newest is not None]
        if known:
            first, newest = min(each.first or 0 for each in known), max(each.newest or 0 for each in known)
            self.store = Store.outline(StepRange(first, newest, max(each.count for each in known)))

    @property
    def state(self) -> State:
        """Live while some rank is, waiting while some may come back; else how the first one that broke off ended."""
        current = self.current()
        if any(each.run.state == "live" for each in current):  # live pages ask for it at every change
            return "live"
        states = {each.run.state for each in current}
        order: tuple[State, ...] = ("waiting", "crashed", "stopped", "lost", "ended")
        return next((state for state in order if state in states), "lost")

    @property
    def steps(self) -> int:
        """The number of steps that it trained; while it is on disk only, that of its longest rank."""
        steps: int = Run.steps.__get__(self)
        return steps if self.loaded else max((each.run.steps for each in self.current()), default=steps)

    @property
    def away(self) -> str:
        """Why steps can't be read now, of a rank or of their sum."""
        own: str = Run.away.__get__(self)
        return " ".join(dict.fromkeys(filter(None, (own, *(each.run.away for each in list(self.members.values()))))))

    def follow_edit(self, run: Run) -> None:
        """Apply edits made elsewhere, if this rank represents all ranks."""
        if self.members and run is self.current()[0].run:
            before, self.name = self.rules, OF_RANK.sub("", run.name)
            self.edits.follow(run.edits)
            follow_rules(self, before)
            self.changes.tell()

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

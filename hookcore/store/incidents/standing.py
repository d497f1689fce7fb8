"""Incidents that a rule finds by looking at many steps: opened once, followed, and never reassigned."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from hookcore.records import SEVERITIES, Severity
from hookcore.records.vocabulary import is_per_frame
from hookcore.store.incidents.evidence import Gathering
from hookcore.store.incidents.incident import Found

MAX_STANDING: Final = 16  # open at the same time
MAX_REFUSED: Final = 1000  # that are counted
GRACE: Final = 16  # steps in which an incident may go unfound, and steps within which onsets are one incident
RECURS: Final = 2048  # steps within which something short that happens again is the same incident
_BYTES: Final = 1024  # of one without its members
_MEMBER_BYTES: Final = 150

Gather = Callable[[int, int], Gathering | None]  # a tap and a first step


@dataclass(slots=True, eq=False)
class Standing:
    """An incident of a rule. `found` is the finding with which it began; only `severity` and the members change."""

    found: Found
    severity: Severity
    found_step: int  # the newest step when it was found first
    last: int  # the newest step of a look that found it
    onsets: dict[int, int]
    gathering: Gathering | None
    missed: int | None = None  # the step of the first look since that didn't
    over: int | None = None
    milder: tuple[tuple[int, Severity], ...] = ()  # its severities before, each up to the step that made it worse
    times: int = 0  # how often it was found
    version: int = 0

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        gathered = 0 if self.gathering is None else self.gathering.nbytes
        return _BYTES + _MEMBER_BYTES * len(self.onsets) + gathered

    def belongs(self, found: Found) -> bool:
        """Return whether a later look found the same incident: the same rule, and a tap in common."""
        if found.rule != self.found.rule or found.is_short != self.found.is_short:
            return False
        return any(number in self.onsets for number, _ in found.members)

    def take(self, found: Found, step: int) -> bool:
        """Add what a look at a step found; return whether that is news."""
        worse = SEVERITIES.index(found.severity) < SEVERITIES.index(self.severity)
        new = [each for each in found.members if each[0] not in self.onsets]
        self.onsets.update((number, max(onset, self.found.since)) for number, onset in new)
        if worse:
            self.milder += ((step, self.severity),)
            self.severity = found.severity
        self.times += 1
        self.last, self.missed = step if found.until is None else found.until, None
        return worse or bool(new)


@dataclass(slots=True)
class Standings:
    open: list[Standing] = field(default_factory=list)
    _over: deque[Standing] = field(default_factory=lambda: deque(maxlen=MAX_STANDING))  # may come back
    _refused: dict[tuple[str, int], Severity] = field(default_factory=dict)

    @property
    def dropped(self) -> int:
        """The number of incidents that found no room."""
        return len(self._refused)

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        return sum(each.nbytes for each in self.open)

    @property
    def dropped_alerts(self) -> int:
        """The number of these that were warnings or errors."""
        return sum(severity != "info" for severity in list(self._refused.values()))  # another thread may add one

    def look(
        self, step: int, found: Sequence[Found], gather: Gather, per_frame: bool = False
    ) -> tuple[list[Standing], list[Standing]]:
        """Follow the findings at a step. Return the incidents that changed, and those that are over.

        Findings about single frames end only incidents of that kind; findings about many steps end only the others.
        """
        changed: list[Standing] = []
        fresh: list[Standing] = []
        for each in sorted(found, key=lambda each: each.since):
            if each.is_short and self._explains(each):
                continue
            standing = next((known for known in self.open if known.belongs(each)), None)
            standing = standing or next((new for new in fresh if _began_together(new.found, each)), None)
            begun = standing is None
            standing = standing or self._return(each) or self._begin(each, step, gather)
            if standing is None:
                continue
            news = standing.take(each, step)
            if begun:
                fresh.append(standing)
            if (news or begun) and standing not in changed:
                changed.append(standing)
        ended = [each for each in self.open if is_per_frame(each.found.rule) == per_frame and _ends(each, step)]
        self.open = [each for each in self.open if each.over is None]
        self._over.extend(ended)
        return changed, ended

    def _explains(self, found: Found) -> bool:
        """Return whether an incident that lasts began before something short, and has a tap in common with it."""
        lasting = (each for each in self.open if not each.found.is_short and each.found.since <= found.since)
        return any(number in each.onsets for each in lasting for number, _ in found.members)

    def _return(self, found: Found) -> Standing | None:
        """Reopen an incident that seemed to be over, if the finding began before its end or soon after."""
        for each in self._over:
            if each.belongs(found) and found.since <= each.last + (RECURS if found.is_short else GRACE):
                self._over.remove(each)
                self.open.append(each)
                each.over = None
                return each
        return None

    def _begin(self, found: Found, step: int, gather: Gather) -> Standing | None:
        if len(self.open) >= MAX_STANDING:
            if len(self._refused) < MAX_REFUSED:
                self._refused[found.rule, found.number] = found.severity
            return None
        # Another tap's problem began no earlier than the incident, even if merged steps look older.
        onsets = {number: max(onset, found.since) for number, onset in found.members} | {found.number: found.since}
        standing = Standing(found, found.severity, step, step, onsets, gather(found.number, found.since))
        self.open.append(standing)
        return standing


def _ends(standing: Standing, step: int) -> bool:
    """Return whether an incident is over: it was found neither now nor in the look before, for some steps."""
    if standing.found.is_short:
        standing.over = standing.last
    elif standing.last < step:
        before, standing.missed = standing.missed, step if standing.missed is None else standing.missed
        if before is not None and step - standing.last >= GRACE:
            standing.over = before
    return standing.over is not None


def _began_together(one: Found, other: Found) -> bool:
    return one.rule == other.rule and one.is_short == other.is_short and abs(one.since - other.since) <= GRACE

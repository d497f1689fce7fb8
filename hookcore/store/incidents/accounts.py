"""Incidents as they are now, with the values around their onset, and the first of several affected tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import GRADIENT_KINDS, SEVERITIES, Kind, Severity, Tap
from hookcore.records.vocabulary import GRAD_SCALE, OWN, is_per_frame, loss_rank
from hookcore.store.incidents.incident import (
    NONFINITE,
    Evidence,
    Floats,
    Found,
    Incident,
    Link,
    LoggedValue,
    Source,
    Steps,
)
from hookcore.store.incidents.replayed import Alarm, Replay, among

# The order in which a model computes within one step, to find the first of several affected taps.

# Taps are numbered when they are first seen: in the order of execution. The backward pass has the reverse order.
TURN: Final[dict[Kind, int]] = {
    "input": 0,
    "output": 0,
    "output_grad": 1,
    "input_grad": 1,
    "raw_grad": 2,
    "param_grad": 3,
    "exp_avg": 4,
    "exp_avg_sq": 4,
    "state": 4,
    "update": 5,
    "param": 6,
    "probe": 7,
}
BACKWARD: Final = GRADIENT_KINDS
_PER_TURN: Final = 2**34  # more than twice the number of taps that a store can hold
_CONTAINER: Final = 2**33

Rank = tuple[int, int, bool, int]


def rank_of(step: int, number: int, tap: Tap, containers: frozenset[str]) -> Rank:
    """Return a sort key by cause: a tap with a lower rank can have caused one with a higher rank.

    In the backward pass, a container shares a tensor with its last child, whose name is more specific.
    """
    backward = tap.kind in BACKWARD
    return step, TURN[tap.kind], backward and tap.module in containers, -number if backward else number


class Causes:
    """The ranks of a store's taps as arrays, updated if taps were added."""

    def __init__(self, taps: Sequence[Tap]) -> None:
        self._taps = taps  # only ever appended to
        self._keys: NDArray[np.int64] = np.empty(0, np.int64)
        self._modules: NDArray[np.int64] = np.empty(0, np.int64)

    def first_of(self, numbers: NDArray[np.integer]) -> int:
        """Return the tap that can have caused all others."""
        self._update()
        return int(numbers[np.argmin(self._keys[numbers])])

    def order(self, numbers: NDArray[np.integer], onsets: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the places of taps by onset, and within a step by cause."""
        self._update()
        return np.lexsort((self._keys[numbers], onsets))

    def modules(self, numbers: NDArray[np.integer]) -> int:
        """Return the number of different modules that taps belong to."""
        self._update()
        return len(np.unique(self._modules[numbers]))

    def _update(self) -> None:
        if len(self._keys) == len(self._taps):
            return
        taps = tuple(self._taps)
        containers = around({tap.module for tap in taps})
        places: dict[str, int] = {}
        self._modules = np.array([places.setdefault(tap.module, len(places)) for tap in taps], np.int64)
        self._keys = np.array([_key(*numbered, containers) for numbered in enumerate(taps)], np.int64)


def _key(number: int, tap: Tap, containers: frozenset[str]) -> int:
    _, turn, is_container, place = rank_of(0, number, tap, containers)
    return turn * _PER_TURN + is_container * _CONTAINER + place


def around(modules: Iterable[str]) -> frozenset[str]:
    """Return every path that contains one of these."""
    containers: set[str] = set()
    for module in modules:
        path = module
        while path:
            path = path.rpartition(".")[0]
            if path in containers:
                break
            containers.add(path)
    return frozenset(containers)


# Takes the values around an onset while they are still exact.

AROUND: Final = 50  # captured steps on either side
MAX_LOGGED: Final = 12
_BESIDE: Final = 2  # neighbors of the same kind, on either side
_OF_MODULE: Final = 3  # other tensors of the culprit's module

# Reads the exact rows from a step on, and some before it: the steps, and the values [column, step, lane].
ReadRows = Callable[[Sequence[int], int, int], tuple[Steps, Floats]]


@dataclass(slots=True)
class Window:
    """Rows of some lanes around a step, exact however the store merges them later."""

    lanes: tuple[int, ...]
    begin: int
    read: ReadRows
    steps: Steps
    values: Floats

    @classmethod
    def open(cls, lanes: Sequence[int], begin: int, read: ReadRows) -> Window:
        """Take what there is up to the onset."""
        return cls(tuple(lanes), begin, read, *read(lanes, begin, AROUND))

    @property
    def is_complete(self) -> bool:
        """Whether enough steps after the onset have been taken."""
        return len(self.steps) - int(np.searchsorted(self.steps, self.begin)) > AROUND

    @property
    def nbytes(self) -> int:
        """The memory that it takes when it is complete."""
        return (2 * AROUND + 1) * 8 * (1 + len(self.values) * len(self.lanes))

    def extend(self) -> None:
        """Take the data that has since arrived, and the newest step again, which may have another part."""
        if self.is_complete or not self.lanes:
            return
        whole = slice(0, max(0, len(self.steps) - 1))
        first = int(self.steps[-1]) if len(self.steps) else self.begin
        steps, values = self.read(self.lanes, first, 0)
        end = int(np.searchsorted(self.steps, self.begin)) + AROUND + 1
        self.steps = np.concatenate([self.steps[whole], steps])[:end]
        self.values = np.concatenate([self.values[:, whole], values], axis=1)[:, :end]


@dataclass(slots=True)
class Gathering:
    """The evidence of an incident while it is taken."""

    taps: tuple[Tap, ...]
    names: tuple[str, ...]
    stats: Window
    logged: Window

    @property
    def is_complete(self) -> bool:
        """Whether the steps after the onset have been taken."""
        return self.stats.is_complete

    @property
    def nbytes(self) -> int:
        """The memory that it takes when it is complete."""
        return self.stats.nbytes + self.logged.nbytes

    def extend(self) -> None:
        """Take the data that has since arrived."""
        self.stats.extend()
        self.logged.extend()

    def evidence(self) -> Evidence:
        """Return the evidence so far."""
        logged = []
        for place, name in enumerate(self.names):
            present = self.logged.values[0, :, place] == 1
            logged.append(LoggedValue(name, self.logged.steps[present], self.logged.values[-1, present, place]))
        shown = tuple(log for log in logged if len(log.steps))
        return Evidence(self.stats.lanes, self.taps, self.stats.steps, self.stats.values, shown)


def neighbors_of(culprit: int, taps: Sequence[Tap]) -> list[int]:
    """Return the culprit, other tensors of its module, and the tensors of its kind before and after it."""
    tap = taps[culprit]
    own = [number for number, other in enumerate(taps) if other.module == tap.module and number != culprit]
    own.sort(key=lambda number: (abs(TURN[taps[number].kind] - TURN[tap.kind]), number))
    alike = [number for number, other in enumerate(taps) if (other.kind, other.phase) == (tap.kind, tap.phase)]
    place = alike.index(culprit)
    beside = alike[max(0, place - _BESIDE) : place] + alike[place + 1 : place + 1 + _BESIDE]
    return list(dict.fromkeys([culprit, *own[:_OF_MODULE], *beside]))


def worth_showing(names: Sequence[str]) -> list[str]:
    """Return the logged values that explain most: the loss scale, losses, learning rates, and then others."""
    wanted = [name for name in names if name == GRAD_SCALE or not name.startswith(OWN)]
    return sorted(wanted, key=lambda name: (name != GRAD_SCALE, loss_rank(name), "lr" not in name))[:MAX_LOGGED]


# The ongoing incident with non-finite values, and an incident that is over, as the book keeps them.

NEVER: Final = -1
_RECORD_BYTES: Final = 512  # an incident without its arrays

Flags = NDArray[np.bool_]


@dataclass(slots=True)
class Open:
    """The incident that is going on. `closed_at` is the step that ended it; a later part of that step may reopen it.

    `begin` is its first captured step, NEVER if none has been captured, and `culprit` what was first in that step.
    """

    found: int  # the step with which it was found
    begin: int
    last: int
    steps: int
    previous: int | None  # the newest step before `begin` in which nothing was found
    onset: Steps  # of each tap; NEVER if it is not affected
    with_nan: Flags  # which taps had a NaN in the first step
    culprit: int = NEVER
    culprit_last: int = NEVER
    culprit_recovered: bool = False
    closed_at: int = NEVER
    skipped: bool = False
    loss: str = ""
    known: str = ""  # about what the culprit was computed from
    version: int = 0
    gathering: Gathering | None = None
    alarm: Alarm | None = None  # of the trainer's check of every step


@dataclass(frozen=True, slots=True)
class Onset:
    """The first step in which an incident was found, and the newest one before it in which nothing was found."""

    step: int
    fine: int | None  # None if there is no such step

    @classmethod
    def of(cls, incident: Open) -> Onset:
        """Return what captured steps and the trainer's check say together."""
        alarm, begin = incident.alarm, incident.begin
        if alarm is None or 0 <= begin < alarm.step:
            return cls(begin, incident.previous)
        before = (alarm.previous, incident.previous if begin == alarm.step else None)
        return cls(alarm.step, max((each for each in before if each is not None), default=None))

    @property
    def is_exact(self) -> bool:
        """Whether no step right before the first one is unknown."""
        return self.fine is None or self.fine == self.step - 1


@dataclass(frozen=True, slots=True)
class Over:
    """An incident that is over, with its chain as numbers."""

    about: Incident  # without the chain and the evidence
    numbers: NDArray[np.int64]
    onsets: Steps
    gathering: Gathering | None
    replay: Replay | None = None  # if it has named the culprit

    @property
    def nbytes(self) -> int:
        return (
            _RECORD_BYTES + self.numbers.nbytes + self.onsets.nbytes + (self.gathering.nbytes if self.gathering else 0)
        )


# Incidents that a rule finds by looking at many steps: opened once, followed, and never reassigned.

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

    def belongs(self, finding: Found) -> bool:
        """Return whether a later look found the same incident: the same rule, and a tap in common."""
        if finding.rule != self.found.rule or finding.is_short != self.found.is_short:
            return False
        return any(number in self.onsets for number, _ in finding.members)

    def add(self, finding: Found, step: int) -> bool:
        """Add what a look at a step found; return whether that is news."""
        worse = SEVERITIES.index(finding.severity) < SEVERITIES.index(self.severity)
        new = [member for member in finding.members if member[0] not in self.onsets]
        self.onsets.update((number, max(onset, self.found.since)) for number, onset in new)
        if worse:
            self.milder += ((step, self.severity),)
            self.severity = finding.severity
        self.times += 1
        self.last, self.missed = step if finding.until is None else finding.until, None
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
        return sum(standing.nbytes for standing in self.open)

    @property
    def dropped_alerts(self) -> int:
        """The number of these that were warnings or errors."""
        return sum(severity != "info" for severity in list(self._refused.values()))  # another thread may add one

    def follow(
        self, step: int, findings: Sequence[Found], gather: Gather, per_frame: bool = False
    ) -> tuple[list[Standing], list[Standing]]:
        """Follow the findings at a step. Return the incidents that changed, and those that are over.

        Findings about single frames end only incidents of that kind; findings about many steps end only the others.
        """
        changed: list[Standing] = []
        fresh: list[Standing] = []
        for finding in sorted(findings, key=lambda finding: finding.since):
            if finding.is_short and self._explains(finding):
                continue
            standing = next((old for old in self.open if old.belongs(finding)), None)
            standing = standing or next((new for new in fresh if _began_together(new.found, finding)), None)
            begun = standing is None
            standing = standing or self._return(finding) or self._begin(finding, step, gather)
            if standing is None:
                continue
            news = standing.add(finding, step)
            if begun:
                fresh.append(standing)
            if (news or begun) and standing not in changed:
                changed.append(standing)
        ended = [old for old in self.open if is_per_frame(old.found.rule) == per_frame and _ends(old, step)]
        self.open = [old for old in self.open if old.over is None]
        self._over.extend(ended)
        return changed, ended

    def _explains(self, finding: Found) -> bool:
        """Return whether an incident that lasts began before something short, and has a tap in common with it."""
        lasting = (
            standing for standing in self.open if not standing.found.is_short and standing.found.since <= finding.since
        )
        return any(number in standing.onsets for standing in lasting for number, _ in finding.members)

    def _return(self, finding: Found) -> Standing | None:
        """Reopen an incident that seemed to be over, if the finding began before its end or soon after."""
        for standing in self._over:
            if standing.belongs(finding) and finding.since <= standing.last + (RECURS if finding.is_short else GRACE):
                self._over.remove(standing)
                self.open.append(standing)
                standing.over = None
                return standing
        return None

    def _begin(self, finding: Found, step: int, gather: Gather) -> Standing | None:
        if len(self.open) >= MAX_STANDING:
            if len(self._refused) < MAX_REFUSED:
                self._refused[finding.rule, finding.number] = finding.severity
            return None
        # Another tap's problem began no earlier than the incident, even if merged steps look older.
        onsets = {number: max(onset, finding.since) for number, onset in finding.members} | {
            finding.number: finding.since
        }
        standing = Standing(finding, finding.severity, step, step, onsets, gather(finding.number, finding.since))
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


MAX_CHAIN: Final = 256  # tensors that followed, with their first steps
UNCAPTURED: Final = -1  # the number of a tensor that was never captured
WHOLE: Final = Tap("", "output")  # the model itself stands for a layer that isn't known


@dataclass(frozen=True, slots=True)
class Accounts:
    """Makes the records of one store's incidents."""

    taps: list[Tap]  # only ever appended to
    numbers: dict[Tap, int]
    causes: Causes

    def of_nonfinite(self, incident: Open) -> Over:
        """Return the incident of non-finite values that is going on."""
        affected = np.flatnonzero(incident.onset != NEVER)
        onset = Onset.of(incident)
        culprit, source = self._culprit_of(incident, onset)
        is_known, is_captured = culprit is not None, culprit is not None and source == "capture"
        about = Incident(
            NONFINITE,
            self.whole(onset.step) if culprit is None else culprit,
            self._value_of(incident, onset, is_captured),
            onset.step,
            incident.last,
            incident.closed_at if incident.closed_at >= 0 else None,
            incident.steps,
            incident.skipped,
            onset.fine,
            incident.culprit_last if is_captured else incident.last,
            loss=incident.loss if is_captured else self._loss_of(incident, onset) if culprit is None else "",
            known=incident.known if is_captured else "",
            version=incident.version,
            found_step=incident.found,
            culprit_known=is_known,
            source=source,
        )
        return self._with_chain(about, affected, incident.onset[affected], incident.gathering)

    def _culprit_of(self, incident: Open, onset: Onset) -> tuple[Link | None, Source]:
        """Return what began it, or None: what was captured in a later step may only have followed."""
        alarm, step = incident.alarm, onset.step
        if alarm is not None and alarm.step == step and alarm.weight is not None:
            return Link(self.number_of(alarm.weight), alarm.weight, step), "check"
        if incident.begin != step:
            return None, "capture"
        first = self.taps[incident.culprit]
        # A step that the scaler skips leaves the weights as they are, so each of them stands for itself.
        stands_alone = incident.skipped and first.kind in GRADIENT_KINDS
        return (self._link(incident.culprit, step) if onset.is_exact or stands_alone else None), "capture"

    @staticmethod
    def _loss_of(incident: Open, onset: Onset) -> str:
        """Return "the loss" if it was the only non-finite value of a first step that was captured, or nothing."""
        alarm = incident.alarm
        if alarm is None or not alarm.in_loss or alarm.step != onset.step:
            return ""
        has_arrived = incident.begin > alarm.step or incident.closed_at > alarm.step  # the frame of that step
        return "the loss" if has_arrived else ""

    @staticmethod
    def _value_of(incident: Open, onset: Onset, is_captured: bool) -> float:
        if incident.alarm is not None and not is_captured and incident.alarm.step == onset.step:
            return incident.alarm.value
        return float("nan") if incident.with_nan[incident.culprit] else float("inf")

    def whole(self, step: int) -> Link:
        """Return the model itself, in the place of a layer that isn't known."""
        return Link(self.number_of(WHOLE), WHOLE, step)

    def number_of(self, tap: Tap) -> int:
        """Return the number of a tensor, which is negative if it was never captured."""
        return self.numbers.get(tap, UNCAPTURED)

    def _modules_of(self, numbers: NDArray[np.integer]) -> set[str]:
        return {self.taps[number].module for number in numbers.tolist()}

    def told(self, over: Over, replay: Replay, gathering: Gathering | None) -> Over:
        """Return an incident with what the replay of its first step found, and the values around that."""
        about = over.about
        if about.message or about.unseen:
            return over
        replay = self._numbered(replay)
        version = max(about.version, replay.version)
        if about.culprit_known and replay.culprit.tap.kind != "input":  # a bad batch isn't the first layer's fault
            return replace(over, about=replace(about, where=replay.where, version=version))
        replayed = {replay.culprit.tap, *(link.tap for link in replay.chain)}
        others = [self.taps[number] not in replayed for number in over.numbers.tolist()]
        modules = {tap.module for tap in replayed} | self._modules_of(over.numbers)
        about = replace(
            about,
            culprit=replay.culprit,
            value=replay.value,
            taps=about.taps + len(replay.chain) - others.count(False),
            modules=max(about.modules, len(modules)) - 1,
            culprit_known=True,
            source="replay",
            where=replay.where,
            version=version,
        )
        kept = np.array(others, bool)
        return Over(about, over.numbers[kept], over.onsets[kept], gathering or over.gathering, replay)

    def _numbered(self, replay: Replay) -> Replay:
        """Return a replay with the numbers of its tensors, which may have been captured only later."""
        culprit, *chain = (replace(link, number=self.number_of(link.tap)) for link in (replay.culprit, *replay.chain))
        evidence = replay.evidence
        if evidence is not None:
            evidence = replace(evidence, numbers=tuple(map(self.number_of, evidence.taps)))
        return replace(replay, culprit=culprit, chain=tuple(chain), evidence=evidence)

    def of_rule(self, standing: Standing) -> Over:
        """Return an incident of a rule."""
        finding = standing.found
        about = Incident(
            finding.rule,
            self._link(finding.number, finding.since),
            finding.value,
            finding.since,
            standing.last,
            standing.over,
            standing.times if finding.is_short else standing.last - finding.since + 1,
            culprit_last=standing.last,
            version=standing.version,
            message=finding.message,
            level=standing.severity,
            milder=standing.milder,
            usual=finding.usual,
            found_step=standing.found_step,
            short=finding.is_short,
            previous=finding.since - finding.unseen - 1 if finding.unseen else None,
            placed=finding.placed,
        )
        numbers = np.array(list(standing.onsets), np.int64)
        onsets = np.array(list(standing.onsets.values()), np.int64)
        return self._with_chain(about, numbers, onsets, standing.gathering)

    def read(self, incident: Over) -> Incident:
        """Return an incident with its chain and its evidence."""
        pairs = zip(incident.numbers.tolist(), incident.onsets.tolist(), strict=True)
        chain, evidence = tuple(self._link(*pair) for pair in pairs), None
        if incident.gathering is not None:
            evidence = incident.gathering.evidence()
        if incident.replay is not None:
            chain, replayed = (*incident.replay.chain, *chain), incident.replay.evidence
            evidence = evidence if replayed is None else among(evidence, replayed)
        return replace(incident.about, chain=chain, evidence=evidence)

    def _link(self, number: int, step: int) -> Link:
        return Link(number, self.taps[number], step)

    def _with_chain(
        self, about: Incident, affected: NDArray[np.int64], onsets: Steps, gathering: Gathering | None
    ) -> Over:
        others = affected != about.culprit.number if about.culprit_known else np.ones(len(affected), bool)
        modules = self.causes.modules(affected)
        own = about.culprit_known and (not others.all() or about.culprit.tap.module in self._modules_of(affected))
        numbers, onsets = affected[others], onsets[others]
        chain = self.causes.order(numbers, onsets)[:MAX_CHAIN]
        about = replace(about, taps=len(numbers), modules=modules - own)
        return Over(about, numbers[chain], onsets[chain], gathering)

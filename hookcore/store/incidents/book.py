"""The incidents of a run, followed frame by frame. Their evidence is taken when they happen, and never read again."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hookcore.records import ROOT, Kind, Tap
from hookcore.records.flow import Flow
from hookcore.records.masks import Masks
from hookcore.records.vocabulary import is_loss
from hookcore.store.incidents.accounts import (
    BACKWARD,
    NEVER,
    Accounts,
    Causes,
    Flags,
    Gathering,
    Onset,
    Open,
    Over,
    Standing,
    Standings,
    Window,
    neighbors_of,
    worth_showing,
)
from hookcore.store.incidents.incident import SCALER_SEARCH, Floats, Found, Incident, Steps
from hookcore.store.incidents.replayed import Alarm, Replay

# Finds the tensors that became non-finite in a step although their inputs were finite.

_OUTPUTS: Final[tuple[Kind, Kind]] = ("output", "input")
_GRADIENTS: Final[tuple[Kind, Kind]] = ("output_grad", "input_grad")
_WEIGHTS: Final[tuple[Kind, Kind]] = ("param_grad", "param_grad")  # they come in the order of the others
_PASSES: Final[Mapping[Kind, tuple[Kind, Kind]]] = {
    **dict.fromkeys(_OUTPUTS, _OUTPUTS),
    **dict.fromkeys(_GRADIENTS, _GRADIENTS),
    **dict.fromkeys(_WEIGHTS, _WEIGHTS),
}
_NAMED: Final = 3  # modules in a sentence


@dataclass(frozen=True, slots=True)
class Feeder:
    """The tap where the problem started, and the known facts about its inputs, in words."""

    number: int
    known: str


class Feeding:
    """The flow that fits one step best, and the taps of its calls."""

    def __init__(self, flow: Flow, taps: Sequence[Tap]) -> None:
        self._flow, self._taps = flow, taps
        places = _places(flow)
        self._numbers: dict[tuple[int, Kind], list[int]] = {}
        for number, tap in enumerate(taps):
            place = places.get((tap.module, tap.call, tap.phase))
            if place is not None:
                self._numbers.setdefault((place, tap.kind), []).append(number)
        self._fed: list[set[int]] = [set() for _ in flow.calls]
        self._holder: dict[int, int] = {}  # the container that returned a call's output as it was
        for place, call in enumerate(flow.calls):
            for source in call.fed_by:
                self._fed[source].add(place)
            for inside in call.returns:
                self._holder.setdefault(inside, place)

    def first(
        self, bad: Collection[int], present: Collection[int], kind: Kind, masks: Collection[int] = ()
    ) -> Feeder | None:
        """Return the first tap that went bad by itself, in the order of the pass that the kind belongs to.

        None if the flow doesn't tell. `masks` are taps with infinities that do no harm.
        """
        kinds = _PASSES.get(kind)
        if kinds is None:
            return None
        backward = kinds != _OUTPUTS
        step = _Step(self, set(bad), set(present), kinds)
        suspects = [place for place in range(len(self._flow.calls)) if step.is_bad(place) and not step.is_same(place)]
        before = {place: [source for source in step.nearest(place)[0] if step.is_bad(source)] for place in suspects}
        starts = [place for place in suspects if not before[place]]
        loop = set[int]()
        if not starts:  # the calls after the last one that is measured by itself feed each other
            starts = [place for place in suspects if all((source > place) != backward for source in before[place])]
            loop = {source for place in starts for source in before[place]}
        if not starts:
            return None
        culprit = starts[-1] if backward else starts[0]
        number = step.number_of(culprit)
        captured, unseen = step.nearest(culprit)
        if kinds == _WEIGHTS:
            words = ""
        elif loop:
            words = self._looped(culprit, loop)
        else:
            hidden = {place for place in captured if any(number in masks for number in self.numbers(place, kinds[0]))}
            captured -= hidden
            words = self._backward(captured, unseen) if backward else self._forward(culprit, captured, unseen, hidden)
        return Feeder(number, f"{words}{self._apart(starts, culprit)}")

    def numbers(self, place: int, kind: Kind) -> list[int]:
        """Return the taps of a call that are of this kind."""
        return self._numbers.get((place, kind), [])

    def before(self, place: int, backward: bool) -> set[int]:
        """Return the calls whose tensors it was computed from, in the direction of the pass."""
        call = self._flow.calls[place]
        if not backward:
            return {*call.fed_by, *call.returns}
        return self._fed[place].union(*(self._fed[inside] for inside in call.returns))

    def returned(self, place: int) -> tuple[int, ...]:
        """Return the calls inside a container whose outputs are its own."""
        return self._flow.calls[place].returns

    def holder(self, place: int) -> int | None:
        """Return the container whose output is that of this call."""
        return self._holder.get(place)

    def _looped(self, culprit: int, loop: set[int]) -> str:
        first = self._flow.calls[culprit].call + 1
        together = (
            f"Calls from number {first} on are measured together. In them, {self._names(loop)} was non-finite, too"
        )
        return f"{together}, and feeds it, so any module between the two may have been first."

    def _forward(self, culprit: int, captured: set[int], unseen: set[int], masks: set[int]) -> str:
        if self._flow.calls[culprit].how == "order":
            return "Its inputs are unknown."
        fine = f"Its input was finite: the activation of {self._names(captured)}." if captured else ""
        if not captured and not unseen and not masks:
            fine = "No other module feeds it."
        mask = f"Its input from {self._names(masks)} has infinities that look like a mask." if masks else ""
        return " ".join(filter(None, [fine, mask, self._unseen(unseen, "feed it")]))

    def _backward(self, captured: set[int], unseen: set[int]) -> str:
        fine = ""
        if captured:
            names = self._names(captured)
            fine = f"It was computed from a finite gradient: the activation gradient of {names}."
        elif not unseen:
            fine = "It came directly from the loss."
        return " ".join(filter(None, [fine, self._unseen(unseen, "it feeds")]))

    def _unseen(self, places: set[int], role: str) -> str:
        return f"Not captured among the modules that {role}: {self._names(places)}." if places else ""

    def _apart(self, starts: Sequence[int], culprit: int) -> str:
        modules = {self._flow.calls[place].module for place in starts} - {self._flow.calls[culprit].module}
        others = [place for place in starts if self._flow.calls[place].module in modules]
        return f" Also affected in the same step, but not through it: {self._names(others)}." if others else ""

    def _names(self, places: Iterable[int]) -> str:
        names = list(dict.fromkeys(self._flow.calls[place].module or ROOT for place in sorted(places)))
        more = len(names) - _NAMED
        return " and ".join(names[:_NAMED] if more <= 0 else [", ".join(names[:_NAMED]), f"{more} more"])


class _Step:
    """The known state of each call in one step, in one direction."""

    def __init__(self, feeding: Feeding, bad: set[int], present: set[int], kinds: tuple[Kind, Kind]) -> None:
        self._feeding, self._bad, self._present = feeding, bad, present
        self._result, self._given = kinds  # the kind that a call passes on, and the other one
        self._is_backward = kinds != _OUTPUTS

    def is_bad(self, place: int) -> bool:
        """Whether a tensor of this call was bad."""
        return any(number in self._bad for kind in (self._result, self._given) for number in self._of(place, kind))

    def is_same(self, place: int) -> bool:
        """Whether its bad tensor is that of a call inside."""
        return any(map(self.is_bad, self._feeding.returned(place)))

    def number_of(self, place: int) -> int:
        """Return the tap to blame: of the forward pass the input, if it was bad already."""
        kinds = (self._result, self._given) if self._is_backward else (self._given, self._result)
        return next(number for kind in kinds for number in self._of(place, kind) if number in self._bad)

    def nearest(self, place: int) -> tuple[set[int], set[int]]:
        """Return the nearest captured calls before it in this direction, and those on the way that were not."""
        captured, unseen, seen = set[int](), set[int](), {place}
        waiting = list(self._feeding.before(place, self._is_backward))
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            holder = self._feeding.holder(at)
            if self._is_known(at):
                captured.add(at)
            elif holder is not None and holder != place and self._is_known(holder):
                captured.add(holder)
            else:
                unseen.add(at)
                waiting += self._feeding.before(at, self._is_backward)
        return captured, unseen

    def _is_known(self, place: int) -> bool:
        return any(number in self._present for number in self._of(place, self._result))

    def _of(self, place: int, kind: Kind) -> list[int]:
        return self._feeding.numbers(place, kind)


def fitting(flows: Sequence[Flow], taps: Sequence[Tap], present: Collection[int]) -> Flow | None:
    """Return the newest of the flows whose calls are most like those of a step."""
    if len(flows) < 2:
        return flows[0] if flows else None
    about = {*_OUTPUTS, *_GRADIENTS}
    calls = {(tap.module, tap.call, tap.phase) for tap in map(taps.__getitem__, present) if tap.kind in about}
    tapped = {(tap.module, tap.call, tap.phase) for tap in taps if tap.kind in about}
    return min(reversed(flows), key=lambda flow: len(calls ^ (_places(flow).keys() & tapped)))


def _places(flow: Flow) -> dict[tuple[str, int, str], int]:
    return {(call.module, call.call, call.phase): place for place, call in enumerate(flow.calls)}


KEPT_FIRST: Final = 8  # incidents from the beginning of the run
KEPT_NEWEST: Final = 24
MAX_UNFINISHED: Final = 2  # of rules, whose evidence is taken at the same time; as many more of non-finite values
MAX_REPLAYS: Final = 8  # the newest ones
_FULL: Final = 0.75  # of the limit: the rest is for the ongoing incident
_SCALER_STEPS: Final = 8  # newest steps that a scaler skipped

Numbers = NDArray[np.integer]


class Origin(Protocol):
    """The store's knowledge when a frame has arrived."""

    taps: list[Tap]  # only ever appended to
    tap_numbers: dict[Tap, int]
    flows: tuple[Flow, ...]  # which call fed which, as the frames so far have said

    def first_step(self) -> int | None:
        """Return the first step, captured or not."""

    def captured_around(self, step: int) -> tuple[int | None, int | None]:
        """Return the captured steps before and after a step, as far as they are known."""

    def lanes_of_scalars(self) -> dict[str, int]:
        """Return the lane of each scalar by name."""

    def stat_rows(self, lanes: Sequence[int], first: int, before: int) -> tuple[Steps, Floats]:
        """Return the unmerged stats of taps from a step on, and some before it."""

    def scalar_rows(self, lanes: Sequence[int], first: int, before: int) -> tuple[Steps, Floats]:
        """Return those of scalars."""


@dataclass(slots=True)
class Incidents:
    """The incidents of one store. One thread writes, many read. Costs almost nothing in a run without any."""

    source: Origin
    max_bytes: int
    version: int = 0  # changes when one begins, spreads, is over, or was skipped
    made_room: int = 0  # incidents that were dropped to make room
    alerts_made_room: int = 0  # those among them that were not notes
    without_evidence: int = 0  # incidents whose values around the onset were not kept
    masks: Masks = field(default_factory=Masks)
    whose: Callable[[int, int], str] = lambda number, step: ""  # in which ranks a tap had a non-finite value in a step
    _known: int = 0  # taps before this frame
    # By step, with the values around what they name.
    _replays: dict[int, tuple[Replay, Gathering | None]] = field(default_factory=dict)
    # By step, what is known of repeating it, as fields of an incident, with the version.
    _noted: dict[int, tuple[dict[str, Any], int]] = field(default_factory=dict)
    _open: Open | None = None
    _over: list[Over] = field(default_factory=list)
    _unfinished: list[Gathering] = field(default_factory=list)  # the steps after the onset are still to come
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _skipped: deque[int] = field(default_factory=lambda: deque(maxlen=_SCALER_STEPS))
    _causes: Causes = field(init=False)
    _accounts: Accounts = field(init=False)
    _standings: Standings = field(init=False)

    def __post_init__(self) -> None:
        self._causes = Causes(self.source.taps)
        self._accounts = Accounts(self.source.taps, self.source.tap_numbers, self._causes)
        self._standings = Standings()

    @property
    def dropped(self) -> int:
        """The number of incidents that were dropped to make room, or found none."""
        return self.made_room + self._standings.dropped

    @property
    def dropped_alerts(self) -> int:
        """The number of these that were warnings or errors."""
        return self.alerts_made_room + self._standings.dropped_alerts

    @property
    def nbytes(self) -> int:
        """The bytes in use; zero in a run without incidents."""
        used, current = sum(over.nbytes for over in self._over) + self._standings.nbytes, self._open
        if current is not None:
            used += current.onset.nbytes + current.with_nan.nbytes
            used += 0 if current.gathering is None else current.gathering.nbytes
        return used + sum(0 if gathering is None else gathering.nbytes for _, gathering in self._replays.values())

    @property
    def is_going_on(self) -> bool:
        """Whether there is an incident of non-finite values that isn't over."""
        return self._open is not None and self._open.closed_at < 0

    @property
    def rests(self) -> bool:
        """Whether there is nothing that the next frames could change, as long as their values are finite."""
        return self._open is None and not self._unfinished

    def alarm(self, alarm: Alarm) -> None:
        """Follow a step in which the trainer found a non-finite value, captured or not, perhaps some steps later."""
        before, after = self.source.captured_around(alarm.step)
        with self._lock:
            incident = self._open
            if incident is not None and 0 <= incident.closed_at < alarm.step:
                self._file(incident)
                incident = None
            if incident is None:
                incident = self._open = self._begin(alarm.step)
                incident.closed_at = NEVER if after is None else after  # nothing was found in it
                self._gather_around(alarm.step, incident)
            elif incident.previous is not None and alarm.step <= incident.previous:
                return  # an earlier one, which was over before the alarm arrived
            incident.last = max(incident.last, alarm.step)
            if incident.alarm is None or alarm.step < incident.alarm.step:
                fine = self._before_all(alarm.step) if alarm.previous is None else alarm.previous
                fine = max((step for step in (before, fine) if step is not None), default=None)
                incident.alarm = replace(alarm, previous=fine)
                self._note_change(incident)

    def explain(self, replay: Replay) -> None:
        """Take what the replay of a step found: the culprit of the incident that began in that step."""
        with self._lock:
            self.version += 1
            culprit = self._accounts.number_of(replay.culprit.tap)
            gathering = self._gather(culprit, replay.step, 2 * MAX_UNFINISHED) if culprit >= 0 else None
            self._replays[replay.step] = replace(replay, version=self.version), gathering
            while len(self._replays) > MAX_REPLAYS:
                del self._replays[next(iter(self._replays))]

    def note_unsaved(self, step: int, because: str) -> None:
        """Note why a step in which an incident began can't be repeated."""
        self._note(step, unsaved=because)

    def note_found_nothing(self, step: int, exact: bool) -> None:
        """Note that the replay of a step found nothing non-finite. `exact`: its outputs are those of the training."""
        self._note(step, replayed_fine=exact)

    def _note(self, step: int, **known: Any) -> None:
        with self._lock:
            self.version += 1
            self._noted[step] = known, self.version
            while len(self._noted) > MAX_REPLAYS:
                del self._noted[next(iter(self._noted))]

    def _begin(self, step: int) -> Open:
        lanes = len(self.source.taps)
        incident = Open(step, NEVER, NEVER, 0, None, np.full(lanes, NEVER, np.int64), np.zeros(lanes, bool))
        self._note_change(incident)
        return incident

    def _before_all(self, step: int) -> int | None:
        """Return the step before the first one of the run, if that one wasn't looked at."""
        first = self.source.first_step()
        return None if first is None or first >= step else first - 1

    def take(self, step: int, previous: int | None, bad: Numbers, nan: Flags, fine: Numbers) -> None:
        """Follow a captured step, or another part of the newest one.

        `bad` are the affected taps and `fine` those that are not; `nan` says which of `bad` have a NaN.
        """
        incident = self._open
        if incident is None and not len(bad):
            return
        with self._lock:
            if not len(bad):
                self._note_fine(step, fine)
                return
            if incident is not None and 0 <= incident.closed_at < step:
                self._file(incident)
                incident = None
            if incident is None:
                incident = self._open = self._begin(step)
            if incident.begin == NEVER:
                incident.begin, incident.previous = step, self._before_all(step) if previous is None else previous
            self._note_bad(incident, step, bad, nan)
            self._note_fine(step, fine)

    def harmful(self, step: int, bad: Numbers, no_mask: Flags, fine: Numbers, scalars: Mapping[str, float]) -> Flags:
        """Return which of the affected taps aren't masks. `no_mask` says which can't be one."""
        if not len(bad) or (no_mask.all() and not self.masks.since):
            return np.ones(len(bad), bool)
        if not all(math.isfinite(value) for name, value in scalars.items() if is_loss(name)):
            no_mask = no_mask | ~np.isin(bad, list(self.masks.since))
        can_harm = dict(zip(bad.tolist(), no_mask.tolist(), strict=True))
        harmful = self.masks.harmful(
            step, can_harm, fine.tolist, lambda number: self.source.taps[number].kind, self._known
        )
        return np.isin(bad, harmful)

    def settle(self, step: int, scalars: Mapping[str, float]) -> None:
        """Finish a frame: name the culprit of its step, and take evidence."""
        incident, self._known = self._open, len(self.source.taps)
        if incident is None and not self._unfinished:
            return
        with self._lock:
            if incident is not None and incident.begin == step:
                self._name_culprit(incident, scalars)
            for gathering in self._unfinished:
                gathering.extend()
            self._unfinished = [gathering for gathering in self._unfinished if not gathering.is_complete]

    def _name_culprit(self, incident: Open, scalars: Mapping[str, float]) -> None:
        affected = np.flatnonzero(incident.onset == incident.begin)
        culprit, incident.known = self._causes.first_of(affected), ""
        source = self._source_of(culprit, affected, incident.begin)
        if source is not None:
            culprit, incident.known = source.number, source.known
        incident.known = " ".join(filter(None, [self.whose(culprit, incident.begin), incident.known]))
        if self.source.taps[culprit].kind not in ("input", "output"):
            losses = (name for name, value in scalars.items() if is_loss(name) and not math.isfinite(value))
            incident.loss = next(losses, incident.loss)
        if culprit != incident.culprit:  # the first part of the step, or a later part with an earlier tap
            self._unfinished = [gathering for gathering in self._unfinished if gathering is not incident.gathering]
            incident.culprit, incident.culprit_last = culprit, incident.begin
            incident.gathering = self._gather(culprit, incident.begin, 2 * MAX_UNFINISHED)
            self._note_change(incident)

    def _gather_around(self, step: int, incident: Open) -> None:
        """Begin to take the values of the whole model around a step that may not be captured."""
        root = self._accounts.whole(step)
        if root.number >= 0:
            incident.gathering = self._gather(root.number, step, 2 * MAX_UNFINISHED)

    def _source_of(self, first: int, affected: Numbers, step: int) -> Feeder | None:
        """Return what went bad by itself, if the flow tells. Bad inputs of the model have nothing before them."""
        taps, kind = self.source.taps, self.source.taps[first].kind
        if kind not in ("output", *BACKWARD) or not self.source.flows:
            return None
        steps, stats = self.source.stat_rows(range(len(taps)), step, 0)
        captured = np.flatnonzero(~np.isnan(stats[0, 0])).tolist() if len(steps) and steps[0] == step else []
        flow = fitting(self.source.flows, taps, captured)
        if flow is None:
            return None
        return Feeding(flow, taps).first(affected.tolist(), captured, kind, self.masks.since)

    def _gather(self, culprit: int, begin: int, limit: int = MAX_UNFINISHED) -> Gathering | None:
        """Begin to take the values around an onset, if there is room for them (the lock must be held)."""
        if len(self._unfinished) < limit:
            source = self.source  # by name below: a bound method would keep the store in a circle
            lanes, numbers = source.lanes_of_scalars(), neighbors_of(culprit, self.source.taps)
            names = worth_showing(list(lanes))
            gathering = Gathering(
                tuple(self.source.taps[number] for number in numbers),
                tuple(names),
                Window.open(numbers, begin, lambda *bounds: source.stat_rows(*bounds)),
                Window.open([lanes[name] for name in names], begin, lambda *bounds: source.scalar_rows(*bounds)),
            )
            if self.nbytes + gathering.nbytes < _FULL * self.max_bytes:
                self._unfinished.append(gathering)
                return gathering
        self.without_evidence += 1
        return None

    def judge(self, step: int, findings: Sequence[Found], per_frame: bool = False) -> None:
        """Follow the findings of the rules about the steps up to this one, or the findings about each frame."""
        if not findings and not self._standings.open:
            return
        with self._lock:
            changed, ended = self._standings.follow(step, findings, self._gather, per_frame)
            for standing in {id(standing): standing for standing in (*changed, *ended)}.values():
                self._note_change(standing)
            back = {self._accounts.of_rule(standing).about.id for standing in changed}
            self._over = [over for over in self._over if over.about.id not in back]
            for standing in ended:
                self._put(self._accounts.of_rule(standing))

    def note_skipped(self, step: int) -> None:
        """Record that a gradient scaler skipped a step. Its non-finite gradients are how the scaler finds its scale."""
        with self._lock:
            self._skipped.append(step)
            if self._open is not None:
                self._note_skip(self._open, step)
            for place, over in enumerate(self._over):
                if not over.about.skipped and _touches(over.about.first_step, over.about.last_step, step):
                    self.version += 1
                    about = replace(over.about, skipped=True, version=self.version)
                    self._over[place] = replace(over, about=about)

    def all(self) -> list[Incident]:
        """Return the first and the newest incidents, oldest first. `dropped` counts the others."""
        with self._lock:
            return [self._accounts.read(state) for state in self._states()]

    def heads(self) -> list[Incident]:
        """Return the same incidents without their chains and evidence, which take time to read."""
        with self._lock:
            return [state.about for state in self._states()]

    def _states(self) -> list[Over]:
        """Return all incidents as they are now, oldest first (the lock must be held)."""
        states, current = list(self._over), self._open
        if current is not None and (current.culprit >= 0 or current.alarm is not None):
            states.append(self._accounts.of_nonfinite(current))
        states += map(self._accounts.of_rule, self._standings.open)
        if self._replays:
            replays = ((over, self._replays.get(over.about.first_step)) for over in states)
            states = [over if told is None else self._accounts.told(over, *told) for over, told in replays]
        if self._noted:
            states = [self._with_noted(over) for over in states]
        return sorted(states, key=lambda over: over.about.first_step)

    def _with_noted(self, over: Over) -> Over:
        known, version = self._noted.get(over.about.first_step, ({}, 0))
        if not known:
            return over
        return replace(over, about=replace(over.about, **known, version=max(over.about.version, version)))

    def _note_bad(self, incident: Open, step: int, bad: Numbers, nan: Flags) -> None:
        if len(incident.onset) < len(self.source.taps):
            missing = len(self.source.taps) - len(incident.onset)
            incident.onset = np.append(incident.onset, np.full(missing, NEVER, np.int64))
            incident.with_nan = np.append(incident.with_nan, np.zeros(missing, bool))
        incident.steps += incident.last != step or incident.steps == 0
        incident.last, incident.closed_at = step, NEVER
        new = bad[incident.onset[bad] == NEVER]
        if len(new):
            incident.onset[new] = step
            self._note_change(incident)
        if incident.skipped and incident.steps == SCALER_SEARCH + 1:  # it becomes an error
            self._note_change(incident)
        if step == incident.begin:
            incident.with_nan[bad[nan]] = True
        elif not incident.culprit_recovered and (bad == incident.culprit).any():
            incident.culprit_last = step
        for skipped in self._skipped:
            self._note_skip(incident, skipped)

    def _note_skip(self, incident: Open, step: int) -> None:
        if not incident.skipped and _touches(Onset.of(incident).step, incident.last, step):
            incident.skipped = True
            self._note_change(incident)

    def _note_change(self, incident: Open | Standing) -> None:
        self.version += 1
        incident.version = self.version

    def _note_fine(self, step: int, fine: Numbers) -> None:
        incident = self._open
        assert incident is not None
        if not incident.culprit_recovered and step > incident.culprit_last and (fine == incident.culprit).any():
            incident.culprit_recovered = incident.culprit >= 0
            self._note_change(incident)
        if step > incident.last and incident.closed_at < 0:
            tracked = fine[fine < len(incident.onset)]
            if incident.begin == NEVER or (incident.onset[tracked] != NEVER).any():
                incident.closed_at = step
                self._note_change(incident)

    def _file(self, incident: Open) -> None:
        self._open = None
        self._put(self._accounts.of_nonfinite(incident))

    def _put(self, over: Over) -> None:
        """Keep an incident that is over, and drop others to make room."""
        self._over.append(over)
        while len(self._over) > KEPT_FIRST + KEPT_NEWEST or (
            self.nbytes > _FULL * self.max_bytes and len(self._over) > 1
        ):
            notes = (
                place for place, kept in enumerate(self._over) if kept.about.skipped or kept.about.severity == "info"
            )
            dropped = self._over.pop(next(notes, min(KEPT_FIRST, len(self._over) - 2)))
            self.alerts_made_room += dropped.about.severity != "info"
            self.made_room += 1


def _touches(begin: int, last: int, step: int) -> bool:
    """Return whether a skipped step belongs to an incident. The number in the event may be off by one."""
    return begin - 1 <= step <= last + 1

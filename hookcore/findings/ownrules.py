"""Rules of the user: functions that check every frame. Their findings are events, which become incidents."""

from __future__ import annotations

import json
import re
import runpy
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from hookcore.errors import ArgumentError
from hookcore.records import ROOT, SEVERITIES, STAT_COLUMN, STATS, Event, Frame, Kind, Severity, Tap
from hookcore.records.vocabulary import OWN_PROBLEM, OWN_RULE, OWN_RULE_EVENTS, OWN_RULE_LABEL

# The view of a frame that a user's rule receives, and the problems that it returns.


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule's finding: a message, a severity, and a module, if the finding is about one."""

    message: str
    severity: Severity = "warning"
    module: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.message, str) or not self.message.strip():
            raise ArgumentError(f"message={self.message!r} is invalid: say in a few words what is wrong")
        if self.severity not in SEVERITIES:
            raise ArgumentError(f"severity={self.severity!r} is invalid: it must be one of {', '.join(SEVERITIES)}")
        if not isinstance(self.module, str):
            raise ArgumentError(f"module={self.module!r} is invalid: give the path of a module, such as 'layers.0'")


@dataclass(frozen=True, slots=True)
class TensorView:
    """One tensor in a frame. Its stats are attributes: `mean`, `rms`, `nan`, and so on."""

    module: str
    kind: Kind
    index: str
    call: int
    phase: str
    _row: Sequence[float]

    def __getattr__(self, name: str) -> float:
        column = STAT_COLUMN.get(name)
        if column is None:
            raise AttributeError(f"a tensor has no {name!r}: its stats are {', '.join(STATS)}")
        return float(self._row[column])


@dataclass(frozen=True, slots=True)
class FrameView:
    """The data captured in one step. Read-only."""

    step: int
    time_s: float
    scalars: Mapping[str, float]
    _frames: Sequence[Frame]  # the newest is this one
    _taps: Sequence[Tap]

    @property
    def tensors(self) -> Iterator[TensorView]:
        """All captured tensors, in the order in which they were seen first."""
        frame = self._frames[-1]
        for row in range(len(frame.taps)):
            yield self._view(frame, row)

    def tensor(self, module: str, kind: Kind = "output", index: str | None = None) -> TensorView | None:
        """Return one tensor, the first that fits; None if it wasn't captured in this step."""
        found = next(self._rows_of(self._frames[-1:], module, kind, index), None)
        return None if found is None else self._view(*found)

    def series(self, module: str, stat: str, kind: Kind = "output", index: str | None = None) -> list[float]:
        """Return a stat in the newest captured steps, at most 64, oldest first."""
        if stat not in STAT_COLUMN:
            raise ArgumentError(f"{stat!r} is not a stat: the stats are {', '.join(STATS)}")
        rows = self._rows_of(self._frames, module, kind, index)
        return [float(frame.stats[row, STAT_COLUMN[stat]]) for frame, row in rows]

    def logged(self, name: str) -> list[float]:
        """Return a logged scalar in the newest steps, oldest first."""
        return [frame.scalars[name] for frame in self._frames if name in frame.scalars]

    def _rows_of(
        self, frames: Sequence[Frame], module: str, kind: Kind, index: str | None
    ) -> Iterator[tuple[Frame, int]]:
        """Yield the first row that fits of each frame that has one."""
        fitting = [
            number
            for number, tap in enumerate(self._taps)
            if tap.module == module and tap.kind == kind and index in (None, tap.index)
        ]
        taps, rows = None, np.empty(0, np.intp)
        for frame in frames:
            if frame.taps is not taps:  # most frames share one array
                taps, rows = frame.taps, np.flatnonzero(np.isin(frame.taps, fitting))
            if len(rows):
                yield frame, int(rows[0])

    def _view(self, frame: Frame, row: int) -> TensorView:
        tap = self._taps[int(frame.taps[row])]
        return TensorView(tap.module, tap.kind, tap.index, tap.call, tap.phase, frame.stats[row])


# The rules of the user by name: given to a watch, registered by the decorator, or in a file.

MAX_RULES: Final = 50
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")

Look = Callable[[FrameView], Any]


@dataclass(frozen=True, slots=True)
class OwnRule:
    """A function that looks at frames, with its name."""

    name: str
    function: Look

    def __call__(self, frame: FrameView) -> Any:
        return self.function(frame)


registered: list[OwnRule] = []


def rule(function: Look | None = None, *, name: str = "") -> Any:
    """Make a function a rule of every watch that begins after it, or of the server that reads its file.

    The function gets a `FrameView` and returns None, a `Problem`, or several. The name is that of the function, with
    hyphens.
    """
    if function is None:
        return lambda given: rule(given, name=name)
    made = own_rule_of(function, name)
    registered[:] = [each for each in registered if each.name != made.name] + [made]  # a cell that runs again
    return made


def own_rule_of(given: Any, name: str = "") -> OwnRule:
    """Return a function as a rule. Raises ArgumentError if it isn't a function or its name is invalid."""
    if isinstance(given, OwnRule):
        return given
    if not callable(given):
        raise ArgumentError(f"{given!r} is not a rule: give a function that takes a frame")
    named = name or str(getattr(given, "__name__", type(given).__name__)).strip("_").lower().replace("_", "-")
    if f"{OWN_RULE}{named}" in OWN_RULE_EVENTS:
        raise ArgumentError(f"{named!r} is the name of an event about rules: choose another one for your rule")
    if not _NAME.fullmatch(named):
        raise ArgumentError(
            f"{named!r} is not a valid rule name: use up to 64 lowercase letters, digits, and hyphens, as in "
            '@hookcore.rule(name="flat-loss")'
        )
    return OwnRule(named, given)


def own_rules(given: Iterable[Any]) -> tuple[OwnRule, ...]:
    """Return these rules and the registered ones. Raises ArgumentError for two of one name, or too many."""
    found: dict[str, OwnRule] = {}
    for each in (*registered, *map(own_rule_of, given)):
        known = found.setdefault(each.name, each)
        if known is not each and known.function is not each.function:
            raise ArgumentError(
                f"two rules have the name {each.name!r}: give one of them another name, with @hookcore.rule(name=...)"
            )
    if len(found) > MAX_RULES:
        raise ArgumentError(f"there are {len(found)} rules of your own; at most {MAX_RULES} are allowed")
    return tuple(found.values())


def rules_in(path: str | Path) -> tuple[OwnRule, ...]:
    """Run a file and return the rules that it defines. Raises ArgumentError if that fails or there are none."""
    try:
        made = runpy.run_path(str(path))
    except Exception as error:
        raise ArgumentError(f"the rules of {str(path)!r} can't be read: {type(error).__name__}: {error}") from error
    rules = [each for each in made.values() if isinstance(each, OwnRule)]
    if not rules:
        raise ArgumentError(f"{str(path)!r} contains no rule: put @hookcore.rule before a function that takes a frame")
    registered[:] = [each for each in registered if each not in rules]  # they are this server's, not of a watch
    if len(rules) > MAX_RULES:
        raise ArgumentError(f"{str(path)!r} contains {len(rules)} rules; at most {MAX_RULES} are allowed")
    return tuple(rules)


MAX_PROBLEMS: Final = 20  # of one rule in one frame
MAX_ONSETS: Final = 100  # of one rule, before it is switched off because it only repeats itself
MAX_FAULTS: Final = 3  # in a row, then it is switched off
MAX_MESSAGE: Final = 500  # characters
KEPT: Final = 64  # frames that series reach back
KEPT_BYTES: Final = 16_000_000
MISSES: Final = 2  # frames in a row without a problem, after which it is over
REPORT_EVERY: Final = 64  # frames between two reports of costs
SLOW_S: Final = 0.005  # a rule that takes longer on average
SLOW_CALLS: Final = 20  # that show it


@dataclass(slots=True)
class _Active:
    severity: Severity
    has_tensors: bool  # whether a frame with tensors showed it
    missed: int = 0


@dataclass(slots=True)
class _State:
    """A rule as it runs in one training."""

    rule: OwnRule
    active: dict[str, _Active] = field(default_factory=dict)  # problems by module
    onsets: int = 0
    calls: int = 0
    faults: int = 0
    in_a_row: int = 0
    seconds: float = 0.0
    worst_s: float = 0.0
    off: str = ""  # why
    reported_slow: bool = False

    def label(self, where: str) -> str:
        """Return the rule's facts for readers."""
        mean_ms = 1000 * self.seconds / max(1, self.calls)
        counts = {"calls": self.calls, "faults": self.faults}
        times = {"mean_ms": round(mean_ms, 3), "worst_ms": round(1000 * self.worst_s, 3)}
        return json.dumps({"where": where, "off": self.off, **counts, **times})


class OwnRules:
    """Runs rules over the frames of one training. An exception of a rule never leaves it."""

    def __init__(self, rules: Iterable[OwnRule], where: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._states = [_State(each) for each in rules]
        self._where = where
        self._clock = clock
        self.frames: deque[Frame] = deque(maxlen=KEPT)
        self.nbytes = 0
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._states)

    def examine(self, frame: Frame, taps: Sequence[Tap]) -> Frame:
        """Return a frame with the events of what the rules found. `taps` are all taps by their numbers."""
        if not self._states or not (len(frame.taps) or frame.scalars):
            return frame
        if len(frame.taps) and int(frame.taps.max()) >= len(taps):
            taps = [*taps, *frame.new_taps]
        self._keep(_with_known(frame, len(taps)))
        view = FrameView(frame.step, frame.time_s, MappingProxyType(frame.scalars), tuple(self.frames), taps)
        events = [event for state in self._states if not state.off for event in self._run(state, view, frame)]
        self._count += 1
        labels = {}
        is_young = self._count & (self._count - 1) == 0  # after 1, 2, 4, 8 frames, and so on
        if events or is_young or self._count % REPORT_EVERY == 0:
            labels = {f"{OWN_RULE_LABEL}{each.rule.name}": each.label(self._where) for each in self._states}
        return replace(frame, events=(*frame.events, *events), labels={**frame.labels, **labels})

    def _keep(self, frame: Frame) -> None:
        if len(self.frames) == KEPT:
            self.nbytes -= self.frames[0].stats.nbytes
        self.frames.append(frame)
        self.nbytes += frame.stats.nbytes
        while self.nbytes > KEPT_BYTES and len(self.frames) > 1:
            self.nbytes -= self.frames.popleft().stats.nbytes

    def _run(self, state: _State, view: FrameView, frame: Frame) -> Iterator[Event]:
        began = self._clock()
        try:
            with np.errstate(all="ignore"):
                found = list(_problems_of(state.rule(view)))
            if len(found) > MAX_PROBLEMS:
                raise ValueError(f"it returned {len(found)} problems; at most {MAX_PROBLEMS} are allowed")
        except BaseException as error:  # of any kind: sys.exit() would end the thread without a trace
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # Ctrl+C, which arrives in no other thread
            yield from self._fault(state, frame, error)
            return
        finally:
            took = self._clock() - began
            state.calls += 1
            state.seconds += took
            state.worst_s = max(state.worst_s, took)
        state.in_a_row = 0
        problems: dict[str, Problem] = {}
        for each in found:  # the first of a module counts
            problems.setdefault("" if each.module == ROOT else each.module, each)
        yield from self._changes(state, frame, problems)
        if not state.reported_slow and state.calls >= SLOW_CALLS and state.seconds > SLOW_S * state.calls:
            state.reported_slow = True
            mean = 1000 * state.seconds / state.calls
            yield _event(frame, "own-rule-slow", f"the rule {state.rule.name} takes {mean:.3g} ms per frame", "info")

    def _fault(self, state: _State, frame: Frame, error: BaseException) -> Iterator[Event]:
        state.faults += 1
        state.in_a_row += 1
        why = f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
        if state.in_a_row >= MAX_FAULTS:
            yield from self._switch_off(
                state, frame, f"it raised {MAX_FAULTS} exceptions in a row, the last of which was {why}"
            )
        elif state.in_a_row == 1 and state.faults <= MAX_FAULTS:  # later ones are only counted
            yield _event(frame, "own-rule-failed", f"the rule {state.rule.name} raised {why}", "warning")

    def _switch_off(self, state: _State, frame: Frame, why: str) -> Iterator[Event]:
        state.off = why
        yield _event(frame, "own-rule-off", f"the rule {state.rule.name} was switched off: {why}", "warning")
        for module in state.active:
            yield _event(frame, _name(state), "the rule was switched off", "info", module, {OWN_PROBLEM: None})
        state.active.clear()

    def _changes(self, state: _State, frame: Frame, found: Mapping[str, Problem]) -> Iterator[Event]:
        """Yield an event for each problem that begins, gets worse, or is over."""
        has_tensors = bool(len(frame.taps))
        for module, problem in found.items():
            known = state.active.get(module)
            if known is None or SEVERITIES.index(problem.severity) < SEVERITIES.index(known.severity):
                state.active[module] = known = _Active(problem.severity, has_tensors)
                state.onsets += 1
                # A note, because the incident is the alert, and unlike an event, it ends.
                about = {OWN_PROBLEM: problem.severity}
                yield _event(frame, _name(state), problem.message[:MAX_MESSAGE], "info", module, about)
            known.missed, known.has_tensors = 0, known.has_tensors or has_tensors
        for module in [each for each in state.active if each not in found]:
            known = state.active[module]
            known.missed += has_tensors or not known.has_tensors
            if known.missed >= MISSES:
                del state.active[module]
                yield _event(frame, _name(state), "no longer found", "info", module, {OWN_PROBLEM: None})
        if state.onsets >= MAX_ONSETS:
            yield from self._switch_off(state, frame, f"it has found {MAX_ONSETS} problems, so it only repeats itself")


def _with_known(frame: Frame, known: int) -> Frame:
    """Return a frame without the tensors whose names are not known, because there was no room for them."""
    if not len(frame.taps) or int(frame.taps.max()) < known:
        return frame
    fit = frame.taps < known
    return replace(frame, taps=frame.taps[fit], stats=frame.stats[fit])


def _name(state: _State) -> str:
    return f"{OWN_RULE}{state.rule.name}"


def _event(
    frame: Frame,
    name: str,
    message: str,
    severity: Severity,
    module: str = "",
    about: Mapping[str, Severity | None] | None = None,
) -> Event:
    return Event(frame.step, frame.time_s, name, message, severity, module, about=dict(about or {}))


def _problems_of(said: Any) -> Iterator[Problem]:
    items = () if said is None else (said,) if isinstance(said, Problem | str) else said
    for each in items:
        found = Problem(each) if isinstance(each, str) else each
        if not isinstance(found, Problem):
            raise TypeError(
                f"it returned {each!r}: return None, a sentence, a hookcore.Problem(...), or several of these"
            )
        yield found

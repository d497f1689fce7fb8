"""Runs rules of the user over the frames of one training. Nothing that a rule does costs a frame."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from hookcore.findings.ownrules.registry import OwnRule
from hookcore.findings.ownrules.views import FrameView, Problem
from hookcore.records import ROOT, SEVERITIES, Event, Frame, Severity, Tap
from hookcore.records.vocabulary import OWN_OVER, OWN_RULE, OWN_RULE_LABEL

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
        self._frames: deque[Frame] = deque(maxlen=KEPT)
        self._bytes = 0
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
        view = FrameView(frame.step, frame.time_s, MappingProxyType(frame.scalars), tuple(self._frames), taps)
        events = [event for state in self._states if not state.off for event in self._run(state, view, frame)]
        self._count += 1
        labels = {}
        is_young = self._count & (self._count - 1) == 0  # after 1, 2, 4, 8 frames, and so on
        if events or is_young or self._count % REPORT_EVERY == 0:
            labels = {f"{OWN_RULE_LABEL}{each.rule.name}": each.label(self._where) for each in self._states}
        return replace(frame, events=(*frame.events, *events), labels={**frame.labels, **labels})

    def _keep(self, frame: Frame) -> None:
        if len(self._frames) == KEPT:
            self._bytes -= self._frames[0].stats.nbytes
        self._frames.append(frame)
        self._bytes += frame.stats.nbytes
        while self._bytes > KEPT_BYTES and len(self._frames) > 1:
            self._bytes -= self._frames.popleft().stats.nbytes

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
            yield _event(frame, _name(state) + OWN_OVER, "the rule was switched off", "info", module)
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
                text = f"{problem.severity}: {problem.message[:MAX_MESSAGE]}"
                yield _event(frame, _name(state), text, "info", module)
            known.missed, known.has_tensors = 0, known.has_tensors or has_tensors
        for module in [each for each in state.active if each not in found]:
            known = state.active[module]
            known.missed += has_tensors or not known.has_tensors
            if known.missed >= MISSES:
                del state.active[module]
                yield _event(frame, _name(state) + OWN_OVER, "no longer found", "info", module)
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


def _event(frame: Frame, name: str, message: str, severity: Severity, module: str = "") -> Event:
    return Event(frame.step, frame.time_s, name, message, severity, module)


def _problems_of(said: Any) -> Iterator[Problem]:
    items = () if said is None else (said,) if isinstance(said, Problem | str) else said
    for each in items:
        found = Problem(each) if isinstance(each, str) else each
        if not isinstance(found, Problem):
            raise TypeError(
                f"it returned {each!r}: return None, a sentence, a hookcore.Problem(...), or several of these"
            )
        yield found

"""Runs the rules while frames arrive, so that findings become incidents before the evidence is merged."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from hookcore.findings.choices import Changes, Choices, words_of
from hookcore.findings.finding import Finding
from hookcore.findings.gate import Gate
from hookcore.findings.loss import last_output
from hookcore.findings.ranking import RuleInputs, findings_of
from hookcore.records import SEVERITIES, STAT_COLUMN, Event, Frame, Severity, is_shared
from hookcore.records.vocabulary import ENDED, OWN_OVER, OWN_RULE, OWN_RULE_EVENTS, is_loss
from hookcore.store import Store
from hookcore.store.incidents import NONFINITE, Found

# Looking at 2,000 tensors takes as long as adding three to five frames. When to look depends on the frames alone, so
# that a run that is read again has the same incidents.
EVERY: Final = 1024  # frames between two looks in which nothing seems to have changed; fewer in a young run
YOUNG: Final = frozenset({8, 16, 32, 64, 128, 256, 512})
TURNS: Final = 16  # a rank looks up to so many frames later than the first one: all at once would stall live pages
RULES_CHANGED: Final = "rules-changed"
AGAIN: Final = 48  # frames after a further look to see what became of it
PER_LOOK: Final = 512  # frames to wait for each further look
MAX_OWN: Final = 200  # problems that rules of the user find at the same time
MAX_LOSSES: Final = 1000  # whose levels are known
MAX_LOOKS: Final = 8  # further looks in quick succession

_LOSS_FAR: Final = 3.0  # binary orders of magnitude
_LOSS_LOOK_AFTER: Final = frozenset({4, 16, 64})  # frames
_RMS: Final = STAT_COLUMN["rms"]


@dataclass(slots=True)
class _Level:
    """The usual binary logarithm of a loss, and for how many frames it has been far above."""

    usual: float
    away: int = 0

    def rises(self, now: float) -> bool:
        """Follow a value; return whether the rules should look."""
        far = now - self.usual > _LOSS_FAR
        self.away = self.away + 1 if far else 0
        self.usual += (now - self.usual) / (256 if far else 16)
        return self.away in _LOSS_LOOK_AFTER


class Follower:
    """Follows one store. Everything but `look` is called by the thread that adds frames."""

    def __init__(self, store: Store, changes: Changes = (), rank: int = 0) -> None:
        self._ref = weakref.ref(store)  # which has this follower: a circle would keep a store until a full collection
        self._later = 0  # by how many frames the schedule is later
        self._changes = list(changes)  # of thresholds, that are to come
        self._inputs = RuleInputs()
        self._sizes = Gate()
        self._fitting: object = None  # taps that are all known, which many frames share; never a part of a message
        self._names: tuple[str, ...] = ()  # of scalars
        self._losses: tuple[str, ...] = ()
        self._levels: dict[str, _Level] = {}  # of losses
        self._frames = 0
        self._own: dict[tuple[str, str], Found] = {}  # what rules of the user find now, by rule and module
        self._has_own = False
        self._looks = float(MAX_LOOKS)  # that are left
        self._wanted = False
        self._again = -1  # the frame at which to look again
        self._spikes_reported = -1  # the step up to which they are
        self._loss_was_bad = False
        self._failed = False
        self.take_turns(rank)
        self._change_before(0)

    @property
    def _store(self) -> Store:
        store = self._ref()
        assert store is not None, "only a store's own thread calls its follower"
        return store

    def take_turns(self, rank: int) -> None:
        """Look at the store at other frames than most other ranks of the training."""
        self._later = rank % TURNS

    def take(self, frame: Frame) -> None:
        """Look at the store if the schedule or a changed value asks for it."""
        self._change_before(frame.step)
        has_rows = bool(len(frame.taps))
        self._frames += has_rows  # steps that weren't captured bring the rules hardly anything new
        self._looks = min(float(MAX_LOOKS), self._looks + has_rows / PER_LOOK)
        self._follow_own(frame)
        if self._notice(frame):
            self._wanted, self._again = True, self._frames + AGAIN
        self._wanted |= has_rows and self._frames == self._again
        scheduled = self._frames - self._later
        due = has_rows and (scheduled in YOUNG or (scheduled > 0 and scheduled % EVERY == 0))
        if due or (self._wanted and self._looks >= 1):
            self._looks -= not due
            self.look()

    def _change_before(self, step: int) -> None:
        while self._changes and self._changes[0][0] < step:
            self.change(*self._changes.pop(0))

    def change(self, step: int, chosen: Choices) -> None:
        """Use other thresholds after a step. Earlier findings stay; the rules check the next frame."""
        words = words_of(chosen, self._store.rules)
        self._store.choose(chosen)
        self._wanted = True
        if words:
            self._store.add_event(Event(max(step, 0), time.time(), RULES_CHANGED, words))

    def look(self) -> None:
        """Run the rules now."""
        self._wanted = False
        newest = self._store.steps().newest
        if newest is None:
            return
        try:
            with np.errstate(all="ignore"), self._store.in_memory():  # no value of a trainer may stop the rules
                found = findings_of(self._store, self._inputs, self._spikes_reported)
            settled = -1 if self._inputs.sizes is None else self._inputs.sizes.settled
            self._store.judge([_found(each) for each in found if self._counts(each, settled)])
        except Exception as error:  # a rule must never cost a frame
            self._report(newest, error)
            return
        self._spikes_reported = max(self._spikes_reported, settled)
        if self._frames >= self._again:  # the next look is far off, and will read other steps
            self._inputs.shrink()

    def _counts(self, finding: Finding, settled: int) -> bool:
        """Return whether a finding is an incident. Non-finite values are followed by the store itself."""
        if finding.rule in ("spike", "loss-spike"):
            return self._spikes_reported < finding.since_step <= settled
        return finding.rule != NONFINITE and finding.severity != "info"

    def _follow_own(self, frame: Frame) -> None:
        """Follow the findings of the user's rules, which check every frame, and the held ones."""
        for event in frame.events:
            self.hear(event)
        if self._has_own and self._store.taps_known:
            self._store.judge(list(self._own.values()), per_frame=True)

    def hold(self, rule: str, found: Found | None) -> None:
        """Take what another part of the server finds in the next frame, under the name of a rule; None: nothing."""
        if found is not None:
            self._has_own = True
            self._own[rule, ""] = found
        else:
            self._own.pop((rule, ""), None)

    def hear(self, event: Event) -> None:
        """Take what a rule of the user found, or no longer finds."""
        if not event.name.startswith(OWN_RULE) or event.name in OWN_RULE_EVENTS:
            return
        self._has_own = True
        key = event.name.removesuffix(OWN_OVER), event.module
        if event.name.endswith(OWN_OVER):
            self._own.pop(key, None)
        elif key in self._own or len(self._own) < MAX_OWN:
            self._own[key] = self._own_found(key[0], event)

    def _own_found(self, rule: str, event: Event) -> Found:
        taps = self._store.taps()
        of_module = [place for place, tap in enumerate(taps.taps) if tap.module == event.module and event.module]
        place = min(of_module, key=lambda each: taps.taps[each].kind != "output", default=taps.fact(last_output))
        number, at = int(taps.numbers[place]), f" in {event.module}"
        said, _, text = event.message.partition(": ")
        severity: Severity = next((each for each in SEVERITIES if each == said), "warning")
        message = text.rstrip(".") + (f",{at}" if event.module and at not in text else "")
        nan = float("nan")
        return Found(rule, severity, number, nan, nan, event.step, None, message, ((number, event.step),))

    def _notice(self, frame: Frame) -> bool:
        numbers, sizes = frame.taps, frame.stats[:, _RMS]
        if numbers is not self._fitting and len(numbers):
            if numbers.max() < self._store.taps_known:
                self._fitting = numbers if is_shared(numbers) else None
            else:  # there was no room for them
                fit = numbers < self._store.taps_known
                numbers, sizes = numbers[fit], sizes[fit]
        is_due = bool(len(numbers)) and self._sizes.take(numbers, sizes)
        is_due |= bool(frame.events) and any(event.name in ENDED for event in frame.events)
        return self._notice_loss(frame.scalars) or is_due

    def _notice_loss(self, scalars: Mapping[str, float]) -> bool:
        names = tuple(scalars)
        if names != self._names:  # most frames have the same scalars
            self._names, self._losses = names, tuple(filter(is_loss, names))
        is_due, is_bad = False, False
        for name in self._losses:
            value = scalars[name]
            if not math.isfinite(value):
                is_bad = True
            elif value > 0 and (name in self._levels or len(self._levels) < MAX_LOSSES):
                is_due |= self._levels.setdefault(name, _Level(math.log2(value))).rises(math.log2(value))
        if self._losses:
            is_due |= is_bad and not self._loss_was_bad
            self._loss_was_bad = is_bad
        return is_due

    def _report(self, step: int, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            message = f"a rule failed, so incidents may be missing: {type(error).__name__}: {error}"
            self._store.add_event(Event(step, time.time(), "rule-failed", message, "warning"))


def follow(store: Store, changes: Changes = (), rank: int = 0) -> Store:
    """Let the rules follow a store, with thresholds that change after these steps; return it."""
    store.attach(Follower(store, changes, rank))
    return store


def _found(finding: Finding) -> Found:
    members = finding.members or ((finding.number, finding.since_step),)
    about = finding.value, finding.usual, finding.since_step, finding.until_step, finding.message, members
    return Found(finding.rule, finding.severity, finding.number, *about, finding.unseen)

"""The records of an incident: its culprit, the tensors that followed, and the values around its onset."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import GRADIENT_KINDS, ROOT, Severity, Tap
from hookcore.records.vocabulary import DESYNC, KIND_WORDS, OWN_RULE, counted

SCALER_SEARCH: Final = 24  # steps in a row that a gradient scaler may skip until it has found its scale

# About the training, or with the place in the message.
_WITHOUT_PLACE: Final = frozenset({"loss", "loss-spike", "overfit", "stalled-training", DESYNC})

Steps = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor of an incident, and the first step in which it was affected."""

    number: int
    tap: Tap
    first_step: int


@dataclass(frozen=True, slots=True)
class Found:
    """A rule's finding: the tap to blame, all affected taps, and a message."""

    rule: str
    severity: Severity
    number: int
    value: float
    usual: float
    since: int
    until: int | None  # the last step, if it is over already
    message: str
    members: tuple[tuple[int, int], ...]  # every affected tap with its first step, the blamed one included

    @property
    def is_short(self) -> bool:
        """Whether it was over when it was found, such as a spike."""
        return self.until is not None


@dataclass(frozen=True, slots=True)
class Logged:
    """A logged value around the onset."""

    name: str
    steps: Steps
    values: Floats


@dataclass(frozen=True, slots=True)
class Evidence:
    """Every stat of the culprit and its neighbors in the captured steps around the onset, none of them merged.

    `stats` is [stat, step, tap]: NaN where a tap was not captured. The culprit is the first tap.
    """

    numbers: tuple[int, ...]
    taps: tuple[Tap, ...]
    steps: Steps
    stats: Floats
    logged: tuple[Logged, ...] = ()


@dataclass(frozen=True, slots=True)
class Incident:
    """Captured steps in which a rule found something, from the first one until all affected tensors had recovered.

    The culprit, the first step, and the message never change. `value` is what the culprit was when it was found: NaN or
    an infinity in its first step. `previous` is the captured step before the first one. `loss` is a logged loss that
    was non-finite in the first step although no output was.
    """

    rule: str
    culprit: Link
    value: float
    first_step: int
    last_step: int  # the newest affected one
    recovered: int | None  # the step in which it was over; None while it lasts
    steps: int  # captured and affected
    skipped: bool = False  # a gradient scaler skipped one of the steps
    previous: int | None = None
    culprit_last: int = -1  # the newest step of the culprit's first stretch
    chain: tuple[Link, ...] = ()  # the first that followed, in the order of cause
    taps: int = 0  # all that followed
    modules: int = 0  # other modules that were affected
    evidence: Evidence | None = None
    loss: str = ""
    known: str = ""  # the known facts about the culprit's inputs, in words
    version: int = 0  # of all incidents of the run, when this one changed last
    message: str = ""  # of the rule; empty for non-finite values
    level: Severity = "error"  # the worst so far
    milder: tuple[tuple[int, Severity], ...] = ()  # its earlier severities, each with the step until which it held
    usual: float = float("nan")  # what the value was before; NaN if unknown
    found_step: int = -1  # the newest step when it was found
    short: bool = False  # it is about single steps, of which there may be several

    @property
    def id(self) -> str:
        """The name in addresses: the same whenever and wherever the run is read."""
        tap = f"-{self.culprit.number}" if self.message else ""  # several tensors may have begun in one step
        return f"{self.rule}-{self.first_step}{tap}"

    @property
    def key(self) -> str:
        """The key to acknowledge it: that of the finding about its culprit."""
        return f"{self.rule}:{self.culprit.tap.label}"

    @property
    def is_over(self) -> bool:
        """Whether all affected tensors that were captured since are finite again."""
        return self.recovered is not None

    def touches(self, first: int | None, last: int | None) -> bool:
        """Return whether some step from `first` to `last` is part of it."""
        end: float = self.last_step
        if self.message and not self.short:  # it was looked at now and then
            end = math.inf if self.recovered is None else self.recovered - 1
        return (first is None or end >= first) and (last is None or self.first_step <= last)

    def as_of(self, step: int) -> Incident:
        """Return the incident as it was at a step, without anything that happened later.

        A message from a later step says so, because its numbers are those of that step.
        """
        late = self.message and not self.short and self.found_step > step
        later = self.last_step > step
        chain = tuple(link for link in self.chain if link.first_step <= step)
        others = {link.tap.module for link in chain} - {self.culprit.tap.module}
        known = self.taps == len(self.chain) or not later
        return replace(
            self,
            recovered=None if self.recovered is not None and self.recovered > step else self.recovered,
            last_step=min(self.last_step, step),
            steps=1 if later else self.steps,
            culprit_last=min(self.culprit_last, step),
            chain=chain,
            taps=len(chain) if later else self.taps,
            modules=(len(others) if later else self.modules) if known else 0,
            message=f"found at step {self.found_step:,}: {self.message}" if late else self.message,
            level=next((before for until, before in self.milder if step < until), self.level),
            milder=tuple(each for each in self.milder if each[0] <= step),
        )

    @property
    def severity(self) -> Severity:
        """How serious it is. A scaler looks for its scale by means of non-finite gradients, for some steps in a row."""
        searches = self.skipped and self.culprit.tap.kind in GRADIENT_KINDS
        return "info" if searches and (self.is_over or self.steps <= SCALER_SEARCH) else self.level

    @property
    def unseen(self) -> int:
        """The number of uncaptured steps right before the first one, in which another tensor may have been first."""
        return 0 if self.previous is None else self.first_step - self.previous - 1

    @property
    def sentence(self) -> str:
        """What happened, in one or two sentences."""
        if self.message:
            return " ".join(filter(None, [f"{self.message[0].upper()}{self.message[1:]}{self._place()}.", self._end()]))
        name, kind = self.culprit.tap.module or ROOT, KIND_WORDS[self.culprit.tap.kind]
        what = "An infinity" if math.isinf(self.value) else "NaN"
        first = f"{what} first appeared in the {kind} of {name}, at step {self.first_step:,}"
        return " ".join(filter(None, [f"{first}{self.gap}.", self.known, self._cause(), self._course()]))

    def _place(self) -> str:
        """Name the module, unless the message does."""
        place = f" in {self.culprit.tap.module or ROOT}"
        is_said = self.rule in _WITHOUT_PLACE or self.rule.startswith(OWN_RULE) or place in self.message
        return "" if is_said else f",{place}"

    def _end(self) -> str:
        others = f"{counted(self.modules, 'other module')} changed with it"
        over = f"it was over at step {self.recovered:,}" if self.recovered is not None else ""
        if self.short:
            over = f"it has happened {self.steps:,} times, last at step {self.last_step:,}" if self.steps > 1 else ""
        text = "; ".join(filter(None, [others if self.modules else "", over]))
        return f"{text[0].upper()}{text[1:]}." if text else ""

    @property
    def gap(self) -> str:
        """A remark about uncaptured steps right before it; empty if there are none."""
        if not self.unseen:
            return ""
        steps = "the step before it was" if self.unseen == 1 else f"the {self.unseen:,} steps before it were"
        return f" ({steps} not captured, so another layer may have been first)"

    def _cause(self) -> str:
        if not self.loss:
            return ""
        return f"No captured activation was non-finite, but {self.loss} was, which is computed before any gradient."

    def _course(self) -> str:
        others = counted(self.modules, "other module")
        reached = f"; {others} had followed" if self.modules else ""
        if self.is_over and self.skipped:
            return f"The gradient scaler skipped the step{reached}."
        if self.is_over:
            return f"All tensors were finite again at step {self.recovered:,}{reached}."
        if self.culprit_last < self.last_step:
            healed = f"It was finite again after step {self.culprit_last:,}"
            return f"{healed}, but {others} followed." if self.modules else f"{healed}, but not permanently."
        return f"{others} followed." if self.modules else ""

"""The records of an incident: its culprit, the tensors that followed, and the values around its onset."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from hookcore.records import GRADIENT_KINDS, ROOT, Kind, Severity, Tap
from hookcore.records.vocabulary import DESYNC, KIND_WORDS, LATE_RANK, OWN_RULE, counted

NONFINITE: Final = "nonfinite"  # the rule
SCALER_SEARCH: Final = 24  # steps in a row that a gradient scaler may skip until it has found its scale

# About the training, or with the place in the message.
_WITHOUT_PLACE: Final = frozenset(
    {
        *("loss", "loss-spike", "overfit", "learning-rate-too-high", "learning-rate-too-low", "stalled-training"),
        *("slow-data-loading", "long-evaluation", "idle-gpu", LATE_RANK, DESYNC),
        *("dominant-micro-batch", "never-used", "not-in-optimizer", "frozen-by-mistake", "duplicate-in-optimizers"),
    }
)

# How the culprit is known: it was captured in the first step, the trainer's check of every step found it, or a replay.
Source = Literal["capture", "check", "replay"]
TO_FIND: Final = "train again with budget=None or with hookcore.record"

Steps = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor of an incident, and the first step in which it was affected."""

    number: int
    tap: Tap
    first_step: int

    @property
    def shown_kind(self) -> Kind:
        """The kind of captured tensors that shows it: a weight that was bad need not be captured."""
        return self.tap.kind if self.number >= 0 else "output"


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
    unseen: int = 0  # uncaptured steps right before the first one, in which it may have begun
    placed: bool = True  # whether it is about a tensor; if not, about the training, and the tap is the model's output

    @property
    def is_short(self) -> bool:
        """Whether it was over when it was found, such as a spike."""
        return self.until is not None


@dataclass(frozen=True, slots=True)
class LoggedValue:
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
    logged: tuple[LoggedValue, ...] = ()


@dataclass(frozen=True, slots=True)
class Incident:
    """Steps in which a rule found something, from the first one until all affected tensors had recovered.

    The message never changes, nor does a culprit or a first step that is known. `value` is what the culprit was when it
    was found: NaN or an infinity in its first step. `previous` is the newest step before the first one that was fine.
    The steps between the two are unknown: it may have begun in one of them, in another layer. `loss` is a logged loss
    that was non-finite in the first step although no output was.
    """

    rule: str
    culprit: Link  # the whole model if it isn't known; without a number if it was never captured
    value: float
    first_step: int  # in which it was found
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
    culprit_known: bool = True
    placed: bool = True  # whether it is about the culprit; if not, about the training, and that is the model's output
    source: Source = "capture"
    where: str = ""  # the line of code that a replay found, such as "norm.py:14"
    unsaved: str = ""  # why its first step can't be repeated, if the training said so
    replayed_fine: bool | None = None  # after a replay of it that found nothing: whether it equals the training
    root: str = ROOT  # what sentences call the root module

    def calling(self, root: str) -> Incident:
        """Return the incident with the class of the model in its sentences, instead of a word for an empty path."""
        known, message = self.known.replace(ROOT, root), self.message.replace(ROOT, root)
        return replace(self, root=root, known=known, message=message)

    @property
    def id(self) -> str:
        """The name in addresses: the same whenever and wherever the run is read."""
        if not self.message and self.found_step >= 0:  # an earlier first step may become known later
            return f"{self.rule}-{self.found_step}"
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
        is_whole = self.taps == len(self.chain) or not later
        return replace(
            self,
            recovered=None if self.recovered is not None and self.recovered > step else self.recovered,
            last_step=min(self.last_step, step),
            steps=1 if later else self.steps,
            culprit_last=min(self.culprit_last, step),
            chain=chain,
            taps=len(chain) if later else self.taps,
            modules=(len(others) if later else self.modules) if is_whole else 0,
            message=f"found at step {self.found_step:,}: {self.message}" if late else self.message,
            level=next((before for until, before in self.milder if step < until), self.level),
            milder=tuple(severity for severity in self.milder if severity[0] <= step),
        )

    @property
    def severity(self) -> Severity:
        """How serious it is. A scaler looks for its scale by means of non-finite gradients, for some steps in a row."""
        searches = self.skipped and self.culprit.tap.kind in GRADIENT_KINDS
        return "info" if searches and (self.is_over or self.steps <= SCALER_SEARCH) else self.level

    @property
    def unseen(self) -> int:
        """The number of unknown steps right before the first one, in which it may have begun."""
        return 0 if self.previous is None else self.first_step - self.previous - 1

    @property
    def earliest_step(self) -> int:
        """The first step in which it may have begun; the first one if that is known exactly."""
        return self.first_step - self.unseen

    @property
    def sentence(self) -> str:
        """What happened, in one or two sentences."""
        if self.message:
            return " ".join(filter(None, [f"{_capital(self.message)}{self._place()}.", self._end()]))
        if not self.culprit_known:
            return " ".join(filter(None, [f"{self.headline}.", self.remedy, self._course()]))
        return " ".join(filter(None, [f"{self.headline}.", self.known, self._cause(), self._course()]))

    @property
    def what(self) -> str:
        """The non-finite value that began it, in words."""
        return "an infinity" if math.isinf(self.value) else "NaN"

    @property
    def headline(self) -> str:
        """What began when and in which layer, or that the layer isn't known. Of an incident of a rule: its message."""
        if self.message:
            return self.message
        what, when = f"{self.what[0].upper()}{self.what[1:]}", when_words(self.first_step, self.unseen)
        if self.began_in_loss:
            return f"{what} first appeared in {self.loss}, {when}; every captured tensor of that step was finite"
        if not self.culprit_known:
            return f"{what} began {when}; the layer isn't known{' yet' if self.may_be_found else ''}"
        tap = self.culprit.tap
        if tap.kind == "param" and self.source == "check":
            name = ".".join(filter(None, (tap.module, tap.index)))
            return f"{what} was in the parameter {name} before the model ran, {when}"
        begun = f"{what} first appeared in the {KIND_WORDS[tap.kind]} of {tap.module or self.root}, {when}"
        if self.source == "replay":
            return f"{begun}, as the replay of the step found{f' in {self.where}' if self.where else ''}"
        return f"{begun}; the replay of the step leads to {self.where}" if self.where else begun

    @property
    def began_in_loss(self) -> bool:
        """Whether no layer began it, but the loss: its own computation left the range of its type."""
        return bool(self.loss) and not self.culprit_known and not self.unseen

    @property
    def may_be_found(self) -> bool:
        """Whether a replay of its first step may still name the layer."""
        return (
            not (self.culprit_known or self.began_in_loss or self.unseen or self.unsaved) and self.replayed_fine is None
        )

    @property
    def remedy(self) -> str:
        """How to find an unknown culprit, as a sentence; empty if it is known."""
        if self.culprit_known or self.began_in_loss:
            return ""
        if self.unseen:
            return f"To find the layer, {TO_FIND}."
        if self.unsaved:
            return f"The step can't be repeated: {self.unsaved}. To find the layer, {TO_FIND}."
        if self.replayed_fine is None:
            return f"To find it, explain the saved step, or {TO_FIND}."
        found = "The replay of the step found nothing non-finite in the model's outputs, gradients, and buffers"
        if self.replayed_fine:
            return (
                f"{found}, and the outputs are those of the training. So look at how the loss is computed from them, "
                "and at the targets. If a step calls the model several times, only the newest call is replayed."
            )
        return f"{found}, but the outputs may not be those of the training. To find the layer, {TO_FIND}."

    def _place(self) -> str:
        """Name the module, unless the message does."""
        module = self.culprit.tap.module or self.root
        is_said = self.rule in _WITHOUT_PLACE or self.rule.startswith(OWN_RULE) or is_named(module, self.message)
        return "" if is_said else f", in {module}"

    def _end(self) -> str:
        others = f"{counted(self.modules, 'other module')} changed with it"
        over = f"it was over at step {self.recovered:,}" if self.recovered is not None else ""
        if self.short:
            over = f"it has happened {self.steps:,} times, last at step {self.last_step:,}" if self.steps > 1 else ""
        text = "; ".join(filter(None, [others if self.modules else "", over]))
        return f"{text[0].upper()}{text[1:]}." if text else ""

    def _cause(self) -> str:
        if not self.loss:
            return ""
        return f"No captured activation was non-finite, but {self.loss} was, which is computed before any gradient."

    def _course(self) -> str:
        others = counted(self.modules, "other module" if self.culprit_known else "module")
        reached = f"; {others} had followed" if self.modules else ""
        if self.is_over and self.skipped:
            return f"The gradient scaler skipped the step{reached}."
        if self.is_over:
            return f"All tensors were finite again at step {self.recovered:,}{reached}."
        if not self.culprit_known:
            return f"It reached {others} that were captured." if self.modules else ""
        if self.source == "capture" and self.culprit_last < self.last_step:
            healed = f"It was finite again after step {self.culprit_last:,}"
            return f"{healed}, but {others} followed." if self.modules else f"{healed}, but not permanently."
        return f"{others} followed." if self.modules else ""


def is_named(module: str, words: str) -> bool:
    """Return whether a sentence names a module already, so that it need not be added for people."""
    return re.search(rf" in {re.escape(module)}(?!\w|\.\w)", words) is not None


def _capital(message: str) -> str:
    """Return a message as the beginning of a sentence, unless it begins with a name that a user gave to a number."""
    first = message.partition(" ")[0]
    return message if {"/", "_", "."} & set(first) else f"{message[0].upper()}{message[1:]}"


def when_words(step: int, unseen: int = 0) -> str:
    """Write when something began: at a step, or in one of the unknown steps right before it."""
    return f"between steps {step - unseen:,} and {step:,}" if unseen else f"at step {step:,}"


def since_words(step: int, unseen: int = 0) -> str:
    """Write since when something lasts."""
    return f"since a step between {step - unseen:,} and {step:,}" if unseen else f"since step {step:,}"

"""Findings, the names of their rules, how much of a run they are based on, and when a problem began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from hookcore.records import ROOT, Severity, Tap
from hookcore.store import Store
from hookcore.store.incidents import since_words

RuleName = Literal[
    "nonfinite",
    "loss",
    "learning-rate-too-high",
    "learning-rate-too-low",
    "exploding",
    "vanishing",
    "no-gradient",
    "dead",
    "saturated-activation",
    "not-in-optimizer",
    "frozen-by-mistake",
    "duplicate-in-optimizers",
    "overfit",
    "loss-not-decreasing",
    "unchanged-tensor",
    "bf16-update-lost",
    "large-update",
    "stalled",
    "spike",
    "loss-spike",
    "all-zero",
    "tensor-variance",
    "poor-weight-initialization",
    "batch-norm-drift",
    "gradient-clipped-always",
    "state-stays-zero",
    "second-moments",
    "gradient-underflow",
    "float8-clipped",
    "spike-precursor",
    "dead-channels",
    "rank-collapse",
    "attention-entropy-collapse",
    "attention-logit-growth",
    "attention-first-token",
    "dead-heads",
    "outlier-channel",
    "dominant-micro-batch",
    "dead-expert",
    "router-collapse",
    "uneven-expert-ranks",
    "never-used",
    "stalled-training",
    "slow-data-loading",
    "long-evaluation",
    "idle-gpu",
    "late-rank",
    "desync",
]

OF_TIME: Final = {  # rules about measured times, and what their values are
    **dict.fromkeys(("slow-data-loading", "long-evaluation", "late-rank"), "seconds"),
    "idle-gpu": "percent busy",
}
OF_LOSS: Final = frozenset(OF_TIME) | {  # rules about logged values: they are about the training, not about a tensor
    *("loss", "learning-rate-too-high", "learning-rate-too-low", "loss-spike", "overfit", "loss-not-decreasing"),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """The conditions of a finding, its meaning, and advice. `limits` are its thresholds, also those that are fixed."""

    name: RuleName
    severity: Severity
    title: str
    help: str
    limits: Mapping[str, float]
    causes: tuple[str, ...]
    tries: tuple[str, ...]
    known_as: str  # its name in SageMaker Debugger; "" if there is none


WINDOW: Final = 512  # newest steps to examine
MIN_CAPTURED: Final = 64  # examine more steps until this many captured ones are included
COLUMNS: Final = 128  # columns into which the steps are grouped, with the largest magnitude of each
RECENT: Final = 8  # columns that represent the present
MIN_PAST: Final = 16  # columns before them that are needed to know the usual value
WARM_UP: Final = 20  # steps at the start of a run in which nothing is usual yet
EARLY: Final = 128  # the usual value of the steps after these, before the window moved on
SPARK: Final = 48  # values of a sparkline


def spark_around(values: NDArray[np.float64], place: int) -> tuple[float, ...]:
    """Return a sparkline's values on both sides of a place."""
    near = values[max(0, place - SPARK // 2) :][:SPARK]
    return tuple(near[np.isfinite(near)].tolist())


_LISTED: Final = 4


def after_last(is_fine: NDArray[np.bool_]) -> int:
    """Return the place right after the last value that is fine, where those since then began."""
    fine = np.flatnonzero(is_fine)
    return int(fine[-1]) + 1 if len(fine) else 0


def listed(names: Sequence[object]) -> str:
    """List numbers or names: "3", "1 and 3", or "1, 3, 4, 7, and 9 more"."""
    shown, more = [str(each) for each in names[:_LISTED]], len(names) - _LISTED
    if more > 0:
        return f"{', '.join(shown)}, and {more} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


OLDER: Final = " or earlier"  # follows the step if the steps before it weren't looked at


@dataclass(frozen=True, slots=True)
class Since:
    """A sentence with the step since which it holds, which follows `before`."""

    before: str
    after: str = ""
    older: bool = False  # whether it may have begun earlier


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem at a tap. `value` is the current value, `usual` the earlier one (NaN if unknown)."""

    rule: RuleName
    severity: Severity
    number: int
    tap: Tap
    stat: str
    value: float
    usual: float
    since_step: int
    until_step: int | None  # the last step, if it is over
    text: str | Since
    spark: tuple[float, ...]  # the newest finite values, oldest first
    downstream: int  # the number of further affected modules
    last_step: int | None = None  # the last step in which this tensor was non-finite, if it became finite again
    unseen: int = 0  # unknown steps right before its first one: it may have begun in one of them
    members: tuple[tuple[int, int], ...] = ()  # the numbers of all affected taps, each with its first step
    culprit_known: bool = True  # if not, the tap is that of the whole model
    placed: bool = True  # whether it is about the tap, if its rule doesn't say so
    incident: str = ""  # the id of its incident
    is_part: bool = False  # whether another finding stands for the incident

    @property
    def message(self) -> str:
        """What was found, as a sentence."""
        if isinstance(self.text, str):
            return self.text
        since = since_words(self.since_step, self.unseen)
        return f"{self.text.before} {since}{OLDER if self.text.older else ''}{self.text.after}"

    def adding(self, words: str) -> Finding:
        """Return the finding with more words at its sentence's end."""
        text = self.text
        return replace(self, text=text + words if isinstance(text, str) else replace(text, after=text.after + words))

    def calling(self, root: str) -> Finding:
        """Return the finding with the class of the model in its sentence, instead of a word for an empty path."""
        text = self.text
        if not isinstance(text, str):
            named = replace(text, before=text.before.replace(ROOT, root), after=text.after.replace(ROOT, root))
            return replace(self, text=named) if named != text else self
        return replace(self, text=text.replace(ROOT, root)) if ROOT in text else self

    @property
    def module(self) -> str:
        """The module's path."""
        return self.tap.module

    @property
    def is_of_loss(self) -> bool:
        """Whether it is about a logged loss or the training; the tap is then only the model's output."""
        return self.rule in OF_LOSS or not self.placed

    @property
    def has_value(self) -> bool:
        """Whether its value is worth showing. For non-finite tensors and for facts, the message says everything."""
        return self.is_of_loss or (self.rule != "nonfinite" and self.value == self.value)

    @property
    def earliest_step(self) -> int:
        """The first step in which it may have begun."""
        return self.since_step - self.unseen

    @property
    def kind(self) -> str:
        """The tap's kind."""
        return self.tap.kind

    @property
    def key(self) -> str:
        """The key to acknowledge it: the same as long as the rule finds this tap."""
        return f"{self.rule}:{self.tap.label}"


_FAR: Final = 4096  # steps before and after an onset in which captured ones are searched


def with_unseen(store: Store, finding: Finding) -> Finding:
    """Return a finding of a tensor that says in which steps it may have begun, if not all of them were captured."""
    since, first = finding.since_step, store.steps().first or 0
    if finding.is_of_loss or since <= first or isinstance(finding.text, str) or finding.text.older:
        return finding
    rows = store.rows(np.array([finding.number], np.int64), finding.stat, max(first, since - _FAR), since + _FAR)
    seen = rows.present[:, 0] > 0
    if (seen & (rows.first < since) & (rows.last >= since)).any():
        return finding  # the steps around it have been merged
    before, after = rows.last[seen & (rows.last < since)], rows.first[seen & (rows.first >= since)]
    onset = max(since, int(after[0])) if len(after) else since
    unseen = onset - 1 - int(before[-1]) if len(before) else 0
    if (onset, unseen) == (since, 0):
        return finding
    return replace(finding, since_step=onset, unseen=unseen)

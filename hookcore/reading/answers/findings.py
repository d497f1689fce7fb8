"""The findings and the key figures of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from hookcore.reading.answers.base import Answer, Floats, Number, Tap
from hookcore.records import Kind, Severity


class Finding(Answer, frozen=True, eq=False):
    """What a rule found at a tap."""

    key: Annotated[
        str, Meta(description="the key to acknowledge it; stays the same as long as the rule finds this tap")
    ]
    rule: str
    severity: Severity
    acknowledged: bool
    muted: Annotated[bool, Meta(description="whether a mute covers it, so that it raises no alert")]
    tap: Tap
    type: Annotated[str, Meta(description="the module's class, if it is known")]
    stat: Annotated[str, Meta(description="what `value`, `usual` and `spark` are")]
    value: Number
    usual: Annotated[Number, Meta(description="the value before; NaN if there is no baseline")]
    since_step: Annotated[int, Meta(description="the first step in which it was found")]
    until_step: Annotated[int | None, Meta(description="the last step, if it is over")]
    message: str
    spark: Annotated[Floats, Meta(description="the newest finite values, oldest first")]
    downstream: Annotated[int, Meta(description="the number of modules that followed")]
    last_step: Annotated[int | None, Meta(description="the last step with this tensor non-finite, if it is over")]
    earliest_step: Annotated[int, Meta(description="the first step in which it may have begun; `since_step` if exact")]
    culprit_known: Annotated[
        bool, Meta(description="whether it began at this tap; if not, the tap is the whole model's")
    ]


class Unjudged(Answer, frozen=True):
    """A rule for which some layers were captured too rarely."""

    rule: str
    layers: Annotated[int, Meta(description="layers that the rule can't judge")]
    of: Annotated[int, Meta(description="layers that the rule applies to")]
    captured: Annotated[
        int, Meta(description="captured steps of the layer that was captured most, or spans with such steps")
    ]
    needed: Annotated[int, Meta(description="captured steps, or such spans, that the rule needs")]
    span_steps: Annotated[int, Meta(description="steps of a span, if the rule groups them; 1 if it doesn't")]
    sentence: str


class Scope(Answer, frozen=True):
    """The basis of the findings."""

    verdict: Annotated[
        Literal["problems", "clear", "unknown"], Meta(description="unknown: too little was captured to judge")
    ]
    sentence: Annotated[str, Meta(description="the verdict with its scope, as shown on the pages")]
    first_step: Annotated[int | None, Meta(description="the first step that was checked")]
    last_step: int | None
    steps: Annotated[int, Meta(description="steps from the first to the last")]
    captured: Annotated[int, Meta(description="captured steps among them")]
    captured_in_run: int
    layers: Annotated[int, Meta(description="layers with captured tensors")]
    uncaptured: Annotated[int, Meta(description="modules that /coverage lists as not captured")]
    problems: Annotated[int, Meta(description="findings that are warnings or errors")]
    notes: Annotated[int, Meta(description="findings that are no problem: those of severity `info`")]
    evaluated: Annotated[
        bool, Meta(description="whether an evaluation was captured; otherwise, this is about the training only")
    ]
    unjudged: tuple[Unjudged, ...]


class Course(Answer, frozen=True):
    """Where the training goes, by its loss."""

    word: Annotated[
        Literal["learning", "flat", "diverging", "broken", "unknown"],
        Meta(description="broken: the loss or other values are non-finite; unknown: the loss doesn't show it"),
    ]
    sentence: Annotated[str, Meta(description="the word and the reason, as shown on the pages")]
    loss: Annotated[str, Meta(description="the scalar that shows it; empty if there is none")]
    first: Annotated[Number, Meta(description="its first value, or the one before it diverged; NaN if unknown")]
    newest: Number
    lowest: Number
    since_step: Annotated[int | None, Meta(description="the step since which it is so; null if unknown")]


class Rule(Answer, frozen=True):
    """A rule's meaning and thresholds, three usual causes, and what to try."""

    name: str
    severity: Severity
    title: str
    help: str
    limits: dict[str, float]
    causes: tuple[str, ...] = ()
    tries: tuple[str, ...] = ()
    known_as: str = ""


class Threshold(Answer, frozen=True):
    """A number that a rule compares with, for one run."""

    name: str
    value: Number
    default: Number
    least: Number
    most: Number
    whole: Annotated[bool, Meta(description="whether it must be a whole number")]
    help: str


class RunRule(Answer, frozen=True):
    """A rule with the thresholds that apply to one run, and whether it is on."""

    name: str
    title: str
    severity: Severity
    known_as: Annotated[str, Meta(description="its name in SageMaker Debugger, which you can also use")]
    on: bool
    may_be_off: bool
    thresholds: tuple[Threshold, ...]
    looks_at: Annotated[
        int | None,
        Meta(description="tensors or logged values of the run that it checks; null if the trainer checks it"),
    ] = None
    needs: Annotated[
        str, Meta(description="what must be captured or logged for the rule to find anything; empty if it has data")
    ] = ""


class OwnRule(Answer, frozen=True):
    """A rule of the user in one run."""

    name: str
    where: Annotated[str, Meta(description="trainer or server: where it runs")]
    off: Annotated[str, Meta(description="why it was switched off; empty if it runs")]
    calls: Annotated[int, Meta(description="checked frames, according to the newest report")]
    faults: Annotated[int, Meta(description="calls that raised an exception")]
    mean_ms: Annotated[Number, Meta(description="time per frame")]
    worst_ms: Number


class RunRules(Answer, frozen=True):
    """The rules of one run. Can be iterated over."""

    run: str
    rules: tuple[RunRule, ...]
    own: Annotated[tuple[OwnRule, ...], Meta(description="rules of the user")] = ()

    def __iter__(self) -> Iterator[RunRule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)


class Findings(Answer, frozen=True):
    """The findings, worst first. Can be iterated over."""

    run: str
    total: int
    newest_step: int | None
    scope: Scope
    course: Course
    findings: tuple[Finding, ...]
    rules: tuple[Rule, ...]

    def __getitem__(self, place: int) -> Finding:
        return self.findings[place]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)


class Reading(Answer, frozen=True):
    """A value and its source: a scalar, or a tap."""

    name: str
    value: Number
    step: int
    tap: Tap | None
    first_step: Annotated[int, Meta(description="less than `step` if the value is the mean of merged steps")]


class Overview(Answer, frozen=True):
    """The key figures of a run; null for unknown ones."""

    run: str
    state: str
    first_step: int | None
    newest_step: int | None
    steps: int
    steps_per_s: Number | None
    course: Course
    loss: Reading | None
    scalars: Annotated[tuple[Reading, ...], Meta(description="the newest value of each of your scalars, at most 50")]
    gradient_kind: Annotated[Kind | None, Meta(description="which gradients: of parameters, else of outputs")]
    gradient_norm: Reading | None
    smallest_gradient: Annotated[Reading | None, Meta(description="by root mean square")]
    largest_gradient: Annotated[Reading | None, Meta(description="by root mean square")]
    nonfinite: Annotated[int, Meta(description="modules whose newest tensors contained a NaN or an infinity")]
    nonfinite_modules: Annotated[tuple[str, ...], Meta(description="these modules, at most 100")]
    modules_captured: int
    modules: int
    taps: int
    hook_cost: Annotated[
        Number | None,
        Meta(description="the share of the run's time that watching adds, over all steps; null until it is measured"),
    ]
    every: Annotated[int, Meta(description="every n-th step is captured")]
    budget: Annotated[float | None, Meta(description="the largest share that watching may add; null means no limit")]
    steps_left_out: Annotated[
        int | None, Meta(description="steps of the run that were not captured; null if it is only on disk")
    ]
    cost: Annotated[str, Meta(description="the cost in one sentence, as every page shows it")]
    dropped: Annotated[dict[str, int], Meta(description="by reason, in the store and on the way to the store")]
    findings: Annotated[
        dict[str, int], Meta(description="findings that are neither acknowledged nor muted, by severity")
    ]
    muted: Annotated[int, Meta(description="muted findings")]

"""Findings, incidents, and capsules: what went wrong, and what was saved of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from hookcore import records
from hookcore.reading.answers.base import Answer, FloatMatrix, Floats, Integers, Number, Tap
from hookcore.records import Kind, Severity
from hookcore.store import incidents

# The findings and the key figures of a run.


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
    incident: Annotated[
        str, Meta(description="the id of its incident, or empty; findings with the same one are one problem")
    ] = ""


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
        Literal["learning", "plateau", "flat", "diverging", "broken", "unknown"],
        Meta(
            description="plateau: the loss fell, and has stopped; flat: it never fell; broken: the loss or other "
            "values are non-finite; unknown: the loss doesn't show it"
        ),
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
    later: Annotated[
        dict[str, dict[str, float] | bool],
        Meta(description="thresholds with which this server begins runs, by rule; false if a rule is off"),
    ] = field(default_factory=dict)

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
    gradient_norm: Annotated[Reading | None, Meta(description="as an optimizer used them: after clipping")]
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
    gradient_norm_before: Annotated[
        Reading | None, Meta(description="before clipping; null if nothing changes gradients after the backward pass")
    ] = None


# Incidents: problems, as they were found when they happened.


class Link(Tap, frozen=True):
    """A tensor of an incident."""

    first_step: Annotated[int, Meta(description="the first step in which it was affected")]


class Around(Answer, frozen=True):
    """A logged value around the onset of an incident."""

    name: str
    steps: Integers
    values: Floats


class Evidence(Answer, frozen=True):
    """Exact values in the captured steps around an onset."""

    taps: Annotated[tuple[Tap, ...], Meta(description="the culprit, other tensors of its module, and its neighbors")]
    steps: Integers
    stats: Annotated[dict[str, FloatMatrix], Meta(description="each stat, by step and tap; NaN where not captured")]
    scalars: tuple[Around, ...]

    @classmethod
    def of(cls, evidence: incidents.Evidence) -> Evidence:
        """Return the answer for the values around an onset."""
        return cls(
            tuple(map(Tap.of, evidence.numbers, evidence.taps)),
            evidence.steps,
            dict(zip(records.STATS, evidence.stats, strict=True)),
            tuple(Around(logged.name, logged.steps, logged.values) for logged in evidence.logged),
        )


class Incident(Answer, frozen=True):
    """A problem from its first step until all affected tensors had recovered.

    A culprit and a first step that are known never change.
    """

    id: Annotated[str, Meta(description="its name in addresses, also after a restart")]
    key: Annotated[str, Meta(description="the key to acknowledge it, together with the finding about its culprit")]
    rule: str
    severity: Severity
    acknowledged: bool
    muted: Annotated[bool, Meta(description="whether a mute covers it, so that it raises no alert")]
    sentence: str
    culprit: Annotated[Link, Meta(description="what began it; the whole model if `culprit_known` is false")]
    culprit_known: Annotated[
        bool, Meta(description="whether the first layer is known; if not, `remedy` says what to do")
    ]
    source: Annotated[
        incidents.Source,
        Meta(description="how the culprit is known: captured, found by the trainer's check of every step, or replayed"),
    ]
    where: Annotated[str, Meta(description="the line of code that a replay found; empty if none did")]
    headline: Annotated[str, Meta(description="what began when and where, without a period")]
    remedy: Annotated[str, Meta(description="how to find an unknown culprit; empty if it is known")]
    value: Annotated[Number, Meta(description="the culprit's value when the incident was found")]
    usual: Annotated[Number, Meta(description="the value before; NaN if unknown")]
    first_step: Annotated[int, Meta(description="the first step in which it was found")]
    earliest_step: Annotated[int, Meta(description="the first step in which it may have begun; `first_step` if exact")]
    last_step: Annotated[int, Meta(description="the newest step in which it was found")]
    recovered: Annotated[int | None, Meta(description="the step in which it was over; null while it lasts")]
    found_step: Annotated[int, Meta(description="the newest step when the incident was found")]
    steps: Annotated[int, Meta(description="affected steps: captured ones of NaN or infinity, or from first to last")]
    unseen: Annotated[int, Meta(description="unknown steps right before the first one: from `earliest_step` on")]
    skipped: Annotated[bool, Meta(description="whether a gradient scaler skipped one of the steps")]
    loss: Annotated[str, Meta(description="a loss that was non-finite in the first step, although no output was")]
    chain: Annotated[tuple[Link, ...], Meta(description="the tensors that followed, in the order of cause")]
    taps: Annotated[int, Meta(description="the number of tensors that followed; the chain has the first 256")]
    modules: Annotated[int, Meta(description="the number of other affected modules")]
    has_evidence: Annotated[bool, Meta(description="whether the values around the onset were saved")]
    evidence: Annotated[Evidence | None, Meta(description="these values; null in a list of incidents")] = None

    @classmethod
    def of(cls, incident: incidents.Incident, acknowledged: bool, muted: bool, in_full: bool = False) -> Incident:
        """Return the answer about an incident: in full with its evidence, if there was room for it."""
        evidence = Evidence.of(incident.evidence) if in_full and incident.evidence is not None else None
        return cls(**_fields_of(incident), acknowledged=acknowledged, muted=muted, evidence=evidence)


class Incidents(Answer, frozen=True):
    """Incidents, oldest first. Can be iterated over."""

    run: str
    total: int
    dropped: Annotated[int, Meta(description="incidents that were dropped to make room for others")]
    dropped_alerts: Annotated[int, Meta(description="the warnings and errors among these")]
    incidents: tuple[Incident, ...]

    def __getitem__(self, place: int) -> Incident:
        return self.incidents[place]

    def __iter__(self) -> Iterator[Incident]:
        return iter(self.incidents)

    def __len__(self) -> int:
        return len(self.incidents)


def _fields_of(incident: incidents.Incident) -> dict[str, Any]:
    same = (
        "id",
        "key",
        "rule",
        "severity",
        "sentence",
        "headline",
        "remedy",
        "culprit_known",
        "source",
        "where",
        "first_step",
        "earliest_step",
        "last_step",
        "recovered",
        "steps",
        "unseen",
    )
    return {name: getattr(incident, name) for name in (*same, "found_step", "skipped", "loss", "taps", "modules")} | {
        "culprit": _link(incident.culprit),
        "value": Number(incident.value),
        "usual": Number(incident.usual),
        "chain": tuple(map(_link, incident.chain)),
        "has_evidence": incident.evidence is not None,
    }


def _link(link: incidents.Link) -> Link:
    return Link.of(link.number, link.tap, first_step=link.first_step)


# Capsules: steps that a training saved, and what a replay found in each.

State = Literal["saved", "running", "explained", "failed"]


class SourceLine(Answer, frozen=True):
    """A line of the training's code, with the lines around it."""

    file: str
    line: int
    function: str
    source: tuple[str, ...]
    first: Annotated[int, Meta(description="the number of the first of these lines")]

    @property
    def code(self) -> str:
        """The line itself; empty if its file couldn't be read."""
        place = self.line - self.first
        return self.source[place].strip() if place < len(self.source) else ""


class TensorFacts(Answer, frozen=True):
    """A tensor in a replay; minimum, maximum, and mean are those of the finite values."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str
    nan: int
    inf: int
    min: float | None
    max: float | None
    mean: float | None
    values: Annotated[tuple[str, ...], Meta(description="the values at the bad elements")]


class Suspect(Answer, frozen=True):
    """Where a non-finite value came from."""

    origin: Literal["operator", "given", "constant", "uninitialized"]
    operator: Annotated[str, Meta(description="its name, or the given value")]
    number: Annotated[int, Meta(description="its position among the step's operators")]
    phase: Annotated[str, Meta(description="forward or backward")]
    node: Annotated[str, Meta(description="the autograd node that ran it, in the backward pass")]
    stack: Annotated[tuple[SourceLine, ...], Meta(description="the training's code, innermost last")]
    inputs: tuple[TensorFacts, ...]
    output: TensorFacts | None
    elements: Annotated[tuple[tuple[int, ...], ...], Meta(description="the indices of the first bad elements")]
    bad: Annotated[int, Meta(description="the number of bad elements")]
    module: Annotated[str, Meta(description="in which it ran, below the replayed model; in the backward pass, too")] = (
        ""
    )


class ReplayedLayer(Answer, frozen=True):
    """An activation of a replayed step, or its gradient."""

    module: Annotated[str, Meta(description="below the replayed model")]
    kind: Literal["output", "output_grad"]
    index: str
    call: int
    values: Annotated[
        tuple[float | None, ...], Meta(description="count, nan, inf, zero, mean, std, min, max, rms, norm")
    ]


class SampleShare(Answer, frozen=True):
    """A sample's share of a loss."""

    ids: Annotated[tuple[int | str, ...], Meta(description="of a row with several samples, all; empty if unknown")]
    row: int
    share: float

    @property
    def words(self) -> str:
        """What it is called."""
        if not self.ids:
            return f"row {self.row}"
        return f"sample {self.ids[0]}" if len(self.ids) == 1 else f"one of the samples {', '.join(map(str, self.ids))}"


class SampleShares(Answer, frozen=True):
    """How the loss of a replayed step is divided among its samples."""

    why: Annotated[str | None, Meta(description="why that isn't known; null if it is")]
    of: Annotated[Literal["loss", "gradient"], Meta(description="what is divided: the loss, or its gradient")]
    loss: Annotated[float | None, Meta(description="of the backward pass")]
    many: Annotated[int, Meta(description="samples of the batch")] = 0
    samples: Annotated[tuple[SampleShare, ...], Meta(description="those with the largest shares, at most 8")] = ()
    stands_out: Annotated[bool, Meta(description="whether the first one explains the jump")] = False
    still_jumps: Annotated[bool, Meta(description="whether the loss jumps without the first one, too")] = False
    why_no_ids: Annotated[str | None, Meta(description="why the samples have no names; null if they do")] = None
    loss_without: Annotated[float | None, Meta(description="with another sample of the batch in its place")] = None
    norm: Annotated[float | None, Meta(description="of the gradient of all weights")] = None
    norm_without: Annotated[float | None, Meta(description="with another sample of the batch in its place")] = None
    why_not_without: Annotated[str | None, Meta(description="why the last ones aren't known; null if they are")] = None

    @property
    def sentence(self) -> str:
        """Which sample holds the loss, in sentences."""
        if self.why is not None:
            return f"Which sample holds the loss is unknown: {self.why}."
        first, of = self.samples[0], "the gradient at the model's output"
        if self.of == "loss":
            of = "the loss" if self.loss is None else f"the loss of {self.loss:.3g}"
        share = f"holds {first.share:.0%} of {of}"
        if self.still_jumps:
            return f"No sample explains the jump: {first.words} {share}, but without it, the loss is a jump as well."
        if not self.stands_out:
            return f"No sample stands out: of {self.many}, the largest, {first.words}, {share}."
        unnamed = f" ({self.why_no_ids})" if not first.ids and self.why_no_ids else ""
        found = f"{first.words.capitalize()} {share}{unnamed}."
        if self.why_not_without is not None:
            return f"{found} What the step would be without it is unknown: {self.why_not_without}."
        if self.norm is None or self.norm_without is None:
            return found
        loss = "" if self.loss_without is None else f"the loss is {self.loss_without:.3g}, and "
        norm = f"the norm of the gradient {self.norm_without:.3g} instead of {self.norm:.3g}"
        return f"{found} With another sample in its place, {loss}{norm}."


class Explanation(Answer, frozen=True):
    """The result of a replay."""

    sentence: str
    culprit: Suspect | None
    others: Annotated[tuple[Suspect, ...], Meta(description="further origins; most reach no result of the step")]
    bad_results: tuple[str, ...]
    operators: int
    exact: Annotated[bool, Meta(description="whether the outputs matched the training, bit for bit")]
    differences: Annotated[tuple[str, ...], Meta(description="what didn't match, or couldn't be compared")]
    error: Annotated[str, Meta(description="the exception that the step raised")]
    above: Annotated[float | None, Meta(description="magnitudes above it also counted as bad")] = None
    layers: Annotated[
        tuple[ReplayedLayer, ...], Meta(description="the affected ones in order, and the finite ones before them")
    ] = ()
    shares: Annotated[SampleShares | None, Meta(description="of a step whose loss jumped; otherwise null")] = None

    @property
    def names_cause(self) -> bool:
        """Whether it says where the problem comes from; else it only says what was looked at."""
        return self.culprit is not None or (self.shares is not None and self.shares.stands_out)


class Capsule(Answer, frozen=True):
    """A step that was saved on this machine."""

    id: Annotated[str, Meta(description="its name in addresses")]
    step: int
    reason: str
    model: str
    weights: Annotated[str, Meta(description="whether the weights are those before or after the update")]
    time_s: Number
    size: int
    path: Annotated[str, Meta(description="for `hookcore replay`")]
    state: State
    failure: Annotated[str, Meta(description="why it could not be explained")]
    explanation: Explanation | None
    incident: Annotated[str, Meta(description="the id of the incident after which it was requested; empty if none")]


class Capsules(Answer, frozen=True):
    """The steps that a run saved and that this server can read, oldest first."""

    run: str
    total: int
    capsules: tuple[Capsule, ...]

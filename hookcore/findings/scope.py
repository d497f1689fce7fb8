"""The basis of the findings: what each rule has to look at, and which steps "no problems" covers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import MIN_PAST, RECENT, Finding, RuleName
from hookcore.findings.losses import Losses, is_validation
from hookcore.findings.magnitudes import NORMALIZING as NORMALIZING
from hookcore.findings.outputs import FUNCTIONS, places_by_rule, zeros_of
from hookcore.findings.outputs import SATURATING as SATURATING
from hookcore.findings.rules import RULES, limits_of
from hookcore.findings.window import MagnitudeWindow, window_first
from hookcore.records import PROBE, Kind, Tap
from hookcore.records.vocabulary import DESYNC, LATE_RANK, counted, found_words
from hookcore.store import Store, TapList

# The basis of the findings: "no problems" covers only the examined steps, and may be "unknown".

Verdict = Literal["problems", "clear", "unknown"]

MIN_KNOWN: Final = 0.5  # of the layers: if fewer can be judged, nothing is said about the run
NEEDED: Final = RECENT + MIN_PAST  # columns
NO_EVALUATION: Final = "No evaluation was captured."  # as by default
_ABOUT: Final[dict[RuleName, str]] = {"exploding": "changes over time", "dead": "dead layers"}


@dataclass(frozen=True, slots=True)
class Unjudged:
    """A rule that can't judge some layers yet: `captured` is the number of steps of the one captured most.

    A rule that groups steps counts spans of `span_steps` instead, in which a layer was captured at least once.
    """

    rule: RuleName
    layers: int
    of: int
    captured: int
    needed: int
    span_steps: int = 1

    @property
    def sentence(self) -> str:
        """Return it in words."""
        none = self.layers == self.of
        which = "any layer" if none else f"{self.layers:,} of {self.of:,} layers"
        most = "at most " if self.captured and not none else ""
        steps = f"{most}{counted(self.captured, 'captured step')}"
        if self.span_steps > 1:
            steps = f"captured in {most}{counted(self.captured, 'span')} of {self.span_steps:,} steps"
        return f"Not enough captured to judge {_ABOUT[self.rule]} in {which}: {steps}, {self.needed} needed."


@dataclass(frozen=True, slots=True)
class Scope:
    """The examined steps: from first to last, and how many of them were captured."""

    verdict: Verdict
    sentence: str
    first_step: int | None
    last_step: int | None
    steps: int
    captured: int
    captured_in_run: int
    layers: int
    uncaptured: int  # modules that the coverage lists as not captured
    problems: int  # findings that are warnings or errors, one for each incident
    notes: int  # the others
    evaluated: bool  # whether an evaluation was captured; otherwise, the sentence is about the training only
    unjudged: tuple[Unjudged, ...]


def scope_of(store: Store, taps: TapList, sizes: MagnitudeWindow | None, found: Sequence[Finding]) -> Scope:
    """Return how much was examined for these findings."""
    newest = store.steps().newest
    leading = [each.severity for each in found if not each.is_part]
    notes = leading.count("info")
    problems = len(leading) - notes
    uncaptured = sum(not each.captured for each in store.coverage())
    if newest is None or not len(taps.taps) or sizes is None:
        nothing = "No step has been captured: there is nothing to judge."
        if found or Losses(store).series:
            nothing = f"{found_words(problems, notes)} found in logged values; no tensor was captured."
        known: Verdict = "problems" if problems else "unknown"
        return Scope(known, nothing, None, newest, 0, 0, 0, 0, uncaptured, problems, notes, False, ())
    first = window_first(store)
    captured, steps = store.captured(first), newest - first + 1
    layers = taps.fact(_layers).number
    unjudged = tuple(each for each in (_growth(sizes), _dead(store, taps.of_kind("output"))) if each is not None)
    too_little = any(each.layers > MIN_KNOWN * each.of for each in unjudged)
    verdict: Verdict = "problems" if problems else "unknown" if too_little else "clear"
    window = f"in the last {counted(steps, 'step')} ({captured:,} captured)"
    opening = [f"{found_words(problems, notes)} found {window}."]
    if verdict == "unknown":
        opening = [f"No NaN or infinity {window}.", *([f"{counted(notes, 'note')}."] if notes else [])]
    evaluated = taps.fact(_evaluated)
    opening += [] if evaluated or problems else [NO_EVALUATION]
    sentence = " ".join([*opening, *(each.sentence for each in unjudged)])
    about = (first, newest, steps, captured, store.captured(), layers, uncaptured, problems, notes, evaluated)
    return Scope(verdict, sentence, *about, unjudged)


def _evaluated(taps: TapList) -> bool:
    return any(tap.phase == "eval" for tap in taps.taps)


@dataclass(frozen=True, slots=True)
class _Layers:
    """How many layers some taps are of, and the number of each tap's layer."""

    number: int
    of_tap: NDArray[np.intp]


def _layers(taps: TapList) -> _Layers:
    numbers: dict[str, int] = {}
    of_tap = [numbers.setdefault(tap.module, len(numbers)) for tap in taps.taps]
    return _Layers(len(numbers), np.array(of_tap, np.intp))


def _growth(sizes: MagnitudeWindow) -> Unjudged | None:
    """Return the layers without any tensor whose past is known well enough."""
    layers = sizes.taps.fact(_layers)
    most = np.zeros(layers.number, np.intp)
    np.maximum.at(most, layers.of_tap, sizes.seen)
    return _unjudged("exploding", most[most < NEEDED], NEEDED, layers.number, sizes.columns.width)


def _dead(store: Store, outputs: TapList) -> Unjudged | None:
    zeros = zeros_of(store, outputs, "dead")
    layers = outputs.fact(_layers)
    known = layers.of_tap[zeros.judged]  # in training, perhaps not in evaluation
    places = zeros.unknown[~np.isin(layers.of_tap[zeros.unknown], known)]
    if not len(places):
        return None
    limits = limits_of(store, "dead")
    first = store.captured_step(int(limits["among"]) - 1)
    rows = store.rows(outputs.numbers[places], "zero_fraction", first)
    seen = np.zeros(layers.number, np.intp)
    seen[layers.of_tap[places]] = rows.present.sum(axis=0)
    return _unjudged("dead", seen[np.unique(layers.of_tap[places])], int(limits["captured_steps"]), layers.number)


def _unjudged(rule: RuleName, seen: NDArray[np.intp], needed: int, of: int, span_steps: int = 1) -> Unjudged | None:
    return Unjudged(rule, len(seen), of, int(seen.max()), needed, span_steps) if len(seen) else None


# What each rule has to look at in a run. If a rule has nothing, its silence says nothing about the run.

_NEWEST: Final = 64  # captured steps that show how often updates are measured
_OFTEN: Final = 0.5
_PASSED: Final[tuple[Kind, ...]] = ("output", "output_grad", "input_grad", "param_grad")


@dataclass(frozen=True, slots=True)
class ScopeOfRule:
    """How much of a run a rule can look at: tensors, or logged values. None if the trainer looks for it.

    `needs` says what must be captured or logged before it can find something; it is empty if there is something.
    """

    looks_at: int | None
    needs: str


@dataclass(frozen=True, slots=True)
class _Known:
    """The data that a run has."""

    store: Store
    taps: TapList
    by_kind: dict[tuple[str, str], list[Tap]]  # by kind and phase
    types: dict[str, str]
    losses: tuple[str, ...]

    def of_kinds(self, *kinds: Kind) -> int:
        """Return the number of taps of these kinds in training."""
        return sum(len(self.by_kind.get((kind, "train"), ())) for kind in kinds)

    def of_class(self, fits: Callable[[str], bool], phase: str = "train") -> int:
        """Return the number of outputs of modules whose class has such a name."""
        return sum(fits(self.types.get(tap.module, "")) for tap in self.by_kind.get(("output", phase), ()))


_Count = Callable[[_Known], int]
OF_HEADS: Final[tuple[RuleName, ...]] = ("attention-logit-growth", "attention-first-token", "dead-heads")


def _tensors(*kinds: Kind) -> tuple[_Count, str]:
    words = " and ".join(f"the kind {kind}" for kind in kinds)
    return lambda known: min(map(known.of_kinds, kinds)), words


def _updates(known: _Known) -> int:
    """Return the number of updates; none if they are measured in few steps, as they are by default."""
    updates = known.taps.of_kind("update")
    first = known.store.captured_step(_NEWEST - 1)
    if not len(updates.taps) or first is None:
        return len(updates.taps)
    measured = known.store.rows(updates.numbers[:1], "count", first).present.sum()
    return known.of_kinds("update") if measured >= _OFTEN * known.store.captured(first) else 0


def _logged(known: _Known) -> int:
    return sum(not is_validation(name) for name in known.losses)


def _validated(known: _Known) -> int:
    return sum(map(is_validation, known.losses)) if _logged(known) else 0


def _probed(rule: RuleName, or_else: str = "") -> tuple[_Count, str]:
    words = f"{or_else}a probe with {FUNCTIONS[rule]}"
    return lambda known: len(places_by_rule(known.store, known.taps).get(rule, ())), words


def _all(known: _Known) -> int:
    return len(known.taps.taps) - len(known.taps.of_kind(PROBE).taps)


_UPDATES: Final = _updates, "the kind update in every captured step"
_BOTH: Final = (
    lambda known: min(_updates(known), known.of_kinds("param_grad")),
    "the kind update in every captured step, and the kind param_grad",
)
_ANY: Final = _all, "a captured step"
_LOSS: Final = _logged, 'a logged value with "loss" in its name'
_EVALUATED: Final = "phases={'train', 'eval'}, an evaluation, and a batch normalization"

_READS: Final[dict[RuleName, tuple[_Count, str] | None]] = {
    "nonfinite": _ANY,
    "loss": _LOSS,
    "learning-rate-too-high": _LOSS,
    "learning-rate-too-low": (
        lambda known: min(_logged(known), known.of_kinds("update")),
        "a logged loss and the kind update",
    ),
    "exploding": _ANY,
    "vanishing": (lambda known: known.of_kinds(*_PASSED), "activations or gradients"),
    "no-gradient": _tensors("param_grad"),
    "dead": _tensors("output"),
    "saturated-activation": (lambda known: known.of_class(SATURATING.__contains__), "a Sigmoid or a Tanh module"),
    "not-in-optimizer": None,
    "frozen-by-mistake": None,
    "duplicate-in-optimizers": None,
    "overfit": (_validated, "a logged training loss and a logged validation loss"),
    "loss-not-decreasing": _LOSS,
    "unchanged-tensor": _BOTH,
    "bf16-update-lost": _BOTH,
    "large-update": _UPDATES,
    "stalled": _UPDATES,
    "spike": _ANY,
    "loss-spike": _LOSS,
    "all-zero": _tensors("param_grad", "output_grad"),
    "tensor-variance": _tensors("output"),
    "poor-weight-initialization": _tensors("output"),
    "batch-norm-drift": (lambda known: known.of_class(lambda name: name.startswith(NORMALIZING), "eval"), _EVALUATED),
    "gradient-clipped-always": _tensors("param_grad"),
    # An optimizer that keeps nothing, or a loss that never jumps, lacks nothing.
    **dict.fromkeys(("state-stays-zero", "second-moments", "spike-precursor")),
    **dict.fromkeys(("gradient-underflow", "float8-clipped")),  # a training without float16 or float8 lacks nothing
    "dead-channels": _probed("dead-channels"),
    "rank-collapse": _probed("rank-collapse"),
    "attention-entropy-collapse": _probed("attention-entropy-collapse", "attention that is measured, or "),
    **{rule: _probed(rule, "fused attention, nn.MultiheadAttention, or ") for rule in OF_HEADS},
    **dict.fromkeys(("dead-expert", "router-collapse", "uneven-expert-ranks")),  # without a router, nothing lacks
    "outlier-channel": None,  # nor without blocks
    "dominant-micro-batch": None,  # nor with one micro-batch in each step
    "never-used": None,
    "stalled-training": None,
    "slow-data-loading": None,
    "long-evaluation": None,
    "idle-gpu": None,
    "late-rank": (lambda known: int(known.store.of_ranks) * _all(known), "several ranks of one training"),
    "desync": (lambda known: int(known.store.of_ranks) * _all(known), "several ranks of one training"),
}


def _by_kind(taps: TapList) -> dict[tuple[str, str], list[Tap]]:
    found: dict[tuple[str, str], list[Tap]] = {}
    for tap in taps.taps:
        found.setdefault((tap.kind, tap.phase), []).append(tap)
    return found


def reach_of(store: Store) -> dict[RuleName, ScopeOfRule]:
    """Return what each rule has to look at in the run of a store."""
    taps = store.taps()
    losses = tuple(each.name for each in Losses(store).series)
    known = _Known(store, taps, taps.fact(_by_kind), store.module_types(), losses)
    found: dict[RuleName, ScopeOfRule] = {}
    for rule in RULES:
        reads = _READS[rule]
        if reads is None:
            found[rule] = ScopeOfRule(None, "")
        else:
            count, needs = reads[0](known), reads[1]
            if rule in OF_HEADS and not count and not any("attention" in name.lower() for name in known.types.values()):
                needs = ""  # a model without attention lacks nothing
            found[rule] = ScopeOfRule(count, "" if count else needs)
    return found


def without_data(store: Store) -> list[RuleName]:
    """Return the rules that are on and have nothing to look at. One about ranks isn't missed without any."""
    of_ranks = (DESYNC, LATE_RANK)
    wanted = (
        each for each in reach_of(store).items() if each[0] not in of_ranks and store.rules.get(each[0]) is not False
    )
    return [rule for rule, reach in wanted if reach.needs]

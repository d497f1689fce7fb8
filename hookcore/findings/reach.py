"""What each rule has to look at in a run. If a rule has nothing, its silence says nothing about the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hookcore.findings.activations import CLASSES as SATURATING
from hookcore.findings.loss import Losses
from hookcore.findings.probed import FUNCTIONS, places_by_rule
from hookcore.findings.progress import is_validation
from hookcore.findings.rule import RuleName
from hookcore.findings.rules import RULES
from hookcore.findings.running import CLASSES as NORMALIZING
from hookcore.records import PROBE, Kind, Tap
from hookcore.records.vocabulary import DESYNC, LATE_RANK
from hookcore.store import Store, TapList

_NEWEST: Final = 64  # captured steps that show how often updates are measured
_OFTEN: Final = 0.5
_PASSED: Final[tuple[Kind, ...]] = ("output", "output_grad", "input_grad", "param_grad")


@dataclass(frozen=True, slots=True)
class Reach:
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


def _probed(rule: RuleName) -> tuple[_Count, str]:
    return lambda known: len(places_by_rule(known.store, known.taps).get(rule, ())), f"a probe with {FUNCTIONS[rule]}"


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
    "dead-channels": _probed("dead-channels"),
    "rank-collapse": _probed("rank-collapse"),
    "attention-entropy-collapse": _probed("attention-entropy-collapse"),
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


def reach_of(store: Store) -> dict[RuleName, Reach]:
    """Return what each rule has to look at in the run of a store."""
    taps = store.taps()
    losses = tuple(each.name for each in Losses(store).series)
    known = _Known(store, taps, taps.fact(_by_kind), store.module_types(), losses)
    found: dict[RuleName, Reach] = {}
    for rule in RULES:
        reads = _READS[rule]
        if reads is None:
            found[rule] = Reach(None, "")
        else:
            count, needs = reads[0](known), reads[1]
            found[rule] = Reach(count, "" if count else needs)
    return found


def without_data(store: Store) -> list[RuleName]:
    """Return the rules that are on and have nothing to look at. One about ranks isn't missed without any."""
    of_ranks = (DESYNC, LATE_RANK)
    wanted = (
        each for each in reach_of(store).items() if each[0] not in of_ranks and store.rules.get(each[0]) is not False
    )
    return [rule for rule, reach in wanted if reach.needs]

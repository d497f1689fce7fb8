"""All rules applied to one store, the worst finding first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hookcore.records import SEVERITIES
from hookcore.store import Store, TapList

from .depth import find_depth
from .finding import RULES, Finding
from .loss import Losses, find_loss
from .magnitudes import find_sizes, find_updates
from .nonfinite import find_nonfinite
from .readings import Readings, window_first
from .scope import Scope, scope_of
from .zeros import find_dead, find_no_gradient

_RULES: Final = tuple(RULES)


@dataclass(slots=True)
class RuleInputs:
    """Data from earlier reads, so that only new data is read. It doesn't change the result."""

    sizes: Readings | None = None
    updates: Readings | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, the worst first, and how much they are based on."""

    findings: tuple[Finding, ...]
    scope: Scope


def findings_of(store: Store, inputs: RuleInputs | None = None) -> tuple[Finding, ...]:
    """Return the findings, the worst first: non-finite values, then errors, warnings, and notes."""
    return examine(store, inputs).findings


def examine(store: Store, inputs: RuleInputs | None = None) -> Diagnosis:
    """Return the findings of a run and their scope."""
    inputs = RuleInputs() if inputs is None else inputs
    taps = store.taps()
    outputs = _of_kind(taps, "output")
    inputs.sizes = Readings.of(store, taps, "rms", inputs.sizes)
    inputs.updates = Readings.of(store, _of_kind(taps, "update"), "ratio", inputs.updates)
    losses = Losses(store)
    found = [*find_dead(store, outputs), *find_no_gradient(store, _of_kind(taps, "param_grad"))]
    found += find_loss(losses, taps)
    if inputs.sizes is not None:
        found += _of_sizes(store, taps, inputs.sizes, losses)
    if inputs.updates is not None:
        found += find_updates(inputs.updates)
    ordered = tuple(sorted(found, key=_urgency))
    return Diagnosis(ordered, scope_of(store, taps, outputs, inputs.sizes, ordered))


def _of_sizes(store: Store, taps: TapList, sizes: Readings, losses: Losses) -> list[Finding]:
    """Return findings about magnitudes; a stack that fades or grows as a whole replaces those of its layers."""

    def spark(number: int) -> tuple[float, ...]:
        return sizes.spark(int(np.searchsorted(taps.numbers, number)))

    stacks = find_depth(sizes)
    covered = {(each.rule, each.kind) for each in stacks}
    single = [each for each in find_sizes(sizes, losses) if (each.rule, each.kind) not in covered]
    return [*find_nonfinite(store, taps, window_first(store), spark), *stacks, *single]


def _of_kind(taps: TapList, kind: str) -> TapList:
    return taps.at([place for place, tap in enumerate(taps.taps) if tap.kind == kind])


def _urgency(finding: Finding) -> tuple[bool, int, int, int, int]:
    """Order findings: non-finite values first, even if over; then the newest, then what the model computes first."""
    leads = finding.rule == "nonfinite" and finding.severity != "info"
    severity = SEVERITIES.index(finding.severity)
    return not leads, severity, _RULES.index(finding.rule), -finding.since_step, finding.number

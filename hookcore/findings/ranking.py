"""All rules applied to one store, the worst finding first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hookcore.findings.activations import find_saturated
from hookcore.findings.clipped import find_clipped
from hookcore.findings.course import Course, course_of
from hookcore.findings.depth import find_depth
from hookcore.findings.finding import Finding
from hookcore.findings.history import settle
from hookcore.findings.initial import find_equal, find_scale
from hookcore.findings.learningrate import HIGH, find_rate
from hookcore.findings.loss import Losses, find_loss
from hookcore.findings.lossspikes import find_loss_spikes
from hookcore.findings.magnitudes import find_sizes, find_updates
from hookcore.findings.nonfinite import find_nonfinite
from hookcore.findings.onset import with_unseen
from hookcore.findings.ownership import find_ownership
from hookcore.findings.probed import find_probed
from hookcore.findings.progress import find_progress
from hookcore.findings.rounding import find_lost
from hookcore.findings.rules import RULES
from hookcore.findings.running import find_drift
from hookcore.findings.scope import Scope, scope_of
from hookcore.findings.variance import find_variance
from hookcore.findings.waits import find_waits
from hookcore.findings.window import MagnitudeWindow, window_first
from hookcore.findings.zeros import find_dead, find_no_gradient, find_zero_inputs
from hookcore.records import SEVERITIES
from hookcore.store import Store, TapList

_RULES: Final = tuple(RULES)


@dataclass(slots=True)
class RuleInputs:
    """Data from earlier reads, so that only new data is read. It doesn't change the result."""

    sizes: MagnitudeWindow | None = None
    updates: MagnitudeWindow | None = None

    def shrink(self) -> None:
        """Release the memory of what can be read again."""
        self.sizes = None if self.sizes is None else self.sizes.outline()
        self.updates = None if self.updates is None else self.updates.outline()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, the worst first, and how much they are based on."""

    findings: tuple[Finding, ...]
    scope: Scope
    course: Course


def examine(store: Store, inputs: RuleInputs | None = None) -> Diagnosis:
    """Return the findings of a run and their scope."""
    inputs = RuleInputs() if inputs is None else inputs
    found, taps = _ranked(settle(store, findings_of(store, inputs))), store.taps()
    return Diagnosis(found, scope_of(store, taps, inputs.sizes, found), course_of(store, found))


def findings_of(
    store: Store, inputs: RuleInputs | None = None, spikes_reported: int | None = None
) -> tuple[Finding, ...]:
    """Return what the rules find now, the worst first: non-finite values, then errors, warnings, and notes.

    With the step up to which spikes are known, return only later ones, as soon as it is clear that they were spikes.
    """
    inputs = RuleInputs() if inputs is None else inputs
    taps = store.taps()
    outputs = taps.of_kind("output")
    inputs.sizes = MagnitudeWindow.of(store, taps, "rms", inputs.sizes)
    inputs.updates = MagnitudeWindow.of(store, taps.of_kind("update"), "ratio", inputs.updates)
    losses = Losses(store)
    gradients = taps.of_kind("param_grad")
    dead = find_dead(store, outputs)
    found = dead + find_saturated(store, outputs, losses) + find_variance(store, taps, outputs)
    if not losses.are_solved:
        found += find_no_gradient(store, gradients) + ([] if dead else find_zero_inputs(store, taps))
    found += find_clipped(store, taps, gradients) + find_equal(store, taps, losses)
    broken = find_loss(losses, taps)
    found += broken + find_rate(losses, taps, bool(broken))
    found += find_loss_spikes(losses, taps) + find_progress(losses, taps)
    found += find_ownership(store, taps) + find_waits(store, taps)
    found += find_probed(store, taps, losses)
    if inputs.sizes is not None:
        found += _of_sizes(store, taps, inputs.sizes, losses, spikes_reported)
    if inputs.updates is not None:
        found += find_updates(inputs.updates) + find_lost(store, taps)
    wanted = [with_unseen(store, each) for each in found if store.rules.get(each.rule) is not False]
    return _ranked(_with_cause(wanted))


def _with_cause(found: list[Finding]) -> list[Finding]:
    """Let non-finite values say that the learning rate is too high, if the loss had grown before them."""
    rate = next((each for each in found if each.rule == HIGH and each.severity == "error"), None)
    if rate is None:
        return found
    cause = f"; before that, {rate.message}: the learning rate is too high"
    return [
        replace(each, message=each.message + cause)
        if each.rule == "nonfinite" and each.severity != "info" and each.since_step >= rate.since_step
        else each
        for each in found
    ]


def _ranked(found: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(found, key=_urgency))


def _of_sizes(
    store: Store, taps: TapList, sizes: MagnitudeWindow, losses: Losses, spikes_reported: int | None
) -> list[Finding]:
    """Return findings about magnitudes; a stack that fades or grows as a whole replaces those of its layers."""

    def spark(number: int) -> tuple[float, ...]:
        return sizes.spark(int(np.searchsorted(taps.numbers, number)))

    stacks = find_depth(sizes)
    covered = {(each.rule, each.kind) for each in stacks}
    single = [each for each in find_sizes(sizes, losses, spikes_reported) if (each.rule, each.kind) not in covered]
    begun = find_drift(sizes) + ([] if stacks else find_scale(sizes))
    return [*find_nonfinite(store, window_first(store), spark), *stacks, *single, *begun]


def _urgency(finding: Finding) -> tuple[int, int, int, int, int]:
    """Order findings: a diverged rate first, then non-finite values, even if over; then the newest, and the flow."""
    leads = finding.rule == "nonfinite" and finding.severity != "info"
    severity = SEVERITIES.index(finding.severity)
    return (
        0 if finding.rule == HIGH and finding.severity == "error" else 1 if leads else 2,
        severity,
        _RULES.index(finding.rule) if finding.rule in _RULES else len(_RULES),
        -finding.since_step,
        finding.number,
    )

"""All rules applied to one store, the worst finding first; cached until new data arrives."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np

from hookcore.findings.depth import find_depth, find_equal, find_scale
from hookcore.findings.finding import Finding, RuleName, spark_around, with_unseen
from hookcore.findings.keyfigures import Course, course_of
from hookcore.findings.losses import HIGH, Losses, find_loss, find_loss_spikes, find_progress, find_rate
from hookcore.findings.magnitudes import find_clipped, find_drift, find_nonfinite, find_sizes, find_updates
from hookcore.findings.outputs import (
    find_dead,
    find_no_gradient,
    find_probed,
    find_routing,
    find_saturated,
    find_variance,
    find_zero_inputs,
)
from hookcore.findings.rules import RULES
from hookcore.findings.scope import Scope, scope_of
from hookcore.findings.times import find_waits
from hookcore.findings.updates import (
    find_dominant,
    find_float8,
    find_lost,
    find_ownership,
    find_precursors,
    find_states,
    find_underflow,
)
from hookcore.findings.window import MagnitudeWindow, window_first
from hookcore.records import APART, PROBE, SEVERITIES, STAT_COLUMN, Tap
from hookcore.records.vocabulary import NUMBERS_APART, OWN_NUMBERS, titled
from hookcore.store import Store, TapList
from hookcore.store.incidents import NONFINITE, Incident

MAX_PAST: Final = 10  # newest incidents that are over


def settle(store: Store, findings: Sequence[Finding]) -> list[Finding]:
    """Let findings name the tensor and the step of their incident, and add the incidents that no finding is about.

    Problems of several tensors that began together are one incident: the other findings are parts of it. So are those
    of something short that came back, such as a spike.
    """
    # Findings about non-finite values are made of incidents already.
    incidents = [incident for incident in store.incidents() if incident.rule != NONFINITE]
    settled: dict[tuple[str, int], Finding] = {}
    for finding in findings:  # the worst first
        found = _settle(store, finding, incidents)
        settled.setdefault((found.key, found.since_step), found)
    ids = {(incident.key, incident.first_step): incident.id for incident in incidents}
    parts = [_part(finding, ids.get(key, ""), incidents) for key, finding in settled.items()]
    again = _repeated(parts, incidents)
    times = {id(each): incident for incident, every in again.items() for each in every}
    parts = [
        replace(each, incident=times[id(each)], is_part=True) if id(each) in times else each
        for each in parts
        if each.incident not in again  # the first time, of which its incident's line is
    ]
    others = [
        incident
        for incident in incidents
        if incident.id not in again and (incident.key, incident.first_step) not in settled
    ]
    lasting = [
        other for other in others if not other.is_over and not other.short
    ]  # the newest look may have missed them
    past = [other for other in others if other.is_over]
    repeated = [_note(incident, again[incident.id]) for incident in incidents if incident.id in again]
    return [*parts, *repeated, *map(_note, lasting), *map(_note, past[-MAX_PAST:])]


def _repeated(findings: Iterable[Finding], incidents: Sequence[Incident]) -> dict[str, list[Finding]]:
    """Return the findings of each short incident that has happened more than once, by its id."""
    times: dict[str, list[Finding]] = {}
    short = [incident for incident in reversed(incidents) if incident.short]
    for finding in findings:
        incident = None if finding.is_part else next((each for each in short if _is_time_of(finding, each)), None)
        if incident is not None:
            times.setdefault(incident.id, []).append(finding)
    return {
        each.id: every
        for each in short
        if (every := times.get(each.id, []))
        and (each.steps > 1 or any(time.since_step != each.first_step for time in every))
    }


def _is_time_of(finding: Finding, incident: Incident) -> bool:
    """Return whether a finding is one of the times of something short; the newest look may not have added it yet."""
    if finding.until_step is None or finding.rule != incident.rule or finding.since_step < incident.first_step:
        return False
    return bool(_numbers_of(finding) & {incident.culprit.number, *(link.number for link in incident.chain)})


def _numbers_of(finding: Finding) -> set[int]:
    return {finding.number, *(number for number, _ in finding.members)}


def _part(finding: Finding, own: str, incidents: Sequence[Incident]) -> Finding:
    """Return a finding with the id of its own incident, or of a lasting one that has affected the same tensors.

    Something short, such as a spike, is a part of whatever lasts since before it, as for the incidents themselves.
    """
    if own or finding.severity == "info":
        return replace(finding, incident=own) if own else finding
    numbers = _numbers_of(finding)
    lasting = (each for each in incidents if not each.is_over and not each.short)
    if finding.until_step is None:
        alike = (each for each in lasting if each.rule == finding.rule)
    else:
        alike = (each for each in lasting if each.first_step <= finding.since_step)
    shared = (each for each in alike if numbers & {each.culprit.number, *(link.number for link in each.chain)})
    incident = next(shared, None)
    return finding if incident is None else replace(finding, incident=incident.id, is_part=True)


def _settle(store: Store, finding: Finding, incidents: Sequence[Incident]) -> Finding:
    incident = next((each for each in incidents if _is_of(finding, each)), None)
    if incident is None:
        return finding
    culprit = incident.culprit
    worst = min(finding.severity, incident.severity, key=SEVERITIES.index)
    if (finding.number, finding.since_step) == (culprit.number, incident.first_step):
        return replace(finding, severity=worst)
    is_same = finding.number == culprit.number
    return replace(
        finding,
        severity=worst,
        number=culprit.number,
        tap=culprit.tap,
        value=finding.value if is_same else _newest(store, culprit.number, finding.stat),
        usual=incident.usual,
        since_step=incident.first_step,
        text=incident.message,
        unseen=incident.unseen,
        downstream=max(finding.downstream, incident.modules),
    )


def _is_of(finding: Finding, incident: Incident) -> bool:
    """Return whether a finding is what a lasting incident is about: its culprit must be affected still."""
    if incident.is_over or incident.short or incident.rule != finding.rule:
        return False
    return incident.culprit.number in _numbers_of(finding)


def _newest(store: Store, number: int, stat: str) -> float:
    newest = store.steps().newest
    series = store.series(number, stat, max(0, (newest or 0) - 64), newest)
    known = series.mean[np.isfinite(series.mean)]
    return float(known[-1]) if len(known) else float("nan")


def _note(incident: Incident, again: Sequence[Finding] = ()) -> Finding:
    """Return a note about an incident that is over, or was not found just now; or about the times that it was found."""
    message, last = incident.message, max([incident.last_step, *(each.until_step or -1 for each in again)])
    steps = sorted({incident.first_step, *(each.since_step for each in again)})
    many = incident.steps + sum(each.since_step > incident.last_step for each in again)
    if again and len(steps) == many:
        *before, newest = (f"{step:,}" for step in steps[1:])
        places = f"steps {', '.join(before)} and {newest}" if before else f"step {newest}"
        message += f", and again at {places}"
    elif incident.short and many > 1:
        message += f", and {'once more' if many == 2 else f'{many - 1:,} more times'} until step {last:,}"
    elif not incident.short and incident.is_over:
        message += f"; no longer found at step {incident.recovered:,}"
    elif not incident.short:
        message += f"; last found at step {incident.last_step:,}"
    severities = "info" if incident.is_over else incident.severity, *(each.severity for each in again)
    return Finding(
        cast(RuleName, incident.rule),
        min(severities, key=SEVERITIES.index),
        incident.culprit.number,
        incident.culprit.tap,
        "rms",
        incident.value,
        incident.usual,
        incident.first_step,
        last if incident.is_over else None,
        message,
        _spark_of(incident),
        incident.modules,
        unseen=incident.unseen,
        placed=incident.placed,
        incident=incident.id,
    )


def _spark_of(incident: Incident) -> tuple[float, ...]:
    """Return the values around its first step: of its culprit, or of the logged value that its message begins with."""
    evidence = incident.evidence
    if evidence is None:
        return ()
    steps, values = evidence.steps, evidence.stats[STAT_COLUMN["rms"], :, 0]
    if not incident.placed:
        logged = (each for each in evidence.logged if incident.message.startswith(f"{titled(each.name)} "))
        if (about := next(logged, None)) is None:
            return ()
        steps, values = about.steps, about.values
    return spark_around(values, int(np.searchsorted(steps, incident.first_step)))


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
    named = (each.calling(store.root) for each in settle(store, findings_of(store, inputs)))
    found, taps = _ranked(named), store.taps()
    return Diagnosis(found, scope_of(store, taps, inputs.sizes, found), course_of(store, found))


def examine_with(store: Store, chosen: Mapping[str, Mapping[str, float] | bool]) -> Diagnosis:
    """Return what the rules would find now with other thresholds. Nothing changes."""
    other = copy.copy(store)
    other.choose(chosen)
    return examine(other)


def findings_of(
    store: Store, inputs: RuleInputs | None = None, spikes_reported: int | None = None
) -> tuple[Finding, ...]:
    """Return what the rules find now, the worst first: non-finite values, then errors, warnings, and notes.

    With the step up to which spikes are known, return only later ones, as soon as it is clear that they were spikes.
    """
    inputs = RuleInputs() if inputs is None else inputs
    taps = store.taps()
    outputs = taps.of_kind("output")
    judged = taps.fact(_judged)
    inputs.sizes = MagnitudeWindow.of(store, judged, "rms", inputs.sizes)
    inputs.updates = MagnitudeWindow.of(store, taps.of_kind("update"), "ratio", inputs.updates)
    losses = Losses(store)
    gradients = taps.of_kind("param_grad")
    dead = find_dead(store, outputs)
    found = dead + find_saturated(store, outputs, losses) + find_variance(store, taps, outputs)
    if not losses.are_solved:
        found += find_no_gradient(store, gradients) + (
            [] if any(_is_problem(each) for each in dead) else find_zero_inputs(store, taps)
        )
    found += find_clipped(store, taps, gradients) + find_equal(store, taps, losses)
    broken = find_loss(losses, taps)
    found += broken + find_rate(losses, taps, bool(broken))
    spikes = find_loss_spikes(losses, taps)
    found += spikes + find_precursors(store, judged, spikes) + find_progress(losses, taps) + find_states(store, taps)
    found += find_underflow(store, taps) + find_float8(store, taps)
    found += find_ownership(store, taps) + find_waits(store, taps)
    found += find_probed(store, taps, losses) + find_routing(store, taps) + find_dominant(store, taps)
    if inputs.sizes is not None:
        found += _of_sizes(store, judged, inputs.sizes, losses, spikes_reported)
    if inputs.updates is not None:
        found += find_updates(inputs.updates) + find_lost(store, taps)
    wanted = [with_unseen(store, each) for each in found if store.rules.get(each.rule) is not False]
    return _ranked(_with_cause(wanted))


def _is_problem(finding: Finding) -> bool:
    return finding.severity != "info"


def _is_apart(tap: Tap) -> bool:
    if tap.kind != PROBE:
        return tap.kind in APART
    first, *others = tap.index.split(" ")
    return first in OWN_NUMBERS or not NUMBERS_APART.isdisjoint(others)


def _judged(taps: TapList) -> TapList:
    """Return the tensors whose magnitudes are compared with their past."""
    places = [place for place, tap in enumerate(taps.taps) if not _is_apart(tap)]
    return taps if len(places) == len(taps.taps) else taps.at(places)


def _with_cause(found: list[Finding]) -> list[Finding]:
    """Let non-finite values say that the learning rate is too high, if the loss had grown before them."""
    rate = next((each for each in found if each.rule == HIGH and each.severity == "error"), None)
    if rate is None:
        return found
    return [
        each.adding(f"; {rate.message}")
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
    covered = {(stack.rule, stack.kind) for stack in stacks}
    single = [size for size in find_sizes(sizes, losses, spikes_reported) if (size.rule, size.kind) not in covered]
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


_ALL: Final = 2**62


class FindingsCache:
    """The findings of one store; thread-safe. Nothing is computed before the first request."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._mark: tuple[object, ...] | None = None
        self._inputs = RuleInputs()
        self._diagnosis: Diagnosis | None = None
        store.find_dead_by(self.dead)

    def current(self) -> tuple[Finding, ...]:
        """Return the current findings, the worst first."""
        return self.diagnosis().findings

    def dead(self) -> set[str]:
        """Return the paths of the modules that are dead now."""
        return {each.module for each in self.current() if each.rule == "dead" and _is_problem(each)}

    def scope(self) -> Scope:
        """Return how much the findings are based on."""
        return self.diagnosis().scope

    def course(self) -> Course:
        """Return where the training goes."""
        return self.diagnosis().course

    def diagnosis(self) -> Diagnosis:
        """Return the findings and their scope, computed again only if new data has arrived."""
        with self._lock:  # if several threads ask at once, one computes
            steps = self._store.steps()
            versions = self._store.taps_announced, self._store.incidents_version
            mark = steps, steps.frames, *versions, self._store.events_after(_ALL)[0], self._store.rules
            if self._diagnosis is None or mark != self._mark:
                with self._store.in_memory():
                    self._diagnosis, self._mark = examine(self._store, self._inputs), mark
            return self._diagnosis

"""Findings completed from incidents: a problem keeps the tensor and the step that were found first, and its past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, cast

import numpy as np

from hookcore.findings.finding import SPARK, Finding
from hookcore.findings.rule import RuleName
from hookcore.records import SEVERITIES, STAT_COLUMN
from hookcore.store import Store
from hookcore.store.incidents import NONFINITE, Incident

MAX_PAST: Final = 10  # newest incidents that are over


def settle(store: Store, findings: Sequence[Finding]) -> list[Finding]:
    """Let findings name the tensor and the step of their incident, and add the incidents that no finding is about."""
    # Findings about non-finite values are made of incidents already.
    incidents = [each for each in store.incidents() if each.rule != NONFINITE]
    settled: dict[tuple[str, int], Finding] = {}
    for each in findings:  # the worst first
        found = _settle(store, each, incidents)
        settled.setdefault((found.key, found.since_step), found)
    others = [each for each in incidents if (each.key, each.first_step) not in settled]
    lasting = [each for each in others if not each.is_over and not each.short]  # the newest look may have missed them
    past = [each for each in others if each.is_over]
    return [*settled.values(), *map(_note, lasting), *map(_note, past[-MAX_PAST:])]


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
        message=incident.message,
        unseen=incident.unseen,
        downstream=max(finding.downstream, incident.modules),
    )


def _is_of(finding: Finding, incident: Incident) -> bool:
    """Return whether a finding is what a lasting incident is about: its culprit must be affected still."""
    if incident.is_over or incident.short or incident.rule != finding.rule:
        return False
    return incident.culprit.number in {finding.number, *(number for number, _ in finding.members)}


def _newest(store: Store, number: int, stat: str) -> float:
    newest = store.steps().newest
    series = store.series(number, stat, max(0, (newest or 0) - 64), newest)
    known = series.mean[np.isfinite(series.mean)]
    return float(known[-1]) if len(known) else float("nan")


def _note(incident: Incident) -> Finding:
    """Return a note about an incident that is over, or was not found just now."""
    evidence, spark = incident.evidence, np.empty(0)
    if evidence is not None and len(evidence.steps):
        spark = evidence.stats[STAT_COLUMN["rms"], :, 0]
    message = incident.message
    if incident.short and incident.steps > 1:
        times = "once more" if incident.steps == 2 else f"{incident.steps - 1:,} more times"
        message += f", and {times} until step {incident.last_step:,}"
    elif not incident.short and incident.is_over:
        message += f"; no longer found at step {incident.recovered:,}"
    elif not incident.short:
        message += f"; last found at step {incident.last_step:,}"
    return Finding(
        cast(RuleName, incident.rule),
        "info" if incident.is_over else incident.severity,
        incident.culprit.number,
        incident.culprit.tap,
        "rms",
        incident.value,
        incident.usual,
        incident.first_step,
        incident.last_step if incident.is_over else None,
        message,
        tuple(spark[np.isfinite(spark)][-SPARK:].tolist()),
        incident.modules,
        unseen=incident.unseen,
    )

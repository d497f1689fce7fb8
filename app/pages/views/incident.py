"""An incident as its page shows it: the tensors around its onset, and what followed step by step. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings import RULES, Rule
from hookcore.findings.rule import OF_LOSS
from hookcore.records import STAT_COLUMN, STATS, Severity, Tap
from hookcore.records.vocabulary import KIND_WORDS, OWN_RULE, counted
from hookcore.store.incidents import AROUND, NONFINITE, Evidence, Incident, Link

from ...analysis.figures.spark import Spark, spark_of
from ...analysis.titles import title_of_rule
from .event_list import SIGNS
from .provenance import PHASES

# The stats that the page offers: of a tensor's values, not of how they were captured.
SHOWN: Final = tuple(name for name in STATS if name not in ("count", "parts", "sketched"))
_COUNTS: Final = frozenset({"nan", "inf", "zero"})  # known even if no value is finite


@dataclass(frozen=True, slots=True)
class Onset:
    """A value before and at an incident's first step; NaN where it isn't known."""

    before: float
    at: float
    was_seen: bool  # in the first step
    spark: Spark | None


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor around the onset: the culprit, another one of its module, or a neighbor."""

    tap: Tap
    place: str
    since: int | None  # the first step in which it was affected
    onset: Onset


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """A logged value around the onset."""

    name: str
    onset: Onset


@dataclass(frozen=True, slots=True)
class StepOfChain:
    """The tensors that followed in one step, in the order of cause."""

    step: int
    later: int  # steps after the first one
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class IncidentView:
    """The page's view of an incident."""

    incident: Incident
    rule: Rule | None
    title: str
    sign: str
    phase: str
    kind: str  # of the culprit, in words
    state: str
    stat: str
    rows: tuple[Row, ...]
    logged: tuple[LoggedRow, ...]
    chain: tuple[StepOfChain, ...]
    left_out: int  # tensors of the chain that aren't kept
    first: int | None  # of the kept steps
    last: int | None
    until: int | None  # the last step that will be kept
    before: int | None  # the captured step before the first one, as far as it is kept

    @property
    def is_of_loss(self) -> bool:
        """Whether it is about a logged loss or the training as a whole: the culprit is then only the model's output."""
        incident = self.incident
        is_own = incident.rule.startswith(OWN_RULE) and f" in {incident.culprit.tap.module}" not in incident.message
        return is_own or incident.rule in OF_LOSS

    @property
    def unknown(self) -> list[str]:
        """The facts that are unknown, in words."""
        found, incident = [], self.incident
        if incident.unseen:
            steps, were = ("step", "was") if incident.unseen == 1 else ("steps", "were")
            found.append(f"The {incident.unseen:,} {steps} right before {were} not captured. It may have begun there.")
        if incident.evidence is None:
            found.append("There was no room to keep the values around the first step.")
        if self.left_out:
            found.append(f"{counted(self.left_out, 'more tensor')} followed, whose first steps aren't kept.")
        return found


def view_of(incident: Incident, stat: str, ended: bool) -> IncidentView:
    """Return an incident as it is shown. `ended` says that no more steps will come."""
    evidence = incident.evidence
    affected = {link.number: link.first_step for link in affected_of(incident)}
    steps = np.empty(0, np.int64) if evidence is None else evidence.steps
    earlier = steps[steps < incident.first_step]
    severity: Severity = incident.severity
    rule = RULES.get(incident.rule)  # type: ignore[call-overload]
    return IncidentView(
        incident,
        rule,
        title_of_rule(incident.rule),
        SIGNS[severity],
        PHASES.get(incident.culprit.tap.kind, ""),
        KIND_WORDS[incident.culprit.tap.kind],
        state_of(incident, ended),
        stat,
        () if evidence is None else tuple(_rows(incident, evidence, stat, affected)),
        () if evidence is None else tuple(_logged(incident, evidence)),
        tuple(_chain(incident)),
        incident.taps - len(incident.chain),
        int(steps[0]) if len(steps) else None,
        int(steps[-1]) if len(steps) else None,
        _until(incident.first_step, steps, ended) if len(steps) else None,
        int(earlier[-1]) if len(earlier) else None,
    )


def affected_of(incident: Incident) -> tuple[Link, ...]:
    """Return all affected tensors, as far as they are kept."""
    return (incident.culprit, *incident.chain) if incident.culprit_known else incident.chain


def state_of(incident: Incident, ended: bool) -> str:
    """Return whether an incident lasts, in words."""
    if incident.recovered is not None:
        return f"over at step {incident.recovered:,}"
    if incident.short:
        return "a single step" if incident.steps == 1 else f"{incident.steps:,} single steps"
    return "until the end of the run" if ended else "ongoing"


def _until(first: int, steps: NDArray[np.int64], ended: bool) -> int:
    """Return the last kept step, or the expected one if not all have come."""
    newest = int(steps[-1])
    return newest if ended or int((steps > first).sum()) >= AROUND else max(newest, first + AROUND)


def default_stat(incident: Incident) -> str:
    """Return the stat that shows an incident best."""
    return "nan" if incident.rule == NONFINITE and np.isnan(incident.value) else "rms"


def _rows(incident: Incident, evidence: Evidence, stat: str, affected: Mapping[int, int]) -> Iterable[Row]:
    values = evidence.stats[STAT_COLUMN[stat]]
    seen = ~np.isnan(evidence.stats[STAT_COLUMN["count"]])
    if stat not in _COUNTS:
        values = np.where(evidence.stats[STAT_COLUMN["inf"]] > 0, np.inf, values)
        values = np.where(evidence.stats[STAT_COLUMN["nan"]] > 0, np.nan, values)
    for place, (number, tap) in enumerate(zip(evidence.numbers, evidence.taps, strict=True)):
        onset = _onset(evidence.steps[seen[:, place]], values[seen[:, place], place], incident.first_step)
        since = None if incident.rule in OF_LOSS else affected.get(number)
        yield Row(tap, _place(incident, number, tap), since, onset)


def _place(incident: Incident, number: int, tap: Tap) -> str:
    culprit = incident.culprit
    if number == culprit.number:
        return "the model" if incident.rule in OF_LOSS or not incident.culprit_known else "culprit"
    if not incident.culprit_known:
        return "of the model"
    if tap.module == culprit.tap.module:
        return "same module"
    # Taps are numbered in the order of the forward pass; the backward pass has the reverse order.
    is_later = (number > culprit.number) != (PHASES.get(tap.kind) == "backward")
    return "next" if is_later else "before it"


def _logged(incident: Incident, evidence: Evidence) -> Iterable[LoggedRow]:
    for each in evidence.logged:
        yield LoggedRow(each.name, _onset(each.steps, each.values, incident.first_step))


def _onset(steps: NDArray[np.int64], values: NDArray[np.float64], first: int) -> Onset:
    earlier, at = values[steps < first], values[steps == first]
    return Onset(
        float(earlier[-1]) if len(earlier) else float("nan"),
        float(at[-1]) if len(at) else float("nan"),
        bool(len(at)),
        spark_of(steps, values, first, may_be_log=True),
    )


def _chain(incident: Incident) -> Iterable[StepOfChain]:
    for step, links in groupby(incident.chain, lambda link: link.first_step):
        yield StepOfChain(step, step - incident.first_step, tuple(links))

"""Rules about the results of probes with functions of hookcore: dead channels, and rank and attention that collapse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import SPARK, Finding
from hookcore.findings.losses import Losses
from hookcore.findings.rules import RULES, RuleName, limits_of
from hookcore.records import PROBE, Severity
from hookcore.records.vocabulary import PROBE_LABEL
from hookcore.store import Store, TapList
from hookcore.store.incidents import since_words

_FIRST: Final = 3  # results that show the usual value

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Judged:
    """Which of a tap's results are bad, and how serious that is."""

    bad: NDArray[np.bool_]
    usual: float
    severity: Severity
    message: str


@dataclass(frozen=True, slots=True)
class _Judge:
    """The rule for one function, and the stat of its results that it goes by."""

    rule: RuleName
    stat: str
    judge: Callable[[Floats, Losses], _Judged]


def _dead_channels(shares: Floats, losses: Losses) -> _Judged:
    rule, limits = RULES["dead-channels"], limits_of(losses.store, "dead-channels")
    bad = shares >= limits["share"]
    harmless = bool(bad.all()) and losses.fell is True
    message = f"{shares[-1]:.0%} of the channels of the activation have been zero everywhere"
    usual = float("nan") if bad.all() else float(shares[~bad][-1])
    return _Judged(bad, usual, "info" if harmless else rule.severity, message)


def _rank(ranks: Floats, losses: Losses) -> _Judged:
    rule, usual = RULES["rank-collapse"], _usual(ranks)
    limits = limits_of(losses.store, "rank-collapse")
    bad = (ranks <= limits["share"] * usual) & (usual >= limits["least_rank"])
    harmless = losses.fell is True and ranks[-1] > limits["single"]
    message = f"the activation has varied in only {ranks[-1]:.2g} of its {usual:.2g} initial directions"
    return _Judged(bad, usual, "info" if harmless else rule.severity, message)


def _entropy(largest: Floats, losses: Losses) -> _Judged:
    rule, usual = RULES["attention-entropy-collapse"], _usual(largest)
    limits = limits_of(losses.store, "attention-entropy-collapse")
    bad = (largest <= limits["entropy"]) & (usual >= limits["least_entropy"])
    message = f"every head has looked at little more than one token (entropy {largest[-1]:.2g}, at first {usual:.2g})"
    return _Judged(bad, usual, "info" if losses.fell else rule.severity, message)


def _usual(values: Floats) -> float:
    return float(np.median(values[:_FIRST]))


_JUDGES: Final = {
    "hookcore.probes.dead_channels": _Judge("dead-channels", "mean", _dead_channels),
    "hookcore.probes.effective_rank": _Judge("rank-collapse", "mean", _rank),
    "hookcore.probes.attention_entropy": _Judge("attention-entropy-collapse", "max", _entropy),
}


FUNCTIONS: Final[dict[RuleName, str]] = {judge.rule: name for name, judge in _JUDGES.items()}


def find_probed(store: Store, taps: TapList, losses: Losses) -> list[Finding]:
    """Return at most one finding of each rule, for the tap where the problem began first."""
    mine = places_by_rule(store, taps)
    judges = (judge for judge in _JUDGES.values() if judge.rule in mine)
    return [found for each in judges for found in _find(store, taps.at(mine[each.rule]), each, losses)]


def places_by_rule(store: Store, taps: TapList) -> dict[RuleName, list[int]]:
    """Return the places of the probes that each rule judges."""
    labels = {name: text for name, text in store.labels().items() if name.startswith(PROBE_LABEL)}
    known = {name.removeprefix(PROBE_LABEL): judge for name, text in labels.items() if (judge := _JUDGES.get(text))}
    found: dict[RuleName, list[int]] = {}
    for place, tap in enumerate(taps.taps) if known else ():
        judge = _probe_of(tap.index, known) if tap.kind == PROBE and tap.phase == "train" else None
        if judge is not None:
            found.setdefault(judge.rule, []).append(place)
    return found


def _probe_of(index: str, known: dict[str, _Judge]) -> _Judge | None:
    """Return what judges a probe of outputs; others have the kind of their tensor behind the name."""
    if index in known:
        return known[index]
    name, _, place = index.rpartition(" ")  # of one of several outputs
    return known.get(name) if place[:1].isdigit() else None


def _find(store: Store, taps: TapList, judge: _Judge, losses: Losses) -> list[Finding]:
    rows = store.rows(taps.numbers, judge.stat)
    found: list[Finding] = []
    for lane, (number, tap) in enumerate(zip(taps.numbers.tolist(), taps.taps, strict=True)):
        known = np.flatnonzero(np.isfinite(rows.mean[:, lane]) & (rows.nonfinite[:, lane] == 0))
        values, steps = rows.mean[known, lane], rows.first[known]
        results = int(limits_of(store, judge.rule)["results"])
        if len(values) < results:
            continue
        judged = judge.judge(values, losses)
        if not judged.bad[-results:].all():
            continue
        fine = np.flatnonzero(~judged.bad)
        since = int(steps[int(fine[-1]) + 1 if len(fine) else 0])
        message = f"{judged.message} {since_words(since)}"
        about = judge.stat, float(values[-1]), judged.usual, since, None, message, tuple(values[-SPARK:].tolist()), 0
        found.append(Finding(judge.rule, judged.severity, number, tap, *about, members=((number, since),)))
    return [_joined(found)] if found else []


def _joined(found: list[Finding]) -> Finding:
    """Return the finding that began first, with the others as its members."""
    first = min(found, key=lambda each: (each.severity == "info", each.since_step, each.number))
    others = {each.module for each in found} - {first.module}
    members = tuple(member for each in found for member in each.members)
    return replace(first, downstream=len(others), members=members)

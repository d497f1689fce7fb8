"""Findings about facts that only the trainer knows, and reports as events: optimizers, and that it waits."""

from __future__ import annotations

from typing import Final

import numpy as np

from hookcore.findings.finding import Finding
from hookcore.findings.rule import RuleName
from hookcore.findings.rules import RULES
from hookcore.records import Event, Severity
from hookcore.records.vocabulary import ENDED, FROZEN, NEVER_USED, STALLED
from hookcore.store import Store, TapList

_RULES: Final[tuple[RuleName, ...]] = (
    "not-in-optimizer",
    "frozen-by-mistake",
    "duplicate-in-optimizers",
    NEVER_USED,
    STALLED,
)
_KINDS: Final = ("param_grad", "output")  # which tap stands for a module's parameters, if it has one


def find_ownership(store: Store, taps: TapList) -> list[Finding]:
    """Return a finding for each fact that the newest event about it states."""
    newest: dict[str, Event] = {}
    for each in store.events():
        newest[each.name] = each
    found = []
    for rule in _RULES:
        event, ended = newest.get(rule), newest.get(ENDED[rule])
        if event is not None and (ended is None or _time(ended) < _time(event)) and len(taps.taps):
            found.append(_finding(store, taps, rule, event))
    return found


def _time(event: Event) -> tuple[int, float]:
    return event.step, event.time_s


def _since(store: Store, rule: RuleName, number: int, event: Event) -> int:
    """Return the first step of the problem, as far as the captured steps show it."""
    steps = store.steps()
    since = min(event.step, steps.newest or 0)
    if since <= RULES[rule].limits.get("first_report", -1):  # it was so from the start
        return steps.first or 0
    if rule != FROZEN:
        return since
    rows = store.rows(np.array([number]), "count", None, since)
    arrived = np.flatnonzero(rows.present[:, 0] > 0)
    later = rows.first[int(arrived[-1]) + 1 :] if len(arrived) else rows.first
    return int(later[0]) if len(later) else since


def _finding(store: Store, taps: TapList, rule: RuleName, event: Event) -> Finding:
    of_module = [place for place, tap in enumerate(taps.taps) if tap.module == event.module] or [0]
    place = min(of_module, key=lambda each: taps.taps[each].kind not in _KINDS)
    number, tap = int(taps.numbers[place]), taps.taps[place]
    since = _since(store, rule, number, event)
    unknown = float("nan")
    about = "rms", unknown, unknown, since, None, event.message, (), 0
    severity: Severity = "warning" if event.about.get("alike") else RULES[rule].severity
    return Finding(rule, severity, number, tap, *about)

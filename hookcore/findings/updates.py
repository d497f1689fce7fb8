"""Updates that rounding swallows, and parameters that no optimizer steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import SPARK, WARM_UP, Finding, Since
from hookcore.findings.rules import RULES, RuleName, limits_of
from hookcore.records import Event, Severity
from hookcore.records.vocabulary import ENDED, FROZEN, NEVER_USED, STALLED, is_bias
from hookcore.store import Store, TapList

UNCHANGED: Final = "unchanged-tensor"
LOST: Final = "bf16-update-lost"

_FEW: Final = 4  # captured steps that show that nothing is lost

Shares = NDArray[np.float64]  # [row, parameter]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The updates and the gradients of the same parameters."""

    updates: TapList
    gradients: TapList

    @classmethod
    def of(cls, taps: TapList) -> _Pairs:
        gradients = {(tap.module, tap.index): p for p, tap in enumerate(taps.taps) if tap.kind == "param_grad"}
        found = [
            (place, gradients[key])
            for place, tap in enumerate(taps.taps)
            # The gradient of a bias before a normalization is zero but for rounding.
            if tap.kind == "update" and (key := (tap.module, tap.index)) in gradients and not is_bias(tap.index)
        ]
        return cls(taps.at([each for each, _ in found]), taps.at([each for _, each in found]))

    def shares(self, store: Store, first: int | None, last: int | None) -> tuple[NDArray[np.int64], Shares]:
        """Return the steps, and the share of values that did not change although their gradient isn't zero, at least.

        NaN where a gradient is all zero, where only one of both was captured, and where a value was non-finite.
        """
        still, none = (
            store.rows(taps.numbers, "zero_fraction", first, last) for taps in (self.updates, self.gradients)
        )
        if len(still.first) != len(none.first):  # a frame arrived in between
            return still.first[:0], np.empty((0, len(self.updates.taps)))
        fed = 1 - none.high
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = np.where(fed > limits_of(store, LOST)["least_fed"], (still.low - none.high) / fed, np.nan)
        shares[(still.nonfinite > 0) | (none.nonfinite > 0)] = np.nan
        return still.first, shares

    def are_dense(self, store: Store, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the wanted parameters have dense gradients. A sparse one lists the rows that it changes."""
        places = np.flatnonzero(wanted).tolist()
        ends = (store.latest(stat="count", taps=taps.at(places)) for taps in (self.updates, self.gradients))
        updated, fed = (end.values[:, 0] for end in ends)
        dense = np.zeros(len(wanted), bool)
        dense[places] = fed >= updated
        return dense


def find_lost(store: Store, taps: TapList) -> list[Finding]:
    """Return one finding for the weights that never change, and one for those of which most values don't."""
    pairs, limits = taps.fact(_Pairs.of), limits_of(store, LOST)
    begin = store.captured_step(int(limits["among"]) - 1)
    if not len(pairs.updates.taps) or begin is None:
        return []
    newest = pairs.shares(store, store.captured_step(_FEW - 1), None)[1]
    if not ((newest >= limits["share"]).any(axis=0) & ~(newest < limits["share"]).any(axis=0)).any():
        return []  # most looks end here
    steps, shares = pairs.shares(store, begin, None)
    known = ~np.isnan(shares)
    lost = (~known | (shares >= limits["share"])).all(axis=0) & (known.sum(axis=0) >= limits["captured_steps"])
    lost &= pairs.are_dense(store, lost)
    if not lost.any():
        return []
    whole = (~known | (shares >= 1.0)).all(axis=0)
    start = store.steps().first or 0
    early = pairs.shares(store, start, start + WARM_UP - 1)[1]
    at_first = (np.isnan(early) | (early >= limits["share"])).all(axis=0)
    judged = known.sum(axis=0) >= limits["captured_steps"]
    rules: tuple[tuple[RuleName, NDArray[np.bool_]], ...] = (("unchanged-tensor", lost & whole), (LOST, lost & ~whole))
    found = []
    for rule, which in rules:
        places = np.flatnonzero(which & at_first)
        # If it came later, the learning rate fell. If no weight changes, it is zero, perhaps on purpose.
        severity: Severity = RULES[rule].severity
        if not len(places):
            places, severity = np.flatnonzero(which), "info"
        if rule == UNCHANGED and (which | ~judged).all():
            severity = "info"
        if len(places):
            since = start if (which & at_first).any() else int(steps[0])
            first = int(places[0])
            share = float(shares[known[:, first], first][-1])
            still = store.rows(pairs.updates.numbers[places[:1]], "zero_fraction", begin).low[:, 0]
            found.append(_swallowed(pairs.updates, rule, severity, places, share, still, since))
    return found


def _swallowed(
    updates: TapList,
    rule: RuleName,
    severity: Severity,
    places: NDArray[np.intp],
    share: float,
    still: NDArray[np.float64],
    since: int,
) -> Finding:
    place = int(places[0])
    zeros = still[np.isfinite(still)]
    which = f"{len(places):,} weights" if len(places) > 1 else "the weight"
    text = (
        Since(f"{which} did not change in any captured step", ", although the gradient is not zero")
        if rule == UNCHANGED
        else Since(
            f"rounding has swallowed {share:.0%} of the update",
            ": the values don't change, although they have gradients",
        )
    )
    more = len({updates.taps[each].module for each in places.tolist()}) - 1
    members = tuple((int(updates.numbers[each]), since) for each in places.tolist())
    about = "zero_fraction", float(zeros[-1]), float("nan"), since, None, text, tuple(zeros[-SPARK:].tolist()), more
    return Finding(rule, severity, int(updates.numbers[place]), updates.taps[place], *about, members=members)


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
            found.append(_unowned(store, taps, rule, event))
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


def _unowned(store: Store, taps: TapList, rule: RuleName, event: Event) -> Finding:
    of_module = [place for place, tap in enumerate(taps.taps) if tap.module == event.module] or [0]
    place = min(of_module, key=lambda each: taps.taps[each].kind not in _KINDS)
    number, tap = int(taps.numbers[place]), taps.taps[place]
    since = _since(store, rule, number, event)
    unknown = float("nan")
    about = "rms", unknown, unknown, since, None, event.message, (), 0
    severity: Severity = "warning" if event.about.get("alike") else RULES[rule].severity
    return Finding(rule, severity, number, tap, *about)

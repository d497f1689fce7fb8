"""Outputs and gradients that are all zeros, judged by the steps in which they were captured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import SPARK, Finding
from hookcore.findings.rule import RuleName
from hookcore.findings.rules import RULES, limits_of
from hookcore.findings.window import window_first
from hookcore.records import Tap
from hookcore.records.vocabulary import KIND_WORDS
from hookcore.store import Store, TapList
from hookcore.store.incidents import since_words
from hookcore.store.rows import Rows

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Zeros:
    """Which taps were zero in each of their newest captured steps, and which were captured too rarely to judge."""

    places: NDArray[np.intp]
    unknown: NDArray[np.intp]
    judged: NDArray[np.intp]


def find_dead(store: Store, outputs: TapList) -> list[Finding]:
    if not _any_zero(store, outputs, limits_of(store, "dead")["zero_fraction"]):
        return []  # most looks end here
    places = zeros_of(store, outputs, "dead").places
    return [_finding(outputs, "dead", each, 0) for each in _since(store, outputs, places)]


def find_no_gradient(store: Store, gradients: TapList) -> list[Finding]:
    """Return one finding if the gradients of most layers' parameters are zero, so that these layers no longer learn."""
    if not _any_zero(store, gradients):
        return []  # most looks end here
    zeros = zeros_of(store, gradients, "no-gradient")
    layers = {gradients.taps[place].module for place in zeros.judged.tolist()}
    alive = {gradients.taps[place].module for place in np.setdiff1d(zeros.judged, zeros.places).tolist()}
    still = layers - alive
    if len(layers) < 2 or len(still) < limits_of(store, "no-gradient")["share"] * len(layers):
        return []
    places = np.array([place for place in zeros.places.tolist() if gradients.taps[place].module in still], np.intp)
    since = _since(store, gradients, places)
    begun = sorted(since, key=lambda each: each[2])[0]
    found = _finding(gradients, "no-gradient", begun, len(still) - 1)
    text = f"the gradient has been exactly zero in {len(still)} of {len(layers)} layers {since_words(found.since_step)}"
    members = tuple((int(gradients.numbers[each[0]]), each[2]) for each in since)
    return [replace(found, message=text + begun[3], members=members)]


def find_zero_inputs(store: Store, taps: TapList) -> list[Finding]:
    """Return a finding if the weights of some layers get no gradient although the layers' outputs get one.

    The first of these layers in the order of execution is named. Call it only if no output is dead, which explains it.
    """
    trained = taps.fact(_trained_weights)
    if not _any_zero(store, trained):
        return []  # most looks end here
    zeros = zeros_of(store, trained, "all-zero")
    if len(zeros.places) == len(zeros.judged):
        return []  # there is no gradient at all: another rule says so
    still = {trained.taps[place].module: place for place in zeros.places.tolist()}
    fed = taps.at(_places(taps, lambda tap: tap.kind == "output_grad" and tap.module in still and not tap.call))
    judged = zeros_of(store, fed, "all-zero")
    alive = {fed.taps[place].module for place in np.setdiff1d(judged.judged, judged.places).tolist()}
    turn = {tap.module: place for place, tap in reversed([*enumerate(taps.taps)]) if tap.kind == "output"}
    chosen = sorted((module for module in still if module in alive), key=lambda module: turn.get(module, -1))
    since = _since(store, trained, np.array([still[module] for module in chosen], np.intp))
    if not since:
        return []
    found = _finding(trained, "all-zero", since[0], len(since) - 1)
    first = min((turn.get(tap.module, -1) for tap in trained.taps), default=-1)
    from_start = found.since_step <= (store.steps().first or 0)
    severity = "info" if from_start and turn.get(chosen[0], -1) > first else found.severity
    text = f"its input has been all zeros{found.message.partition('has been zero')[2]}: its weight gets no gradient"
    members = tuple((int(trained.numbers[each[0]]), each[2]) for each in since)
    return [replace(found, severity=severity, message=text, members=members)]


def _any_zero(store: Store, taps: TapList, share: float = 1.0) -> bool:
    """Return whether any of these taps was zero in the newest step in which it was captured."""
    return len(taps.taps) > 0 and bool((store.latest(stat="zero_fraction", wanted=taps).values >= share).any())


def _trained_weights(taps: TapList) -> TapList:
    return taps.at(_places(taps, lambda tap: tap.kind == "param_grad" and tap.index == "weight"))


def _places(taps: TapList, fits: Callable[[Tap], bool]) -> list[int]:
    return [place for place, tap in enumerate(taps.taps) if fits(tap)]


def zeros_of(store: Store, taps: TapList, rule: RuleName) -> Zeros:
    """Judge taps by the newest captured steps; a tap must be in enough of them."""
    limits = limits_of(store, rule)
    first = store.captured_step(int(limits["among"]) - 1)
    if first is None or not len(taps.taps):
        none = np.empty(0, np.intp)
        return Zeros(none, np.arange(len(taps.taps)), none)
    rows = store.rows(taps.numbers, "zero_fraction", first)
    is_zero = rows.low >= limits.get("zero_fraction", 1.0)  # a non-finite tensor is not dead
    zero, enough = judge_newest(rows.present, ~is_zero, limits["captured_steps"])
    return Zeros(np.flatnonzero(enough & zero), np.flatnonzero(~enough & zero), np.flatnonzero(enough))


def judge_newest(present: NDArray[Any], healthy: Flags, steps: float) -> tuple[Flags, Flags]:
    """Return which taps were healthy in none of their own newest steps, and which have that many steps.

    `present` is the number of steps with a value in each row [row, tap].
    """
    seen = present.astype(np.int64)
    later = seen[::-1].cumsum(axis=0)[::-1] - seen  # number of steps after each row
    alive: Flags = np.asarray(((seen > 0) & healthy & (later < steps)).any(axis=0), np.bool_)
    enough: Flags = seen.sum(axis=0) >= steps
    return ~alive, enough


# a tap's index, its rows, the step since which it is zero, " or earlier", and the share of zeros that counts
Since = tuple[int, Rows, int, str, float]


def _since(store: Store, taps: TapList, places: NDArray[np.intp]) -> list[Since]:
    """Search further back for the steps in which the zeros began."""
    if not len(places):
        return []
    begin = window_first(store)
    is_cut = begin > (store.steps().first or 0)
    rows = store.rows(taps.numbers[places], "zero_fraction", begin)
    zero = limits_of(store, "dead")["zero_fraction"]
    found = []
    for lane, place in enumerate(places.tolist()):
        mine = Rows.join([rows.take(np.array([lane]))])
        alive = np.flatnonzero(~(mine.low[:, 0] >= zero))
        begun = int(alive[-1]) + 1 if len(alive) else 0
        since = int(mine.first[min(begun, len(mine.first) - 1)])
        found.append((place, mine, since, " or earlier" if is_cut and not begun else "", zero))
    return found


def _finding(taps: TapList, rule: RuleName, about: Since, more: int) -> Finding:
    place, rows, since, older, zero = about
    low = rows.low[:, 0]
    alive = np.flatnonzero(~(low >= zero))
    captured = int(rows.present[rows.first >= since, 0].sum())
    number, tap = int(taps.numbers[place]), taps.taps[place]
    message = (
        f"every value of the {KIND_WORDS[tap.kind]} has been zero {since_words(since)}{older} ({captured} captured)"
    )
    usual = float(low[alive[-1]]) if len(alive) else float("nan")
    spark = tuple(low[np.isfinite(low)][-SPARK:].tolist())
    values = "zero_fraction", float(low[-1]), usual, since
    return Finding(rule, RULES[rule].severity, number, tap, *values, None, message, spark, more)

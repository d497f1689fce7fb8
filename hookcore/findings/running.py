"""Batch normalizations whose running statistics don't fit their batches: the output differs in evaluation."""

from __future__ import annotations

from typing import Final

import numpy as np

from hookcore.findings.finding import Finding
from hookcore.findings.rules import RULES, limits_of
from hookcore.findings.window import MagnitudeWindow
from hookcore.store import TapList
from hookcore.store.incidents import since_words

RULE: Final = "batch-norm-drift"
CLASSES: Final = ("BatchNorm", "SyncBatchNorm", "LazyBatchNorm")  # how the names of the classes begin
_TRAINED: Final = 8  # newest columns of training that show the usual value there


def find_drift(window: MagnitudeWindow) -> list[Finding]:
    """Return a finding for the first batch normalization whose output is of another size in evaluation."""
    taps = window.taps.taps
    evaluated = window.taps.fact(_evaluated)
    if not evaluated:
        return []  # most runs capture no evaluations
    types = window.store.module_types()
    pairs = [
        (place, evaluated[key])
        for place, tap in enumerate(taps)
        if tap.phase == "train"
        and tap.kind == "output"
        and (key := (tap.module, tap.index, tap.call)) in evaluated
        and types.get(tap.module, "").startswith(CLASSES)
    ]
    found = [each for pair in pairs if (each := _drift(window, *pair)) is not None]
    if not found:
        return []
    first, onset, ratio = min(found)
    return [_finding(window, first, onset, ratio, found)]


def _evaluated(taps: TapList) -> dict[tuple[str, str, int], int]:
    """Return the places of outputs in evaluation."""
    return {
        (tap.module, tap.index, tap.call): place
        for place, tap in enumerate(taps.taps)
        if tap.phase == "eval" and tap.kind == "output"
    }


def _drift(window: MagnitudeWindow, trained: int, evaluated: int) -> tuple[int, int, float] | None:
    """Return the place, the first column, and the ratio, if it was far from one in each of the newest evaluations."""
    limits = limits_of(window.store, RULE)
    usual, now = window.logs[trained], window.logs[evaluated]
    columns = np.flatnonzero(~np.isnan(now))
    first = (window.steps.first or 0) + limits["settled"]
    columns = columns[[window.first_step(column) >= first for column in columns.tolist()]]
    known = np.flatnonzero(~np.isnan(usual))
    if len(columns) < limits["evaluations"] or not len(known):
        return None
    ratios = np.array([now[column] - np.median(usual[known[known <= column][-_TRAINED:]]) for column in columns])
    far = np.abs(ratios) >= np.log10(limits["factor"])
    newest = ratios[-int(limits["evaluations"]) :]
    if not far[-len(newest) :].all() or len(set(np.sign(newest))) > 1:
        return None
    near = np.flatnonzero(~far)
    begun = int(near[-1]) + 1 if len(near) else 0
    if abs(ratios[-1]) < limits["closer"] * abs(ratios[begun]):  # the statistics are still on their way
        return None
    return evaluated, int(columns[begun]), float(10.0 ** ratios[-1])


def _finding(
    window: MagnitudeWindow, place: int, column: int, ratio: float, found: list[tuple[int, int, float]]
) -> Finding:
    number, tap = int(window.taps.numbers[place]), window.taps.taps[place]
    size = float(window.columns.size[np.flatnonzero(~np.isnan(window.logs[place]))[-1], place])
    since = window.first_step(column)
    times = f"{ratio:.3g} times as large as" if ratio > 1 else f"{1 / ratio:.3g} times smaller than"
    message = f"in evaluation, the activation has been {times} in training {since_words(since)}"
    members = tuple((int(window.taps.numbers[each]), window.first_step(onset)) for each, onset, _ in found)
    about = window.stat, size, size / ratio, since, None, message, window.spark(place), len(found) - 1
    return Finding(RULE, RULES[RULE].severity, number, tap, *about, members=members)

"""Sigmoids and tanhs whose outputs are so close to their bounds that almost no gradient passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import SPARK, WARM_UP, Finding
from hookcore.findings.loss import Losses
from hookcore.findings.rules import RULES, limits_of
from hookcore.findings.window import window_first
from hookcore.findings.zeros import judge_newest
from hookcore.records import Severity
from hookcore.store import Store, TapList
from hookcore.store.incidents import since_words

RULE: Final = "saturated-activation"
CLASSES: Final = ("Sigmoid", "Tanh")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Slopes:
    """The mean slope of some activations [row, tap], as a share of the largest one; NaN where it isn't known."""

    first: NDArray[np.int64]
    rms: Floats
    values: Floats

    @classmethod
    def read(cls, store: Store, taps: TapList, is_tanh: NDArray[np.bool_], first: int, last: int | None) -> _Slopes:
        """Compute it from the outputs: the slope of tanh is 1 - y**2, that of a sigmoid is y - y**2."""
        rms, mean = (store.rows(taps.numbers, stat, first, last) for stat in ("rms", "mean"))
        if len(rms.first) != len(mean.first):  # a frame arrived in between
            mean = rms
        slopes = np.where(is_tanh, 1 - rms.mean**2, 4 * (mean.mean - rms.mean**2))
        slopes[rms.nonfinite > 0] = np.nan
        return cls(rms.first, rms.mean, slopes)


def find_saturated(store: Store, outputs: TapList, losses: Losses) -> list[Finding]:
    """Return a finding for every saturated activation. One that became so while the loss fell is a note."""
    types = store.module_types()
    taps = outputs.at([p for p, tap in enumerate(outputs.taps) if types.get(tap.module, "") in CLASSES])
    limits = limits_of(store, RULE)
    newest = store.captured_step(int(limits["among"]) - 1)
    if not len(taps.taps) or newest is None:
        return []
    is_tanh = np.array([types[tap.module] == "Tanh" for tap in taps.taps])
    recent = _Slopes.read(store, taps, is_tanh, newest, None).values
    flat, enough = judge_newest(~np.isnan(recent), recent >= limits["slope"], limits["captured_steps"])
    places = np.flatnonzero(flat & enough)
    if not len(places):
        return []
    chosen, last = taps.at(places.tolist()), max(outputs.numbers[_trained(outputs)].tolist(), default=-1)
    begin = window_first(store)
    window = _Slopes.read(store, chosen, is_tanh[places], begin, None)
    start = store.steps().first or 0
    early = _Slopes.read(store, chosen, is_tanh[places], start, start + WARM_UP - 1).values
    learns = losses.fell
    found = []
    for lane in range(len(places)):
        from_start = bool((np.isnan(early[:, lane]) | (early[:, lane] < limits["slope"])).all())
        is_last = int(chosen.numbers[lane]) == last
        harmless = learns if from_start and is_last else not from_start and learns is not False
        severity: Severity = "info" if harmless or (learns is None and is_last) else RULES[RULE].severity
        found.append(_finding(chosen, lane, window, limits["slope"], severity, begin > start))
    return found


def _trained(outputs: TapList) -> list[int]:
    """Return the places of outputs of modules, without that of the root, which repeats another one."""
    return [place for place, tap in enumerate(outputs.taps) if tap.phase == "train" and tap.module]


def _finding(taps: TapList, lane: int, window: _Slopes, steep_from: float, severity: Severity, is_cut: bool) -> Finding:
    slopes = window.values[:, lane]
    steep = np.flatnonzero(slopes >= steep_from)
    begun = int(steep[-1]) + 1 if len(steep) else 0
    since = int(window.first[min(begun, len(window.first) - 1)])
    rms = window.rms[:, lane]
    known = np.flatnonzero(~np.isnan(slopes))
    value, usual = float(rms[known[-1]]), float(rms[steep[-1]]) if len(steep) else float("nan")
    slope = slopes[known[-1]]
    older = " or earlier" if is_cut and not len(steep) else ""
    when = f"{since_words(since)}{older}"
    message = f"on average, {slope:.2g} of the gradient passes: the activation has been at its bounds {when}"
    about = "rms", value, usual, since, None, message, tuple(rms[known][-SPARK:].tolist()), 0
    return Finding(RULE, severity, int(taps.numbers[lane]), taps.taps[lane], *about)

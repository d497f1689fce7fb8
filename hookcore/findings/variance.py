"""Outputs whose values are all the same number."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import SPARK, WARM_UP, Finding
from hookcore.findings.rules import RULES, limits_of
from hookcore.findings.window import window_first
from hookcore.findings.zeros import judge_newest
from hookcore.store import Store, TapList
from hookcore.store.incidents import since_words

RULE: Final = "tensor-variance"

Steps = NDArray[np.int64]
Floats = NDArray[np.float64]


def find_variance(store: Store, taps: TapList, outputs: TapList) -> list[Finding]:
    """Return a finding for the first output without variance, in the order of execution."""
    limits = limits_of(store, RULE)
    if not len(outputs.taps):
        return []
    std, rms = (store.latest(stat=stat, wanted=outputs) for stat in ("std", "rms"))
    if len(std.numbers) != len(rms.numbers):  # a frame arrived in between
        return []
    numbers = rms.numbers[((std.values <= limits["spread"] * rms.values) & (rms.values > 0))[:, 0]]
    if not len(numbers):
        return []  # most looks end here
    judged = outputs.at(np.flatnonzero(np.isin(outputs.numbers, numbers)).tolist())
    counts = store.latest(stat="count", wanted=judged)
    judged = judged.at(np.flatnonzero(counts.values[:, 0] >= limits["least_values"]).tolist())
    if not len(judged.taps):
        return []
    first = store.captured_step(int(limits["among"]) - 1)
    spreads = _spreads(store, judged, first)[1]
    flat, enough = judge_newest(~np.isnan(spreads), spreads > limits["spread"], limits["captured_steps"])
    start = store.steps().first or 0
    early = _spreads(store, judged, start, start + WARM_UP - 1)[1]
    weighted = {tap.module for tap in taps.taps if tap.kind == "param_grad" and tap.index == "weight"}
    varied = (early > limits["varied"]).any(axis=0) | np.array([tap.module in weighted for tap in judged.taps], bool)
    places = np.flatnonzero(flat & enough & varied)
    return [_finding(store, judged, places)] if len(places) else []


def _spreads(store: Store, taps: TapList, first: int | None, last: int | None = None) -> tuple[Steps, Floats]:
    """Return steps, and the standard deviation as a share of the root mean square; NaN where it isn't known."""
    std, rms = (store.rows(taps.numbers, stat, first, last) for stat in ("std", "rms"))
    if len(std.first) != len(rms.first):  # a frame arrived in between
        return std.first[:0], np.empty((0, len(taps.taps)))
    with np.errstate(divide="ignore", invalid="ignore"):
        spreads = std.high / rms.high
    spreads[(rms.nonfinite > 0) | ~(rms.high > 0)] = np.nan
    return std.first, spreads


def _finding(store: Store, taps: TapList, places: NDArray[np.intp]) -> Finding:
    begin = window_first(store)
    chosen = taps.at(places.tolist())
    steps, spreads = _spreads(store, chosen, begin)
    since = []
    for lane in range(len(places)):
        varied = np.flatnonzero(spreads[:, lane] > limits_of(store, RULE)["spread"])
        since.append(int(steps[min(int(varied[-1]) + 1 if len(varied) else 0, len(steps) - 1)]))
    lane = min(range(len(places)), key=lambda each: (since[each], chosen.numbers[each]))
    means = store.rows(chosen.numbers[[lane]], "mean", begin).mean[:, 0]
    known = means[np.isfinite(means)]
    older = " or earlier" if begin > (store.steps().first or 0) and since[lane] <= begin else ""
    begun = f"{since_words(since[lane])}{older}: {known[-1]:.4g} in the newest"
    message = f"every value of the activation has been the same number {begun}"
    members = tuple(zip(chosen.numbers.tolist(), since, strict=True))
    more = len({tap.module for tap in chosen.taps} - {chosen.taps[lane].module})
    about = "mean", float(known[-1]), float("nan"), since[lane], None, message, tuple(known[-SPARK:].tolist()), more
    return Finding(RULE, RULES[RULE].severity, int(chosen.numbers[lane]), chosen.taps[lane], *about, members=members)

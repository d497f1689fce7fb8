"""Findings about the time of a training: it waits for data, evaluates for most of the time, or leaves a GPU idle."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from hookcore.findings.finding import Finding
from hookcore.findings.loss import of_training
from hookcore.findings.rules import limits_of
from hookcore.records.vocabulary import (
    EVALUATED,
    SYSTEM,
    TIME,
    TIME_BACKWARD,
    TIME_BEFORE,
    TIME_FORWARD,
    TIME_HOOKCORE,
    TIME_LOADING,
    TIME_OPTIMIZER,
    TIME_OTHER,
)
from hookcore.store import Series, Store, TapList

PARTS: Final = {  # of the time of a step, in their order, and their words
    TIME_LOADING: "data loading",
    TIME_BEFORE: "before the model",
    TIME_FORWARD: "forward",
    TIME_BACKWARD: "backward",
    TIME_OPTIMIZER: "optimizer",
    TIME_OTHER: "other",
    TIME_HOOKCORE: "hookcore",
}
_UTILIZATION: Final = re.compile(re.escape(SYSTEM) + r"gpu(\d+)/utilization")
_POINTS: Final = 1000


def find_waits(store: Store, taps: TapList) -> list[Finding]:
    """Return what the training spends its time with, if that isn't training."""
    names = set(store.scalar_names())
    if not len(taps.taps) or (names.isdisjoint((TIME_LOADING, EVALUATED)) and not _gpus(names)):
        return []
    found = _slow_loading(store, taps, names), _long_evaluation(store, taps, names), _idle_gpu(store, taps, names)
    return [each for each in found if each is not None]


def _gpus(names: set[str]) -> list[str]:
    return sorted(filter(_UTILIZATION.fullmatch, names))


def _newest(store: Store, name: str, many: int) -> Series:
    """Return the newest values of a scalar that has one now and then."""
    found = store.scalars(name, points=_POINTS)
    begin = int(found.first_step[-many]) if len(found.mean) >= many else None
    return found if begin is None else store.scalars(name, begin, points=_POINTS)


def _slow_loading(store: Store, taps: TapList, names: set[str]) -> Finding | None:
    limits = limits_of(store, "slow-data-loading")
    loading = _newest(store, TIME_LOADING, int(limits["steps"])) if TIME_LOADING in names else None
    if loading is None or len(loading.mean) < limits["steps"]:
        return None
    since, last = int(loading.first_step[0]), int(loading.last_step[-1])
    known = [store.scalars(name, since, last, _POINTS) for name in PARTS if name in names and name != TIME_HOOKCORE]
    total = sum(float(np.nansum(each.mean * each.present)) for each in known) / float(loading.present.sum())
    each_s = float(np.nansum(loading.mean * loading.present)) / float(loading.present.sum())
    if not (total > 0 and each_s >= limits["share"] * total and each_s >= limits["least_s"]):
        return None
    text = (
        f"a step waits {_seconds(each_s)} of its {_seconds(total)} for the data loader, {each_s / total:.0%} of its "
        f"time, on average over {len(loading.mean):,} measured steps up to step {last:,}"
    )
    return of_training("slow-data-loading", taps, loading, (each_s, total), since, text)


def _long_evaluation(store: Store, taps: TapList, names: set[str]) -> Finding | None:
    limits = limits_of(store, "long-evaluation")
    if not {EVALUATED, TIME} <= names:
        return None
    spent, clock = store.scalars(EVALUATED, points=_POINTS), store.scalars(TIME, points=_POINTS)
    total = float(np.nanmax(clock.max) - np.nanmin(clock.min)) if np.isfinite(clock.mean).any() else 0.0
    evaluated = float(np.nanmax(spent.max)) if np.isfinite(spent.mean).any() else 0.0
    if total < limits["least_s"] or evaluated < limits["share"] * total:
        return None
    text = f"the model was in evaluation mode for {_seconds(evaluated)} of {_seconds(total)}, {evaluated / total:.0%}"
    first = int(spent.first_step[int((spent.max > 0).argmax())])
    return of_training("long-evaluation", taps, spent, (evaluated, total), first, f"{text} of the time")


def _idle_gpu(store: Store, taps: TapList, names: set[str]) -> Finding | None:
    limits = limits_of(store, "idle-gpu")
    for name in _gpus(names):
        used = _newest(store, name, int(limits["samples"]))
        mean = float(np.nanmean(used.mean)) if np.isfinite(used.mean).any() else float("nan")
        if len(used.mean) < limits["samples"] or not mean < 100 * limits["share"]:
            continue
        number, since = name.removeprefix(f"{SYSTEM}gpu").partition("/")[0], int(used.first_step[0])
        text = f"GPU {number} has been busy {mean:.0f}% of the time since step {since:,}{_longest(store, names)}"
        return of_training("idle-gpu", taps, used, (mean, 100.0), since, text)
    return None


def _longest(store: Store, names: set[str]) -> str:
    """Say what the newest measured steps spend most of their time with."""
    known = {name: _newest(store, name, 8) for name in PARTS if name in names}
    seconds = {name: float(np.nanmean(each.mean)) for name, each in known.items() if np.isfinite(each.mean).any()}
    total = sum(seconds.values())
    if not total > 0:
        return ""
    longest = max(seconds, key=lambda name: seconds[name])
    return f"; a step takes {_seconds(total)}, {seconds[longest] / total:.0%} of it {PARTS[longest]}"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 else f"{value:.2g} s" if value >= 1 else f"{1000 * value:.3g} ms"

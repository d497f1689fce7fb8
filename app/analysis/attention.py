"""Attention maps of a run: the captured ones, and the taps that look like attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hookcore.records import Snapshot, Tap
from hookcore.store import Store

from .rollout import is_attention

MAX_WEIGHT: Final = 4.0  # attention after dropout has weights above 1
MEAN_ERROR: Final = 2e-3  # of half floats


@dataclass(frozen=True, slots=True)
class Captured:
    """The snapshot numbers of one layer's attention at one step, and of its gradient."""

    number: int
    snapshot: Snapshot
    gradient: tuple[int, Snapshot] | None


def maps_at(store: Store, match: str | None) -> dict[int, list[Captured]]:
    """Return the captured attention maps of each step, in the model's order. The newest of repeated ones counts."""
    fits, types = store.matcher(match), store.module_types()
    found: dict[tuple[int, Tap], tuple[int, Snapshot]] = {}
    for number, each in store.numbered_snapshots():
        found[each.step, each.tap] = number, each
    order = {module.path: place for place, module in enumerate(store.modules())}
    steps: dict[int, list[Captured]] = {}
    for (step, tap), (number, each) in found.items():
        if tap.kind == "output" and fits(tap.module) and looks_like_attention(each, types.get(tap.module, "")):
            steps.setdefault(step, []).append(Captured(number, each, found.get((step, gradient_of(tap)))))
    for step, layers in steps.items():
        layers.sort(key=lambda kept: (order.get(kept.snapshot.tap.module, len(order)), kept.snapshot.tap.call))
        steps[step] = _each_once(layers)
    return steps


def _each_once(layers: list[Captured]) -> list[Captured]:
    """Return each map once. A softmax returns it first, then the attention around it, then a model that lists all."""
    found: list[Captured] = []
    for each in layers:
        same = next((place for place, other in enumerate(found) if _is_same(other.snapshot, each.snapshot)), None)
        if same is None:
            found.append(each)
        elif _rank(each) > _rank(found[same]):
            found[same] = each
    return found


def _rank(kept: Captured) -> tuple[bool, int]:
    """Rank equal maps: one with a gradient first, then the innermost."""
    return kept.gradient is not None, len(kept.snapshot.tap.module)


def _is_same(one: Snapshot, two: Snapshot) -> bool:
    return _hands_on(one, two) or _hands_on(two, one)


def _hands_on(outer: Snapshot, inner: Snapshot) -> bool:
    inside = inner.tap.module.startswith(f"{outer.tap.module}." if outer.tap.module else "")
    return inside and np.array_equal(outer.values, inner.values, equal_nan=True)


def gradient_of(tap: Tap) -> Tap:
    """Return the tap of the gradient of an output."""
    return Tap(tap.module, "output_grad", tap.index, tap.call, tap.phase)


def taps_like_attention(store: Store, match: str | None) -> list[Tap]:
    """Return outputs whose newest numbers fit attention maps.

    None of their values is negative, and their mean is one over an integer, because rows sum to 1. Those with a fitting
    module name come first; with dropout, only those count. The result may contain others, which are recognized by their
    shape when they arrive.
    """
    latest = store.latest("output", wanted=store.taps(match, "output"))
    column = {name: latest.values[:, place] for place, name in enumerate(latest.stats)}
    types = store.module_types()
    named = np.array([_is_named_so(tap, types.get(tap.module, "")) for tap in latest.taps], bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = 1 / column["mean"]
        exact = np.abs(size - np.rint(size)) < MEAN_ERROR * size
        possible = (column["min"] >= 0) & (column["max"] <= MAX_WEIGHT) & np.isfinite(size) & (size > 1.5)
    chosen = np.flatnonzero(possible & (exact | (named & (column["zero"] > 0))))
    return [latest.taps[place] for place in sorted(chosen.tolist(), key=lambda place: not named[place])]


def looks_like_attention(snapshot: Snapshot, type_: str = "") -> bool:
    """Return whether a tensor looks like attention maps. After dropout, its names must say so, too."""
    return is_attention(snapshot.values, dropped=_is_named_so(snapshot.tap, type_))


def _is_named_so(tap: Tap, type_: str) -> bool:
    return any(word in f"{tap.module} {tap.index} {type_}".lower() for word in ("att", "softmax"))

"""Weights that begin badly: outputs that grow or shrink from layer to layer, and units that are all the same."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.depth import medians
from hookcore.findings.finding import RECENT, SPARK, Finding
from hookcore.findings.loss import Losses
from hookcore.findings.rules import RULES, limits_of
from hookcore.findings.window import MagnitudeWindow
from hookcore.records import Severity
from hookcore.store import Store, TapList
from hookcore.store.incidents import since_words

RULE: Final = "poor-weight-initialization"

Levels = NDArray[np.float64]


def find_scale(window: MagnitudeWindow) -> list[Finding]:
    """Return a finding if the outputs of layers with weights have grown or shrunk far too much since the first step."""
    if not window.starts_run:
        return []  # later, other rules know the usual values
    layers = window.taps.fact(_layers)
    limits = limits_of(window.store, RULE)
    if len(layers) <= limits["in_a_row"]:
        return []
    # A bias that learns soon hides the last layers, so one layer that is still far off is enough now.
    far = np.log10(limits["factor"])
    gains = np.diff(medians(window.logs[layers, -RECENT:].astype(np.float64)))
    if not (np.abs(gains) >= far).any():
        return []  # most looks end here
    start = window.steps.first or 0
    first = window.store.rows(window.taps.numbers[layers], window.stat, start, start).high
    with np.errstate(divide="ignore"):
        begun = _run_of(medians(np.log10(np.where(first > 0, first, np.nan)).T), limits["in_a_row"], limits["factor"])
    if begun is None:
        return []
    begin, end, decades = begun
    if not (np.sign(decades) * gains[begin:end] >= far).any():
        return []
    return [_scale_finding(window, layers, begin, end, decades)]


def _layers(taps: TapList) -> list[int]:
    """Return the places of the outputs of modules with weights."""
    weighted = {tap.module for tap in taps.taps if tap.kind == "param_grad" and tap.index == "weight"}
    return [
        place
        for place, tap in enumerate(taps.taps)
        if tap.kind == "output" and tap.phase == "train" and not tap.call and tap.module in weighted
    ]


def _run_of(levels: Levels, least: float, factor: float) -> tuple[int, int, float] | None:
    """Return the longest run of layers, each far above or below the one before: first, last, and decades."""
    gains = np.diff(levels)
    best: tuple[int, int, float] | None = None
    for sign in (1, -1):
        far = sign * gains >= np.log10(factor)  # NaN compares as False
        edges = np.flatnonzero(np.diff(np.concatenate(([0], far, [0]))))
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if end - begin >= least and (best is None or end - begin > best[1] - best[0]):
                best = begin, end, float(levels[end] - levels[begin])
    return best


def _scale_finding(window: MagnitudeWindow, layers: list[int], begin: int, end: int, decades: float) -> Finding:
    place, last = layers[begin], layers[end]
    number, tap = int(window.taps.numbers[place]), window.taps.taps[place]
    since = window.steps.first or 0
    verb = "grow" if decades > 0 else "shrink"
    message = (
        f"the activations {verb} by a factor of {10 ** abs(decades / (end - begin)):,.0f} from layer to layer, "
        f"from {tap.module} to {window.taps.taps[last].module}, {since_words(since)}: the initial weights are too "
        f"{'large' if decades > 0 else 'small'}"
    )
    size = float(10.0 ** window.logs[place][~np.isnan(window.logs[place])][-1])
    members = tuple((int(window.taps.numbers[each]), since) for each in layers[begin : end + 1])
    about = window.stat, size, float("nan"), since, None, message, window.spark(place), end - begin
    return Finding(RULE, RULES[RULE].severity, number, tap, *about, members=members)


def find_equal(store: Store, taps: TapList, losses: Losses) -> list[Finding]:
    """Return a finding if all values of a weight matrix that is trained were equal in the first step."""
    weights = taps.fact(_trained_weights)
    start = store.steps().first
    if not len(weights.taps) or start is None:
        return []
    std, rms = (store.rows(weights.numbers, stat, start, start) for stat in ("std", "rms"))
    if not len(std.first) or len(std.first) != len(rms.first) or std.last[0] != start:
        return []  # merged by now: it was reported long ago
    flat = (std.high[0] <= limits_of(store, RULE)["equal"] * rms.high[0]) & (rms.high[0] > 0)
    places = _in_a_row(store, taps, weights, flat) if flat.sum() > 1 else []
    if not places:
        return []
    severity: Severity = "info" if losses.fell else RULES[RULE].severity
    first, last = weights.taps[places[0]], weights.taps[places[-1]]
    value = float(rms.high[0, places[0]])
    message = (
        f"all values of the weight were {value:.3g} at step {start}, and in each later layer up to {last.module}, all "
        "values were equal, too, so all units of a layer learn the same"
    )
    members = tuple((int(weights.numbers[place]), start) for place in places)
    sizes = store.rows(weights.numbers[places[:1]], "std", start).mean[:, 0]
    about = "std", float(sizes[-1]), float("nan"), start, None, message, tuple(sizes[-SPARK:].tolist()), len(places) - 1
    return [Finding(RULE, severity, int(weights.numbers[places[0]]), first, *about, members=members)]


def _trained_weights(taps: TapList) -> TapList:
    trained = {(tap.module, tap.index) for tap in taps.taps if tap.kind == "param_grad"}
    return taps.at([p for p, tap in enumerate(taps.taps) if tap.kind == "param" and (tap.module, tap.index) in trained])


def _in_a_row(store: Store, taps: TapList, weights: TapList, flat: NDArray[np.bool_]) -> list[int]:
    """Return the places of the first two or more matrices in a row, in the order of execution, that began equal.

    A single one does no harm: the units of a layer learn different things if they are read by different weights.
    """
    shapes = {module.path: dict(module.shapes) for module in store.modules()}
    turn = {tap.module: place for place, tap in reversed([*enumerate(taps.taps)]) if tap.kind == "output"}
    matrices = [
        place
        for place, tap in enumerate(weights.taps)
        if tap.module in turn and _is_matrix(shapes.get(tap.module, {}).get(tap.index, ()))
    ]
    matrices.sort(key=lambda place: turn[weights.taps[place].module])
    found: list[int] = []
    for place in matrices:
        if flat[place]:
            found.append(place)
        elif len(found) > 1:
            break
        else:
            found = []
    return found if len(found) > 1 else []


def _is_matrix(shape: tuple[int, ...]) -> bool:
    """Return whether a weight has several units, each with several inputs."""
    return len(shape) >= 2 and shape[0] > 1 and int(np.prod(shape[1:])) > 1

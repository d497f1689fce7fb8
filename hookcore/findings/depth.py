"""Values that fade or grow from layer to layer, also those of weights that begin badly."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import RECENT, SPARK, Finding, RuleName, Since, after_last
from hookcore.findings.losses import Losses
from hookcore.findings.rules import RULES, limits_of
from hookcore.findings.window import MagnitudeWindow
from hookcore.records import ROOT, Kind, Severity, Tap
from hookcore.records.flow import Flow
from hookcore.records.vocabulary import KIND_WORDS
from hookcore.store import Store, TapList
from hookcore.store.incidents import around

# A stack with a problem from its first step never changes, so no rule that compares a layer with its own past detects
# it. Healthy layers also differ by powers of ten, but not steadily in one direction, and not by 5 decades.

_MIN_COLUMNS: Final = 4  # recent columns with a value
_RULES: Final[tuple[RuleName, ...]] = ("vanishing", "exploding")
_MIN_AROUND: Final = 3  # layers with gradients, of which some are small
_FLOOR: Final = -46.0  # the logarithm that stands for zero: below the smallest 32-bit float
_KINDS: Final[tuple[tuple[Kind, ...], ...]] = (
    ("output",),
    ("output_grad", "param_grad"),
)  # the first kind that has layers is used

Levels = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers of one kind in the order of the forward pass, and their decimal logarithms [column, layer].

    The columns are the recent ones, unless it says otherwise.
    """

    kind: Kind
    places: NDArray[np.intp]
    levels: Levels

    def fall(self) -> Levels:
        """Return by how many decades the first layers are below the last ones, in each column."""
        quarter = max(1, self.levels.shape[1] // 4)
        with np.errstate(invalid="ignore"):
            ends = (medians(part) for part in (self.levels[:, -quarter:], self.levels[:, :quarter]))
            last, first = ends
            return np.asarray(last - first, np.float64)

    def trend(self) -> float:
        """Return how steadily the recent levels rise with depth: the rank correlation, -1 to 1."""
        now = medians(self.levels.T)
        known = now[np.isfinite(now)]
        if len(known) < 2 or known.min() == known.max():
            return 0.0
        return float(np.corrcoef(_ranks(known), np.arange(len(known)))[0, 1])


def find_depth(window: MagnitudeWindow) -> list[Finding]:
    """Return a finding for each kind of tensor that fades or grows with depth."""
    found = _find_cliff(window)
    for kinds in _KINDS[: 1 if found else None]:  # a fall at one place is no steady one
        stack = next((stack for kind in kinds if (stack := _stack_of(window, kind)) is not None), None)
        finding = None if stack is None else _judge(window, stack)
        if finding is not None:
            found.append(finding)
    return found


def _find_cliff(window: MagnitudeWindow) -> list[Finding]:
    """Return a finding if, from the start, gradients are far smaller in all layers before one than in all after it."""
    stack, limits = _stack_of(window, "param_grad", _MIN_AROUND), limits_of(window.store, "vanishing")
    if stack is None:
        return []
    after, before = _sides(stack.levels)
    drop = medians((after - before).T)
    last = int(np.argmax(drop))  # of the layers before
    small, large = (window.taps.taps[int(stack.places[place])] for place in (last, last + 1))
    if not drop[last] >= limits["decades"] or stack.levels[:, : last + 1].min() <= _FLOOR:
        return []  # gradients of zero have rules of their own
    after, before = _sides(_levels_of(window, stack.places, window.number))
    far = (after - before)[:, last]
    if (far < limits["decades"]).any() or not _feeds(window.store.flows(), small.module, large.module):
        return []
    place, since = int(stack.places[last]), window.first_step(0)
    text = Since(
        f"the {KIND_WORDS['param_grad']} in {small.module or ROOT} is 10^{drop[last]:.0f} times smaller than that in "
        f"{large.module or ROOT}, and no larger in earlier layers,",
        older=not window.starts_run,
    )
    level = float(window.columns.size[-1, place])
    about = (window.stat, level, float("nan"), since, None, text, window.spark(place), last)
    members = tuple((number, since) for number in window.taps.numbers[stack.places[: last + 1]].tolist())
    number = int(window.taps.numbers[place])
    return [Finding("vanishing", RULES["vanishing"].severity, number, small, *about, members=members)]


def _sides(levels: Levels) -> tuple[Levels, Levels]:
    """Return, for each layer but the last, the least level after it, and the largest up to it."""
    after = np.fmin.accumulate(levels[:, ::-1], axis=1)[:, ::-1]
    return after[:, 1:], np.fmax.accumulate(levels, axis=1)[:, :-1]


def _feeds(flows: Sequence[Flow], module: str, other: str) -> bool:
    """Return whether what one module computes is known to reach another one."""
    if not flows:
        return False
    calls = flows[-1].calls
    waiting, seen = [place for place, call in enumerate(calls) if call.module == other], set[int]()
    while waiting:
        place = waiting.pop()
        if calls[place].module == module:
            return True
        if place not in seen:
            seen.add(place)
            waiting += (*calls[place].fed_by, *calls[place].returns)
    return False


def _stack_of(window: MagnitudeWindow, kind: Kind, least: float | None = None) -> Stack | None:
    """Return the layers of a kind that have recent values; None if there are too few."""
    taps = window.taps.taps
    leaves = window.taps.fact(_leaves)[kind]
    levels = _levels_of(window, leaves, RECENT)
    known = np.flatnonzero((~np.isnan(levels)).sum(axis=0) >= _MIN_COLUMNS)
    least = min(limits_of(window.store, rule)["least_layers"] for rule in _RULES) if least is None else least
    if len({taps[place].module for place in leaves[known].tolist()}) < least:
        return None
    return Stack(kind, leaves[known], levels[:, known])


def _leaves(taps: TapList) -> dict[Kind, NDArray[np.intp]]:
    """Return the places of the layers that contain no other layer, by kind."""
    found: dict[Kind, NDArray[np.intp]] = {}
    for kind in itertools.chain(*_KINDS):
        places = [place for place, tap in enumerate(taps.taps) if tap.kind == kind and _is_main(tap)]
        holders = around({taps.taps[place].module for place in places})
        found[kind] = np.array([place for place in places if taps.taps[place].module not in holders], np.intp)
    return found


def _is_main(tap: Tap) -> bool:
    """Return whether a tap represents its layer: the weight, or the first output."""
    return tap.phase == "train" and (tap.index in ("", "0") or tap.index.endswith("weight"))


def _levels_of(window: MagnitudeWindow, places: NDArray[np.intp], newest: int) -> Levels:
    size = window.columns.size[-newest:, places]
    with np.errstate(divide="ignore"):
        levels: Levels = np.maximum(np.log10(size), _FLOOR)
    return levels


def _judge(window: MagnitudeWindow, stack: Stack) -> Finding | None:
    now, trend = medians(stack.fall()[None])[0], stack.trend()
    is_gradient = stack.kind != "output"
    rule: RuleName = "vanishing" if (now > 0) == is_gradient else "exploding"
    limits = limits_of(window.store, rule)
    if not abs(now) >= limits["decades"] or not np.sign(now) * trend >= limits["monotone"]:
        return None
    if len({window.taps.taps[place].module for place in stack.places.tolist()}) < limits["least_layers"]:
        return None
    fall = replace(stack, levels=_levels_of(window, stack.places, window.number)).fall()
    beyond = np.sign(now) * fall >= limits["decades"]
    return _finding(window, stack, rule, float(now), after_last(~beyond & ~np.isnan(fall)))


def _finding(window: MagnitudeWindow, stack: Stack, rule: RuleName, fall: float, begun: int) -> Finding:
    now = medians(stack.levels.T)
    layers = len(stack.places)
    far = 0 if stack.kind != "output" else layers - 1  # the gradient fades toward the first layer
    near = layers - 1 - far
    place = int(stack.places[far])
    tap, other = window.taps.taps[place], window.taps.taps[int(stack.places[near])]
    since = window.first_step(begun)
    change = "smaller" if rule == "vanishing" else "larger"
    ends = (_size(now[near]), other.module or ROOT, _size(now[far]), tap.module or ROOT)
    text = Since(
        f"the {KIND_WORDS[stack.kind]} gets 10^{abs(fall):.0f} times {change} over {layers} layers: "
        f"{ends[0]} in {ends[1]}, {ends[2]} in {ends[3]},",
        older=not (begun or window.starts_run),
    )
    level = float(window.columns.size[-1, place])
    large, small = (now.max(), now.min())
    reached = (now < large - 2) if rule == "vanishing" else (now > small + 2)
    modules = {window.taps.taps[each].module for each in stack.places[reached].tolist()} - {tap.module}
    severity = "error" if abs(fall) >= 2 * limits_of(window.store, rule)["decades"] else RULES[rule].severity
    about = (window.stat, level, float("nan"), since, None, text, window.spark(place), len(modules))
    members = tuple((number, since) for number in window.taps.numbers[stack.places[reached]].tolist())
    return Finding(rule, severity, int(window.taps.numbers[place]), tap, *about, members=members)


def _size(level: float) -> str:
    return "zero" if level <= _FLOOR else f"{10.0**level:.1g}"


def medians(values: Levels) -> Levels:
    """Return the median of the known values in each row; NaN if there are none."""
    ordered = np.sort(values, axis=1)
    known = (~np.isnan(ordered)).sum(axis=1)
    at = np.maximum(known - 1, 0) // 2
    return np.take_along_axis(ordered, at[:, None], axis=1)[:, 0]


def _ranks(values: Levels) -> Levels:
    """Return the rank of each value; equal values share their mean rank."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    end = np.cumsum(count)
    ranks: Levels = (end - (count + 1) / 2)[place]
    return ranks


# Weights that begin badly: outputs that grow or shrink from layer to layer, and units that are all the same.

RULE: Final = "poor-weight-initialization"


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
    text = Since(
        f"the activations {verb} by a factor of {10 ** abs(decades / (end - begin)):,.0f} from layer to layer, "
        f"from {tap.module} to {window.taps.taps[last].module},",
        f": the initial weights are too {'large' if decades > 0 else 'small'}",
    )
    size = float(10.0 ** window.logs[place][~np.isnan(window.logs[place])][-1])
    members = tuple((int(window.taps.numbers[layer]), since) for layer in layers[begin : end + 1])
    about = window.stat, size, float("nan"), since, None, text, window.spark(place), end - begin
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

"""Values that fade or grow from layer to layer. This is the one comparison between layers, and it needs no past.

A stack with a problem from its first step never changes, so no rule that compares a layer with its own past detects
it. Healthy layers also differ by powers of ten, but not steadily in one direction, and not by 5 decades.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.findings.finding import RECENT, Finding
from hookcore.findings.rule import RuleName
from hookcore.findings.rules import RULES, limits_of
from hookcore.findings.window import MagnitudeWindow
from hookcore.records import ROOT, Kind, Tap
from hookcore.records.flow import Flow
from hookcore.records.vocabulary import KIND_WORDS
from hookcore.store import TapList
from hookcore.store.incidents import around, since_words

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
    older = "" if window.starts_run else " or earlier"
    message = (
        f"the {KIND_WORDS['param_grad']} in {small.module or ROOT} is {drop[last]:.0f} decades below that in "
        f"{large.module or ROOT}, and no larger in earlier layers, {since_words(since)}{older}"
    )
    level = float(window.columns.size[-1, place])
    about = (window.stat, level, float("nan"), since, None, message, window.spark(place), last)
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
    healthy = np.flatnonzero(~beyond & ~np.isnan(fall))
    begun = int(healthy[-1]) + 1 if len(healthy) else 0
    return _finding(window, stack, rule, float(now), begun)


def _finding(window: MagnitudeWindow, stack: Stack, rule: RuleName, fall: float, begun: int) -> Finding:
    now = medians(stack.levels.T)
    layers = len(stack.places)
    far = 0 if stack.kind != "output" else layers - 1  # the gradient fades toward the first layer
    near = layers - 1 - far
    place = int(stack.places[far])
    tap, other = window.taps.taps[place], window.taps.taps[int(stack.places[near])]
    since = window.first_step(begun)
    older = "" if begun or window.starts_run else " or earlier"
    verb = "shrinks" if rule == "vanishing" else "grows"
    ends = (_size(now[near]), other.module or ROOT, _size(now[far]), tap.module or ROOT)
    message = (
        f"the {KIND_WORDS[stack.kind]} {verb} by {abs(fall):.0f} decades over {layers} layers, "
        f"{abs(fall) / max(1, layers - 1):.1g} a layer: {ends[0]} in {ends[1]}, {ends[2]} in {ends[3]}, "
        f"{since_words(since)}{older}"
    )
    level = float(window.columns.size[-1, place])
    large, small = (now.max(), now.min())
    reached = (now < large - 2) if rule == "vanishing" else (now > small + 2)
    modules = {window.taps.taps[each].module for each in stack.places[reached].tolist()} - {tap.module}
    severity = "error" if abs(fall) >= 2 * limits_of(window.store, rule)["decades"] else RULES[rule].severity
    about = (window.stat, level, float("nan"), since, None, message, window.spark(place), len(modules))
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

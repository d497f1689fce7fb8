"""What the trainer's look at every step, and the replay of a saved one, say about an incident."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hookcore.records import STAT_COLUMN, STATS, Event, Kind, Tap
from hookcore.records.flow import MEASURED, ReplayedTap, unpacked
from hookcore.store.incidents.incident import Evidence, Link


@dataclass(frozen=True, slots=True)
class Replay:
    """The tensor that was non-finite first when a step was run again, and those that followed in that step.

    A tensor that was never captured has the number -1. `evidence` has the values of the step, the culprit's first.
    """

    step: int
    culprit: Link
    value: float
    chain: tuple[Link, ...] = ()
    where: str = ""  # the line of code, such as "norm.py:14"
    evidence: Evidence | None = None
    version: int = 0  # of the run's incidents when it arrived


_SHOWN: Final = 8  # tensors with their values
_UNNUMBERED: Final = -1  # the store numbers the taps that it knows
_WEIGHT: Final = "weight "
_ARGUMENT: Final = "argument "


def replay_of(event: Event) -> Replay | None:
    """Return what a replay found; None if it may differ from the training, or found nothing to blame."""
    about = event.about
    layers = unpacked(about.get("layers"))
    bad = [layer for layer in layers if layer.is_bad]
    if about.get("exact") is not True or not bad:
        return None
    module, model = str(about.get("module") or ""), str(about.get("model") or "")
    tap, first = _culprit(str(about.get("operator") or ""), str(about.get("phase") or ""), module, model, bad)
    culprit = Link(_UNNUMBERED, tap, event.step)
    followed = [_tap(each) for each in bad if _tap(each) != tap]
    chain = tuple(Link(_UNNUMBERED, each, event.step) for each in followed)
    value = math.nan if first is None or first.values[1] else math.inf
    return Replay(event.step, culprit, value, chain, str(about.get("where") or ""), _evidence(event.step, tap, layers))


def _culprit(
    operator: str, phase: str, module: str, model: str, bad: Sequence[ReplayedTap]
) -> tuple[Tap, ReplayedTap | None]:
    """Return the first tensor that went bad, and its values if they were measured."""
    if operator.startswith(_WEIGHT) and not phase:
        path, _, name = operator.removeprefix(_WEIGHT).rpartition(".")
        return Tap(path or model, "param", name), None
    if operator.startswith(_ARGUMENT) and not phase:
        return Tap(model, "input", operator.removeprefix(_ARGUMENT)), None
    kind: Kind = "output" if phase == "forward" else "output_grad" if phase == "backward" else bad[0].kind  # type: ignore[assignment]
    affected = [tensor for tensor in bad if tensor.kind == kind] or list(bad)
    if kind == "output_grad" and phase:
        inside = affected[0].module.startswith(f"{module}.") if module else True
        # The gradient that arrived at the module was finite, and what it passed on wasn't.
        if not inside and affected[0].module != module:
            return Tap(module, "input_grad"), None
        return _tap(affected[0]), affected[0]
    first = next((tensor for tensor in affected if tensor.module == module), affected[0])
    return _tap(first), first


def _tap(layer: ReplayedTap) -> Tap:
    kind: Kind = "output" if layer.kind == "output" else "output_grad"
    return Tap(layer.module, kind, layer.index, layer.call)


def _evidence(step: int, culprit: Tap, layers: Sequence[ReplayedTap]) -> Evidence | None:
    """Return the values of the culprit and of the tensors around it, in the order of the pass."""
    taps = [_tap(tensor) for tensor in layers]
    if culprit not in taps:
        return None
    place = taps.index(culprit)
    alike = [tensor for tensor in layers if tensor.kind == culprit.kind]
    near = alike.index(layers[place])
    shown = [
        layers[place],
        *(tensor for tensor in alike[max(0, near - 2) : near + _SHOWN - 2] if tensor is not layers[place]),
    ]
    stats = np.full((len(STATS), 1, len(shown)), np.nan)
    for column, layer in enumerate(shown):
        stats[STAT_COLUMN["parts"], 0, column] = 1
        for name, number in zip(MEASURED, layer.values, strict=True):
            stats[STAT_COLUMN[name], 0, column] = number
    numbers = (_UNNUMBERED,) * len(shown)
    return Evidence(numbers, tuple(map(_tap, shown)), np.array([step], np.int64), stats)


def among(captured: Evidence | None, replayed: Evidence) -> Evidence:
    """Return the values of a replayed step among those of captured steps around it: its tensors come first."""
    if captured is None:
        return replayed
    numbers = dict(zip(replayed.taps, replayed.numbers, strict=True))
    for tap, number in zip(captured.taps, captured.numbers, strict=True):
        numbers.setdefault(tap, number)
    places = {tap: place for place, tap in enumerate(numbers)}
    steps = np.union1d(captured.steps, replayed.steps)
    stats = np.full((len(STATS), len(steps), len(places)), np.nan)
    for part in (captured, replayed):
        rows = np.searchsorted(steps, part.steps)
        for column, tap in enumerate(part.taps):
            stats[:, rows, places[tap]] = part.stats[:, :, column]
    return Evidence(tuple(numbers.values()), tuple(numbers), steps, stats, captured.logged)


WEIGHTS: Final = "weights"  # found before any optimizer of the step: the step before spoiled them


@dataclass(frozen=True, slots=True)
class Alarm:
    """A step in which the check found a non-finite value, after `previous`, in which it found none."""

    step: int
    previous: int | None
    value: float
    weight: Tap | None  # the first parameter that was non-finite before the step changed it
    in_loss: bool = False  # whether it is the loss, in a step whose tensors were captured

    @classmethod
    def of(cls, event: Event) -> Alarm:
        """Return what an event of the trainer says. Facts of the wrong type count as unknown."""
        kind, name = event.about.get("found"), event.about.get("name")
        previous, text = event.about.get("previous"), event.about.get("value")
        is_known = isinstance(previous, int) and 0 <= previous < event.step
        weight = None
        if kind == WEIGHTS:
            own = str(name or "").removeprefix(f"{event.module}.") if event.module else str(name or "")
            weight = Tap(event.module, "param", own)
        value = float(text) if text in ("nan", "inf", "-inf") else float("nan")
        in_loss = kind == "loss" and event.about.get("captured") is True
        return cls(event.step, int(previous) if is_known else None, value, weight, in_loss)  # type: ignore[arg-type]

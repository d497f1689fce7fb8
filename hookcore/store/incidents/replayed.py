"""The step that a trainer is asked to save after the first error of a run, and what is known from looking at every step
and from the replay of a saved one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np

from hookcore.records import GRADIENT_KINDS, STAT_COLUMN, STATS, Event, Kind, Occasion, Tap
from hookcore.records.flow import MEASURED, ReplayedTap, unpacked
from hookcore.store.incidents.incident import NONFINITE, Evidence, Incident, Link


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


# The first error, after which a step is saved.

_MAGNITUDES: Final = frozenset({"exploding"})  # rules that find values too large
_REPLAYED: Final[frozenset[Kind]] = GRADIENT_KINDS | frozenset[Kind](("input", "output", "param"))  # no optimizer runs
_SHARE: Final = 0.5  # of a value whose usual size is unknown

IsMuted = Callable[[Incident], bool]


class HasIncidents(Protocol):
    @property
    def incidents_version(self) -> int:
        """A number that changes with every change of an incident."""

    def incident_heads(self) -> Sequence[Incident]:
        """Return the incidents without their chains and evidence."""


@dataclass(slots=True)
class FirstError:
    """Finds, once, the first unmuted incident of severity error: that incident, or a growing tensor that caused it."""

    _seen: int = 0  # the version of the incidents that were looked at
    _found: bool = False

    def news(self, store: HasIncidents, is_muted: IsMuted = lambda _: False) -> Occasion | None:
        """Return the occasion to save a step, if there is one now. Cheap as long as no incident changes."""
        version = store.incidents_version
        if self._found or version == self._seen:
            return None
        self._seen = version
        heads = store.incident_heads()
        if all(head.severity != "error" for head in heads):
            return None
        heard = [head for head in heads if not is_muted(head)]
        errors = [each for each in heard if each.severity == "error"]
        self._found = bool(errors)
        first = min(errors, key=_order, default=None)
        # Trainers notice non-finite values themselves, in the step itself, unless they have a gradient scaler.
        if first is None or (first.rule == NONFINITE and not first.skipped):
            return None
        return occasion_of(_cause_of(first, heard))


def _order(incident: Incident) -> tuple[int, int]:
    return incident.found_step, incident.first_step


def _cause_of(error: Incident, others: Sequence[Incident]) -> Incident:
    """Return what explains an error better: a tensor that grows, which is often a warning when the loss is an error."""
    growing = [
        other for other in others if other.rule in _MAGNITUDES and not other.is_over and other.severity != "info"
    ]
    return error if error.rule == NONFINITE else min(growing, key=_order, default=error)


def occasion_of(incident: Incident) -> Occasion:
    """Return what a trainer needs to know of an incident to save a step after it."""
    tap = incident.culprit.tap
    phase: Literal["forward", "backward"] = "backward" if tap.kind in GRADIENT_KINDS else "forward"
    above = _above(incident) if incident.rule in _MAGNITUDES and tap.kind in _REPLAYED else None
    return Occasion(incident.id, incident.first_step, tap.module, above, phase if above is not None else "")


def _above(incident: Incident) -> float | None:
    """Return a magnitude between the usual one and that of the incident, in the middle of their logarithms."""
    value, usual = incident.value, incident.usual
    if not 0 < value < math.inf:
        return None
    return math.sqrt(value) * math.sqrt(usual) if 0 < usual < value else _SHARE * value

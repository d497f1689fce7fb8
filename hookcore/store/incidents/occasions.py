"""The first error of a run, after which its trainer is asked to save a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from hookcore.records import Kind, Occasion
from hookcore.store.incidents.accounts import BACKWARD, NONFINITE
from hookcore.store.incidents.incident import Incident

_MAGNITUDES: Final = frozenset({"exploding"})  # rules that find values too large
_REPLAYED: Final[frozenset[Kind]] = BACKWARD | frozenset[Kind](("input", "output", "param"))  # no optimizer runs
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
    phase: Literal["forward", "backward"] = "backward" if tap.kind in BACKWARD else "forward"
    above = _above(incident) if incident.rule in _MAGNITUDES and tap.kind in _REPLAYED else None
    return Occasion(incident.id, incident.first_step, tap.module, above, phase if above is not None else "")


def _above(incident: Incident) -> float | None:
    """Return a magnitude between the usual one and that of the incident, in the middle of their logarithms."""
    value, usual = incident.value, incident.usual
    if not 0 < value < math.inf:
        return None
    return math.sqrt(value) * math.sqrt(usual) if 0 < usual < value else _SHARE * value

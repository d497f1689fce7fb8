"""All rules over one store, the worst first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hookcore.records import Tap
from hookcore.store import Store, TapList

from .findings import RULES, Finding
from .magnitudes import find_sizes, find_updates
from .nonfinite import First, find_nonfinite
from .readings import Readings
from .zeros import find_dead

_SEVERITIES: Final = ("error", "warning", "info")
_RULES: Final = tuple(RULES)


@dataclass(slots=True)
class Memory:
    """What was read before, so that next time only what came since is read. It changes no answer."""

    sizes: Readings | None = None
    updates: Readings | None = None
    first: First | None = None  # that was not finite, and still is not


def attention_of(store: Store, memory: Memory | None = None) -> tuple[Finding, ...]:
    """What needs attention, the worst first: what is not finite now, then errors, warnings and notes."""
    memory = Memory() if memory is None else memory
    taps = store.taps()
    memory.sizes = Readings.of(store, taps, "rms", memory.sizes)
    memory.updates = Readings.of(store, _of_kind(taps, "update"), "ratio", memory.updates)
    found = find_dead(store, _of_kind(taps, "output"))
    if memory.sizes is not None:
        bad = find_nonfinite(memory.sizes, memory.first)
        memory.first = next(((each.number, each.since_step) for each in bad if each.until_step is None), None)
        found += bad + find_sizes(memory.sizes)
    if memory.updates is not None:
        found += find_updates(memory.updates)
    return tuple(sorted(found, key=_urgency))


def _of_kind(taps: TapList, kind: str) -> TapList:
    chosen: list[tuple[int, Tap]] = [
        (number, tap) for number, tap in zip(taps.numbers.tolist(), taps.taps, strict=True) if tap.kind == kind
    ]
    return TapList(np.array([number for number, _ in chosen], np.int64), tuple(tap for _, tap in chosen))


def _urgency(finding: Finding) -> tuple[bool, int, int, int, int]:
    """What is not finite leads, be it over or not; of equals the newest, and then what the model computes first."""
    leads = finding.rule == "nonfinite" and finding.severity != "info"
    severity = _SEVERITIES.index(finding.severity)
    return not leads, severity, _RULES.index(finding.rule), -finding.since_step, finding.number

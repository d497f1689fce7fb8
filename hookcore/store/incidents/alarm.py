"""What the trainer's check of every step says about a step with non-finite values, captured or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hookcore.records import Event, Tap

WEIGHTS: Final = "weights"  # found before any optimizer of the step: the step before spoiled them


@dataclass(frozen=True, slots=True)
class Alarm:
    """A step in which the check found a non-finite value, after `previous`, in which it found none."""

    step: int
    previous: int | None
    value: float
    weight: Tap | None  # the first parameter that was non-finite before the step changed it

    @classmethod
    def of(cls, event: Event) -> Alarm:
        """Return what an event of the trainer says. Facts of the wrong type count as unknown."""
        found, name = event.about.get("found"), event.about.get("name")
        previous, said = event.about.get("previous"), event.about.get("value")
        is_known = isinstance(previous, int) and 0 <= previous < event.step
        weight = None
        if found == WEIGHTS:
            own = str(name or "").removeprefix(f"{event.module}.") if event.module else str(name or "")
            weight = Tap(event.module, "param", own)
        value = float(said) if said in ("nan", "inf", "-inf") else float("nan")
        return cls(event.step, int(previous) if is_known else None, value, weight)  # type: ignore[arg-type]

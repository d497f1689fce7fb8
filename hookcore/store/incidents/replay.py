"""What the replay of a saved step says about the incident that began in that step."""

from __future__ import annotations

from dataclasses import dataclass

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

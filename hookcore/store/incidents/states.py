"""The ongoing incident with non-finite values, and an incident that is over, as the book keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.store.incidents.alarm import Alarm
from hookcore.store.incidents.evidence import Gathering
from hookcore.store.incidents.incident import Incident, Steps
from hookcore.store.incidents.replay import Replay

NEVER: Final = -1
_RECORD_BYTES: Final = 512  # an incident without its arrays

Flags = NDArray[np.bool_]


@dataclass(slots=True)
class Open:
    """The incident that is going on. `closed_at` is the step that ended it; a later part of that step may reopen it.

    `begin` is its first captured step, NEVER if none has been captured, and `culprit` what was first in that step.
    """

    found: int  # the step with which it was found
    begin: int
    last: int
    steps: int
    previous: int | None  # the newest step before `begin` in which nothing was found
    onset: Steps  # of each tap; NEVER if it is not affected
    with_nan: Flags  # which taps had a NaN in the first step
    culprit: int = NEVER
    culprit_last: int = NEVER
    culprit_recovered: bool = False
    closed_at: int = NEVER
    skipped: bool = False
    loss: str = ""
    known: str = ""  # about what the culprit was computed from
    version: int = 0
    gathering: Gathering | None = None
    alarm: Alarm | None = None  # of the trainer's check of every step


@dataclass(frozen=True, slots=True)
class Onset:
    """The first step in which an incident was found, and the newest one before it in which nothing was found."""

    step: int
    fine: int | None  # None if there is no such step

    @classmethod
    def of(cls, incident: Open) -> Onset:
        """Return what captured steps and the trainer's check say together."""
        alarm, begin = incident.alarm, incident.begin
        if alarm is None or 0 <= begin < alarm.step:
            return cls(begin, incident.previous)
        before = (alarm.previous, incident.previous if begin == alarm.step else None)
        return cls(alarm.step, max((each for each in before if each is not None), default=None))

    @property
    def is_exact(self) -> bool:
        """Whether no step right before the first one is unknown."""
        return self.fine is None or self.fine == self.step - 1


@dataclass(frozen=True, slots=True)
class Over:
    """An incident that is over, with its chain as numbers."""

    about: Incident  # without the chain and the evidence
    numbers: NDArray[np.int64]
    onsets: Steps
    gathering: Gathering | None
    replay: Replay | None = None  # if it has named the culprit

    @property
    def nbytes(self) -> int:
        return (
            _RECORD_BYTES + self.numbers.nbytes + self.onsets.nbytes + (self.gathering.nbytes if self.gathering else 0)
        )

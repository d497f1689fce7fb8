"""The ongoing incident with non-finite values, and an incident that is over, as the book keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.store.incidents.evidence import Gathering
from hookcore.store.incidents.incident import Incident, Steps

NEVER: Final = -1
_RECORD_BYTES: Final = 512  # an incident without its arrays

Flags = NDArray[np.bool_]


@dataclass(slots=True)
class Open:
    """The incident that is going on. `closed_at` is the step that ended it; a later part of that step may reopen it."""

    begin: int
    last: int
    steps: int
    previous: int | None
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


@dataclass(frozen=True, slots=True)
class Over:
    """An incident that is over, with its chain as numbers."""

    about: Incident  # without the chain and the evidence
    numbers: NDArray[np.int64]
    onsets: Steps
    gathering: Gathering | None

    @property
    def nbytes(self) -> int:
        return (
            _RECORD_BYTES + self.numbers.nbytes + self.onsets.nbytes + (self.gathering.nbytes if self.gathering else 0)
        )

"""Incidents as they are now: their state, followed frame by frame, as the record that readers get."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import Tap
from hookcore.store.incidents.evidence import Gathering
from hookcore.store.incidents.incident import Incident, Link, Steps
from hookcore.store.incidents.order import Causes
from hookcore.store.incidents.standing import Standing
from hookcore.store.incidents.states import NEVER, Open, Over

MAX_CHAIN: Final = 256  # tensors that followed, with their first steps
NONFINITE: Final = "nonfinite"


@dataclass(frozen=True, slots=True)
class Accounts:
    """Makes the records of one store's incidents."""

    taps: list[Tap]  # only ever appended to
    causes: Causes

    def of_nonfinite(self, incident: Open) -> Over:
        """Return the incident of non-finite values that is going on."""
        affected = np.flatnonzero(incident.onset != NEVER)
        about = Incident(
            NONFINITE,
            self._link(incident.culprit, incident.begin),
            float("nan") if incident.with_nan[incident.culprit] else float("inf"),
            incident.begin,
            incident.last,
            incident.closed_at if incident.closed_at >= 0 else None,
            incident.steps,
            incident.skipped,
            incident.previous,
            incident.culprit_last,
            loss=incident.loss,
            known=incident.known,
            version=incident.version,
            found_step=incident.begin,
        )
        return self._with_chain(about, affected, incident.onset[affected], incident.gathering)

    def of_rule(self, standing: Standing) -> Over:
        """Return an incident of a rule."""
        found = standing.found
        about = Incident(
            found.rule,
            self._link(found.number, found.since),
            found.value,
            found.since,
            standing.last,
            standing.over,
            standing.times if found.is_short else standing.last - found.since + 1,
            culprit_last=standing.last,
            version=standing.version,
            message=found.message,
            level=standing.severity,
            milder=standing.milder,
            usual=found.usual,
            found_step=standing.found_step,
            short=found.is_short,
        )
        numbers = np.array(list(standing.onsets), np.int64)
        onsets = np.array(list(standing.onsets.values()), np.int64)
        return self._with_chain(about, numbers, onsets, standing.gathering)

    def read(self, incident: Over) -> Incident:
        """Return an incident with its chain and its evidence."""
        pairs = zip(incident.numbers.tolist(), incident.onsets.tolist(), strict=True)
        evidence = None if incident.gathering is None else incident.gathering.evidence()
        return replace(incident.about, chain=tuple(self._link(*pair) for pair in pairs), evidence=evidence)

    def _link(self, number: int, step: int) -> Link:
        return Link(number, self.taps[number], step)

    def _with_chain(
        self, about: Incident, affected: NDArray[np.int64], onsets: Steps, gathering: Gathering | None
    ) -> Over:
        others = affected != about.culprit.number
        numbers, onsets = affected[others], onsets[others]
        chain = self.causes.order(numbers, onsets)[:MAX_CHAIN]
        about = replace(about, taps=len(numbers), modules=self.causes.modules(affected) - 1)
        return Over(about, numbers[chain], onsets[chain], gathering)

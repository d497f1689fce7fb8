"""What was found in a run, and found anew only where something came."""

from __future__ import annotations

import threading
from typing import Final

from hookcore.store import StepRange, Store

from .finding import Finding
from .ranking import Diagnosis, RuleInputs, examine
from .scope import Scope

_ALL: Final = 2**62


class FindingsCache:
    """The findings of one store; from any thread. Nothing is looked at before somebody asks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._mark: tuple[StepRange, int, int, int] | None = None
        self._inputs = RuleInputs()
        self._diagnosis: Diagnosis | None = None

    def current(self) -> tuple[Finding, ...]:
        """Return what needs attention now, the worst first."""
        return self.diagnosis().findings

    def scope(self) -> Scope:
        """Return how much the findings are based on."""
        return self.diagnosis().scope

    def diagnosis(self) -> Diagnosis:
        """Return the findings and their scope, looked at anew only if something came."""
        with self._lock:  # of several that ask at once one looks
            steps = self._store.steps()
            mark = steps, steps.frames, self._store.taps_announced, self._store.events_after(_ALL)[0]
            if self._diagnosis is None or mark != self._mark:
                self._diagnosis, self._mark = examine(self._store, self._inputs), mark
            return self._diagnosis

"""A cache of a run's findings, updated only if new data has arrived."""

from __future__ import annotations

import threading
from typing import Final

from hookcore.findings.course import Course
from hookcore.findings.finding import Finding
from hookcore.findings.ranking import Diagnosis, RuleInputs, examine
from hookcore.findings.scope import Scope
from hookcore.store import Store

_ALL: Final = 2**62


class FindingsCache:
    """The findings of one store; thread-safe. Nothing is computed before the first request."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._mark: tuple[object, ...] | None = None
        self._inputs = RuleInputs()
        self._diagnosis: Diagnosis | None = None
        store.find_dead_by(self.dead)

    def current(self) -> tuple[Finding, ...]:
        """Return the current findings, the worst first."""
        return self.diagnosis().findings

    def dead(self) -> set[str]:
        """Return the paths of the modules that are dead now."""
        return {each.module for each in self.current() if each.rule == "dead"}

    def scope(self) -> Scope:
        """Return how much the findings are based on."""
        return self.diagnosis().scope

    def course(self) -> Course:
        """Return where the training goes."""
        return self.diagnosis().course

    def diagnosis(self) -> Diagnosis:
        """Return the findings and their scope, computed again only if new data has arrived."""
        with self._lock:  # if several threads ask at once, one computes
            steps = self._store.steps()
            versions = self._store.taps_announced, self._store.incidents_version
            mark = steps, steps.frames, *versions, self._store.events_after(_ALL)[0], self._store.rules
            if self._diagnosis is None or mark != self._mark:
                with self._store.in_memory():
                    self._diagnosis, self._mark = examine(self._store, self._inputs), mark
            return self._diagnosis

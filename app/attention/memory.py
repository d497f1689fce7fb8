"""What was found in a run, and found anew only where something came."""

from __future__ import annotations

import threading
from typing import Final

from hookcore.store import StepRange, Store

from .findings import Finding
from .ranking import Memory, attention_of

_ALL: Final = 2**62


class Attention:
    """The findings of one store; from any thread. Nothing is looked at before somebody asks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._mark: tuple[StepRange, int, int, int] | None = None
        self._memory = Memory()
        self._findings: tuple[Finding, ...] = ()

    def findings(self) -> tuple[Finding, ...]:
        """What needs attention now, the worst first."""
        with self._lock:  # of several that ask at once one looks
            steps = self._store.steps()
            mark = steps, steps.frames, self._store.taps_announced, self._store.events_after(_ALL)[0]
            if mark != self._mark:
                self._findings, self._mark = attention_of(self._store, self._memory), mark
            return self._findings

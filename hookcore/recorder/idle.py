"""The work of the recorder's thread while no step ends: it carries out commands, and ships data between steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from hookcore.recorder.collector import Collector
from hookcore.recorder.commands import Commands
from hookcore.recorder.control import Control
from hookcore.recorder.frames import RawFrame
from hookcore.recorder.machine import Sampler
from hookcore.recorder.steps import Steps

IDLE_S: Final = 1.0  # after this time without a step
LOCK_WAIT_S: Final = 1.0
GROWTH: Final = 1.02  # of the idle time between two samples of the machine, so that a day without a step sends hundreds


@dataclass(slots=True, eq=False)
class Idle:
    """Acts between two steps."""

    _steps: Steps
    _commands: Commands
    _control: Control
    _collector: Collector
    _machine: Sampler
    _lock: threading.RLock
    _ship: Callable[[RawFrame], None]
    _now: Callable[[], float]
    _sampled_after_s: float = field(default=0.0, init=False)  # of this idle time

    def tick(self) -> None:
        """Act if there is something to do. Called every few milliseconds."""
        idle_s = self._now() - self._steps.ended.at  # NaN before the first step
        if idle_s < IDLE_S:
            self._sampled_after_s = 0.0
        elif (self._commands.changes or self._has_news(idle_s)) and self._lock.acquire(timeout=LOCK_WAIT_S):
            try:
                self._control.apply_while_idle()
                if self._has_news(idle_s):
                    self._sampled_after_s = idle_s
                    ended_at = time.time() - (0.0 if idle_s != idle_s else idle_s)
                    self._ship(self._collector.take_between(ended_at))
            finally:
                self._lock.release()

    def _has_news(self, idle_s: float) -> bool:
        """Return whether something waits for a frame. Before the first step, the machine has none to belong to."""
        return self._collector.has_events or (self._machine.has_news and idle_s >= GROWTH * self._sampled_after_s)

"""The script's requests during the training: snapshots, probes, and a pause."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from hookcore.recorder.commands import Commands
from hookcore.recorder.control import Control
from hookcore.recorder.observers import Observers
from hookcore.recorder.placement import Placement
from hookcore.recorder.probe import Probe
from hookcore.recorder.steps import Steps
from hookcore.recorder.taps import TapTable
from hookcore.records import Tap


@dataclass(slots=True, eq=False)
class Requests:
    """Takes effect in the running step if it hasn't begun, whereas commands wait for its end."""

    _steps: Steps
    _commands: Commands
    _control: Control
    _observers: Observers
    _placement: Placement
    _table: TapTable
    _lock: AbstractContextManager[Any]

    @property
    def taps(self) -> Sequence[Tap]:
        """The taps that were captured so far, by their numbers."""
        return self._table.shown_taps()

    def take_snapshot(self, tap: Tap) -> None:
        """Take a snapshot at the tensor's next call."""
        if not self._commands.ask(tap):
            return
        with self._lock:
            if self._steps.is_fresh:
                self._observers.begin_snapshots()

    def add_probe(self, probe: Probe) -> bool:
        """Let a function look at tensors. Return False if there is no room."""
        with self._lock:
            added = self._observers.probes.add(probe)
            if self._steps.is_fresh:
                self._observers.begin_step(self._steps.clock.step, captured=True)
        return added

    def pause(self) -> None:
        """Capture nothing until resumed; steps are still counted. The running step keeps its data so far."""
        with self._lock:
            self._steps.stop_capture()
            self._control.paused = True
            self._placement.begin_step(self._steps.clock.step, captured=False)

    def resume(self) -> None:
        """Capture again, from the next forward on."""
        if self._control.paused and self._placement.attached:
            self._placement.begin_step(self._steps.clock.step, captured=True)
        self._control.paused = False

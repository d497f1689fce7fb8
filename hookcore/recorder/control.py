"""Changes during training: carries commands out between two steps, or while no step ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hookcore.config import Settings
from hookcore.recorder.cadence import Cadence
from hookcore.recorder.commands import Change, Commands, describe_change
from hookcore.recorder.models import Models
from hookcore.recorder.observers import Observers
from hookcore.recorder.placement import Placement


@dataclass(slots=True, eq=False)
class Control:
    """The current settings. Called under the recorder's lock."""

    settings: Settings
    _commands: Commands
    _cadence: Cadence
    _models: Models
    _observers: Observers
    _placement: Placement
    _emit: Callable[..., None]
    paused: bool = field(default=False, init=False)
    _reported_waiting: bool = field(default=False, init=False)

    def current_settings(self) -> dict[str, Any]:
        """Return the current settings in types that JSON has, with `paused` and figures of the cadence."""
        return {**self.settings.as_dict(), "paused": self.paused, **self._cadence.as_settings()}

    @property
    def has_work(self) -> bool:
        """Return whether a command or a snapshot needs attention at the end of the step."""
        observers = self._observers
        return observers.snapshots.active or observers.flows.is_learning or bool(self._commands.changes)

    def apply_pending(self) -> None:
        """Carry out everything that waits, in order. Called between two steps, on the training thread."""
        while self._commands.changes:
            self._apply(self._commands.changes.popleft())
        self._reported_waiting = False
        self._observers.begin_snapshots()

    def apply_while_idle(self) -> None:
        """Carry out what no hook reads. Called on the recorder's thread while no step ends.

        A forward may be running, even a slow one. The cadence and the pause are read only at the end of a step, under
        the lock that is held here.
        """
        if not self._commands.waits_for_a_step:
            self._commands.apply_while_idle(self._apply)
        if self._commands.changes and not self._reported_waiting:
            self._reported_waiting = True
            self._emit("settings-waiting", "no step is running: the change takes effect at the end of the next one")

    def _apply(self, change: Change) -> None:
        before = self.current_settings()
        values = {name: value for name, value in change.values.items() if name != "paused"}
        self.settings = replace(self.settings, **values)
        if "every" in values or "budget" in values:
            self._cadence.change(self.settings.every, self.settings.budget)
        if "channels" in values:
            self._observers.probes.choose_channels(self.settings.channels)
        if change.choice is not None:
            self._models.rechoose(self.settings, change.choice)
            limit = self._placement.follow_choice([plan for plan, _ in change.choice])
            if limit is not None:
                self._emit("settings-limited", limit, "warning")
        self.paused = change.values.get("paused", self.paused)
        self._emit("settings-changed", describe_change(before, self.current_settings(), change.values))

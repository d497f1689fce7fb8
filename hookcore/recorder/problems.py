"""Events for what hookcore couldn't do, one per problem, because a gap alone explains nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from hookcore.observe import cpu
from hookcore.recorder.coverage import NO_ROOM, hidden_roots
from hookcore.recorder.models import Models
from hookcore.recorder.plans import PlanTable
from hookcore.recorder.statistics import Statistics

logger = logging.getLogger("hookcore")


@dataclass(slots=True, eq=False)
class Problems:
    """Turns the counters of one recorder into events. Called on the recorder's thread."""

    _plans: PlanTable
    _statistics: Statistics
    _models: Models
    _emit: Callable[..., None]
    _infeasible: str  # why the settings aren't the given ones
    _emitted: set[str] = field(default_factory=set, init=False)

    def emit_new(self) -> None:
        """Emit an event for each problem that has none yet."""
        if self._infeasible:
            self._emit_once("inside-infeasible", self._infeasible)
        if cpu.FALLBACK_REASON:
            self._emit_once("slow-kernel", cpu.SLOW_KERNEL)
        if self._statistics.table.refused:
            self._emit_once("taps-not-captured", f"some tensors are not captured: {NO_ROOM}")
        self.say_refused()
        for arena in list(self._statistics.devices.arenas.values()):
            if arena.fallback_reason:
                how = f"tensors on {arena.device} are measured with PyTorch operators: {arena.fallback_reason}"
                self._emit_once("slow-kernel", how)
        for path, why in hidden_roots(self._plans, self._models.hooks_are_on_modules):
            message = f"{path or 'the model'} is training, but hooks see no call of its modules: {why}"
            self._emit_once("inside-compiled-function", message, path)

    def say_refused(self) -> None:
        """Report models that no pattern fits. It is a warning in the terminal, too, if no other model is watched."""
        for name, why in list(self._models.refused.items()):
            message = f"a running model is not watched. {name}: {why}"
            if message not in self._emitted and not self._models.roots:
                logger.warning("hookcore: nothing is captured: %s", message)
            self._emit_once("model-not-watched", message)

    def _emit_once(self, name: str, message: str, module: str = "") -> None:
        if message not in self._emitted:
            self._emitted.add(message)
            self._emit(name, message, "warning", module)

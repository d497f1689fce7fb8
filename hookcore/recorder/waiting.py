"""How long a rank waits for others at the end of its backward passes, from times that are known here anyway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from hookcore.hooks.distributed import newest_reduction
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.replicas import Replicas
from hookcore.records.vocabulary import GRADIENT_WAIT, REDUCTION_WAIT


@dataclass(slots=True, eq=False)
class Waiting:
    """Measures captured steps of models in `DistributedDataParallel`. Asks no other rank, and waits for none.

    Ranks of a model that torch has split wait for each other inside their passes, too, so that the end of a pass says
    nothing about who is late; of those, nothing is measured.
    """

    _replicas: Replicas
    _current: CurrentStep
    _add_scalars: Callable[[dict[str, Any]], None]
    _now: Callable[[], float]
    _reported_s: float = field(default=float("-inf"), init=False)  # when the last bucket of the last reported pass came

    def begin_step(self) -> None:
        """Time the gradients of this step if it is captured and some ranks wait for each other."""
        self._current.clock = self._now if self._current.captured and self._replicas.only_reduces else None

    def before_step(self) -> None:
        """Note the time when the first optimizer of a timed step is about to use the gradients."""
        self._current.clock = None
        waited = self._now() - self._current.arrived_s
        reductions = [found for each in self._replicas.reducing() if (found := newest_reduction(each)) is not None]
        newest = max(reductions, key=lambda each: each.ready_s, default=None)
        if newest is not None and newest.ready_s > self._reported_s:
            self._reported_s = newest.ready_s
            self._add_scalars({REDUCTION_WAIT: newest})
        elif isfinite(waited) and self._replicas.reduces:
            self._add_scalars({GRADIENT_WAIT: waited})

"""What callbacks need that can stop a training: `stop_on="error"`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed, nn
from typing_extensions import Unpack

from hookcore.config import WatchSettings
from hookcore.frameworks.watching import Watching
from hookcore.watcher.callbacks import require_severity

if TYPE_CHECKING:
    from hookcore.reading.answers import Incident
    from hookcore.records import Severity

logger = logging.getLogger("hookcore")

AGREE_EVERY: Final = 16  # steps of a distributed training between two exchanges


class StopRequest:
    """The first incident that stops a training. A watcher has it instead of the callback, which may be discarded."""

    def __init__(self) -> None:
        self.incident: Incident | None = None

    def note(self, incident: Incident) -> None:
        self.incident = self.incident or incident


class Stopping(Watching):
    """Has the additional setting `stop_on`: stop after an incident of this severity or worse, when the step ends."""

    def __init__(self, *, stop_on: Severity | None = None, **settings: Unpack[WatchSettings]) -> None:
        if stop_on is not None:
            require_severity("stop_on", stop_on)
        super().__init__(**settings)
        self.stop_on = stop_on
        self.stopped = False
        self._request = StopRequest()
        self._calls = 0

    def begin(self, model: nn.Module | None, unfinished: str = "") -> None:
        super().begin(model, unfinished)
        self._request, self._calls, self.stopped = StopRequest(), 0, False
        if self.stop_on is not None and self.watcher is not None:
            self.watcher.on_incident(self._request.note, severity=self.stop_on)

    def must_stop(self) -> bool:
        """Return whether the training must stop now. Call it after each step, on all ranks, watched or not."""
        if self.stop_on is None or self.stopped:
            return False
        self._calls += 1
        self.stopped = self._any_rank_stops() if _ranks() > 1 else self._request.incident is not None
        if self.stopped:
            self._explain()
        return self.stopped

    def _any_rank_stops(self) -> bool:
        """Return whether any rank stops: one that stopped alone would leave the others waiting for it."""
        if self._calls % AGREE_EVERY:
            return False
        # NCCL can only exchange tensors on a GPU.
        device = "cuda" if "nccl" in str(distributed.get_backend()) else "cpu"
        stop: Any = torch.tensor(int(self._request.incident is not None), device=device)
        distributed.all_reduce(stop, distributed.ReduceOp.MAX)
        return bool(stop)

    def _explain(self) -> None:
        incident = self._request.incident
        why = "an incident on another rank" if incident is None else incident.sentence
        logger.warning("hookcore: stop_on=%r stops the training: %s", self.stop_on, why)
        if self.watcher is not None:
            self.watcher._note_stop(f"stop_on={self.stop_on!r} stopped the training: {why}")


def _ranks() -> int:
    known = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if known else 1

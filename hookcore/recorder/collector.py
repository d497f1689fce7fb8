"""What the training thread hands to the recorder's thread at the end of a step: rows, events, and scalars."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from hookcore.recorder.cadence import Cadence
from hookcore.recorder.frames import RawFrame
from hookcore.recorder.parameters import Parameters
from hookcore.recorder.scales import LossScale
from hookcore.recorder.statistics import Statistics
from hookcore.records import Event, Severity

SKIPPED: Final = "hookcore/skipped"  # 1 at a step that a GradScaler skipped
_NAN: Final = float("nan")
_NOTHING: Final = np.empty(0, np.int64)


class Collector:
    """Takes everything that came since it was asked last."""

    def __init__(
        self,
        statistics: Statistics,
        parameters: Parameters,
        cadence: Cadence,
        scale: LossScale,
        lock: threading.RLock,
        step: Callable[[], int],
    ) -> None:
        self._statistics = statistics
        self._parameters = parameters
        self._cadence = cadence
        self._scale = scale
        self._lock = lock
        self._step = step
        self._events: list[Event] = []
        self._scalars: dict[str, Any] = {}

    def emit(self, name: str, message: str, severity: Severity = "info", module: str = "") -> None:
        """Add an event to the next frame. Any thread may call it."""
        with self._lock:
            self._events.append(Event(self._step(), time.time(), name, message, severity, module))

    def add_scalars(self, scalars: dict[str, Any]) -> None:
        """Add the user's numbers to the step that runs."""
        self._scalars |= scalars

    def mark_skipped(self) -> None:
        """Note that a scaler left out the step that runs."""
        self._scalars[SKIPPED] = 1.0
        self._events.append(skipped_step(self._step()))

    def mark_part_skipped(self, raw: RawFrame, step: int) -> None:
        """Note that a part that was taken before is a step that a scaler left out."""
        raw.scalars[SKIPPED] = 1.0
        self._events.append(skipped_step(step))

    @property
    def has_events(self) -> bool:
        """Whether an event waits for a frame."""
        return bool(self._events)

    @property
    def has_news(self) -> bool:
        """Whether an event or a scalar waits for a frame."""
        return bool(self._events or self._scalars)

    def take(self, step: int, elapsed_s: float = _NAN, micro_batches: int = 0) -> RawFrame:
        """Return everything that came since this was called last."""
        statistics, scale = self._statistics, self._scale
        new_taps = statistics.table.take_new()
        raw = RawFrame(
            step=step,
            time_s=time.time(),
            packed=statistics.arena.pack(len(statistics.table.taps)),
            new_taps=new_taps,
            micro_batches=micro_batches,
            elapsed_s=elapsed_s,
            scale=scale.value,
            scaled=scale.kinds,
            scalars=self._scalars | self._cadence.as_scalars(),
            events=tuple(self._events) if self._events else (),
            transfers=statistics.begin_transfers(),
            ratios=self._parameters.ratios(),
        )
        if scale.flag is not None:
            raw.scalars[SKIPPED] = scale.flag
        self._scalars, self._events = {}, []
        return raw

    def take_events(self) -> RawFrame:
        """Return the events alone, as a part of the step that ended last."""
        events, self._events = tuple(self._events), []
        return without_rows(max(0, self._step() - 1), events=events)


def without_rows(step: int, **content: Any) -> RawFrame:
    """Return a part of a step that holds events or scalars only."""
    return RawFrame(step, time.time(), _NOTHING, (), 0, _NAN, **content)


def drop_rows(raw: RawFrame) -> None:
    """Keep of a part only what is not measured."""
    raw.packed, raw.transfers, raw.scale = _NOTHING, (), None


def skipped_step(step: int) -> Event:
    """Return the event of a step that a scaler left out."""
    message = f"GradScaler skipped step {step}: its gradients were not finite, so the weights did not change."
    return Event(step, time.time(), "skipped-step", message, "warning")

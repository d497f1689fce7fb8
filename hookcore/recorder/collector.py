"""The data that the training thread passes to the recorder's thread at the end of a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hookcore.recorder.cadence import Cadence
from hookcore.recorder.foundloss import FoundLoss
from hookcore.recorder.frames import RawFrame, RowFacts
from hookcore.recorder.machine import Sample, Sampler
from hookcore.recorder.parameters import Parameters
from hookcore.recorder.rates import Rates
from hookcore.recorder.replicas import Replicas
from hookcore.recorder.scales import LossScale
from hookcore.recorder.statistics import Statistics
from hookcore.records import Event, Severity, Value
from hookcore.records.flow import Flow
from hookcore.records.vocabulary import SKIPPED

_NAN: Final = float("nan")
_NO_SAMPLE: Final = Sample()


@dataclass(slots=True, eq=False)
class Collector:
    """Collects everything since it was last taken."""

    _statistics: Statistics
    _parameters: Parameters
    _cadence: Cadence
    _scale: LossScale
    _lock: threading.RLock
    _step: Callable[[], int]
    _replicas: Replicas
    _machine: Sampler
    loss: FoundLoss = field(default_factory=FoundLoss, init=False)
    rates: Rates = field(default_factory=Rates, init=False)
    _events: list[Event] = field(default_factory=list, init=False)
    _scalars: dict[str, Any] = field(default_factory=dict, init=False)
    _labels: dict[str, str] = field(default_factory=dict, init=False)
    _flow: Flow | None = field(default=None, init=False)

    def emit(self, name: str, message: str, severity: Severity = "info", module: str = "", **about: Value) -> None:
        """Add an event to the next frame, with what it is `about`. Any thread may call it."""
        with self._lock:
            self._events.append(Event(self._step(), time.time(), name, message, severity, module, about=about))

    def explain(self, captured: bool) -> None:
        """Add why the running step is captured, if it isn't for its number."""
        if captured and self._cadence.reason:
            step = self._step()
            self.emit("out-of-turn", f"step {step} was captured outside the cadence, because {self._cadence.reason}")

    def add_events(self, events: Sequence[Event]) -> None:
        """Add events to the next frame. Any thread may call it."""
        with self._lock:
            self._events += events

    def add_scalars(self, scalars: dict[str, Any]) -> None:
        """Add the user's numbers to the running step."""
        self._scalars |= scalars

    def add_label(self, name: str, text: str) -> None:
        """Add a fact that readers need to the running step."""
        self._labels[name] = text

    def add_flow(self, flow: Flow) -> None:
        """Add which call fed which to the running step."""
        self._flow = flow

    def mark_skipped(self) -> None:
        """Note that a scaler skipped the running step."""
        self._scalars[SKIPPED] = 1.0
        self._events.append(skipped_step(self._step()))

    def mark_part_skipped(self, raw: RawFrame, step: int) -> None:
        """Note that an already taken part is a step that a scaler skipped."""
        raw.scalars[SKIPPED] = 1.0
        self._events.append(skipped_step(step))

    @property
    def has_events(self) -> bool:
        """Return whether an event waits for a frame."""
        return bool(self._events)

    @property
    def has_news(self) -> bool:
        """Return whether an event, a scalar, or a flow waits for a frame."""
        return bool(self._events) or self.has_values

    @property
    def has_values(self) -> bool:
        """Return whether a scalar or a flow waits for a frame."""
        return bool(self._scalars or self._flow)

    def take(self, step: int, elapsed_s: float = _NAN, micro_batches: int = 0, with_rows: bool = True) -> RawFrame:
        """Return everything since the last call. Without rows, nothing was captured: that takes little time."""
        if not with_rows:
            return self._take_logged(step, elapsed_s)
        statistics, scale, machine = self._statistics, self._scale, self._machine.take() or _NO_SAMPLE
        packed = statistics.arena.pack(len(statistics.table.taps))
        raw = RawFrame(
            step=step,
            time_s=time.time(),
            packed=packed,
            micro_batches=micro_batches,
            elapsed_s=elapsed_s,
            scale=scale.value,
            scaled=scale.kinds,
            labels=self._labels | machine.facts,
            scalars=self._scalars | self._cadence.as_scalars() | machine.numbers,
            events=tuple(self._events) if self._events else (),
            transfers=statistics.devices.begin_transfers(),
            flow=self._flow,
            rows=RowFacts(self._parameters.ratios(), self._replicas.owners()),
            # After the rows, because another thread may add a tap in between; last, because they are taken only once.
            new_taps=statistics.table.take_new(),
        )
        if scale.flag is not None:
            raw.scalars[SKIPPED] = scale.flag
        self._scalars, self._events, self._labels, self._flow = {}, [], {}, None
        return raw

    def _take_logged(self, step: int, elapsed_s: float) -> RawFrame:
        machine = self._machine.take()
        raw = RawFrame(step, time.time(), b"", (), 0, elapsed_s, self._scale.value, scalars=self._scalars)
        self._scalars = {}
        if machine is not None:
            raw.labels, raw.scalars = machine.facts, raw.scalars | machine.numbers | self._cadence.as_scalars()
        if self._scale.flag is not None:
            raw.scalars[SKIPPED] = self._scale.flag
        if self._labels:
            raw.labels, self._labels = self._labels | raw.labels, {}
        if self._events:
            raw.events, self._events = tuple(self._events), []
        raw.flow, self._flow = self._flow, None
        return raw

    def take_between(self, time_s: float) -> RawFrame:
        """Return the events and the machine's samples, as a part of the step that ended last, at this time."""
        events, self._events = tuple(self._events), []
        machine = self._machine.take() or _NO_SAMPLE
        return without_rows(
            max(0, self._step() - 1), time_s, events=events, scalars=machine.numbers, labels=machine.facts
        )


def without_rows(step: int, time_s: float, **content: Any) -> RawFrame:
    """Return a part of a step with only events or scalars."""
    return RawFrame(step, time_s, b"", (), 0, _NAN, **content)


def skipped_step(step: int) -> Event:
    """Return the event for a step that a scaler skipped."""
    message = f"GradScaler skipped step {step}: its gradients were not finite, so the weights did not change."
    return Event(step, time.time(), "skipped-step", message, "warning")

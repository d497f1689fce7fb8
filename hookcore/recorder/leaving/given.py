"""Data that the script adds: numbers, media, tensors with names, and the names of a batch; and what it requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from torch import Tensor

from hookcore.errors import ArgumentError
from hookcore.hooks.compiled import guarded
from hookcore.observe.plain import unseen
from hookcore.recorder.calls.dispatch import Dispatcher
from hookcore.recorder.calls.observers import Observers
from hookcore.recorder.calls.placement import Placement
from hookcore.recorder.calls.plans import Plan
from hookcore.recorder.clock.cadence import Between, Jumps
from hookcore.recorder.clock.steps import Steps
from hookcore.recorder.known.models import Models
from hookcore.recorder.leaving.commands import Commands, Control
from hookcore.recorder.leaving.frames import Collector, RawFrame, without_rows
from hookcore.recorder.measured.probes import Probe
from hookcore.recorder.measured.scalars import scalar_of
from hookcore.recorder.measured.snapshots import Outgoing, Send
from hookcore.recorder.measured.taps import TapTable
from hookcore.records import Snapshot, Tap

MAX_WAITING: Final = 256  # items
MAX_WAITING_BYTES: Final = 32 << 20


@dataclass(slots=True, eq=False)
class MediaQueue(Outgoing[Snapshot]):
    """Items in the order in which they were logged. If too many wait, newer ones are dropped and counted."""

    what = "logged media"
    _bytes: int = 0
    _count: threading.Lock = field(default_factory=threading.Lock)  # both threads change the number of bytes

    def put(self, name: str, step: int, media_type: str, data: bytes, whole: int) -> None:
        """Add an item. Called with the recorder's lock."""
        if len(self._waiting) >= MAX_WAITING or self._bytes + len(data) > MAX_WAITING_BYTES:
            self._errors.count_loss("media-dropped", "logged item", "dropped: too many were waiting to be sent")
            return
        with self._count:
            self._bytes += len(data)
        values = np.frombuffer(data, np.uint8)
        tap = Tap(name, "output")
        self._waiting.append(
            Snapshot(tap, step, time.time(), media_type, (max(whole, len(data)),), values, whole > len(data))
        )

    def _send(self, item: Snapshot, send: Send) -> None:
        send(item)

    def _release(self, item: Snapshot) -> None:
        with self._count:
            self._bytes -= item.values.nbytes


MAX_OBSERVED: Final = 4096  # names of tensors that the user observes


@dataclass(slots=True, eq=False)
class Given:
    """Assigns each of these to a step."""

    _steps: Steps
    _dispatcher: Dispatcher
    _collector: Collector
    _models: Models
    _media: MediaQueue
    _jumps: Jumps
    _ship: Callable[[RawFrame], None]
    _lock: AbstractContextManager[Any]
    _between: Between = field(default_factory=Between, init=False)
    _observed: dict[str, Plan] = field(default_factory=dict, init=False)  # the tensors that the user named

    @guarded
    def log(self, scalars: dict[str, Any], ended: bool = False) -> None:
        """Record numbers for the running step, or for the last one if they come between two steps and are about it.

        With `ended`, the caller knows that they are. A tensor on a device is read later, on the recorder's thread.
        """
        numbers = self._numbers_in(scalars)
        with self._lock:
            self._jumps.check(numbers)
            late = self._behind(numbers, ended)
            step = self._steps.clock.step  # after that, which may have noticed the end of one
            self._collector.loss.note_log(step, numbers)
            self._collector.rates.note_log(step, numbers)
            behind = {name: numbers.pop(name) for name in late}
            if behind and self._steps.parts.has_new_held:
                self._steps.parts.add_to_held(behind)
            elif behind:
                self._ship(without_rows(step - 1, time.time(), scalars=behind))
            if numbers:
                self._collector.add_scalars(numbers)

    def _numbers_in(self, scalars: dict[str, Any]) -> dict[str, Any]:
        """Return the values that are single numbers. Each of the others is an error."""
        numbers = {}
        for name, value in scalars.items():
            try:
                numbers[name] = scalar_of(value)
            except Exception as error:
                self._dispatcher.errors.record(f"log {name}", error)
        return numbers

    def _behind(self, names: Iterable[str], ended: bool = False) -> list[str]:
        """Return which of these names belong to the step that ended, not to the running one."""
        clock, begun = self._steps.clock, self._steps.saw_log()
        is_held = self._steps.parts.has_new_held  # a part that may be a step: what follows is after its update
        if begun and not is_held:
            if not clock.step and not clock.passes:
                self._between.note_first(names)
            return []
        if ended:
            return list(names)
        if clock.manual or clock.stepping or clock.reach.many_threads:  # passes are not counted
            return []
        has_run = not self._steps.is_fresh if self._dispatcher.current.captured else None
        if is_held:
            has_run = self._dispatcher.has_outputs()
        return [name for name in names if self._between.is_behind(name, has_run)]

    def observe(self, name: str, tensor: Tensor) -> None:
        """Capture a tensor that the user names."""
        name = str(name)  # the names of taps are sent
        plan = self._observed.get(name)
        if plan is None:
            if len(self._observed) >= MAX_OBSERVED:
                raise ArgumentError(
                    f"observe({name!r}): {MAX_OBSERVED:,} names have been used; use the same name for a tensor in "
                    "every step"
                )
            plan = self._observed[name] = self._models.plan_for_name(name)
        self._dispatcher.saw_output(plan, tensor)

    def add_media(self, name: str, make: Callable[[], tuple[str, bytes, int]]) -> None:
        """Add a logged item: its media type, its bytes, and their number before shortening."""
        with unseen():  # by the user's modes: it may be made of a tensor
            media_type, data, whole = make()
        with self._lock:
            behind = len(self._behind([name]))
            self._media.put(name, max(0, self._steps.clock.step - behind), media_type, data, whole)

    def give_tokens(self, tokens: Any) -> None:
        """Name the positions of the batch that runs next."""
        with self._lock:
            self._steps.steady.leave()
            self._dispatcher.names.give_tokens(tokens, self._steps.clock.step)

    def give_labels(self, labels: Any) -> None:
        """Name its samples."""
        with self._lock:
            self._steps.steady.leave()
            self._dispatcher.names.give_labels(labels, self._steps.clock.step)


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
            self._steps.steady.leave()
            added = self._observers.probes.add(probe)
            if self._steps.is_fresh:
                self._observers.begin_step(self._steps.clock.step, captured=True)
        return added

    def pause(self) -> None:
        """Capture nothing until resumed; steps are still counted. The running step keeps its data so far."""
        with self._lock:
            self._steps.steady.leave()
            self._steps.stop_capture()
            self._control.paused = True
            self._placement.begin_step(self._steps.clock.step, captured=False)

    def resume(self) -> None:
        """Capture again, from the next forward on."""
        self._steps.steady.leave()
        if self._control.paused and self._placement.attached:
            self._placement.begin_step(self._steps.clock.step, captured=True)
        self._control.paused = False

"""Data that the script adds: numbers, media, tensors with names, and the names of a batch; and what it requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from hookcore.errors import ArgumentError
from hookcore.hooks.compiled import guarded
from hookcore.observe.plain import unseen
from hookcore.recorder.calls.plans import Plan
from hookcore.recorder.capture import Capture
from hookcore.recorder.clock.cadence import Between
from hookcore.recorder.clock.steps import Steps
from hookcore.recorder.context import Context
from hookcore.recorder.leaving.frames import without_rows
from hookcore.recorder.measured.probes import Probe
from hookcore.recorder.measured.routers import Router
from hookcore.recorder.measured.scalars import scalar_of
from hookcore.records import Tap

MAX_OBSERVED: Final = 4096  # names of tensors that the user observes


class Given:
    """Assigns each of these to a step."""

    def __init__(self, context: Context, capture: Capture, steps: Steps) -> None:
        self._context, self._cadence, self._lock, self._steps = context, context.cadence, context.lock, steps
        self._dispatcher, self._models, self._media = capture.dispatcher, capture.models, capture.media
        self._samples = capture.samples
        self._collector, self._ship = capture.collector, capture.collector.queue.put
        self._between = Between()
        self._observed: dict[str, Plan] = {}  # the tensors that the user named

    @guarded
    def log(self, scalars: dict[str, Any], ended: bool = False) -> None:
        """Record numbers for the running step, or for the last one if they come between two steps and are about it.

        With `ended`, the caller knows that they are. A tensor on a device is read later, on the recorder's thread.
        """
        numbers = self._numbers_in(scalars)
        with self._lock:
            self._cadence.look_for_jumps(numbers)
            captured = self._context.current.captured

            def is_behind(name: str) -> bool:
                return ended or self._between.is_behind(name, self._dispatcher.has_outputs() if captured else None)

            if self._steps.steady.note_logged(numbers, is_behind):
                return
            late = self._behind(numbers, ended)
            step = self._context.step  # after that, which may have noticed the end of one
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
                self._context.errors.record(f"log {name}", error)
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
        has_run = not self._steps.is_fresh if self._context.current.captured else None
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
        values = np.frombuffer(data, np.uint8)
        self.add_values(name, {Tap(name, "output"): values}, media_type, (max(whole, len(values)),))

    def add_values(self, name: str, found: dict[Tap, NDArray[Any]], dtype: str, shape: tuple[int, ...]) -> int:
        """Add values that are ready, each as a snapshot. Return their step."""
        with self._lock:
            step = max(0, self._context.step - len(self._behind([name])))
            for tap, values in found.items():
                self._media.put(tap, step, dtype, values, shape)
            return step

    def give_tokens(self, tokens: Any) -> None:
        """Name the positions of the batch that runs next."""
        with self._lock:
            self._steps.steady.leave()
            self._dispatcher.names.give_tokens(tokens, self._context.step)

    def give_samples(self, ids: Any) -> None:
        """Name its samples in the ledger."""
        with self._lock:
            if self._context.current.pending:
                self._steps.saw_log()
            self._samples.give(ids, self._context.step)

    def give_labels(self, labels: Any) -> None:
        """Name its samples."""
        with self._lock:
            self._steps.steady.leave()
            self._dispatcher.names.give_labels(labels, self._context.step)


class Requests:
    """Takes effect in the running step if it hasn't begun, whereas commands wait for its end."""

    def __init__(self, context: Context, capture: Capture, steps: Steps) -> None:
        self._context, self._lock, self._steps = context, context.lock, steps
        self._commands, self._observers, self._placement = capture.commands, capture.observers, capture.placement

    @property
    def taps(self) -> Sequence[Tap]:
        """The taps that were captured so far, by their numbers."""
        return self._context.statistics.table.shown_taps()

    def take_snapshot(self, tap: Tap) -> None:
        """Take a snapshot at the tensor's next call."""
        if not self._commands.ask(tap):
            return
        with self._lock:
            self._steps.steady.leave()
            if self._steps.is_fresh:
                self._observers.begin_snapshots()

    def add_probe(self, probe: Probe) -> bool:
        """Let a function look at tensors. Return False if there is no room."""
        with self._lock:
            self._steps.steady.leave()
            added = self._observers.probes.add(probe)
            if self._steps.is_fresh:
                self._observers.begin_step(self._context.step, captured=True)
        return added

    def add_router(self, module: nn.Module, router: Router) -> bool:
        """Count the choices of a module. Return False if it is part of no watched model."""
        with self._lock:
            self._steps.steady.leave()
            added = self._observers.routers.add(module, router)
            if self._steps.is_fresh:
                self._observers.begin_step(self._context.step, captured=True)
        return added

    def pause(self) -> None:
        """Capture nothing until resumed; steps are still counted. The running step keeps its data so far."""
        with self._lock:
            self._steps.steady.leave()
            self._steps.stop_capture()
            self._context.paused = True
            self._placement.begin_step(self._context.step, captured=False)

    def resume(self) -> None:
        """Capture again, from the next forward on."""
        self._steps.steady.leave()
        if self._context.paused and self._placement.attached:
            self._placement.begin_step(self._context.step, captured=True)
        self._context.paused = False

"""Data that the script adds: numbers, media, tensors with names, and the names of a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from hookcore.errors import ArgumentError
from hookcore.hooks.compiled import guarded
from hookcore.observe.plain import unseen
from hookcore.recorder.between import Between
from hookcore.recorder.collector import Collector, without_rows
from hookcore.recorder.dispatch import Dispatcher
from hookcore.recorder.frames import RawFrame
from hookcore.recorder.jumps import Jumps
from hookcore.recorder.media import MediaQueue
from hookcore.recorder.models import Models
from hookcore.recorder.plans import Plan
from hookcore.recorder.scalars import scalar_of
from hookcore.recorder.steps import Steps

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
            self._dispatcher.names.give_tokens(tokens, self._steps.clock.step)

    def give_labels(self, labels: Any) -> None:
        """Name its samples."""
        with self._lock:
            self._dispatcher.names.give_labels(labels, self._steps.clock.step)

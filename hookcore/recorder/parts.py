"""Parts of steps, held until it is known whether they are steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hookcore.recorder.cadence import Cadence
from hookcore.recorder.collector import Collector
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.frames import RawFrame
from hookcore.recorder.scales import LossScale


@dataclass(slots=True, eq=False)
class Parts:
    """Cuts the running step into parts, and ships them when the clock has decided what they are."""

    _current: CurrentStep
    _collector: Collector
    _cadence: Cadence
    _scale: LossScale
    _ship: Callable[[RawFrame], None]
    _held: list[list[RawFrame]] = field(default_factory=list, init=False)
    open: list[RawFrame] = field(default_factory=list, init=False)  # of the newest part, which isn't held yet
    is_cut: bool = field(default=False, init=False)  # whether the arena holds only data after the open ones
    has_new_held: bool = field(default=False, init=False)  # whether no backward pass has ended since a part was held

    def saw_pass(self) -> None:
        """Note that the arena holds data of the open part again."""
        self.is_cut = self.has_new_held = False

    def cut(self, step: int) -> None:
        """Separate the data so far from what follows."""
        if not self.is_cut:
            self.open.append(self._collector.take(step))
            self.is_cut = True

    def stop(self, step: int) -> None:
        """Separate the data so far, because capture stops inside the step."""
        self.is_cut = False  # modules may have run since the last cut
        self.cut(step)
        self.open[-1].micro_batches += self._current.take_backwards()

    def hold(self, step: int) -> None:
        """Close the open part, which may become a step."""
        if not self.is_cut:
            self.open.append(self._collector.take(step))
        self.open[-1].micro_batches += self._current.take_backwards()
        self._held.append(self.open)
        self.open, self.is_cut, self.has_new_held = [], False, True

    def add_to_held(self, scalars: dict[str, Any]) -> None:
        """Add numbers to the part that was held last."""
        self._held[-1][-1].scalars.update(scalars)

    def release(self, step: int, as_steps: bool, scales: Sequence[float] = ()) -> int:
        """Ship all parts, as parts of the running step or as steps from it on. Return the number of steps.

        `scales`: a scaler skipped these steps, and the loss was multiplied by these scales; NaN if unknown.
        """
        held, self._held, self.has_new_held = self._held, [], False
        for offset, parts in enumerate(held):
            if scales:
                self._collector.mark_part_skipped(parts[-1], step + offset)
            scale = scales[offset] if scales else None if as_steps else self._scale.value
            self._put(parts, step + (offset if as_steps else 0), as_steps, scale)
        if not as_steps:
            self._current.backwards += sum(parts[-1].micro_batches for parts in held)
        steps = len(held) if as_steps else 0
        self._put(self.open, step + steps, as_steps, self._scale.value)
        self.open = []
        return steps

    def _put(self, parts: list[RawFrame], step: int, as_steps: bool, scale: Any) -> None:
        for part in parts:
            if part.step != step:
                part.events = tuple(
                    replace(each, step=step) if each.step == part.step else each for each in part.events
                )
            part.step, part.scale = step, scale
            # Captured only while it wasn't known to be a step, or with gradients that have an unknown scale.
            unknown = isinstance(scale, float) and math.isnan(scale)  # don't wait for one on a device
            if unknown or (as_steps and not self._cadence.chooses(step)):
                part.drop_rows()
            self._ship(part)

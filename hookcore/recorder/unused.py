"""Forward passes that no backward() reaches, such as that of a skipped loss: noticed by the gradients a frame lacks.

Nothing distinguishes such a pass from one whose output the script detached on purpose. Its values and the numbers of
the calls therefore stay as they are, and an event says so. Runs on the recorder's thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.recorder.plans import Plan, PlanTable
from hookcore.records import STATS, Event, Frame, Tap

MAX_KNOWN: Final = 16  # sets of taps
MAX_REPORTED: Final = 16  # events of one model
UNUSED: Final = "in some steps, backward() did not reach one of its calls: see the event unused-forward"
_PARTS: Final = STATS.index("parts")

_Rows = dict[tuple[str, str], list[int]]  # by path and place in the output, those of all calls


class _Outputs:
    """The outputs that get gradients in a frame: each place in what a module returns, with all of its calls."""

    def __init__(self, numbers: Sequence[int], taps: Sequence[Tap], plans: dict[str, Plan]) -> None:
        outputs, gradients = _Rows(), _Rows()
        for row, number in enumerate(numbers):
            tap = taps[number]
            if tap.phase == "train" and tap.kind in ("output", "output_grad") and tap.module in plans:
                rows = outputs if tap.kind == "output" else gradients
                rows.setdefault((tap.module, tap.index), []).append(row)
        both = [key for key in outputs if key in gradients]
        self.plans = [plans[path] for path, _ in both]
        places = [[(row, 1.0) for row in outputs[key]] + [(row, -1.0) for row in gradients[key]] for key in both]
        pairs = np.array([pair for place in places for pair in place]).reshape(-1, 2)
        self._rows, self._signs = pairs[:, 0].astype(np.intp), pairs[:, 1].copy()
        self._first = np.cumsum([0, *map(len, places)])[:-1]  # of each place
        self._parts, self._lacking = b"", np.empty(0, bool)  # of the newest frame

    def lacking(self, parts: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return at which places fewer gradients arrived than tensors were returned."""
        if (found := parts.tobytes()) != self._parts:  # most frames have the same parts
            self._parts = found
            self._lacking = np.add.reduceat(parts[self._rows] * self._signs, self._first) > 0
        return self._lacking


@dataclass(slots=True, eq=False)
class UnusedForwards:
    """Compares how many outputs and how many gradients of each module a frame has."""

    _plans: PlanTable
    _known: dict[int, tuple[object, _Outputs]] = field(default_factory=dict, init=False)  # by id of an array of taps
    _before: set[str] = field(default_factory=set, init=False)  # names of models with such a pass in the last frame
    _reported: Counter[str] = field(default_factory=Counter, init=False)  # by name of a model

    def find(self, frame: Frame, taps: Sequence[Tap]) -> tuple[Event, ...]:
        """Return an event for each model that has such a pass in this frame, and had none in the frame before."""
        outputs = self._outputs_of(frame, taps)
        if not outputs.plans:
            return ()
        lacking = outputs.lacking(frame.stats[:, _PARTS])
        if not np.count_nonzero(lacking):  # which takes a fraction of what `any` takes for so few
            self._before.clear()
            return ()
        return tuple(self._report(frame, outputs.plans, lacking.tolist()))

    def _outputs_of(self, frame: Frame, taps: Sequence[Tap]) -> _Outputs:
        known = self._known.get(id(frame.taps))  # which many frames share
        if known is None:
            if len(self._known) == MAX_KNOWN:
                self._known.clear()
            plans = {plan.path: plan for plan in self._plans.live()}
            known = self._known[id(frame.taps)] = frame.taps, _Outputs(frame.taps.tolist(), taps, plans)
        return known[1]

    def _report(self, frame: Frame, plans: Sequence[Plan], lacking: Sequence[bool]) -> Iterator[Event]:
        # One module may have an output that nothing uses. A pass wasn't reached if all modules lack a gradient.
        fine = {plan.root.name for plan, lacks in zip(plans, lacking, strict=True) if not lacks}
        known, self._before = self._before, {plan.root.name for plan in plans} - fine
        for plan in plans:
            model = plan.root.name
            if model in fine:
                continue
            plan.note_reason(UNUSED)
            if model not in known and self._reported[model] < MAX_REPORTED:
                known = known | {model}
                self._reported[model] += 1
                text = (
                    f"backward() did not reach a forward pass of {model or 'the model'} in step {frame.step}, as if a "
                    "loss was skipped, an output detached, or autograd.grad used. The values of that pass are part of "
                    "the step, without gradients, and later calls have the next number."
                )
                yield Event(frame.step, frame.time_s, "unused-forward", text, "info", plan.path)

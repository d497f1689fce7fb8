"""When to learn which call of a module feeds which: in the first captured step, and when the structure changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import numpy as np
from torch import Tensor, nn

from hookcore.hooks.internals import current_graph_task, keywords_of, tracing_state
from hookcore.recorder.calls import Call
from hookcore.recorder.keeper import Emit
from hookcore.recorder.lesson import Lesson, TooLargeError
from hookcore.recorder.plans import Plan
from hookcore.recorder.statistics import Statistics
from hookcore.records import Frame, Tap
from hookcore.records.flow import Flow, FlowCall

MAX_FLOWS: Final = 16  # that one run learns
MAX_TRIES: Final = 32  # to learn
MAX_PATTERNS: Final = 256  # different sets of tensors in a frame that are remembered
_ABOUT_CALLS: Final = frozenset(("output", "output_grad", "input", "input_grad"))


class Flows:
    """Decides when to learn: an observer of calls in the steps that teach something."""

    wants_inputs = False  # it learns of calls by `entered`, without other hooks

    def __init__(
        self, statistics: Statistics, max_calls: int, changes: Callable[[], int], emit: Emit, enabled: bool
    ) -> None:
        self._table = statistics.table
        self._max_calls = max_calls
        self._changes, self._emit = changes, emit
        self._changes_seen = 0
        self._wanted = enabled
        self._tries = 0 if enabled else MAX_TRIES
        self._lesson: Lesson | None = None
        self._observes = False
        self._known: set[tuple[FlowCall, ...]] = set()
        self._taught = -1  # the newest step that taught something
        self._patterns: set[bytes] = set()  # the tensors of calls in frames that were seen
        self._about_calls = np.empty(0, bool)  # by number of the tap
        self._taps_seen = 0
        self._last_taps: object = None  # of the newest frame: many frames share one array

    @property
    def is_learning(self) -> bool:
        """Whether the running step teaches something."""
        return self._lesson is not None

    def begin_step(self, captured: bool) -> bool:
        """Decide whether to learn in this step. Return whether that changed who observes calls."""
        before, self._lesson = self._observes, None
        if captured and self._changes_seen != (changes := self._changes()):
            self._changes_seen, self._wanted = changes, True
        if captured and self._wanted and self._tries < MAX_TRIES and len(self._known) < MAX_FLOWS:
            self._wanted = False
            self._tries += 1
            self._lesson = Lesson(self._max_calls)
        self._observes = self._lesson is not None
        return before or self._observes

    def end_step(self, step: int) -> Flow | None:
        """Return what the step taught, if that is new."""
        lesson, self._lesson = self._lesson, None
        if lesson is None:
            return None
        if lesson.thread != threading.get_ident():  # its calls may still run: several threads train
            self._wanted = True
            return None
        self._taught = step
        try:
            flow = lesson.flow(step)
        except TooLargeError as error:
            self._give_up(str(error))
            return None
        if not flow.calls or flow.calls in self._known:
            return None
        self._known.add(flow.calls)
        if len(self._known) == MAX_FLOWS:
            known = f"it is known for {MAX_FLOWS} structures of the model, and no more are learned"
            self._emit("flow-limit", f"the data flow between modules has reached its limit: {known}")
        return flow

    def _give_up(self, why: str) -> None:
        self._lesson, self._tries = None, MAX_TRIES
        self._emit("flow-unknown", f"the data flow between modules is unknown, because {why}")

    def saw_frame(self, frame: Frame) -> None:
        """Notice that other modules ran than before. Called on the recorder's thread."""
        if self._tries >= MAX_TRIES or frame.taps is self._last_taps:
            return
        self._last_taps = frame.taps
        if len(self._table.numbers) > self._taps_seen:
            numbers, taps = self._table.numbers[:], self._table.taps[:]  # each tap is there before its number
            self._taps_seen = len(numbers)
            shown = [tap.kind in _ABOUT_CALLS for tap, number in zip(taps, numbers, strict=False) if number >= 0]
            self._about_calls = np.array(shown, bool)
        known = frame.taps[frame.taps < len(self._about_calls)]
        pattern = np.sort(known[self._about_calls[known]]).tobytes()
        if not pattern or pattern in self._patterns:
            return
        if len(self._patterns) < MAX_PATTERNS:
            self._patterns.add(pattern)
            self._wanted = self._wanted or frame.step != self._taught

    # Calls

    def wants(self, plan: Plan) -> bool:
        """Return whether it follows this module: all of them are part of the flow."""
        return True

    def entered(self, plan: Plan, module: nn.Module, args: Any) -> None:
        """Handle a call that is about to run."""
        lesson = self._lesson
        if lesson is None or lesson.thread != threading.get_ident() or tracing_state() or current_graph_task() != -1:
            return
        began = perf_counter()
        try:
            lesson.enter(plan, (args, keywords_of(module)))
        except Exception as error:
            self._give_up(f"hookcore failed on the inputs of {plan.path}: {type(error).__name__}: {error}")
        lesson.seconds += perf_counter() - began

    def saw_inputs(self, call: Call) -> None:
        """Do nothing: `entered` comes earlier."""

    def saw_outputs(self, call: Call) -> None:
        """Handle a call that returned."""
        lesson = self._lesson
        if lesson is None or lesson.thread != threading.get_ident() or call.again or call.traced:
            return
        began = perf_counter()
        try:
            lesson.leave(call)
        except TooLargeError as error:
            self._give_up(str(error))
        except Exception as error:
            self._give_up(f"hookcore failed on the outputs of {call.plan.path}: {type(error).__name__}: {error}")
        lesson.seconds += perf_counter() - began

    def forget(self, plan: Plan) -> None:
        """Forget the running call of a module: it raised, or its outputs have no values."""
        lesson = self._lesson
        if lesson is not None and lesson.thread == threading.get_ident():
            lesson.forget(plan)

    def saw_gradient(self, plan: Plan, tap: Tap, gradient: Tensor) -> None:
        """Do nothing: the forward pass says it all."""

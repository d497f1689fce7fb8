"""Where the time of a step goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from hookcore.hooks.compiled import guard_functions
from hookcore.records.vocabulary import (
    TIME_BACKWARD,
    TIME_BEFORE,
    TIME_FORWARD,
    TIME_HOOKCORE,
    TIME_LOADING,
    TIME_OPTIMIZER,
    TIME_OTHER,
)


class Meter:
    """Adds up the time between `enter` and `leave`. Only a few captured steps are timed, because timing also costs."""

    __slots__ = ("_clock", "_depth", "_entered_at", "_spent_s")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._depth = 0
        self._entered_at = 0.0
        self._spent_s = 0.0

    def enter(self) -> None:
        """Start a call of hookcore."""
        if not self._depth:
            self._entered_at = self._clock()
        self._depth += 1

    def leave(self) -> None:
        """End it. A call that began before the meter was installed counts for nothing."""
        if self._depth:
            self._depth -= 1
            if not self._depth:
                self._spent_s += self._clock() - self._entered_at

    def take(self, now: float) -> float:
        """Return the time until now, including the running call. Who also reads the clock reads it once for both."""
        running = now - self._entered_at if self._depth else 0.0
        return self._spent_s + running


guard_functions(Meter.enter, Meter.leave)  # the extension calls them

FIRST_S: Final = 0.25  # between the first two steps that are measured; then twice as long each time,
EVERY_S: Final = 2.0  # until it is this long

_LOADED: Final = "loaded"  # the time of batches that no model was called with yet: they may be an evaluation's


_PARTS: Final = (TIME_LOADING, _LOADED, TIME_BEFORE, TIME_FORWARD, TIME_BACKWARD, TIME_OPTIMIZER, TIME_OTHER)


class StepTimes:
    """The parts of one step, as seen by the training thread.

    If a meter is there, the time of hookcore's own code is in no other part. If they are uncertain, there are none:
    after an exception in the model, without any call of it, or if the end of the step was noticed only later.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._now = clock
        self.prompt = False  # whether the step that ends now is known to end now
        self.parts: dict[str, float] | None = None  # of the running step; None if it isn't measured
        self._stack: list[str] = []  # the running parts; those inside others are no longer in these
        self._base = TIME_BEFORE  # of the time outside of all parts
        self._model = 0  # the running model, by id
        self._evaluates = False  # whether the loaded data belongs to an evaluation, as far as is known
        self._has_loader = False  # whether the training has got batches from a DataLoader
        self._meter: Meter | None = None
        self._mark = self._spent = 0.0  # when the running part began, by both clocks
        self._thread = 0
        self.due_at, self._pause = float("-inf"), FIRST_S

    def due(self) -> bool:
        """Return whether to measure the step that begins, if it is captured."""
        return self.prompt and self._now() >= self.due_at

    def begin(self, meter: Meter | None) -> None:
        """Start to measure a step."""
        now = self._now()
        self.due_at, self._pause = now + self._pause, min(EVERY_S, 2 * self._pause)
        self.parts = dict.fromkeys(_PARTS, 0.0)
        self._stack, self._base, self._model, self._evaluates = [], TIME_BEFORE, 0, False
        self._meter, self._mark, self._spent = meter, now, 0.0
        self._thread = threading.get_ident()

    @property
    def active(self) -> bool:
        """Whether this thread's step is measured."""
        return self.parts is not None and threading.get_ident() == self._thread

    def enter(self, part: str) -> None:
        """Start a part of the step, maybe inside another one."""
        self.prompt = False
        if self.parts is not None and self.active:
            self._turn()
            self._stack.append(part)

    def leave(self, part: str) -> None:
        """End it. This may also be the end of the step."""
        self.prompt = True
        if self.parts is None or not self.active:
            return
        self._turn()
        stack = self._stack  # another thread may begin a new one
        if stack and stack[-1] == part:
            stack.pop()
        else:
            self.parts = None

    def enter_model(self, model: int) -> None:
        """Start the call of a model with gradients; those inside a model's call or a backward pass are part of it."""
        if self.parts is None or not self.active:
            return
        running = self._stack[-1:]
        if running in ([], [TIME_OPTIMIZER]):
            self.enter(TIME_FORWARD)
            self._assign_loaded(TIME_LOADING)
            self._model, self._base, self._evaluates = model, TIME_OTHER, False
        elif running == [TIME_FORWARD] and model == self._model:  # its last call raised, so its end is unknown
            self.parts = None

    def leave_model(self, model: int) -> None:
        """End it."""
        if model == self._model and self.active and self._stack[-1:] == [TIME_FORWARD]:
            self.leave(TIME_FORWARD)
            self._model, self.prompt = 0, False

    def saw_evaluation(self) -> None:
        """Note a call of a model without gradients. Unless one with gradients follows, it used the loaded data."""
        parts = self.parts
        if self.active and parts is not None and not self._stack:
            self._evaluates = parts[_LOADED] > 0

    def enter_loading(self) -> None:
        """Start to load data, maybe inside of another loader."""
        if self.active:
            self._turn()
            if self._evaluates:
                self._assign_loaded(self._base)
            self._stack.append(_LOADED)

    def leave_loading(self, brought: bool, for_training: bool) -> None:
        """End it. `brought`: there is a batch, which `for_training` can't be for, if gradients are disabled."""
        if not self.active:
            return
        self._turn()
        if self._stack[-1:] != [_LOADED]:
            self.parts = None
            return
        self._stack.pop()
        if self._evaluates and not brought:  # the evaluation has had its last batch
            self._assign_loaded(self._base)
        self._evaluates = brought and not for_training

    def take(self, is_known: bool) -> dict[str, float]:
        """End the step. Return its parts in seconds, or nothing if they aren't known."""
        parts, meter = self.parts, self._meter
        if parts is not None:
            self._turn()
        self.parts = self._meter = None
        if parts is None or not is_known or not self.prompt or self._stack or self._base == TIME_BEFORE:
            return {}
        parts[self._base if self._evaluates else TIME_LOADING] += parts.pop(_LOADED)
        self._has_loader = self._has_loader or parts[TIME_LOADING] > 0
        if not self._has_loader:
            del parts[TIME_LOADING]
        return parts if meter is None else parts | {TIME_HOOKCORE: self._spent}

    def _assign_loaded(self, part: str) -> None:
        """Count the time of loading as a part of the step."""
        parts = self.parts
        if parts is not None:
            parts[part] += parts[_LOADED]
            parts[_LOADED] = 0.0

    def _turn(self) -> None:
        """Add the time since the last call to the running part, without that of hookcore's code."""
        parts, stack = self.parts, self._stack
        if parts is None:  # another thread has ended the step
            return
        now = self._now()  # the same for both, or the part would be too short if the process waited in between
        spent = 0.0 if self._meter is None else self._meter.take(now)
        parts[stack[-1] if stack else self._base] += now - self._mark - (spent - self._spent)
        self._mark, self._spent = now, spent

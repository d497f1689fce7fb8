"""Where the time of a step goes, and whether the training waits in the middle of its loop."""

from __future__ import annotations

import dis
import os
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Final

import torch

import hookcore
from hookcore.records.vocabulary import (
    ENDED,
    STALLED,
    TIME_BACKWARD,
    TIME_BEFORE,
    TIME_FORWARD,
    TIME_HOOKCORE,
    TIME_LOADING,
    TIME_OPTIMIZER,
    TIME_OTHER,
)

# Notices that the training waits in the middle of its loop, for far longer than it ever took for a step.
#
# The recorder's thread looks at the stack of the training thread, but only if no step has ended for a while. What
# evaluates or computes moves from line to line and takes processor time, and a loop that has ended is not on the stack.

MIN_S: Final = 300.0  # without a step, and without any movement
FACTOR: Final = 4.0  # times the longest time that the run ever needed for a step, its first one included
FIRST_STEP: Final = 16  # from which on that is known
MARK_EVERY: Final = 256  # steps between two notes of where the loop is; fewer at first
QUIET_S: Final = 30.0  # without a step, before the stack is looked at
LOOK_S: Final = 5.0  # between two looks; a thread that looks later was stopped itself
WORK: Final = 1e-3  # share of the time for which a thread that waits may run: to poll
MAX_FRAMES: Final = 64  # of the user's

_TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_OURS: Final = os.path.dirname(hookcore.__file__) + os.sep
_PYTHON: Final = sysconfig.get_path("stdlib") + os.sep
_PACKAGES: Final = "site-packages", "dist-packages"
# Names of functions and files in which a single call may take long, or waits for a rank that does something alone.
_BUSY: Final = re.compile(
    r"(^|[^a-z])(eval|valid|save|checkpoint|dump|export|upload|push|compile|serialization|dynamo|inductor|pdb|bdb"
    r"|barrier|broadcast|gather|wait_for_everyone)"
)

Place = tuple[CodeType, int]  # code, and the instruction that runs


class Stalls:
    """Watches over one training. `rests` says whether steps aren't expected now: paused, or evaluating."""

    def __init__(
        self, now: Callable[[], float], step: Callable[[], int], rests: Callable[[], bool], emit: Callable[..., None]
    ) -> None:
        self._now, self._step, self._rests, self._emit = now, step, rests, emit
        self._ended_at = now()
        self._longest_s = 0.0
        self._chain: tuple[Place, ...] = ()  # where the training thread was when a step ended, innermost first
        self._thread = 0
        self._clock: int | None = None  # of the thread's processor time
        self._looked_at = float("-inf")
        self._since = self._spent_before = float("inf")  # since when nothing has moved, and the processor time then
        self._places: tuple[Place, ...] | None = None
        self._reported = False

    def mark(self, step: int) -> None:
        """Note now and then where the training loop is. Called by its thread when a step ends."""
        if step % MARK_EVERY and step & (step - 1):
            return
        self._chain = tuple((frame.f_code, frame.f_lasti) for frame in _frames(sys._getframe(1)))
        self._thread = threading.get_ident()
        if hasattr(time, "pthread_getcpuclockid"):  # elsewhere, nothing is judged
            self._clock = time.pthread_getcpuclockid(self._thread)

    def look(self, ended_at: float) -> None:
        """Look whether the training still moves; `ended_at` is when its newest step ended. Called every few ms."""
        if ended_at != ended_at:  # no step yet
            return
        if ended_at != self._ended_at:
            self._longest_s = max(self._longest_s, ended_at - self._ended_at)
            self._ended_at, self._places = ended_at, None
            if self._reported:
                self._reported = False
                self._emit(ENDED[STALLED], "the training continues")
            return
        now = self._now()
        if now - ended_at < QUIET_S or now - self._looked_at < LOOK_S or self._step() < FIRST_STEP:
            return
        was_stopped, self._looked_at = now - self._looked_at > 3 * LOOK_S, now
        self._see(now, was_stopped)

    def _see(self, now: float, was_stopped: bool) -> None:
        frames = [] if self._rests() else self._frames_in_loop()
        places = tuple((frame.f_code, frame.f_lasti) for frame in _until_library(frames))
        spent = self._spent()
        works = not spent - self._spent_before <= WORK * (now - self._since)
        if not places or was_stopped or works or places != self._places or any(map(_is_busy, frames[1:])):
            self._places, self._since, self._spent_before = places, now, spent
        elif not self._reported and now - self._since >= max(MIN_S, FACTOR * self._longest_s):
            self._reported = True
            idle = now - self._ended_at
            message = (
                f"no step has ended for {_time(idle)}: the training is waiting in {_where(frames)}; its longest step "
                f"took {_time(self._longest_s)}"
            )
            self._emit(STALLED, message)

    def _spent(self) -> float:
        """Return the processor time of the training thread; NaN if it isn't known."""
        try:
            return float("nan") if self._clock is None else time.clock_gettime(self._clock)
        except OSError:  # the thread has ended
            return float("nan")

    def _frames_in_loop(self) -> list[FrameType]:
        """Return the frames of the training thread, from that of its loop inward; none if it isn't in the loop."""
        loop = next(((code, span) for code, at in self._chain if (span := _loop_around(code, at)) is not None), None)
        frames = list(_frames(sys._current_frames().get(self._thread), skips=False))
        if loop is None:
            return []
        code, (first, last) = loop
        for place, frame in enumerate(frames):
            if frame.f_code is code and first <= frame.f_lasti <= last:
                return frames[place::-1]
        return []


def _frames(frame: FrameType | None, skips: bool = True) -> Iterator[FrameType]:
    """Return a frame and those that called it, without those of torch and hookcore if `skips`."""
    for _ in range(4 * MAX_FRAMES):
        if frame is None:
            return
        if not skips or not frame.f_code.co_filename.startswith((_TORCH, _OURS)):
            yield frame
        frame = frame.f_back


def _until_library(frames: list[FrameType]) -> list[FrameType]:
    """Return the frames before the first one of torch, hookcore, or Python itself, which may move during a wait."""
    for place, frame in enumerate(frames):
        name = frame.f_code.co_filename
        if name.startswith((_TORCH, _OURS)) or (
            name.startswith(_PYTHON) and not name[len(_PYTHON) :].startswith(_PACKAGES)
        ):
            return frames[:place]
    return frames


def _loop_around(code: CodeType, at: int) -> tuple[int, int] | None:
    """Return the outermost loop of a function that contains an instruction."""
    loops = [
        (jump.argval, jump.offset)
        for jump in dis.get_instructions(code)
        if jump.opcode in _JUMPS and isinstance(jump.argval, int) and jump.argval <= at <= jump.offset
    ]
    return (min(first for first, _ in loops), max(last for _, last in loops)) if loops else None


_JUMPS: Final = frozenset((*dis.hasjrel, *dis.hasjabs))


def _is_busy(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    file = path[len(_TORCH) :] if path.startswith(_TORCH) else os.path.basename(path)
    return any(_BUSY.search(name.casefold()) for name in (frame.f_code.co_name, file))


def _where(frames: list[FrameType]) -> str:
    """Return the user's line, and the function that waits if that is another one."""
    own, last = _until_library(frames)[-1], frames[-1]
    line = f"{os.path.basename(own.f_code.co_filename)}:{own.f_lineno} ({own.f_code.co_name})"
    return line if last is own else f"{line}, in {os.path.basename(last.f_code.co_filename)} ({last.f_code.co_name})"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.0f} min"


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

    def time(self, call: Callable[..., Any], *args: Any) -> None:
        """Call a function between the two."""
        self.enter()
        try:
            call(*args)
        finally:
            self.leave()


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
        self._parts: dict[str, float] | None = None  # of the running step, if it is measured
        self._stack: list[str] = []  # the running parts; those inside others are no longer in these
        self._base = TIME_BEFORE  # of the time outside of all parts
        self._model = 0  # the running model, by id
        self._evaluates = False  # whether the loaded data belongs to an evaluation, as far as is known
        self._has_loader = False  # whether the training has got batches from a DataLoader
        self._meter: Meter | None = None
        self._mark = self._spent = 0.0  # when the running part began, by both clocks
        self._thread = 0
        self._due_at, self._pause = float("-inf"), FIRST_S

    def due(self) -> bool:
        """Return whether to measure the step that begins, if it is captured."""
        return self.prompt and self._now() >= self._due_at

    def begin(self, meter: Meter | None) -> None:
        """Start to measure a step."""
        now = self._now()
        self._due_at, self._pause = now + self._pause, min(EVERY_S, 2 * self._pause)
        self._parts = dict.fromkeys(_PARTS, 0.0)
        self._stack, self._base, self._model, self._evaluates = [], TIME_BEFORE, 0, False
        self._meter, self._mark, self._spent = meter, now, 0.0
        self._thread = threading.get_ident()

    @property
    def active(self) -> bool:
        """Whether this thread's step is measured."""
        return self._parts is not None and threading.get_ident() == self._thread

    def enter(self, part: str) -> None:
        """Start a part of the step, maybe inside another one."""
        self.prompt = False
        if self._parts is not None and self.active:
            self._turn()
            self._stack.append(part)

    def leave(self, part: str) -> None:
        """End it. This may also be the end of the step."""
        self.prompt = True
        if self._parts is None or not self.active:
            return
        self._turn()
        stack = self._stack  # another thread may begin a new one
        if stack and stack[-1] == part:
            stack.pop()
        else:
            self._parts = None

    def enter_model(self, model: int) -> None:
        """Start the call of a model with gradients; those inside a model's call or a backward pass are part of it."""
        if self._parts is None or not self.active:
            return
        running = self._stack[-1:]
        if running in ([], [TIME_OPTIMIZER]):
            self.enter(TIME_FORWARD)
            self._assign_loaded(TIME_LOADING)
            self._model, self._base, self._evaluates = model, TIME_OTHER, False
        elif running == [TIME_FORWARD] and model == self._model:  # its last call raised, so its end is unknown
            self._parts = None

    def leave_model(self, model: int) -> None:
        """End it."""
        if model == self._model and self.active and self._stack[-1:] == [TIME_FORWARD]:
            self.leave(TIME_FORWARD)
            self._model, self.prompt = 0, False

    def saw_evaluation(self) -> None:
        """Note a call of a model without gradients. Unless one with gradients follows, it used the loaded data."""
        parts = self._parts
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
            self._parts = None
            return
        self._stack.pop()
        if self._evaluates and not brought:  # the evaluation has had its last batch
            self._assign_loaded(self._base)
        self._evaluates = brought and not for_training

    def take(self, is_known: bool) -> dict[str, float]:
        """End the step. Return its parts in seconds, or nothing if they aren't known."""
        parts, meter = self._parts, self._meter
        if parts is not None:
            self._turn()
        self._parts = self._meter = None
        if parts is None or not is_known or not self.prompt or self._stack or self._base == TIME_BEFORE:
            return {}
        parts[self._base if self._evaluates else TIME_LOADING] += parts.pop(_LOADED)
        self._has_loader = self._has_loader or parts[TIME_LOADING] > 0
        if not self._has_loader:
            del parts[TIME_LOADING]
        return parts if meter is None else parts | {TIME_HOOKCORE: self._spent}

    def _assign_loaded(self, part: str) -> None:
        """Count the time of loading as a part of the step."""
        parts = self._parts
        if parts is not None:
            parts[part] += parts[_LOADED]
            parts[_LOADED] = 0.0

    def _turn(self) -> None:
        """Add the time since the last call to the running part, without that of hookcore's code."""
        parts, stack = self._parts, self._stack
        if parts is None:  # another thread has ended the step
            return
        now = self._now()  # the same for both, or the part would be too short if the process waited in between
        spent = 0.0 if self._meter is None else self._meter.take(now)
        parts[stack[-1] if stack else self._base] += now - self._mark - (spent - self._spent)
        self._mark, self._spent = now, spent

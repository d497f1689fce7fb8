"""The speed of the training and the GPUs in use, and whether it waits in the middle of its loop."""

from __future__ import annotations

import dis
import os
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Final

import torch

import hookcore
from hookcore.platform import seconds_of
from hookcore.recorder.calls.plans import PlanTable
from hookcore.recorder.context import Context, Ended
from hookcore.recorder.machine import Device, Gpus, Sample, Sampler, open_host, open_nvml
from hookcore.records.vocabulary import ENDED, EVALUATED, SAMPLES_RATE, STALLED, STEPS_RATE, TOKENS_RATE

_IN_USE: Final = "reserved_bytes.all.peak"


def cuda_devices() -> list[Device]:
    """Return the GPUs on which torch has reserved memory in this process. Initializes nothing."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.memory_stats(index)
        if memory.get(_IN_USE, 0):
            known = torch.cuda.get_device_properties(index)
            found.append(Device(index, known.name, f"GPU-{known.uuid}", known.total_memory, memory))
    return found


class Throughput:
    """Steps per second, and samples if the batch is known: the rows that the model was given in the newest step.

    A rate is a number of steps, divided by the time between the ends of the first and the last of them. So a step may
    take longer than the time between two samples of the machine. Of several models, the one that was given the fewest
    rows counts: a discriminator sees real and generated samples.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last = Ended()

    def read(self, _now: float) -> Sample:
        """Return the rates of the steps that have ended since the last call; none if no step has."""
        ended, last = self._context.ended, self._last
        if ended.steps == last.steps:
            return Sample()
        self._last = ended
        if not last.steps or not ended.at > last.at:
            return Sample()
        rate = (ended.steps - last.steps) / (ended.at - last.at)
        given = [root for root in self._context.plans.roots if root.samples]
        fewest = min(given, key=lambda root: root.samples, default=None)
        found = {STEPS_RATE: rate}
        if fewest is not None:
            found[SAMPLES_RATE] = rate * fewest.samples
            if fewest.tokens:
                found[TOKENS_RATE] = rate * fewest.tokens
        return Sample(found)


class Evaluations:
    """The seconds in which a model that trains was in evaluation mode.

    A sample stands for the time since the last one, so the training's thread reads no clock for it.
    """

    def __init__(self, plans: PlanTable) -> None:
        self._plans = plans
        self._last: float | None = None
        self._total_s = 0.0

    def read(self, now: float) -> Sample:
        """Return the seconds so far; none before the first evaluation."""
        last, self._last = self._last, now
        if last is not None and any(root.evaluates for root in self._plans.roots):
            self._total_s += now - last
        return Sample({EVALUATED: self._total_s}) if self._total_s else Sample()


def sampler_of(context: Context) -> Sampler:
    """Return what samples the machine and the speed of the training, once it is started."""
    speed, evaluations = Throughput(context), Evaluations(context.plans)
    gpus = Gpus(cuda_devices, open_nvml)
    return Sampler((open_host, lambda: gpus.read, lambda: speed.read, lambda: evaluations.read), context.errors.record)


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
    """Watches over one training."""

    def __init__(self, context: Context) -> None:
        self._context, self._now, self._emit = context, context.now, context.emit
        self._ended_at = self._now()
        self._longest_s = 0.0
        self._chain: tuple[Place, ...] = ()  # where the training thread was when a step ended, innermost first
        self._mark_at = 0  # the step from which on it is noted again
        self._thread = 0
        self._clock: int | None = None  # of the thread's processor time
        self._looked_at = float("-inf")
        self._since = self._spent_before = float("inf")  # since when nothing has moved, and the processor time then
        self._places: tuple[Place, ...] | None = None
        self._reported = False

    def mark(self, step: int) -> None:
        """Note now and then where the training loop is. Called by its thread when a step ends."""
        if step < self._mark_at and step & (step - 1):
            return
        self._mark_at = step + MARK_EVERY
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
        if now - ended_at < QUIET_S or now - self._looked_at < LOOK_S or self._context.step < FIRST_STEP:
            return
        was_stopped, self._looked_at = now - self._looked_at > 3 * LOOK_S, now
        self._see(now, was_stopped)

    def _see(self, now: float, was_stopped: bool) -> None:
        frames = [] if self.rests else self._frames_in_loop()
        places = tuple((frame.f_code, frame.f_lasti) for frame in _until_library(frames))
        spent = self.spent_s()
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

    @property
    def rests(self) -> bool:
        """Whether steps aren't expected now: paused, or evaluating."""
        return self._context.paused or any(root.evaluates for root in self._context.plans.roots)

    def spent_s(self) -> float:
        """Return the processor time of the training thread; NaN if it isn't known."""
        try:
            return float("nan") if self._clock is None else seconds_of(self._clock)
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

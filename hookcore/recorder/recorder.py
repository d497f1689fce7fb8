"""The recorder of one watcher: creates the parts, connects them, and begins and ends their work."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Final

from hookcore.config import Settings
from hookcore.delivery.sinks import Sink
from hookcore.recorder.calls.placement import feasible
from hookcore.recorder.calls.plans import Plan
from hookcore.recorder.capture import Capture, MakeKeeper
from hookcore.recorder.clock.steps import Steps
from hookcore.recorder.context import Context
from hookcore.recorder.given import Given, Requests
from hookcore.recorder.known.description import Describer
from hookcore.recorder.known.facts import Facts
from hookcore.recorder.known.place import Ranks
from hookcore.recorder.known.roots import Root
from hookcore.recorder.leaving.shipping import Examine, Shipper
from hookcore.recorder.leaving.thread import Rounds, Worker
from hookcore.records import Command, Coverage

COVERAGE_WAIT_S: Final = 1.0
STEP_WAIT_S: Final = 0.2  # for the training to end a step, before the process is killed
PARK_S: Final = 5.0  # for which the training then waits to be killed
_HOOKS: Final = ("hookcore.hooks.optimizers", "hookcore.recorder.calls.", "hookcore.recorder.clock.")  # modules


class Recorder:
    """Connects models, dispatcher, steps, and shipping. No exception of theirs reaches the training."""

    def __init__(
        self,
        settings: Settings,
        sink: Sink,
        clock: Callable[[], float] = time.perf_counter,
        make_keeper: MakeKeeper = lambda _: None,
        examine: Examine | None = None,
        ranks: Ranks | None = None,
        facts: Facts | None = None,
    ) -> None:
        settings, infeasible = feasible(settings)
        ranks, facts = ranks or Ranks(), facts or Facts()
        self.context = context = Context(settings, sink, clock)
        self.capture = capture = Capture(context, ranks, make_keeper)
        self.steps = steps = Steps(context, capture)
        self.given, self.requests = Given(context, capture, steps), Requests(context, capture, steps)
        self.shipper = Shipper(context, capture, examine)
        self.description = Describer(context, capture, ranks, facts)
        rounds = Rounds(context, capture, steps, self.shipper, self.description)
        self.worker = Worker(context, capture.collector.queue, rounds, steps.steady)
        self.closed = False
        if infeasible:  # facts known from the start belong to the first frame
            context.emit("inside-infeasible", infeasible, "warning")
        self.description.problems.emit_new()
        sink.subscribe(self.on_command)

    def attach(self, captured: bool = True) -> None:
        """Register every hook and start the thread. `captured`: whether the running step is captured, unless paused."""
        captured = captured and not self.context.paused
        self.steps.steady.leave()
        self.capture.placement.attach(self.steps.steady.front, self.steps.steady, captured)
        self.capture.observers.begin_step(self.context.step, captured)
        self.capture.collector.machine.start()
        self.worker.start()  # last, because its first round lists the hooks

    def send_to(self, sink: Sink) -> None:
        """Send to another sink from now on."""
        self.context.sink = sink

    def on_command(self, command: Command) -> None:
        """Queue a command, from any thread. It is carried out at the end of the running step."""
        if self.closed:
            return
        try:
            self.capture.commands.enqueue(command)
            self.steps.steady.settle()  # the end of the running step sees it
            self.capture.collector.queue.wake()
        except Exception as error:
            self.context.errors.record("command", error)

    def coverage(self) -> list[Coverage]:
        """Return every module: captured, or not and why, by the frames that have been built."""
        self.worker.flush(COVERAGE_WAIT_S)
        return self.capture.models.coverage()

    def settle_late(self, timeout_s: float) -> None:
        """Save the step that a device has found to be bad, before the training ends. Stops sampling the machine."""
        if not self.closed:
            # What comes until the end, such as a wait for a replay, isn't the training.
            self.capture.collector.machine.close()
            if self.capture.sentinel.waits:
                self.worker.flush(timeout_s)
            with self.context.lock:
                self.capture.keeping.settle_late()

    def close(self, timeout_s: float = 2.0) -> None:
        """Ship the remaining data, remove every hook, and end the thread."""
        if self.closed:
            return
        self.closed = True
        context, capture = self.context, self.capture
        capture.collector.machine.close()
        capture.observers.snapshots.give_up("the training ended before it arrived")
        with contextlib.suppress(Exception):
            self.steps.end_early()
            capture.observers.probes.channels.end_step()
        with contextlib.suppress(Exception):
            context.parameters.look()
        capture.moments.end()
        capture.samples.end()
        capture.placement.detach()
        capture.moments.close()
        self.worker.close(timeout_s)
        with contextlib.suppress(Exception):
            self.description.send_coverage()
        context.sink.close()
        capture.models.let_go()
        self.steps.clock.let_go()
        capture.keeping.close()
        if self.worker.has_ended:
            self.shipper.let_go()

    def dismantle(self) -> None:
        """Take the parts apart once no one can ask for anything anymore.

        They refer to each other in circles, so they would stay until Python's next full collection, which is rare in a
        training loop. Nothing changes for a graph that still lives: its hooks know the statistics and the current step.
        """
        if self.closed and self.worker.has_ended and not _is_used_elsewhere():
            context = self.context
            for plan in (*context.plans.live(), *context.plans.departed):
                plan.rows.release()
            whole = {id(each) for each in (context.current, context.statistics, context.errors)}
            _take_apart(self, whole)

    def stop(self, timeout_s: float) -> None:
        """Ship what the training has made so far, because the process is about to be killed. Touches no hook.

        The training waits at the end of its step, so that no step is made that nobody would know of.
        """
        waits = threading.Event()

        def wait() -> None:
            waits.set()
            time.sleep(PARK_S)

        self.steps.clock.boundary.put(wait)
        waits.wait(STEP_WAIT_S)
        if self.context.lock.acquire(timeout=STEP_WAIT_S):
            self.steps.ship_end()
            self.context.lock.release()
        self.worker.close(timeout_s)

    def abandon(self) -> None:
        """Stop in a forked child: never capture, never send."""
        self.closed = True
        self.capture.placement.detach()
        self.capture.moments.close()


def _is_used_elsewhere() -> bool:
    """Return whether another thread is inside a hook, which may be one of this recorder."""
    frames: dict[int, FrameType | None] = {**sys._current_frames()}
    del frames[threading.get_ident()]  # else it would refer to itself
    for frame in frames.values():
        while frame is not None:
            if str(frame.f_globals.get("__name__")).startswith(_HOOKS):
                return True
            frame = frame.f_back
    return False


def _take_apart(part: object, whole: set[int]) -> None:
    """Delete the attributes of an object of this package, and then of those that it had."""
    names = [*getattr(part, "__dict__", ()), *(name for kind in type(part).__mro__ for name in _slots_of(kind))]
    if any(isinstance(each := getattr(part, name, None), threading.Thread) and each.is_alive() for name in names):
        return  # its thread still needs all of it
    for name in names:
        value = getattr(part, name, None)
        with contextlib.suppress(AttributeError):
            delattr(part, name)
        kind = type(value)
        if (
            kind.__module__.startswith(__package__)
            and id(value) not in whole
            and not isinstance(value, Plan | Root | Facts)
        ):  # these may still be used by a thread, or by a graph
            _take_apart(value, whole)


def _slots_of(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    return [name for name in ((slots,) if isinstance(slots, str) else slots) if name != "__weakref__"]

"""The recorder of one watcher: creates the parts, connects them, and begins and ends their work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from hookcore.config import Settings
from hookcore.delivery.sinks import Sink
from hookcore.recorder.calls.dispatch import Dispatcher
from hookcore.recorder.calls.keeping import Keeping
from hookcore.recorder.calls.observers import Observers
from hookcore.recorder.calls.placement import Placement, feasible
from hookcore.recorder.calls.plans import MakeKeeper, Plan, PlanTable
from hookcore.recorder.clock.cadence import Cadence, Jumps
from hookcore.recorder.clock.current import CurrentStep
from hookcore.recorder.clock.errors import ErrorLog
from hookcore.recorder.clock.steps import Steps
from hookcore.recorder.clock.steptimes import StepTimes
from hookcore.recorder.known.description import Describer, Problems
from hookcore.recorder.known.facts import Facts
from hookcore.recorder.known.models import Models
from hookcore.recorder.known.ownership import UnusedForwards
from hookcore.recorder.known.parameters import Parameters
from hookcore.recorder.known.place import Ranks, Replicas
from hookcore.recorder.known.roots import Root
from hookcore.recorder.leaving.commands import Commands, Control
from hookcore.recorder.leaving.frames import Collector, FrameQueue
from hookcore.recorder.leaving.given import Given, MediaQueue, Requests
from hookcore.recorder.leaving.shipping import Examine, Shipper
from hookcore.recorder.leaving.thread import Idle, Rounds, Worker
from hookcore.recorder.leaving.throughput import sampler_of
from hookcore.recorder.measured.scalars import LossScale
from hookcore.recorder.measured.sentinel import Sentinel
from hookcore.recorder.measured.snapshots import BatchNames
from hookcore.recorder.measured.statistics import Statistics
from hookcore.records import Command, Coverage

COVERAGE_WAIT_S: Final = 1.0
STEP_WAIT_S: Final = 0.2  # for the training to end a step, before the process is killed
PARK_S: Final = 5.0  # for which the training then waits to be killed


class Recorder:
    """Connects models, dispatcher, steps, and shipping. No exception of theirs reaches the training."""

    steps: Steps  # these two are called by parts that are made before them
    description: Describer

    def __init__(
        self,
        settings: Settings,
        sink: Sink,
        clock: Callable[[], float] = time.perf_counter,
        make_keeper: MakeKeeper = lambda *_: None,
        examine: Examine | None = None,
        ranks: Ranks | None = None,
        facts: Facts | None = None,
    ) -> None:
        settings, infeasible = feasible(settings)
        ranks, facts = ranks or Ranks(), facts or Facts()
        self._lock = lock = threading.RLock()  # threads that train at the same time end their steps one after another
        plans, current, scale, queue = PlanTable(), CurrentStep(), LossScale(), FrameQueue()
        self.errors = errors = ErrorLog(current)

        # Models, and who observes their calls
        statistics = Statistics(settings, current, errors)
        saw_pending, times, names = lambda: self.steps.passes.saw_pending_call(), StepTimes(clock), BatchNames()
        self._dispatcher = dispatcher = Dispatcher(plans, current, statistics, errors, saw_pending, times, names)
        parameters = Parameters(plans, statistics, settings.kinds, errors)
        self.models = models = Models(plans, parameters, settings, errors, lambda: self.description.send_modules())
        cadence = Cadence(settings.every, settings.budget, settings.allowance)
        replicas = Replicas(plans, statistics.table, ranks, statistics.shards, lambda: models.roots, errors)
        self._machine = machine = sampler_of(lambda: self.steps.ended, lambda: models.roots, errors.record)
        collector = Collector(statistics, parameters, cadence, scale, lock, lambda: self.step, replicas, machine)
        self.emit = emit = collector.emit
        self.add_events = collector.add_events
        dispatcher.keeper = make_keeper(lambda: self.step, emit, partial(getattr, models, "changes"))
        self.keeping = Keeping(dispatcher, cadence, lock)
        sentinel = self._sentinel = Sentinel(parameters, collector, cadence, self.keeping, current, errors, lock)
        self.placement = Placement(settings, dispatcher, models, emit, lock)
        self._observers = observers = Observers(
            settings, dispatcher, models, collector, cadence, self.placement, lambda kind: self.steps.scale_of(kind)
        )

        # Steps, and what happens between two of them
        self._commands = commands = Commands(
            settings, models, observers.snapshots, emit, lambda: self.description.request(), self.keeping.ask
        )
        self.control = Control(settings, commands, cadence, models, observers, self.placement, emit)
        self.steps = Steps(
            dispatcher,
            parameters,
            models,
            observers,
            cadence,
            collector,
            scale,
            self.control,
            self.placement,
            self.keeping,
            sentinel,
            replicas,
            queue,
            lock,
            clock,
        )
        media, jumps = MediaQueue(errors), Jumps(cadence)
        self.given = Given(self.steps, dispatcher, collector, models, media, jumps, queue.put, lock)
        table, step_clock = statistics.table, self.steps.clock
        self.requests = Requests(self.steps, commands, self.control, observers, self.placement, table, lock)

        # The recorder's thread
        self.shipper = Shipper(
            sink,
            queue,
            table,
            observers.flows,
            cadence,
            jumps,
            self.keeping,
            step_clock,
            errors,
            emit,
            UnusedForwards(plans),
            examine,
        )
        problems = Problems(plans, statistics, models, emit, infeasible)
        problems.emit_new()  # facts known from the start belong to the first frame
        self.description = Describer(self.shipper, models, table, step_clock, problems, ranks, facts, errors)
        outgoing = observers.snapshots.copies, observers.probes.channels, media
        idle = Idle(self.steps, commands, self.control, collector, machine, lock, queue.put, clock)
        rounds = Rounds(
            self.shipper, self.steps, collector, outgoing, self.description, problems, idle, sentinel, errors, queue.put
        )
        self.worker = Worker(queue, rounds, self.steps.steady, lambda error: errors.record("recorder thread", error))
        self.closed = False
        sink.subscribe(self.on_command)

    def attach(self, captured: bool = True) -> None:
        """Register every hook and start the thread. `captured`: whether the running step is captured, unless paused."""
        captured = captured and not self.control.paused
        self.steps.steady.leave()
        self.placement.attach(self.steps.steady.front, self.steps.steady.front, self.step, captured)
        self._observers.begin_step(self.step, captured)
        self._machine.start()
        self.worker.start()  # last, because its first round lists the hooks

    def send_to(self, sink: Sink) -> None:
        """Send to another sink from now on."""
        self.shipper.sink = sink

    @property
    def step(self) -> int:
        """The number of the running step, which is the number of ended steps."""
        return self.steps.clock.step

    @property
    def capturing(self) -> bool:
        """Whether the running step is captured."""
        return self._dispatcher.current.captured

    def on_command(self, command: Command) -> None:
        """Queue a command, from any thread. It is carried out at the end of the running step."""
        if self.closed:
            return
        try:
            self._commands.enqueue(command)
            self.steps.steady.settle()  # the end of the running step sees it
        except Exception as error:
            self.errors.record("command", error)

    def coverage(self) -> list[Coverage]:
        """Return every module: captured, or not and why, by the frames that have been built."""
        self.worker.flush(COVERAGE_WAIT_S)
        return self.models.coverage(self._dispatcher.statistics.table)

    def settle_late(self, timeout_s: float) -> None:
        """Save the step that a device has found to be bad, before the training ends. Stops sampling the machine."""
        if not self.closed:
            self._machine.close()  # what comes until the end, such as a wait for a replay, isn't the training
            if self._sentinel.waits:
                self.worker.flush(timeout_s)
            with self._lock:
                self.keeping.settle_late()

    def close(self, timeout_s: float = 2.0) -> None:
        """Ship the remaining data, remove every hook, and end the thread."""
        if self.closed:
            return
        self.closed = True
        self._machine.close()
        self._observers.snapshots.give_up("the training ended before it arrived")
        with contextlib.suppress(Exception):
            self.steps.end_early()
            self._observers.probes.channels.end_step()
        with contextlib.suppress(Exception):
            self.models.parameters.look()
        self.placement.detach()
        self.worker.close(timeout_s)
        with contextlib.suppress(Exception):
            self.description.send_coverage()
        self.shipper.sink.close()
        self.models.let_go()
        self.steps.clock.let_go()
        self.keeping.close()
        if self.worker.has_ended:
            self.shipper.let_go()

    def dismantle(self) -> None:
        """Take the parts apart once no one can ask for anything anymore.

        They refer to each other in circles, so they would stay until Python's next full collection, which is rare in a
        training loop. Nothing changes for a graph that still lives: its hooks know the statistics and the current step.
        """
        if self.closed and self.worker.has_ended:
            dispatcher = self._dispatcher
            for plan in (*dispatcher.plans.live(), *dispatcher.plans.departed):
                plan.rows.release()
            whole = {id(each) for each in (dispatcher.current, dispatcher.statistics, dispatcher.errors)}
            _take_apart(self, whole)

    def stop(self, timeout_s: float) -> None:
        """Ship what the training has made so far, because the process is about to be killed. Touches no hook.

        The training waits at the end of its step, so that no step is made that nobody would know of.
        """
        waits = threading.Event()

        def wait() -> None:
            waits.set()
            time.sleep(PARK_S)

        self.steps.boundary.put(wait)
        waits.wait(STEP_WAIT_S)
        if self._lock.acquire(timeout=STEP_WAIT_S):
            self.steps.ship_end()
            self._lock.release()
        self.worker.close(timeout_s)

    def abandon(self) -> None:
        """Stop in a forked child: never capture, never send."""
        self.closed = True
        self.placement.detach()


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

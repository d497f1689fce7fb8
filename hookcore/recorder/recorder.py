"""The recorder of one watcher: creates the parts, connects them, and offers what the watcher needs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from torch import Tensor, nn

from hookcore.config import Pattern, Settings
from hookcore.delivery.sinks import Sink
from hookcore.errors import ArgumentError
from hookcore.hooks.compiled import guarded
from hookcore.internals import DisableTorchFunction
from hookcore.observe import cpu, layout
from hookcore.observe.arena import CpuArena
from hookcore.observe.plain import unseen
from hookcore.recorder.batchnames import BatchNames
from hookcore.recorder.between import Between
from hookcore.recorder.cadence import Cadence
from hookcore.recorder.channels import ChannelColumns
from hookcore.recorder.collector import Collector, without_rows
from hookcore.recorder.commands import Commands
from hookcore.recorder.control import Control
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.description import Describer
from hookcore.recorder.dispatch import Dispatcher
from hookcore.recorder.errorlog import ErrorLog
from hookcore.recorder.facts import Facts
from hookcore.recorder.flows import Flows
from hookcore.recorder.idle import Idle
from hookcore.recorder.in_graphs import feasible
from hookcore.recorder.keeper import MakeKeeper
from hookcore.recorder.loading import Loading
from hookcore.recorder.machine import Gpus, Sampler, open_host, open_nvml
from hookcore.recorder.media import MediaQueue
from hookcore.recorder.models import Models
from hookcore.recorder.parameters import Parameters
from hookcore.recorder.passes import PassProbes
from hookcore.recorder.placement import Placement
from hookcore.recorder.plans import Plan, PlanTable
from hookcore.recorder.probe import Probe
from hookcore.recorder.probes import Probes
from hookcore.recorder.problems import Problems
from hookcore.recorder.ranks import Ranks
from hookcore.recorder.replicas import Replicas
from hookcore.recorder.scalars import scalar_of
from hookcore.recorder.scales import LossScale
from hookcore.recorder.shipping import Examine, Shipper
from hookcore.recorder.snapshots import Snapshots
from hookcore.recorder.statistics import Statistics
from hookcore.recorder.steps import Steps
from hookcore.recorder.steptimes import StepTimes
from hookcore.recorder.throughput import Throughput, cuda_devices
from hookcore.recorder.waiting import Waiting
from hookcore.records import Command, Coverage, Frame, Occasion, Tap
from hookcore.records.vocabulary import TRAINED

COVERAGE_WAIT_S: Final = 1.0
MAX_OBSERVED: Final = 4096  # names of tensors that the user observes


class Recorder:
    """Connects models, dispatcher, steps, and shipping. No exception of theirs reaches the training."""

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
        self._ranks = ranks or Ranks()
        self._facts = facts or Facts()
        self._between = Between()
        self._lock = threading.RLock()  # threads that train at the same time end their steps one after another
        plans, current, scale, times = PlanTable(), CurrentStep(), LossScale(), StepTimes(clock)
        self.errors = ErrorLog(current)
        capacity = max(256, min(1 << 16, settings.memory // 4 // layout.ROW_USE))
        arena = CpuArena(capacity, settings.sketch_values)
        statistics = Statistics(arena, settings.phases, settings.calls, current, self.errors)
        self._names = BatchNames()
        self.dispatcher = Dispatcher(
            plans,
            current,
            statistics,
            self.errors,
            lambda: self.steps.saw_pending_call(),
            times,
            self._names,
        )
        self.parameters = Parameters(plans, statistics, settings.kinds)
        self.models = Models(plans, self.parameters, settings, self.errors, lambda: self.description.send_modules())
        self.cadence = Cadence(settings.every, settings.budget)
        replicas = Replicas(
            plans, statistics.table, self._ranks, statistics.shards, lambda: self.models.roots, self.errors
        )
        throughput = Throughput(lambda: self.step, lambda: self.models.roots)
        self._machine = Sampler(
            (open_host, lambda: Gpus(cuda_devices, open_nvml).read, lambda: throughput.read), self.errors.record
        )
        self._collector = Collector(
            statistics, self.parameters, self.cadence, scale, self._lock, lambda: self.step, replicas, self._machine
        )
        self.emit = self._collector.emit
        self._media = MediaQueue(self.errors, self.emit)
        self.dispatcher.keeper = make_keeper(lambda: self.step, self.emit, lambda: self.models.changes)
        self.snapshots = Snapshots(plans, current, self.errors, self.emit, self._scale_of, self._names)
        self._commands = Commands(
            settings,
            self.models,
            self.snapshots,
            self.emit,
            lambda: self.description.request(),
            self.request_capsule,
        )
        loading = Loading(times, current, self.errors, self._lock)
        self.placement = Placement(settings, self.dispatcher, self.models, loading, self.emit)
        columns, passes = ChannelColumns(self.errors, self.emit), PassProbes(plans, statistics, self.emit)
        self.probes = Probes(plans, statistics, current, self.emit, self._collector.add_label, columns, passes)
        self.probes.choose_channels(settings.channels)
        inside = settings.compiled == "inside"  # in a compiled graph, nothing shows which tensor goes where
        flows = Flows(statistics, settings.calls, lambda: self.models.changes, self.emit, not inside)
        self.control = Control(
            settings,
            self._commands,
            self.cadence,
            self.models,
            self.snapshots,
            self.probes,
            flows,
            self.placement,
            self.emit,
        )
        self.shipper = Shipper(
            sink,
            statistics.table,
            flows,
            self.cadence,
            self.errors,
            self.emit,
            self._tell_place,
            lambda: self.description.send_if_due(),
            self._tick,
            lambda: (
                self.snapshots.copies.waiting
                or self.probes.channels.waiting
                or self._media.waiting
                or self.description.requested
            ),
            self._tell_keeper,
            self._remember,
            examine,
        )
        self.steps = Steps(
            self.dispatcher,
            self.parameters,
            self.models,
            self.snapshots,
            self.probes,
            flows,
            self.cadence,
            self._collector,
            scale,
            self.control,
            self.placement,
            Waiting(replicas, current, self._collector.add_scalars, clock),
            self.shipper.put,
            self._lock,
            clock,
        )
        self._idle = Idle(
            self.steps,
            self._commands,
            self.control,
            self._collector,
            self._machine,
            self._lock,
            self.shipper.put,
            clock,
        )
        self._scale = scale
        self._problems = Problems(plans, statistics, self.models, self.emit)
        self.description = Describer(
            self.shipper, self.models, statistics.table, self.steps.clock, self._problems, self.errors
        )
        self._observed: dict[str, Plan] = {}  # the tensors that the user named
        self.closed = False
        sink.subscribe(self.on_command)
        if infeasible:
            self.emit("inside-infeasible", infeasible, "warning")
        if cpu.FALLBACK_REASON:
            self.emit("slow-kernel", cpu.SLOW_KERNEL, "warning")

    # Hooks

    def attach(self, captured: bool = True) -> None:
        """Register every hook and start the thread. `captured`: whether the running step is captured, unless paused."""
        self.shipper.start()
        self._machine.start()
        captured = captured and not self.control.paused
        self.placement.attach(self.steps, self.step, captured)
        self.control.begin_step(self.step, captured)

    def watch(self, model: nn.Module | None) -> None:
        """Watch a model; with None, every model that runs."""
        if model is None:
            self.models.discover()
        else:
            self.models.add(model)

    def send_to(self, sink: Sink) -> None:
        """Send to another sink from now on."""
        self.shipper.sink = sink

    # Steps

    @property
    def step(self) -> int:
        """The number of the running step, which is the number of ended steps."""
        return self.steps.clock.step

    @guarded
    def user_step(self) -> None:
        """End the step because the user says so."""
        self.steps.end_by_user()

    def _scale_of(self, kind: str) -> float | None:
        """Return the loss scale of gradients of this kind, if known."""
        return self.steps.clock.owners.known_scale() if kind in self._scale.kinds else None

    # Values

    @guarded
    def log(self, scalars: dict[str, Any], ended: bool = False) -> None:
        """Record numbers for the running step, or for the last one if they come between two steps and are about it.

        With `ended`, the caller knows that they are. A tensor on a device is read later, on the recorder's thread.
        """
        numbers = self._numbers_in(scalars)
        with self._lock:
            self.shipper.note_jumps(numbers)
            late = self._behind(numbers, ended)
            self._collector.loss.note_log(self.step, numbers)
            behind = {name: numbers.pop(name) for name in late}
            if behind:
                self.shipper.put(without_rows(self.step - 1, time.time(), scalars=behind))
            if numbers:
                self._collector.add_scalars(numbers)

    def _numbers_in(self, scalars: dict[str, Any]) -> dict[str, Any]:
        """Return the values that are single numbers. Each of the others is an error."""
        numbers = {}
        for name, value in scalars.items():
            try:
                numbers[name] = scalar_of(value)
            except Exception as error:
                self.errors.record(f"log {name}", error)
        return numbers

    def _behind(self, names: Iterable[str], ended: bool = False) -> list[str]:
        """Return which of these names belong to the step that ended, not to the running one."""
        if self.steps.saw_log():
            if not self.step:
                self._between.note_first(names)
            return []
        clock = self.steps.clock
        if ended:
            return list(names)
        if clock.manual or clock.stepping or clock.many_threads:  # passes are not counted
            return []
        has_run = not self.steps.is_fresh if self.capturing else None
        return [name for name in names if self._between.is_behind(name, has_run)]

    @property
    def capturing(self) -> bool:
        """Whether the running step is captured."""
        return self.dispatcher.current.captured

    def observe(self, name: str, tensor: Tensor) -> None:
        """Capture a tensor that the user names."""
        name = str(name)  # the names of taps are sent
        plan = self._observed.get(name)
        if plan is None:
            if len(self._observed) >= MAX_OBSERVED:
                raise ArgumentError(
                    f"observe({name!r}): {MAX_OBSERVED:,} names have been used; use one name for a tensor in all steps"
                )
            plan = self._observed[name] = self.models.plan_for_name(name)
        self.dispatcher.saw_output(plan, tensor)

    # The keeper

    def request_capsule(self, occasion: Occasion | None = None) -> None:
        """Capture the next step, and let the keeper save it. After an incident, the keeper decides whether to."""
        if self.dispatcher.keeper is not None and self.dispatcher.keeper.ask(occasion):
            self.cadence.alarm()

    @guarded
    def keep_failed_step(self, error: str) -> None:
        """Let the keeper see a step that an exception ended."""
        with self._lock, DisableTorchFunction():
            if self.dispatcher.keeper is not None:
                self.dispatcher.keeper.fail(error)

    def _tell_keeper(self, step: int) -> None:
        """Pass on what another device measured; what the CPU measured was seen in the step."""
        keeper, statistics = self.dispatcher.keeper, self.dispatcher.statistics
        if keeper is not None and statistics.devices.arenas and not self.steps.clock.owners.scalers():
            keeper.alarm(step)

    def _remember(self, frame: Frame) -> None:
        """Let the keeper see what was sent."""
        if self.dispatcher.keeper is not None:
            self.dispatcher.keeper.remember(frame)

    def add_media(self, name: str, make: Callable[[], tuple[str, bytes, int]]) -> None:
        """Add what the script logs besides numbers: its media type, its bytes, and how many there were before a cut."""
        with unseen():  # by the user's modes: it may be made of a tensor
            media_type, data, whole = make()
        with self._lock:
            behind = len(self._behind([name]))
            self._media.put(name, self.step - behind, media_type, data, whole)

    def give_tokens(self, tokens: Any) -> None:
        """Name the positions of the batch that runs next."""
        with self._lock:
            self._names.give_tokens(tokens, self.step)

    def give_labels(self, labels: Any) -> None:
        """Name its samples."""
        with self._lock:
            self._names.give_labels(labels, self.step)

    # Commands

    def on_command(self, command: Command) -> None:
        """Queue a command, from any thread. It is carried out at the end of the running step."""
        if self.closed:
            return
        try:
            self._commands.enqueue(command)
        except Exception as error:
            self.errors.record("command", error)

    def request_snapshot(self, tap: Tap) -> None:
        """Take a snapshot at the tensor's next call, in this step if it hasn't begun."""
        if self.closed or not self._commands.ask(tap):
            return
        with self._lock:
            if self.steps.is_fresh:
                self.control.begin_snapshots()

    def check_patterns(self, include: Sequence[Pattern]) -> None:
        """Raise PatternError if a pattern matches no module of the models that are known."""
        self.models.check_patterns(include)

    def add_probe(self, probe: Probe) -> bool:
        """Let a function look at tensors from this step on, or from the next one. Return False if there is no room."""
        with self._lock:
            added = self.probes.add(probe)
            if self.steps.is_fresh:
                self.control.begin_step(self.step, captured=True)
        return added

    def pause(self) -> None:
        """Capture nothing until resumed; steps are still counted. The running step keeps its data so far."""
        with self._lock:
            self.steps.stop_capture()
            self.control.paused = True
            self.placement.begin_step(self.step, captured=False)

    def resume(self) -> None:
        """Capture again, from the next forward on."""
        if self.control.paused and self.placement.attached:
            self.placement.begin_step(self.step, captured=True)
        self.control.paused = False

    # The recorder's thread

    def _tick(self) -> None:
        self._tell_errors()
        self.snapshots.copies.ship(self.shipper.sink.send)
        self.probes.channels.ship(self.shipper.sink.send)
        self._media.ship(self.shipper.sink.send)
        self.description.send_if_requested()
        self._tell_sink()
        self._idle.tick()
        self.steps.stalls.look(self.steps.ended_at)

    def _tell_errors(self, is_last: bool = False) -> None:
        """Make the errors events of the run."""
        events = self.errors.news(is_last)
        if events:
            self._collector.add_events(events)

    def _tell_sink(self) -> None:
        """Tell the sink the place of this process, and facts, whenever more of them is known."""
        self._tell_place()
        try:
            known = self._facts.news(self.models, self.steps.clock.owners)
        except Exception as error:  # attributes of the user's models and optimizers can do anything
            self.errors.record("facts of the run", error)
        else:
            if known is not None:
                self.shipper.sink.learn(known)

    def _tell_place(self) -> None:
        """Tell the sink where this process is in a distributed training, before the first frame that it is about."""
        try:
            place = self._ranks.news(self.models.device)
        except Exception as error:  # never a reason to lose a frame
            self.errors.record("place among the ranks", error)
            return
        if place is not None:
            self.shipper.sink.locate(place)

    # The end

    def coverage(self) -> list[Coverage]:
        """Return every module: captured, or not and why, by the frames that have been built."""
        self.shipper.flush(COVERAGE_WAIT_S)
        return self.models.coverage(self.dispatcher.statistics.table)

    def close(self, timeout_s: float = 2.0) -> None:
        """Ship what was begun, remove every hook, and end the thread."""
        if self.closed:
            return
        self.closed = True
        self._machine.close()
        self.snapshots.give_up("the training ended before it arrived")
        with contextlib.suppress(Exception):
            self.steps.end_early()
            self.probes.channels.end_step()
        self.placement.detach()
        deadline = time.monotonic() + timeout_s
        self.shipper.flush(timeout_s)
        with contextlib.suppress(Exception):
            self._ship_last_events()
            self._facts.hear({TRAINED: self.step})
            self._tell_sink()
        self.shipper.close(max(0.0, deadline - time.monotonic()), self.description.send_coverage)
        self.models.let_go()
        self.steps.clock.let_go()
        if self.dispatcher.keeper is not None:
            self.dispatcher.keeper.close()

    def _ship_last_events(self) -> None:
        """Ship the events about the last frames: they were emitted as these were shipped, or have not been yet."""
        self._problems.emit_new()
        self._tell_errors(is_last=True)
        if self._collector.has_events:
            self.shipper.put(self._collector.take_between(time.time()))

    def abandon(self) -> None:
        """Stop in a forked child: never capture, never send."""
        self.closed = True
        self.placement.detach()

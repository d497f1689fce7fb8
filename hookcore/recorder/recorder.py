"""The recorder of one watcher: creates the parts, connects them, and offers what the watcher needs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from torch import nn

from hookcore.config import Settings
from hookcore.delivery.sinks import Sink
from hookcore.hooks.compiled import guarded
from hookcore.observe import cpu, layout
from hookcore.observe.arena import CpuArena
from hookcore.recorder.batchnames import BatchNames
from hookcore.recorder.cadence import Cadence
from hookcore.recorder.channels import ChannelColumns
from hookcore.recorder.collector import Collector
from hookcore.recorder.commands import Commands
from hookcore.recorder.control import Control
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.description import Describer
from hookcore.recorder.dispatch import Dispatcher
from hookcore.recorder.errorlog import ErrorLog
from hookcore.recorder.facts import Facts
from hookcore.recorder.flows import Flows
from hookcore.recorder.given import Given
from hookcore.recorder.idle import Idle
from hookcore.recorder.in_graphs import feasible
from hookcore.recorder.keeper import MakeKeeper
from hookcore.recorder.keeping import Keeping
from hookcore.recorder.loading import Loading
from hookcore.recorder.machine import Gpus, Sampler, open_host, open_nvml
from hookcore.recorder.media import MediaQueue
from hookcore.recorder.models import Models
from hookcore.recorder.parameters import Parameters
from hookcore.recorder.passes import PassProbes
from hookcore.recorder.placement import Placement
from hookcore.recorder.plans import PlanTable
from hookcore.recorder.probe import Probe
from hookcore.recorder.probes import Probes
from hookcore.recorder.problems import Problems
from hookcore.recorder.ranks import Ranks
from hookcore.recorder.replicas import Replicas
from hookcore.recorder.rounds import Rounds
from hookcore.recorder.scales import LossScale
from hookcore.recorder.shipping import Examine, Shipper
from hookcore.recorder.snapshots import Snapshots
from hookcore.recorder.statistics import Statistics
from hookcore.recorder.steps import Steps
from hookcore.recorder.steptimes import StepTimes
from hookcore.recorder.throughput import Throughput, cuda_devices
from hookcore.recorder.waiting import Waiting
from hookcore.records import Command, Coverage, Tap

COVERAGE_WAIT_S: Final = 1.0


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
        ranks, facts = ranks or Ranks(), facts or Facts()
        self._lock = threading.RLock()  # threads that train at the same time end their steps one after another
        plans, current, scale, times = PlanTable(), CurrentStep(), LossScale(), StepTimes(clock)
        self.errors = ErrorLog(current)
        capacity = max(256, min(1 << 16, settings.memory // 4 // layout.ROW_USE))
        arena = CpuArena(capacity, settings.sketch_values)
        statistics = Statistics(arena, settings.phases, settings.calls, current, self.errors)
        names = BatchNames()
        self.dispatcher = Dispatcher(
            plans,
            current,
            statistics,
            self.errors,
            lambda: self.steps.passes.saw_pending_call(),
            times,
            names,
        )
        parameters = Parameters(plans, statistics, settings.kinds, self.errors)
        self.models = Models(plans, parameters, settings, self.errors, lambda: self.description.send_modules())
        cadence = Cadence(settings.every, settings.budget)
        self.keeping = Keeping(self.dispatcher, cadence, self._lock)
        replicas = Replicas(plans, statistics.table, ranks, statistics.shards, lambda: self.models.roots, self.errors)
        throughput = Throughput(lambda: self.step, lambda: self.models.roots)
        self._machine = Sampler(
            (open_host, lambda: Gpus(cuda_devices, open_nvml).read, lambda: throughput.read), self.errors.record
        )
        self._collector = Collector(
            statistics, parameters, cadence, scale, self._lock, lambda: self.step, replicas, self._machine
        )
        self.emit = self._collector.emit
        media = MediaQueue(self.errors, self.emit)
        self.dispatcher.keeper = make_keeper(lambda: self.step, self.emit, lambda: self.models.changes)
        self.snapshots = Snapshots(plans, current, self.errors, self.emit, self._scale_of, names)
        self._commands = Commands(
            settings,
            self.models,
            self.snapshots,
            self.emit,
            lambda: self.description.request(),
            self.keeping.ask,
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
            cadence,
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
            cadence,
            self.errors,
            self.emit,
            lambda: self._rounds.tell_place(),
            lambda: self.description.send_if_due(),
            lambda: self._rounds.make(),
            lambda: self._rounds.has_more,
            lambda step: self.keeping.alarm(step, self.steps.clock),
            self.keeping.remember,
            examine,
        )
        self.steps = Steps(
            self.dispatcher,
            parameters,
            self.models,
            self.snapshots,
            self.probes,
            flows,
            cadence,
            self._collector,
            scale,
            self.control,
            self.placement,
            self.keeping,
            Waiting(replicas, current, self._collector.add_scalars, clock),
            self.shipper.put,
            self._lock,
            clock,
        )
        idle = Idle(
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
        problems = Problems(plans, statistics, self.models, self.emit)
        self.description = Describer(
            self.shipper, self.models, statistics.table, self.steps.clock, problems, self.errors
        )
        self.given = Given(
            self.steps,
            self.dispatcher,
            self._collector,
            self.shipper,
            self.models,
            media,
            names,
            self.errors,
            self._lock,
        )
        self._rounds = Rounds(
            self.shipper,
            self.steps,
            self._collector,
            self.models,
            self.snapshots,
            self.probes,
            media,
            self.description,
            problems,
            idle,
            ranks,
            facts,
            self.errors,
        )
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
        self.placement.attach(self.steps, self.steps.passes, self.step, captured)
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

    @property
    def capturing(self) -> bool:
        """Whether the running step is captured."""
        return self.dispatcher.current.captured

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
            self._rounds.end()
        self.shipper.close(max(0.0, deadline - time.monotonic()), self.description.send_coverage)
        self.models.let_go()
        self.steps.clock.let_go()
        self.keeping.close()

    def abandon(self) -> None:
        """Stop in a forked child: never capture, never send."""
        self.closed = True
        self.placement.detach()

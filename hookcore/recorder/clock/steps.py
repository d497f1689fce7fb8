"""Steps: found by the clock, selected by the cadence, and shipped when they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from hookcore.hooks.compiled import guarded
from hookcore.hooks.internals import DisableTorchFunction, current_graph_task
from hookcore.recorder.calls.dispatch import Dispatcher
from hookcore.recorder.calls.keeping import Keeping
from hookcore.recorder.calls.observers import Observers
from hookcore.recorder.calls.placement import Placement
from hookcore.recorder.clock.cadence import Cadence
from hookcore.recorder.clock.clock import Clock
from hookcore.recorder.clock.current import CurrentStep
from hookcore.recorder.clock.errors import ErrorLog
from hookcore.recorder.clock.passes import BackwardPasses, Boundary, OptimizerSteps, Parts, Waiting
from hookcore.recorder.clock.steady import Steady
from hookcore.recorder.clock.steptimes import Meter, Stalls, StepTimes
from hookcore.recorder.known.models import Models
from hookcore.recorder.known.ownership import Ownership
from hookcore.recorder.known.parameters import Parameters
from hookcore.recorder.known.place import Replicas
from hookcore.recorder.leaving.commands import Control
from hookcore.recorder.leaving.frames import Collector, FrameQueue, RawFrame, without_rows
from hookcore.recorder.leaving.throughput import Ended
from hookcore.recorder.measured.scalars import LossNames, LossScale
from hookcore.recorder.measured.sentinel import Sentinel

_NAN: Final = float("nan")
_UNREAD: Final = (
    "weight gradients are left out: several threads have run backward passes, and no torch optimizer shows which "
    "thread has which parameters. Reading a gradient that another thread is setting can crash the process."
)
CHECK_EVERY: Final = 8  # steps; checks are due at multiples of it


@dataclass(eq=False)
class Steps:
    """Begins and ends steps. The clock calls it when one ends, and the script if it says so itself."""

    _dispatcher: Dispatcher
    _parameters: Parameters
    _models: Models
    _observers: Observers
    _cadence: Cadence
    _collector: Collector
    _scale: LossScale
    _control: Control
    _placement: Placement
    _keeping: Keeping
    _sentinel: Sentinel
    _replicas: Replicas
    _queue: FrameQueue
    _lock: AbstractContextManager[Any]
    _now: Callable[[], float]
    _ship: Callable[[RawFrame], None] = field(init=False)
    clock: Clock = field(init=False)
    boundary: Boundary = field(default_factory=Boundary, init=False)
    _current: CurrentStep = field(init=False)
    _errors: ErrorLog = field(init=False)
    _times: StepTimes = field(init=False)
    parts: Parts = field(init=False)
    _ownership: Ownership = field(init=False)
    _waiting: Waiting = field(init=False)
    _loss_names: LossNames = field(init=False)
    stalls: Stalls = field(init=False)
    optimizers: OptimizerSteps = field(init=False)
    passes: BackwardPasses = field(init=False)
    steady: Steady = field(init=False)
    _has_work: bool = field(default=False, init=False)  # whether a snapshot or a command made the last step longer
    shipped: int = field(default=-1, init=False)  # the newest step with a frame
    _reported_no_model: bool = field(default=False, init=False)
    _reported_unread: bool = field(default=False, init=False)
    _is_priced: bool = field(default=False, init=False)  # whether the running step's meter is for the cadence, too

    def __post_init__(self) -> None:
        self._ship = self._queue.put
        self.clock = Clock(self._parameters, self, self._collector.emit)
        known = self._dispatcher
        self._current, self._errors, self._times = known.current, known.errors, known.times
        self._loss_names = LossNames(self.clock.owners, self._parameters)
        self._ownership = Ownership(self._parameters, self.clock, self._collector.emit)
        self.stalls = Stalls(self._now, lambda: self.clock.step, self._rests, self._collector.emit)
        self.parts = Parts(self._current, self._collector, self._cadence, self._scale, self._ship)
        self._waiting = Waiting(self._replicas, self._current, self._collector.add_scalars, self._now)
        self.optimizers = OptimizerSteps(
            self.clock,
            self.boundary,
            self._dispatcher,
            self._lock,
            self._parameters,
            self._observers,
            self._collector,
            self._scale,
            self._keeping,
            self._sentinel,
            self._waiting,
            self._ship,
        )
        self.passes = BackwardPasses(
            self.clock,
            self.boundary,
            self._dispatcher,
            self._lock,
            self._collector.loss,
            self.parts,
            self._scale,
            self._observers.probes.passes,
            self._keeping,
            self._placement,
            self._sentinel,
        )
        self.steady = Steady(
            self.clock,
            self.boundary,
            self,
            self.passes,
            self.optimizers,
            self._dispatcher,
            self._parameters,
            self._observers,
            self._cadence,
            self._collector,
            self._control,
            self._placement,
            self._ownership,
            self.parts,
            self._keeping,
            self._sentinel,
            self._queue,
            self._lock,
            self._now,
        )

    @property
    def ended(self) -> Ended:
        """How many steps have ended, and when the newest one did, by `_now`. Other threads read it."""
        return Ended(*self.clock.track.when())

    # The user

    @guarded
    def end_by_user(self) -> None:
        """End the step because the user says so."""
        with self._lock:
            self.steady.leave()
            if (meter := self._current.meter) is not None:
                meter.enter()
            if self._current.captured and not self._parameters.read:
                self.read_parameters()
            self.clock.manual = self._times.prompt = True
            self.release_parts(as_steps=False)
            self.clock.tick()

    def stop_capture(self) -> None:
        """Set the data of the running step aside, so that it doesn't become part of a later one."""
        self._collector.loss.stop()
        if self._current.captured and (self._current.began_backward or self._dispatcher.has_rows()):
            self.parts.stop(self.clock.step)

    def end_early(self) -> None:
        """Ship the step so far, because the training ends."""
        self.steady.leave()
        begun = self._current.captured and self._has_begun
        self._take_flow()
        self.release_parts(as_steps=False)
        self.ship_end()
        if begun or self._collector.has_values:  # events alone make no step: they go with the one that ended last
            self._ship(self._collector.take(self.clock.step, micro_batches=self._current.backwards))

    def ship_end(self) -> None:
        """Ship when the newest step ended, if no frame has: the last step of a run is the last one that it trained."""
        self.steady.leave()
        last = self.clock.step - 1
        if last > self.shipped:
            self.shipped = last
            self._ship(without_rows(last, time.time() - (self._now() - self.ended.at)))

    def scale_of(self, kind: str) -> float | None:
        """Return the loss scale of gradients of this kind, if known."""
        return self.clock.owners.known_scale() if kind in self._scale.kinds else None

    @property
    def _has_begun(self) -> bool:
        """Return whether a module has run or a gradient has arrived in this step."""
        return self._current.began_backward or self._dispatcher.has_outputs()

    @property
    def is_fresh(self) -> bool:
        """Return whether this step is captured and has no data yet."""
        return self._current.captured and not self._has_begun and current_graph_task() == -1

    def saw_log(self) -> bool:
        """Notice an unnoticed end of a step before a scalar is logged. Return whether the next one has begun."""
        self.steady.settle()
        if not self._current.running and not self.clock.manual and not self.clock.stepping:
            self._times.prompt = False
            with DisableTorchFunction():
                self.clock.notice_end()
        return bool(self.clock.passes) or not self.clock.step

    # Calls from the clock

    def find_model(self, optimizer: Optimizer, may_run: bool) -> bool:
        """Look for a model that no hook has seen, since all of it runs compiled. Return whether there is one."""
        if not self._models.discovers:
            return False
        steps = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        if self._models.found_owner(steps):
            return True
        if may_run or self._reported_no_model:  # later in this step; a loop may make an optimizer for every batch
            return False
        self._reported_no_model = True
        self._collector.emit(
            "no-model",
            f"{type(optimizer).__name__} updates tensors of no module seen so far ({len(steps)}). If they belong to a "
            "model, pass it to hookcore.watch(model).",
        )
        if not self._models.roots:  # no step will end that could bring the event
            self._ship(self._collector.take(self.clock.step))
        return False

    def read_parameters(self) -> None:
        """Read the gradients, which are final: no torch optimizer will step."""
        if self._current.captured:
            everything, reads = self._parameters.all(), not self.clock.reach.many_threads
            if not reads and not self._reported_unread:
                self._reported_unread = True
                self._collector.emit("gradients-unread", _UNREAD)
            self._parameters.read_all(reads)
            self._observers.before_step(everything, reads)
            self._keeping.look("at the end of a step", self.clock)

    def hold_part(self) -> None:
        """Separate the data so far, which may become a step."""
        self._collector.loss.forget()
        self.parts.hold(self.clock.step)

    def release_parts(self, as_steps: bool, scales: Sequence[float] = ()) -> int:
        """Ship the held parts, and return the number of steps."""
        self._ship_held_loss()
        return self.parts.release(self.clock.step, as_steps, scales)

    def end_step(self, skipped_by: GradScaler | None) -> None:
        """Ship the frame."""
        now = self._now()
        if (passes := self._observers.probes.passes).due:
            passes.end_step()
        self._has_work = self._control.has_work
        if self._has_work:
            self._guarded(self._end_snapshots)
            self._take_flow()
        self._guarded(self._check_now_and_then)
        if self._scale.skipped_by(skipped_by):
            self._collector.mark_skipped()
            if self._scale.value is None:  # passes of an uncaptured step aren't asked for it
                self._collector.loss.forget()
        if self.parts.open:
            self.release_parts(as_steps=False)
        self._ship_held_loss()
        self._take_loss()
        captured = self._current.captured
        if captured or not self._control.paused or self._collector.has_news:
            self.shipped = self.clock.step
            elapsed_s = now - self.ended.at
            self._ship(self._collector.take(self.clock.step, elapsed_s, self._current.backwards, captured))
        if self._dispatcher.keeper is not None:
            self._guarded(lambda: self._keeping.end_step(self._models.roots))

    def _take_loss(self) -> None:
        """Add the loss of the step that ends."""
        owner = self.clock.last_owner
        found = self._collector.loss.take(self.clock.step, owner, self._scale.value)
        if found is not None and not self.clock.reach.many_threads:  # whose passes can't be told apart
            self._collector.add_scalars({self._loss_names.name_of(owner): found})

    def _ship_held_loss(self) -> None:
        held = self._collector.loss.take_held()
        if held is not None and not self.clock.reach.many_threads:
            named = {self._loss_names.name_of(held.owner): held.found}
            self._ship(without_rows(held.step, held.time_s, scalars=named, scale=held.scale))

    def _take_flow(self) -> None:
        flow = self._observers.flows.end_step(self.clock.step)
        if flow is not None:
            self._collector.add_flow(flow)
            self._sentinel.learn(flow)

    def begin_step(self) -> None:
        """Decide whether to capture the next step."""
        captured = self.optimizers.last_captured = self._current.captured
        for root in self._models.roots:
            root.note_step()
        self._scale.begin_step()
        self._dispatcher.names.begin_step(self.clock.step, captured)
        self._parameters.begin_step()
        if self._has_work:
            self._guarded(self._control.apply_pending)
        times = self._times.take(not self.clock.reach.many_threads)
        if times:  # known only now: the end of the step was a part of it
            self._ship(without_rows(self.clock.step - 1, time.time(), scalars=times))
        wanted = self._choose(captured)
        captured = wanted and not self._control.paused and self._placement.attached
        measured = captured and self._times.due()
        # Work on another device can't be timed from here, and two threads can't be distinguished.
        self._is_priced = self._alone and wanted and self._cadence.wants_timing
        self._current.meter = Meter(self._now) if self._is_priced or (measured and self._alone) else None
        if measured:
            self._times.begin(self._current.meter)
        if captured and self._cadence.is_rare(self.clock.step):
            self._guarded(self._parameters.measure_updates)
        self._placement.begin_step(self.clock.step, captured)
        self._observers.begin_step(self.clock.step, captured)
        self._collector.explain(captured)
        self._waiting.begin_step()
        self._sentinel.begin_step(self._control.paused)
        self._collector.loss.begin_step(self._control.paused)
        self.clock.reach.follows_fate = self._collector.loss.wanted
        self._guarded(self.steady.begin_step)

    def _choose(self, captured: bool) -> bool:
        """Report the last step to the cadence, and return whether the next one is captured."""
        cadence, clock = self._cadence, self.clock
        cadence.take_turns(clock.owners.longest_gap(clock.step))
        meter = self._current.meter if self._is_priced and self._alone else None
        now = self._now()
        spent = _NAN if meter is None else meter.take(now)
        # A step with a snapshot says nothing about the cost of capturing.
        cadence.step_ended(captured, _NAN if self._has_work else now - self.ended.at, spent)
        wanted = cadence.wants(clock.step) and not clock.begins_late
        clock.track.ended, clock.track.at = clock.step, self._now()
        return wanted or self._observers.hurries(clock.step)

    @property
    def _alone(self) -> bool:
        return not self.clock.reach.many_threads and not self._dispatcher.statistics.devices.arenas

    def _end_snapshots(self) -> None:
        self._observers.snapshots.end_step("capture is paused" if self._control.paused else "")

    def _rests(self) -> bool:
        return self._control.paused or any(root.evaluates for root in self._models.roots)

    def _check_now_and_then(self) -> None:
        self._parameters.look(self._now())
        if self.clock.step % CHECK_EVERY == 0:
            self.stalls.mark(self.clock.step)
            self._ownership.check(self.clock.step)

    def _guarded(self, call: Callable[[], None]) -> None:
        """Let no error of a command keep the step from ending."""
        try:
            call()
        except Exception as error:
            self._errors.record("command", error)

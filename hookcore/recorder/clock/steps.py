"""Steps: found by the clock, selected by the cadence, and shipped when they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from hookcore.hooks.compiled import guarded
from hookcore.hooks.internals import DisableTorchFunction, current_graph_task
from hookcore.recorder.capture import Capture
from hookcore.recorder.clock.clock import Clock
from hookcore.recorder.clock.pace import Stalls
from hookcore.recorder.clock.passes import BackwardPasses, OptimizerSteps, Parts
from hookcore.recorder.clock.steady import MULTIPLE, Steady
from hookcore.recorder.clock.steptimes import Meter
from hookcore.recorder.context import Context
from hookcore.recorder.known.ownership import Ownership
from hookcore.recorder.leaving.frames import without_rows
from hookcore.recorder.measured.scalars import LossNames

_NAN: Final = float("nan")
_UNREAD: Final = (
    "weight gradients are left out: several threads have run backward passes, and no torch optimizer shows which "
    "thread has which parameters. Reading a gradient that another thread is setting can crash the process."
)


class Steps:
    """Begins and ends steps. The clock calls it when one ends, and the script if it says so itself."""

    def __init__(self, context: Context, capture: Capture) -> None:
        self._context, self._current, self._errors = context, context.current, context.errors
        self._parameters, self._plans, self._cadence = context.parameters, context.plans, context.cadence
        self._lock, self._now = context.lock, context.now
        self._models, self._dispatcher, self._observers = capture.models, capture.dispatcher, capture.observers
        self._placement, self._keeping, self._sentinel = capture.placement, capture.keeping, capture.sentinel
        self._collector, self._control, self._times = capture.collector, capture.control, capture.dispatcher.times
        self._queue, self._scale = self._collector.queue, self._collector.scale
        self._ship = self._queue.put
        self.clock = Clock(context, self)
        self._loss_names = LossNames(context.owners, context.parameters)
        self._ownership = Ownership(context, self.clock)
        self.stalls, self.parts = Stalls(context), Parts(context, self._collector)
        self.optimizers = OptimizerSteps(context, capture, self.clock)
        self.passes = BackwardPasses(context, capture, self.clock, self.parts)
        self.steady = Steady(context, capture, self.passes, self.optimizers, self._ownership)
        self._has_work = False  # whether a snapshot or a command made the last step longer
        self._reported_no_model = self._reported_unread = False
        self._is_priced = False  # whether the running step's meter is for the cadence, too

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
        if self.clock.awaits_end and not (self.clock.undecided or self._current.running or self.clock.stepping):
            with DisableTorchFunction():
                self.clock.notice_end()  # if a scaler skipped the last step, no other one begins that would tell
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
        if last > self._queue.shipped:
            self._queue.shipped = last
            self._ship(without_rows(last, time.time() - (self._now() - self._context.ended.at)))

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
        """Look for the layers or the model of an optimizer. Return whether its tensors may be known now.

        No hook has seen a layer that was put in while nothing is captured, nor a model that runs compiled as a whole.
        """
        if self._models.check():
            return True
        if not self._models.discovers:
            return False
        steps = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        if self._models.found_owner(steps):
            return True
        if may_run or self._reported_no_model:  # later in this step; a loop may make an optimizer for every batch
            return False
        self._reported_no_model = True
        self._context.emit(
            "no-model",
            f"{type(optimizer).__name__} updates tensors of no module seen so far ({len(steps)}). If they belong to a "
            "model, pass it to hookcore.watch(model).",
        )
        if not self._plans.roots:  # no step will end that could bring the event
            self._ship(self._collector.take(self.clock.step))
        return False

    def read_parameters(self) -> None:
        """Read the gradients, which are final: no torch optimizer will step."""
        if self._current.captured:
            everything, reads = self._parameters.all(), not self.clock.reach.many_threads
            if not reads and not self._reported_unread:
                self._reported_unread = True
                self._context.emit("gradients-unread", _UNREAD)
            self._parameters.read_all(reads)
            self._observers.before_step(everything, reads)
            self._keeping.look("at the end of a step")

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
        self._guarded(self._observers.end_step)
        self._has_work = self._control.has_work
        if self._has_work:
            self._guarded(self._end_snapshots)
            self._take_flow()
        if self.clock.step % MULTIPLE == 0 or now >= self._parameters.look_at:
            self._guarded(self._check_now_and_then)
        if (skipped_by is not None or self._scale.flag is not None) and self._scale.skipped_by(skipped_by):
            self._collector.mark_skipped()
            if self._scale.value is None:  # passes of an uncaptured step aren't asked for it
                self._collector.loss.forget()
        if self.parts.open:
            self.release_parts(as_steps=False)
        if self._collector.loss.held is not None:
            self._ship_held_loss()
        self._take_loss()
        captured = self._current.captured
        if captured or not self._context.paused or self._collector.has_news:
            self._queue.shipped = self.clock.step
            elapsed_s = now - self.clock.track.at
            self._ship(self._collector.take(self.clock.step, elapsed_s, self._current.backwards, captured))
        if self._dispatcher.keeper is not None:
            self._guarded(self._keeping.end_step)

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
        for root in self._plans.roots:
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
        captured = wanted and not self._context.paused and self._placement.attached
        measured = captured and self._times.due()
        # Work on another device can't be timed from here, and two threads can't be distinguished.
        self._is_priced = wanted and self._cadence.wants_timing and self._alone
        self._current.meter = Meter(self._now) if self._is_priced or (measured and self._alone) else None
        if measured:
            self._times.begin(self._current.meter)
        if captured:
            self._cadence.begin_captured(self.clock.step)
            self._current.sketched = self._cadence.sketched
        ahead = self.clock.step + self._cadence.block
        if self._parameters.requests_updates and self._cadence.is_rare(ahead):
            self._guarded(lambda: self.optimizers.states.look_ahead(self._parameters.all(), ahead))
        is_rare = captured and self._cadence.is_rare(self.clock.step)
        self.optimizers.states.begin_step(self.clock.step, is_rare)
        if is_rare:
            self._guarded(self._parameters.measure_updates)
        self._placement.begin_step(self.clock.step, captured)
        self._observers.begin_step(self.clock.step, captured)
        if captured and self._cadence.reason:
            self._collector.explain()
        self.optimizers.waiting.begin_step()
        self._sentinel.begin_step(self._context.paused)
        self._collector.loss.begin_step(self._context.paused)
        self.clock.reach.follows_fate = self._collector.loss.wanted
        self._guarded(self.steady.begin_step)

    def _choose(self, captured: bool) -> bool:
        """Report the last step to the cadence, and return whether the next one is captured."""
        cadence, clock = self._cadence, self.clock
        cadence.take_turns(clock.owners.longest_gap(clock.step))
        meter = self._current.meter if self._is_priced and self._alone else None
        now, followed = self._now(), self.steady.take_spent()
        if not captured:
            cadence.followed(followed)
        spent = _NAN if meter is None else meter.take(now)
        # A step with a snapshot says nothing about the cost of capturing.
        cadence.step_ended(captured, _NAN if self._has_work else now - clock.track.at, spent)
        wanted = cadence.wants(clock.step) and not clock.begins_late
        clock.track.ended, clock.track.at = clock.step, self._now()
        return wanted or self._observers.hurries(clock.step)

    @property
    def _alone(self) -> bool:
        return not self.clock.reach.many_threads and not self._dispatcher.statistics.devices.arenas

    def _end_snapshots(self) -> None:
        self._observers.snapshots.end_step("capture is paused" if self._context.paused else "")

    def _check_now_and_then(self) -> None:
        self._parameters.look(self._now())
        if self.clock.step % MULTIPLE == 0:
            self.stalls.mark(self.clock.step)
            self._ownership.check(self.clock.step)

    def _guarded(self, call: Callable[[], None]) -> None:
        """Let no error of a command keep the step from ending."""
        try:
            call()
        except Exception as error:
            self._errors.record("command", error)

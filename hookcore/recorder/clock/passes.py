"""Backward passes and steps of optimizers: what each of them means for the running step."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Final

from torch import Tensor
from torch.optim import Optimizer

from hookcore.hooks.backward import ObservedEngine
from hookcore.hooks.compiled import guard_functions
from hookcore.hooks.distributed import newest_reduction
from hookcore.hooks.internals import DisableTorchFunction, current_graph_task
from hookcore.hooks.optimizers import begin_step, end_step
from hookcore.recorder.capture import Capture
from hookcore.recorder.clock.clock import Clock
from hookcore.recorder.clock.errors import entry
from hookcore.recorder.clock.owners import Owner
from hookcore.recorder.context import Context
from hookcore.recorder.known.parameters import Parameter, States
from hookcore.recorder.leaving.frames import Collector, RawFrame, without_rows
from hookcore.recorder.measured.scalars import name_of_rate, read_memory
from hookcore.records.vocabulary import GRADIENT_WAIT, REDUCTION_WAIT, TIME_BACKWARD, TIME_OPTIMIZER

# Optimizers, and those derived from them, whose weight decay is no part of the gradient; their groups may not say so.
DECOUPLED: Final = frozenset({"AdamW", "Lion", "Muon", "AdamW8bit", "Lion8bit", "SOAP"})


class EndsSteps:
    """A part whose methods torch calls, and that can end a step."""

    def __init__(self, context: Context, capture: Capture, clock: Clock) -> None:
        self.clock, self.boundary = clock, clock.boundary
        self._current, self._errors, self._lock = context.current, context.errors, context.lock
        self._collector, self._dispatcher, self._times = capture.collector, capture.dispatcher, capture.dispatcher.times
        self._keeping, self._sentinel = capture.keeping, capture.sentinel
        self._scale, self._loss, self._jumps = self._collector.scale, self._collector.loss, self._collector.jumps


def ends_steps(method: Callable[..., None]) -> Callable[..., None]:
    """Make the calls that wait for the end of a step if the method ended one. No lock is held then."""

    @functools.wraps(method)
    def call(self: EndsSteps, *args: Any) -> None:
        before = self.clock.step
        method(self, *args)
        if self.clock.step != before and self.boundary.waiting:
            self.boundary.run()

    guard_functions(call)
    return call


class Waiting:
    """Measures captured steps of models in `DistributedDataParallel`. Asks no other rank, and waits for none.

    Ranks of a model that torch has split wait for each other inside their passes, too, so that the end of a pass says
    nothing about who is late; of those, nothing is measured.
    """

    def __init__(self, context: Context, collector: Collector) -> None:
        self._current, self._now = context.current, context.now
        self._collector, self._replicas = collector, collector.replicas
        self._reported_s = float("-inf")  # when the last bucket of the last reported pass came

    def begin_step(self) -> None:
        """Time the gradients of this step if it is captured and some ranks wait for each other."""
        self._current.clock = self._now if self._current.captured and self._replicas.only_reduces else None

    def before_step(self) -> None:
        """Note the time when the first optimizer of a timed step is about to use the gradients."""
        self._current.clock = None
        waited = self._now() - self._current.arrived_s
        reductions = [found for each in self._replicas.reducing() if (found := newest_reduction(each)) is not None]
        newest = max(reductions, key=lambda each: each.ready_s, default=None)
        if newest is not None and newest.ready_s > self._reported_s:
            self._reported_s = newest.ready_s
            self._collector.add_scalars({REDUCTION_WAIT: newest})
        elif isfinite(waited) and self._replicas.reduces:
            self._collector.add_scalars({GRADIENT_WAIT: waited})


class OptimizerSteps(EndsSteps):
    """Reads what optimizers use and change, and reports their steps to the clock, which may end a step."""

    def __init__(self, context: Context, capture: Capture, clock: Clock) -> None:
        super().__init__(context, capture, clock)
        self._parameters, self._observers = context.parameters, capture.observers
        self.states, self._moments = States(context.statistics), capture.moments
        self._ship = self._collector.queue.put
        self.waiting = Waiting(context, self._collector)
        self.last_captured = False  # whether the step that ended last was captured

    @entry("optimizer pre-hook")
    def saw_step_begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Read gradients and weights as the optimizer is about to use them."""
        owner = self.clock.step_begins(optimizer, closure=_closure(args, kwargs) is not None)
        if owner is None:
            self._saw_inner_step()
            return
        with_gradients = not owner.inner_passes  # forward and backward run inside the step: the gradients come later
        if with_gradients and not owner.late and self._current.clock is not None:
            self.waiting.before_step()
        if with_gradients and not owner.late and current_graph_task() == -1:
            self._sentinel.look_before_step(self.clock)
        self.read_rates(owner, optimizer)
        if not owner.is_noted:
            owner.is_noted = True
            self._moments.begin(owner, optimizer)
        self._times.enter(TIME_OPTIMIZER)
        if owner.owned:
            self._parameters.forget_attempt(owner.owned)
        owner.owned, owner.copies, owner.was_read = None, [], False
        self._scale.read(owner.scaler.live(), optimizer)
        if self.last_captured if owner.late else self._current.captured:
            owned, step = self._find_owned(owner, optimizer), self.clock.step - owner.late
            if with_gradients and owned and not self.clock.reach.many_threads:
                many = sum(len(group["params"]) for group in optimizer.param_groups)
                self._parameters.raw.compare(owned, many, owner.late)
            owned = owner.owned = self._parameters.unread(owned, step) if owner.late else owned
            owner.copies = self._parameters.before_step(owned, with_gradients, step)
            if owned:
                self._observers.before_step(owned, with_gradients)
            self._keeping.look("before an optimizer's step")
        self._keeping.settle("before an optimizer's step")

    def read_rates(self, owner: Owner, optimizer: Optimizer) -> None:
        """Add the learning rates that have changed to the step that they are used in."""
        if not self._loss.reads or not (changed := self._collector.rates.read(owner, optimizer)):
            return
        places, step = self.clock.owners.optimizers(), self.clock.step - owner.late
        place = next(place for place, each in enumerate(places) if each is optimizer)
        scalars = {name_of_rate(place, group): now for group, (_, now) in changed.items()}
        if owner.last_step == step - 1 >= 0:  # the first change shows what it was until then
            earlier = {name_of_rate(place, group): was for group, (was, _) in changed.items() if was is not None}
            if earlier:
                self._ship(without_rows(step - 1, time.time(), scalars=earlier))
        if owner.late:
            self._ship(without_rows(step, time.time(), scalars=scalars))
        else:
            self._collector.add_scalars(scalars)

    def _saw_inner_step(self) -> None:
        """Read the gradients that an optimizer uses inside another one's step, as in most versions of SAM.

        The outer one may reset them before its step ends.
        """
        outer = self.clock.outermost
        if outer is not None and outer.inner_passes and outer.owned and not outer.was_read:
            self._read_gradients(outer, outer.owned)

    def _read_gradients(self, owner: Owner, owned: list[Parameter]) -> None:
        """Read the gradients that an optimizer has computed inside its step."""
        owner.was_read = True
        if (optimizer := owner.ref()) is not None:
            self._scale.read(owner.scaler.live(), optimizer)
        self._parameters.read_gradients(owned)
        self._observers.read_gradients(owned)

    def _find_owned(self, owner: Owner, optimizer: Optimizer) -> list[Parameter]:
        """Return the watched parameters of an optimizer; none if none of them need to be read."""
        version, observers = self._parameters.version, self._observers
        if owner.settled == version and not (observers.snapshots.active or observers.probes.due):
            return []
        owned = self._parameters.owned(optimizer)
        owner.settled = version if self._parameters.are_settled(owned) else -1
        return owned

    @ends_steps
    @entry("optimizer post-hook")
    def saw_step_end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """End the step if the optimizer's parameters got new gradients since the last one."""
        owner = self.clock.step_ended(optimizer)
        if owner is None:
            return
        self._times.leave(TIME_OPTIMIZER)
        self.clock.track.count_update()
        owned, copies, owner.owned, owner.copies = owner.owned, owner.copies, None, []
        computes = owner.inner_passes and (owner.runs_passes or _closure(args, kwargs) is not None)
        if computes and not owner.steps and not owner.was_read:
            # Its model may have been discovered inside this step, so the beginning was ignored.
            owned = self._parameters.owned(optimizer) if self._current.captured else None
        if owned is not None:
            if computes and not owner.was_read:
                self._parameters.forget_gradients(owned)  # at its beginning, they were those of the step before
                self._read_gradients(owner, owned)
            if copies:
                self._parameters.after_step(copies)
            if self.states.due or self.states.was_due:
                self.states.read(optimizer, owned, owner.late)
                decays_of = functools.partial(_decays_of, optimizer)
                self._collector.steps += self.states.compare(copies, decays_of, owner.late)
            if owned:
                self._observers.after_step(owned)
        self._count(owner, captured=owned is not None)

    def _count(self, owner: Owner, captured: bool) -> None:
        if self.clock.manual:
            return
        if current_graph_task() != -1:
            self.clock.end_with_pass(owner)
            return
        now = self.clock.step
        step = self.clock.count(owner)
        if 0 <= step < now and captured:  # a second optimizer after the same backward pass
            self._ship(self._collector.take(step, micro_batches=self._current.backwards))
            self._scale.forget()


def _decays_of(optimizer: Optimizer) -> dict[int, float]:
    """Return the share of each weight that decay takes in a step, by the weight's id."""
    decays: dict[int, float] = {}
    for group in optimizer.param_groups:
        decays |= dict.fromkeys(map(id, group["params"]), _decay_in(optimizer, group))
    return decays


def _decay_in(optimizer: Optimizer, group: Mapping[str, Any]) -> float:
    """Return the share of a weight that decay takes in a step; NaN if decay is a part of the gradient, or unknown."""
    names = {base.__name__ for base in type(optimizer).__mro__}
    product = 1.0 if group.get("decoupled_weight_decay") or names & DECOUPLED else float("nan")
    for name in ("lr", "weight_decay"):
        value = group.get(name)
        number = read_memory(value) if isinstance(value, Tensor) else value
        product *= number if isinstance(number, int | float) else float("nan")
    return product


def _closure(args: Any, kwargs: Any) -> Any:
    return kwargs.get("closure") if "closure" in kwargs else args[1] if len(args) > 1 else None


guard_functions(begin_step, end_step)


class Parts:
    """Cuts the running step into parts, and ships them when the clock has decided what they are."""

    def __init__(self, context: Context, collector: Collector) -> None:
        self._current, self._cadence = context.current, context.cadence
        self._collector, self._scale, self._ship = collector, collector.scale, collector.queue.put
        self._held: list[list[RawFrame]] = []
        self.open: list[RawFrame] = []  # of the newest part, which isn't held yet
        self.is_cut = False  # whether the arena holds only data after the open ones
        self.has_new_held = False  # whether no backward pass has ended since a part was held

    def saw_pass(self) -> None:
        """Note that the arena holds data of the open part again."""
        self.is_cut = self.has_new_held = False

    def cut(self, step: int) -> None:
        """Separate the data so far from what follows."""
        if not self.is_cut:
            self.open.append(self._collector.take(step))
            self.is_cut = True

    def stop(self, step: int) -> None:
        """Separate the data so far, because capture stops inside the step."""
        self.is_cut = False  # modules may have run since the last cut
        self.cut(step)
        self.open[-1].micro_batches += self._current.take_backwards()

    def hold(self, step: int) -> None:
        """Close the open part, which may become a step."""
        if not self.is_cut:
            self.open.append(self._collector.take(step))
        self.open[-1].micro_batches += self._current.take_backwards()
        self._held.append(self.open)
        self.open, self.is_cut, self.has_new_held = [], False, True

    def add_to_held(self, scalars: dict[str, Any]) -> None:
        """Add numbers to the part that was held last."""
        self._held[-1][-1].scalars.update(scalars)

    def release(self, step: int, as_steps: bool, scales: Sequence[float] = ()) -> int:
        """Ship all parts, as parts of the running step or as steps from it on. Return the number of steps.

        `scales`: a scaler skipped these steps, and the loss was multiplied by these scales; NaN if unknown.
        """
        held, self._held, self.has_new_held = self._held, [], False
        for offset, parts in enumerate(held):
            if scales:
                self._collector.mark_part_skipped(parts[-1], step + offset)
            scale = scales[offset] if scales else None if as_steps else self._scale.value
            self._put(parts, step + (offset if as_steps else 0), as_steps, scale)
        if not as_steps:
            self._current.backwards += sum(parts[-1].micro_batches for parts in held)
        steps = len(held) if as_steps else 0
        self._put(self.open, step + steps, as_steps, self._scale.value)
        self.open = []
        return steps

    def _put(self, parts: list[RawFrame], step: int, as_steps: bool, scale: Any) -> None:
        for part in parts:
            if part.step != step:
                part.events = tuple(
                    replace(event, step=step) if event.step == part.step else event for event in part.events
                )
            part.step, part.scale = step, scale
            # Captured only while it wasn't known to be a step, or with gradients that have an unknown scale.
            unknown = isinstance(scale, float) and math.isnan(scale)  # don't wait for one on a device
            if unknown or (as_steps and not self._cadence.chooses(step)):
                part.drop_rows()
            self._ship(part)


class BackwardPasses(EndsSteps):
    """Tells the clock of the passes, which may end a step."""

    def __init__(self, context: Context, capture: Capture, clock: Clock, parts: Parts) -> None:
        super().__init__(context, capture, clock)
        self._placement, self._probes = capture.placement, capture.observers.probes.passes
        self._parameters = context.parameters
        self.parts = parts

    @entry("begin of a backward pass")
    def backward_begins(self, accumulates: bool, tensors: Sequence[Any], weights: Sequence[Any]) -> None:
        """Note that a backward pass of this process starts."""
        self._times.enter(TIME_BACKWARD)
        self._current.begin_pass(accumulates)
        if (holding := self._placement.holding) is not None and holding.is_on:
            holding.begin_pass()
        if accumulates:
            self.clock.pass_begins()  # which may notice the end of the last step
            if self._loss.reads:
                self._loss.begin_pass(tensors, weights, self.clock.reach.fate)
                self.see_jump(tensors)
            if self._probes.due:
                self._probes.begin()

    def see_jump(self, tensors: Sequence[Any]) -> None:
        """Let the step be saved if the loss of the pass that begins is a jump."""
        loss = self._jumps.saw(self._loss.running)
        if loss is not None and not self._keeping.jump(tensors[0], loss, self._jumps.limit):
            self._jumps.is_new = False

    @ends_steps
    @entry("end of a backward pass")
    def backward_ended(self, accumulates: bool, raised: bool) -> None:
        """Note the end of the pass, even if it raised."""
        self._times.leave(TIME_BACKWARD)
        reached, running = self._current.end_pass(accumulates), self._loss.running
        if accumulates and not raised:
            self._sentinel.look(self.clock, self._loss.running, lambda: reached or self._counts(self.clock.reaches))
        if reached or (raised and accumulates):  # a pass that failed is given up, wherever it got to
            self._dispatcher.reset_calls()
        if reached:
            self._keeping.look("at the end of a backward pass", is_whole=False)
        if (holding := self._placement.holding) is not None and holding.is_on:
            holding.end_pass()
        if accumulates:
            self._end_accumulating(reached)
            if not raised and (reached or self._counts(self.clock.reaches)):
                self._jumps.add(running or ())
            self._keeping.settle("at the end of a backward pass")

    def _end_accumulating(self, reached: bool) -> None:
        if self._probes.due:
            self._probes.end()
        if self.parts.is_cut or self.parts.has_new_held:
            self.parts.saw_pass()
        if reached or self.clock.ends_with_pass:  # now, because an optimizer that steps inside the pass ends the step
            self._loss.end_pass(counts=True)
        if self.clock.stepping:
            self._loss.forget()  # a closure is called as often as the optimizer likes
        elif self._reads_gradients and (reached or self._counts(self.clock.reaches)):
            self._parameters.end_pass()
        reaches = self.clock.pass_ended()
        if not reached:
            self._end_unwatched(reaches)
        pending = self._current.captured and self.clock.awaits_end
        self._current.pending = pending
        if pending:
            self._scale.note_pass(self.clock.owners.scalers())

    @property
    def _reads_gradients(self) -> bool:
        """Whether gradients can be read after the running pass, whose optimizer is yet to step."""
        return self._current.captured and not (self.clock.ends_with_pass or self.clock.reach.many_threads)

    def _end_unwatched(self, reaches: bool) -> None:
        """End a pass without watched tensors: none of an uncaptured step is, and some passes reach parameters only."""
        counts = self._counts(reaches)
        if self._current.captured and not counts:
            self.clock.note_stray()
        self._loss.end_pass(counts)

    def _counts(self, reaches: bool) -> bool:
        """Return whether a pass without watched tensors is one of this training, if it reaches a witness or may."""
        return reaches and (self.clock.compares_passes or not self._current.captured)

    def inner_begins(self, accumulates: bool) -> bool:
        """Note that a pass starts inside a pass."""
        return self._current.begin_inner(accumulates)

    def inner_ended(self) -> None:
        """Note that a pass inside a pass ended whose gradients don't count."""
        self._current.end_inner()

    def saw_pending_call(self) -> None:
        """Check whether a step has ended: a module is about to run, after a pass that may have been the last one."""
        with self._lock, DisableTorchFunction():
            if self._current.running or self.clock.stepping:
                return
            self._current.pending = self._times.prompt = False
            if not self.clock.notice_end() and self.clock.undecided:
                self.parts.cut(self.clock.step)


guard_functions(ObservedEngine.run_backward)

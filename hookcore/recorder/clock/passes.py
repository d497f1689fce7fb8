"""Backward passes and steps of optimizers: what each of them means for the running step."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from hookcore.observe.copies import sample, unit
from hookcore.observe.plain import unseen
from hookcore.recorder.capture import Capture
from hookcore.recorder.clock.clock import Clock
from hookcore.recorder.clock.errors import entry
from hookcore.recorder.clock.owners import Owner
from hookcore.recorder.context import Context
from hookcore.recorder.known.parameters import ROOM, Copies, Parameter, StepOfWeight, parts_of
from hookcore.recorder.leaving.frames import Collector, RawFrame, without_rows
from hookcore.recorder.measured.scalars import name_of_rate, read_memory
from hookcore.recorder.measured.statistics import Statistics, is_shard
from hookcore.records import PROBE, Kind, Tap
from hookcore.records.vocabulary import (
    DECAY_SHARE,
    GRADIENT_WAIT,
    REDUCTION_WAIT,
    STEP_NUMBERS,
    TIME_BACKWARD,
    TIME_OPTIMIZER,
    UPDATE_COSINE,
)

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


_KINDS: Final[Mapping[str, Kind]] = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}  # others are of the kind `state`
SPLIT: Final = (
    "numbers about whole updates, such as the effective learning rate, are left out: a rank has a part of each"
)
JOINED: Final = (
    "the cosine of its successive updates is left out: its optimizer steps after another one, which ends the step"
)
MAX_SAMPLES: Final = 2**22  # values of all weights that are kept from before the step before
MAX_SAMPLE: Final = 4096  # values of one weight
NO_ROOM: Final = "its optimizer's state is left out: there is no room for more tensors"


class States:
    """Measures the states of optimizers in the steps in which they are due."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._rows: dict[
            tuple[str, str], tuple[int, ...]
        ] = {}  # by module and name: of the weight after a step, and of numbers
        self.due = self.was_due = False  # in the running step, and in the one before
        # Samples of weights before their last step, by the step whose updates are compared with it, and by id.
        self._earlier: dict[int, dict[int, Tensor]] = {}
        self._most = MAX_SAMPLE

    def begin_step(self, step: int, due: bool) -> None:
        """Begin a step, in which they may be due."""
        self.due, self.was_due = due, self.due
        if self._earlier:
            self._earlier = {ahead: each for ahead, each in self._earlier.items() if ahead >= step - 1}

    def look_ahead(self, parameters: Iterable[Parameter], step: int) -> None:
        """Keep samples of weights before their last step before this one, in which they are due."""
        wanted = [each for each in parameters if "update" in each.plan.kinds and each.grad_slot >= 0]
        self._most = max(64, min(MAX_SAMPLE, MAX_SAMPLES // max(1, len(wanted))))
        with unseen():
            found = ((id(each), self._sample(each.tensor)) for each in wanted)
            self._earlier[step] = {key: part for key, part in found if part is not None}

    def _sample(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None or is_shard(tensor) or not tensor.numel() else sample(tensor, self._most)

    def turn(self, copies: Copies, step: int, late: bool) -> None:
        """Measure the cosine of each update to the one before. `copies`: weights before the step."""
        samples = self._earlier.get(step)
        if not samples:
            return
        with unseen():
            for parameter, old in copies:
                earlier, plan = samples.pop(id(parameter), None), parameter.plan
                before, now = self._sample(old), self._sample(parameter.tensor)
                if late:
                    plan.note_reason(JOINED)
                elif earlier is not None and before is not None and now is not None and earlier.shape == now.shape:
                    slot = self._statistics.table.add(Tap(plan.path, PROBE, f"{UPDATE_COSINE} {parameter.name}"))
                    cosine = (unit(before - earlier) * unit(now - before)).sum().clamp(-1.0, 1.0)
                    if slot >= 0:
                        self._statistics.add(plan, cosine, slot)

    def read(self, optimizer: Optimizer, owned: Sequence[Parameter], late: bool) -> None:
        """Measure what this optimizer keeps for these parameters, which it has just stepped.

        `late`: after another optimizer, which has ended the step.
        """
        if not (self.was_due if late else self.due):
            return
        has_room = self._statistics.table.room >= ROOM * len(owned)
        for each in owned:
            if "param_grad" not in each.plan.kinds or (tensor := each.tensor) is None:
                continue
            if not has_room:
                each.plan.note_reason(NO_ROOM)
                continue
            with unseen():
                found = dict(_tensors_in(optimizer.state.get(tensor), tensor))
            for name, value in found.items():
                self._add(each, name, value)

    def compare(self, copies: Copies, decays_of: Callable[[], Mapping[int, float]], late: bool) -> list[StepOfWeight]:
        """Measure weights after a step whose updates are captured. Return what to compute of them.

        `decays_of` returns what weight decay takes of each weight, by the weight's id.
        """
        found: list[StepOfWeight] = []
        if not (self.was_due if late else self.due) or self._statistics.table.room < ROOM * len(copies):
            return found
        decays = decays_of() if copies else {}
        for parameter, _ in copies:
            plan, tensor = parameter.plan, parameter.tensor
            if tensor is None or "update" not in plan.kinds or parameter.grad_slot < 0:
                continue
            if is_shard(tensor):
                plan.note_reason(SPLIT)
                continue
            decay = decays.get(id(tensor), float("nan"))
            after, *numbers = self._rows_of(parameter, decay == decay)
            if after >= 0:
                self._statistics.add_safely(plan, tensor, after)
                slots = parameter.grad_slot, parameter.update_slot, parameter.norm_slot, after
                found.append(StepOfWeight(*slots, decay, tuple(numbers)))
        return found

    def _rows_of(self, parameter: Parameter, with_decay: bool) -> tuple[int, ...]:
        """Return the row of the weight after the step, and those of the numbers; -1 for one that is never known."""
        plan, name = parameter.plan, parameter.name
        rows = self._rows.get((plan.path, name))
        if rows is None:
            table = self._statistics.table
            numbers = (
                table.add(Tap(plan.path, PROBE, f"{each} {name}")) if each != DECAY_SHARE or with_decay else -1
                for each in STEP_NUMBERS
            )
            rows = table.add(Tap(plan.path, "param", name), hidden=True), *numbers
            self._rows[plan.path, name] = rows
        return rows

    def _add(self, parameter: Parameter, name: str, value: Tensor) -> None:
        plan = parameter.plan
        if not (value.is_floating_point() or value.is_complex()):
            plan.note_reason(f"{name} of its optimizer is left out: only the optimizer can decode its {value.dtype}")
            return
        kind = _KINDS.get(name, "state")
        index = parameter.name if kind != "state" else f"{parameter.name}.{name}"
        if (slot := self._statistics.table.add(Tap(plan.path, kind, index))) >= 0:
            self._statistics.add_safely(plan, value, slot)


def _tensors_in(state: Any, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a parameter's state by name: those of its own shape, and factors of it.

    A counter of steps is a number, and what LBFGS keeps for its first parameter is about all of them.
    """
    known = {1, *parameter.shape}
    for name, each in parts_of(state):
        is_counter = not isinstance(each, Tensor) or each.dim() == 0 < parameter.dim() or not each.numel()
        if not is_counter and known.issuperset(each.shape):
            yield name, each


class OptimizerSteps(EndsSteps):
    """Reads what optimizers use and change, and reports their steps to the clock, which may end a step."""

    def __init__(self, context: Context, capture: Capture, clock: Clock) -> None:
        super().__init__(context, capture, clock)
        self._parameters, self._observers = context.parameters, capture.observers
        self.states, self._moments = States(context.statistics), capture.moments
        self._devices = context.statistics.devices
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
            self.read(owner, optimizer, with_gradients)
        self._keeping.settle("before an optimizer's step")

    def read(self, owner: Owner, optimizer: Optimizer, with_gradients: bool = True) -> None:
        """Read what an optimizer is about to use in a captured step."""
        owned, step = self._find_owned(owner, optimizer), self.clock.step - owner.late
        with_gradients = with_gradients and self._may_read(owned)
        if with_gradients and owned and not self.clock.reach.many_threads:
            many = sum(len(group["params"]) for group in optimizer.param_groups)
            self._parameters.raw.compare(owned, many, owner.late)
        owned = owner.owned = self._parameters.unread(owned, step) if owner.late else owned
        owner.copies = self._parameters.before_step(owned, with_gradients, step)
        if owned:
            self._observers.before_step(owned, with_gradients)
        self._keeping.look("before an optimizer's step")

    def _may_read(self, owned: list[Parameter]) -> bool:
        """Return whether no other thread may be setting the gradients of what an optimizer steps in this one."""
        return not self.clock.reach.many_threads or self._parameters.may_read(owned)

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
        if self._may_read(owned):
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
                decays_of = functools.partial(_decays_of, optimizer)
                with self._devices.together():
                    self.states.read(optimizer, owned, owner.late)
                    self._collector.steps += self.states.compare(copies, decays_of, owner.late)
                    self.states.turn(copies, self.clock.step - owner.late, owner.late)
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
            # What was logged is of the running step, as if none were captured.
            logged, self._collector.scalars = self._collector.scalars, {}
            self._ship(self._collector.take(step, micro_batches=self._current.backwards))
            self._collector.scalars = logged
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
        self._context, self._parameters = context, context.parameters
        self.parts = parts

    @entry("begin of a backward pass")
    def backward_begins(self, accumulates: bool, tensors: Sequence[Any], weights: Sequence[Any]) -> None:
        """Note that a backward pass of this process starts."""
        self._times.enter(TIME_BACKWARD)
        self._current.begin_pass(accumulates)
        if accumulates and self._is_unseen and self.clock.alone is not None:
            self.clock.note_stray()
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
        reaches = accumulates and self._is_unseen and self.clock.compares_passes and self.clock.reaches
        reached, running = self._current.end_pass(accumulates, reaches), self._loss.running
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
    def _is_unseen(self) -> bool:
        """Whether no hook receives a gradient in this captured step, so that only parameters show whose pass it is."""
        return self._current.captured and not self._context.receives_gradients

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
        # Another thread may have begun the captured step after this one's forward pass.
        is_watched = self._current.captured and not self.clock.reach.many_threads
        return reaches and (self.clock.compares_passes or not is_watched)

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

"""The short way through a step that isn't captured.

Such a step needs little: its number, its loss, its time, and a look at its gradients. While a training does what it did
in the step before, that is done here, for each of torch's four calls. All else is left to the full machinery, in the
call that differs. Both change the same state, so either may follow the other at any call. Only frames and the cadence's
sums come later: the next captured step is known when the last one ends, so an uncaptured step compares one number.

If the extension is there, its *track* (`observe/_track.h`) sees torch's calls even before. It does the same for a run
of steps that are equal in all that is checked here, touches few objects, and keeps notes. They are settled, that is,
turned into the state that this module would have made, when a call differs, and whenever somebody else needs it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookcore.hooks.compiled import guard_functions, until_compiled
from hookcore.hooks.handle import STEP_LOOP
from hookcore.hooks.internals import SCALER_STEPS, current_graph_task, dispatch_modes, function_modes
from hookcore.observe import cpu
from hookcore.recorder.calls.keeping import Holding, Keeping
from hookcore.recorder.calls.plans import StepKeeper
from hookcore.recorder.capture import Capture
from hookcore.recorder.clock.cadence import Cadence
from hookcore.recorder.clock.clock import RENEW_EVERY, Boundary, Clock
from hookcore.recorder.clock.current import CurrentStep
from hookcore.recorder.clock.errors import ErrorLog
from hookcore.recorder.clock.owners import FIRST_WITNESSES, Owner
from hookcore.recorder.clock.passes import BackwardPasses, OptimizerSteps
from hookcore.recorder.clock.steptimes import StepTimes
from hookcore.recorder.context import Context
from hookcore.recorder.known.ownership import Ownership
from hookcore.recorder.known.parameters import Parameters, groups_of
from hookcore.recorder.known.roots import Root
from hookcore.recorder.leaving.frames import MAX_BATCH, Collector, FrameQueue
from hookcore.recorder.measured.scalars import FIRST_STEPS, product_of
from hookcore.recorder.measured.sentinel import Sentinel
from hookcore.recorder.measured.snapshots import Snapshots

CHECK_EVERY: Final = 64  # steps of which at least one goes the long way, where rare checks are made
NEAR: Final = 4  # frames between a loop's line and the optimizer's step, among which a scaler is looked for

# What may come next: anything (the full machinery decides), a backward pass, its end, an optimizer's step or another
# pass, and its end. The extension has the same list.
_OFF, _PASS, _IN_PASS, _STEP, _IN_STEP = range(5)

_PLAIN: Final = frozenset((Tensor, nn.Parameter))
_LOOP: Final = next(iter(STEP_LOOP))
_SCALERS: Final = frozenset(code.co_name for code in SCALER_STEPS)
_TRACKS: Final = hasattr(cpu.Track, "saw_step_begin")
_MOST_WITNESSES: Final = FIRST_WITNESSES  # of an optimizer whose steps the track handles; the extension has the same
_float32: Final = torch.float32


class TrackFacts(NamedTuple):
    """What a track looks at. The extension has the same list."""

    optimizer: Callable[[], Optimizer | None]
    now: Callable[[], float] | None  # None for `time.perf_counter`
    function_modes: Callable[[], int]
    dispatch_modes: Callable[[], int]
    graph_task: Callable[[], int]
    loop: CodeType
    scalers: tuple[CodeType, ...]
    witnesses: tuple[Tensor, ...]
    roots: tuple[tuple[Any, bool], ...]  # their models, by weak reference, and whether they are in training mode
    lookouts: tuple[Tensor, ...]
    empty: tuple[Sized, ...]  # what waits for the end of a step
    cells: tuple[tuple[Any, str, Any], ...]  # attributes that must stay the same objects
    groups: tuple[tuple[int, int, float | None], ...]  # of the optimizer: how many tensors, the last one's id, the rate
    tensor: type
    float32: torch.dtype
    hooks: dict[int, Any] | None  # the table, key, and hook by which the next calls of modules are seen
    number: int | None
    hook: Any
    kept: Any  # what has the held call as its attribute `held`
    absent: tuple[tuple[dict[str, Any], str], ...]  # tables, and keys that must stay absent from them


@dataclass(slots=True, eq=False)
class Steady:
    """Sees torch's calls first, and passes those on that it doesn't handle itself."""

    _context: Context
    _capture: Capture
    _passes: BackwardPasses
    _optimizers: OptimizerSteps
    _ownership: Ownership
    clock: Clock = field(init=False)
    boundary: Boundary = field(init=False)
    _collector: Collector = field(init=False)  # and what else each step uses
    _cadence: Cadence = field(init=False)
    _parameters: Parameters = field(init=False)
    _keeping: Keeping = field(init=False)
    _sentinel: Sentinel = field(init=False)
    _queue: FrameQueue = field(init=False)
    _times: StepTimes = field(init=False)
    _lock: AbstractContextManager[Any] = field(init=False)
    _now: Callable[[], float] = field(init=False)
    _current: CurrentStep = field(init=False)
    _errors: ErrorLog = field(init=False)
    _stacks: dict[int, list[tuple[int, int]]] = field(init=False)  # the optimizers' steps that are running, by thread
    _events: Sized = field(init=False)  # for the next frame
    _changes: Sized = field(init=False)  # commands that wait
    _snapshots: Snapshots = field(init=False)
    _track: Any = field(init=False)
    _next: int = field(default=_OFF, init=False)
    _keeper: StepKeeper | None = field(default=None, init=False)  # if it keeps the calls of uncaptured steps
    _holding: Holding | None = field(default=None, init=False)  # likewise
    _thread: int = field(default=0, init=False)
    _until: int = field(default=0, init=False)  # the first step that ends the long way
    _until_s: float = field(default=0.0, init=False)
    _spent_s: float = field(default=0.0, init=False)  # as far as it was taken
    _roots: list[Root] = field(default_factory=list, init=False)  # of the optimizer's witnesses
    _looks: bool = field(default=False, init=False)
    _reads: bool = field(default=False, init=False)  # the loss
    _paused: bool = field(default=False, init=False)
    _name: str = field(default="", init=False)  # of the loss
    _witnessed: frozenset[int] = field(default=frozenset(), init=False)  # the witnesses that the track looks at, by id
    _modes: list[tuple[Root, bool]] = field(default_factory=list, init=False)  # of their models

    def __post_init__(self) -> None:
        context, capture, clock = self._context, self._capture, self._passes.clock
        self.clock, self.boundary, self._stacks = clock, clock.boundary, clock.nesting.stacks
        self._collector, self._queue = capture.collector, capture.collector.queue
        self._cadence, self._parameters = context.cadence, context.parameters
        self._keeping, self._sentinel, self._times = capture.keeping, capture.sentinel, capture.dispatcher.times
        self._lock, self._now, self._current, self._errors = context.lock, context.now, context.current, context.errors
        self._events, self._changes = context.events, capture.commands.changes
        self._snapshots, self._track = capture.observers.snapshots, context.track
        self._track.serve(self)

    @property
    def front(self) -> Any:
        """Who sees torch's calls."""
        return self._track if _TRACKS else self

    # Between two steps

    def leave(self) -> None:
        """Go the long way for the rest of this step: something was requested."""
        self.settle()
        self._next = _OFF

    def begin_step(self) -> None:
        """Decide whether the step that begins may go the short way, after one that didn't."""
        self._next = _OFF
        if not self._current.captured and self.clock.is_steady and self._is_quiet():
            self._enter()

    def _is_quiet(self) -> bool:
        """Return whether nothing waits that needs the end of a step, and nobody looks at this one."""
        current, loss, parts = self._current, self._collector.loss, self._passes.parts
        capture, observers = self._capture, self._capture.observers
        return (
            capture.placement.attached
            and current.meter is None
            and not (current.running or current.ignoring or current.pending)
            and not (parts.open or parts.is_cut or parts.has_new_held)
            and not (observers.snapshots.active or observers.flows.is_learning or observers.probes.has_any)
            and not (loss.holds or capture.dispatcher.names.has_any)
            and self.clock.step > FIRST_STEPS
        )

    def _enter(self) -> None:
        step, owner = self.clock.step, self.clock.alone
        keeper = self._capture.dispatcher.keeper
        assert owner is not None
        if (keeper is not None and keeper.has_fired) or not self._know_witnesses(owner):
            return
        is_armed = keeper is not None and keeper.armed
        self._keeper, self._holding = (keeper, self._capture.placement.holding) if is_armed else (None, None)
        self._thread, self._paused = get_ident(), self._context.paused
        self._looks, self._reads = self._sentinel.is_on, self._collector.loss.reads
        if self._looks and not self._sentinel.prepare():
            return
        if self._reads and not owner.loss_name and not self._collector.loss.is_logged:
            return  # it gets its name the long way
        self._name = owner.loss_name
        chosen = step + CHECK_EVERY if self._paused else self._cadence.next_chosen(step)
        self._until = min(chosen - 1, self._ownership.next, (step // CHECK_EVERY + 1) * CHECK_EVERY)
        self._until_s = self._parameters.look_at
        self._teach(owner)
        if step < self._until:
            self._next = _PASS
            self._start()

    def _know_witnesses(self, owner: Owner) -> bool:
        """Find the models of the optimizer's witnesses. Return False if any of these is of a custom class."""
        self._roots = self._parameters.roots_of(owner.witnesses.keys)
        return all(type(each) in _PLAIN for each in owner.witnesses.tensors)

    # The track

    def _teach(self, owner: Owner) -> None:
        """Let the track know the facts by which it handles the next steps, if it can."""
        self._track.drop()
        optimizer, witnesses, holding = owner.ref(), owner.witnesses, self._holding_facts()
        if not _TRACKS or optimizer is None or holding is None or len(witnesses.tensors) > _MOST_WITNESSES:
            return
        rates = None if self._collector.rates.is_logged or not self._reads else owner.rates or []
        if not (groups := groups_of(optimizer.param_groups, rates)):
            return
        parts, empty, held, absent = holding
        parts += [(self._parameters, name) for name in ("adopted", "version", "forms")]
        self._witnessed = witnesses.keys
        self._modes = [(root, module.training) for root in self._roots if (module := root.ref()) is not None]
        facts = TrackFacts(
            owner.ref,
            None if self._now is time.perf_counter else self._now,
            function_modes,
            dispatch_modes,
            current_graph_task,
            _LOOP,
            tuple(SCALER_STEPS),
            tuple(witnesses.tensors),
            tuple((root.ref, training) for root, training in self._modes),
            tuple(self._sentinel.lookouts) if self._looks else (),
            (self._changes, self.boundary.waiting, *empty),
            tuple((part, name, getattr(part, name)) for part, name in parts),
            groups,
            Tensor,
            _float32,
            *held,
            absent,
        )
        self._track.learn(facts)

    def _holding_facts(self) -> tuple[list[tuple[Any, str]], Any, tuple[Any, Any, Any, Any], Any] | None:
        """Return cells, what is empty, hook and what is kept, and what is absent; None if calls can't be held."""
        keeper, holding = self._keeper, self._holding
        if keeper is None or holding is None:
            return [], (), (None, None, None, None), ()
        kept, conditions = keeper.lone, until_compiled()
        if kept is None or conditions is None or not holding.is_on:
            return None
        empty, absent = conditions
        return [(keeper, "newest"), (holding, "is_on")], empty, (*holding.entry, kept), absent

    def _start(self) -> None:
        """Let the track handle the next steps, if it knows the facts and nothing waits."""
        if _TRACKS and not self._collector.scalars:
            self._track.enter(self._until, self._until_s, self._looks, self._reads)

    def take_spent(self) -> float:
        """Return for how many seconds torch's calls have been with hookcore since this was asked last; 0 if unknown."""
        holding = self._capture.placement.holding
        now = self._track.spent_s + (0.0 if holding is None else holding.spent_s)
        before, self._spent_s = self._spent_s, now
        return float(now - before)

    def check(self) -> None:
        """Stop the track if something waits for the end of a step. Called now and then by the recorder's thread."""
        if self._track.runs and self._has_news():
            self.settle()

    @property
    def has_notes(self) -> bool:
        """Whether the track has notes of steps that ended."""
        return bool(self._track.noted)

    def settle(self) -> None:
        """Take the track's notes, and let it handle no more calls of this step."""
        self._take(stops=True)

    def sync(self) -> None:
        """Take its notes if there are any, from any thread."""
        if self._track.noted:
            self._take(stops=False)

    def _take(self, stops: bool) -> None:
        with self._lock:  # the training goes on meanwhile, until something differs
            notes = self._track.take(stops)
            if notes is not None:
                try:
                    self._apply(*notes)
                except Exception as error:
                    self._errors.record("notes of steps", error)

    def _apply(
        self,
        now_next: int,
        step: int,
        elapsed_s: list[float],
        times_s: list[float],
        losses: list[float],
        running: float,
        looked_at: int,
        in_pass: list[Any],
        in_step: list[Any],
        frame: int,
    ) -> None:
        """Make the state that these steps, and the calls of the running one, would have made."""
        owner, passed = self.clock.alone, now_next in (_STEP, _IN_STEP)
        if owner is None:
            return
        self._next = now_next
        if looked_at >= 0:
            self._sentinel.looked(looked_at)
        if elapsed_s:
            self._apply_ended(owner, step, elapsed_s, times_s, losses)
            if owner.witnesses.keys is self._witnessed:
                owner.witnesses.explain(in_step)
        (self._current.running.add if now_next == _IN_PASS else self._current.running.discard)(self._thread)
        self._times.prompt = now_next in (_PASS, _STEP)
        self.clock.passes, self.clock.reach.passed = int(passed), passed
        for root, training in self._modes:
            root.passed_in_training = training if passed else None
        self._stacks.pop(self._thread, None)
        if now_next == _IN_STEP:
            owner.late = owner.inner_passes = False
            self._stacks[self._thread] = [(id(owner.ref()), frame)]
        if now_next != _PASS:
            self._apply_pass(now_next == _IN_PASS, running, in_pass)

    def _apply_ended(
        self, owner: Owner, step: int, elapsed_s: list[float], times_s: list[float], losses: list[float]
    ) -> None:
        many, wanted = len(elapsed_s), self._collector.loss.wanted
        self._cadence.followed(self.take_spent(), many)
        if not self._paused:
            self._queue.shipped = step - 1
            parts = [[each] if wanted else None for each in losses]
            numbers = range(step - many, step)
            rest = [None] * many, [self._name] * many
            self._queue.frames.extend(zip(numbers, times_s, elapsed_s, *rest, parts, strict=True))
        self._cadence.skipped.extend(elapsed_s)
        owner.steps += many
        owner.ended += many
        owner.last_step = step - 1
        for root, training in self._modes:
            root.trained = training
        self._optimizers.last_captured = False
        self._current.number = step
        self._collector.loss.of_step = []
        if self._keeper is not None:
            self._keeper.ended(many)

    def _apply_pass(self, runs: bool, running: float, in_pass: list[Any]) -> None:
        reach, loss = self.clock.reach, self._collector.loss
        reach.fate, self._current.reached = "kept", False
        reach.comparison.skip()
        loss.running = [running] if runs and self._reads else []
        if not runs and loss.wanted:
            loss.of_step = [running]
            reach.comparison.marks = in_pass

    # Backward passes

    def backward_begins(self, accumulates: bool, tensors: Sequence[Any], weights: Sequence[Any]) -> None:
        """Note that a pass starts."""
        if self._next:
            try:
                with self._lock:
                    if self._begin_pass(accumulates, tensors, weights):
                        return
            except Exception as error:
                self._errors.record("begin of a backward pass", error)
        self._passes.backward_begins(accumulates, tensors, weights)

    def _begin_pass(self, accumulates: bool, tensors: Sequence[Any], weights: Sequence[Any]) -> bool:
        now_next, self._next = self._next, _OFF
        current, owner = self._current, self.clock.alone
        if (
            owner is None
            or (now_next != _PASS and now_next != _STEP)
            or not accumulates
            or current.captured
            or get_ident() != self._thread
            or function_modes()
            or dispatch_modes()
        ):
            return False
        reach = self.clock.reach
        reach.pass_begins(owner)
        current.running.add(self._thread)
        current.reached = False
        if self._holding is not None:
            self._holding.begin_pass()
        self._times.prompt = False
        if self._reads:
            loss = self._collector.loss
            is_one = reach.fate == "kept" and len(tensors) == len(weights) == 1
            if is_one and (number := product_of(tensors[0], weights[0])) is not None:
                loss.running = [number]
            else:
                loss.begin_pass(tensors, weights, reach.fate)
        self._next = _IN_PASS
        return True

    def backward_ended(self, accumulates: bool, raised: bool) -> None:
        """Note the end of the pass, even if it raised."""
        if self._next:
            try:
                with self._lock:
                    if self._end_pass(accumulates, raised):
                        return
            except Exception as error:
                self._errors.record("end of a backward pass", error)
                return
        self._passes.backward_ended(accumulates, raised)

    def _end_pass(self, accumulates: bool, raised: bool) -> bool:
        now_next, self._next = self._next, _OFF
        clock, current, loss, owner = self.clock, self._current, self._collector.loss, self.clock.alone
        is_expected = now_next == _IN_PASS and accumulates and not raised and get_ident() == self._thread
        if not is_expected or owner is None or function_modes():
            return False
        is_fine = not self._looks or self._sentinel.glance(clock.step, loss.running)
        if not is_fine:
            self._sentinel.look(clock, loss.running)
        current.running.discard(self._thread)
        self._times.prompt = True
        if self._holding is not None:
            self._holding.end_pass()
        if loss.wanted:
            loss.of_step = None if loss.of_step is None or loss.running is None else loss.of_step + loss.running
            clock.reach.comparison.mark(owner.witnesses.tensors)
        loss.running = []
        for root in self._roots:
            if (module := root.ref()) is not None:
                root.passed_in_training = module.training
        clock.reach.passed = True
        clock.passes += 1
        if not is_fine:
            self._keeping.settle("at the end of a backward pass")
        self._next = _STEP
        return True

    def inner_begins(self, accumulates: bool) -> bool:
        """Note that a pass starts inside a pass."""
        return self._passes.inner_begins(accumulates)

    def inner_ended(self) -> None:
        """Note the end of such a pass."""
        self._passes.inner_ended()

    # Optimizers

    def saw_step_begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Note that an optimizer is about to step."""
        if self._next:
            try:
                with self._lock:
                    if self._begin_update(optimizer, args, kwargs):
                        return
            except Exception as error:
                self._errors.record("optimizer pre-hook", error)
        self._optimizers.saw_step_begin(optimizer, args, kwargs)

    def _begin_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> bool:
        now_next, self._next = self._next, _OFF
        owner = self.clock.alone
        if (
            owner is None
            or now_next != _STEP
            or owner.ref() is not optimizer
            or kwargs
            or len(args) > 1
            or get_ident() != self._thread
            or current_graph_task() != -1
        ):
            return False
        groups = optimizer.param_groups
        newest = groups[-1]["params"] if groups else []
        state = len(groups), len(newest), id(newest[-1]) if newest else 0, self._parameters.adopted
        known = optimizer.__dict__
        frame: FrameType | None = sys._getframe(3)
        while frame is not None and frame.f_code is not _LOOP:  # torch's own step, which calls its hooks
            frame = frame.f_back
        if state != owner.state or "found_inf" in known or "grad_scale" in known or frame is None:
            return False
        if not self._has_no_scaler(frame.f_back):
            return False
        if not owner.steps % RENEW_EVERY:
            owner.witnesses.look_up()
            if not self._know_witnesses(owner):
                return False
            self._teach(owner)
        if self._reads and not self._collector.rates.is_logged:
            for group, rate in zip(groups, owner.rates or (None,), strict=False):
                if group.get("lr") != rate or type(rate) is not float:
                    self._track.drop()
                    self._optimizers.read_rates(owner, optimizer)
                    break
        owner.late = owner.inner_passes = False
        self._stacks[self._thread] = [(id(optimizer), id(frame))]
        self._times.prompt = False
        self._next = _IN_STEP
        return True

    @staticmethod
    def _has_no_scaler(frame: Any) -> bool:
        """Return whether no scaler is among the callers: a loop may start to use one at any time."""
        for _ in range(NEAR):
            if frame is None:
                return True
            if frame.f_code.co_name in _SCALERS and frame.f_code in SCALER_STEPS:  # code is hashed with all it has
                return False
            frame = frame.f_back
        return True

    def saw_step_end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """End the step."""
        if self._next:
            try:
                with self._lock:
                    is_done = self._end_update(optimizer)
            except Exception as error:
                self._errors.record("optimizer post-hook", error)
                return
            if is_done:
                if self.boundary.waiting:
                    self.boundary.run()
                return
        self._optimizers.saw_step_end(optimizer, args, kwargs)

    def _end_update(self, optimizer: Optimizer) -> bool:
        now_next, self._next = self._next, _OFF
        owner, clock, collector = self.clock.alone, self.clock, self._collector
        step, now = clock.step, self._now()
        if (
            owner is None
            or now_next != _IN_STEP
            or owner.ref() is not optimizer
            or get_ident() != self._thread
            or step >= self._until
            or now >= self._until_s
            or function_modes()
            or self._has_news()
        ):
            return False
        del self._stacks[self._thread]
        self._times.prompt = True
        queue, loss = self._queue, collector.loss
        elapsed_s = now - self._track.at
        found, loss.of_step = loss.of_step, []
        scalars = None
        if collector.scalars:
            scalars, collector.scalars = collector.scalars, {}
        if not self._paused or scalars:
            queue.shipped = step
            parts = None if loss.is_logged else found
            queue.frames.append((step, time.time(), elapsed_s, scalars, self._name, parts))
        self._cadence.skipped.append(elapsed_s)
        owner.steps += 1
        owner.ended += 1
        owner.last_step = step
        for root in self._roots:
            if root.passed_in_training is not None:
                root.trained, root.passed_in_training = root.passed_in_training, None
        clock.passes, clock.reach.passed = 0, False
        self._optimizers.last_captured = False
        clock.step = self._current.number = self._track.ended = step + 1
        self._track.at = now
        owner.witnesses.explain()
        if self._keeper is not None:
            self._keeper.updates += 1
            self._keeper.end_step()
        if self._holding is not None:
            self._holding.begin_step(False)
        self._next = _PASS
        self._start()
        return True

    def _has_news(self) -> bool:
        """Return whether something waits that needs the end of a step."""
        return bool(
            self._events
            or (self._collector.machine.has_news and not self._paused)
            or self._cadence.alarmed
            or self._changes
            or self._snapshots.active
            or len(self._queue.frames) >= MAX_BATCH  # so that the full machinery can drop the oldest
        )


guard_functions(Steady.backward_begins, Steady.backward_ended, Steady.saw_step_begin, Steady.saw_step_end)

"""The short way through a step that is like the one before.

If it isn't captured, it needs little: its number, its loss, its time, and a look at its gradients. While a training
does what it did in the step before, that is done here, for each of torch's four calls. All else is left to the full
machinery, in the call that differs. Both change the same state, so either may follow the other at any call. Only frames
and the cadence's sums come later: the next captured step is known when the last one ends, so an uncaptured step
compares one number.

If the extension is there, its *track* (`observe/_track.h`) sees torch's calls even before. It does the same for a run
of steps that are equal in all that is checked here, touches few objects, and keeps notes. They are settled, that is,
turned into the state that the full machinery would have made, when a call differs, and whenever somebody else needs it.
It also compares passes, so that it serves several optimizers and a scaler; without it, such steps go the long way.

It handles captured steps, too, between others or one after another, if only the statistics look at them. It takes their
rows when they end, and `CapturedSteps` does the rest of what each step needs.
Which steps these are stays decided until one that is known to be another one, or until what the cadence learns of the
notes changes that.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain, islice
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from hookcore.hooks.compiled import guard_functions, until_compiled
from hookcore.hooks.handle import STEP_LOOP
from hookcore.hooks.internals import (
    SCALER_STEPS,
    current_graph_task,
    default_group,
    dispatch_modes,
    function_modes,
)
from hookcore.observe import cpu
from hookcore.recorder.calls.keeping import Holding, Keeping
from hookcore.recorder.calls.plans import StepKeeper
from hookcore.recorder.capture import Capture
from hookcore.recorder.clock.cadence import LEAN, SKIPPED, WHOLE, Cadence
from hookcore.recorder.clock.clock import RENEW_EVERY, Boundary, Clock
from hookcore.recorder.clock.current import CurrentStep
from hookcore.recorder.clock.errors import ErrorLog, entry
from hookcore.recorder.clock.owners import FIRST_WITNESSES, Owner, groups_of
from hookcore.recorder.clock.passes import BackwardPasses, OptimizerSteps
from hookcore.recorder.clock.steptimes import Meter, StepTimes
from hookcore.recorder.context import Context
from hookcore.recorder.known.ownership import Ownership
from hookcore.recorder.known.parameters import Parameter, Parameters, ToRead
from hookcore.recorder.known.roots import Root
from hookcore.recorder.leaving.frames import (
    MANY_FRAMES,
    MAX_BATCH,
    Collector,
    FrameQueue,
    Light,
    RawFrame,
    RowFacts,
    without_rows,
)
from hookcore.recorder.measured.scalars import FIRST_STEPS, LossScale, Sum, product_of
from hookcore.recorder.measured.sentinel import Sentinel
from hookcore.recorder.measured.snapshots import Snapshots
from hookcore.records.vocabulary import UNCAPTURED_STEPS

CHECK_EVERY: Final = 128  # steps of which at least one goes the long way, where rare checks are made,
MULTIPLE: Final = 8  # and its number is a multiple of this one, at which they are due
NEAR: Final = 4  # frames between a loop's line and the optimizer's step, among which a scaler is looked for

# What may come next: anything (the full machinery decides), a backward pass, its end, an optimizer's step or another
# pass, and its end. The extension has the same list.
_OFF, _PASS, _IN_PASS, _STEP, _IN_STEP = range(5)

_PLAIN: Final = frozenset((Tensor, nn.Parameter))
_LOOP: Final = next(iter(STEP_LOOP))
_SCALERS: Final = frozenset(code.co_name for code in SCALER_STEPS)
_TRACKS: Final = hasattr(cpu.Track, "saw_step_begin")
_MOST_OWNERS: Final = 8  # optimizers whose steps the track handles; the extension has the same
_MOST_PARAMETERS: Final = 1024  # that it reads; likewise
_MOST_WITNESSES: Final = 2 * FIRST_WITNESSES  # likewise
_MOST_WAITS: Final = 6  # powers of two; if the short way ended no step time after time, so many steps are left out
_float32: Final = torch.float32
_NAN: Final = float("nan")


class OwnerFacts(NamedTuple):
    """What a track knows of an optimizer. The extension has the same list."""

    optimizer: Callable[[], Optimizer | None]
    groups: tuple[tuple[int, int, float | None], ...]  # of each: how many tensors, the last one's id, the rate
    first: int  # of its witnesses,
    last: int  # and the one after its last
    is_scaled: bool
    may_end: bool  # a step of the training: the name of its loss is known
    has_schedule: bool  # whether the rates of all its groups were seen to change


class Notes(NamedTuple):
    """What a track notes. The extension has the same list."""

    next: int
    step: int
    passes: int  # of the running step
    elapsed_s: list[float]  # of each step that ended
    times_s: list[float]
    scales: list[float | None]  # None without a scaler
    parts: list[int]  # how many losses each has
    losses: list[float]  # of these steps, and of the passes of the running one
    turns: list[tuple[int, int]]  # the optimizers that stepped, by place, and whether each joined the step before
    running: float  # the loss of the running pass
    scale: float
    pass_scale: float  # of the first pass of the running step, if it is captured
    looked_at: int  # the newest step that the sentinel looked at, -1 for none
    before: list[Any]  # of each witness, the mark before the running pass,
    in_pass: list[Any]  # after the last one,
    in_step: list[Any]  # and of the gradient whose step is known
    reached: int  # a bit for each witness: in the running step,
    trained: int  # and in those that ended
    states: Any  # the scaler's table when the last pass of this step had ended
    has_compared: int  # whether a pass was compared since the track was entered
    owner: int  # the place of the optimizer that steps
    is_late: int
    frame: int
    packed: list[bytes | None]  # the rows of the steps that ended; None if they weren't captured
    captures: int  # whether the running step is captured
    # Of each parameter that it reads, once it stops: the mark after the newest pass with all gradients.
    marks: list[Any]
    joined: list[tuple[int, float, float, bytes]]  # for captured steps: step, time, scale, and rows of each optimizer


class CapturedFacts(NamedTuple):
    """What a track has to know of captured steps. The extension has the same list."""

    steps: CapturedSteps
    current: CurrentStep  # which says whether a gradient has arrived
    base: int  # the address of the first row
    taps: list[Any]
    used: int  # how many taps there are
    reads_ahead: bool  # whether something is read before an optimizer steps
    keeps: bool  # whether calls are kept
    block: int  # steps that are captured together,
    stride: int  # and the blocks from one of them to the next
    empty: tuple[Sized, ...]  # what must be empty around a captured step, besides,
    cells: tuple[tuple[Any, str, Any], ...]  # and attributes that must be the same objects
    control: int  # the address of what the kernel goes by
    last_pass: int  # the pass of a step after which gradients are complete,
    parameters: tuple[ToRead, ...]  # and those that the track reads
    receives: bool  # whether passes bring gradients to hooks


class TrackFacts(NamedTuple):
    """What a track looks at. The extension has the same list."""

    owners: tuple[OwnerFacts, ...]
    now: Callable[[], float] | None  # None for `time.perf_counter`
    function_modes: Callable[[], int]
    dispatch_modes: Callable[[], int]
    graph_task: Callable[[], int]
    loop: CodeType
    scalers: tuple[CodeType, ...]
    witnesses: tuple[Tensor, ...]
    roots: tuple[
        tuple[Any, bool, int], ...
    ]  # their models, by weak reference; whether they train; a bit for each witness
    lookouts: tuple[Tensor, ...]
    empty: tuple[Sized, ...]  # what waits for the end of a step
    cells: tuple[tuple[Any, str, Any], ...]  # attributes that must stay the same objects
    tensor: type
    float32: torch.dtype
    hooks: dict[int, Any] | None  # the table, key, and hook by which the next calls of modules are seen
    number: int | None
    hook: Any
    kept: tuple[Any, ...]  # what has the held calls as its attribute `held`
    absent: tuple[tuple[dict[str, Any], str], ...]  # tables, and keys that must stay absent from them
    scaler: Any  # by weak reference
    captured: CapturedFacts | None  # of captured steps


class CapturedSteps:
    """What the track needs to handle captured steps, and what it leaves to be done after a call that it has handled."""

    def __init__(self, context: Context, capture: Capture, optimizers: OptimizerSteps) -> None:
        self._context, self._capture, self._optimizers = context, capture, optimizers
        self._current, self._errors, self._lock = context.current, context.errors, context.lock
        self._parameters, self._cadence, self._collector = context.parameters, context.cadence, capture.collector
        self._dispatcher, self._keeping = capture.dispatcher, capture.keeping
        self._keeps = False  # whether calls are kept
        self._is_scaled = False  # whether a scaler may skip a step, which the next call of a module then notices
        self._reads_ahead = False  # whether something is read before an optimizer steps
        self._rows: dict[int, RowFacts] = {}  # what is known of the rows, by step,
        self._joined_rows: list[RowFacts] = []  # and of those of each optimizer that joins one
        self._lean: set[int] = set()  # steps without histograms
        self._readings: list[tuple[Parameter, bool]] = []  # what the track reads, and of which also what passes leave
        self._owners: Sequence[Owner] = ()  # that make the steps
        self.owned: list[Parameter] = []  # which the optimizer steps
        self._usual_rows = RowFacts()  # what is known of the rows of each step then
        self._many_read, self._newest_read = 0, -1  # steps in which it has read them
        self._plain_for: tuple[Any, ...] = ()  # for what the newest step that began otherwise had rows only
        # Numbers that the script logs, and rates, while the track runs, by step: of its notes, and of the running one.
        self.logged: dict[int, dict[str, Any]] = {}
        self._timed_at = 0  # the next step to time
        self._from = 0.0, 0.0  # when the timed step began, and how long the track had taken until then

    def are_plain(self, captured: bool) -> bool:
        """Return whether captured steps have no more than rows of the statistics and a loss, from this step on.

        It is asked for each step that begins the long way, because some is known only of the captured ones.
        """
        observers, is_plain = self._capture.observers, _TRACKS and not self._are_special
        state = self._context.plans.changes, observers.flows.wanted
        if captured:
            self._plain_for = state if is_plain else ()
        return is_plain and self._plain_for == state

    @property
    def _are_special(self) -> bool:
        states, statistics, dispatcher = self._optimizers.states, self._context.statistics, self._dispatcher
        return (
            bool(dispatcher.others or dispatcher.times.active or statistics.devices.arenas)
            or self._current.clock is not None
            or self._parameters.measures_updates
            or not self._collector.loss.reads
            or (states.due or states.was_due)
            or not (self._collector.is_empty and self._collector.replicas.is_alone and statistics.table.is_announced)
            or default_group() is None
        )

    def next_unlike(self, step: int) -> int:
        """Return the first step after this one that isn't captured, or left out, as it is, as far as is known."""
        unlike = self._cadence.next_unlike(step, self._context.settings.snapshot_every)
        due_at = self._capture.observers.routers.next_at
        return unlike if due_at > unlike else min(unlike, self._cadence.next_chosen(max(step, int(due_at) - 1)))

    def facts(self, owners: Sequence[Owner]) -> CapturedFacts:
        """Return what the track has to know, if these optimizers make the steps."""
        statistics, keeper, cadence = self._context.statistics, self._dispatcher.keeper, self._cadence
        taps, keeps = statistics.table.taps, keeper is not None and keeper.armed
        cadence.catch_up()
        self._owners = owners
        self._readings, self._many_read, self.owned = [], 0, []
        self._keeps, self._timed_at = keeps, cadence.next_timed(self._context.step)
        self._is_scaled = any(owner.scaler.found for owner in owners)
        reads = any(owner.settled != self._parameters.version for owner in owners)
        parameters = self._learn_parameters(owners) if reads else ()
        reads = reads and not parameters
        self._reads_ahead, base, control = reads, statistics.arena.base, statistics.arena.control
        empty = self._context.events, statistics.devices.arenas
        how = cadence.block, cadence.stride, empty, cells_of(self._cells()), control, self._parameters.raw.last_pass
        known = *how, parameters, self._context.receives_gradients
        return CapturedFacts(self, self._current, base, taps, len(taps), reads or keeps, keeps, *known)

    def _learn_parameters(self, owners: Sequence[Owner]) -> tuple[ToRead, ...]:
        """Return how the track reads the parameters of a single optimizer, if all are as in the steps before."""
        known, optimizer = self._parameters, owners[0].ref()
        if len(owners) > 1 or not known.raw.last_pass or optimizer is None:
            return ()
        self.owned = known.owned(optimizer)
        found = known.readings([self.owned]) or []
        if len(found) > _MOST_PARAMETERS:
            return ()
        self._readings = [(each, reading.raw_row > 0) for each, reading in found]
        many = sum(len(group["params"]) for group in optimizer.param_groups)
        trained = [each for each in self.owned if (tensor := each.tensor) is not None and tensor.requires_grad]
        is_whole = len(self.owned) == many and all(each.grad_slot >= 0 for each in trained)
        self._usual_rows = RowFacts(raws=known.raws(), is_whole=is_whole) if known.raws() else RowFacts()
        return tuple(reading for _, reading in found)

    def resume(self, notes: Notes) -> None:
        """Let the parameters know what the track has read of them."""
        is_begun = notes.captures and notes.next == _IN_STEP and not notes.is_late
        if is_begun:
            self._many_read, self._newest_read = self._many_read + 1, notes.step
        passes, raw = notes.passes if notes.captures else 0, self._parameters.raw
        is_complete = passes >= raw.last_pass
        if not (self._many_read or passes) or not self._readings:
            return
        known = zip(self._readings, notes.marks, strict=True)
        marks = {id(each): mark for (each, _), mark in known if each.grad_slot >= 0 and mark is not None}
        read = [each for each, is_raw in self._readings if is_raw and id(each) in marks]
        is_whole = self._usual_rows.is_whole or not is_begun
        raw.resume(
            passes, self._many_read, marks if is_complete or not passes else {}, read if is_complete else [], is_whole
        )
        for each in self.owned if self._many_read else ():
            each.read_in = self._newest_read
        self._many_read = 0

    def _cells(self) -> list[tuple[Any, str]]:
        """Return the attributes that must stay the same objects."""
        flows, plans, machine = self._capture.observers.flows, self._context.plans, self._collector.machine
        rhythm = [(self._cadence, name) for name in ("alarmed", "block", "stride", "thinning")]
        own = [(machine, "has_news"), (flows, "wanted"), (plans, "changes"), (self._dispatcher, "others")]
        return [*(default_group() or ()), *rhythm, *own]

    def put(self, lights: Iterable[Light], notes: Notes) -> None:
        """Queue the frames of steps that have ended, and let the cadence know of them."""
        queue, cadence, kinds = self._collector.queue, self._cadence, self._collector.scale.kinds
        costs, skipped = cadence.as_scalars(), 0
        for light, packed, passes in zip(lights, notes.packed, notes.parts, strict=True):
            step, time_s, elapsed_s, logged, name, parts, scale = light
            if step <= queue.shipped:  # and then Ctrl+C came
                continue
            queue.shipped = step
            cadence.ended.append((SKIPPED if packed is None else LEAN if step in self._lean else WHOLE, elapsed_s))
            if packed is None:
                skipped += 1
                queue.frames.append(light)
                continue
            self._lean.discard(step)
            found = {name: Sum(parts)} if parts else {}
            frame = RawFrame(step, time_s, packed, (), passes, elapsed_s, scale, kinds)
            frame.scalars = {**(logged or {}), **found, **costs}
            if costs:
                frame.scalars[UNCAPTURED_STEPS] = costs[UNCAPTURED_STEPS] + skipped
            frame.rows = self._rows.pop(step, self._usual_rows if self._readings else frame.rows)
            self._many_read, self._newest_read = self._many_read + bool(self._readings), step
            queue.put(frame)
            self.put_joined(notes, step)
        cadence.catch_up()

    def put_joined(self, notes: Notes, step: int) -> None:
        """Queue the rows of optimizers that joined a captured step, up to this one."""
        kinds, joined = self._collector.scale.kinds, notes.joined
        while joined and joined[0][0] <= step:
            number, time_s, scale, packed = joined[0]
            rows = self._joined_rows[0] if self._joined_rows else RowFacts()
            del joined[:1], self._joined_rows[:1]  # first: if Ctrl+C comes, they must not be queued again
            if packed:
                known = None if scale != scale else scale
                self._collector.queue.put(RawFrame(number, time_s, packed, (), 0, _NAN, known, kinds, rows=rows))

    def forget(self) -> None:
        """Leave the running step to the full machinery, which asks for facts again."""
        self._rows.clear()
        self._joined_rows.clear()
        self._lean.clear()

    # After calls that the track has handled. Nothing here depends on its notes, which another thread may take.

    @entry("end of a backward pass")
    def end_pass(self) -> None:
        """Do the rest at the end of a pass."""
        self._current.reached.discard(get_ident())
        self._current.pending = self._is_scaled
        self._dispatcher.reset_calls()
        if self._keeps:
            self._keeping.look("at the end of a backward pass", is_whole=False)
        if not self._readings:
            self._parameters.end_pass()
        if self._keeps:
            self._keeping.settle("at the end of a backward pass")

    @entry("optimizer pre-hook")
    def begin_update(self, optimizer: Optimizer) -> None:
        """Read what the optimizer is about to use."""
        if (owner := self._context.owners.get(optimizer)) is None:
            return
        owner.late = bool(self._context.track.is_late)
        self._optimizers.read_rates(owner, optimizer)
        if self._collector.scalars and self._context.track.runs:
            rates, self._collector.scalars = self._collector.scalars, {}
            self.logged.setdefault(self._context.step, {}).update(rates)
        if not ((self._reads_ahead or self._keeps) and (owner.late or self._current.captured)):
            return
        if not self._reads_ahead:
            self._keeping.look("before an optimizer's step")
            self._keeping.settle("before an optimizer's step")
            return
        self._optimizers.read(owner, optimizer)
        self.owned, raws = owner.owned or [], self._parameters.raws()
        rows = RowFacts(raws=raws, is_whole=self._parameters.raw.is_whole)
        if owner.late:
            owner.owned = None  # unless it raises
            self._joined_rows.append(rows)
        elif raws:
            self._rows[self._context.step] = rows
        self._keeping.settle("before an optimizer's step")

    @entry("end of a step")
    def release_calls(self) -> None:
        """Let go of the calls of a step that is about to end."""
        if (keeper := self._dispatcher.keeper) is not None:
            keeper.end_step()

    @entry("begin of a step")
    def begin_step(self) -> None:
        """Begin the next step, which is captured, or the one that ended was."""
        context, step, placement = self._context, self._context.step, self._capture.placement
        was_captured, captured = self._current.captured, bool(context.track.captures)
        for owner in self._owners:
            owner.owned = None
        if was_captured and self._dispatcher.keeper is not None:
            self._dispatcher.look_for_models()
        for root in context.plans.roots:
            root.note_step()
        self._dispatcher.names.begin_step(step, was_captured)
        self._parameters.begin_step()
        if captured and (self._cadence.thinning > 1 or not self._cadence.sketched):
            self._cadence.begin_captured(step)
            if not self._cadence.sketched:
                self._lean.add(step)
        self._current.sketched = self._cadence.sketched
        # Another thread may have paused or closed it just now.
        placement.begin_step(step, captured=captured and placement.attached and not context.paused)
        self._time(step, context.track)

    def _time(self, step: int, track: Any) -> None:
        """Record how long hookcore took in the step that ended, if it was timed, and time the next one if it is due."""
        meter, now = self._current.meter, self._context.now
        if meter is not None:
            at, own_s = self._from
            self._cadence.timed(track.at - at, meter.take(now()) + track.own_s - own_s)
            self._current.meter = None
        if step == self._timed_at:
            self._timed_at = step + self._cadence.timed_every
            self._from, self._current.meter = (track.at, track.own_s), Meter(now)


def cells_of(parts: Iterable[tuple[Any, str]]) -> tuple[tuple[Any, str, Any], ...]:
    """Return attributes with what they are now."""
    return tuple((part, name, getattr(part, name)) for part, name in parts)


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
    _scale: LossScale = field(init=False)
    _track: Any = field(init=False)
    _next: int = field(default=_OFF, init=False)
    _keeper: StepKeeper | None = field(default=None, init=False)  # if it keeps the calls of uncaptured steps
    _holding: Holding | None = field(default=None, init=False)  # likewise
    _thread: int = field(default=0, init=False)
    _until: int = field(default=0, init=False)  # the first step that ends the long way
    _until_s: float = field(default=0.0, init=False)
    _due_s: float = field(default=0.0, init=False)  # when a captured step is to be measured
    _check_at: int = field(default=0, init=False)  # the step that goes the long way in any case
    _spent_s: float = field(default=0.0, init=False)  # as far as it was taken
    _roots: list[Root] = field(default_factory=list, init=False)  # of the optimizer's witnesses
    _looks: bool = field(default=False, init=False)
    _reads: bool = field(default=False, init=False)  # the loss
    _paused: bool = field(default=False, init=False)
    _name: str = field(default="", init=False)  # of the loss
    _owners: list[Owner] = field(default_factory=list, init=False)  # whose steps the track handles
    _keys: tuple[int, ...] = field(default=(), init=False)  # the witnesses of them all, which it looks at, by id
    _modes: list[tuple[Root, bool, int]] = field(default_factory=list, init=False)  # of their models
    _compares: bool = field(default=False, init=False)  # whether it compares passes
    _is_scaled: bool = field(default=False, init=False)  # whether a scaler may skip their steps
    _logged: dict[int, dict[str, Any]] = field(init=False)
    _entered: int = field(default=-1, init=False)  # the step that began when it was entered last,
    _waits: int = field(default=0, init=False)  # how often the long way ended that step, in a row,
    _later: int = field(default=0, init=False)  # and the first step to try again
    _captured: CapturedSteps = field(init=False)
    _follows: bool = field(default=False, init=False)  # whether the track handles captured steps, too

    def __post_init__(self) -> None:
        context, capture, clock = self._context, self._capture, self._passes.clock
        self.clock, self.boundary, self._stacks = clock, clock.boundary, clock.nesting.stacks
        self._collector, self._queue = capture.collector, capture.collector.queue
        self._cadence, self._parameters = context.cadence, context.parameters
        self._keeping, self._sentinel, self._times = capture.keeping, capture.sentinel, capture.dispatcher.times
        self._lock, self._now, self._current, self._errors = context.lock, context.now, context.current, context.errors
        self._events, self._changes = context.events, capture.commands.changes
        self._snapshots, self._track = capture.observers.snapshots, context.track
        self._scale = capture.collector.scale
        self._captured = CapturedSteps(context, capture, self._optimizers)
        self._logged = self._captured.logged
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
        step = self.clock.step
        if step == self._entered + 1:
            self._waits = min(self._waits + 1, _MOST_WAITS)
            self._later = step + (1 << self._waits) - 2
        elif self._entered >= 0:
            self._waits = 0
        self._entered = -1
        captured = self._current.captured
        follows = self._captured.are_plain(captured)
        if step >= self._later and self._is_quiet() and (follows or not captured):
            owners = self.clock.find_steady()
            if owners and (owners[0] is self.clock.alone or _TRACKS) and (follows or not captured):
                self._enter(owners, follows)

    def _is_quiet(self) -> bool:
        """Return whether nothing waits that needs the end of a step, and nobody looks at this one."""
        current, loss, parts = self._current, self._collector.loss, self._passes.parts
        capture, observers = self._capture, self._capture.observers
        return (
            capture.placement.attached
            and not self._events  # which go with the next frame
            and current.meter is None
            and not (current.running or current.ignoring or current.pending)
            and not (parts.open or parts.is_cut or parts.has_new_held)
            and not (observers.snapshots.active or observers.flows.is_learning or observers.probes.has_any)
            and not observers.routers.due
            and not (loss.held is not None or capture.dispatcher.names.has_any)
            and self.clock.step > FIRST_STEPS
        )

    def _enter(self, owners: list[Owner], follows: bool) -> None:
        """Let the short way be taken. `follows`: by captured steps, too."""
        step, alone, captured = self.clock.step, self.clock.alone, self._current.captured
        keeper = self._capture.dispatcher.keeper
        if (keeper is not None and keeper.has_fired) or not self._know_witnesses(owners):
            return
        is_armed = keeper is not None and keeper.armed and not (captured and self._cadence.stride == 1)
        self._keeper, self._holding = (keeper, self._capture.placement.holding) if is_armed else (None, None)
        self._thread, self._paused = get_ident(), self._context.paused
        self._looks, self._reads = self._sentinel.is_on, self._collector.loss.reads
        if self._looks and not self._sentinel.prepare():
            return
        if self._reads and alone is not None and not alone.loss_name and not self._collector.loss.is_logged:
            return  # it gets its name the long way
        self._name = "" if alone is None else alone.loss_name
        if step >= self._check_at:
            self._check_at = step // MULTIPLE * MULTIPLE + CHECK_EVERY
        other = self._check_at + 1 if self._paused else self._next_other(step, follows)
        self._until = min(other - 1, self._ownership.next, self._check_at)
        self._until_s, self._due_s = self._parameters.look_at, self._times.due_at
        self._follows = follows
        if step < self._until:
            self._teach(owners)
            self._entered = step
            self._next = _PASS if alone is not None and not captured else _OFF
            self._start()

    def _next_other(self, step: int, follows: bool) -> int:
        """Return the first step after this one whose beginning needs more than those until then, as far as is known."""
        if follows:
            return self._captured.next_unlike(step)
        chosen = self._cadence.next_chosen(step)
        # Before a step in which updates are compared with those before, weights are read earlier.
        is_preceded = self._parameters.requests_updates and self._cadence.is_rare(chosen)
        return chosen - self._cadence.block if is_preceded else chosen

    def _know_witnesses(self, owners: Sequence[Owner]) -> bool:
        """Find the models of the optimizers' witnesses. Return False if any of these is of a custom class."""
        self._roots = self._parameters.roots_of(key for owner in owners for key in owner.witnesses.keys)
        return all(type(each) in _PLAIN for owner in owners for each in owner.witnesses.tensors)

    # The track

    def _teach(self, owners: list[Owner]) -> None:
        """Let the track know the facts by which it handles the next steps, if it can."""
        self._track.drop()
        holding, compares = self._holding_facts(), owners[0] is not self.clock.alone
        witnesses = self.clock.owners.tensors_to_compare() if compares else owners[0].witnesses.tensors
        known = self._owner_facts(owners)
        scalers = {id(scaler): scaler for each in owners if (scaler := each.scaler.live()) is not None}
        if (
            not (_TRACKS and known)
            or holding is None
            or len(witnesses) > _MOST_WITNESSES
            or len(owners) > _MOST_OWNERS
            or len(scalers) > 1
        ):
            return
        parts, empty, held, absent = holding
        parts += [(self._parameters, name) for name in ("adopted", "version", "forms")]
        self._owners, self._keys, self._compares = owners, tuple(map(id, witnesses)), compares
        self._modes, self._is_scaled = self._find_modes(witnesses), bool(scalers)
        facts = TrackFacts(
            known,
            None if self._now is time.perf_counter else self._now,
            function_modes,
            dispatch_modes,
            current_graph_task,
            _LOOP,
            tuple(SCALER_STEPS),
            tuple(witnesses),
            tuple((root.ref, training, bits) for root, training, bits in self._modes),
            tuple(self._sentinel.lookouts) if self._looks else (),
            (self._changes, self.boundary.waiting, *empty),
            cells_of(parts),
            Tensor,
            _float32,
            *held,
            absent,
            next((weakref.ref(each) for each in scalers.values()), None),
            self._captured.facts(owners) if self._follows else None,
        )
        self._track.learn(facts)

    def _owner_facts(self, owners: Sequence[Owner]) -> tuple[OwnerFacts, ...]:
        """Return what the track has to know of the optimizers; nothing if it can't know some of it."""
        loss, known, first = self._collector.loss, list[OwnerFacts](), 0
        reads_rates = self._reads and not self._collector.rates.is_logged
        for owner in owners:
            optimizer, last = owner.ref(), first + len(owner.witnesses.tensors)
            groups = (
                groups_of(optimizer.param_groups, (owner.rates or []) if reads_rates else None) if optimizer else ()
            )
            if not groups:
                return ()
            may_end = bool(owner.loss_name) or loss.is_logged or not self._reads
            scaled, schedule = owner.scaler.live() is not None, len(owner.rated) == len(groups)
            known.append(OwnerFacts(owner.ref, groups, first, last, scaled, may_end, schedule))
            first = last
        return tuple(known)

    def _find_modes(self, witnesses: Sequence[Tensor]) -> list[tuple[Root, bool, int]]:
        """Return the models of the witnesses, whether they are in training mode, and a bit for each witness."""
        modes = []
        for root in self._roots:
            if (module := root.ref()) is not None:
                places = [place for place, each in enumerate(witnesses) if self._parameters.is_of(each, root)]
                modes.append((root, module.training, sum(1 << place for place in places)))
        return modes

    def _holding_facts(self) -> tuple[list[tuple[Any, str]], Any, tuple[Any, Any, Any, Any], Any] | None:
        """Return cells, what is empty, hook and what is kept, and what is absent; None if calls can't be held."""
        keeper, holding = self._keeper, self._holding
        if keeper is None or holding is None:
            return [], (), (None, None, None, ()), ()
        kept, conditions = keeper.kept, until_compiled()
        if kept is None or conditions is None or not (holding.is_on or self._current.captured):
            return None
        empty, absent = conditions
        return [(keeper, "met"), (holding, "gave_up")], empty, (*holding.entry, kept), absent

    def _start(self) -> None:
        """Let the track handle the next steps, if it knows the facts and nothing waits."""
        if _TRACKS and not self._collector.scalars and self._track.facts is not None:
            owners = self._owners
            longest = self.clock.owners.longest_gap(self.clock.step) if self._compares else 1
            last = next((place for place, each in enumerate(owners) if each is self.clock.last_owner), 0)
            counts = tuple(each.counts for each in owners)
            captures = self._current.captured, self._optimizers.last_captured
            sees = self._looks, self._reads, self._compares, *captures
            self._track.enter(self._until, self._until_s, self._due_s, *sees, longest, last, counts)

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
        """Whether the track has notes of steps that ended, or that were joined."""
        return bool(self._track.noted or self._track.joined)

    def settle(self) -> None:
        """Take the track's notes, and let it handle no more calls of this step."""
        self._take(stops=True)

    def sync(self) -> None:
        """Take its notes if there are any, from any thread."""
        if self.has_notes:
            self._take(stops=False)

    def _take(self, stops: bool) -> None:
        with self._lock:  # the training goes on meanwhile, until something differs
            notes = self._track.take(stops)
            if notes is not None:
                try:
                    self._apply_safely(Notes(*notes))
                except BaseException:  # Ctrl+C, which is for the script: these steps have ended, and none may be lost
                    self._apply_safely(Notes(*notes))
                    raise
            if self._logged:
                self._give_logged()
            if stops:
                self._captured.forget()
        if stops and len(self._queue.frames) >= MAX_BATCH:
            self._queue.wake()

    def note_logged(self, numbers: dict[str, Any], is_late: Callable[[str], bool]) -> bool:
        """Keep numbers that the script logs for the frame of their step, if the track runs and can go on.

        `is_late`: whether a name that is logged between two steps belongs to the one that ended.
        """
        track = self._track
        follows = track.next if track.runs else _OFF
        if (
            (follows != _PASS and (follows != _STEP or self._is_scaled))  # where a step's end may have to be noticed
            or get_ident() != self._thread
            or self._paused
            or self._cadence.alarmed
            or self.clock.reach.many_threads
        ):
            return False
        step = track.step
        late = {name: value for name, value in numbers.items() if is_late(name)} if follows == _PASS else {}
        own = {name: value for name, value in numbers.items() if name not in late}
        for number, given in ((step - 1, late), (step, own)):
            if not given.keys().isdisjoint(self._logged.get(number, ())):
                return False  # logged again, in a frame of its own
        if late and not track.noted:
            self._queue.put(without_rows(step - 1, time.time(), scalars=late))
        elif late:
            self._logged.setdefault(step - 1, {}).update(late)
        if own:
            self._logged.setdefault(step, {}).update(own)
        return True

    def _give_logged(self) -> None:
        """Pass on what no frame of the notes has taken."""
        running, runs = self._track.step, self._track.runs
        for step in sorted(self._logged):
            if step < running:
                self._queue.put(without_rows(step, time.time(), scalars=self._logged.pop(step)))
            elif not runs:
                self._collector.add_scalars(self._logged.pop(step))

    def _apply_safely(self, notes: Notes) -> None:
        try:
            self._apply(notes)
        except Exception as error:
            self._errors.record("notes of steps", error)

    def _apply(self, notes: Notes) -> None:
        """Make the state that these steps, and the calls of the running one, would have made."""
        owners, now_next = self._owners, notes.next
        if not owners or (self.clock.last_owner is None if self._compares else owners[0] is not self.clock.alone):
            return
        self._next = _OFF if self._compares or notes.captures else now_next
        if notes.looked_at >= 0:
            self._sentinel.looked(notes.looked_at)
        self.clock.follow(owners, notes.turns, notes.step - len(notes.elapsed_s))
        losses = iter(notes.losses)
        if notes.turns:
            self._apply_ended(notes, losses)
        (self._current.running.add if now_next == _IN_PASS else self._current.running.discard)(self._thread)
        self._times.prompt = now_next in (_PASS, _STEP)
        self.clock.passes = notes.passes
        for root, training, bits in self._modes:
            if bits & notes.trained:
                root.trained = training
            root.passed_in_training = training if bits & notes.reached else None
        self._stacks.pop(self._thread, None)
        if now_next == _IN_STEP:
            self._apply_update(notes)
        self._scale.resume(notes.scale, notes.pass_scale, self.clock.owners.scalers())
        self._apply_passes(notes, list(losses))
        if notes.captures:
            self._current.backwards, self._current.began_backward = notes.passes, notes.passes > 0
        if notes.marks:
            self._captured.resume(notes)

    def _apply_update(self, notes: Notes) -> None:
        """Do what the beginning of an optimizer's step would have done."""
        owner = self._owners[notes.owner]
        owner.late, owner.inner_passes = bool(notes.is_late), False
        self._stacks[self._thread] = [(id(owner.ref()), notes.frame)]
        if self._optimizers.last_captured if owner.late else notes.captures:
            owner.owned, self._parameters.read = owner.owned or self._captured.owned, True

    def _apply_ended(self, notes: Notes, losses: Iterator[float]) -> None:
        """Do what the ends of these steps would have done, and take their losses."""
        many, wanted, step = len(notes.elapsed_s), self._collector.loss.wanted, notes.step
        parts = [[*islice(losses, each)] for each in notes.parts]
        self._collector.jumps.add(chain.from_iterable(parts))
        self._captured.put_joined(notes, step - many - 1)
        if not many:
            return
        if skipped := notes.packed.count(None):
            self._cadence.followed(self.take_spent(), short=skipped)
        numbers = range(step - many, step)
        if not self._paused:
            names = [self._owners[at].loss_name for at, joins in notes.turns if not joins]
            logged = [self._logged.get(number) for number in numbers]
            rest = logged, names, parts if wanted else [None] * many, notes.scales
            lights = zip(numbers, notes.times_s, notes.elapsed_s, *rest, strict=True)
            if self._follows:
                self._captured.put(lights, notes)
            elif self._queue.shipped < step - 1:  # else they were interrupted later
                self._queue.shipped = step - 1
                self._queue.frames.extend(lights)
            for number in numbers:
                self._logged.pop(number, None)
        if not self._follows:
            self._cadence.ended += [(SKIPPED, elapsed_s) for elapsed_s in notes.elapsed_s]
        self._optimizers.last_captured = notes.packed[-1] is not None
        self._current.number = step
        self._collector.loss.of_step = []
        self._scale.begin_step()

    def _apply_passes(self, notes: Notes, losses: list[float]) -> None:
        """Do what the passes of the running step would have done; `losses` are theirs."""
        reach, loss, runs = self.clock.reach, self._collector.loss, notes.next == _IN_PASS
        if not (notes.captures and runs):
            self._current.reached.discard(self._thread)
        loss.resume(self._thread, [notes.running] if runs and self._reads else [])
        if loss.wanted:
            loss.of_step = losses
        if self._compares:
            reach.resume(notes.passes > 0, {key for place, key in enumerate(self._keys) if notes.reached >> place & 1})
            if runs or notes.has_compared:
                self._apply_comparison(notes.before if runs else notes.in_pass, runs, bool(notes.has_compared))
        elif runs or notes.passes:
            reach.resume(notes.passes > 0, frozenset())
            reach.comparison.skip()
            if loss.wanted and not runs:
                reach.comparison.marks = notes.in_pass
        else:
            reach.passed = False
        first = 0
        for owner in self._owners:
            last = first + len(owner.witnesses.tensors)
            is_known = tuple(map(id, owner.witnesses.tensors)) == self._keys[first:last]
            if is_known and (self._compares or notes.elapsed_s):
                owner.witnesses.explain(notes.in_step[first:last])
            owner.scaler.resume(notes.states)
            first = last

    def _apply_comparison(self, marks: list[Any], runs: bool, has_ended: bool) -> None:
        tensors, comparison = self.clock.owners.tensors_to_compare(), self.clock.reach.comparison
        if tuple(map(id, tensors)) == self._keys:
            comparison.resume(tensors, marks, runs, has_ended)
        elif runs:  # another thread has let go of a model
            comparison.begin(tensors)

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
        current.reached.discard(self._thread)
        if self._holding is not None:
            self._holding.begin_pass()
        self._times.prompt = False
        if self._reads:
            loss = self._collector.loss
            is_one = reach.fate == "kept" and len(tensors) == len(weights) == 1
            if is_one and (number := product_of(tensors[0], weights[0])) is not None:
                loss.resume(self._thread, [number])
            else:
                loss.begin_pass(tensors, weights, reach.fate)
            self._passes.see_jump(tensors)
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
        running = loss.running
        is_fine = not self._looks or self._sentinel.look(clock, running)
        current.running.discard(self._thread)
        self._times.prompt = True
        if self._holding is not None:
            self._holding.end_pass()
        if loss.wanted:
            loss.of_step = None if loss.of_step is None or running is None else loss.of_step + running
            clock.reach.comparison.mark(owner.witnesses.tensors)
        self._collector.jumps.add(running or ())
        loss.resume(self._thread, [])
        for root in self._roots:
            if (module := root.ref()) is not None:
                root.passed_in_training = module.training
        clock.reach.passed = True
        clock.passes += 1
        if not is_fine or self._collector.jumps.is_new:
            self._keeping.settle("at the end of a backward pass")
        self._next = _STEP
        return True

    def inner_begins(self, accumulates: bool) -> bool:
        """Note that a pass starts inside a pass."""
        return self._passes.inner_begins(accumulates)

    def inner_ended(self) -> None:
        """Note the end of such a pass."""
        self._passes.inner_ended()

    def saw_pending_call(self) -> None:
        """Check whether a scaler has skipped a captured step, before a module runs."""
        self.settle()
        self._passes.saw_pending_call()

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
            if not self._know_witnesses([owner]):
                return False
            self._teach([owner])
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
        """Return whether no enabled scaler is among the callers: a loop may start to use one at any time."""
        for _ in range(NEAR):
            if frame is None:
                return True
            if frame.f_code.co_name in _SCALERS and frame.f_code in SCALER_STEPS:  # code is hashed with all it has
                scaler = frame.f_locals.get("self")
                return isinstance(scaler, GradScaler) and not scaler.is_enabled()
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
            or (self._follows and self._cadence.chooses(step + 1))
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
            queue.frames.append((step, time.time(), elapsed_s, scalars, self._name, parts, None))
        self._cadence.ended.append((SKIPPED, elapsed_s))
        owner.steps += 1
        owner.ended += 1
        owner.last_step = step
        for root in self._roots:
            if root.passed_in_training is not None:
                root.trained, root.passed_in_training = root.passed_in_training, None
        clock.passes, clock.reach.passed = 0, False
        self._optimizers.last_captured = False
        clock.step = self._current.number = self._track.ended = step + 1
        self._track.count_update()
        self._track.at = now
        owner.witnesses.explain()
        if self._keeper is not None:
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
            or len(self._queue.frames) >= MANY_FRAMES  # so that the full machinery can drop the oldest
        )


guard_functions(Steady.backward_begins, Steady.backward_ended, Steady.saw_step_begin, Steady.saw_step_end)

"""One watcher's recorder: attaches the capture, finds the steps, and ships a frame for each."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch._C import DisableTorchFunction
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from hookcore import hooks
from hookcore.compiled import guard_functions
from hookcore.config import Settings
from hookcore.hooks.engine import BackwardHandle, ObservedEngine, observe_backward
from hookcore.observe import cpu, layout
from hookcore.observe.arena import CpuArena
from hookcore.recorder.attachment import Attachment
from hookcore.recorder.cadence import MAX_BLOCK, Cadence, JumpFinder
from hookcore.recorder.clock import Clock, Owner
from hookcore.recorder.commands import Change, Commands, describe_change
from hookcore.recorder.current import CurrentStep
from hookcore.recorder.dispatch import Dispatcher
from hookcore.recorder.errorlog import ErrorLog
from hookcore.recorder.frames import RawFrame, build_frames
from hookcore.recorder.in_graphs import InsideAttachment
from hookcore.recorder.inventory import list_hooks
from hookcore.recorder.meter import Meter
from hookcore.recorder.models import Models
from hookcore.recorder.notices import Notices
from hookcore.recorder.on_modules import ModuleAttachment
from hookcore.recorder.on_process import ProcessAttachment
from hookcore.recorder.parameters import Parameters, applied_scale
from hookcore.recorder.plans import PlanTable
from hookcore.recorder.scalars import number_of, scalar_of
from hookcore.recorder.snapshots import Snapshots
from hookcore.recorder.statistics import Statistics
from hookcore.recorder.worker import Worker
from hookcore.records import GRADIENT_KINDS, STATS, Command, Coverage, Event, Frame, HookRecord, Tap, escaped_in
from hookcore.sinks import Sink

COVERAGE_WAIT_S: Final = 1.0
DESCRIBE_EVERY_S: Final = 30.0
DESCRIBE_PAUSE: Final = 200  # times as long as a description took there is none
IDLE_S: Final = 1.0  # without a step for so long, the recorder's thread carries commands out as far as it may
MAX_JUMP_FINDERS: Final = 256  # scalars whose jumps are looked for
SKIPPED: Final = "hookcore/skipped"  # 1 at a step that a GradScaler skipped
_NAN: Final = float("nan")
_BAD_COLUMNS: Final = [STATS.index("nan"), STATS.index("inf")]
_NOTHING: Final = np.empty(0, np.int64)
_BACKWARD_KINDS: Final = GRADIENT_KINDS - {"param_grad"}
_current_task: Callable[[], int] = torch._C._current_graph_task_id


class Recorder:
    """Owns the hooks. Every method that torch calls lets no exception out."""

    def __init__(self, settings: Settings, sink: Sink, clock: Callable[[], float] = time.perf_counter) -> None:
        self.settings = settings
        self.sink = sink
        self._clock = clock
        capacity = max(256, min(1 << 16, settings.memory // 4 // layout.ROW_USE))
        self.plans = PlanTable()
        self.current = CurrentStep()
        self.errors = ErrorLog(self.current)
        self.statistics = Statistics(
            CpuArena(capacity, settings.sketch_values), settings.phases, settings.calls, self.current, self.errors
        )
        self.dispatcher = Dispatcher(self.plans, self.current, self.statistics, self.errors, self._saw_pending_call)
        self.parameters = Parameters(self.plans, self.statistics, settings.kinds)
        self.models = Models(self.plans, self.parameters, settings, self.errors, self._describe)
        self.cadence = Cadence(settings.every, settings.budget)
        self.clock = Clock(self.parameters, self)
        self.snapshots = Snapshots(self.plans, self.current, self.errors, self.emit, self._scale_of)
        self.commands = Commands(settings, self.models, self.snapshots, self.emit)
        self.notices = Notices(self.plans, self.statistics, self.models, self.emit)
        self.paused = False
        self.closed = False
        self._attachment: Attachment | None = None
        self._process_handles: list[hooks.HookHandle] = []
        self._backward_handle: BackwardHandle | None = None
        self._held: list[list[RawFrame]] = []  # parts that may turn out to be steps of their own
        self._open_parts: list[RawFrame] = []  # of the newest of them
        self._cut = False  # whether what is in the arena came after these
        self._step_scale: Any = None
        self._pass_scales: dict[int, Any] = {}  # by id(scaler), when the first pass of the step had ended
        self._asked = False  # whether a snapshot or a command made the step that ended longer
        self._last_captured = False  # whether the step that ended last was captured
        self._was_bad = False
        self._skipped: Any = None  # a device flag: whether a fused optimizer left its step out
        self._scaled_parameters = False
        self._ended_at = float("nan")
        self._lock = threading.RLock()  # threads that train at once end their steps one after the other
        self._describe_at = 0.0  # when the sink is told of the modules and their coverage again
        self._unsent_taps: tuple[Tap, ...] = ()
        self._told_dropped = 0
        self._told_escaped = False
        self._events: list[Event] = []
        self._scalars: dict[str, Any] = {}
        self._jumps: dict[str, JumpFinder] = {}
        self._hooks: tuple[HookRecord, ...] = ()  # as they were listed last
        self._told_waiting = False
        self._worker = Worker(
            self._ship,
            lambda error: self.errors.record("recorder thread", error),
            self._tick,
            lambda: self.snapshots.waiting,
        )
        sink.listen(self.obey)

    # -- attaching --------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Put the hooks on."""
        self._worker.start()
        if cpu.FALLBACK_REASON:
            self.emit("slow-kernel", cpu.SLOW_KERNEL, "warning")
        self._process_handles = [
            hooks.on_optimizer_step_pre(None, self.saw_step_begin),
            hooks.on_optimizer_step(None, self.saw_step_end),
        ]
        self._backward_handle = observe_backward(self)
        if self.models.discovers:
            self._process_handles.append(hooks.on_module_registration(self.models.saw_registration))
        self._attachment = self._new_attachment()
        self._set_capturing(not self.paused)
        self._attachment.follow_observers()

    def _new_attachment(self) -> Attachment:
        if self.settings.compiled == "inside":
            inside = InsideAttachment(self.dispatcher)
            if inside.compiled_before:
                self.emit(
                    "compiled-again", "the model was compiled before; its graphs are made once more, to see inside"
                )
            return inside
        if self.settings.attach == "module":
            return ModuleAttachment(self.dispatcher, self.models)
        return ProcessAttachment(self.dispatcher, self.models)

    def detach(self) -> None:
        """Take every hook off."""
        self.current.stop()
        if self._attachment is not None:
            self._attachment.close()
            self._attachment = None
        for handle in self._process_handles:
            handle.remove()
        self._process_handles.clear()
        if self._backward_handle is not None:
            self._backward_handle.remove()
            self._backward_handle = None

    @property
    def attached(self) -> bool:
        """Whether anything of ours is registered."""
        return self._attachment is not None

    def _set_capturing(self, on: bool) -> None:
        self.current.begin(self.step, on)
        self.dispatcher.begin_step(on)
        if self._attachment is not None:
            (self._attachment.on if on else self._attachment.off)()

    def _describe(self) -> None:
        self.sink.describe(self.models.records(), (), self._hooks)

    # -- steps ------------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The number of the step that runs: so many have ended."""
        return self.clock.step

    def saw_step_begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The optimizer's pre-hook: gradients and weights as it is about to use them."""
        if (meter := self.current.meter) is not None:
            meter.enter()
        try:
            with self._lock, DisableTorchFunction():
                # With a closure, forward and backward run inside the step: the gradients come later.
                with_gradients = _closure(args, kwargs) is None
                owner = self.clock.step_begins(optimizer, closure=not with_gradients)
                if owner is None:
                    return
                owner.reads = self._last_captured if owner.late else self.current.captured
                self._read_scale(owner, optimizer)
                if owner.reads:
                    owned = owner.owned = self.parameters.owned(optimizer)
                    self.parameters.before_step(owned, with_gradients, id(optimizer))
                    if self.snapshots.active:
                        self.snapshots.before_step(owned, with_gradients)
        except Exception as error:
            self.errors.record("optimizer pre-hook", error)
        finally:
            if meter is not None:
                meter.leave()

    def saw_step_end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The optimizer's post-hook: a step, if its parameters got new gradients since the last one."""
        if (meter := self.current.meter) is not None:
            meter.enter()
        try:
            with self._lock, DisableTorchFunction():
                owner = self.clock.step_ended(optimizer)
                if owner is None:
                    return
                if not owner.steps and _closure(args, kwargs) is not None:
                    # Its model may have become known inside this step, whose beginning said nothing then.
                    owner.reads, owner.owned = self.current.captured, self.parameters.owned(optimizer)
                if owner.reads:
                    owned, owner.owned = owner.owned, []
                    if _closure(args, kwargs) is not None:
                        self._read_scale(owner, optimizer)
                        self.parameters.read_gradients(owned)
                        self.snapshots.read_gradients(owned)
                    self.parameters.after_step(id(optimizer))
                    if self.snapshots.active:
                        self.snapshots.after_step(owned)
                self._count(owner)
        except Exception as error:
            self.errors.record("optimizer post-hook", error)
        finally:
            if meter is not None:
                meter.leave()

    def _count(self, owner: Owner) -> None:
        if self.clock.manual:
            return
        if _current_task() != -1:
            owner.inside = self.clock.due = True  # the step ends with the pass
            return
        now = self.clock.step
        step = self.clock.count(owner)
        if 0 <= step < now and owner.reads:
            self._ship_part(step)  # a second optimizer after the same backward
            self._step_scale = None

    def _read_scale(self, owner: Owner, optimizer: Optimizer) -> None:
        scaler = owner.live_scaler()
        scale = scaler._scale if scaler is not None else None
        self._step_scale = None if scale is None else scalar_of(scale)
        self._scaled_parameters = applied_scale(optimizer) is not None
        found = optimizer.__dict__.get("found_inf")  # there while a fused optimizer is stepped by a scaler
        if isinstance(found, torch.Tensor):
            self._skipped = scalar_of(found)
            if self._skipped == 0.0:
                self._skipped = None

    def backward_begins(self, accumulates: bool) -> None:
        """A backward pass of this process starts."""
        if (meter := self.current.meter) is not None:
            meter.enter()
        try:
            with self._lock:
                self.current.begin_pass(accumulates)
                if accumulates:
                    with DisableTorchFunction():
                        self.clock.pass_begins()
        except Exception as error:
            self.errors.record("begin of a backward pass", error)
        finally:
            if meter is not None:
                meter.leave()

    def backward_ended(self, accumulates: bool) -> None:
        """It is over, or raised."""
        if (meter := self.current.meter) is not None:
            meter.enter()
        try:
            with self._lock:
                if self.current.end_pass(accumulates):
                    self.dispatcher.reset_calls()
                if accumulates:
                    self._cut = False
                    with DisableTorchFunction():
                        self.clock.pass_ended()
                    unsure = self.clock.undecided or self.clock.may_have_skipped
                    self.current.await_call(self.current.captured and unsure)
                    if self.current.pending and not self._pass_scales:
                        # A step that a scaler skips is noticed when the scale has been changed for it.
                        self._pass_scales = {
                            id(each): scalar_of(each._scale) for each in self.clock.scalers() if each._scale is not None
                        }
        except Exception as error:
            self.errors.record("end of a backward pass", error)
        finally:
            if meter is not None:
                meter.leave()

    def _saw_pending_call(self) -> None:
        """A module is about to run, after a pass that may have been the last one of its step."""
        with self._lock, DisableTorchFunction():
            if self.current.running or self.clock.stepping:
                return
            self.current.await_call(False)
            ended = self.clock.look()
            if not ended and self.clock.undecided and not self._cut:
                self._open_parts.append(self._take_raw(self.step))
                self._cut = True

    def user_step(self) -> None:
        """The user says that a step is over."""
        with self._lock:
            self.clock.manual = True
            if (meter := self.current.meter) is not None:
                meter.enter()
            if self.current.captured and not self.parameters.read:
                self.read_parameters()
            self.release_parts(as_steps=False)
            self.clock.tick()

    def read_parameters(self) -> None:
        """No optimizer of torch's will step: the gradients are final now."""
        if self.current.captured:
            self.parameters.read_all()
            if self.snapshots.active:
                self.snapshots.before_step(self.parameters.all(), with_gradients=True)

    def hold_part(self) -> None:
        """What came so far is apart from what comes now, and may turn out to be a step of its own."""
        if not self._cut:
            self._open_parts.append(self._take_raw(self.step))
        self._open_parts[-1].micro_batches = self.current.take_backwards()
        self._held.append(self._open_parts)
        self._open_parts, self._cut = [], False

    def release_parts(self, as_steps: bool, scales: Sequence[float] = ()) -> int:
        """Ship the parts that were held, as parts of the step that runs or as steps; answer with how many steps.

        `scales`: a scaler skipped these steps, and the loss had these scales in them; NaN where that is not known.
        """
        held, self._held = self._held, []
        for offset, parts in enumerate(held):
            if scales:
                self._say_skipped(self.step + offset, parts[-1].scalars)
            scale = scales[offset] if scales else None if as_steps else self._step_scale
            self._put_parts(parts, self.step + (offset if as_steps else 0), as_steps, scale)
        if not as_steps:
            self.current.add_backwards(sum(parts[-1].micro_batches for parts in held))
        steps = len(held) if as_steps else 0
        self._put_parts(self._open_parts, self.step + steps, as_steps, self._step_scale)
        self._open_parts = []
        return steps

    def _put_parts(self, parts: list[RawFrame], step: int, as_steps: bool, scale: Any) -> None:
        for part in parts:
            part.step, part.scale = step, scale
            # Captured only while it was not known to be a step, or with gradients that are larger than nobody knows.
            unknown = isinstance(scale, float) and math.isnan(scale)  # one on a device is not waited for
            if unknown or (as_steps and not self.cadence.chooses(step)):
                part.packed, part.transfers, part.scale = _NOTHING, (), None
            self._worker.put(part)

    def _say_skipped(self, step: int, scalars: dict[str, Any]) -> None:
        scalars[SKIPPED] = 1.0
        self._events.append(_skipped_step(step))

    def end_step(self, skipped_by: GradScaler | None) -> None:
        """Ship the frame."""
        now = self._clock()
        self._asked = self.snapshots.active or bool(self.commands.changes)
        if self._asked:
            self._guarded(self._end_snapshots)
        if skipped_by is not None and self._step_scale is None:
            self._step_scale = self._pass_scales.get(id(skipped_by))
        if skipped_by is not None or self._skipped == 1.0:
            self._say_skipped(self.step, self._scalars)
            self._skipped = None
        if self._open_parts:
            self.release_parts(as_steps=False)
        if self.current.captured or self._scalars or self._events:
            self._ship_part(self.step, now - self._ended_at)

    def begin_step(self) -> None:
        """Decide about the next step."""
        captured = self._last_captured = self.current.captured
        for root in self.models.roots:
            root.note_step()
        self._step_scale = self._skipped = None
        self._pass_scales = {}
        self.parameters.read = False
        asked = self._asked
        if asked:
            self._guarded(self._carry_out)
        # A step in which a snapshot was taken tells nothing of what capturing costs.
        gap = self.clock.longest_gap()
        self.cadence.block = 1 if gap == 1 else _power_of_two(min(MAX_BLOCK, gap))
        spent = _NAN if self.current.meter is None else self._spent(self.current.meter)
        self.cadence.step_ended(captured, _NAN if asked else self._clock() - self._ended_at, spent)
        wanted = self.cadence.wants(self.step) and not self.clock.begins_late
        self._ended_at = self._clock()
        wanted = wanted or (self.snapshots.active and self.snapshots.hurries)
        # What runs on another device is not seen from here, and two threads cannot be told apart.
        timed = wanted and self.cadence.wants_timing and not self.statistics.devices and not self.clock.many_threads
        self.current.time_with(Meter(self._clock) if timed else None)
        if not self.paused and self.attached and (wanted or self.current.captured):
            self._set_capturing(wanted)
        else:
            self.current.begin(self.step, False)

    def _spent(self, meter: Meter) -> float:
        """Return what hookcore's own code took of the step that ends, if nobody else can be in this number."""
        return _NAN if self.clock.many_threads or self.statistics.devices else meter.take()

    # -- commands ---------------------------------------------------------------------------------------------------

    def obey(self, command: Command) -> None:
        """Take a command, from any thread; it is carried out at the end of the step that runs."""
        if self.closed:
            return
        try:
            self.commands.read(command)
        except Exception as error:
            self.errors.record("command", error)

    def request_snapshot(self, tap: Tap) -> None:
        """Keep a tensor at its next call; called by the training script, so that the step may begin with it."""
        if self.closed or not self.commands.ask(tap):
            return
        with self._lock:
            begun = self.current.began_backward or self.dispatcher.has_outputs()
            if self.current.captured and not begun and _current_task() == -1:
                self._sync_snapshots()

    def current_settings(self) -> dict[str, Any]:
        """What holds now, in types that JSON has: the settings, `paused`, and the cadence's `stride` and `cost`."""
        cadence = self.cadence
        known = cadence.cost == cadence.cost
        return {
            **self.settings.as_dict(),
            "paused": self.paused,
            "stride": cadence.stride,
            "cost": cadence.cost if known else None,
            "effective_cost": cadence.effective_cost if known else None,
            "skipped_steps": cadence.skipped,
        }

    def _guarded(self, call: Callable[[], None]) -> None:
        """What goes wrong with a command must not keep the step from ending."""
        try:
            call()
        except Exception as error:
            self.errors.record("command", error)

    def _end_snapshots(self) -> None:
        self.snapshots.end_step("capture is paused" if self.paused else "")

    def _carry_out(self) -> None:
        """Between two steps, on the training thread."""
        self.commands.carry_out(self._apply)
        self._told_waiting = False
        self._sync_snapshots()
        if self.paused and self.current.captured:
            self._set_capturing(False)

    def _sync_snapshots(self) -> None:
        self.snapshots.begin()
        self.dispatcher.add_only(*((self.snapshots,) if self.snapshots.looks_at_calls else ()))
        if self._attachment is not None:
            self._attachment.follow_observers()

    def _apply(self, change: Change) -> None:
        before = self.current_settings()
        values = {name: value for name, value in change.values.items() if name != "paused"}
        self.settings = replace(self.settings, **values)
        if "every" in values or "budget" in values:
            self.cadence.change(self.settings.every, self.settings.budget)
        if change.choice is not None:
            self.models.rechoose(self.settings, change.choice)
            self._follow_choice(change)
        self.paused = change.values.get("paused", self.paused)
        self.emit("settings-changed", describe_change(before, self.current_settings(), change.values))

    def _follow_choice(self, change: Change) -> None:
        if self._attachment is None:
            return
        limit = self._attachment.follow_choice([plan for plan, _ in change.choice or ()])
        if limit is not None:
            self.emit("settings-limited", limit, "warning")

    def _tick(self) -> None:
        """On the recorder's thread, fifty times a second."""
        self.snapshots.ship(self.sink.add_snapshot)
        if self.commands.wants_inventory:
            self.commands.wants_inventory = False
            self._describe_all()
        if (self.commands.changes or self._events) and not self._clock() - self._ended_at < IDLE_S:
            self._act_while_idle()

    def _act_while_idle(self) -> None:
        """No step ends. Nothing is touched here that a hook reads: a forward may be running, and a slow one at that.

        The cadence and the switch for pausing are read at a step's end alone, under the lock that is taken here.
        """
        if not self._lock.acquire(timeout=1.0):
            return
        try:
            if not self.commands.waits_for_a_step:
                self.commands.carry_out_while_idle(self._apply)
            if self.commands.changes and not self._told_waiting:
                self._told_waiting = True
                self.emit("settings-waiting", "no step ends now: the change holds from the end of the next one")
            if self._events:
                events, self._events = tuple(self._events), []
                step = max(0, self.step - 1)
                self._worker.put(RawFrame(step, time.time(), _NOTHING, (), 0, _NAN, events=events))
        finally:
            self._lock.release()

    def _scale_of(self, kind: str) -> float | None:
        """The loss scale that is in a gradient of this kind, where one is known."""
        if kind == "param_grad" and not self._scaled_parameters:
            return None
        return self.clock.known_scale()

    def _describe_all(self) -> None:
        try:
            self.notices.emit_new()
            self._hooks = list_hooks(self.models.roots, self.clock.optimizers())
            self.sink.describe(self.models.records(), self.models.coverage(self.statistics.table), self._hooks)
        except Exception as error:
            self.errors.record("description of the modules", error)

    # -- frames -----------------------------------------------------------------------------------------------------

    def _ship_part(self, step: int, elapsed_s: float = _NAN) -> None:
        raw = self._take_raw(step)
        raw.elapsed_s, raw.micro_batches = elapsed_s, self.current.backwards
        self._worker.put(raw)

    def _take_raw(self, step: int) -> RawFrame:
        """Everything that came since this was called last."""
        new_taps = self.statistics.table.take_new()
        raw = RawFrame(
            step=step,
            time_s=time.time(),
            packed=self.statistics.arena.pack(len(self.statistics.table.taps)),
            new_taps=new_taps,
            micro_batches=0,
            elapsed_s=_NAN,
            scale=self._step_scale,
            scaled=GRADIENT_KINDS if self._scaled_parameters else _BACKWARD_KINDS,
            scalars=self._scalars | self._costs(),
            events=tuple(self._events) if self._events else (),
            transfers=self.statistics.begin_transfers(),
            ratios=self.parameters.ratios() if "update" in self.settings.kinds else (),
        )
        if self._skipped is not None:
            raw.scalars[SKIPPED] = self._skipped
        self._scalars, self._events = {}, []
        return raw

    def _costs(self) -> dict[str, float]:
        cadence = self.cadence
        if cadence.cost != cadence.cost:
            return {}
        return {
            "hookcore/cost": cadence.cost,
            "hookcore/effective_cost": cadence.effective_cost,
            "hookcore/every": float(cadence.stride),
            "hookcore/skipped_steps": float(cadence.skipped),
        }

    def _ship(self, raws: list[RawFrame]) -> None:
        table, began = self.statistics.table, time.thread_time()
        for raw in raws:
            self._resolve(raw)
        for frame in build_frames(raws, table.taps, table.numbers):
            table.saw_frame(frame.step, frame.taps.tolist())
            self._look_for_bad_values(frame)
            self._send(frame)
        self.cadence.took((time.thread_time() - began) / max(1, len(raws)))
        if (began := time.monotonic()) > self._describe_at:
            self._describe_all()
            now = time.monotonic()  # a walk over a very large model holds up who registers a hook: all the more seldom
            self._describe_at = now + max(DESCRIBE_EVERY_S, DESCRIBE_PAUSE * (now - began))

    def _resolve(self, raw: RawFrame) -> None:
        """Read what was on a device."""
        awaited = {name: number_of(value) for name, value in raw.scalars.items() if not isinstance(value, float)}
        self._note_jumps(awaited)
        raw.scalars |= awaited
        raw.scale = None if raw.scale is None else number_of(raw.scale)
        if SKIPPED not in awaited:
            return
        if not awaited[SKIPPED]:
            del raw.scalars[SKIPPED]
        else:
            raw.events += (_skipped_step(raw.step),)

    def _look_for_bad_values(self, frame: Frame) -> None:
        bad = bool(frame.stats[:, _BAD_COLUMNS].any()) if len(frame.stats) else self._was_bad
        if bad and not self._was_bad:
            self.cadence.alarm()
        self._was_bad = bad

    def _note_jumps(self, scalars: dict[str, Any]) -> None:
        for name, value in scalars.items():
            if not isinstance(value, float) or name.startswith("hookcore/"):
                continue
            if "loss" in name.lower() or not math.isfinite(value) or name in self._jumps:
                finder = self._jumps.get(name)
                if finder is None and len(self._jumps) < MAX_JUMP_FINDERS:
                    finder = self._jumps[name] = JumpFinder()
                if finder is not None and finder.jumped(value):
                    self.cadence.alarm()

    def _send(self, frame: Frame) -> None:
        if self._unsent_taps or self._worker.dropped > self._told_dropped:
            frame = self._with_what_was_lost(frame)
        try:
            self.tell_of_escapes(*frame.scalars, *(part for tap in frame.new_taps for part in (tap.module, tap.index)))
            self.sink.send(frame)
        except Exception as error:
            self._unsent_taps = frame.new_taps  # without their names every later number would be another tap's
            self.errors.record("sink", error)

    def tell_of_escapes(self, *names: str) -> None:
        """Say once that a name was not valid Unicode, and how it is shown."""
        name = None if self._told_escaped else escaped_in(names)
        if name is not None:
            self._told_escaped = True
            self.emit(
                "name-escaped", f"a name is not valid Unicode; it is shown as '{name}', others likewise", "warning"
            )

    def _with_what_was_lost(self, frame: Frame) -> Frame:
        lost = self._worker.dropped - self._told_dropped
        self._told_dropped += lost
        message = f"{lost} frames were dropped: the recorder's thread could not keep up"
        event = Event(frame.step, time.time(), "frame-dropped", message, "warning", count=lost)
        taps, self._unsent_taps = self._unsent_taps + frame.new_taps, ()
        return replace(frame, new_taps=taps, events=frame.events + ((event,) if lost else ()))

    # -- what the watcher asks --------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Capture nothing until resumed; steps are still counted."""
        self.paused = True
        self._set_capturing(False)

    def resume(self) -> None:
        """Capture again, from the next forward on."""
        if self.paused and self.attached:
            self._set_capturing(True)
        self.paused = False

    def coverage(self) -> list[Coverage]:
        """Every module: captured, or not and why, by the frames that have been built."""
        self._worker.flush(COVERAGE_WAIT_S)
        return self.models.coverage(self.statistics.table)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all finished steps are in the sink."""
        return self._worker.flush(timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Ship what was begun, take everything off, end the thread."""
        if self.closed:
            return
        self.closed = True
        self.snapshots.give_up("the training ended before it came")
        begun = self.current.captured and (self.current.began_backward or self.dispatcher.has_outputs())
        with contextlib.suppress(Exception):
            self.release_parts(as_steps=False)
            if begun or self._scalars or self._events:
                self._ship_part(self.step)
        self.detach()
        self._worker.close(timeout_s)
        with contextlib.suppress(Exception):
            self.sink.describe(self.models.records(), self.coverage(), self._hooks)
        self.sink.close()
        self.models.let_go()

    def abandon(self) -> None:
        """In a forked child: never capture, never send."""
        self.closed = True
        self.detach()

    def log(self, scalars: dict[str, Any], ended: bool = False) -> None:
        """Numbers of the user's beside the layers; a device tensor is read later, on our own thread.

        They belong to the step that runs; with `ended` to the one that ended last, unless the next one has begun.
        """
        numbers = {name: scalar_of(value) for name, value in scalars.items()}
        with self._lock:
            self._note_jumps(numbers)
            if not self.current.running and not self.clock.manual and not self.clock.stepping:
                with DisableTorchFunction():
                    self.clock.look()
            if ended and self.step and not self.clock.passes:
                self._worker.put(RawFrame(self.step - 1, time.time(), _NOTHING, (), 0, _NAN, scalars=numbers))
            else:
                self._scalars |= numbers

    def emit(self, name: str, message: str, severity: Any = "info", module: str = "") -> None:
        """An event, which travels with the next frame. Any thread may call it."""
        with self._lock:
            self._events.append(Event(self.step, time.time(), name, message, severity, module))


def _skipped_step(step: int) -> Event:
    message = f"GradScaler skipped step {step}: its gradients were not finite, so the weights did not change."
    return Event(step, time.time(), "skipped-step", message, "warning")


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _closure(args: Any, kwargs: Any) -> Any:
    return kwargs.get("closure") if "closure" in kwargs else args[1] if len(args) > 1 else None


guard_functions(
    ObservedEngine.run_backward,
    Recorder.backward_begins,
    Recorder.backward_ended,
    Recorder.saw_step_begin,
    Recorder.saw_step_end,
    Models.saw_registration,
    Recorder.user_step,
    Recorder.log,
)

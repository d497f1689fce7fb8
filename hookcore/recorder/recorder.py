"""One watcher's recorder: attaches the capture, finds the steps, and ships a frame for each."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch._C import DisableTorchFunction
from torch.optim import Optimizer

from hookcore import hooks
from hookcore.compiled import guard_functions
from hookcore.config import Settings
from hookcore.observe import cpu, layout
from hookcore.observe.arena import CpuArena
from hookcore.recorder.attachment import Attachment, InsideAttachment, ModuleAttachment, ProcessAttachment
from hookcore.recorder.cadence import Cadence
from hookcore.recorder.capture import Capture, TensorHook
from hookcore.recorder.commands import Change, Commands, describe_change
from hookcore.recorder.frames import RawFrame, build_frames
from hookcore.recorder.inventory import list_hooks
from hookcore.recorder.models import Models
from hookcore.recorder.notices import Notices
from hookcore.recorder.parameters import Parameter, Parameters, ScaleFinder, applied_scale
from hookcore.recorder.scalars import number_of, scalar_of
from hookcore.recorder.snapshots import Snapshots
from hookcore.recorder.worker import Worker
from hookcore.records import GRADIENT_KINDS, Command, Coverage, Event, Frame, HookRecord, Tap, escaped_in
from hookcore.sinks import Sink

if TYPE_CHECKING:
    from hookcore.observe.device import Transfer

COVERAGE_WAIT_S: Final = 1.0
DESCRIBE_EVERY_S: Final = 30.0
DESCRIBE_PAUSE: Final = 200  # times as long as a description took there is none
IDLE_S: Final = 1.0  # without a step for so long, the recorder's thread carries commands out as far as it may
SCALER_STEPS: Final = 16  # the first steps, and then one in so many, in which a GradScaler is looked for
BACKWARDS_WITHOUT_STEP: Final = 64  # then a backward pass counts as a step: nobody steps an optimizer of torch's
_NAN: Final = float("nan")
_MODULE_KINDS: Final = frozenset(("output", "output_grad", "input", "input_grad"))
_NOTHING: Final = np.empty(0, np.int64)
_BACKWARD_KINDS: Final = GRADIENT_KINDS - {"param_grad"}
_current_task: Callable[[], int] = torch._C._current_graph_task_id


class Recorder:
    """Owns the capture and its hooks. Every method that torch calls lets no exception out."""

    def __init__(self, settings: Settings, sink: Sink, clock: Callable[[], float] = time.perf_counter) -> None:
        self.settings = settings
        self.sink = sink
        self._clock = clock
        capacity = max(256, min(1 << 16, settings.memory // 4 // layout.ROW_BYTES))
        self.capture = Capture(CpuArena(capacity, settings.sketch_values), settings.phases, settings.calls)
        self.capture.on_backward_begin = self._backward_began
        self.capture.on_backward_end = self._backward_ended
        self.parameters = Parameters(self.capture, settings.kinds)
        self.models = Models(self.capture, self.parameters, settings, self._describe)
        self.cadence = Cadence(settings.every, settings.budget)
        self.scales = ScaleFinder()
        self.snapshots = self.capture.snapshots = Snapshots(self.capture, self.say, self._scale_of)
        self.commands = Commands(settings, self.models, self.snapshots, self.say)
        self.notices = Notices(self.capture, self.models, self.say)
        self.step = 0
        self.paused = False
        self.closed = False
        self.manual = False  # the user calls step() himself
        self._optimizers: dict[int, _Stepper] = {}
        self._attachment: Attachment | None = None
        self._process_handles: list[hooks.HookHandle] = []
        self._steps_by_backward = False
        self._step_is_due = False
        self._step_scale: float | None = None
        self._scaled_parameters = False
        self._ended_at = float("nan")
        self._announced = 0
        self._lock = threading.RLock()  # threads that train at once end their steps one after the other
        self._describe_at = 0.0  # when the sink is told of the modules and their coverage again
        self._unsent_taps: tuple[Tap, ...] = ()
        self._told_dropped = 0
        self._told_escaped = False
        self._sees_modules = not settings.kinds.isdisjoint(_MODULE_KINDS)
        self._events: list[Event] = []
        self._scalars: dict[str, Any] = {}
        self._logs_behind = False
        self._hooks: tuple[HookRecord, ...] = ()  # as they were listed last
        self._told_waiting = False
        self._worker = Worker(
            self._ship,
            lambda error: self.capture.failed("recorder thread", error),
            self._tick,
            lambda: self.snapshots.waiting,
        )
        sink.listen(self.obey)

    # -- attaching --------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Put the hooks on."""
        self._worker.start()
        if cpu.FALLBACK_REASON:
            self.say("slow-kernel", cpu.SLOW_KERNEL, "warning")
        self._process_handles = [
            hooks.on_optimizer_step_pre(None, self.saw_step_begin),
            hooks.on_optimizer_step(None, self.saw_step_end),
        ]
        if self.models.discovers:
            self._process_handles.append(hooks.on_module_registration(self.models.saw_registration))
        self._attachment = self._new_attachment()
        self._set_capturing(not self.paused)
        self._attachment.look()

    def _new_attachment(self) -> Attachment:
        if self.settings.compiled == "inside":
            inside = InsideAttachment(self.capture, self.models)
            if inside.compiled_before:
                self.say(
                    "compiled-again", "the model was compiled before; its graphs are made once more, to see inside"
                )
            return inside
        if self.settings.attach == "module":
            return ModuleAttachment(self.capture, self.models)
        return ProcessAttachment(self.capture, self.models)

    def detach(self) -> None:
        """Take every hook off."""
        self.capture.on = False
        if self._attachment is not None:
            self._attachment.close()
            self._attachment = None
        for handle in self._process_handles:
            handle.remove()
        self._process_handles.clear()

    @property
    def attached(self) -> bool:
        """Whether anything of ours is registered."""
        return self._attachment is not None

    def _set_capturing(self, on: bool) -> None:
        self.capture.step = self.step
        self.capture.begin_step(on)
        if self._attachment is not None:
            (self._attachment.on if on else self._attachment.off)()

    def _describe(self) -> None:
        self.sink.describe(self.models.records(), (), self._hooks)

    # -- steps ------------------------------------------------------------------------------------------------------

    def saw_step_begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The optimizer's pre-hook: gradients and weights as it is about to use them."""
        try:
            if self.capture.on and (owned := self._owned(optimizer)):
                with self._lock, DisableTorchFunction():
                    self._read_scale(optimizer)
                    # With a closure, forward and backward run inside the step: the gradients come later.
                    with_gradients = _closure(args, kwargs) is None
                    self.parameters.before_step(owned, with_gradients, id(optimizer))
                    if self.snapshots.active:
                        self.snapshots.before_step(owned, with_gradients)
        except Exception as error:
            self.capture.failed("optimizer pre-hook", error)

    def saw_step_end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The optimizer's post-hook: a step, if a gradient came since the last one."""
        try:
            owned = self._owned(optimizer)
            if not owned and self._any_owner():
                return
            with self._lock, DisableTorchFunction():
                if self.capture.on:
                    if _closure(args, kwargs) is not None:
                        self._read_scale(optimizer)
                        self.parameters.read_gradients(owned)
                        self.snapshots.read_gradients(owned)
                    self.parameters.after_step(id(optimizer))
                    if self.snapshots.active:
                        self.snapshots.after_step(owned)
                if self.manual:
                    return
                if _current_task() != -1:
                    self._step_is_due = True  # an optimizer inside the backward pass: the step ends with the pass
                    return
                self._close_step(optimizer)
        except Exception as error:
            self.capture.failed("optimizer post-hook", error)

    def _close_step(self, optimizer: Optimizer) -> None:
        capture, stepper = self.capture, self._optimizers[id(optimizer)]
        if not capture.on:
            if stepper.closes:
                self.end_step()
            return
        dirty = capture.began_backward or capture.has_outputs() or not self._sees_modules
        stepper.closes = dirty
        if dirty:
            self._steps_by_backward = False
            self.end_step()
        elif self.step:
            # A second optimizer after the same backward: its numbers belong to the step that just ended.
            self._ship_part(self.step - 1)

    def _owned(self, optimizer: Optimizer) -> list[Parameter]:
        groups = optimizer.param_groups
        # Enough to notice that parameters were added or replaced.
        newest = groups[-1]["params"] if groups else []
        state = (len(groups), len(newest), id(newest[-1]) if newest else 0)
        known = self._optimizers.get(id(optimizer))
        if known is None or known.ref() is not optimizer or known.state != state:
            key, optimizers = id(optimizer), self._optimizers
            reference = weakref.ref(optimizer, lambda _: optimizers.pop(key, None))
            closes = known is None or known.closes
            known = optimizers[key] = _Stepper(reference, state, self.parameters.owned(optimizer), closes)
        return known.owned

    def _any_owner(self) -> bool:
        return any(stepper.owned for stepper in list(self._optimizers.values()))

    def _read_scale(self, optimizer: Optimizer) -> None:
        known_before = self.scales.known
        if self.step < SCALER_STEPS or self.step % SCALER_STEPS == 0:
            self.scales.look_up_the_stack()
        scale = self.scales.scale()
        if not known_before and not self.scales.never_changed():
            scale = None  # steps were skipped before the scaler was found: their scale is not known
        self._step_scale = scale
        self._scaled_parameters = applied_scale(optimizer) is not None

    def _backward_began(self) -> None:
        scale = self.scales.scale()
        if self.capture.backwards and scale is not None and self._step_scale not in (None, scale):
            self.say("skipped-step", f"GradScaler skipped a step and lowered its scale to {scale:g}", "warning")
            with self._lock:
                self._ship_part(self.step)
        self._step_scale = scale

    def _backward_ended(self) -> None:
        with self._lock:
            self._end_step_by_backward()

    def _end_step_by_backward(self) -> None:
        if self._step_is_due:
            self._step_is_due = False
            self.end_step()
        elif self._steps_by_backward:
            self._read_all_parameters()
            self.end_step()
        elif not self.manual and self.capture.backwards >= BACKWARDS_WITHOUT_STEP and not self._any_owner():
            self._steps_by_backward = True
            self.say("no-optimizer", "no torch optimizer steps this model: each backward pass counts as a step")
            self.end_step()

    def user_step(self) -> None:
        """The user says that a step is over."""
        self.manual = True
        with self._lock:
            self._end_user_step()

    def _end_user_step(self) -> None:
        if self.capture.on and not self.parameters.read:
            self._read_all_parameters()
        self.end_step()

    def _read_all_parameters(self) -> None:
        self.parameters.read_all()
        if self.snapshots.active:
            self.snapshots.before_step(self.parameters.all(), with_gradients=True)

    def end_step(self) -> None:
        """Ship the frame and decide about the next step."""
        now = self._clock()
        elapsed = now - self._ended_at
        captured = self.capture.on
        asked = self.snapshots.active or self.commands.changes
        if asked:
            self._guarded(self._end_snapshots)
        if captured or self._scalars or self._events:
            self._ship_part(self.step, elapsed)
        self.step += 1
        self.capture.step = self.step
        self._step_scale = None
        self.parameters.read = False
        if asked:
            self._guarded(self._carry_out)
        # A step in which a snapshot was taken tells nothing of what capturing costs.
        wanted = self.cadence.next_is_captured(captured, _NAN if asked else self._clock() - self._ended_at)
        self._ended_at = self._clock()
        wanted = wanted or (self.snapshots.active and self.snapshots.hurries)
        if not self.paused and self.attached and (wanted or self.capture.on):
            self._set_capturing(wanted)

    # -- commands ---------------------------------------------------------------------------------------------------

    def obey(self, command: Command) -> None:
        """Take a command, from any thread; it is carried out at the end of the step that runs."""
        if self.closed:
            return
        try:
            self.commands.read(command)
        except Exception as error:
            self.capture.failed("command", error)

    def request_snapshot(self, tap: Tap) -> None:
        """Keep a tensor at its next call; called by the training script, so that the step may begin with it."""
        if self.closed or not self.commands.ask(tap):
            return
        with self._lock:
            begun = self.capture.began_backward or self.capture.has_outputs()
            if self.capture.on and not begun and _current_task() == -1:
                self._look()

    def current_settings(self) -> dict[str, Any]:
        """What holds now, in types that JSON has: the settings, `paused`, and the cadence's `stride` and `cost`."""
        cost = self.cadence.cost
        return {
            **self.settings.as_dict(),
            "paused": self.paused,
            "stride": self.cadence.stride,
            "cost": cost if cost == cost else None,
        }

    def _guarded(self, call: Callable[[], None]) -> None:
        """What goes wrong with a command must not keep the step from ending."""
        try:
            call()
        except Exception as error:
            self.capture.failed("command", error)

    def _end_snapshots(self) -> None:
        self.snapshots.end_step("capture is paused" if self.paused else "")

    def _carry_out(self) -> None:
        """Between two steps, on the training thread."""
        self.commands.carry_out(self._apply)
        self._told_waiting = False
        self._look()
        if self.paused and self.capture.on:
            self._set_capturing(False)

    def _look(self) -> None:
        self.snapshots.begin()
        if self._attachment is not None:
            self._attachment.look()

    def _apply(self, change: Change) -> None:
        before = self.current_settings()
        values = {name: value for name, value in change.values.items() if name != "paused"}
        self.settings = replace(self.settings, **values)
        if "every" in values or "budget" in values:
            self.cadence.change(self.settings.every, self.settings.budget)
        if change.choice is not None:
            self.models.rechoose(self.settings, change.choice)
            self._sees_modules = not self.settings.kinds.isdisjoint(_MODULE_KINDS)
            self._attach_anew(change)
        self.paused = change.values.get("paused", self.paused)
        self.say("settings-changed", describe_change(before, self.current_settings(), change.values))

    def _attach_anew(self, change: Change) -> None:
        """Between two steps: the hooks follow the choice."""
        if self._attachment is None:
            return
        if isinstance(self._attachment, InsideAttachment):
            missing = self._attachment.missing([plan for plan, _ in change.choice or () if plan.wants_output])
            if missing:
                message = f"{missing} modules stay unseen: in compiled graphs only those of the start can be captured"
                self.say("settings-limited", message, "warning")
            return
        self._attachment.close()
        self._attachment = self._new_attachment()
        if self.capture.on:
            self._attachment.on()

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
                self.say("settings-waiting", "no step ends now: the change holds from the end of the next one")
            if self._events:
                events, self._events = tuple(self._events), []
                step = max(0, self.step - 1)
                self._worker.put(RawFrame(step, time.time(), _NOTHING, (), 0, _NAN, events=events))
        finally:
            self._lock.release()

    def _scale_of(self, kind: str) -> float | None:
        """The loss scale that is in a gradient of this kind, where one is known."""
        return self.scales.scale() if kind != "param_grad" or self._scaled_parameters else None

    def _describe_all(self) -> None:
        try:
            self.notices.look()
            self._ask_what_was_kept()
            self._hooks = list_hooks(self.models.roots, self._known_optimizers())
            self.sink.describe(self.models.records(), self.models.coverage(), self._hooks)
        except Exception as error:
            self.capture.failed("description of the modules", error)

    def _known_optimizers(self) -> list[Optimizer]:
        return [optimizer for stepper in list(self._optimizers.values()) if (optimizer := stepper.ref()) is not None]

    # -- frames -----------------------------------------------------------------------------------------------------

    def _ship_part(self, step: int, elapsed_s: float = float("nan")) -> None:
        capture = self.capture
        known = len(capture.taps)
        fresh = range(self._announced, known)
        new_taps = tuple(capture.taps[slot] for slot in fresh if capture.numbers[slot] >= 0) if fresh else ()
        raw = RawFrame(
            step=step,
            time_s=time.time(),
            packed=capture.arena.pack(known),
            new_taps=new_taps,
            micro_batches=capture.backwards,
            elapsed_s=elapsed_s,
            scale=self._step_scale,
            scaled=GRADIENT_KINDS if self._scaled_parameters else _BACKWARD_KINDS,
            scalars=self._scalars if self.cadence.cost != self.cadence.cost else self._scalars | self._costs(),
            events=tuple(self._events) if self._events else (),
            transfers=self._transfers(),
            ratios=self.parameters.ratios() if "update" in self.settings.kinds else (),
        )
        self._announced = known
        self._scalars, self._events = {}, []
        self._worker.put(raw)

    def _transfers(self) -> tuple[Transfer, ...]:
        """Start the way to the host of what was measured on other devices."""
        begun = (arena.begin_transfer() for arena in self.capture.devices.values())
        return tuple(transfer for transfer in begun if transfer is not None)

    def _costs(self) -> dict[str, float]:
        return {"hookcore/cost": self.cadence.cost, "hookcore/every": float(self.cadence.stride)}

    def _ship(self, raws: list[RawFrame]) -> None:
        capture, began = self.capture, time.thread_time()
        for raw in raws:
            raw.scalars = {name: number_of(value) for name, value in raw.scalars.items()}
        for frame in build_frames(raws, capture.taps, capture.numbers):
            capture.saw_frame(frame.step, frame.taps.tolist())
            self._send(frame)
        self.cadence.took((time.thread_time() - began) / max(1, len(raws)))
        if (began := time.monotonic()) > self._describe_at:
            self._describe_all()
            now = time.monotonic()  # a walk over a very large model holds up who registers a hook: all the more seldom
            self._describe_at = now + max(DESCRIBE_EVERY_S, DESCRIBE_PAUSE * (now - began))

    def _send(self, frame: Frame) -> None:
        if self._unsent_taps or self._worker.dropped > self._told_dropped:
            frame = self._with_what_was_lost(frame)
        try:
            self.tell_of_escapes(*frame.scalars, *(part for tap in frame.new_taps for part in (tap.module, tap.index)))
            self.sink.send(frame)
        except Exception as error:
            self._unsent_taps = frame.new_taps  # without their names every later number would be another tap's
            self.capture.failed("sink", error)

    def tell_of_escapes(self, *names: str) -> None:
        """Say once that a name was not valid Unicode, and how it is shown."""
        name = None if self._told_escaped else escaped_in(names)
        if name is not None:
            self._told_escaped = True
            self.say(
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
        self._ask_what_was_kept()
        return self.models.coverage()

    def _ask_what_was_kept(self) -> None:
        store = getattr(getattr(self.sink, "sink", self.sink), "store", None)  # a bridge has the sink behind it
        if store is not None:  # not a sender: what a server keeps is not known here
            kept = len(store.taps().taps)
            self.capture.kept = kept if kept <= max(self.capture.filled, default=-1) else sys.maxsize

    def flush(self, timeout_s: float) -> bool:
        """Wait until all finished steps are in the sink."""
        return self._worker.flush(timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Ship what was begun, take everything off, end the thread."""
        if self.closed:
            return
        self.closed = True
        self.snapshots.give_up("the training ended before it came")
        begun = self.capture.on and (self.capture.began_backward or self.capture.has_outputs())
        if begun or self._scalars or self._events:
            with contextlib.suppress(Exception):
                self._ship_part(self.step)
        self.detach()
        self._worker.close(timeout_s)
        with contextlib.suppress(Exception):
            self.sink.describe(self.models.records(), self.coverage(), self._hooks)
        for handle in self.capture.leaf_handles:
            handle.remove()
        self.sink.close()

    def abandon(self) -> None:
        """In a forked child: never capture, never send."""
        self.closed = True
        self.detach()

    def log(self, scalars: dict[str, Any]) -> None:
        """Numbers of the user's beside the layers; a device tensor is read later, on our own thread."""
        numbers = {name: scalar_of(value) for name, value in scalars.items()}
        capture = self.capture
        if capture.on:
            # Most scripts log behind the optimizer's step: those numbers belong to the step that just ended.
            self._logs_behind = self.step > 0 and not (capture.began_backward or capture.has_outputs())
        if self._logs_behind:
            self._worker.put(RawFrame(self.step - 1, time.time(), _NOTHING, (), 0, float("nan"), scalars=numbers))
        else:
            self._scalars |= numbers

    def say(self, name: str, message: str, severity: Any = "info", module: str = "") -> None:
        """An event, which travels with the next frame. Any thread may call it."""
        with self._lock:
            self._events.append(Event(self.step, time.time(), name, message, severity, module))


@dataclass(slots=True)
class _Stepper:
    """An optimizer that was seen to step, and which of its parameters are ours."""

    ref: weakref.ref[Optimizer]
    state: tuple[Any, ...]
    owned: list[Parameter]
    closes: bool  # whether its step ends ours; else it comes behind another one's, after the same backward


def _closure(args: Any, kwargs: Any) -> Any:
    return kwargs.get("closure") if "closure" in kwargs else args[1] if len(args) > 1 else None


guard_functions(
    TensorHook.__call__,
    Capture._backward_ended,
    Recorder.saw_step_begin,
    Recorder.saw_step_end,
    Models.saw_registration,
    Recorder.user_step,
    Recorder.log,
)

"""One watcher's recorder: attaches the capture, finds the steps, and ships a frame for each."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor
from torch._C import DisableTorchFunction
from torch.optim import Optimizer

from hookcore import hooks
from hookcore.compiled import guard_functions
from hookcore.config import Settings
from hookcore.observe import layout
from hookcore.observe.arena import CpuArena
from hookcore.observe.plain import unseen
from hookcore.recorder.attachment import Attachment, InsideAttachment, ModuleAttachment, ProcessAttachment
from hookcore.recorder.cadence import Cadence
from hookcore.recorder.capture import Capture, TensorHook
from hookcore.recorder.frames import RawFrame, build_frames
from hookcore.recorder.models import Models
from hookcore.recorder.parameters import Parameter, Parameters, ScaleFinder, applied_scale
from hookcore.recorder.worker import Worker
from hookcore.records import GRADIENT_KINDS, Coverage, Event, Frame, Tap
from hookcore.sinks import Sink

if TYPE_CHECKING:
    from hookcore.observe.device import Transfer

COVERAGE_WAIT_S: Final = 1.0
DESCRIBE_EVERY_S: Final = 30.0
SCALER_STEPS: Final = 16  # the first steps, and then one in so many, in which a GradScaler is looked for
BACKWARDS_WITHOUT_STEP: Final = 64  # then a backward pass counts as a step: nobody steps an optimizer of torch's
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
        self._sees_modules = not settings.kinds.isdisjoint(("output", "output_grad", "input", "input_grad"))
        self._events: list[Event] = []
        self._scalars: dict[str, Any] = {}
        self._logs_behind = False
        self._worker = Worker(self._ship, lambda error: self.capture.failed("recorder thread", error))

    # -- attaching --------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Put the hooks on."""
        self._worker.start()
        self._process_handles = [
            hooks.on_optimizer_step_pre(None, self.saw_step_begin),
            hooks.on_optimizer_step(None, self.saw_step_end),
        ]
        if self.models.discovers:
            self._process_handles.append(hooks.on_module_registration(self.models.saw_registration))
        self._attachment = self._new_attachment()
        self._set_capturing(not self.paused)

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
        self.sink.describe(self.models.records())

    # -- steps ------------------------------------------------------------------------------------------------------

    def saw_step_begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The optimizer's pre-hook: gradients and weights as it is about to use them."""
        try:
            if self.capture.on and (owned := self._owned(optimizer)):
                with self._lock, DisableTorchFunction():
                    self._read_scale(optimizer)
                    # With a closure, forward and backward run inside the step: the gradients come later.
                    self.parameters.before_step(owned, _closure(args, kwargs) is None, id(optimizer))
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
                    self.parameters.after_step(id(optimizer))
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
            self.parameters.read_all()
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
            self.parameters.read_all()
        self.end_step()

    def end_step(self) -> None:
        """Ship the frame and decide about the next step."""
        now = self._clock()
        elapsed = now - self._ended_at
        captured = self.capture.on
        if captured or self._scalars or self._events:
            self._ship_part(self.step, elapsed)
        self.step += 1
        self.capture.step = self.step
        self._step_scale = None
        self.parameters.read = False
        wanted = self.cadence.next_is_captured(captured, self._clock() - self._ended_at)
        self._ended_at = self._clock()
        if not self.paused and self.attached and (wanted or self.capture.on):
            self._set_capturing(wanted)

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
            raw.scalars = {name: _number(value) for name, value in raw.scalars.items()}
        for frame in build_frames(raws, capture.taps, capture.numbers):
            capture.filled.update(frame.taps.tolist())
            self._send(frame)
        self.cadence.took((time.thread_time() - began) / max(1, len(raws)))
        if time.monotonic() > self._describe_at:
            self._describe_at = time.monotonic() + DESCRIBE_EVERY_S
            self.sink.describe(self.models.records(), self.models.coverage())

    def _send(self, frame: Frame) -> None:
        if self._unsent_taps or self._worker.dropped > self._told_dropped:
            frame = self._with_what_was_lost(frame)
        try:
            self.sink.send(frame)
        except Exception as error:
            self._unsent_taps = frame.new_taps  # without their names every later number would be another tap's
            self.capture.failed("sink", error)

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
        return self.models.coverage()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all finished steps are in the sink."""
        return self._worker.flush(timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Ship what was begun, take everything off, end the thread."""
        if self.closed:
            return
        self.closed = True
        begun = self.capture.on and (self.capture.began_backward or self.capture.has_outputs())
        if begun or self._scalars or self._events:
            with contextlib.suppress(Exception):
                self._ship_part(self.step)
        self.detach()
        self._worker.close(timeout_s)
        with contextlib.suppress(Exception):
            self.sink.describe(self.models.records(), self.coverage())
        for handle in self.capture.leaf_handles:
            handle.remove()
        self.sink.close()

    def abandon(self) -> None:
        """In a forked child: never capture, never send."""
        self.closed = True
        self.detach()

    def log(self, scalars: dict[str, Any]) -> None:
        """Numbers of the user's beside the layers; a device tensor is read later, on our own thread."""
        numbers = {name: _scalar(value) for name, value in scalars.items()}
        capture = self.capture
        if capture.on:
            # Most scripts log behind the optimizer's step: those numbers belong to the step that just ended.
            self._logs_behind = self.step > 0 and not (capture.began_backward or capture.has_outputs())
        if self._logs_behind:
            self._worker.put(RawFrame(self.step - 1, time.time(), _NOTHING, (), 0, float("nan"), scalars=numbers))
        else:
            self._scalars |= numbers

    def say(self, name: str, message: str, severity: Any = "info", module: str = "") -> None:
        """An event, which travels with the next frame."""
        self._events.append(Event(self.step, time.time(), name, message, severity, module))


@dataclass(slots=True)
class _Stepper:
    """An optimizer that was seen to step, and which of its parameters are ours."""

    ref: weakref.ref[Optimizer]
    state: tuple[Any, ...]
    owned: list[Parameter]
    closes: bool  # whether its step ends ours; else it comes behind another one's, after the same backward


class _Pending:
    """A device scalar that is read by the recorder's thread, so that training never waits for the device."""

    def __init__(self, value: Tensor) -> None:
        self._value = value
        self._event = torch.cuda.Event() if value.is_cuda else None  # type: ignore[no-untyped-call]
        if self._event is not None:
            self._event.record()

    def resolve(self) -> float:
        """Wait for the value, here and now."""
        if self._event is not None:
            self._event.synchronize()
        return float(self._value)


def _scalar(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return float(value)
    with unseen():
        value = value.detach().reshape(-1)[:1]
        return float(value) if value.is_cpu else _Pending(value.clone())


def _number(value: Any) -> float:
    return value.resolve() if isinstance(value, _Pending) else float(value)


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

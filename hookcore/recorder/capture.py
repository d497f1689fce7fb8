"""The capture of one watcher: the hook bodies and the state they touch. The hottest code of the package.

Whatever is here runs inside the user's forward and backward. It keeps no tensor, draws no random number, returns
nothing, runs no operator where the user's modes could see it, and lets no exception out.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction

from hookcore import hooks
from hookcore.hooks.tensors import hook_gradient
from hookcore.observe import cpu
from hookcore.observe.arena import CODES, CpuArena
from hookcore.observe.plain import is_wrapped, make_plain, unseen
from hookcore.recorder.checkpoints import forward_segment, take_call
from hookcore.recorder.meter import Meter
from hookcore.recorder.outputs import find_tensors
from hookcore.recorder.plans import Departed, Plan
from hookcore.recorder.snapshots import Snapshots
from hookcore.records import Event, Kind, Phase, Tap

if TYPE_CHECKING:
    from hookcore.observe.device import DeviceArena

MAX_ERRORS: Final = 3  # of one module, before it is left alone
MAX_KEPT_ERRORS: Final = 100
MAX_DEPARTED: Final = 10_000
MAX_TAPS_OF_MODULE: Final = 512

LEAF_OUTPUT: Final = "its output is a parameter: see the parameter's gradient"
CUT_OUTPUT: Final = "its output is cut from the graph (detach().requires_grad_()): no gradient flows back through it"

_is_compiling = torch.compiler.is_compiling
_current_task: Callable[[], int] = torch._C._current_graph_task_id
_tracing = torch._C._get_tracing_state
_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_observe = cpu.observe
_float32 = torch.float32
_PLAIN_TYPES = frozenset((Tensor, nn.Parameter))


class TensorHook:
    """The rows of one tensor and of its gradient; also the tensor hook that takes the gradient.

    Torch keeps this object in the graph. It holds no tensor, so no graph lives longer for it.
    """

    __slots__ = ("_timed", "capture", "grad_row", "grad_slot", "plan", "row", "slot")
    __torch_unserializable__ = True  # a tensor that is pickled with it gets no warning

    def __init__(self, capture: Capture, plan: Plan, slot: int, grad_slot: int) -> None:
        self.capture = capture
        self.plan = plan
        self.slot = slot
        self.grad_slot = grad_slot
        self.row = capture.arena.row(slot) if slot >= 0 else 0
        self.grad_row = capture.arena.row(grad_slot) if grad_slot >= 0 else 0
        self._timed: TimedHook | None = None

    @property
    def timed(self) -> TimedHook:
        """The same hook for a step that is timed; always the same one."""
        if self._timed is None:
            self._timed = TimedHook(self)
        return self._timed

    def __call__(self, grad: Any) -> None:
        capture = self.capture
        if grad is None or not capture.on:
            return
        capture.reached = True
        if capture.ignoring and capture.ignores_pass():
            return
        try:
            if (
                type(grad) is Tensor
                and not _function_modes()
                and grad.dtype is _float32
                and grad.is_cpu
                and grad.is_contiguous()
            ):
                _observe(grad.data_ptr(), grad.numel(), self.grad_row, capture.control)
                return
        except Exception:  # a layout that has no address; the slow way knows them all
            pass
        capture.add_safely(self.plan, grad, self.grad_slot)


class TimedHook:
    """Takes a gradient as its hook does, and tells the meter how long that took."""

    __slots__ = ("hook",)
    __torch_unserializable__ = True

    def __init__(self, hook: TensorHook) -> None:
        self.hook = hook

    def __call__(self, grad: Any) -> None:
        meter = self.hook.capture.meter
        if meter is None:  # the graph outlived the step that was timed
            self.hook(grad)
        else:
            meter.time(self.hook, grad)


class Capture:
    """Slots, rows and counters of one watcher; told by the recorder when a step begins and ends."""

    def __init__(self, arena: CpuArena, phases: frozenset[Phase], max_calls: int) -> None:
        self.arena = arena
        self.control = arena.control
        self.phases = phases
        self.max_calls = max_calls
        self.on = False
        self.backwards = 0  # finished in this step, of those that reached a watched tensor
        self.reached = False  # whether the pass that runs has reached a watched tensor
        self.began_backward = False  # a gradient came in this step
        self.running: set[int] = set()  # threads that run a pass
        self.ignoring: set[int] = set()  # those of them whose pass is torch.autograd.grad's
        self.pending = False  # a pass ended, and the next call of a module may belong to another step
        self.on_pending: Callable[[], None] = _nothing
        self.plans: dict[int, Plan] = {}  # by id(module); a dead module's plan is taken out by its weak reference
        self.departed = Departed(MAX_DEPARTED)  # the plans of modules that are gone
        self.named: list[Plan] = []  # of tensors that the user named
        self.regions: list[str] = []  # compiled regions that were seen to run
        self.taps: list[Tap] = []  # by slot
        self.numbers: list[int] = []  # a slot's tap number in the frames; -1 for what no frame shows
        self.filled: set[int] = set()  # tap numbers that came with a frame
        self.newest: set[int] = set()  # those of the newest step
        self.newest_step = -1
        self._slot_by_tap: dict[Tap, int] = {}
        self._gradient_hooks: dict[int, TensorHook] = {}
        self._shown = 0
        self.errors: list[Event] = []
        self.error_count = 0
        self.step = 0
        self.meter: Meter | None = None  # there while the step that runs is timed
        self.refused_taps = 0
        self.leaf_handles: list[hooks.HookHandle] = []
        self.snapshots = Snapshots(self, lambda *_: None, lambda _: None)
        self.devices: dict[torch.device, DeviceArena] = {}
        self._lock = threading.Lock()

    # -- slots ------------------------------------------------------------------------------------------------------

    def slot_of(
        self, plan: Plan, kind: Kind, index: str, call: int, phase: Phase = "train", tensor: Tensor | None = None
    ) -> int:
        """The row number of a tap; a new one where it has none yet; -1 where there is no room or no wish."""
        if kind not in plan.kinds:
            return -1
        key = (kind, index, call, phase)
        slot = plan.taps.get(key)
        if slot is None:
            if len(plan.taps) >= MAX_TAPS_OF_MODULE:
                self.note(plan, f"more than {MAX_TAPS_OF_MODULE} tensors; the rest is left out")
                return -1
            if tensor is not None:
                _note_shape(plan, f"{kind} {index}".rstrip(), tensor)
            slot = plan.taps[key] = self.new_slot(Tap(plan.path, kind, index, call, phase))
        return slot

    def new_slot(self, tap: Tap, hidden: bool = False) -> int:
        """Room for one more tap, or -1."""
        with self._lock:
            if not hidden and tap in self._slot_by_tap:
                return self._slot_by_tap[tap]  # a model of the same name goes on where the last one ended
            if len(self.taps) >= self.arena.capacity:
                self.refused_taps += 1
                return -1
            if not hidden:
                self._slot_by_tap[tap] = len(self.taps)
            self.taps.append(tap)
            self.numbers.append(-1 if hidden else self._shown)
            self._shown += not hidden
            return len(self.taps) - 1

    def lone_hook(self, plan: Plan, call: int, output: Tensor) -> TensorHook:
        """The rows of call number `call` of a module whose output is one tensor."""
        plan.seen = True
        call = min(call, self.max_calls - 1)
        while len(plan.lone) <= call:
            number = len(plan.lone)
            slot = self.slot_of(plan, "output", "", number, tensor=output)
            plan.lone.append(TensorHook(self, plan, slot, self.slot_of(plan, "output_grad", "", number)))
        return plan.lone[call]

    def saw_frame(self, step: int, numbers: list[int]) -> None:
        """A frame, or a part of one, goes to the sink."""
        if step > self.newest_step:
            self.newest_step, self.newest = step, set()
        if step == self.newest_step:
            self.newest = self.newest.union(numbers)
        self.filled.update(numbers)

    # -- outputs ----------------------------------------------------------------------------------------------------

    def saw_output(self, plan: Plan, output: Any) -> None:
        """A watched module returned. The common case comes first; everything else takes the slow way."""
        try:
            if (
                type(output) is Tensor
                and not _function_modes()
                and output.requires_grad
                and output.dtype is _float32
                and output.is_cpu
                and _current_task() == -1
                and not _tracing()
                and output.is_contiguous()
                and not output.is_leaf
                and plan.root.trains()
            ):
                call = plan.calls
                lone = plan.lone
                hook = lone[call] if call < len(lone) else self.lone_hook(plan, call, output)
                if hook.row:
                    _observe(output.data_ptr(), output.numel(), hook.row, self.control)
                plan.calls = call + 1
                if hook.grad_row:
                    hook_gradient(output, hook if self.meter is None else hook.timed)
                return
        except Exception:  # a layout that has no address, a functorch wrapper: the slow way tells them apart
            pass
        self._saw_any_output(plan, output)

    def _saw_any_output(self, plan: Plan, output: Any) -> None:
        try:
            if _tracing():
                return
            with DisableTorchFunction():
                if _current_task() != -1:
                    self._saw_recompute(plan, output)
                else:
                    self._saw_forward(plan, output)
        except Exception as error:
            self.failed("forward hook", error, plan)

    def _saw_forward(self, plan: Plan, output: Any) -> None:
        plan.seen = True
        tensors = list(find_tensors(output))
        if not tensors:
            self.note(plan, "no tensor in its output")
            return
        requires_grad = any(tensor.requires_grad for _, tensor in tensors)
        phase, recomputed = self._phase(plan, requires_grad)
        if phase not in self.phases:
            self.note(plan, "ran in eval mode or without gradients; phases={'train', 'eval'} captures that too")
            return
        call = self._next_call(plan, phase)
        for index, tensor in tensors:
            slot = self.slot_of(plan, "output", index, call, phase, tensor)
            if slot >= 0:
                self.add(plan, tensor, slot)
            if phase == "train" and "output_grad" in plan.kinds:
                self._hook_gradient(plan, tensor, index, call, recomputed)
        if recomputed:
            plan.pending.append((forward_segment(), call))

    def _phase(self, plan: Plan, requires_grad: bool) -> tuple[Phase, bool]:
        """The phase of a call, and whether its gradient will only come with a checkpoint's recompute."""
        root = plan.root
        phase = root.phase(requires_grad)
        if phase == "eval" or requires_grad or torch.is_grad_enabled():
            return phase, False
        # No gradient here: a part of the pass that needs none, a checkpoint that comes back for it, or a pass without.
        recomputed = bool(forward_segment())
        return ("train" if recomputed or root.entered_with_grad else "eval"), recomputed

    def _next_call(self, plan: Plan, phase: Phase) -> int:
        """The number of this call among those of its phase; only captured calls count."""
        if phase == "eval":
            plan.eval_calls += 1
            return min(plan.eval_calls, self.max_calls) - 1
        plan.calls += 1
        return min(plan.calls, self.max_calls) - 1

    def _hook_gradient(self, plan: Plan, tensor: Tensor, index: str, call: int, recomputed: bool) -> None:
        if not tensor.requires_grad:
            if not recomputed and not is_wrapped(tensor):
                self.note(plan, "its output needs no gradient (frozen, detached or not differentiable)")
            return
        if tensor.is_leaf:
            own = isinstance(tensor, nn.Parameter)
            self.note(plan, LEAF_OUTPUT if own else CUT_OUTPUT)
            return
        grad_slot = self.slot_of(plan, "output_grad", index, call)
        if grad_slot >= 0:
            hook_gradient(tensor, self._gradient_hook(plan, grad_slot))

    def _gradient_hook(self, plan: Plan, slot: int) -> TensorHook | TimedHook:
        """One hook object a row, so that a tensor that comes back is seen to have it."""
        hook = self._gradient_hooks.get(slot)
        if hook is None or hook.plan is not plan:
            hook = self._gradient_hooks[slot] = TensorHook(self, plan, -1, slot)
        return hook if self.meter is None else hook.timed

    def _saw_recompute(self, plan: Plan, output: Any) -> None:
        """A checkpoint runs the module again, inside the backward pass: nothing is counted twice.

        Only under a reentrant checkpoint does the gradient flow through this second output.
        """
        if not plan.pending:
            if not plan.seen:
                self.note(plan, "called inside a backward pass only, which counts as a checkpoint's recompute")
            return
        tensors = list(find_tensors(output))
        call = take_call(plan.pending, tensors, torch.is_grad_enabled())
        for index, tensor in tensors if call is not None else ():
            if "output_grad" in plan.kinds:
                self._hook_gradient(plan, tensor, index, call, recomputed=False)  # type: ignore[arg-type]

    def saw_traced_output(self, plan: Plan, index: str, output: Tensor) -> int:
        """An op inside a compiled graph has an output; answers with the slot of its gradient."""
        if plan.first_index is None:
            plan.first_index = index
        if _current_task() != -1:
            # A checkpoint runs the module again, calls in reverse order: only the gradient is new.
            plan.recomputed += index == plan.first_index
            return self.slot_of(
                plan, "output_grad", index, min(max(0, plan.calls - plan.recomputed), self.max_calls - 1)
            )
        plan.calls += index == plan.first_index
        phase = plan.root.phase(torch.is_grad_enabled())
        if phase not in self.phases:
            return -1
        plan.seen = True
        call = min(plan.calls - 1, self.max_calls - 1)
        slot = self.slot_of(plan, "output", index, call, phase)
        if slot >= 0:
            self.add(plan, output, slot)
        return self.slot_of(plan, "output_grad", index, call) if phase == "train" else -1

    # -- inputs -----------------------------------------------------------------------------------------------------

    def saw_input(self, plan: Plan, inputs: Any) -> None:
        """A watched module is about to run: before it can change its inputs in place."""
        try:
            if _tracing() or _current_task() != -1:
                return
            with DisableTorchFunction():
                tensors = list(find_tensors(inputs))
                requires_grad = any(tensor.requires_grad for _, tensor in tensors)
                phase, _ = self._phase(plan, requires_grad)
                if phase not in self.phases:
                    return
                call = min(plan.eval_calls if phase == "eval" else plan.calls, self.max_calls - 1)
                for index, tensor in tensors:
                    slot = self.slot_of(plan, "input", index, call, phase, tensor)
                    if slot >= 0:
                        self.add(plan, tensor, slot)
                    if tensor.requires_grad and phase == "train":
                        self._hook_input(plan, tensor, self.slot_of(plan, "input_grad", index, call))
        except Exception as error:
            self.failed("forward pre-hook", error, plan)

    def _hook_input(self, plan: Plan, tensor: Tensor, slot: int) -> None:
        if slot < 0 or isinstance(tensor, nn.Parameter):
            return
        hook = self._gradient_hook(plan, slot)
        if tensor.is_leaf:
            # A leaf keeps its hooks for ever: taken off at the step's end.
            self.leaf_handles.append(hooks.on_gradient(tensor, hook))
        else:
            hook_gradient(tensor, hook)

    def watch_tensor(self, plan: Plan, tensor: Any) -> None:
        """A tensor that the user named, inside a forward."""
        if not self.on or not isinstance(tensor, Tensor):
            return
        self.snapshots.saw_output(plan, tensor)
        self._saw_any_output(plan, tensor)

    # -- values -----------------------------------------------------------------------------------------------------

    def add_safely(self, plan: Plan, tensor: Any, slot: int) -> None:
        """Add a gradient of any make; nothing gets out."""
        try:
            with DisableTorchFunction():
                self.add(plan, tensor, slot)
        except Exception as error:
            self.failed("gradient hook", error, plan)

    def add(self, plan: Plan, tensor: Tensor, slot: int) -> None:
        """Add a tensor of any make to a slot's row, or note why it has none."""
        if type(tensor) in _PLAIN_TYPES and tensor.is_cpu and tensor.dtype in CODES and not tensor.is_neg():
            try:
                self.arena.observe(tensor, self.arena.row(slot))
                return
            except RuntimeError:  # no memory of its own: told apart below
                pass
        with unseen():
            plain = make_plain(tensor.detach())
            if isinstance(plain, str):
                self.note(plan, plain)
            elif plain.is_cpu:
                self.arena.observe(plain, self.arena.row(slot))
            else:
                reason = self.device_arena(plain.device).observe(plain, slot)
                if reason:
                    self.note(plan, reason)

    def device_arena(self, device: torch.device) -> DeviceArena:
        """Rows on another device; made when its first tensor comes."""
        arena = self.devices.get(device)
        if arena is None:
            from hookcore.observe.device import DeviceArena

            arena = self.devices[device] = DeviceArena(device, self.arena.capacity, self.arena.sketch_values)
        return arena

    # -- backward ---------------------------------------------------------------------------------------------------

    def begin_pass(self, accumulates: bool) -> None:
        """A backward pass starts in this thread. What `torch.autograd.grad` computes is no gradient of the loss."""
        ident = threading.get_ident()
        self.running.add(ident)
        if not accumulates:
            self.ignoring.add(ident)
        elif not self.ignoring:
            self.reached = False

    def end_pass(self, accumulates: bool) -> None:
        """The pass is over, or raised."""
        ident = threading.get_ident()
        self.running.discard(ident)
        self.ignoring.discard(ident)
        if accumulates and self.reached and self.on:
            self.reached = False
            self.began_backward = True
            self.backwards += 1
            self.reset_calls()

    def ignores_pass(self) -> bool:
        """Whether the gradients that come now are `torch.autograd.grad`'s."""
        ident = threading.get_ident()
        # On a GPU they come in a thread of the engine's, which stands for whoever started the pass.
        return ident in self.ignoring if ident in self.running else self.ignoring == self.running

    def reset_calls(self) -> None:
        """Count the calls of every module from zero again."""
        self.snapshots.reset_calls()
        for plan in [*self.plans.values(), *self.named]:
            plan.calls = plan.recomputed = 0
            if plan.pending:
                plan.pending.clear()

    def has_outputs(self) -> bool:
        """Whether a module ran since the last backward pass ended."""
        return any(plan.calls for plan in list(self.plans.values()))

    def begin_step(self, on: bool) -> None:
        """Forget what belongs to the step before."""
        self.on = on
        if "eval" in self.phases:
            for plan in list(self.plans.values()):
                plan.eval_calls = 0
        self.backwards = 0
        self.began_backward = self.pending = False
        self.reset_calls()
        for handle in self.leaf_handles:
            handle.remove()
        self.leaf_handles.clear()
        if on:
            self.arena.begin_step()
            for arena in self.devices.values():
                arena.begin_step()

    def let_go(self) -> None:
        """Keep nothing alive behind hooks that are left in the graph of an output: the watcher was closed."""
        self.on_pending = _nothing
        self.snapshots = Snapshots(self, lambda *_: None, lambda _: None)

    # -- what went wrong --------------------------------------------------------------------------------------------

    def note(self, plan: Plan, reason: str) -> None:
        """Remember why something was not captured."""
        plan.reasons[reason] = plan.reasons.get(reason, 0) + 1

    def failed(self, where: str, error: Exception, plan: Plan | None = None) -> None:
        """Count an error of ours, and keep the first ones. A module that goes on failing is left alone."""
        self.error_count += 1
        if plan is not None:
            plan.errors += 1
            plan.muted = plan.errors >= MAX_ERRORS
            if plan.muted:
                plan.wants_output = plan.wants_input = False
                self.note(plan, f"left alone after {MAX_ERRORS} errors in hookcore's {where}")
        if len(self.errors) < MAX_KEPT_ERRORS:
            text = "".join(traceback.format_exception(error))
            path = "" if plan is None else plan.path
            self.errors.append(Event(self.step, time.time(), "hook-error", f"{where}: {text}", "error", path))


def _nothing() -> None:
    """Stands for a call that nobody wants."""


def _note_shape(plan: Plan, name: str, tensor: Tensor) -> None:
    try:
        plan.shapes.setdefault(name, tuple(tensor.shape))
    except Exception:  # nested tensors have none
        plan.shapes.setdefault(name, ())

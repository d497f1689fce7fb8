"""The running step: whether it is captured, its backward passes, and the hooks that receive its tensors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hookcore import hooks
from hookcore.hooks.compiled import guarded
from hookcore.hooks.handle import InertInCopies
from hookcore.hooks.internals import current_graph_task, function_modes, tracing_state
from hookcore.observe import cpu
from hookcore.observe.arena import CODES, LOW, address_of
from hookcore.recorder.clock.steptimes import Meter

_observe = cpu.observe
_float32 = torch.float32
_NEVER = float("inf")
_UNKNOWN = float("nan")


@dataclass(slots=True, eq=False)
class CurrentStep:
    """The running step's state for all hooks. Graphs keep it alive, so it refers to no recorder or model."""

    number: int = 0
    captured: bool = False
    sketched: bool = True  # whether histograms are counted in it, if it is captured
    backwards: int = 0  # passes of this step that have ended and reached a watched tensor
    reached: set[int] = field(default_factory=set)  # threads whose running pass has reached a watched tensor
    began_backward: bool = False  # whether a gradient arrived in this step
    running: set[int] = field(default_factory=set)  # threads that run a pass
    ignoring: set[int] = field(default_factory=set)  # threads in `torch.autograd.grad`, the pass or one inside it
    repeated: bool = False  # whether a checkpoint has run a module again, for the next pass inside a pass
    pending: bool = False  # a pass has ended, so the next call of a module may belong to another step
    meter: Meter | None = None  # set while the step is timed
    clock: Callable[[], float] | None = None  # set while arriving gradients are timed
    arrived_s: float = _UNKNOWN  # by that clock, when the last one had arrived; infinite if one is on a device
    _leaf_handles: list[hooks.HookHandle] = field(default_factory=list)

    def begin(self, number: int, captured: bool) -> None:
        """Start a step and forget the previous one."""
        self.number, self.captured = number, captured
        self.backwards = 0
        self.began_backward = self.pending = False
        self.arrived_s = _UNKNOWN
        if self._leaf_handles:
            self.release_leaves()

    def stop(self) -> None:
        """Stop capturing this step."""
        self.captured = False
        self.release_leaves()

    # Backward passes

    def begin_pass(self, accumulates: bool) -> None:
        """Note the start of a pass in this thread. Results of `torch.autograd.grad` are not gradients of the loss."""
        ident = threading.get_ident()
        self.running.add(ident)
        self.reached.discard(ident)
        if not accumulates:
            self.ignoring.add(ident)

    def end_pass(self, accumulates: bool, reaches: bool = False) -> bool:
        """Note the end of a pass, even if it raised. Return whether it reached a watched tensor of a captured step.

        `reaches`: it has, though no hook has received a gradient.
        """
        ident = threading.get_ident()
        reached = reaches or ident in self.reached
        self.reached.discard(ident)
        self.running.discard(ident)
        self.ignoring.discard(ident)
        if not (accumulates and reached and self.captured):
            return False
        self.began_backward = True
        self.backwards += 1
        return True

    def begin_inner(self, accumulates: bool) -> bool:
        """Note the start of a pass inside a pass, in this thread. Return whether its gradients are ignored.

        There, `torch.autograd.grad` brings gradients of the loss only for a checkpoint that has run modules again.
        Otherwise it solves an equation, as in a deep equilibrium model.
        """
        repeated, self.repeated = self.repeated, False
        ident = threading.get_ident()
        if accumulates or repeated or ident in self.ignoring:
            return False
        self.ignoring.add(ident)
        return True

    def end_inner(self) -> None:
        """Note the end of a pass whose gradients are ignored."""
        self.ignoring.discard(threading.get_ident())

    def reach(self) -> bool:
        """Note that a gradient arrived. Return whether it is a gradient of the loss."""
        ident = threading.get_ident()
        # On a GPU, gradients arrive in a thread of the engine. The extension's passes are none of the running ones.
        self.reached.update(self.running if self.running and ident not in self.running else (ident,))
        return not (self.ignoring and self.ignores_pass())

    def note_arrival(self, grad: Any) -> None:
        """Note when a gradient has arrived. On another device, it arrives long before it is computed."""
        clock = self.clock  # another thread may end the step
        if clock is not None and self.arrived_s != _NEVER:
            self.arrived_s = clock() if getattr(grad, "is_cpu", False) else _NEVER

    def ignores_pass(self) -> bool:
        """Return whether arriving gradients are those of `torch.autograd.grad`."""
        ident = threading.get_ident()
        # On a GPU, they arrive in a thread of the engine, which stands for the one that started the pass.
        return ident in self.ignoring or (ident not in self.running and self.ignoring == self.running)

    def take_backwards(self) -> int:
        """Return the number of passes in the step, and reset it."""
        backwards, self.backwards = self.backwards, 0
        return backwards

    # Leaves

    def hook_leaf(self, tensor: Tensor, hook: Callable[[Any], None]) -> None:
        """Receive the gradient of a leaf in this step. A leaf keeps its hooks, so they are removed at the end."""
        self._leaf_handles.append(hooks.on_gradient(tensor, hook))

    def release_leaves(self) -> None:
        """Remove the hooks on leaves."""
        for handle in self._leaf_handles:
            handle.remove()
        self._leaf_handles.clear()


@cpu.quick
class TensorHook(cpu.GradientHook, InertInCopies):
    """The rows of one tensor and of its gradient; also the tensor hook that receives the gradient.

    Torch keeps this object in the graph. It holds no tensor, so it extends no graph's life.
    """

    __slots__ = ()
    __torch_unserializable__ = True  # pickling a tensor with it causes no warning

    def __init__(self, current: CurrentStep, control: int, row: int, grad_row: int, add: Callable[[Any], None]) -> None:
        self.current, self.control, self.add = current, control, add
        self.row, self.grad_row = row, grad_row

    @guarded
    def __call__(self, grad: Any) -> None:
        current = self.current
        if grad is None or not current.captured:
            return
        if not current.reach():
            return
        meter = current.meter  # read once: another thread may end the step in between
        if meter is not None:
            meter.enter()
        is_plain = False
        try:
            try:
                if (
                    type(grad) is Tensor
                    and not function_modes()
                    and grad.dtype is _float32
                    and grad.is_cpu
                    and grad.is_contiguous()
                    and not grad.is_neg()
                ):
                    address = grad.data_ptr()
                    if address < LOW:
                        address = address_of(grad)
                    _observe(address, grad.numel(), self.grad_row, self.control)
                    is_plain = True
            except Exception:  # a layout without an address, which the slow path handles
                pass
            if not is_plain:
                self.add(grad)
            if current.clock is not None:
                current.note_arrival(grad)
        finally:  # also after Ctrl+C
            if meter is not None:
                meter.leave()


cpu.know_torch(
    (
        tuple(CODES),
        current_graph_task,
        tracing_state,
        vars(torch.compiler),
        OrderedDict,
        RemovableHandle,
        TensorHook,
    )
)

"""One module of a trace: its hooks, and the running calls.

The hooks are on the module, not on the process. They see keyword arguments before the module runs and the results of
the user's own hooks, and don't affect other models, other threads, or compiled code elsewhere.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hookcore import hooks
from hookcore.hooks.checkpoints import Pending, forward_segment, take_call, why_unknown
from hookcore.hooks.compiled import guard_functions
from hookcore.hooks.inert import InertInCopies
from hookcore.hooks.internals import DisableTorchFunction, current_graph_task, is_wrapped, tracing_state
from hookcore.hooks.tracing.calls import Layer, LayerCall, TraceKind
from hookcore.hooks.tracing.copies import GradientHook, Slot, record, slots_in, tensors_in

_is_compiling = torch.compiler.is_compiling


class _Running(threading.local):
    """The running calls of this thread, innermost last; None for one that a checkpoint repeats."""

    def __init__(self) -> None:
        self.calls: list[tuple[LayerCall | None, list[GradientHook]]] = []


class TracedModule:
    """Records the calls of a module in its layer. `hook_gradient` hooks a tensor for the duration of the trace."""

    def __init__(
        self,
        module: nn.Module,
        layer: Layer,
        kinds: frozenset[TraceKind],
        hook_gradient: Callable[[Tensor, GradientHook], None],
    ) -> None:
        self.module = module
        self.layer = layer
        self._kinds = kinds
        self._hook_gradient = hook_gradient
        self._running = _Running()
        self._pending: Pending = []  # calls whose gradients arrive when a checkpoint repeats them

    def attach(self) -> Iterator[hooks.HookHandle]:
        """Register the hooks. The caller removes them."""
        try:
            yield hooks.on_forward_pre(self.module, BeforeHook(self), with_kwargs=True)
            yield hooks.on_forward(self.module, AfterHook(self), always_call=True)
        except (RuntimeError, AttributeError):
            self.layer.unseen = f"torch allows no hook on a {type(self.module).__name__}"

    def enter(self, args: Any, kwargs: Any) -> None:
        """Handle the start of a call."""
        if current_graph_task() != -1:
            self._running.calls.append((None, self._hook_repeated_inputs((args, kwargs))))
            return
        call = self.layer.begin_call()
        self._running.calls.append((call, []))
        with _problems_in(call):
            if self._kinds & {"input", "input_grad"}:
                call.inputs_seen = self._record("input", (args, kwargs))

    def leave(self, output: Any) -> None:
        """Handle the end of a call. If it raised, the output is None."""
        if not self._running.calls:
            return  # the trace started in the middle of this call
        call, repeated = self._running.calls.pop()
        if output is None and sys.exc_info()[0] is not None:
            return
        if call is None:
            self._leave_repeated(output, repeated)
            return
        with _problems_in(call):
            call.output_seen = self._record("output", output)
            if not torch.is_grad_enabled() and (segment := forward_segment()):
                self._pending.append((segment, call.number))

    def _record(self, kind: TraceKind, value: Any) -> Any:
        wants_gradients = f"{kind}_grad" in self._kinds

        def on_tensor(tensor: Tensor, slot: Slot) -> None:
            if wants_gradients:
                slot.missing = _why_no_gradient(tensor) or self._hook(tensor, GradientHook(slot))

        return record(value, kind in self._kinds, on_tensor)

    def _hook(self, tensor: Tensor, hook: GradientHook) -> str:
        """Return why the tensor accepts no hook, or an empty string."""
        try:
            self._hook_gradient(tensor, hook)
        except Exception as error:
            return f"its tensor takes no hook ({error})"
        return ""

    def _hook_repeated_inputs(self, inputs: Any) -> list[GradientHook]:
        """Hook the inputs of a repeated call before the module can change them. Its end shows the original call."""
        if not self._pending or "input_grad" not in self._kinds:
            return []
        tensors = tensors_in(inputs)
        found = [GradientHook() for _ in tensors]
        for tensor, hook in zip(tensors, found, strict=True):
            if not _why_no_gradient(tensor):
                self._hook(tensor, hook)
        return found

    def _leave_repeated(self, output: Any, input_hooks: list[GradientHook]) -> None:
        """Connect the gradients of a repeated call with the original call, because they flow only through its tensors.

        This is so for a reentrant checkpoint. The other kind repeats a call for what it saved, and leaves none pending.
        """
        self.layer.was_repeated = True
        if reason := why_unknown(self._pending):
            calls = [self.layer.calls[number] for _, number in self._pending]
            for slot in [slot for call in calls for slot in slots_in((call.inputs_seen, call.output_seen))]:
                slot.missing = reason
            return
        tensors = tensors_in(output)
        found = take_call(self._pending, [("", tensor) for tensor in tensors], torch.is_grad_enabled())
        if found is None:
            return
        call = self.layer.calls[found]
        for slot, hook in zip(slots_in(call.inputs_seen), input_hooks, strict=False):
            hook.slot, slot.missing = slot, ""
        for slot, tensor in zip(slots_in(call.output_seen), tensors, strict=False):
            slot.missing = _why_no_gradient(tensor)
            if not slot.missing and "output_grad" in self._kinds:
                slot.missing = self._hook(tensor, GradientHook(slot))


@contextlib.contextmanager
def _problems_in(call: LayerCall) -> Iterator[None]:
    """Let no exception out of a hook: the call reports it."""
    try:
        yield
    except Exception as error:
        call.problem = f"hookcore failed on it ({type(error).__name__}: {error})"


def _why_no_gradient(tensor: Tensor) -> str:
    """Return why there can't be a gradient of this tensor, or an empty string."""
    if tensor.requires_grad and torch.is_grad_enabled():
        return ""
    if is_wrapped(tensor):
        return "it is inside torch.func, whose gradients no hook sees"
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return f"values of type {tensor.dtype} have no gradient"
    if torch.is_grad_enabled():
        return "the tensor does not require grad: it was detached, or depends on no trainable parameter"
    if forward_segment():
        return "the layer ran in a checkpoint, and no backward pass has repeated it"
    return "the layer ran without gradients (torch.no_grad() or torch.inference_mode())"


class _TraceHook(InertInCopies):
    """A hook of a traced module."""

    __slots__ = ("traced",)

    def __init__(self, traced: TracedModule) -> None:
        self.traced = traced


class BeforeHook(_TraceHook):
    """The forward pre-hook of a traced module."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if _is_compiling() or tracing_state():
            return
        with DisableTorchFunction():
            self.traced.enter(args, kwargs)


class AfterHook(_TraceHook):
    """The forward hook of a traced module."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if _is_compiling() or tracing_state():
            return
        with DisableTorchFunction():
            self.traced.leave(output)


guard_functions(BeforeHook.__call__, AfterHook.__call__)

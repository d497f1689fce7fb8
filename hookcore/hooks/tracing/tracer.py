"""`hookcore.trace`: selected layers of a model, traced during a `with` block."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor, nn

from hookcore import hooks
from hookcore.config import Pattern, Setting, Settings, nearest
from hookcore.config.patterns import select
from hookcore.config.readers import read_set
from hookcore.errors import ArgumentError, TraceError
from hookcore.hooks.backward import Pending, forward_segment, take_call, why_unknown
from hookcore.hooks.checks import walk
from hookcore.hooks.compiled import (
    clean_path,
    compiled_functions,
    compiled_regions,
    guard_functions,
    has_compiled,
    is_inside,
    unwrap,
)
from hookcore.hooks.handle import InertInCopies
from hookcore.hooks.internals import DisableTorchFunction, current_graph_task, is_wrapped, tracing_state
from hookcore.hooks.modules import hold_headroom, release_headroom
from hookcore.hooks.tracing.copies import GradientHook, NotCopied, Slot, rebuild, record, slots_in, tensors_in

# The contents of a trace: layers, and the inputs and outputs of each of their calls.

TraceKind = Literal["output", "output_grad", "input", "input_grad"]
TRACE_KINDS: Final = get_args(TraceKind)
_MISSING: Final = object()


class Period:
    """Whether a trace still records, for the errors of its layers and calls."""

    __slots__ = ("compiled", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self.compiled: list[str] = []  # the user's compiled functions, known after the trace


class LayerCall:
    """One call of a layer. Every tensor is a detached copy, made when it was passed or returned.

    Tuples, lists, dicts, and dataclasses are returned as they were, with copies inside.
    """

    __slots__ = ("_kinds", "_name", "_period", "inputs_seen", "number", "output_seen", "problem")

    def __init__(self, number: int, layer: str, kinds: frozenset[TraceKind], period: Period) -> None:
        self.number = number
        self.problem = ""  # an error inside hookcore
        self._name = f"call {number} of {layer}"
        self._kinds = kinds
        self._period = period
        self.inputs_seen: Any = _MISSING  # the inputs and outputs of the layer, with slots in place of tensors
        self.output_seen: Any = _MISSING

    @property
    def output(self) -> Any:
        """The output of the call."""
        return self._value("output", self.output_seen)

    @property
    def output_grad(self) -> Any:
        """The gradient of each tensor in the output, or None. The newest backward pass wins."""
        return self._gradient("output_grad", self.output_seen)

    @property
    def input(self) -> Any:
        """The first argument of the call; `inputs` has all of them."""
        return self._value("input", self._first())

    @property
    def input_grad(self) -> Any:
        """The gradient of the first argument. If the tensor has other uses, it includes their gradients."""
        return self._gradient("input_grad", self._first())

    @property
    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All positional and all keyword arguments of the call."""
        found: tuple[tuple[Any, ...], dict[str, Any]] = self._value("input", self.inputs_seen)
        return found

    @property
    def input_grads(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The gradients of all arguments, in the shape of `inputs`; None for arguments without one."""
        found: tuple[tuple[Any, ...], dict[str, Any]] = self._gradient("input_grad", self.inputs_seen)
        return found

    def _first(self) -> Any:
        if self.inputs_seen is _MISSING:
            return _MISSING
        args, kwargs = self.inputs_seen
        return next(iter((*args, *kwargs.values())), NotCopied("the call had no arguments"))

    def _value(self, kind: TraceKind, seen: Any) -> Any:
        self._require(kind, seen)
        value = rebuild(seen, lambda leaf: leaf.value if type(leaf) is Slot else leaf)
        if type(value) is NotCopied:
            raise TraceError(f"the {kind} of {self._name} is not available: {value.reason}")
        return value

    def _gradient(self, kind: TraceKind, seen: Any) -> Any:
        self._require(kind, seen)
        slots: list[Slot] = []

        def gradient_of(leaf: Any) -> Tensor | None:
            if type(leaf) is not Slot:
                return None
            slots.append(leaf)
            return leaf.gradient

        gradients = rebuild(seen, gradient_of)
        if all(slot.gradient is None for slot in slots):
            raise TraceError(f"the {kind} of {self._name} is not available: {self._why_no_gradient(slots)}")
        return gradients

    def _require(self, kind: TraceKind, seen: Any) -> None:
        if kind not in self._kinds:
            raise TraceError(f"the {kind} of {self._name} was not traced: add {kind!r} to kinds")
        if seen is _MISSING:
            reason = self.problem or "the call raised an exception, or is still running"
            raise TraceError(f"the {kind} of {self._name} is not available: {reason}")

    def _why_no_gradient(self, slots: list[Slot]) -> str:
        if not slots:
            return "it holds no tensor"
        reason = next((slot.missing for slot in slots if slot.missing), "")
        if reason:
            return reason
        if self._period.is_over:
            return "no backward pass reached it. Call loss.backward() inside the `with`, on a loss that depends on it"
        return "no backward pass has reached it yet. Call loss.backward() first, on a loss that depends on it"

    def __repr__(self) -> str:
        return f"<hookcore.hooks.tracing.LayerCall {self._name}>"


class Layer:
    """A traced layer. `output`, `output_grad`, `input`, `input_grad` are those of its last call."""

    def __init__(self, path: str, kinds: frozenset[TraceKind], period: Period) -> None:
        self.path = path
        self._kinds = kinds
        self._period = period
        self._calls: list[LayerCall] = []
        self._lock = threading.Lock()  # threads can share a layer
        self.unseen = ""  # why this layer can't be traced
        self.was_repeated = False  # whether it ran inside a backward pass

    @property
    def calls(self) -> tuple[LayerCall, ...]:
        """All calls, in order. A call that a checkpoint repeats in the backward pass counts once."""
        return tuple(self._calls)

    @property
    def output(self) -> Any:
        """The output of the last call."""
        return self._last.output

    @property
    def output_grad(self) -> Any:
        """The gradient of the last call's output."""
        return self._last.output_grad

    @property
    def input(self) -> Any:
        """The first argument of the last call."""
        return self._last.input

    @property
    def input_grad(self) -> Any:
        """The gradient of the last call's first argument."""
        return self._last.input_grad

    def begin_call(self) -> LayerCall:
        with self._lock:
            call = LayerCall(len(self._calls), self._shown, self._kinds, self._period)
            self._calls.append(call)
        return call

    @property
    def _last(self) -> LayerCall:
        if not self._calls:
            raise TraceError(f"{self._shown} {self._why_not_called()}")
        return self._calls[-1]

    @property
    def _shown(self) -> str:
        return repr(self.path) if self.path else "the model (the root)"

    def _why_not_called(self) -> str:
        if self.unseen:
            return f"can't be traced: {self.unseen}"
        if self.was_repeated:
            return "ran only inside a backward pass, which counts as a checkpoint's repetition of an earlier call"
        if not self._period.is_over:
            return "has not run yet. Call the model inside the `with` first"
        hint = "did not run inside the `with`. Call the model itself: a direct call of .forward() runs no hooks"
        if self._period.compiled:
            hint += f"; calls inside a compiled function are not seen ({', '.join(self._period.compiled[:3])})"
        return hint

    def __repr__(self) -> str:
        return f"<hookcore.hooks.tracing.Layer {self._shown}, {len(self._calls)} calls>"


# One module of a trace: its hooks, and the running calls.
#
# The hooks are on the module, not on the process. They see keyword arguments before the module runs and the results of
# the user's own hooks, and don't affect other models, other threads, or compiled code elsewhere.

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


_KINDS: Final = Setting(
    "kinds", TRACE_KINDS, f"one or more of {', '.join(map(repr, TRACE_KINDS))}", "What to copy.", read_set(TRACE_KINDS)
)
_COMPILED: Final = (
    "it is inside a compiled region, where no hook runs. Trace the model before you compile it, or call the original "
    "module (`compiled._orig_mod`) under the trace"
)


@contextmanager
def trace(
    model: nn.Module,
    include: Pattern | Iterable[Pattern] | None = None,
    exclude: Pattern | Iterable[Pattern] | None = None,
    *,
    kinds: TraceKind | Iterable[TraceKind] = TRACE_KINDS,
) -> Iterator[Trace]:
    """Copy the inputs, outputs, and gradients of some layers in a `with` block. Starts no process, writes no file.

        with hookcore.trace(model, "layer4") as seen:
            loss = criterion(model(x), y)
            loss.backward()
        seen["layer4"].output, seen["layer4"].output_grad

    include, exclude: the layers, as patterns of `hookcore.watch`; by default all of them. kinds: what to copy. Each
    copy stays in memory, on its tensor's device, until you drop the trace. The model computes the same results, bit
    for bit. After the block, no hook remains.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"trace() was given a {type(model).__name__}; it takes a torch.nn.Module")
    chosen = Settings.of({}, include=include, exclude=exclude)
    seen = Trace(model, chosen, frozenset(_KINDS.value_of(kinds)))  # type: ignore[call-overload]
    try:
        seen._attach()
        yield seen
    finally:
        seen._detach()


class Trace:
    """The layers of one `hookcore.trace`, by path; "" is the model itself. It stays readable after the `with`."""

    def __init__(self, model: nn.Module, settings: Settings, kinds: frozenset[TraceKind]) -> None:
        outer: dict[str, nn.Module] = {}  # a wrapper of torch.compile, else the module
        inner: dict[str, nn.Module] = {}
        for path, module in walk(model, every_path=True):
            outer.setdefault(clean_path(path), module)
            inner[clean_path(path)] = module
        leaves = {path for path, module in inner.items() if not module._modules}
        self._paths = tuple(inner)
        self._period = Period()
        self._lock = threading.Lock()
        self._handles: list[hooks.HookHandle] = []
        self._layers: dict[str, Layer] = {}
        self._traced: dict[int, TracedModule] = {}
        regions = compiled_regions(model)
        for path in select(inner, leaves, settings.include, settings.exclude).chosen:
            key = id(inner[path])
            if key not in self._traced:
                layer = Layer(path, kinds, self._period)
                self._traced[key] = TracedModule(outer[path], layer, kinds, self._hook_gradient)
                if is_inside(path, regions) and unwrap(outer[path]) is outer[path]:
                    layer.unseen = _COMPILED
            self._layers[path] = self._traced[key].layer
        unseen = [layer for layer in self._layers.values() if layer.unseen]
        if unseen and len(unseen) == len(self._layers):
            raise TraceError(f"{unseen[0].path or 'the model'!r} can't be traced: {unseen[0].unseen}")

    def __getitem__(self, path: str) -> Layer:
        layer = self._layers.get(path)
        if layer is None:
            raise TraceError(self._why_unknown(path))
        return layer

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __contains__(self, path: object) -> bool:
        return path in self._layers

    def __repr__(self) -> str:
        state = "over" if self._period.is_over else "recording"
        return f"<hookcore.hooks.tracing.Trace {state}, {len(self._layers)} layers>"

    def _why_unknown(self, path: str) -> str:
        if path in self._paths:
            return f"{path!r} is not traced: the patterns given to trace() leave it out"
        near = nearest(str(path), filter(None, self._paths))
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Traced: {', '.join(map(repr, self))}."
        return f"the model has no layer {path!r}. {hint if len(hint) < 500 else ''}".rstrip()

    def _attach(self) -> None:
        hold_headroom()
        for traced in self._traced.values():
            if not traced.layer.unseen:
                self._handles += traced.attach()

    def _detach(self) -> None:
        with self._lock:
            self._period.is_over = True
            handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        release_headroom()
        if has_compiled():
            self._period.compiled = compiled_functions(traced.module for traced in self._traced.values())
        self._traced.clear()  # they hold the model

    def _hook_gradient(self, tensor: Tensor, hook: GradientHook) -> None:
        with self._lock:
            if not self._period.is_over:
                handle = hooks.on_gradient(tensor, hook)
                self._handles.append(handle)
                hook.leaf_handle = handle if tensor.is_leaf else None

"""The contents of a trace: layers, and the inputs and outputs of each of their calls."""

from __future__ import annotations

import threading
from typing import Any, Final, Literal, get_args

from torch import Tensor

from hookcore.errors import TraceError
from hookcore.hooks.tracing.copies import NotCopied, Slot
from hookcore.hooks.tracing.nested import rebuild

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

"""Callbacks at the end of a backward pass, observers of all passes, and recomputed calls of reentrant checkpoints."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.utils import checkpoint
from torch.utils.hooks import RemovableHandle

from hookcore.errors import HookError
from hookcore.hooks.checks import require_callable, require_tensor, require_tensors
from hookcore.hooks.handle import HookHandle, ObserverHandle, Observers, registering
from hookcore.hooks.internals import Engine, current_graph_task, engine, set_engine

_MAX_UNFINISHED: Final = 64  # backward passes that have begun but not ended, because they raised or still run


class _Once:
    """The engine's callback for one backward."""

    __slots__ = ("__weakref__", "fn")

    def __init__(self, fn: Callable[[], Any]) -> None:
        self.fn: Callable[[], Any] | None = fn

    def __call__(self) -> None:
        fn, self.fn = self.fn, None
        if fn is not None:
            fn()


class _Always:
    """A tensor hook that asks the engine, at a backward's first gradient, to call at its end. Holds no tensor."""

    __slots__ = ("__weakref__", "_unfinished", "fn")

    def __init__(self, fn: Callable[[], Any]) -> None:
        self.fn: Callable[[], Any] | None = fn
        self._unfinished: dict[int, _Ending] = {}

    def __call__(self, _grad: torch.Tensor | None) -> None:
        backward = current_graph_task()
        if self.fn is None or backward in self._unfinished:
            return
        ending = _Ending(self, backward)
        # One atomic step: on a GPU, several threads of one backward pass may get here at once.
        if self._unfinished.setdefault(backward, ending) is not ending:
            return
        while len(self._unfinished) > _MAX_UNFINISHED:
            self._unfinished.pop(next(iter(self._unfinished)), None)
        queue_backward_end(ending)

    def finish(self, backward: int) -> None:
        """Call the function at the end of this backward pass."""
        self._unfinished.pop(backward, None)
        if self.fn is not None:
            self.fn()


class _Ending:
    __slots__ = ("always", "backward")

    def __init__(self, always: _Always, backward: int) -> None:
        self.always = always
        self.backward = backward

    def __call__(self) -> None:
        self.always.finish(self.backward)


class BackwardEndHandle(HookHandle):
    """Disables the callback and removes the tensor hooks that request it."""

    __slots__ = ("_callback",)

    def __init__(self, callback: _Once | _Always, handles: Iterable[RemovableHandle] = ()) -> None:
        super().__init__("backward end", handles)
        self._callback = weakref.ref(callback)

    def _is_in_place(self) -> bool:
        callback = self._callback()
        if callback is None or callback.fn is None:
            return False
        return not self._handles or super()._is_in_place()

    def _take_out(self) -> None:
        super()._take_out()
        callback = self._callback()
        if callback is not None:
            callback.fn = None

    def __getstate__(self) -> tuple[Any, ...]:
        raise TypeError("A backward-end handle belongs to this process's graph and cannot be copied. Register again.")


def on_backward_end(
    fn: Callable[[], Any], *, of: nn.Module | torch.Tensor | Iterable[torch.Tensor] | None = None
) -> HookHandle:
    """Call `fn()` when the running backward pass has finished; with `of`, at the end of every backward pass through it.

    `of`: a module (its parameters that need a gradient), a tensor, or several tensors. A backward pass that raises has
    no end. A nested one, such as that of a reentrant checkpoint, has its own end.
    """
    require_callable(fn, "()")
    if of is not None:
        return _on_every_end(fn, of)
    if current_graph_task() == -1:
        raise HookError(
            "No backward is running in this thread; expected a call from inside one, such as from a gradient hook. "
            "Pass `of=model` (or tensors) to be called at the end of every backward through it."
        )
    callback = _Once(fn)
    queue_backward_end(callback)
    return BackwardEndHandle(callback)


def _on_every_end(fn: Callable[[], Any], of: object) -> HookHandle:
    tensors: list[torch.Tensor]
    if isinstance(of, nn.Module):
        tensors = [parameter for parameter in of.parameters() if parameter.requires_grad]
        if not tensors:
            raise HookError(
                f"The {type(of).__name__} has no parameter that needs a gradient, so no backward pass goes through it; "
                "expected at least one. Pass a tensor that needs a gradient."
            )
    else:
        tensors = [require_tensor(of)] if isinstance(of, torch.Tensor) else require_tensors(of)
    callback = _Always(fn)
    with registering():
        handles = [tensor.register_hook(callback) for tensor in tensors]  # type: ignore[no-untyped-call]
        return BackwardEndHandle(callback, handles)


def queue_backward_end(callback: Callable[[], None]) -> None:
    """Queue the callback itself, for the recorder: it runs once in every backward pass."""
    engine().queue_callback(callback)


# An observer of every backward pass of the process, at its beginning and end.
#
# Torch has no hook for this. A tensor hook sees only passes that reach its tensor, and must be registered in the
# forward pass. A step clock also needs the passes of steps in which nothing is registered. All backward passes that
# Python starts go through `Variable._execution_engine`, so a subclass of torch's engine replaces it while there are
# observers. It calls torch's own method with the same arguments. When the last observer leaves, torch's engine is
# restored.


class BackwardObserver(Protocol):
    """Called around every backward pass, in the thread that started it. Must not raise."""

    def backward_begins(self, accumulates: bool, tensors: Sequence[Any], weights: Sequence[Any]) -> None:
        """Handle the start of a pass from these tensors, weighted by these gradients.

        `accumulates`: into `.grad`, unlike `torch.autograd.grad`.
        """

    def backward_ended(self, accumulates: bool, raised: bool) -> None:
        """Handle the end of a pass, even if it raised."""

    def inner_begins(self, accumulates: bool) -> bool:
        """Handle the start of a pass inside a pass. Return whether its end matters."""

    def inner_ended(self) -> None:
        """Handle the end of such a pass, even if it raised."""


_replaced: Any = None  # torch's own engine, while ours replaces it


class ObservedEngine(Engine):
    """Torch's engine, which also calls the observers around each pass."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the pass as torch does."""
        observers = _observers.now
        if not observers:
            return super().run_backward(*args, **kwargs)
        accumulates = kwargs.get("accumulate_grad", True)
        if current_graph_task() != -1:
            awaiting = [observer for observer in observers if observer.inner_begins(accumulates)]
            try:
                return super().run_backward(*args, **kwargs)
            finally:
                for observer in awaiting:
                    if observer in _observers.now:
                        observer.inner_ended()
        tensors, weights = args[0] if args else (), args[1] if len(args) > 1 else ()
        for observer in observers:
            observer.backward_begins(accumulates, tensors, weights)
        raised = True
        try:
            result = super().run_backward(*args, **kwargs)
            raised = False
        finally:
            for observer in observers:
                if observer in _observers.now:  # else another thread has removed it
                    observer.backward_ended(accumulates, raised)
        return result


def observe_backward(observer: BackwardObserver) -> ObserverHandle[BackwardObserver]:
    """Call the observer around every backward pass of this process."""
    return _observers.add(observer)


def _put_in() -> None:
    global _replaced
    if not isinstance(engine(), ObservedEngine):
        _replaced = engine()
        set_engine(ObservedEngine())


def _put_back() -> None:
    # Other code may have put its own engine on top of ours. Ours then passes everything through.
    if isinstance(engine(), ObservedEngine):
        set_engine(_replaced)


_observers: Final[Observers[BackwardObserver]] = Observers(_put_in, _put_back)


# Reentrant checkpoints: matching the calls of a recompute with the original ones.
#
# Such a checkpoint is an autograd function. Its forward runs the modules without gradients, and its backward runs them
# again, with gradients, in the same order. Both get the same `ctx`, which connects the calls of one segment. In an
# outer checkpoint, the inner one repeats its forward with another `ctx` before its own backward runs.
#
# Other autograd functions do so in another order, such as that of an ODE, which is solved backward. Of several calls of
# a module, it is therefore unknown which one they repeat.

_CHECKPOINT: Final = checkpoint.__file__
IN_ANY_ORDER: Final = (
    "an autograd function called it several times and calls it again in its backward pass, in an unknown order: these "
    "gradients are left out"
)

Pending = list[tuple[int, int]]  # segment and number of the call


def forward_segment() -> int:
    """Return the outermost autograd function whose forward runs, within the innermost backward; 0 if there is none."""
    segment, frame = 0, sys._getframe(1)
    while frame is not None and not _is_method(frame, "backward"):
        if _is_method(frame, "forward"):
            segment = id(frame.f_locals.get("ctx"))
        frame = frame.f_back  # type: ignore[assignment]
    return segment


def _running_backward() -> Any:
    """Return the `ctx` of the innermost autograd function whose backward runs; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_method(frame, "backward"):
            return frame.f_locals.get("ctx")
        frame = frame.f_back
    return None


def why_unknown(pending: Pending) -> str:
    """Return why it is unknown which of several waiting calls runs again now, or ""."""
    if len(pending) < 2:
        return ""
    running = _running_backward()
    is_ordered = "Checkpoint" in type(running).__name__ or sum(known == id(running) for known, _ in pending) < 2
    return "" if is_ordered else IN_ANY_ORDER


def take_call(pending: Pending, tensors: list[tuple[str, Any]], grad_enabled: bool) -> int | None:
    """Return the waiting call that runs again now. None if it is unknown, or if it will run once more."""
    if why_unknown(pending):
        return None
    running = _running_backward()
    segment = 0 if running is None else id(running)
    place = next((place for place, (known, _) in enumerate(pending) if known == segment), None)
    if place is None:
        if segment or not pending:
            return None
        place = len(pending) - 1
    if not grad_enabled and not any(tensor.requires_grad for _, tensor in tensors):
        inner = forward_segment()
        if inner:  # a nested checkpoint, whose own backward will run it again
            if not _is_unpacking():
                pending.append((inner, pending.pop(place)[1]))
            return None
    return pending.pop(place)[1]


def _is_unpacking() -> bool:
    """Return whether the innermost backward is still fetching what it saved, before it runs its calls again.

    Then a checkpoint that isn't reentrant, around this one, repeats its whole forward, only to find that.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_method(frame, "backward"):
        if frame.f_code.co_name == "unpack_hook" and frame.f_code.co_filename == _CHECKPOINT:
            return True
        frame = frame.f_back
    return False


def _is_method(frame: FrameType, name: str) -> bool:
    code = frame.f_code
    return code.co_name == name and code.co_argcount > 0 and code.co_varnames[0] == "ctx"

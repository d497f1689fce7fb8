"""Callbacks at the end of a backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hookcore.errors import HookError
from hookcore.hooks.checks import require_callable, require_tensor, require_tensors
from hookcore.hooks.handle import HookHandle, registering
from hookcore.hooks.internals import current_graph_task, engine

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

"""Every backward pass of the process, seen as it begins and ends.

Torch has no hook for this. A tensor hook sees only passes that reach its tensor, and has to be registered in the
forward pass; a step clock needs the passes of steps in which nothing is registered at all. All backward passes that
Python starts go through `Variable._execution_engine`, so while somebody observes, an engine of a subclass stands
there. It calls torch's own method with the same arguments, and torch's engine is back when the last observer leaves.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

import torch
from torch._C import _ImperativeEngine
from torch.autograd import Variable

_current_task = torch._C._current_graph_task_id


class BackwardObserver(Protocol):
    """Is called around every outermost backward pass, in the thread that started it; lets no exception out."""

    def backward_begins(self, accumulates: bool) -> None:
        """A pass starts. `accumulates`: into `.grad`, as `backward()` does; `torch.autograd.grad` does not."""

    def backward_ended(self, accumulates: bool) -> None:
        """The pass is over, or raised."""


_observers: tuple[BackwardObserver, ...] = ()
_replaced: Any = None  # torch's own engine, while ours stands in its place
_lock = threading.Lock()


class ObservedEngine(_ImperativeEngine):
    """Torch's engine, with observers around the passes that are not inside another one."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the pass as torch does."""
        observers = _observers
        if not observers or _current_task() != -1:
            return super().run_backward(*args, **kwargs)
        accumulates = kwargs.get("accumulate_grad", True)
        for observer in observers:
            observer.backward_begins(accumulates)
        try:
            return super().run_backward(*args, **kwargs)
        finally:
            for observer in observers:
                observer.backward_ended(accumulates)


class BackwardHandle:
    """Stops observing when it is removed; a second removal does nothing."""

    def __init__(self, observer: BackwardObserver) -> None:
        self._observer: BackwardObserver | None = observer

    def remove(self) -> None:
        """Stop observing."""
        global _observers
        with _lock:
            _observers = tuple(observer for observer in _observers if observer is not self._observer)
            self._observer = None
            if not _observers:
                _put_back()


def observe_backward(observer: BackwardObserver) -> BackwardHandle:
    """Call the observer around every outermost backward pass of this process."""
    global _observers, _replaced
    with _lock:
        if not isinstance(Variable._execution_engine, ObservedEngine):
            _replaced = Variable._execution_engine
            Variable._execution_engine = ObservedEngine()
        _observers = (*_observers, observer)
    return BackwardHandle(observer)


def _put_back() -> None:
    # Someone may have put an engine of their own on top of ours, which then passes everything through.
    if isinstance(Variable._execution_engine, ObservedEngine):
        Variable._execution_engine = _replaced

"""An observer of every backward pass of the process, at its beginning and end.

Torch has no hook for this. A tensor hook sees only passes that reach its tensor, and must be registered in the forward
pass. A step clock also needs the passes of steps in which nothing is registered. All backward passes that Python starts
go through `Variable._execution_engine`, so a subclass of torch's engine replaces it while there are observers. It calls
torch's own method with the same arguments. When the last observer leaves, torch's engine is restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from hookcore.hooks.internals import Engine, current_graph_task, engine, set_engine
from hookcore.hooks.observing import ObserverHandle, Observers


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

"""An observer of every `DataLoader` of the process: of the calls in which a thread gets its iterator or a batch.

Torch has no hook for this: the range that it records around each batch reaches profilers only. So while there are
observers, a function around the method replaces it in torch's own classes, which subclasses and frameworks call. It
returns and raises what the method does. When the last observer leaves, torch's methods are restored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch

from hookcore.hooks.handle import ObserverHandle, Observers
from hookcore.hooks.internals import LOADER_METHODS, skip_frame

UNSEEN: Final = (
    ""
    if LOADER_METHODS
    else f"torch {torch.__version__} has no method torch.utils.data.dataloader._BaseDataLoaderIter.__next__, so data "
    "loading is not timed separately: it counts as \u201cbefore the model\u201d, as it does for loaders that aren't "
    "torch's. docs/versions.md lists the releases of torch that hookcore was tested with"
)

_is_compiling = torch.compiler.is_compiling


class LoadingObserver(Protocol):
    """Called around each such call, in the thread that makes it. Must not raise."""

    def loading_begins(self) -> None:
        """Handle the start of a call, which may be inside another one: of a loader that reads from a loader."""

    def loading_ended(self, brought: bool) -> None:
        """Handle its end. `brought`: it returned, rather than raised, as it does after the last batch."""


_replaced: list[tuple[type, str, Any, Any]] = []  # the class, the method's name, torch's method, and ours


def observe_loading(observer: LoadingObserver) -> ObserverHandle[LoadingObserver]:
    """Call the observer around every call of this process that loads data."""
    return _observers.add(observer)


def _put_in() -> None:
    for owner, name in LOADER_METHODS if not _replaced else ():
        own = vars(owner)[name]
        ours = _observed(own)
        setattr(owner, name, ours)
        _replaced.append((owner, name, own, ours))


def _put_back() -> None:
    # Other code may have put its own method on top of ours. Ours then passes everything through.
    for owner, name, own, ours in _replaced:
        if vars(owner).get(name) is ours:
            setattr(owner, name, own)
    _replaced.clear()


_observers: Final[Observers[LoadingObserver]] = Observers(_put_in, _put_back)


def _observed(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that calls a method, and the observers around it."""

    def call(self: Any) -> Any:
        observers = _observers.now
        if _is_compiling() or not observers:
            return method(self)
        for observer in observers:
            observer.loading_begins()
        brought = False
        try:
            found = method(self)
            brought = True
            return found
        except BaseException as error:
            # Without this frame, which would be the first one: the traceback is then that of an unwatched training.
            # Python 3.10 adds it again.
            BaseException.with_traceback(error, error.__traceback__ and error.__traceback__.tb_next)
            raise
        finally:
            for observer in observers:
                observer.loading_ended(brought)

    skip_frame(call.__code__)  # Dynamo compiles the user's code below it as ever
    functools.update_wrapper(call, method)
    return call

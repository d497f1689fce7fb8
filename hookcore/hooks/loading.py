"""An observer of every `DataLoader` of the process: of the calls in which a thread gets its iterator or a batch.

It also learns which samples a batch has: the indices that the sampler gave for it, which torch keeps in order.

Torch has no hook for this: the range that it records around each batch reaches profilers only. So while there are
observers, a function around the method replaces it in torch's own classes, which subclasses and frameworks call. It
returns and raises what the method does. When the last observer leaves, torch's methods are restored.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, Final, NamedTuple, Protocol

import torch

from hookcore.hooks.handle import ObserverHandle, Observers
from hookcore.hooks.internals import LOADER_INDEX, LOADER_METHODS, skip_frame

UNSEEN: Final = (
    ""
    if LOADER_METHODS
    else f"torch {torch.__version__} has no method torch.utils.data.dataloader._BaseDataLoaderIter.__next__, so data "
    "loading is not timed separately: it counts as \u201cbefore the model\u201d, as it does for loaders that aren't "
    "torch's. docs/versions.md lists the releases of torch that hookcore was tested with"
)

_is_compiling = torch.compiler.is_compiling


class Taken(NamedTuple):
    """A batch that a loader has returned. Whoever keeps the batch keeps it alive."""

    loader: Any  # the iterator
    batch: Any
    indices: Any  # as the sampler gave them; None if they aren't known
    why: str  # they aren't
    is_ahead: bool  # whether the caller passes it on only when it takes the next one, or finds that there is none


class LoadingObserver(Protocol):
    """Called around each such call, in the thread that makes it. Must not raise."""

    def loading_begins(self) -> None:
        """Handle the start of a call, which may be inside another one: of a loader that reads from a loader."""

    def loading_ended(self, brought: bool) -> None:
        """Handle its end. `brought`: it returned, rather than raised, as it does after the last batch."""

    def took(self, taken: Taken) -> None:
        """Handle a batch, after the end of the call."""

    def ran_out(self, loader: Any) -> None:
        """Handle that an iterator has no more batches."""


_replaced: list[tuple[type, str, Any, Any]] = []  # the class, the method's name, torch's method, and ours


def observe_loading(observer: LoadingObserver) -> ObserverHandle[LoadingObserver]:
    """Call the observer around every call of this process that loads data."""
    return _observers.add(observer)


def _put_in() -> None:
    for owner, name in (*LOADER_METHODS, *LOADER_INDEX) if not _replaced else ():
        own = vars(owner)[name]
        ours = _noted(own) if (owner, name) in LOADER_INDEX else _observed(own, takes=name == "__next__")
        setattr(owner, name, ours)
        _replaced.append((owner, name, own, ours))


def _put_back() -> None:
    # Other code may have put its own method on top of ours. Ours then passes everything through.
    for owner, name, own, ours in _replaced:
        if vars(owner).get(name) is ours:
            setattr(owner, name, own)
    _replaced.clear()


_observers: Final[Observers[LoadingObserver]] = Observers(_put_in, _put_back)


def _observed(method: Callable[[Any], Any], takes: bool) -> Callable[[Any], Any]:
    """Return a function that calls a method, and the observers around it. `takes`: the method returns batches."""

    def call(self: Any) -> Any:
        observers = _observers.now
        if _is_compiling() or not observers:
            return method(self)
        for observer in observers:
            observer.loading_begins()
        found, brought, is_over = None, False, False
        try:
            found = method(self)
            brought = True
            return found
        except BaseException as error:
            is_over = isinstance(error, StopIteration)
            # Without this frame, which would be the first one: the traceback is then that of an unwatched training.
            # Python 3.10 adds it again.
            BaseException.with_traceback(error, error.__traceback__ and error.__traceback__.tb_next)
            raise
        finally:
            for observer in observers:
                observer.loading_ended(brought)
            if takes and brought:
                taken = _taken(self, found, sys._getframe(1).f_code)
                for observer in observers:
                    observer.took(taken)
            elif takes and is_over:
                for observer in observers:
                    observer.ran_out(self)

    return _in_place_of(method, call)


def _in_place_of(method: Callable[[Any], Any], call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    skip_frame(call.__code__)  # Dynamo compiles the user's code below it as ever
    functools.update_wrapper(call, method)
    return call


# Which samples a batch has. Torch sends indices to its workers by number, and returns batches in the same order.

_DRAWN: Final = "_hookcore_drawn"  # an iterator's attribute: indices by the number of their batch
_AHEAD: Final = "accelerate/data_loader.py"  # its loaders take a batch more than they have passed on
_BEGUN: Final = "its loader had begun before the watch"
_ITERABLE: Final = "an iterable data set has no indices"
_UNORDERED: Final = "the loader returns batches as its workers finish them (in_order=False)"
_DISPATCHED: Final = "Accelerate's dispatcher passes parts of batches on to other processes"


def _noted(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that calls a method, and notes on its iterator which indices it returned."""

    def call(self: Any) -> Any:
        try:
            index = method(self)
        except BaseException as error:
            BaseException.with_traceback(error, error.__traceback__ and error.__traceback__.tb_next)
            raise
        if _observers.now:
            known = self.__dict__
            copy = list(index) if type(index) is list else index  # a sampler may fill the same list again
            known.setdefault(_DRAWN, {})[known.get("_send_idx", 0)] = copy
        return index

    return _in_place_of(method, call)


def _taken(loader: Any, batch: Any, caller: CodeType) -> Taken:
    known = loader.__dict__
    place = known.get("_rcvd_idx")  # one more than that of this batch; None without workers
    indices, why = known.get(_DRAWN, {}).pop(0 if place is None else place - 1, None), ""
    if place is not None and not known.get("_in_order", True):
        indices, why = None, _UNORDERED
    elif indices is None or (type(indices) is list and indices and indices[0] is None):
        indices, why = None, _ITERABLE if known.get("_dataset_kind") else _BEGUN
    is_ahead = caller.co_filename.replace("\\", "/").endswith(_AHEAD)
    if is_ahead and caller.co_name != "__iter__":
        indices, why = None, _DISPATCHED
    return Taken(loader, batch, indices, why, is_ahead)

"""Handles, which every registration returns, the registry of our own hooks, and observers that share a place."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from types import CodeType, FrameType
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import Self

from hookcore.hooks.internals import MODULE_CALL, PACKAGE_EXPORT
from hookcore.platform import after_fork

_new_id = itertools.count(1).__next__


def _code(function: Any) -> CodeType:
    code = function.__code__
    assert isinstance(code, CodeType)
    return code


def _no_step(_optimizer: torch.optim.Optimizer) -> None: ...


# Torch iterates over these dictionaries while it calls the hooks. Deleting an entry from inside a hook would break the
# iteration, and with it the user's step. For forward hooks, that is so only after an exception.
FORWARD_LOOP = frozenset({MODULE_CALL})
STEP_LOOP = frozenset({_code(torch.optim.Optimizer.profile_hook_step(_no_step))})
REGISTRATION_LOOP = frozenset(
    _code(method)
    for method in (nn.Module.register_buffer, nn.Module.register_parameter, nn.Module.add_module, nn.Module.__setattr__)
)
EXPORT_LOOP = frozenset({PACKAGE_EXPORT})
_NO_LOOP: frozenset[CodeType] = frozenset()
_LOOPS = {"forward": FORWARD_LOOP, "step": STEP_LOOP, "registration": REGISTRATION_LOOP, "export": EXPORT_LOOP}


def is_looping(loops: frozenset[CodeType]) -> bool:
    """Return whether one of these loops of torch runs in the calling thread."""
    if loops is FORWARD_LOOP and sys.exc_info()[0] is None:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in loops:
            return True
        frame = frame.f_back
    return False


def removed_hook(*_args: Any, **_kwargs: Any) -> None:
    """Replace a hook that was removed while torch was iterating over its table."""


class _Registry:
    """The only table of this process: which hook numbers are ours, and which entries are to be deleted later."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owned: dict[int, weakref.ref[Any]] = {}
        self.deferred: list[tuple[RemovableHandle, frozenset[CodeType]]] = []
        self.set_global_backward_flag = False

    def renew_lock(self) -> None:
        # A thread of the parent may have held the lock at the fork; in the child, nothing would release it.
        self.lock = threading.RLock()

    def own(self, handle: RemovableHandle) -> None:
        # When the model or tensor dies, this forgets the number. The reference is passed as `pop`'s default.
        self.owned[handle.id] = weakref.ref(handle.hooks_dict_ref(), partial(self.owned.pop, handle.id))

    def own_entry(self, hooks: dict[int, Any], number: int) -> None:
        """Know an entry of a table that lives as long as the process."""
        self.owned[number] = weakref.ref(hooks)

    def owns(self, hooks: Any, number: int) -> bool:
        reference = self.owned.get(number)
        return reference is not None and reference() is hooks

    def delete(self, handle: RemovableHandle, loops: frozenset[CodeType]) -> None:
        self.owned.pop(handle.id, None)
        if loops and is_looping(loops):
            hooks = handle.hooks_dict_ref()
            if hooks is not None and handle.id in hooks:
                hooks[handle.id] = removed_hook
                self.deferred.append((handle, loops))
        else:
            handle.remove()

    def sweep(self) -> None:
        """Delete the entries that could not be deleted from inside torch's loop."""
        with self.lock:
            waiting, self.deferred = self.deferred, []
            for handle, loops in waiting:
                if is_looping(loops):
                    self.deferred.append((handle, loops))
                else:
                    handle.remove()


registry = _Registry()
after_fork(registry.renew_lock)


def take_free_number(module: nn.Module) -> None:
    """Make torch's next hook number one that this module doesn't use yet. Call it under the lock.

    A module that was pickled with hooks keeps the numbers of the process that pickled it. Torch would overwrite such a
    hook, or call a new hook with the options of an old one.
    """
    tables = [table for name, table in module.__dict__.items() if "_hooks" in name and isinstance(table, dict)]
    used = max((number for table in tables for number in table if isinstance(number, int)), default=-1)
    RemovableHandle.next_id = max(RemovableHandle.next_id, used + 1)


def take_private_number(handle: RemovableHandle, *tables: dict[int, Any]) -> None:
    """Give a hook on the process a number that no hook on a module has.

    Torch also looks up the number of a global hook in the tables of each module. An unpickled module has the numbers of
    another process, so torch would call the hook with the wrong arguments.
    """
    number = private_number()
    for table in tables:
        if handle.id in table:
            table[number] = table.pop(handle.id)
    handle.id = number


private_number = itertools.count(-1, -1).__next__  # torch counts up from 0


def registering() -> AbstractContextManager[Any]:
    """Serialize registrations: torch numbers its handles without a lock, and equal numbers overwrite each other."""
    if registry.deferred:
        registry.sweep()
    return registry.lock


class HookHandle:
    """A registered hook: `id`, `active`, and an idempotent `remove`. Also a context manager.

    Dropping the handle leaves the hook active. It refers to the model, tensor, or function only weakly.
    """

    __slots__ = ("__weakref__", "_handles", "_loops", "_module", "_removed", "_undo", "id", "point")

    def __init__(
        self,
        point: str,
        handles: Iterable[RemovableHandle] = (),
        *,
        loops: frozenset[CodeType] = _NO_LOOP,
        undo: Callable[[nn.Module | None], None] | None = None,
        module: nn.Module | None = None,
    ) -> None:
        self.id: int = _new_id()
        self.point = point
        self._handles = tuple(handles)
        self._loops = loops
        self._undo = undo
        self._module = None if module is None else weakref.ref(module)
        self._removed = False
        for handle in self._handles:
            registry.own(handle)

    @property
    def active(self) -> bool:
        """Whether the hook can still fire: it wasn't removed, and what it was registered on still exists."""
        return not self._removed and self._is_in_place()

    def remove(self) -> None:
        """Remove the hook. Calling this again, or after the model is gone, does nothing."""
        if self._removed:
            return
        with registering():
            if not self._removed:
                self._take_out()
                self._removed = True

    def _is_in_place(self) -> bool:
        return any(handle.id in (handle.hooks_dict_ref() or ()) for handle in self._handles)

    def _take_out(self) -> None:
        for handle in self._handles:
            registry.delete(handle, self._loops)
        if self._undo is not None:
            self._undo(None if self._module is None else self._module())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.point}, {'active' if self.active else 'removed'}>"

    # As with torch's own handle, a copy belongs to the copy of the model that was made with it.
    def __getstate__(self) -> tuple[Any, ...]:
        module = None if self._module is None else self._module()
        loops = next((name for name, loops in _LOOPS.items() if loops is self._loops), "")
        return (self.point, self._handles, loops, self._undo, module, self._removed)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.id = _new_id()
        self.point, self._handles, loops, self._undo, module, self._removed = state
        self._loops = _LOOPS.get(loops, _NO_LOOP)
        self._module = None if module is None else weakref.ref(module)


# The observers of something for which all of them share one place in torch.

Observer = TypeVar("Observer")


class Observers(Generic[Observer]):
    """`put_in` takes the place in torch, unless it is taken, and `put_back` gives it back when no observer is left."""

    __slots__ = ("_put_back", "_put_in", "now")

    def __init__(self, put_in: Callable[[], None], put_back: Callable[[], None]) -> None:
        self.now: tuple[Observer, ...] = ()  # replaced, never changed, because other threads go through it
        self._put_in, self._put_back = put_in, put_back

    def add(self, observer: Observer) -> ObserverHandle[Observer]:
        """Call the observer from now on."""
        with registering():
            self._put_in()
            self.now = (*self.now, observer)
        return ObserverHandle(self, observer)

    def drop(self, observer: Observer | None) -> None:
        with registering():
            self.now = tuple(each for each in self.now if each is not observer)
            if not self.now:
                self._put_back()


class ObserverHandle(Generic[Observer]):
    """Stops observing when it is removed. A second removal does nothing."""

    __slots__ = ("_observer", "_observers")

    def __init__(self, observers: Observers[Observer], observer: Observer) -> None:
        self._observers = observers
        self._observer: Observer | None = observer

    def remove(self) -> None:
        observer, self._observer = self._observer, None
        self._observers.drop(observer)


class InertInCopies:
    """A hook whose place in copies and checkpoints is taken by one that does nothing and loads without hookcore."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")

    inert = __reduce__

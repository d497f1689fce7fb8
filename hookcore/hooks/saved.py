"""The pair of hooks with which autograd saves tensors for the backward and loads them again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from hookcore.errors import HookError
from hookcore.hooks.checks import require_callable
from hookcore.hooks.handle import HookHandle
from hookcore.hooks.internals import pop_saved_pair, saved_pairs_enabled, top_saved_pair

Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]


_read_top: Callable[[bool], tuple[Pack, Unpack] | None] | None = top_saved_pair


def top_pair() -> tuple[Pack, Unpack] | None:
    """Return the pair in force in this thread. Torch before 2.8 doesn't say, so there it is None."""
    return None if _read_top is None else _read_top(True)


class _Stack(threading.local):
    """The pairs that we pushed in this thread, by the ids of their functions."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []


_stack = _Stack()


def _ids(pair: tuple[Pack, Unpack]) -> tuple[int, int]:
    # Torch's stack holds the functions. Their ids are enough here, and keep nothing alive.
    return (id(pair[0]), id(pair[1]))


def is_ours(pair: tuple[Pack, Unpack]) -> bool:
    """Return whether this thread pushed that pair through `on_saved_tensors`."""
    return _ids(pair) in _stack.pairs


class SavedTensorsHandle(HookHandle):
    """A pair on this thread's stack of pairs, from registration to removal."""

    __slots__ = ("_pair", "_thread")

    def __init__(self, pack: Pack, unpack: Unpack) -> None:
        super().__init__("saved tensors")
        self._pair = _ids((pack, unpack))
        self._thread = threading.current_thread()
        _stack.pairs.append(self._pair)

    def _is_in_place(self) -> bool:
        return self._thread.is_alive()

    def _take_out(self) -> None:
        if not self._thread.is_alive():
            return  # the stack ended with the thread
        if self._thread is not threading.current_thread():
            raise HookError(
                f"The saved-tensors pair belongs to the thread {self._thread.name!r} and can't be removed in "
                f"{threading.current_thread().name!r}; torch keeps one stack per thread. Remove it in its own thread."
            )
        if not saved_pairs_enabled():
            raise HookError(
                "Saved-tensors hooks are disabled here (torch.autograd.graph.disable_saved_tensors_hooks), so the "
                "pair can't be taken from the stack. Remove it outside of that block."
            )
        self._lift()

    def _lift(self) -> None:
        """Pop down to the pair, drop it, and push the others back in order."""
        if _read_top is None:
            self._lift_blindly()
            return
        above: list[tuple[Pack, Unpack]] = []
        while (pair := top_pair()) is not None:
            saved_tensors_hooks(*pair).__exit__()
            if _ids(pair) == self._pair:
                break
            above.append(pair)
        for pair in reversed(above):
            saved_tensors_hooks(*pair).__enter__()
        _stack.pairs.remove(self._pair)

    def _lift_blindly(self) -> None:
        if _stack.pairs[-1:] != [self._pair]:
            raise HookError(
                "Another saved-tensors pair was registered after this one, and torch before 2.8 can't look below it. "
                "Remove the later one first."
            )
        pop_saved_pair()
        _stack.pairs.pop()

    def __getstate__(self) -> tuple[Any, ...]:
        raise TypeError("A saved-tensors handle belongs to a thread and cannot be copied. Register again in the copy.")


def on_saved_tensors(pack: Pack, unpack: Unpack) -> HookHandle:
    """Until the handle is removed, save `pack(tensor)` for the backward, and load it with `unpack`.

    This holds for this thread only. Of several pairs, only the innermost is called. The graph keeps a pair for what it
    packed.
    """
    require_callable(pack, "(tensor)")
    require_callable(unpack, "(packed)")
    try:
        saved_tensors_hooks(pack, unpack).__enter__()
    except RuntimeError as error:
        raise HookError(
            f"Torch refused the pair: {error}. Register it where saved-tensors hooks are allowed."
        ) from error
    return SavedTensorsHandle(pack, unpack)

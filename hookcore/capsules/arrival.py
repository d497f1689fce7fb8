"""The gradient that arrives at an output of a kept call."""

from __future__ import annotations

import contextlib
import weakref
from contextlib import AbstractContextManager
from typing import Final

from torch import Tensor

from hookcore.capsules.call import Call
from hookcore.hooks.compiled import guarded
from hookcore.internals import dispatch_modes, function_modes
from hookcore.observe.plain import unseen

_NOTHING_TO_HIDE: Final = contextlib.nullcontext()


class Arrival:
    """Keeps the gradient that arrives at an output. The graph keeps this object alive, but not the call."""

    __slots__ = ("_call", "_place")
    __torch_unserializable__ = True

    def __init__(self, call: Call, place: str) -> None:
        self._call, self._place = weakref.ref(call), place

    @guarded
    def __call__(self, gradient: Tensor | None) -> None:
        call = self._call()
        if call is not None and isinstance(gradient, Tensor):
            with hidden():
                call.saw_gradient(self._place, gradient)


def hidden() -> AbstractContextManager[None]:
    """Hide what is done here from the user's modes, if there are any: aliases and copies are nothing to autograd."""
    return unseen() if dispatch_modes() or function_modes() else _NOTHING_TO_HIDE

"""The gradient that arrives at an output of a kept call."""

from __future__ import annotations

import weakref

from torch import Tensor

from hookcore.capsules.call import Call
from hookcore.hooks.compiled import guarded
from hookcore.observe.plain import unseen


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
            with unseen():
                call.saw_gradient(self._place, gradient)

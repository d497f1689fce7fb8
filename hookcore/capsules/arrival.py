"""The gradient that arrives at an output of a kept call."""

from __future__ import annotations

import weakref
from typing import Protocol

from torch import Tensor

from hookcore.hooks.compiled import guarded
from hookcore.hooks.internals import dispatch_modes, function_modes
from hookcore.observe.plain import unseen


class SeesGradients(Protocol):
    """A call that keeps the gradients of its outputs."""

    def saw_gradient(self, place: str, gradient: Tensor) -> None:
        """Keep the gradient that arrived at an output."""


class Arrival:
    """Keeps the gradient that arrives at an output. The graph keeps this object alive, but not the call."""

    __slots__ = ("_call", "_place")
    __torch_unserializable__ = True

    def __init__(self, call: SeesGradients, place: str) -> None:
        self._call, self._place = weakref.ref(call), place

    @guarded
    def __call__(self, gradient: Tensor | None) -> None:
        call = self._call()
        if call is None or not isinstance(gradient, Tensor):
            return
        if type(gradient) is Tensor and not dispatch_modes() and not function_modes():
            call.saw_gradient(self._place, gradient)
        else:
            with unseen():
                call.saw_gradient(self._place, gradient)

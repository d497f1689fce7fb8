"""Optimizers as the clock sees them: their witnesses, and the scalers that step them."""

from __future__ import annotations

import math
import sys
import weakref
from typing import Any, Final

from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from hookcore.recorder.parameters import Parameter

READABLE: Final = 4096  # values of a gradient that are checked for zero
_SCALER_STEPS: Final = frozenset((GradScaler.step.__code__, GradScaler._maybe_opt_step.__code__))

Mark = tuple[int, int] | None  # a gradient's identity and version


class Owner:
    """An optimizer with watched parameters."""

    __slots__ = (
        "after",
        "ever_reached",
        "gap",
        "inner_passes",
        "inside",
        "keys",
        "last_step",
        "late",
        "owns",
        "ref",
        "scaler",
        "seen",
        "state",
        "states",
        "steps",
        "versions",
        "witnesses",
    )

    def __init__(self, optimizer: Optimizer) -> None:
        self.ref: weakref.ref[Optimizer] = weakref.ref(optimizer)
        self.state: tuple[Any, ...] = ()
        self.owns = False
        self.witnesses: list[Parameter] = []
        self.seen: list[Tensor] = []  # the witnesses' tensors; renewed often enough not to keep a replaced one for long
        self.keys: frozenset[int] = frozenset()  # by id
        self.after: list[Mark] = []  # of its witnesses, when their gradients were last attributed
        self.versions: list[int] = []  # of its witnesses, before it steps
        self.ever_reached = False  # whether a pass ever reached a witness
        self.late = False  # whether it steps with the gradients of the last step
        self.inner_passes = False  # whether its step has a closure, which computes the gradients
        self.inside = False  # whether it steps inside the backward pass
        self.last_step = -1
        self.gap = 1  # steps between two of its steps
        self.steps = 0
        self.scaler: weakref.ref[GradScaler] | None = None
        self.states: Any = None  # the scaler's table of optimizers when the last pass ended

    def look_up(self) -> None:
        """Find the current tensors of the witnesses."""
        self.seen = tensors_of(self.witnesses)
        self.keys = frozenset(map(id, self.seen))

    def live_scaler(self) -> GradScaler | None:
        """Return the scaler that steps it, if there is one and it is enabled."""
        scaler = self.scaler() if self.scaler is not None else None
        return scaler if scaler is not None and scaler.is_enabled() else None

    def scaler_attempted(self) -> bool:
        """Return whether a scaler has tried to step it since the last pass, by traces that don't need the device."""
        scaler = self.live_scaler()
        if scaler is None:
            return False
        states = scaler._per_optimizer_states
        optimizer = self.ref()
        return states is not self.states or states.get(id(optimizer), {}).get("stage") is OptState.STEPPED

    def find_scaler(self, depth: int) -> None:
        """Find the scaler that drives this step among the callers, because it has no hook of its own."""
        if self.scaler is not None and self.scaler() is not None:
            return
        frame: Any = sys._getframe(3)  # 2 is the clock's caller, which is wrapped
        for _ in range(depth):
            if frame is None:
                return
            if frame.f_code in _SCALER_STEPS:
                scaler = frame.f_locals.get("self")
                if isinstance(scaler, GradScaler):
                    self.scaler = weakref.ref(scaler)
                return
            frame = frame.f_back


def scales_until_now(scaler: GradScaler, attempts: int) -> list[float]:
    """Return the loss scale in each of a scaler's first steps, all of which it skipped; nothing if it skipped none."""
    first, factor = scaler._init_scale, scaler.get_backoff_factor()
    now = scaler._scale
    if isinstance(now, Tensor) and now.is_cpu:
        if float(now) == first:
            return []
        if not math.isclose(float(now), first * factor**attempts, rel_tol=1e-6):
            return [math.nan] * attempts
    return [first * factor**number for number in range(attempts)]


def tensors_of(parameters: list[Parameter]) -> list[Tensor]:
    return [tensor for each in parameters if (tensor := each.tensor) is not None]


def marks_of(tensors: list[Tensor]) -> list[Mark]:
    return [None if (grad := tensor.grad) is None else (id(grad), grad._version) for tensor in tensors]


def was_reset(tensor: Tensor, after: Mark) -> bool:
    """Return whether a gradient has since been set to None or to zero."""
    if after is None:
        return False
    grad = tensor.grad
    if grad is None:
        return True
    if (id(grad), grad._version) == after or not grad.is_cpu or grad.numel() > READABLE or type(grad) is not Tensor:
        return False
    return not bool(grad.detach().any())


def spread(items: list[Any], many: int) -> list[Any]:
    if len(items) <= many:
        return list(items)
    if many <= 1:
        return items[:many]
    return [items[round(number * (len(items) - 1) / (many - 1))] for number in range(many)]

"""Gradient scalers: which one steps an optimizer, and whether it left a step out."""

from __future__ import annotations

import math
import sys
import weakref
from enum import IntEnum
from typing import Any, Final

from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from hookcore.hooks.internals import SCALER_STEPS

_STEPS: Final = frozenset(code.co_name for code in SCALER_STEPS)  # code is hashed with all its constants


class Attempt(IntEnum):
    """A scaler's actions since the last pass."""

    NONE = 0
    ANY = 1  # it was updated, so it tried to step some optimizer
    OWN = 2  # it tried to step this optimizer


class ScalerLink:
    """The scaler that steps one optimizer, once it is found."""

    __slots__ = ("_ref", "_stage", "_states")

    def __init__(self) -> None:
        self._ref: weakref.ref[GradScaler] | None = None
        self._states: Any = None  # the scaler's table of optimizers when the last pass ended, which an update replaces
        self._stage: OptState | None = None  # that of the optimizer in it

    @property
    def found(self) -> bool:
        """Whether a scaler was ever seen to step the optimizer."""
        return self._ref is not None

    def live(self) -> GradScaler | None:
        """Return the scaler if there is one and it is enabled."""
        scaler = self._ref() if self._ref is not None else None
        return scaler if scaler is not None and scaler.is_enabled() else None

    def find(self, depth: int) -> None:
        """Find the scaler among the callers, because it has no hook of its own. A disabled one does nothing."""
        if self._ref is not None and self._ref() is not None:
            return
        frame: Any = sys._getframe(3)  # 2 is the clock's caller, which is wrapped
        for _ in range(depth):
            if frame is None:
                return
            if frame.f_code.co_name in _STEPS and frame.f_code in SCALER_STEPS:
                scaler = frame.f_locals.get("self")
                if isinstance(scaler, GradScaler) and scaler.is_enabled():
                    self._ref = weakref.ref(scaler)
                return
            frame = frame.f_back

    def note_pass(self, optimizer: Optimizer | None) -> None:
        """Remember what the scaler has done with the optimizer when a pass has ended."""
        if self._ref is not None and (scaler := self._ref()) is not None:
            self._states = scaler._per_optimizer_states
            self._stage = _stage_in(self._states, optimizer)

    def forget_pass(self) -> None:
        """Forget the last pass, because its step has ended: the table would keep the scaler's tensors alive."""
        self._states = None

    def attempts(self, optimizer: Optimizer | None) -> Attempt:
        """Return whether the scaler tried to step since the last pass, by traces that need no look at a device."""
        scaler = self.live()
        if scaler is None or self._states is None:
            return Attempt.NONE
        states = scaler._per_optimizer_states
        is_new = states is not self._states
        stepped_before = _stage_in(self._states, optimizer) is OptState.STEPPED and self._stage is not OptState.STEPPED
        if stepped_before or (is_new and _stage_in(states, optimizer) is OptState.STEPPED):
            return Attempt.OWN
        return Attempt.ANY if is_new else Attempt.NONE


def _stage_in(states: Any, optimizer: Optimizer | None) -> OptState | None:
    stage: OptState | None = None if states is None else states.get(id(optimizer), {}).get("stage")
    return stage


def scales_until_now(scaler: GradScaler, attempts: int) -> list[float]:
    """Return the loss scale in each of a scaler's first steps, which it all skipped; none if it skipped nothing."""
    first, factor = scaler._init_scale, scaler.get_backoff_factor()
    now = scaler._scale
    if isinstance(now, Tensor) and now.is_cpu:
        if float(now) == first:
            return []
        if not math.isclose(float(now), first * factor**attempts, rel_tol=1e-6):
            return [math.nan] * attempts
    return [first * factor**number for number in range(attempts)]

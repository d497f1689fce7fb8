"""The loss scale of the running step, and whether a scaler skipped the step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from hookcore.recorder.parameters import applied_scale
from hookcore.recorder.scalars import scalar_of
from hookcore.records import GRADIENT_KINDS

_BACKWARD_KINDS: Final = GRADIENT_KINDS - {"param_grad"}


class LossScale:
    """The loss scale. If it is on a device, the recorder's thread waits for it."""

    def __init__(self) -> None:
        self.value: Any = None
        self._skipped: Any = None  # a device flag: whether a fused optimizer skipped its step
        self._in_parameters = False  # whether the parameters' gradients are still multiplied by it when they are read
        self._of_passes: dict[int, Any] = {}  # by id(scaler), when the first pass of the step had ended

    def read(self, scaler: GradScaler | None, optimizer: Optimizer) -> None:
        """Read the scale as the optimizer is about to step, and the flag of a fused one."""
        scale = scaler._scale if scaler is not None else None
        self.value = _read(scale)
        attributes = optimizer.__dict__  # a scaler sets these two while it steps a fused optimizer
        self._in_parameters = "grad_scale" in attributes and applied_scale(optimizer) is not None
        if "found_inf" in attributes and isinstance(found := attributes["found_inf"], torch.Tensor):
            flag = _read(found)
            self._skipped = None if flag == 0.0 else flag

    def note_pass(self, scalers: Iterable[GradScaler]) -> None:
        """Record the scales of a pass: a skipped step is noticed only after the scale has been changed for it."""
        if not self._of_passes:
            self._of_passes = {id(each): _read(each._scale) for each in scalers if each._scale is not None}

    def skipped_by(self, scaler: GradScaler | None) -> bool:
        """Return whether this scaler, or a readable flag of a fused optimizer, skipped the step."""
        if scaler is not None and self.value is None:
            self.value = self._of_passes.get(id(scaler))
        if scaler is None and self._skipped != 1.0:
            return False
        self._skipped = None
        return True

    @property
    def flag(self) -> Any:
        """Return a fused optimizer's flag that wasn't read yet, or None."""
        return self._skipped

    def forget(self) -> None:
        """Forget the scale, because its step was shipped."""
        self.value = None

    def begin_step(self) -> None:
        """Start without a scale."""
        self.value = self._skipped = None
        self._of_passes = {}

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of gradients that are multiplied by the scale."""
        return GRADIENT_KINDS if self._in_parameters else _BACKWARD_KINDS


def _read(number: Any) -> Any:
    """Return a number of a scaler; None if it has none, or none yet, because a CUDA graph is being captured."""
    is_later = isinstance(number, torch.Tensor) and number.is_cuda and torch.cuda.is_current_stream_capturing()
    return None if number is None or is_later else scalar_of(number)

"""The user's own numbers, read immediately, or later if they are on a device."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from hookcore.errors import ArgumentError
from hookcore.hooks.internals import dispatch_modes, function_modes, is_wrapped
from hookcore.observe.captures import apart_from_captures
from hookcore.observe.copies import start_copy
from hookcore.observe.plain import unseen

_FLOATS: Final = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))


class _Pending:
    """A device scalar that is read by the recorder's thread, so that training never waits for the device."""

    def __init__(self, value: Tensor) -> None:
        first = value.detach().reshape(-1)[:1]
        # Read on the device, it would wait for all that is queued there.
        self._done: Any = None
        self._value, self._done = start_copy(first, first.dtype) if value.is_cuda else (first.clone(), None)

    def resolve(self) -> float:
        """Wait for the value."""
        if self._done is not None:
            self._done.synchronize()
        return float(self._value)


def is_readable(value: Any) -> bool:
    """Return whether a value is a plain single number in memory, and no mode of the user would see how it is read."""
    return (
        type(value) is Tensor
        and not function_modes()  # which see each of the following
        and not dispatch_modes()
        and value.is_cpu
        and value.dtype in _FLOATS
        and value.layout is torch.strided
        and not value.is_nested
        and value.numel() == 1
        and not is_wrapped(value)
    )


def scalar_of(value: Any) -> Any:
    """Return a number, or a device scalar that can be waited for. Raises an exception for anything else."""
    if not isinstance(value, Tensor):
        return float(value)
    if is_readable(value):
        return float(value.item())
    with unseen():
        if value.numel() != 1:
            shape = tuple(value.shape)
            raise ArgumentError(f"a tensor of shape {shape} was given: give a single number, such as its mean")
        return read_unseen(value)


def read_unseen(value: Tensor) -> Any:
    """Return a tensor's only number, or a device scalar that can be waited for. Within `unseen()` only."""
    if value.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ArgumentError("inside the capture of a CUDA graph it has no value yet: log it after a replay")
    return float(value.item()) if value.is_cpu else _Pending(value)


def number_of(value: Any) -> float:
    """Return the number, after waiting for it, also while the training captures a CUDA graph."""
    if not hasattr(value, "resolve"):
        return float(value)
    with apart_from_captures():
        return float(value.resolve())

"""The user's own numbers, read immediately, or later if they are on a device."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Final

import torch
from torch import Tensor

from hookcore.errors import ArgumentError
from hookcore.hooks.internals import dispatch_modes, function_modes, is_wrapped
from hookcore.observe.captures import apart_from_captures
from hookcore.observe.copies import start_copy
from hookcore.observe.plain import unseen

_TYPES: Final[dict[torch.dtype, Any]] = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
    torch.bfloat16: ctypes.c_uint16,
    torch.float16: ctypes.c_uint16,
}


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


def read_memory(value: Any) -> float | None:
    """Return the number of a plain tensor in memory; None if it isn't one, or a mode of the user might see it read.

    It is read by address, because `item()` would be an operator in the user's profile.
    """
    if type(value) is not Tensor or function_modes() or dispatch_modes():  # which see each of the following
        return None
    if not value.is_cpu or value.layout is not torch.strided or value.is_nested or value.numel() != 1:
        return None
    return None if is_wrapped(value) else _number_at(value)


def _number_at(value: Tensor) -> float | None:
    """Return the number in the memory of a strided tensor; None if it has none of its own, or is of another type."""
    kind = _TYPES.get(value.dtype)
    if kind is None or value.is_neg() or not (address := value.data_ptr()):
        return None
    number = kind.from_address(address).value
    if kind is not ctypes.c_uint16:
        return float(number)
    half = value.dtype is torch.float16
    found = struct.unpack("e", struct.pack("H", number)) if half else struct.unpack("f", struct.pack("I", number << 16))
    return float(found[0])


def scalar_of(value: Any) -> Any:
    """Return a number, or a device scalar that can be waited for. Raises an exception for anything else."""
    if not isinstance(value, Tensor):
        return float(value)
    if (number := read_memory(value)) is not None:
        return number
    with unseen():
        if value.numel() != 1:
            shape = tuple(value.shape)
            raise ArgumentError(f"a tensor of shape {shape} was given: give a single number, such as its mean")
        return read_unseen(value)


def read_unseen(value: Tensor) -> Any:
    """Return a tensor's only number, or a device scalar that can be waited for. Within `unseen()` only."""
    if value.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ArgumentError("inside the capture of a CUDA graph it has no value yet: log it after a replay")
    if not value.is_cpu:
        return _Pending(value)
    number = read_memory(value)
    return float(value.item()) if number is None else number


def number_of(value: Any) -> float:
    """Return the number, after waiting for it, also while the training captures a CUDA graph."""
    if not hasattr(value, "resolve"):
        return float(value)
    with apart_from_captures():
        return float(value.resolve())

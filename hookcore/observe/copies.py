"""Copies and hashes of tensors: bounded, plain, and made without waiting for a device."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookcore.hooks.internals import copy_together, is_wrapped
from hookcore.observe.arena import FREED
from hookcore.observe.plain import (
    _COMPRESSED,
    _has_memory,
    _make_strided,
    kept_elsewhere,
    make_plain,
    unseen,
    why_empty,
)
from hookcore.observe.reference import wide_type
from hookcore.records.moments import HASHED

# Waiting for a device while the training may capture a CUDA graph.
#
# A capture forbids all threads to wait for anything, even if it has nothing to do with the graph: the wait fails, and
# the training's capture fails with it. A thread can declare that it has no part in captures, which is all that is done
# here.

_THREAD_LOCAL: Final = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: only this thread's own captures forbid anything


def wait_for(event: Any) -> None:
    """Wait for a CUDA event, in this thread only; None needs no waiting."""
    if event is not None:
        with apart_from_captures():
            event.synchronize()


@contextmanager
def apart_from_captures() -> Iterator[None]:
    """Let this thread call CUDA while another thread captures a graph."""
    exchange = _exchange()
    if exchange is None:
        yield
        return
    mode = ctypes.c_int(_THREAD_LOCAL)
    exchanged = exchange(ctypes.byref(mode)) == 0  # now it holds the mode from before
    try:
        yield
    finally:
        if exchanged:
            exchange(ctypes.byref(mode))


@functools.cache
def _exchange() -> Any:
    """Return the driver's function; None if there is no CUDA driver, or one older than 10.1."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):
        return None


MAX_BYTES: Final = 60 * 2**20  # of one copy, which must fit into one message; larger tensors are cut
_NUMPY_TYPES: Final = frozenset(
    (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint16, torch.uint32, torch.uint64),
        *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
)


@dataclass(slots=True)
class Copy:
    """A copy, which may still be on its way from another device."""

    dtype: str  # torch's name, without "torch."
    shape: tuple[int, ...]  # of the whole tensor
    truncated: bool
    nbytes: int
    _values: Tensor
    _done: Any = None  # the event after a transfer

    def finish(self) -> NDArray[np.generic]:
        """Return the values: all of them, the first rows, or the first ones of a row, flat. Waits, in this thread."""
        wait_for(self._done)
        values: NDArray[np.generic] = self._values.numpy()
        return values


def take_copy(tensor: Tensor, whole: tuple[int, ...] | None = None) -> Copy | str:
    """Copy any kind of tensor, or say why it has no values to copy. `whole` is the shape that it was cut from."""
    with unseen():
        if type(tensor).__name__ == "DTensor" and not is_wrapped(tensor):
            tensor = tensor._local_tensor  # type: ignore[attr-defined]  # this rank's shard
        if reason := why_empty(tensor):
            return reason if reason == FREED else f"it is {reason}"
        tensor = tensor.detach()
        dtype = str(tensor.dtype).removeprefix("torch.")
        travels = _travelling_type(tensor)
        if travels is None:
            return f"values of type {dtype} can't be sent"
        if tensor.is_nested:
            tensor = _make_strided(tensor)
        shape = tuple(tensor.shape)
        first = _make_dense(first_part(tensor, travels.itemsize))
        if type(first) is not Tensor and not _has_memory(first):
            return kept_elsewhere(first)
        whole = shape if whole is None else whole
        return _copy(first, dtype, whole, travels)


def first_part(tensor: Tensor, itemsize: int = 0) -> Tensor:
    """Return a view of what a copy may hold: all, the first rows or, if one is too large, the first elements."""
    limit = MAX_BYTES // (itemsize or tensor.dtype.itemsize)
    if tensor.numel() <= limit:
        return tensor
    if tensor.layout is not torch.strided:
        return _first_sparse_rows(tensor, limit)
    row = tensor.numel() // tensor.shape[0]
    if row <= limit:
        return tensor[: limit // row]
    while row > limit:
        tensor = tensor[0]
        row = tensor.numel() // tensor.shape[0]
    return tensor[: limit // row].reshape(-1)


def _first_sparse_rows(tensor: Tensor, limit: int) -> Tensor:
    if tensor.layout in _COMPRESSED:
        tensor = tensor.to_sparse()
    rows = limit // (tensor.numel() // tensor.shape[0])
    if tensor.layout is torch.sparse_coo and rows:
        return tensor.narrow_copy(0, 0, rows)
    raise ValueError(f"a row of this {tensor.layout} tensor alone is above the limit of {MAX_BYTES} bytes")


def _travelling_type(tensor: Tensor) -> torch.dtype | None:
    if tensor.dtype in _NUMPY_TYPES:
        return tensor.dtype
    if tensor.is_complex():
        return torch.complex64
    return torch.float32 if tensor.is_floating_point() or tensor.is_quantized else None


def _make_dense(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    return tensor.resolve_conj().resolve_neg()


def _copy(first: Tensor, dtype: str, shape: tuple[int, ...], travels: torch.dtype) -> Copy:
    nbytes, truncated = first.numel() * travels.itemsize, first.shape != shape
    if first.device.type != "cuda":
        values = torch.empty(first.shape, dtype=travels, device="cpu").copy_(first)
        return Copy(dtype, shape, truncated, nbytes, values)
    if torch.cuda.is_current_stream_capturing():
        raise ValueError("inside the capture of a CUDA graph nothing can be copied")
    values, done = start_copy(first, travels)
    return Copy(dtype, shape, truncated, nbytes, values, done)


def start_copy(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Any]:
    """Start to copy a CUDA tensor to the host. Return its values there, and the event after which they are complete."""
    # On the stream that made the tensor: later work there waits for the copy, and no thread waits.
    with torch.cuda.device(tensor.device):
        values = torch.empty(tensor.shape, dtype=dtype, device="cpu", pin_memory=True)
        values.copy_(tensor.to(dtype), non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
    return values, done


# Hashes, which recognize the same values after a restart.

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FACTOR: Final = 0x9E3779B1


def hash_of(tensor: Tensor) -> Tensor | str:
    """Return the hash and the norm of a tensor's first values, or the reason why not. Within `unseen()` only.

    They are two int64s on its device; the norm is the bits of a float64. The order of the values in memory doesn't
    matter, and neither does the device.
    """
    plain = make_plain(tensor.detach())
    if isinstance(plain, str):
        return plain
    first = _first_values(plain)
    values = torch.view_as_real(first).reshape(-1) if first.is_complex() else first
    bits = values.view(_BITS[values.dtype.itemsize]).to(torch.int64)
    places = torch.arange(1, len(bits) + 1, device=bits.device)
    hashed = bits.sum() * _FACTOR + (bits * places).sum()  # whole numbers: the same in any order
    norm = values.to(torch.float64).square().sum().sqrt()
    return torch.stack((hashed, norm.view(torch.int64)))


def _first_values(tensor: Tensor) -> Tensor:
    while tensor.dim() and tensor.numel() > HASHED:
        row = tensor.numel() // tensor.shape[0]
        tensor = tensor[: HASHED // row] if row <= HASHED else tensor[0]
    return tensor.reshape(-1)


def read_hashes(hashes: Sequence[Tensor]) -> Callable[[], list[list[int]]]:
    """Start to read hashes, all of one device. The function waits for them; call it on another thread."""
    together = torch.stack(list(hashes))
    if not together.is_cuda:
        return together.tolist
    values, done = start_copy(together, together.dtype)

    def wait() -> list[list[int]]:
        wait_for(done)
        found: list[list[int]] = values.tolist()
        return found

    return wait


# Copies that stay on the device of their tensors.


class Standing:
    """Copies of plain tensors where they are, renewed in the same memory. Nothing waits for them."""

    __slots__ = ("_alike", "nbytes", "tensors")

    def __init__(self, sources: Sequence[Tensor]) -> None:
        self.tensors = [torch.empty_like(source.detach()) for source in sources]
        self.nbytes = sum(source.numel() * source.element_size() for source in sources)
        alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for place, each in enumerate(sources):
            alike.setdefault((each.device, each.dtype), []).append(place)
        self._alike = list(alike.values())

    def renew(self, sources: Sequence[Tensor]) -> None:
        """Copy the tensors again, on the stream that runs now. Within `unseen()` only."""
        for places in self._alike:  # a few kernels for all of one device and type
            copy_together([self.tensors[place] for place in places], [sources[place] for place in places])


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device, which excludes what torch has cached; None if it is the host's."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None


def is_capturing() -> bool:
    """Return whether what this thread does on a device now becomes a part of a CUDA graph: then it may ask nothing."""
    on_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return on_device and torch.cuda.is_current_stream_capturing()


_WIDENED: Final = 2**22  # values that get a wider type at once
_SCATTER: Final = 2654435761  # a prime near the golden section of 2**32: its multiples hit rows and columns evenly


def sample(tensor: Tensor, most: int) -> Tensor | None:
    """Return a flat copy of a tensor in float32 or wider, or of `most` of its values, always those at the same places.

    A sparse tensor has none.
    """
    tensor = getattr(tensor, "_local_tensor", tensor)  # this rank's shard
    if tensor.layout is not torch.strided:
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    count, dtype = tensor.numel(), torch.promote_types(tensor.dtype, torch.float32)
    if count <= most:
        return tensor.detach().reshape(-1).to(dtype, copy=True)
    places = torch.arange(most, device=tensor.device) * _SCATTER % count
    return tensor.detach().take(places).to(dtype)


def unit(vector: Tensor) -> Tensor:
    """Return a vector of length 1. It is scaled first, because squares of tiny values would be zero."""
    scaled = vector / vector.abs().amax()
    unit: Tensor = scaled / torch.linalg.vector_norm(scaled)
    return unit


def square_of(tensor: Tensor) -> Tensor:
    """Return the sum of the squares of all values, in parts: for a moment, they have a wider type."""
    tensor = getattr(tensor, "_local_tensor", tensor).detach()  # this rank's shard
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    rows = tensor.view(-1) if tensor.is_contiguous() else tensor
    parts = rows.split(max(1, _WIDENED * len(rows) // max(1, rows.numel())))
    return torch.stack([torch.linalg.vector_norm(part, dtype=wide_type(part.device)) for part in parts]).square().sum()

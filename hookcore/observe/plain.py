"""Conversion of any tensor to a plain one, dense and strided with a type that the kernels take, or the reason why not.

Everything here runs outside the user's modes: a selective checkpoint or a profiler that saw one of our operators would
behave differently. For the same reason, the states of the random number generators are kept here: hookcore's and the
user's functions draw nothing from them.
"""

from __future__ import annotations

import importlib
import os
import random
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, Final

import torch

from hookcore.hooks.internals import (
    DisableTorchFunction,
    any_autocast,
    disable_current_modes,
    dispatch_modes,
    function_modes,
    generator_address,
    is_wrapped,
)
from hookcore.observe import reference
from hookcore.observe.arena import CODES, FREED, is_freed

_COMPRESSED: Final = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_AUTOCAST_DEVICES: Final = ("cpu", "cuda", "mps", "xpu")
_UNSIGNED: Final = (torch.uint16, torch.uint32, torch.uint64)
INSIDE_FUNC: Final = "inside torch.func (vmap, grad): the values are not there yet"
_WITHOUT_DATA: Final = "a tensor without data (meta or fake)"


@contextmanager
def unseen() -> Iterator[None]:
    """Hide the operators in this block from autograd, and from modes and subclasses of the user.

    Entering what hides them from modes takes longer than reading a loss, and there are usually none.
    """
    with DisableTorchFunction(), torch.no_grad():
        if dispatch_modes() or function_modes() or any_autocast():
            with disable_current_modes(), _no_autocast():
                yield
        else:
            yield


@contextmanager
def _no_autocast() -> Iterator[None]:
    with ExitStack() as stack:
        for device in _AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


_OWNERS: Final = (torch.Tensor, torch.nn.Parameter)  # of memory; other classes may keep their values elsewhere


def why_empty(tensor: torch.Tensor) -> str:
    """Return why a tensor has no values, or ""."""
    if is_wrapped(tensor):
        return INSIDE_FUNC
    if type(tensor).__name__ == "FakeTensor" or tensor.is_meta:
        return _WITHOUT_DATA
    is_owner = type(tensor) in _OWNERS and tensor.layout is torch.strided and not tensor.is_nested
    return FREED if is_owner and is_freed(tensor) else ""


def place_of(tensor: torch.Tensor) -> int:
    """Return where a tensor's memory begins; 0 if it has none of its own."""
    try:
        return 0 if why_empty(tensor) else tensor.untyped_storage().data_ptr()
    except Exception:  # a tensor of the user's own class can do anything
        return 0


def make_plain(tensor: torch.Tensor) -> torch.Tensor | str:
    """Return the tensor's values as a strided tensor of a type that the kernels take, or the reason why not."""
    if type(tensor).__name__ == "DTensor":
        if any(placement.is_partial() for placement in tensor.placements):  # type: ignore[attr-defined]
            return "a partial sum of a tensor-parallel layer: only all ranks' values together are the tensor"
        tensor = tensor._local_tensor  # type: ignore[attr-defined]  # this rank's shard
    if reason := why_empty(tensor):
        return reason
    tensor = _make_strided(tensor)
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = tensor.to(torch.complex64) if tensor.dtype == torch.complex32 else tensor
        tensor = tensor if tensor.is_cpu else reference.magnitudes(tensor)  # the CPU kernel reads complex numbers
    if tensor.dtype not in CODES:
        if not tensor.is_floating_point() and tensor.dtype not in _UNSIGNED:
            return f"values of type {tensor.dtype} have no magnitude"
        tensor = tensor.to(torch.float64 if tensor.dtype.itemsize > 2 else torch.float32)
    if type(tensor) is not torch.Tensor and not _has_memory(tensor):
        return kept_elsewhere(tensor)
    return tensor


def _make_strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return the stored values of a nested or sparse tensor. Any other layout is made dense."""
    if tensor.is_nested:
        if tensor.layout is torch.jagged:
            # With lengths, there are holes between the rows.
            return (tensor if tensor.lengths() is None else tensor.contiguous()).values()  # type: ignore[attr-defined]
        return torch.cat([part.reshape(-1) for part in tensor.unbind()])
    if tensor.layout is torch.sparse_coo:
        return tensor.coalesce().values()  # duplicates add up first, as the optimizer sees them
    if tensor.layout in _COMPRESSED:
        return tensor.values()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def kept_elsewhere(tensor: torch.Tensor) -> str:
    """Return why a tensor without memory of its own can't be read."""
    name = type(tensor).__name__
    if name == "AsyncCollectiveTensor":
        return "in transit between ranks: torch waits for the values where they are first used, but hookcore doesn't"
    return f"its class, {name}, keeps the values elsewhere"


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:
        return False


# The states of the random number generators.


# To ask torch for that of the CPU takes several microseconds, too long for every step: it makes a tensor of 5 KB. So
# the extension copies the generator's memory, if its layout is the known one, and the state is made of that copy when
# somebody needs it. First comes the engine: its seed, counts of its words, and these; then two numbers that may wait.

_HEAD: Final = struct.Struct("<Qi?3xI")
_WORDS: Final = 624
_WAITING: Final = struct.Struct("<4xf?3xd?7x")
RAW_BYTES: Final = _HEAD.size + 4 * _WORDS + _WAITING.size
_NEAR: Final = 4096  # bytes among which the words are looked for


def state_from(raw: bytes) -> torch.Tensor:
    """Return the state of the CPU's generator whose memory was copied, as torch does."""
    seed, left, seeded, following = _HEAD.unpack_from(raw)
    single, has_single, double, has_double = _WAITING.unpack_from(raw, _HEAD.size + 4 * _WORDS)
    words = struct.unpack_from(f"<{_WORDS}I", raw, _HEAD.size)
    packed = struct.pack("<QiiQ", seed, left, seeded, following) + struct.pack(f"<{_WORDS}Q", *words)
    packed += struct.pack("<8xd8xi4x", double if has_double else 0.0, has_double)
    packed += struct.pack("<f?3x", single if has_single else 0.0, has_single)
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


@cache
def raw_generator() -> int:
    """Return the address of the memory of torch's generator on the CPU; 0 if its layout isn't the known one."""
    trial = torch.Generator()
    draws: tuple[dict[str, Any], ...] = ({"size": (5,)}, {"size": (), "dtype": torch.float64}, {"size": (1000,)})
    try:
        with unseen():
            trial.manual_seed(0x123456789ABC)
            words = trial.get_state().numpy()[24:].view("<u8")[:_WORDS].astype("<u4").tobytes()
            offset = _read_memory(generator_address(trial), _NEAR).find(words) - _HEAD.size
            for draw in (None, *draws):  # the second one leaves a number that waits
                if draw is not None:
                    torch.randn(generator=trial, device="cpu", **draw)
                if not _is_at(trial, offset):
                    return 0
            known = _is_at(torch.default_generator, offset)
    except (OSError, RuntimeError, ValueError, struct.error):  # another layout, or none that can be read
        return 0
    return generator_address(torch.default_generator) + offset if known else 0


def _is_at(generator: torch.Generator, offset: int) -> bool:
    raw = _read_memory(generator_address(generator) + offset, RAW_BYTES)
    return offset > 0 and torch.equal(state_from(raw), generator.get_state())


def _read_memory(address: int, size: int) -> bytes:
    """Return this process's memory. An address that isn't one raises OSError."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size, address)


def device_generators() -> dict[str, Any]:
    """Return the states of torch's generators. Reading them waits for no device."""
    states: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def generators() -> dict[str, Any]:
    """Return the states of all generators."""
    states = {**device_generators(), "python": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def set_generators(states: dict[str, Any]) -> None:
    """Set the states of the generators."""
    torch.set_rng_state(states["cpu"])
    if "python" in states:
        random.setstate(states["python"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        importlib.import_module("numpy").random.set_state(states["numpy"])


@contextmanager
def generators_kept() -> Iterator[None]:
    """Set the generators back to where they were, after a block that may draw from them."""
    before = generators()
    try:
        yield
    finally:
        set_generators(before)

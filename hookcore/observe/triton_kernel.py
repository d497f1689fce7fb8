"""Launches of the CUDA kernels, without waiting for the device."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from hookcore.observe import triton_source
from hookcore.observe.plain import unseen

BLOCK: Final = 2048
SKETCH_BLOCK: Final = 256
WARPS: Final = 8
PROGRAMS_PER_PROCESSOR: Final = 2
MAX_REGISTERS: Final = 128  # per thread, so that enough programs fit on a processor

_NARROW: Final = frozenset(
    {torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16}
)  # fit float32 without rounding


_MAX_INT32: Final = 2**31 - 1
# What Triton compiled for a kind of arguments: finding it again by itself takes Triton three times as long as a launch.
# None if it can't be called directly, as in the interpreter.
_COMPILED: Final[dict[tuple[Any, ...], Any]] = {}


def programs_on(device: torch.device) -> int:
    """Return the maximum number of programs per launch, which is the number of rows per slot."""
    if device.type != "cuda":
        return 4  # the interpreter
    return PROGRAMS_PER_PROCESSOR * int(torch.cuda.get_device_properties(device).multi_processor_count)


def add(tensor: Tensor, rows: Tensor, histogram: Tensor, stride: int, offset: int, block: int = BLOCK) -> None:
    """Launch the kernel: add a tensor whose values fill one stretch of memory to a slot.

    rows: the slot's float64 [programs, CELLS]; histogram: its int32 [BINS]; stride and offset: how the sketch samples
    (`hookcore.observe.reference.stride_of`; 0: no sketch).
    """
    values = tensor
    if tensor.dtype is torch.bool:
        with unseen():
            values = tensor.view(torch.uint8)
    number, sketch_block = values.numel(), min(block, SKETCH_BLOCK)
    # The sketch takes longer than the moments: of short tensors, each program sketches one block.
    blocks = max(-(-number // block), -(-(number // stride) // sketch_block) if stride else 0)
    constants = {
        "WIDE": values.dtype not in _NARROW,
        "FAR": values.dtype is torch.float64,
        "BLOCK": block,
        "SKETCH_BLOCK": sketch_block,
    }
    kind = (values.dtype, values.device, values.data_ptr() % 16, number > _MAX_INT32, block)
    programs = max(1, min(rows.shape[0], blocks))
    _launch(
        triton_source.observe,
        kind,
        programs,
        (values, number, rows, histogram, stride, offset),
        constants,
        block // 128,
    )


def merge(rows: Tensor, merged: Tensor) -> None:
    """Launch the kernel that moves the rows of slots, [slots, programs, CELLS], to one row each, [slots, CELLS]."""
    slots, programs, _ = rows.shape
    constants = {"PROGRAMS": programs, "LANES": 1 << (programs - 1).bit_length()}
    _launch(triton_source.merge, (rows.device, programs), slots, (rows, merged), constants, 4)


def _launch(
    kernel: Any, kind: tuple[Any, ...], programs: int, given: tuple[Any, ...], constants: dict[str, Any], warps: int
) -> None:
    key = (kernel, *kind)
    compiled = _COMPILED.get(key)
    if compiled is not None:
        try:
            compiled[(programs, 1, 1)](*given, *constants.values())
            return
        except TypeError:  # before anything was launched: other releases of Triton take other arguments
            _COMPILED[key] = None
    # `enable_fp_fusion` is explicit, because Triton otherwise warns the user.
    options: dict[str, Any] = {
        "num_warps": max(1, min(WARPS, warps)),
        "maxnreg": MAX_REGISTERS,
        "enable_fp_fusion": True,
    }
    _COMPILED.setdefault(key, kernel[(programs,)](*given, **constants, **options))

"""The CUDA kernel: one pass over a tensor adds its numbers to a slot, in one launch and without waiting.

In each slot, every program has its own row and adds to it over the calls of a step. Launches on one stream run one
after the other, so no two of them meet in a row. A lane measures from the first finite value that it sees. The possible
cancellation is bounded by the lane's number of values, because the sum of squares then holds that distance too.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any, Final

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from hookcore.observe import layout
from hookcore.observe.plain import unseen
from hookcore.records import sketch

BLOCK: Final = 2048
SKETCH_BLOCK: Final = 2048
WARPS: Final = 16
PROGRAMS_PER_PROCESSOR: Final = 1  # one fills the registers of a multiprocessor

_CELLS = tl.constexpr(layout.CELLS)
_FINITE, _MEAN, _DEVIATION = tl.constexpr(layout.FINITE), tl.constexpr(layout.MEAN), tl.constexpr(layout.DEVIATION)
_MIN, _MAX, _NAN_COUNT = tl.constexpr(layout.MIN), tl.constexpr(layout.MAX), tl.constexpr(layout.NAN_COUNT)
_POS_INF_COUNT, _NEG_INF_COUNT = tl.constexpr(layout.POS_INF_COUNT), tl.constexpr(layout.NEG_INF_COUNT)
_ZERO_COUNT, _PARTS, _SKETCHED = (
    tl.constexpr(layout.ZERO_COUNT),
    tl.constexpr(layout.PARTS),
    tl.constexpr(layout.SKETCHED),
)
_SCALE, _FAR_EXPONENT = tl.constexpr(layout.SCALE), tl.constexpr(layout.FAR_EXPONENT)
_FAR_UNIT = tl.constexpr(2.0**-layout.FAR_EXPONENT)
_HUGE, _TINY = tl.constexpr(layout.HUGE), tl.constexpr(layout.TINY)
_BINS, _ZERO, _NAN = tl.constexpr(sketch.BINS), tl.constexpr(sketch.ZERO), tl.constexpr(sketch.NAN)
_POS_FIRST, _STEPS = tl.constexpr(sketch.POS_FIRST), tl.constexpr(sketch.MAGNITUDES)
_LOWEST32 = tl.constexpr((127 + sketch.MIN_EXPONENT) * sketch.STEPS_PER_OCTAVE)
_LOWEST64 = tl.constexpr((1023 + sketch.MIN_EXPONENT) * sketch.STEPS_PER_OCTAVE)
_HISTOGRAM = tl.constexpr(1 << (sketch.BINS - 1).bit_length())  # Triton needs a power of two of bins
_NOWHERE = tl.constexpr((1 << (sketch.BINS - 1).bit_length()) - 1)  # where lanes without a value go


@triton.jit
def _load(values, index, mask, WIDE: tl.constexpr):  # noqa: N803
    """Return values as float32, or as float64 if float32 would round them; NaN where the mask is off."""
    kind: tl.constexpr = tl.float64 if WIDE else tl.float32
    return tl.where(mask, tl.load(values + index, mask=mask, other=0).to(kind), float("nan"))


@triton.jit
def _bins(x, mask, WIDE: tl.constexpr):  # noqa: N803
    """Return the sketch bin of each value, from its bits."""
    if WIDE:
        words = x.to(tl.int64, bitcast=True)
        sign = words >> 63
        magnitude = words & 0x7FFFFFFFFFFFFFFF
        infinite = 0x7FF0000000000000
        step = (magnitude >> 49) - _LOWEST64
    else:
        words = x.to(tl.int32, bitcast=True)
        sign = words >> 31
        magnitude = words & 0x7FFFFFFF
        infinite = 0x7F800000
        step = (magnitude >> 20) - _LOWEST32
    step = tl.minimum(tl.maximum(step, -1), _STEPS)
    step = tl.where(magnitude == infinite, _STEPS + 1, step)
    spot = tl.where(sign < 0, 2 * _ZERO - _POS_FIRST - step, _POS_FIRST + step)
    spot = tl.where(magnitude == 0, _ZERO, spot)
    spot = tl.where(magnitude > infinite, _NAN, spot)
    return tl.where(mask, spot, _NOWHERE).to(tl.int32)


@triton.jit
def _factor(by):
    """Return 2 ** -by, for the three distances that two scales can have. The largest leaves nothing."""
    return tl.where(by == 0, 1.0, tl.where(by == _FAR_EXPONENT, _FAR_UNIT, 0.0))


@triton.jit
def _add_moments(row, number, mean, deviation, low, high, scale, FAR: tl.constexpr):  # noqa: N803
    """Merge finite values into a row, reading and writing scalars only. FAR: the unit may differ from 1."""
    old_mean, before = tl.load(row + _MEAN), tl.load(row + _DEVIATION)
    if FAR:
        some, had_some = (mean != 0) | (deviation != 0), (old_mean != 0) | (before != 0)
        old_scale = tl.load(row + _SCALE)
        larger = tl.where(some & had_some, tl.maximum(scale, old_scale), tl.where(some, scale, old_scale))
        unit = _factor(tl.where(some, larger - scale, 0.0))
        mean, deviation = mean * unit, deviation * unit * unit
        unit = _factor(tl.where(had_some, larger - old_scale, 0.0))
        old_mean, before = old_mean * unit, before * unit * unit
        tl.store(row + _SCALE, larger)
    old = tl.load(row + _FINITE)
    total = old + number
    some = tl.maximum(total, 1.0)
    apart = mean - old_mean
    # Zero times an infinite distance would be NaN, so each side counts only if it has values.
    share = number / some
    moved = tl.where(old > 0, old_mean + apart * share, mean)
    between = tl.where((old > 0) & (number > 0), apart * apart * old * share, 0.0)
    tl.store(row + _MEAN, tl.where(number > 0, moved, old_mean))
    tl.store(row + _DEVIATION, before + tl.where(number > 0, deviation, 0.0) + between)
    old_low, old_high = tl.load(row + _MIN), tl.load(row + _MAX)
    tl.store(row + _MIN, tl.where(number > 0, tl.where(old > 0, tl.minimum(old_low, low), low), old_low))
    tl.store(row + _MAX, tl.where(number > 0, tl.where(old > 0, tl.maximum(old_high, high), high), old_high))
    tl.store(row + _FINITE, total)


@triton.jit
def _raise(row, cell: tl.constexpr, by):
    tl.store(row + cell, tl.load(row + cell) + by)


@triton.jit
def _sketch(values, n, stride, offset, histogram, WIDE: tl.constexpr, SKETCH_BLOCK: tl.constexpr):  # noqa: N803
    """Count every stride-th value. A tensor that was just read is still in the second-level cache."""
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    first = offset.to(tl.int64) % stride
    taken = (n.to(tl.int64) - first + stride - 1) // stride
    lanes = tl.arange(0, SKETCH_BLOCK).to(tl.int64)
    counts = tl.zeros([_HISTOGRAM], tl.int32)
    for begin in range(program * SKETCH_BLOCK, taken, programs * SKETCH_BLOCK):
        place = begin + lanes
        mask = place < taken
        x = _load(values, first + place * stride, mask, WIDE)
        counts += tl.histogram(_bins(x, mask, WIDE), _HISTOGRAM)
    bins = tl.arange(0, _HISTOGRAM)
    tl.atomic_add(histogram + bins, counts, mask=(counts > 0) & (bins < _BINS), sem="relaxed")
    return taken


@triton.jit
def _scale_of(values, n, BLOCK: tl.constexpr):  # noqa: N803
    """Return the SCALE for the float64s of this program, which takes an extra pass."""
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK).to(tl.int64)
    largest = tl.zeros([BLOCK], tl.float64)
    for begin in range(program * BLOCK, n, programs * BLOCK):
        size = tl.abs(_load(values, begin + lanes, begin + lanes < n, True))
        largest = tl.where(size < float("inf"), tl.maximum(largest, size), largest)
    size = tl.max(largest, 0)
    far = tl.where(size > _HUGE, 1.0 * _FAR_EXPONENT, 0.0)
    return tl.where((size > 0) & (size < _TINY), -1.0 * _FAR_EXPONENT, far)


@triton.jit(do_not_specialize=["n", "stride", "offset"])
def _observe(
    values,
    n,
    rows,
    histogram,
    stride,
    offset,
    WIDE: tl.constexpr,  # noqa: N803
    FAR: tl.constexpr,  # noqa: N803
    FUSED: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    SKETCH_BLOCK: tl.constexpr,  # noqa: N803
):
    """Add n values to a slot. FUSED sketches every value on the way; otherwise every stride-th is loaded afterwards."""
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK).to(tl.int64)
    kind: tl.constexpr = tl.float64 if WIDE else tl.float32
    inf: tl.constexpr = float("inf")
    low, high = tl.full([BLOCK], inf, kind), tl.full([BLOCK], -inf, kind)
    shift, sum1, sum2 = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    number, zeros = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
    pos_infs, neg_infs = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
    counts = tl.zeros([_HISTOGRAM], tl.int32)
    scale = _scale_of(values, n, BLOCK) if FAR else 0.0
    seen = tl.zeros([], tl.int64)
    for begin in range(program * BLOCK, n, programs * BLOCK):
        mask = begin + lanes < n
        x = _load(values, begin + lanes, mask, WIDE)
        finite = tl.abs(x) < inf  # false for NaN, and therefore where the mask is off
        seen += tl.minimum(n.to(tl.int64) - begin, BLOCK)
        pos_infs += (x == inf).to(tl.int32)
        neg_infs += (x == -inf).to(tl.int32)
        zeros += (x == 0).to(tl.int32)
        low = tl.where(finite, tl.minimum(low, x), low)
        high = tl.where(finite, tl.maximum(high, x), high)
        exact = x.to(tl.float64)
        if FAR:
            exact *= tl.where(scale > 0, _FAR_UNIT, tl.where(scale < 0, 1.0 / _FAR_UNIT, 1.0))
        shift = tl.where(finite & (number == 0), exact, shift)
        number += finite.to(tl.int32)
        away = tl.where(finite, exact - shift, 0.0)
        sum1 += away
        sum2 += away * away
        if FUSED:
            counts += tl.histogram(_bins(x, mask, WIDE), _HISTOGRAM)
    # From lanes to the program.
    lane_number = number.to(tl.float64)
    inverse = 1.0 / tl.maximum(lane_number, 1.0)
    lane_mean = shift + sum1 * inverse
    lane_deviation = tl.maximum(sum2 - sum1 * sum1 * inverse, 0.0)
    total = tl.sum(lane_number, 0)
    mean = tl.sum(lane_mean * (lane_number / tl.maximum(total, 1.0)), 0)
    apart = lane_mean - mean
    deviation = tl.sum(tl.where(number > 0, lane_deviation + lane_number * apart * apart, 0.0), 0)
    row = rows + program * _CELLS
    _add_moments(row, total, mean, deviation, tl.min(low, 0).to(tl.float64), tl.max(high, 0).to(tl.float64), scale, FAR)
    pos_inf, neg_inf = tl.sum(pos_infs.to(tl.float64), 0), tl.sum(neg_infs.to(tl.float64), 0)
    _raise(row, _NAN_COUNT, seen.to(tl.float64) - total - pos_inf - neg_inf)
    _raise(row, _POS_INF_COUNT, pos_inf)
    _raise(row, _NEG_INF_COUNT, neg_inf)
    _raise(row, _ZERO_COUNT, tl.sum(zeros.to(tl.float64), 0))
    taken = n.to(tl.int64)
    if FUSED:
        bins = tl.arange(0, _HISTOGRAM)
        tl.atomic_add(histogram + bins, counts, mask=(counts > 0) & (bins < _BINS), sem="relaxed")
    else:
        taken = _sketch(values, n, stride, offset, histogram, WIDE, SKETCH_BLOCK)
    if program == 0:
        _raise(row, _PARTS, 1.0)
        _raise(row, _SKETCHED, taken.to(tl.float64))


_NARROW: Final = frozenset(
    {torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16}
)  # fit float32 without rounding


def programs_on(device: torch.device) -> int:
    """Return the maximum number of programs per launch, which is the number of rows per slot."""
    if device.type != "cuda":
        return 4  # the interpreter
    return PROGRAMS_PER_PROCESSOR * int(torch.cuda.get_device_properties(device).multi_processor_count)


def add(tensor: Tensor, rows: Tensor, histogram: Tensor, stride: int, offset: int, block: int = BLOCK) -> None:
    """Launch the kernel: add a tensor whose values fill one stretch of memory to a slot.

    rows: the slot's float64 [programs, CELLS]; histogram: its int32 [BINS]; stride and offset: how the sketch samples
    (`hookcore.observe.reference.stride_of`).
    """
    values = tensor
    if tensor.dtype is torch.bool:
        with unseen():
            values = tensor.view(torch.uint8)
    number = values.numel()
    programs = max(1, min(rows.shape[0], -(-number // block)))
    launch: Any = _observe[(programs,)]
    launch(
        values,
        number,
        rows,
        histogram,
        stride,
        offset,
        WIDE=values.dtype not in _NARROW,
        FAR=values.dtype is torch.float64,
        FUSED=stride == 1,
        BLOCK=block,
        SKETCH_BLOCK=min(block, SKETCH_BLOCK),
        num_warps=max(1, min(WARPS, block // 128)),
        enable_fp_fusion=True,  # explicit, because Triton otherwise warns the user
    )

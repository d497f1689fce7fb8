"""The CUDA kernels, and their launches, which don't wait for the device.

One pass over a tensor adds its numbers to a slot. At the end of a step, a slot's rows are merged.
In each slot, every program has its own row and adds to it over the calls of a step. Launches on one stream run one
after the other, so no two of them meet in a row. A program measures from one of its own finite values. The possible
cancellation is bounded by the number of its values, because the sum of squares then holds that distance too.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from hookcore.observe import layout
from hookcore.observe.arena import ALIGNMENT, DeviceSlot
from hookcore.observe.copies import apart_from_captures
from hookcore.observe.plain import unseen
from hookcore.records import sketch

_CELLS = tl.constexpr(layout.CELLS)
_FINITE, _MEAN, _DEVIATION = tl.constexpr(layout.FINITE), tl.constexpr(layout.MEAN), tl.constexpr(layout.DEVIATION)
_MIN, _MAX, _NAN_COUNT = tl.constexpr(layout.MIN), tl.constexpr(layout.MAX), tl.constexpr(layout.NAN_COUNT)
_POS_INF_COUNT, _NEG_INF_COUNT = tl.constexpr(layout.POS_INF_COUNT), tl.constexpr(layout.NEG_INF_COUNT)
_ZERO_COUNT, _PARTS = tl.constexpr(layout.ZERO_COUNT), tl.constexpr(layout.PARTS)
_SKETCHED = tl.constexpr(layout.SKETCHED)
_SCALE, _FAR_EXPONENT = tl.constexpr(layout.SCALE), tl.constexpr(layout.FAR_EXPONENT)
_FAR_UNIT, _STEP = tl.constexpr(2.0**-layout.FAR_EXPONENT), tl.constexpr(layout.STEP)
_CAPTURED, _GATE_STEP, _GATE_AT = tl.constexpr(layout.CAPTURED), tl.constexpr(layout.NOW), tl.constexpr(layout.GATE_AT)
_LIMIT, _OFFSET = tl.constexpr(layout.LIMIT), tl.constexpr(layout.OFFSET)
_HUGE, _TINY = tl.constexpr(layout.HUGE), tl.constexpr(layout.TINY)
_BINS, _ZERO, _NAN = tl.constexpr(sketch.BINS), tl.constexpr(sketch.ZERO), tl.constexpr(sketch.NAN)
_POS_FIRST, _STEPS = tl.constexpr(sketch.POS_FIRST), tl.constexpr(sketch.MAGNITUDES)
_LOWEST32 = tl.constexpr((127 + sketch.MIN_EXPONENT) * sketch.STEPS_PER_OCTAVE)
_LOWEST64 = tl.constexpr((1023 + sketch.MIN_EXPONENT) * sketch.STEPS_PER_OCTAVE)
_DIGITS = tl.constexpr(64)  # a bin's number has two digits to this base
_COLUMNS = tl.constexpr(7)  # of a tensor's line in the table of `observe_all`
_NOWHERE = tl.constexpr(64 * 64)  # where lanes without a value go: its first digit does not exist


@triton.jit
def _load(values, index, mask, WIDE: tl.constexpr):
    """Return values as float32, or as float64 if float32 would round them; NaN where the mask is off."""
    kind: tl.constexpr = tl.float64 if WIDE else tl.float32
    return tl.where(mask, tl.load(values + index, mask=mask, other=0).to(kind), float("nan"))


@triton.jit
def _bins(x, mask, WIDE: tl.constexpr):
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
def _add_moments(row, number, mean, deviation, low, high, scale, FAR: tl.constexpr):
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
def _sketch(values, n, stride, offset, histogram, program, programs, WIDE: tl.constexpr, SKETCH_BLOCK: tl.constexpr):
    """Count every stride-th value. A tensor that was just read is still in the second-level cache.

    A bin's number is cut into two digits. A product of matrices, with a one where a value has that digit, counts all
    pairs of digits at once. Counted one by one, values of one bin would wait for each other, and most are close.
    """
    first = offset.to(tl.int64) % stride
    taken = (n.to(tl.int64) - first + stride - 1) // stride
    lanes = tl.arange(0, SKETCH_BLOCK).to(tl.int64)
    digits = tl.arange(0, _DIGITS)
    counts = tl.zeros([_DIGITS, _DIGITS], tl.int32)
    for begin in range(program * SKETCH_BLOCK, taken, programs * SKETCH_BLOCK):
        place = begin + lanes
        mask = place < taken
        bins = _bins(_load(values, first + place * stride, mask, WIDE), mask, WIDE)
        high = (digits[:, None] == (bins // _DIGITS)[None, :]).to(tl.float16)
        low = ((bins % _DIGITS)[:, None] == digits[None, :]).to(tl.float16)
        counts += tl.dot(high, low).to(tl.int32)
    number = digits[:, None] * _DIGITS + digits[None, :]
    tl.atomic_add(histogram + number, counts, mask=(counts > 0) & (number < _BINS), sem="relaxed")
    return taken


@triton.jit
def _scale_of(values, n, program, programs, BLOCK: tl.constexpr):
    """Return the SCALE for the float64s of this program, which takes an extra pass."""
    lanes = tl.arange(0, BLOCK).to(tl.int64)
    largest = tl.zeros([BLOCK], tl.float64)
    for begin in range(program * BLOCK, n, programs * BLOCK):
        size = tl.abs(_load(values, begin + lanes, begin + lanes < n, True))
        largest = tl.where(size < float("inf"), tl.maximum(largest, size), largest)
    size = tl.max(largest, 0)
    far = tl.where(size > _HUGE, 1.0 * _FAR_EXPONENT, 0.0)
    return tl.where((size > 0) & (size < _TINY), -1.0 * _FAR_EXPONENT, far)


@triton.jit
def _some_value(values, n, program, programs, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Return a finite value of this program's; 0 if it has none."""
    kind: tl.constexpr = tl.float64 if WIDE else tl.float32
    lanes = tl.arange(0, BLOCK).to(tl.int64)
    inf: tl.constexpr = float("inf")
    begin = program * BLOCK
    found = tl.full([], -inf, kind)
    while (found == -inf) & (begin < n):
        x = _load(values, begin + lanes, begin + lanes < n, WIDE)
        found = tl.max(tl.where(tl.abs(x) < inf, x, -inf), 0)
        begin += programs * BLOCK
    return tl.where(found == -inf, 0.0, found)


@triton.jit
def _exact(x, unit, FAR: tl.constexpr):
    return x.to(tl.float64) * unit if FAR else x.to(tl.float64)


@triton.jit
def _moments(
    values,
    n,
    some,
    unit,
    program,
    programs,
    WIDE: tl.constexpr,
    FAR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the sums of this program's values if all of them are finite; otherwise a sum or an extreme isn't."""
    kind: tl.constexpr = tl.float64 if WIDE else tl.float32
    shift = _exact(some, unit, FAR)
    lanes = tl.arange(0, BLOCK).to(tl.int64)
    low, high = tl.full([BLOCK], float("inf"), kind), tl.full([BLOCK], -float("inf"), kind)
    sums, squares = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    zeros = tl.zeros([BLOCK], tl.int32)
    whole = n // BLOCK
    for block in range(program, whole, programs):
        x = tl.load(values + block * BLOCK + lanes).to(kind)
        zeros += (x == 0).to(tl.int32)
        low, high = tl.minimum(low, x), tl.maximum(high, x)
        away = _exact(x, unit, FAR) - shift
        sums += away
        squares += away * away
    place = whole * BLOCK + lanes
    if (whole % programs == program) & (whole * BLOCK < n):
        mask = place < n
        x = tl.load(values + place, mask=mask, other=0).to(kind)
        zeros += (mask & (x == 0)).to(tl.int32)
        low, high = tl.where(mask, tl.minimum(low, x), low), tl.where(mask, tl.maximum(high, x), high)
        away = tl.where(mask, _exact(x, unit, FAR) - shift, 0.0)
        sums += away
        squares += away * away
    return tl.sum(zeros, 0), tl.sum(sums, 0), tl.sum(squares, 0), tl.min(low, 0), tl.max(high, 0)


@triton.jit
def _careful_moments(
    values,
    n,
    some,
    unit,
    program,
    programs,
    WIDE: tl.constexpr,
    FAR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the same of the finite values only, and how many of which kind there are."""
    kind: tl.constexpr = tl.float64 if WIDE else tl.float32
    inf: tl.constexpr = float("inf")
    shift = _exact(some, unit, FAR)
    lanes = tl.arange(0, BLOCK).to(tl.int64)
    low, high = tl.full([BLOCK], inf, kind), tl.full([BLOCK], -inf, kind)
    sums, squares = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    finites, zeros = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
    ups, downs = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
    for begin in range(program * BLOCK, n, programs * BLOCK):
        x = _load(values, begin + lanes, begin + lanes < n, WIDE)
        finite = tl.abs(x) < inf  # false for NaN, and therefore where the mask is off
        ups += (x == inf).to(tl.int32)
        downs += (x == -inf).to(tl.int32)
        zeros += (x == 0).to(tl.int32)
        finites += finite.to(tl.int32)
        low = tl.minimum(low, tl.where(finite, x, inf))
        high = tl.maximum(high, tl.where(finite, x, -inf))
        away = tl.where(finite, _exact(x, unit, FAR) - shift, 0.0)
        sums += away
        squares += away * away
    finite, zero, up, down = tl.sum(finites, 0), tl.sum(zeros, 0), tl.sum(ups, 0), tl.sum(downs, 0)
    return finite, zero, up, down, tl.sum(sums, 0), tl.sum(squares, 0), tl.min(low, 0), tl.max(high, 0)


@triton.jit
def _add_part(
    values,
    n,
    rows,
    histogram,
    stride,
    offset,
    program,
    programs,
    WIDE: tl.constexpr,
    FAR: tl.constexpr,
    BLOCK: tl.constexpr,
    SKETCH_BLOCK: tl.constexpr,
):
    """Add one program's part of n values to its row of a slot."""
    inf: tl.constexpr = float("inf")
    n = n.to(tl.int64)
    scale = _scale_of(values, n, program, programs, BLOCK) if FAR else 0.0
    unit = tl.where(scale > 0, _FAR_UNIT, tl.where(scale < 0, 1.0 / _FAR_UNIT, 1.0)) if FAR else 1.0
    some = _some_value(values, n, program, programs, WIDE, BLOCK)
    blocks = tl.cdiv(n, BLOCK)
    seen = (blocks - program + programs - 1) // programs * BLOCK  # the last block of all may be shorter
    seen = tl.where((blocks - 1) % programs == program, seen - (blocks * BLOCK - n), seen)
    zero, sum1, sum2, least, most = _moments(values, n, some, unit, program, programs, WIDE, FAR, BLOCK)
    finite, up, down = seen, seen * 0, seen * 0
    if (sum1 != sum1) | (least == -inf) | (most == inf):
        found, zero, ups, downs, sum1, sum2, least, most = _careful_moments(
            values, n, some, unit, program, programs, WIDE, FAR, BLOCK
        )
        finite, up, down = found.to(tl.int64), ups.to(tl.int64), downs.to(tl.int64)
    number = finite.to(tl.float64)
    away = sum1 / tl.maximum(number, 1.0)
    deviation = tl.maximum(sum2 - sum1 * away, 0.0)
    mean = tl.where(number > 0, _exact(some, unit, FAR) + away, 0.0)
    row = rows + program * _CELLS
    _add_moments(row, number, mean, deviation, least.to(tl.float64), most.to(tl.float64), scale, FAR)
    _raise(row, _NAN_COUNT, (seen - finite - up - down).to(tl.float64))
    _raise(row, _POS_INF_COUNT, up.to(tl.float64))
    _raise(row, _NEG_INF_COUNT, down.to(tl.float64))
    _raise(row, _ZERO_COUNT, zero.to(tl.float64))
    taken = n * 0
    if stride > 0:
        taken = _sketch(values, n, stride, offset, histogram, program, programs, WIDE, SKETCH_BLOCK)
    if program == 0:
        _raise(row, _PARTS, 1.0)
        _raise(row, _SKETCHED, taken.to(tl.float64))


@triton.jit(do_not_specialize=["n", "stride", "offset"])
def observe(
    values,
    n,
    rows,
    histogram,
    stride,
    offset,
    WIDE: tl.constexpr,
    FAR: tl.constexpr,
    BLOCK: tl.constexpr,
    SKETCH_BLOCK: tl.constexpr,
):
    """Add n values to a slot."""
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    _add_part(values, n, rows, histogram, stride, offset, program, programs, WIDE, FAR, BLOCK, SKETCH_BLOCK)


@triton.jit(do_not_specialize=["n", "cell"])
def observe_gated(
    values, n, table, cell, WIDE: tl.constexpr, FAR: tl.constexpr, BLOCK: tl.constexpr, SKETCH_BLOCK: tl.constexpr
):
    """Add n values to the row that a table names, if its gate is open (see `hookcore.observe.device.GraphArena`)."""
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    gate, place = tl.load(table + _GATE_AT).to(tl.pointer_type(tl.int64)), tl.load(table + cell)
    if (tl.load(gate + _CAPTURED) != 0) & (place != 0):
        rows, histogram = place.to(tl.pointer_type(tl.float64)), tl.load(table + cell + 1).to(tl.pointer_type(tl.int32))
        limit, offset, number = tl.load(gate + _LIMIT), tl.load(gate + _OFFSET), n.to(tl.int64)
        far = number // tl.maximum(limit, 1)  # see `hookcore.observe.reference.stride_of`
        stride = tl.where((limit < 0) | (number < 2 * limit), 1, far - 1 + far % 2) * (limit != 0).to(tl.int64)
        _add_part(values, n, rows, histogram, stride, offset, program, programs, WIDE, FAR, BLOCK, SKETCH_BLOCK)
        begun, step = rows + program * _CELLS + _STEP, tl.load(gate + _GATE_STEP).to(tl.float64)
        tl.store(begun, tl.where(tl.load(begun) == 0, step, tl.load(begun)))


@triton.jit(do_not_specialize=["many", "offset"])
def observe_all(
    table,
    many,
    offset,
    TYPE: tl.constexpr,
    WIDE: tl.constexpr,
    FAR: tl.constexpr,
    BLOCK: tl.constexpr,
    SKETCH_BLOCK: tl.constexpr,
):
    """Add several tensors of a type to a slot each, as `observe` adds one.

    The table has a line for each tensor (see `add_all`), and after the last one, the line of each program's tensor. A
    tensor's programs follow one another. All addresses are multiples of 16, as the compiler knows of `observe`'s.
    """
    whole = tl.program_id(0).to(tl.int64)
    line = table + tl.load(table + many * _COLUMNS + whole) * _COLUMNS
    values = tl.multiple_of(tl.load(line).to(tl.pointer_type(TYPE)), 16)
    rows = tl.load(line + 2).to(tl.pointer_type(tl.float64))
    histogram = tl.load(line + 3).to(tl.pointer_type(tl.int32))
    program, programs = whole - tl.load(line + 5), tl.load(line + 6)
    _add_part(
        values,
        tl.load(line + 1),
        rows,
        histogram,
        tl.load(line + 4),
        offset,
        program,
        programs,
        WIDE,
        FAR,
        BLOCK,
        SKETCH_BLOCK,
    )


@triton.jit
def merge_rows(rows, merged, PROGRAMS: tl.constexpr, LANES: tl.constexpr):
    """Move a slot's rows to one, as `hookcore.observe.reference.combine` merges them, and empty them."""
    slot = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, LANES)
    mask = lanes < PROGRAMS
    row, out = rows + slot * (PROGRAMS * _CELLS) + lanes * _CELLS, merged + slot * _CELLS
    number = tl.load(row + _FINITE, mask=mask, other=0.0)
    mean = tl.load(row + _MEAN, mask=mask, other=0.0)
    deviation = tl.load(row + _DEVIATION, mask=mask, other=0.0)
    scale = tl.load(row + _SCALE, mask=mask, other=0.0)
    some = (mean != 0) | (deviation != 0)
    largest = tl.max(tl.where(some, scale, -float("inf")), 0)
    largest = tl.where(largest == -float("inf"), 0.0, largest)
    unit = _factor(tl.where(some, largest - scale, 0.0))
    mean, deviation = mean * unit, deviation * unit * unit
    total = tl.sum(number, 0)
    whole = tl.sum(mean * (number / tl.maximum(total, 1.0)), 0)
    apart = mean - whole
    low = tl.min(tl.where(number > 0, tl.load(row + _MIN, mask=mask, other=0.0), float("inf")), 0)
    high = tl.max(tl.where(number > 0, tl.load(row + _MAX, mask=mask, other=0.0), -float("inf")), 0)
    tl.store(out + _FINITE, total)
    tl.store(out + _MEAN, whole)
    tl.store(out + _DEVIATION, tl.sum(deviation + number * apart * apart, 0))
    tl.store(out + _MIN, tl.where(total > 0, low, 0.0))
    tl.store(out + _MAX, tl.where(total > 0, high, 0.0))
    tl.store(out + _SCALE, largest)
    for cell in tl.static_range(_CELLS):
        if cell >= _NAN_COUNT and cell <= _SKETCHED:
            tl.store(out + cell, tl.sum(tl.load(row + cell, mask=mask, other=0.0), 0))
        elif cell == _STEP:
            tl.store(out + cell, tl.max(tl.load(row + cell, mask=mask, other=0.0), 0))
        elif cell > _SKETCHED and cell != _SCALE:
            tl.store(out + cell, 0.0)
    for cell in tl.static_range(_CELLS):
        tl.store(row + cell, tl.zeros([LANES], tl.float64), mask=mask)


# Launches.

BLOCK: Final = 2048
SKETCH_BLOCK: Final = 256
WARPS: Final = 8
PROGRAMS_PER_PROCESSOR: Final = 2
MAX_REGISTERS: Final = 128  # per thread, so that enough programs fit on a processor

_NARROW: Final = frozenset(
    {torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16}
)  # fit float32 without rounding
_TYPES: Final = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float64: tl.float64,
    torch.uint8: tl.uint8,
    torch.int8: tl.int8,
    torch.int16: tl.int16,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
    torch.bool: tl.uint8,
}
_MAX_INT32: Final = 2**31 - 1


class Again:
    """Launches what Triton has compiled, for arguments of the same kind.

    Triton's own code binds names, sorts the arguments into kinds, and looks for what it has compiled, each time. Here,
    the caller knows the kind, and gives addresses instead of tensors, which the launcher would ask the driver about.
    """

    __slots__ = ("_compiled", "_constants", "_device", "_function", "_knobs", "_packed", "_run", "_stream_of")

    def __init__(self, compiled: Any, device: torch.device, constants: tuple[Any, ...]) -> None:
        from triton import knobs
        from triton.runtime import driver  # type: ignore[import-not-found,import-untyped,unused-ignore]

        self._compiled, self._constants, self._device = compiled, constants, device.index or 0
        self._run = compiled.run  # the launcher
        self._function, self._packed = compiled.function, compiled.packed_metadata
        self._stream_of = driver.active.get_current_stream
        self._knobs = knobs.runtime

    def __call__(self, programs: int, *given: int) -> bool:
        """Launch it on the current stream of the current device. Return False if this release takes other arguments."""
        enter, leave = self._knobs.launch_enter_hook, self._knobs.launch_exit_hook  # chains of hooks, or single ones
        try:
            if (enter and getattr(enter, "calls", True)) or (leave and getattr(leave, "calls", True)):
                self._compiled[programs, 1, 1](*given, *self._constants)  # a profiler's hooks: Triton calls them
            else:
                stream = self._stream_of(self._device)
                self._run(
                    programs, 1, 1, stream, self._function, self._packed, None, None, None, *given, *self._constants
                )
        except TypeError:  # before anything was launched
            AGAIN.update({kind: None for kind, each in AGAIN.items() if each is self})
            return False
        return True


# By the kernel and by all that Triton would distinguish of the arguments; None if it must be asked each time.
AGAIN: Final[dict[tuple[Any, ...], Again | None]] = {}


def programs_on(device: torch.device) -> int:
    """Return the maximum number of programs per launch, which is the number of rows per slot."""
    if device.type != "cuda":
        return 4  # the interpreter
    return PROGRAMS_PER_PROCESSOR * int(torch.cuda.get_device_properties(device).multi_processor_count)


def add(tensor: Tensor, slot: DeviceSlot, stride: int, offset: int, block: int = BLOCK) -> None:
    """Launch the kernel: add a tensor whose values fill one stretch of memory to a slot.

    stride and offset: how the sketch samples (`hookcore.observe.reference.stride_of`; 0: no sketch).
    """
    number, address, dtype = tensor.numel(), tensor.data_ptr(), tensor.dtype
    programs = _programs(number, stride, block, slot.programs)
    aligned, wide = address % ALIGNMENT == 0, number > _MAX_INT32
    kind = ("one", dtype, tensor.device, aligned, wide, stride > _MAX_INT32, block)
    again = AGAIN.get(kind)
    if again is None or not again(programs, address, number, slot.rows_at, slot.histogram_at, stride, offset):
        with unseen():
            values = tensor.view(torch.uint8) if dtype is torch.bool else tensor
        given = values, number, slot.rows, slot.histogram, stride, offset
        _compile(observe, kind, tensor.device, programs, given, _constants(dtype, block), block // 128)


def _programs(number: int, stride: int, block: int, most: int) -> int:
    # The sketch takes longer than the moments: of short tensors, each program sketches one block.
    blocks = max(-(-number // block), -(-(number // stride) // min(block, SKETCH_BLOCK)) if stride else 0)
    return max(1, min(most, blocks))


def _constants(dtype: torch.dtype, block: int) -> dict[str, Any]:
    wide = dtype not in _NARROW and dtype is not torch.bool
    return {"WIDE": wide, "FAR": dtype is torch.float64, "BLOCK": block, "SKETCH_BLOCK": min(block, SKETCH_BLOCK)}


def add_all(given: Sequence[tuple[Tensor, DeviceSlot, int]], offset: int, block: int = BLOCK) -> None:
    """Launch one kernel that adds several tensors of one type and device: each with its slot and stride, as `add` does.

    Their addresses must be multiples of `ALIGNMENT`, and no two may have one slot: their programs run at the same time.
    Nothing waits: the copy of the table is on the current stream, as the kernel is, and torch reuses the table's memory
    on both sides only after them.
    """
    first, device = given[0][0], given[0][0].device
    lines, whole = [], 0
    for tensor, slot, stride in given:
        number = tensor.numel()
        programs = _programs(number, stride, block, slot.programs)
        lines.append((tensor.data_ptr(), number, slot.rows_at, slot.histogram_at, stride, whole, programs))
        whole += programs
    with unseen(), torch.inference_mode(False), apart_from_captures():
        size, pinned = len(lines) * len(lines[0]) + whole, device.type == "cuda"
        on_host = torch.empty(size, dtype=torch.int64, device="cpu", pin_memory=pinned)
        numbers = on_host.numpy()
        numbers[:-whole] = np.array(lines, np.int64).reshape(-1)
        numbers[-whole:] = np.repeat(np.arange(len(lines)), [line[-1] for line in lines])
        table = on_host.to(device, non_blocking=True)
    kind = ("all", first.dtype, device, block)
    again = AGAIN.get(kind)
    if again is None or not again(whole, table.data_ptr(), len(lines), offset):
        constants = {"TYPE": _TYPES[first.dtype], **_constants(first.dtype, block)}
        _compile(observe_all, kind, device, whole, (table, len(lines), offset), constants, block // 128)


def write(tensor: Tensor, table: Tensor, cell: int, block: int = BLOCK, compiles: bool = True) -> bool:
    """Launch the kernel that adds a dense tensor to the row that a table names, if its gate is open.

    compiles: whether Triton may load a kernel now. If not and it has to, return False.
    """
    number, address, dtype = tensor.numel(), tensor.data_ptr(), tensor.dtype
    programs = _programs(number, 1, block, programs_on(tensor.device))
    kind = ("gated", dtype, tensor.device, address % ALIGNMENT == 0, number > _MAX_INT32, block)
    again = AGAIN.get(kind)
    if not compiles and kind not in AGAIN:
        return False
    if again is None or not again(programs, address, number, table.data_ptr(), cell):
        with unseen():
            given = tensor.view(torch.uint8) if dtype is torch.bool else tensor, number, table, cell
        _compile(observe_gated, kind, tensor.device, programs, given, _constants(dtype, block), block // 128)
    return True


def merge(rows: Tensor, merged: Tensor) -> None:
    """Launch the kernel that moves the rows of slots, [slots, programs, CELLS], to one row each, [slots, CELLS]."""
    slots, programs, _ = rows.shape
    kind = ("merge", rows.device, programs)
    again = AGAIN.get(kind)
    if again is None or not again(slots, rows.data_ptr(), merged.data_ptr()):
        constants = {"PROGRAMS": programs, "LANES": 1 << (programs - 1).bit_length()}
        _compile(merge_rows, kind, rows.device, slots, (rows, merged), constants, 4)


def _compile(
    kernel: Any,
    kind: tuple[Any, ...],
    device: torch.device,
    programs: int,
    given: tuple[Any, ...],
    constants: dict[str, Any],
    warps: int,
) -> None:
    # `enable_fp_fusion` is explicit, because Triton otherwise warns the user.
    options: dict[str, Any] = {
        "num_warps": max(1, min(WARPS, warps)),
        "maxnreg": MAX_REGISTERS,
        "enable_fp_fusion": True,
    }
    compiled = kernel[(programs,)](*given, **constants, **options)
    if kind not in AGAIN:
        AGAIN[kind] = _made_again(compiled, device, constants)


def _made_again(compiled: Any, device: torch.device, constants: dict[str, Any]) -> Again | None:
    """Return how to launch it again; None in the interpreter, in releases of Triton without what it takes, and on AMD.

    For AMD's GPUs, Triton also distinguishes tensors by the size of their memory.
    """
    try:
        return Again(compiled, device, (*constants.values(),)) if compiled.metadata.target.backend == "cuda" else None
    except (AttributeError, ImportError):
        return None

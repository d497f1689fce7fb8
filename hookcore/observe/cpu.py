# mypy: disable-error-code="no-untyped-def,call-arg,attr-defined"
"""The CPU kernels: one pass over a tensor's raw memory that adds it to a row of an arena (numba).

Reading memory by address keeps the kernel invisible to dispatch modes, autograd and the profiler, and costs no copy.
A tensor is taken in blocks that stay in the first-level cache: first the bits (order, zeros, is anything not finite),
then the sums in float64 around a value of the block, so that nothing cancels, then the sketch. Blocks are merged by
Chan's formula. Large tensors are shared among the threads that torch itself uses, in torch's own thread team: a second
team would fight the first one, which keeps spinning for a while after each of torch's operators.

One file on purpose: numba keeps compiled functions on disk by the date of their own file, and would go on using an old
copy of a helper that stands in another one. numba types these functions, so they carry no annotations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic

from hookcore import sketch
from hookcore.observe import layout
from hookcore.observe.pointer import OPTIONS, pointer

# Plain module constants: numba freezes them into the machine code.
BLOCK: Final = 2048
_FINITE, _MEAN, _M2, _MIN, _MAX = layout.FINITE, layout.MEAN, layout.DEVIATION, layout.MIN, layout.MAX
_NAN, _PINF, _NINF, _ZERO = layout.NAN_COUNT, layout.POS_INF_COUNT, layout.NEG_INF_COUNT, layout.ZERO_COUNT
_PARTS, _SKETCHED, _CELLS, _ROW_BYTES = layout.PARTS, layout.SKETCHED, layout.CELLS, layout.ROW_BYTES
_HIST_OFFSET = layout.HIST_OFFSET
_BINS, _BIN_ZERO, _BIN_NAN, _BIN_PINF, _BIN_NINF = sketch.BINS, sketch.ZERO, sketch.NAN, sketch.POS_INF, sketch.NEG_INF
_POS_FIRST, _MAGNITUDES = sketch.POS_FIRST, sketch.MAGNITUDES
_LOW32 = (127 + sketch.MIN_EXPONENT) * sketch.STEPS_PER_OCTAVE
_LOW64 = (1023 + sketch.MIN_EXPONENT) * sketch.STEPS_PER_OCTAVE

# The control block that every call gets by address: int64 cells.
LIMIT: Final = 0  # values that a sketch takes at least; -1: every value; 0: no sketch
JITTER: Final = 1  # where the sampling stride begins: another place in every step
SCRATCH: Final = 2  # address of the scratch memory, one part a thread
THREADS: Final = 3
FORK_CALL: Final = 4  # two addresses in torch's OpenMP runtime
THREAD_NUM: Final = 5
BODY: Final = 6  # address of the compiled `_body`
_TASK_ADDRESS, _TASK_SIZE = 8, 9  # the tensor that the threads share at the moment
CONTROL_CELLS: Final = 16

# Codes of the element types.
FLOAT32, FLOAT64, BFLOAT16, FLOAT16, UINT8, INT8, INT16, INT32, INT64, BOOL = range(10)

MAX_THREADS: Final = 64
_PARALLEL_FROM = 1 << 15
_COPIES_FROM = 1 << 11
_COPIES = 4  # sub-histograms: equal neighbours do not wait for each other's store
_HIST_CELLS = 1312  # BINS and cells that swallow zeros
_SUBHIST_OFFSET = _ROW_BYTES
_INDEX_OFFSET = _SUBHIST_OFFSET + _COPIES * _HIST_CELLS * 4
_PICK_OFFSET = _INDEX_OFFSET + BLOCK * 4
_LOAD_OFFSET = _PICK_OFFSET + BLOCK * 8
SCRATCH_BYTES: Final = _LOAD_OFFSET + BLOCK * 8 + 64

# Only the loops of plain sums may be reordered; only the order of values known to be finite may ignore NaN.
_options = OPTIONS
_sums = _options | {"fastmath": {"reassoc", "contract", "nsz"}}
_order = _options | {"fastmath": {"reassoc", "nsz", "nnan"}}


def _narrow(build: Callable[[Any, Any, Any], Any]) -> Any:
    """An operation on two int32 that stays int32; numba alone would widen it to 64 bits and halve the vectors."""

    @intrinsic
    def operation(typingctx: Any, left: Any, right: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return build(builder, *arguments)

        return types.int32(types.int32, types.int32), generate

    return operation


_and = _narrow(lambda builder, left, right: builder.and_(left, right))
_xor = _narrow(lambda builder, left, right: builder.xor(left, right))
_plus = _narrow(lambda builder, left, right: builder.add(left, right))
_shift = _narrow(lambda builder, left, right: builder.ashr(left, right))
_smaller = _narrow(lambda builder, left, right: builder.select(builder.icmp_signed("<", left, right), left, right))
_larger = _narrow(lambda builder, left, right: builder.select(builder.icmp_signed(">", left, right), left, right))


@intrinsic
def _fork(typingctx: Any, function: Any, body: Any, data: Any, threads: Any) -> Any:
    """GOMP_parallel(body, data, threads, 0): run `body(data)` in every thread of the caller's team."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, number = ir.IntType(64), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [word, word, number, number])
        pointer = builder.inttoptr(arguments[0], kind.as_pointer())
        builder.call(pointer, [arguments[1], arguments[2], builder.trunc(arguments[3], number), ir.Constant(number, 0)])
        return context.get_dummy_value()

    return types.none(types.intp, types.intp, types.intp, types.intp), build


@intrinsic
def _thread_num(typingctx: Any, function: Any) -> Any:
    """omp_get_thread_num()."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.FunctionType(ir.IntType(32), []).as_pointer())
        return builder.sext(builder.call(pointer, []), ir.IntType(64))

    return types.intp(types.intp), build


@intrinsic
def _float_of(typingctx: Any, bits: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), build


@njit(**_options)
def _in_order(w):
    """Float32 bits to integers that sort as the floats do; its own inverse."""
    return _xor(w, _and(_shift(w, np.int32(31)), np.int32(0x7FFFFFFF)))


@njit(**_options)
def _add(cells, n, mean, m2, low, high):
    """Merge n finite values into a row."""
    if n == 0:
        return
    old = cells[_FINITE]
    if old == 0:
        cells[_MEAN] = mean
        cells[_M2] = m2
        cells[_MIN] = low
        cells[_MAX] = high
    else:
        total = old + n
        delta = mean - cells[_MEAN]
        share = n / total
        cells[_MEAN] += delta * share
        cells[_M2] += m2 + delta * (delta * old * share)
        cells[_MIN] = min(cells[_MIN], low)
        cells[_MAX] = max(cells[_MAX], high)
    cells[_FINITE] = old + n


@njit(**_options)
def _add_mixed(values, cells):
    """A block that needs care, value by value and in two passes; answer whether something is not finite."""
    n, shift, total, low, high = 0, 0.0, 0.0, np.inf, -np.inf
    for i in range(values.size):
        x = np.float64(values[i])
        if np.isnan(x):
            cells[_NAN] += 1
        elif x == np.inf:
            cells[_PINF] += 1
        elif x == -np.inf:
            cells[_NINF] += 1
        else:
            n += 1
            if x == 0:
                cells[_ZERO] += 1
            if n == 1:
                shift = x
            total += (x - shift) * (1.0 / values.size)
            low = min(low, x)
            high = max(high, x)
    if n == 0:
        return True
    mean = shift + total * (values.size / n)
    m2 = 0.0
    for i in range(values.size):
        x = np.float64(values[i])
        if np.isfinite(x):
            m2 += (x - mean) * (x - mean)
    _add(cells, n, mean, m2, low, high)
    return n < values.size


@njit(**_sums)
def _sums32(values, shift):
    """Sums in float64 around `shift`, and the zeros. Any value that is not finite makes both sums so."""
    s1, s2, zeros = 0.0, 0.0, np.float32(0)
    for i in range(values.size):
        x = values[i]
        d = np.float64(x) - shift
        s1 += d
        s2 += d * d
        zeros += np.float32(1) if x == np.float32(0) else np.float32(0)
    return s1, s2, zeros


@njit(**_sums)
def _sums64(values, shift):
    s1, s2, zeros = 0.0, 0.0, 0.0
    for i in range(values.size):
        x = values[i]
        d = x - shift
        s1 += d
        s2 += d * d
        zeros += 1.0 if x == 0.0 else 0.0
    return s1, s2, zeros


@njit(**_options)
def _extremes32(words):
    """Smallest and largest of finite float32s, as integers in the order of the floats: one instruction each."""
    low = high = _in_order(words[0])
    for i in range(words.size):
        key = _in_order(words[i])
        low = _smaller(low, key)
        high = _larger(high, key)
    return _float_of(_in_order(low)), _float_of(_in_order(high))


@njit(**_order)
def _extremes64(values):
    """Smallest and largest of finite values; meaningless where one is not finite."""
    low = high = values[0]
    for i in range(values.size):
        x = values[i]
        low = x if x < low else low
        high = x if x > high else high
    return low, high


@njit(**_sums)
def _add_block32(values, words, cells):
    """Add a block's moments to a row; answer whether something in it is not finite."""
    n = values.size
    shift = np.float64(values[0])
    s1, s2, zeros = _sums32(values, shift)
    if not np.isfinite(s2):
        _add_mixed(values, cells)
        return True
    low, high = _extremes32(words)
    cells[_ZERO] += zeros
    _add(cells, n, shift + s1 / n, max(0.0, s2 - s1 * (s1 / n)), np.float64(low), np.float64(high))
    return False


@njit(**_sums)
def _add_block64(values, cells):
    n = values.size
    shift = values[0]
    s1, s2, zeros = _sums64(values, shift)
    mean = shift + s1 / n
    m2 = s2 - s1 * (s1 / n)
    if not np.isfinite(s2) or m2 < s2 * 1e-6:
        # Something is not finite, a square overflows, or the first value lies far off the others.
        return _add_mixed(values, cells)
    low, high = _extremes64(values)
    cells[_ZERO] += zeros
    _add(cells, n, mean, max(0.0, m2), low, high)
    return False


@njit(**_options)
def _pick(source, first, stride, picked):
    count = 0
    for i in range(first, source.size, stride):
        picked[count] = source[i]
        count += 1
    return count


@njit(**_options)
def _bins32(words, bins):
    """The sketch bins of finite float32s, from their bits; see the order of the bins in `hookcore.sketch`."""
    for i in range(words.size):
        w = words[i]
        sign = _shift(w, np.int32(31))
        magnitude = _and(w, np.int32(0x7FFFFFFF))
        step = _plus(_shift(magnitude, np.int32(20)), np.int32(-_LOW32))
        step = _larger(np.int32(-1), _smaller(step, np.int32(_MAGNITUDES)))
        spot = _plus(_plus(_xor(step, sign), np.int32(_POS_FIRST)), _and(sign, np.int32(-3)))
        bins[i] = np.uint16(spot if magnitude != np.int32(0) else np.int32(_BIN_ZERO))


@njit(**_options)
def _bins64(words, bins):
    """The same for float64."""
    for i in range(words.size):
        w = words[i]
        sign = w >> 63
        magnitude = w & 0x7FFFFFFFFFFFFFFF
        step = max(-1, min((magnitude >> 49) - _LOW64, _MAGNITUDES))
        spot = (step ^ sign) + _POS_FIRST + (sign & -3)
        bins[i] = spot if magnitude != 0 else _BIN_ZERO


@njit(**_options)
def _mark_mixed(values, bins):
    """Correct the bins of the values that are not finite."""
    for i in range(values.size):
        x = values[i]
        if np.isnan(x):
            bins[i] = _BIN_NAN
        elif x == np.inf:
            bins[i] = _BIN_PINF
        elif x == -np.inf:
            bins[i] = _BIN_NINF


@njit(**_options)
def _count(bins, n, hist):
    for i in range(n):
        hist[bins[i]] += np.uint32(1)


@njit(**_options)
def _count_fast(scratch, n):
    """Add the block's bins to four sub-histograms: equal neighbours do not wait for each other's store."""
    first = carray(pointer(scratch + _SUBHIST_OFFSET), (_HIST_CELLS,), np.uint32)
    second = carray(pointer(scratch + _SUBHIST_OFFSET + 4 * _HIST_CELLS), (_HIST_CELLS,), np.uint32)
    third = carray(pointer(scratch + _SUBHIST_OFFSET + 8 * _HIST_CELLS), (_HIST_CELLS,), np.uint32)
    fourth = carray(pointer(scratch + _SUBHIST_OFFSET + 12 * _HIST_CELLS), (_HIST_CELLS,), np.uint32)
    fours = carray(pointer(scratch + _INDEX_OFFSET), (n // 4,), np.uint64)
    mask = np.uint64(0xFFFF)
    for i in range(n // 4):
        four = fours[i]
        first[four & mask] += np.uint32(1)
        second[(four >> np.uint64(16)) & mask] += np.uint32(1)
        third[(four >> np.uint64(32)) & mask] += np.uint32(1)
        fourth[four >> np.uint64(48)] += np.uint32(1)
    bins = carray(pointer(scratch + _INDEX_OFFSET), (n,), np.uint16)
    for i in range(n - n % 4, n):
        first[bins[i]] += np.uint32(1)


@njit(**_options)
def _block32(address, n, first, stride, cells, hist, fast, scratch):
    """One block of float32s: the moments, and the sketch of every stride-th value (stride 0: none)."""
    values = carray(pointer(address), (n,), np.float32)
    words = carray(pointer(address), (n,), np.int32)
    mixed = _add_block32(values, words, cells)
    if stride == 0:
        return
    if stride > 1:
        picked = carray(pointer(scratch + _PICK_OFFSET), (BLOCK,), np.int32)
        n = _pick(words, first, stride, picked)
        values = carray(pointer(scratch + _PICK_OFFSET), (n,), np.float32)
        words = picked[:n]
    bins = carray(pointer(scratch + _INDEX_OFFSET), (n,), np.uint16)
    _bins32(words, bins)
    if mixed:
        _mark_mixed(values, bins)
    if fast:
        _count_fast(scratch, n)
    else:
        _count(bins, n, hist)
    cells[_SKETCHED] += n


@njit(**_options)
def _block64(address, n, first, stride, cells, hist, fast, scratch):
    """One block of float64s."""
    values = carray(pointer(address), (n,), np.float64)
    words = carray(pointer(address), (n,), np.int64)
    mixed = _add_block64(values, cells)
    if stride == 0:
        return
    if stride > 1:
        picked = carray(pointer(scratch + _PICK_OFFSET), (BLOCK,), np.int64)
        n = _pick(words, first, stride, picked)
        values = carray(pointer(scratch + _PICK_OFFSET), (n,), np.float64)
        words = picked[:n]
    bins = carray(pointer(scratch + _INDEX_OFFSET), (n,), np.uint16)
    _bins64(words, bins)
    if mixed:
        _mark_mixed(values, bins)
    if fast:
        _count_fast(scratch, n)
    else:
        _count(bins, n, hist)
    cells[_SKETCHED] += n


@njit(**_options)
def _load_half(address, n, target):
    """Widen float16 by its bits, so that no flush-to-zero mode of the processor can touch a denormal."""
    source = carray(pointer(address), (n,), np.uint16)
    words = carray(pointer(target), (n,), np.int32)
    floats = carray(pointer(target), (n,), np.float32)
    for i in range(n):
        h = np.int32(source[i])
        magnitude = h & np.int32(0x7FFF)
        sign = (h & np.int32(0x8000)) << np.int32(16)
        if magnitude >= np.int32(0x7C00):
            words[i] = sign | (magnitude << np.int32(13)) | np.int32(0x7F800000)
        elif magnitude >= np.int32(0x0400):
            words[i] = sign | ((magnitude << np.int32(13)) + np.int32(112 << 23))
        else:
            floats[i] = np.float32(magnitude) * np.float32(5.960464477539063e-08)
            words[i] |= sign


@njit(**_options)
def _load(source, n, target):
    """Widen a block to float64."""
    values = carray(pointer(target), (n,), np.float64)
    for i in range(n):
        values[i] = source[i]


@njit(**_options)
def _load_other(address, n, code, target):
    """Widen a block of integers or bools to float64."""
    if code in (UINT8, BOOL):
        _load(carray(pointer(address), (n,), np.uint8), n, target)
    elif code == INT8:
        _load(carray(pointer(address), (n,), np.int8), n, target)
    elif code == INT16:
        _load(carray(pointer(address), (n,), np.int16), n, target)
    elif code == INT32:
        _load(carray(pointer(address), (n,), np.int32), n, target)
    else:
        _load(carray(pointer(address), (n,), np.int64), n, target)


@njit(**_options)
def _block(address, n, code, first, stride, cells, hist, fast, scratch):
    """One block of any type."""
    target = scratch + _LOAD_OFFSET
    if code == FLOAT32:
        _block32(address, n, first, stride, cells, hist, fast, scratch)
    elif code == BFLOAT16:
        source = carray(pointer(address), (n,), np.uint16)
        words = carray(pointer(target), (n,), np.int32)
        for i in range(n):
            words[i] = np.int32(source[i]) << np.int32(16)
        _block32(target, n, first, stride, cells, hist, fast, scratch)
    elif code == FLOAT16:
        _load_half(address, n, target)
        _block32(target, n, first, stride, cells, hist, fast, scratch)
    elif code == FLOAT64:
        _block64(address, n, first, stride, cells, hist, fast, scratch)
    else:
        _load_other(address, n, code, target)
        _block64(target, n, first, stride, cells, hist, fast, scratch)


@njit(**_options)
def _item_bytes(code):
    if code in (FLOAT32, INT32):
        return 4
    if code in (FLOAT64, INT64):
        return 8
    if code in (UINT8, INT8, BOOL):
        return 1
    return 2


@njit(**_options)
def _first(start, jitter, stride):
    """Where in a block that begins at value `start` the sampling stride hits first."""
    return 0 if stride < 2 else (jitter - start) % stride


@njit(**_options)
def _scan(address, n, begin, end, jitter, stride, cells, hist, fast, scratch):
    """Blocks begin..end of n float32s that lie side by side."""
    for b in range(begin, end):
        start = b * BLOCK
        first = _first(start, jitter, stride)
        _block32(address + start * 4, min(BLOCK, n - start), first, stride, cells, hist, fast, scratch)


@njit(**_options)
def _fold(scratch, hist):
    """Add the sub-histograms to the sketch."""
    parts = carray(pointer(scratch + _SUBHIST_OFFSET), (_COPIES, _HIST_CELLS), np.uint32)
    for i in range(_BINS):
        hist[i] += parts[0, i] + parts[1, i] + parts[2, i] + parts[3, i]


@njit(**_options)
def _clear_copies(scratch):
    parts = carray(pointer(scratch + _SUBHIST_OFFSET), (_COPIES * _HIST_CELLS,), np.uint32)
    parts[:] = np.uint32(0)
    return parts


@njit(**_options)
def _stride_of(n, limit):
    """0: no sketch; 1: every value; else an odd number of values from one taken value to the next."""
    if limit == 0:
        return 0
    if limit < 0 or n < 2 * limit:
        return 1
    stride = n // limit
    return stride - 1 + stride % 2


@cfunc("void(intp)", **_options)
def _body(address):
    """One thread's share of a large tensor; `address` is that of the control block."""
    control = carray(pointer(address), (CONTROL_CELLS,), np.int64)
    thread = _thread_num(control[THREAD_NUM])
    threads = control[THREADS]
    scratch = control[SCRATCH] + thread * SCRATCH_BYTES
    cells = carray(pointer(scratch), (_CELLS,), np.float64)
    cells[:] = 0.0
    n = control[_TASK_SIZE]
    blocks = (n + BLOCK - 1) // BLOCK
    begin, end = blocks * thread // threads, blocks * (thread + 1) // threads
    hist = _clear_copies(scratch)
    stride = _stride_of(n, control[LIMIT])
    _scan(control[_TASK_ADDRESS], n, begin, end, control[JITTER], stride, cells, hist, True, scratch)


@njit(**_options)
def _share(address, n, cells, hist, control, control_address):
    """Give every thread of torch's team a part, then merge the parts."""
    control[_TASK_ADDRESS], control[_TASK_SIZE] = address, n
    threads = control[THREADS]
    _fork(control[FORK_CALL], control[BODY], control_address, threads)
    for thread in range(threads):
        scratch = control[SCRATCH] + thread * SCRATCH_BYTES
        part = carray(pointer(scratch), (_CELLS,), np.float64)
        _add(cells, part[_FINITE], part[_MEAN], part[_M2], part[_MIN], part[_MAX])
        for i in (_NAN, _PINF, _NINF, _ZERO, _SKETCHED):
            cells[i] += part[i]
        if control[LIMIT] != 0:
            _fold(scratch, hist)


@njit("void(intp,intp,intp,intp)", **_options)
def observe(address, n, row, control_address):
    """Add n float32s that lie side by side at `address` to a row."""
    control = carray(pointer(control_address), (CONTROL_CELLS,), np.int64)
    cells = carray(pointer(row), (_CELLS,), np.float64)
    hist = carray(pointer(row + _HIST_OFFSET), (_BINS,), np.uint32)
    cells[_PARTS] += 1
    if n >= _PARALLEL_FROM and control[THREADS] > 1:
        _share(address, n, cells, hist, control, control_address)
        return
    scratch = control[SCRATCH]
    stride = _stride_of(n, control[LIMIT])
    fast = n >= _COPIES_FROM and stride > 0
    if fast:
        _clear_copies(scratch)
    _scan(address, n, 0, (n + BLOCK - 1) // BLOCK, control[JITTER], stride, cells, hist, fast, scratch)
    if fast:
        _fold(scratch, hist)


# The next two are compiled when they are first called: most runs are float32 and contiguous, and a cold start costs
# ten seconds a kernel.


@njit(**_options)
def observe_other(address, n, code, row, control_address):
    """Add n values of another type that lie side by side to a row."""
    control = carray(pointer(control_address), (CONTROL_CELLS,), np.int64)
    cells = carray(pointer(row), (_CELLS,), np.float64)
    hist = carray(pointer(row + _HIST_OFFSET), (_BINS,), np.uint32)
    cells[_PARTS] += 1
    scratch = control[SCRATCH]
    stride = _stride_of(n, control[LIMIT])
    fast = n >= _COPIES_FROM and stride > 0
    if fast:
        _clear_copies(scratch)
    item = _item_bytes(code)
    for start in range(0, n, BLOCK):
        size = min(BLOCK, n - start)
        first = _first(start, control[JITTER], stride)
        _block(address + start * item, size, code, first, stride, cells, hist, fast, scratch)
    if fast:
        _fold(scratch, hist)


@njit(**_options)
def observe_strided(address, n, code, shape, row, control_address):
    """The same for a tensor with gaps; `shape` is the address of int64: dimensions, sizes, strides in items."""
    control = carray(pointer(control_address), (CONTROL_CELLS,), np.int64)
    cells = carray(pointer(row), (_CELLS,), np.float64)
    hist = carray(pointer(row + _HIST_OFFSET), (_BINS,), np.uint32)
    cells[_PARTS] += 1
    dims = carray(pointer(shape), (1,), np.int64)[0]
    geometry = carray(pointer(shape + 8), (2, dims), np.int64)
    item = _item_bytes(code)
    index = np.zeros(dims, np.int64)
    gathered = np.empty(BLOCK * item, np.uint8)
    scratch = control[SCRATCH]
    stride = _stride_of(n, control[LIMIT])
    offset, start, last = 0, 0, dims - 1
    while start < n:
        size = min(BLOCK, n - start)
        for i in range(size):
            values = carray(pointer(address + offset * item), (item,), np.uint8)
            for byte in range(item):
                gathered[i * item + byte] = values[byte]
            axis = last
            index[axis] += 1
            offset += geometry[1, axis]
            while axis > 0 and index[axis] == geometry[0, axis]:
                offset -= geometry[1, axis] * geometry[0, axis]
                index[axis] = 0
                axis -= 1
                index[axis] += 1
                offset += geometry[1, axis]
        first = _first(start, control[JITTER], stride)
        _block(gathered.ctypes.data, size, code, first, stride, cells, hist, False, scratch)
        start += size


BODY_ADDRESS: Final[int] = int(_body.address or 0)

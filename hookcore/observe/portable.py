"""The functions of the compiled CPU kernel in NumPy, for machines without the extension.

They take the same arguments and give the same results as `_kernel.c`, in one thread and about ten times slower.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hookcore.observe import layout
from hookcore.records import sketch

INSTRUCTIONS: Final = "NumPy"
MAX_THREADS: Final = 1
SCRATCH_BYTES: Final = 64
MAX_VALUES: Final = 4096  # of a tensor that is looked at in every step
# By code (see `hookcore.observe.cpu`). NumPy has no bfloat16, so its bits are read.
_DTYPES: Final = ("f4", "f8", "u2", "f2", "u1", "i1", "i2", "i4", "i8", "u1", "c8", "c16")
_BFLOAT16: Final = 2
_BAD: Final = slice(layout.NAN_COUNT, layout.NEG_INF_COUNT + 1)
_PIECE: Final = 1 << 20  # values at a time, so that the float64 copies stay small
_HEAD: Final = 2 + layout.CELLS


def observe(address: int, n: int, row: int, control: int) -> None:
    """Add n float32s without gaps to a row."""
    observe_other(address, n, 0, row, control)


def is_finite(address: int, n: int) -> int:
    """Return 1 if all of n float32s without gaps are finite, else 0."""
    return int(np.isfinite(_array(address, n, np.float32)).all())


def observe_other(address: int, n: int, code: int, row: int, control: int) -> None:
    """Add n values of any type without gaps to a row."""
    _add(_array(address, n, _DTYPES[code]), code, row, control)


def observe_strided(address: int, n: int, code: int, shape: int, row: int, control: int) -> None:
    """Add n values of a tensor with gaps to a row. `shape`: the address of the number of axes, sizes, and strides."""
    axes = int(_array(shape, 1, np.int64)[0])
    sizes, strides = _array(shape + 8, 2 * axes, np.int64).reshape(2, axes)
    dtype = np.dtype(_DTYPES[code])
    reach = int(((sizes - 1) * strides).sum()) + 1 if n else 0
    base = _array(address, reach, dtype)
    view = np.lib.stride_tricks.as_strided(base, sizes.tolist(), (strides * dtype.itemsize).tolist(), writeable=False)
    _add(view.reshape(-1), code, row, control)


def observe_tensor(_tensor: Any, _row: int, _control: int) -> bool:
    """Leave all tensors to Python."""
    return False


def pack(base: int, used: int) -> bytes:
    """Pack the written rows of the first `used`, and empty them."""
    rows, packed = _rows(base, used), list[bytes]()
    for slot in np.flatnonzero(rows["cells"][:, layout.PARTS]).tolist():
        cells, counts = rows["cells"][slot], rows["bins"][slot]
        bins = np.flatnonzero(counts)
        words = np.concatenate(([slot, bins.size], cells.view(np.int64), bins << 32 | counts[bins]), dtype=np.int64)
        packed.append(words.tobytes())
        cells[:] = 0
        counts[:] = 0
    return b"".join(packed)


def unpack(packed: list[bytes], cells: int) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """Return the slots, starts, bins, and counts of packed steps, and write their cells to an address."""
    found = []
    for step in packed:
        words, slots, start, bins, at = np.frombuffer(step, np.int64), list[int](), [0], list[NDArray[np.int64]](), 0
        while at + _HEAD <= words.size:
            length = int(words[at + 1])
            if not 0 <= length <= words.size - at - _HEAD:
                break  # not written by `pack`: no numbers are better than wrong ones
            slots.append(int(words[at]))
            _array(cells, layout.CELLS, np.int64)[:] = words[at + 2 : at + _HEAD]
            cells += 8 * layout.CELLS
            bins.append(words[at + _HEAD : at + _HEAD + length])
            start.append(start[-1] + length)
            at += _HEAD + length
        pairs = np.concatenate([*bins, np.empty(0, np.int64)])
        ends = np.array(slots, np.uint32).tobytes(), np.array(start, np.uint32).tobytes()
        found.append((*ends, (pairs >> 32).astype(np.uint16).tobytes(), pairs.astype(np.uint32).tobytes()))
    return found


def stats(cells: int, rows: int, target: int) -> None:
    """Write the columns of a frame (`STATS`) from rows of cells to an address."""
    given = _array(cells, rows * layout.CELLS, np.float64).reshape(rows, layout.CELLS)
    finite, mean, deviation = given[:, layout.FINITE], given[:, layout.MEAN], given[:, layout.DEVIATION]
    infinite = given[:, layout.POS_INF_COUNT] + given[:, layout.NEG_INF_COUNT]
    unit = np.ldexp(1.0, given[:, layout.SCALE].astype(int))
    none = np.where(finite > 0, 0.0, np.nan)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        squares = deviation + finite * mean * mean
        columns = (
            finite + given[:, layout.NAN_COUNT] + infinite,
            given[:, layout.NAN_COUNT],
            infinite,
            given[:, layout.ZERO_COUNT],
            mean * unit + none,
            np.sqrt(deviation / finite) * unit + none,
            given[:, layout.MIN] + none,
            given[:, layout.MAX] + none,
            np.sqrt(squares / finite) * unit + none,
            np.sqrt(squares) * unit + none,
            given[:, layout.PARTS],
            given[:, layout.SKETCHED],
            np.full(rows, np.nan),
        )
    _array(target, rows * len(columns), np.float64).reshape(rows, len(columns))[:] = np.stack(columns, 1)


Entry = tuple[bytes | None, bytes, bytes, bytes]  # the places of its rows (None: the same rows), starts, bins, counts


def sum_sketches(entries: list[Entry], rows: int) -> tuple[bytes, bytes, bytes]:
    """Return the sum of sketches: starts, bins, and counts of 4 bytes, or 8 if one needs them."""
    keys, counts = [], []
    for places, start, bins, values in entries:
        starts = np.frombuffer(start, np.uint32)
        lengths = starts[1:] - starts[:-1]
        at = np.arange(len(lengths)) if places is None else np.frombuffer(places, np.int64)
        keys.append((at * sketch.BINS).repeat(lengths) + np.frombuffer(bins, np.uint16))
        counts.append(np.frombuffer(values, f"u{2 * len(values) // (len(bins) or 1) or 8}").astype(np.uint64))
    every = np.concatenate(keys)
    order = every.argsort(kind="stable")  # each entry is in order, and merging a few is quick
    every = every[order]
    firsts = np.flatnonzero(np.diff(every, prepend=-1))
    sums = np.concatenate(counts)[order]
    sums = np.add.reduceat(sums, firsts) if len(firsts) else sums
    filled = every[firsts]
    ends = filled.searchsorted(np.arange(0, (rows + 1) * sketch.BINS, sketch.BINS)).astype(np.uint32)
    kind = np.uint64 if sums.max(initial=0) > np.iinfo(np.uint32).max else np.uint32
    return ends.tobytes(), (filled % sketch.BINS).astype(np.uint16).tobytes(), sums.astype(kind).tobytes()


def split_counts(counts: bytes, width: int) -> tuple[bytes, bytes, bytes]:
    """Return the lower 16 bits of counts, the places of those that need more, and what these have above."""
    every = np.frombuffer(counts, f"u{width}")
    large = np.flatnonzero(every >> 16)
    upper = (every[large] >> 16).astype(np.uint64 if width == 8 else np.uint16)
    return every.astype(np.uint16).tobytes(), large.astype(np.uint32).tobytes(), upper.tobytes()


class _Moments(NamedTuple):
    """Moments of finite values, in units of 2 ** scale, and their extremes."""

    number: int
    mean: float
    deviation: float
    least: float
    most: float
    scale: int


def _array(address: int, n: int, dtype: DTypeLike) -> NDArray[Any]:
    kind = np.dtype(dtype)
    if not n:
        return np.empty(0, kind)
    return np.frombuffer(memoryview((ctypes.c_ubyte * (n * kind.itemsize)).from_address(address)), kind)


def _rows(base: int, used: int) -> NDArray[Any]:
    return _array(base, used, layout.ROW_DTYPE)


def _add(values: NDArray[Any], code: int, row: int, control: int) -> None:
    limit, jitter, *_, bad_limit = _array(control, 6, np.int64).tolist()
    (found,) = _rows(row, 1)
    cells = found["cells"]
    if not limit and cells[layout.SKETCHED]:
        limit = bad_limit
    _add_values(values, code, found, limit, jitter)
    if not limit and bad_limit and cells[layout.PARTS] == 1 and cells[_BAD].any():
        cells[:] = 0
        _add_values(values, code, found, bad_limit, jitter)


def _add_values(values: NDArray[Any], code: int, found: Any, limit: int, jitter: int) -> None:
    cells = found["cells"]
    cells[layout.PARTS] += 1
    stride = _stride_of(values.size, limit)
    for first, piece in _pieces(values, code):
        _add_piece(piece, cells)
        if stride:
            taken = piece[(jitter - first) % stride :: stride]
            found["bins"][:] += np.bincount(sketch.bins_of(taken), minlength=sketch.BINS).astype(np.uint32)
            cells[layout.SKETCHED] += taken.size


def _pieces(values: NDArray[Any], code: int) -> Iterator[tuple[int, NDArray[np.float64]]]:
    for first in range(0, values.size, _PIECE):
        piece = values[first : first + _PIECE]
        if code == _BFLOAT16:
            piece = (piece.astype(np.uint32) << 16).view(np.float32)
        if piece.dtype.kind == "c":
            piece = _magnitudes(piece.astype(np.complex128))
        with np.errstate(invalid="ignore"):  # signaling NaNs
            yield first, piece.astype(np.float64)


def _magnitudes(values: NDArray[np.complex128]) -> NDArray[np.float64]:
    """Return the magnitudes of complex numbers. Those of finite numbers are finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = np.abs(values)
    sizes[np.isfinite(values) & np.isinf(sizes)] = np.finfo(np.float64).max
    return sizes


def _add_piece(x: NDArray[np.float64], cells: NDArray[np.float64]) -> None:
    finite = np.isfinite(x)
    cells[layout.NAN_COUNT] += np.isnan(x).sum()
    cells[layout.POS_INF_COUNT] += np.isposinf(x).sum()
    cells[layout.NEG_INF_COUNT] += np.isneginf(x).sum()
    cells[layout.ZERO_COUNT] += (x == 0).sum()
    kept = x[finite]
    if kept.size:
        _merge(cells, _measure(kept))


def _measure(x: NDArray[np.float64]) -> _Moments:
    least, most = float(x.min()), float(x.max())
    scale = layout.scale_of(max(most, -least))
    x = np.ldexp(x, -scale)
    shift = float(x[0])
    away = x - shift
    rest = float(away.mean())
    deviation = float((away * away).sum()) - x.size * rest * rest
    return _Moments(x.size, shift + rest, max(0.0, deviation), least, most, scale)


def _merge(cells: NDArray[np.float64], new: _Moments) -> None:
    """Merge by Chan's formula, in the larger of the two scales."""
    number, mean, deviation = cells[[layout.FINITE, layout.MEAN, layout.DEVIATION]].tolist()
    if number == 0:
        cells[[layout.FINITE, layout.MEAN, layout.DEVIATION, layout.MIN, layout.MAX, layout.SCALE]] = new
        return
    scale = _common_scale((cells[layout.SCALE], mean or deviation), (new.scale, new.mean or new.deviation))
    mean, deviation = _rescaled(mean, deviation, int(cells[layout.SCALE]) - scale)
    new_mean, new_deviation = _rescaled(new.mean, new.deviation, new.scale - scale)
    delta, share = new_mean - mean, new.number / (number + new.number)
    cells[layout.FINITE] = number + new.number
    cells[layout.MEAN] = mean + delta * share
    cells[layout.DEVIATION] = deviation + new_deviation + delta * (delta * number * share)
    cells[layout.MIN] = min(cells[layout.MIN], new.least)
    cells[layout.MAX] = max(cells[layout.MAX], new.most)
    cells[layout.SCALE] = scale


def _common_scale(*parts: tuple[float, float]) -> int:
    """Return the larger scale. Parts with only zeros fit any scale."""
    return int(max((scale for scale, moments in parts if moments), default=0))


def _rescaled(mean: float, deviation: float, by: int) -> tuple[float, float]:
    return (
        (float(np.ldexp(mean, by)), float(np.ldexp(deviation, 2 * by)))
        if by and (mean or deviation)
        else (mean, deviation)
    )


def _stride_of(n: int, limit: int) -> int:
    """Return the sampling stride: 0 for no sketch, 1 for every value, else an odd number of values."""
    if limit == 0:
        return 0
    if limit < 0 or n < 2 * limit:
        return 1
    stride = n // limit
    return stride - 1 + stride % 2


class Hold:
    """Passes calls on to its host. The extension's holds some itself; see `hookcore.recorder.calls.keeping`."""

    __slots__ = ("entered", "left")
    spent_s = 0.0  # unknown

    def serve(self, entered: Any, left: Any) -> None:
        """Pass all calls on to these functions."""
        self.entered, self.left = entered, left

    def drop(self) -> None:
        """Keep nothing of the training alive."""


class HeldCall:
    """A call that was held; see `hookcore.capsules.calls`."""

    __slots__ = (
        "args",
        "at",
        "autocast",
        "entry",
        "generators",
        "gradients",
        "kwargs",
        "numbers",
        "outputs",
        "unkept",
        "updates",
        "versions",
    )


class Arrival:
    """What keeps the gradient that arrives at an output of a call."""

    __slots__ = ("call", "place")
    held = None

    def __call__(self, gradient: Any) -> None:
        """Keep it."""
        self.saw(gradient)

    def saw(self, gradient: Any) -> None:
        """Keep it."""
        raise NotImplementedError


class After:
    """The hook on a module while its call runs, and what is known of the calls of this step."""

    __slots__ = ("_hold", "holds", "hooks", "is_on", "number", "others")

    def serve(self, hold: Hold) -> None:
        """Pass to it what a call returns."""
        self._hold = hold
        self.is_on = self.holds = False
        self.others = 0
        self.hooks = self.number = None

    def left(self, module: Any, kwargs: Any, output: Any) -> None:
        """Pass on what the call returned."""
        self._hold.left(module, kwargs, output)


def know(*_: Any) -> None:
    """Take what only the extension uses."""


def know_torch(_facts: Any) -> None:
    """Do without what hooks would know of torch."""


def leave_each(_n: int) -> None:
    """Leave each n-th call of a hook to Python: without the extension, all are."""


class GradientHook:
    """What the hook on a tensor's gradient refers to. The extension's measures usual gradients without Python."""

    __slots__ = ("add", "control", "current", "grad_row", "row")
    current: Any
    add: Any  # handles gradients of any kind
    control: int  # the address of the control block
    row: int  # the address of the row of the tensor; 0 if it has none
    grad_row: int  # that of its gradient


class CallHook:
    """What a hook on the calls of modules refers to. The extension's handles usual calls without Python."""

    __slots__ = ("accompanied", "calls_regions", "current", "dispatcher", "models", "plans", "sees_returns")
    sees_returns: int  # whether it is called after modules, not before
    calls_regions: int  # whether there was a module that runs uncompiled and calls compiled ones
    current: Any
    dispatcher: Any
    models: Any
    plans: dict[int, Any]  # by id(module)
    accompanied: dict[int, Any]  # likewise: these modules are seen after their own hooks


class Track:
    """Where the steps are. Without the extension, it handles none itself; see `hookcore.recorder.clock.steady`."""

    __slots__ = ("at", "ended", "limit", "step", "updates")
    noted = joined = runs = next = 0
    spent_s = 0.0  # unknown

    def __init__(self) -> None:
        self.step = self.ended = self.updates = 0
        self.at = self.limit = 0.0

    def count_update(self) -> None:
        """Count an update of weights."""
        self.updates += 1

    def serve(self, _host: Any) -> None:
        """Pass on what isn't expected."""

    def drop(self) -> None:
        """Keep nothing of the training alive."""

    def take(self, _stops: bool) -> None:
        """Return the notes of the steps that were handled."""

    def when(self) -> tuple[int, float]:
        """Return how many steps have ended, and when the newest one did."""
        return self.ended, self.at

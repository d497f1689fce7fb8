"""Conversion of frames and snapshots to items of a batch, and back, with all checks of received data."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hookcore.errors import WireError
from hookcore.records import NO_SKETCHES, NO_STATS, NO_TAPS, STATS, UNKNOWN_OWNER, Frame, SketchBlock, Snapshot, Tap
from hookcore.records.sketch import BINS
from hookcore.records.wire.messages import FrameItem, SnapshotItem

MAX_DIMENSIONS: Final = 64
# The types that a snapshot may have: numbers and truth values, no objects.
_DTYPE_NAMES: Final = (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128"
)
DTYPES: Final = frozenset(_DTYPE_NAMES.split())
LATEST_TIME_S: Final = 253_402_300_800.0  # the year 10000, which pages can't show
_MAX_INTEGER: Final = 2**53  # the integers that JSON can represent
_COUNTS: Final = (slice(0, 4), slice(10, 12))  # the columns of STATS that count something
# The fields that are the same in a record and in its item.
_OF_FRAMES: Final = ("events", "scalars", "micro_batches", "grad_scale", "labels", "elapsed_s", "flow")
_OF_SNAPSHOTS: Final = ("tap", "step", "time_s", "dtype", "shape", "truncated", "names")
_FRAME_ARRAYS: Final = {"taps": "<u4", "start": "<u4", "bins": "<u2", "counts": "<u4"}
# Those of a frame without rows, as many steps have one: packing and checking them would take most of its time.
_NO_ROWS: Final[dict[str, Any]] = {"taps": b"", "stats": b"", "start": bytes(4), "bins": b"", "counts": b""}


def frame_item(number: int, frame: Frame) -> FrameItem:
    """Return the item for a frame. Its new taps are sent in the batch."""
    if frame.taps is NO_TAPS:
        return FrameItem(number, frame.step, frame.time_s, **_NO_ROWS, **_same(frame, _OF_FRAMES))
    block = frame.sketches
    arrays: tuple[NDArray[Any], ...] = frame.taps, block.start, block.bins, block.counts
    packed: dict[str, Any] = {
        name: _pack(array, kind) for (name, kind), array in zip(_FRAME_ARRAYS.items(), arrays, strict=True)
    }
    return FrameItem(
        number,
        frame.step,
        frame.time_s,
        stats=_pack(frame.stats, "<f8"),
        **packed,
        owners=None if frame.owners is None else _pack(frame.owners, "<i4"),
        **_same(frame, _OF_FRAMES),
    )


def frame_of(item: FrameItem, new_taps: tuple[Tap, ...] = ()) -> Frame:
    """Return the frame of an item; raise WireError if its arrays don't fit together or its numbers can't be true."""
    if not item.taps and item.owners is None and all(getattr(item, name) == data for name, data in _NO_ROWS.items()):
        _require_logged(item)
        return Frame(item.step, item.time_s, NO_TAPS, NO_STATS, NO_SKETCHES, new_taps, **_same(item, _OF_FRAMES))
    taps, start, bins, counts = (_unpack(getattr(item, name), kind, name) for name, kind in _FRAME_ARRAYS.items())
    stats = _unpack(item.stats, "<f8", "stats")
    rows = len(taps)
    _require(len(stats) == rows * len(STATS), f"{len(stats)} stats for {rows} taps of {len(STATS)}")
    stats = stats.reshape(rows, len(STATS))
    _require_counts(stats)
    # A tap that occurs many times in one frame would cost its reader far more than its bytes.
    _require(bool((taps[1:] > taps[:-1]).all()) or len(np.unique(taps)) == rows, "a tap twice in a frame")
    _require(len(start) == rows + 1, f"{len(start)} starts of sketches for {rows} taps")
    _require(len(bins) == len(counts) == int(start[-1]), f"{len(bins)} bins, {len(counts)} counts, {start[-1]} said")
    _require(start[0] == 0 and bool((start[1:] >= start[:-1]).all()), "starts of sketches that do not ascend")
    _require_ascending_bins(start, bins)
    owners = None if item.owners is None else _unpack(item.owners, "<i4", "owners")
    if owners is not None:
        _require(len(owners) == rows, f"{len(owners)} owners of {rows} taps")
        _require(bool((owners >= UNKNOWN_OWNER).all()), f"an owner that is rank {owners.min(initial=0)}")
    _require_logged(item)
    arrays = taps, stats, SketchBlock(start, bins, counts)
    return Frame(item.step, item.time_s, *arrays, new_taps, owners=owners, **_same(item, _OF_FRAMES))


def _require_logged(item: FrameItem) -> None:
    """Check what a frame has besides its rows."""
    _require(0 <= item.step < _MAX_INTEGER, f"step {item.step}")
    _require(0 <= item.micro_batches < _MAX_INTEGER, f"{item.micro_batches} micro-batches")
    _require_time(item.time_s)
    if item.flow is not None:
        _require(item.flow.is_sound, "a flow that is too large, or refers to calls that it doesn't contain")
        _require(item.flow.step == item.step, f"a flow of step {item.flow.step} in step {item.step}")
        _require(0 <= item.flow.seconds < LATEST_TIME_S, f"a flow that took {item.flow.seconds} s")
    elapsed_s = item.elapsed_s
    _require(elapsed_s != elapsed_s or 0 <= elapsed_s < LATEST_TIME_S, f"a step of {elapsed_s} s")


def snapshot_item(number: int, snapshot: Snapshot) -> SnapshotItem:
    """Return the item for a snapshot, with its values as bytes in little-endian order."""
    values = np.ascontiguousarray(snapshot.values)
    data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    same = _same(snapshot, _OF_SNAPSHOTS)
    return SnapshotItem(number, stored=values.dtype.name, values=data, request=snapshot.number, **same)


def snapshot_of(item: SnapshotItem) -> Snapshot:
    """Return the snapshot of an item; raise WireError if it can't be true.

    The values have the shape `shape`. Those of a truncated snapshot are flat.
    """
    _require(item.stored in DTYPES, f"a snapshot of type {item.stored!r}")
    kind = np.dtype(item.stored).newbyteorder("<")
    values = _unpack(item.values, kind, "values")
    _require(0 <= item.step < _MAX_INTEGER, f"step {item.step}")
    _require_time(item.time_s)
    _require(len(item.shape) <= MAX_DIMENSIONS, f"a tensor of {len(item.shape)} dimensions")
    # NumPy also multiplies the sizes of an empty tensor, so its other sizes count too.
    sizes = math.prod(max(1, size) for size in item.shape)
    _require(min(item.shape, default=0) >= 0 and sizes < _MAX_INTEGER, f"a tensor of shape {item.shape[:8]}")
    expected = math.prod(item.shape)
    whole = len(values) == expected
    _require(whole or (item.truncated and len(values) < expected), f"{len(values)} values of {expected}")
    shaped = values.reshape(item.shape) if whole else values
    return Snapshot(values=shaped, number=item.request, **_same(item, _OF_SNAPSHOTS))


def _same(record: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _require_counts(stats: NDArray[np.float64]) -> None:
    """Check that counts are counts. A row without any count is allowed; the store drops it."""
    for columns in _COUNTS:
        numbers = stats[:, columns]
        if len(stats) and numbers.min() >= 0 and numbers.max() <= _MAX_INTEGER:  # as in nearly all frames
            continue
        counts = ((numbers >= 0) & (numbers <= _MAX_INTEGER)).all(axis=1)
        _require(bool((counts | np.isnan(stats[:, 0])).all()), "a count that is negative, too large, or no number")


def _require_time(time_s: float) -> None:
    _require(0 <= time_s < LATEST_TIME_S, f"a time of {time_s} s since 1970")


def _require_ascending_bins(start: NDArray[Any], bins: NDArray[Any]) -> None:
    """Check that the bins of each row are valid and ascending."""
    if not len(bins):
        return
    _require(int(bins.max()) < BINS, f"bin {bins.max()} of {BINS}")
    ascends = bins[1:] > bins[:-1]
    borders = start[1:-1].astype(np.int64)
    borders = borders[(borders > 0) & (borders < len(bins))]
    ascends[borders - 1] = True
    _require(bool(ascends.all()), "bins that do not ascend")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise WireError(f"a hookcore message contains {what}: it was damaged, or comes from another program")


def _pack(array: NDArray[Any], kind: DTypeLike) -> bytes:
    return np.ascontiguousarray(array, kind).tobytes()


def _unpack(data: bytes, kind: DTypeLike, what: str) -> NDArray[Any]:
    dtype = np.dtype(kind)
    _require(len(data) % dtype.itemsize == 0, f"{len(data)} bytes of {what}, which come in {dtype.itemsize}")
    return np.frombuffer(data, dtype)

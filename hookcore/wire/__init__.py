"""The encoding of records between processes: msgpack by msgspec, arrays as little-endian bytes. Knows no network.

A `Batch` contains all that a receiver needs to place it, even one that has lost its memory: the sender (`run`), the
taps that may be unknown to the receiver, and numbered items. The answer says what the receiver has; if that is less
than expected, the sender sends it again. Items with a known number are ignored, so sending twice stores once.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from hookcore.errors import WireError
from hookcore.records import (
    STATS,
    Command,
    Coverage,
    Event,
    Failure,
    Frame,
    HookRecord,
    ModuleRecord,
    SketchBlock,
    Snapshot,
    Tap,
    text_of,
)
from hookcore.records.sketch import BINS
from hookcore.wire.weigh import weigh

SCHEMA: Final = 1
CONTENT_TYPE: Final = "application/vnd.hookcore.v1+msgpack"
MAX_DECODED_BYTES: Final = 384 * 2**20  # of a batch in memory, once decoded
MAX_SETTINGS_BYTES: Final = 65_536
WEIGHED_FROM_BYTES: Final = 256 * 2**10  # smaller messages can't take much memory
MAX_DIMENSIONS: Final = 64
MAX_TEXT: Final = 1000  # characters of a name; longer ones are refused
# The types that a snapshot may have: numbers and truth values, no objects.
_DTYPE_NAMES: Final = (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128"
)
DTYPES: Final = frozenset(_DTYPE_NAMES.split())
LATEST_TIME_S: Final = 253_402_300_800.0  # the year 10000, which pages can't show
_MOST: Final = 2**53  # the integers that JSON can represent
_COUNTS: Final = (slice(0, 4), slice(10, 12))  # the columns of STATS that count something
_FRAME_ARRAYS: Final = {"taps": "<u4", "start": "<u4", "bins": "<u2", "counts": "<u4"}


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The sender, which is one training process."""

    id: str  # letters, digits, "-", and "_": safe in a URL
    key: str  # a secret of the sender: without it, nothing can be added to its run
    name: str
    host: str = ""
    pid: int = 0
    started_s: float = 0.0
    script: str = ""
    versions: dict[str, str] = {}
    settings: dict[str, Any] = {}  # the current ones, commands included
    memory: int = 0  # size of its store in bytes
    # The folder in which to keep the run, on the sender's machine, as `keep_text` writes it. Only a server of the same
    # user follows it.
    keep: str = ""


class FrameItem(msgspec.Struct, tag="frame-2", frozen=True):
    """A frame; `stats` is [taps x STATS] of float64. The tag changes whenever the bins do."""

    number: int
    step: int
    time_s: float
    taps: bytes
    stats: bytes
    start: bytes
    bins: bytes
    counts: bytes
    events: tuple[Event, ...] = ()
    scalars: dict[str, float] = {}
    micro_batches: int = 0
    grad_scale: float | None = None
    labels: dict[str, str] = {}
    elapsed_s: float = float("nan")


class SnapshotItem(msgspec.Struct, tag="snapshot", frozen=True):
    """A snapshot; `stored` is the NumPy type of the bytes, `dtype` torch's name."""

    number: int
    tap: Tap
    step: int
    time_s: float
    dtype: str
    shape: tuple[int, ...]
    stored: str
    values: bytes
    truncated: bool = False
    request: int = -1


class EndItem(msgspec.Struct, tag="end", frozen=True):
    """The end of the run; no items follow. `failure` gives the cause, unless it ended normally."""

    number: int
    step: int
    failure: Failure | None = None


Item = FrameItem | SnapshotItem | EndItem


class Description(msgspec.Struct, frozen=True):
    """All that a run consists of. A newer version replaces an older one."""

    version: int
    modules: tuple[ModuleRecord, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    hooks: tuple[HookRecord, ...] = ()


class Books(msgspec.Struct, frozen=True):
    """The sender's counters: produced = acknowledged + dropped (by reason) + waiting + in flight."""

    produced: int = 0
    acknowledged: int = 0
    dropped: dict[str, int] = {}
    waiting: int = 0
    in_flight: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Without items, it shows that the sender is alive and fetches commands."""

    schema: int = SCHEMA
    run: RunInfo
    taps_from: int = 0  # the number of the first of `taps`; all earlier ones were acknowledged
    taps: tuple[Tap, ...] = ()
    description: Description | None = None
    items: tuple[Item, ...] = ()
    books: Books = Books()
    commands_done: int = -1  # the highest command that was carried out
    retained: int = -1  # the highest acknowledged item that the sender can send again


class _RunSize(msgspec.Struct):
    settings: msgspec.Raw = msgspec.Raw(b"\x80")


class _Size(msgspec.Struct):
    """The parts of a batch that can be large, not decoded yet."""

    run: _RunSize


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the receiver has. If `taps` is below the batch's `taps_from`, it took nothing of the batch."""

    acknowledged: int  # the highest item taken; -1 before the first
    taps: int  # number of known taps
    described: int  # the known version of the description; -1 before the first
    commands: tuple[Command, ...] = ()
    durable: int | None = None  # the highest item that a restart can't lose; None: the sender needn't retain any


_encoder = msgspec.msgpack.Encoder()
_sizes = msgspec.msgpack.Decoder(_Size)
_batches = msgspec.msgpack.Decoder(Batch)
_answers = msgspec.msgpack.Decoder(Answer)
Message = TypeVar("Message", Batch, Answer, _Size)


def keep_text(folder: str) -> str:
    """Return a folder's path as text that every receiver can read: a path that isn't UTF-8 becomes a file: address."""
    return folder if text_of(folder) == folder else Path(folder).absolute().as_uri()


def keep_folder(text: str) -> str:
    """Return the path behind a text of `keep_text`."""
    return os.fsdecode(unquote_to_bytes(text[len("file://") :])) if text.startswith("file://") else text


def encode(message: Batch | Answer) -> bytes:
    """Encode a message."""
    return _encoder.encode(message)


def decode_batch(data: bytes | bytearray, most_bytes: int = MAX_DECODED_BYTES) -> Batch:
    """Decode a batch; raise WireError with what is wrong.

    A batch that would take more than `most_bytes` of memory is refused before it is decoded.
    """
    if len(data) > WEIGHED_FROM_BYTES:
        weigh(data, most_bytes)
    settings = len(_decode(_sizes, data).run.settings)
    _require(settings <= MAX_SETTINGS_BYTES, f"{settings} bytes of settings; at most {MAX_SETTINGS_BYTES} are allowed")
    batch = _decode(_batches, data)
    if batch.schema != SCHEMA:
        raise WireError(f"a batch of schema {batch.schema}; this server reads schema {SCHEMA}: use the same hookcore")
    return batch


def decode_answer(data: bytes) -> Answer:
    """Decode an answer; raise WireError with what is wrong."""
    return _decode(_answers, data)


def _decode(decoder: msgspec.msgpack.Decoder[Message], data: bytes | bytearray) -> Message:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise WireError(f"this is not a hookcore message: {error}") from None


def frame_item(number: int, frame: Frame) -> FrameItem:
    """Return the item for a frame. Its new taps are sent in the batch."""
    block = frame.sketches
    arrays: dict[str, NDArray[Any]] = {
        "taps": frame.taps,
        "start": block.start,
        "bins": block.bins,
        "counts": block.counts,
    }
    packed = {name: _pack(array, _FRAME_ARRAYS[name]) for name, array in arrays.items()}
    return FrameItem(
        number,
        frame.step,
        frame.time_s,
        stats=_pack(frame.stats, "<f8"),
        **packed,
        events=frame.events,
        scalars=frame.scalars,
        micro_batches=frame.micro_batches,
        grad_scale=frame.grad_scale,
        labels=frame.labels,
        elapsed_s=frame.elapsed_s,
    )


def frame_of(item: FrameItem, new_taps: tuple[Tap, ...] = ()) -> Frame:
    """Return the frame of an item; raise WireError if its arrays don't fit together or its numbers can't be true."""
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
    _require(0 <= item.step < _MOST, f"step {item.step}")
    _require(0 <= item.micro_batches < _MOST, f"{item.micro_batches} micro-batches")
    _require_time(item.time_s)
    elapsed_s = item.elapsed_s
    _require(elapsed_s != elapsed_s or 0 <= elapsed_s < LATEST_TIME_S, f"a step of {elapsed_s} s")
    return Frame(
        item.step,
        item.time_s,
        taps,
        stats,
        SketchBlock(start, bins, counts),
        new_taps,
        item.events,
        item.scalars,
        item.micro_batches,
        item.grad_scale,
        item.labels,
        item.elapsed_s,
    )


def snapshot_item(number: int, snapshot: Snapshot) -> SnapshotItem:
    """Return the item for a snapshot."""
    values = np.ascontiguousarray(snapshot.values)
    return SnapshotItem(
        number,
        snapshot.tap,
        snapshot.step,
        snapshot.time_s,
        snapshot.dtype,
        snapshot.shape,
        values.dtype.name,
        values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes(),
        snapshot.truncated,
        snapshot.number,
    )


def snapshot_of(item: SnapshotItem) -> Snapshot:
    """Return the snapshot of an item; raise WireError if it can't be true.

    The values have the shape `shape`. Those of a truncated snapshot are flat.
    """
    _require(item.stored in DTYPES, f"a snapshot of type {item.stored!r}")
    kind = np.dtype(item.stored).newbyteorder("<")
    values = _unpack(item.values, kind, "values")
    _require(0 <= item.step < _MOST, f"step {item.step}")
    _require_time(item.time_s)
    _require(len(item.shape) <= MAX_DIMENSIONS, f"a tensor of {len(item.shape)} dimensions")
    # NumPy also multiplies the sizes of an empty tensor, so its other sizes count too.
    sizes = math.prod(max(1, size) for size in item.shape)
    _require(min(item.shape, default=0) >= 0 and sizes < _MOST, f"a tensor of shape {item.shape[:8]}")
    expected = math.prod(item.shape)
    whole = len(values) == expected
    _require(whole or (item.truncated and len(values) < expected), f"{len(values)} values of {expected}")
    return Snapshot(
        item.tap,
        item.step,
        item.time_s,
        item.dtype,
        item.shape,
        values.reshape(item.shape) if whole else values,
        item.truncated,
        item.request,
    )


def _require_counts(stats: NDArray[np.float64]) -> None:
    """Check that counts are counts. A row without any count is allowed; the store drops it."""
    for columns in _COUNTS:
        numbers = stats[:, columns]
        counts = ((numbers >= 0) & (numbers <= _MOST)).all(axis=1)
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

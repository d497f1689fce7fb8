"""The encoding of records between processes: msgpack by msgspec, arrays as little-endian bytes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from hookcore.errors import WireError
from hookcore.records import (
    NO_SKETCHES,
    NO_STATS,
    NO_TAPS,
    STATS,
    UNKNOWN_OWNER,
    Command,
    Coverage,
    Event,
    Failure,
    Frame,
    HookRecord,
    ModuleRecord,
    Names,
    SketchBlock,
    Snapshot,
    Tap,
    Value,
    text_of,
)
from hookcore.records.flow import Flow
from hookcore.records.sketch import flaw_of

# The messages between a trainer and a server, and their parts.

SCHEMA: Final = 1
CONTENT_TYPE: Final = "application/vnd.hookcore.v1+msgpack"
MAX_TEXT: Final = 1000  # characters of a name; longer ones are refused
# Of a configuration, and of the facts about a run: a description goes with each message.
MAX_VALUES: Final = 400
MAX_BYTES: Final = 131_072  # encoded
_ENTRY: Final = 16  # bytes of a name and a value without their texts, at most


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A process's place in a distributed training. All processes with the same `job` train one model together."""

    job: str  # a hash of what the launcher calls the training: letters, digits, "-", and "_"
    rank: int
    world: int  # number of ranks
    local_rank: int = 0
    device: str = ""  # such as "cuda:3"
    attempt: int = 0  # how often the launcher has restarted the training or this rank
    axes: dict[str, tuple[int, int]] = {}  # of the device mesh: this rank's coordinate, and the axis's size


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The sender, which is one training process."""

    id: str  # letters, digits, "-", and "_": safe in a URL
    key: str  # a secret of the sender: without it, nothing can be added to its run
    name: str
    host: str = ""
    pid: int = 0
    process: str = ""  # distinguishes it from later processes with its number, and from those on other machines
    started_s: float = 0.0
    script: str = ""
    versions: dict[str, str] = {}
    settings: dict[str, Any] = {}  # the current ones, commands included
    memory: int = 0  # size of its store in bytes
    # The folder in which to keep the run, on the sender's machine, as `keep_text` writes it. Only a server of the same
    # user follows it.
    keep: str = ""
    place: Place | None = None  # None: not distributed
    config: dict[str, Value] = {}  # what its user says that it trains with, flattened: "model.width"
    config_cut: int = 0  # values that were left out or shortened
    facts: dict[str, Value] = {}  # recognized facts
    facts_cut: int = 0
    tags: tuple[str, ...] = ()
    group: str = ""
    notes: str = ""

    @property
    def rank(self) -> int:
        """The rank; 0 without others."""
        return 0 if self.place is None else self.place.rank


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
    flow: Flow | None = None
    owners: bytes | None = None  # [taps] of int32; see Frame


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
    names: Names | None = None


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


class DeliveryCounters(msgspec.Struct, frozen=True):
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
    counters: DeliveryCounters = msgspec.field(default=DeliveryCounters(), name="books")
    commands_done: int = -1  # the highest command that was carried out
    retained: int = -1  # the highest acknowledged item that the sender can send again


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver's state. If `taps` is below the batch's `taps_from`, it took nothing from the batch."""

    acknowledged: int  # the highest item taken; -1 before the first
    taps: int  # number of known taps
    described: int  # the known version of the description; -1 before the first
    commands: tuple[Command, ...] = ()
    incidents: int = 0  # the version of the run's incidents; another number means that they have changed
    durable: int | None = None  # the highest item that a restart can't lose; None: the sender needn't retain any
    saved: bool | None = None  # whether a restart can lose nothing, not even the end; None: see `durable`
    given_up: str = ""  # why the rest of an ended run will not be saved, such as a full disk; empty if it may be
    followed: bool = True  # whether somebody may look at the run now; if not, frames may wait for others


def keep_text(folder: str) -> str:
    """Return a folder's path as text that every receiver can read: a path that isn't UTF-8 becomes a file: address."""
    return folder if text_of(folder) == folder else Path(folder).absolute().as_uri()


def keep_folder(text: str) -> str:
    """Return the path behind a text of `keep_text`."""
    return os.fsdecode(unquote_to_bytes(text[len("file://") :])) if text.startswith("file://") else text


# Conversion of frames and snapshots to items of a batch, and back, with all checks of received data.

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
_SKETCH_ARRAYS: Final = tuple(_FRAME_ARRAYS.items())[1:]
_TAPS_KNOWN: Final = 16  # arrays of taps that frames have had lately: most frames of a run have the same
_MAX_KNOWN: Final = 256 * 2**10  # bytes of such an array
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
    # Taps are kept, but not large ones, or those of a frame that is refused.
    is_usual = len(item.taps) <= _MAX_KNOWN and len(item.stats) == len(item.taps) // 4 * 8 * len(STATS)
    taps = (_taps_of if is_usual else _taps_of.__wrapped__)(item.taps)
    start, bins, counts = (_unpack(getattr(item, name), kind, name) for name, kind in _SKETCH_ARRAYS)
    stats = _unpack(item.stats, "<f8", "stats")
    rows = len(taps)
    _require(len(stats) == rows * len(STATS), f"{len(stats)} stats for {rows} taps of {len(STATS)}")
    stats = stats.reshape(rows, len(STATS))
    _require_counts(stats)
    _require(len(start) == rows + 1, f"{len(start)} starts of sketches for {rows} taps")
    _require(len(bins) == len(counts) == int(start[-1]), f"{len(bins)} bins, {len(counts)} counts, {start[-1]} said")
    _require(start[0] == 0 and bool((start[1:] >= start[:-1]).all()), "starts of sketches that do not ascend")
    flaw = flaw_of(start, bins)
    _require(flaw is None, flaw or "")
    owners = None if item.owners is None else _unpack(item.owners, "<i4", "owners")
    if owners is not None:
        _require(len(owners) == rows, f"{len(owners)} owners of {rows} taps")
        _require(bool((owners >= UNKNOWN_OWNER).all()), f"an owner that is rank {owners.min(initial=0)}")
    _require_logged(item)
    arrays = taps, stats, SketchBlock(start, bins, counts)
    return Frame(item.step, item.time_s, *arrays, new_taps, owners=owners, **_same(item, _OF_FRAMES))


@lru_cache(_TAPS_KNOWN)
def _taps_of(data: bytes) -> NDArray[np.uint32]:
    """Return the numbers of taps: one array for all frames that have the same, by which the store knows them again."""
    taps = _unpack(data, "<u4", "taps").astype(np.uint32)
    # A tap that occurs many times in one frame would cost its reader far more than its bytes.
    _require(bool((taps[1:] > taps[:-1]).all()) or len(np.unique(taps)) == len(taps), "a tap twice in a frame")
    taps.setflags(write=False)
    return taps


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

    The values have the shape `shape`. Those of a truncated one are its first rows, or the first values of a row, flat.
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
    shaped = values.reshape(item.shape) if whole else _first_rows(values, item.shape)
    return Snapshot(values=shaped, number=item.request, **_same(item, _OF_SNAPSHOTS))


def _first_rows(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return values as the first rows of a tensor of this shape; flat if they are less than one."""
    row = math.prod(shape[1:])
    return values.reshape(-1, *shape[1:]) if len(values) and len(values) % row == 0 else values


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


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise WireError(f"a hookcore message contains {what}: it was damaged, or comes from another program")


def _pack(array: NDArray[Any], kind: DTypeLike) -> bytes:
    return np.ascontiguousarray(array, kind).tobytes()


def _unpack(data: bytes, kind: DTypeLike, what: str) -> NDArray[Any]:
    dtype = np.dtype(kind)
    _require(len(data) % dtype.itemsize == 0, f"{len(data)} bytes of {what}, which come in {dtype.itemsize}")
    return np.frombuffer(data, dtype)


MAX_TEXT_BYTES: Final = 2**16  # of one string
_ITEM: Final = 80  # bytes of an object and its slot in a list
_PAIR: Final = 100  # of a field, or of a key and its value
_TEXT: Final = 4  # maximum bytes of a character


def _whole_sizes() -> list[int]:
    """Return the size of an item by its first byte, if that determines it; 0 otherwise."""
    sizes = [0] * 256
    for first in (*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):
        sizes[first] = 1
    for first in range(0xA0, 0xC0):
        sizes[first] = 1 + (first & 31)
    for first, size in ((0xCA, 4), (0xCB, 8), (0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
        sizes[first] = 1 + size
    for power in range(4):
        sizes[0xD0 + power] = 1 + 2**power
    return sizes


# first byte: number of length bytes that follow, and the kind of item
_LENGTHS: Final = {
    **{0xC4 + place: (2**place, "bytes") for place in range(3)},
    **{0xD9 + place: (2**place, "text") for place in range(3)},
    **{0xDC + place: (2 << place, "array") for place in range(2)},
    **{0xDE + place: (2 << place, "map") for place in range(2)},
}
_WHOLE: Final = _whole_sizes()


def weigh(data: bytes | bytearray, most: int) -> int:
    """Return the approximate size of a decoded message in bytes, erring on the high side.

    Raises WireError as soon as the size exceeds `most`, or if the message is damaged. Reading stops at the first list
    that is too long, so a hostile message costs less than an honest one.
    """
    position, left, weight, end = 0, 1, _ITEM, len(data)
    while left:
        if position >= end:
            break
        first = data[position]
        left -= 1
        if size := _WHOLE[first]:
            position += size
            continue
        kind, length, position = _head_of(data, first, position)
        if kind in ("array", "map"):
            left += length * (2 if kind == "map" else 1)
            weight += length * (_PAIR if kind == "map" else _ITEM)
        else:
            position += length
            weight += length * (_TEXT if kind == "text" else 1)
            if kind == "text" and length > MAX_TEXT_BYTES:
                raise WireError(f"the message has a string of {length} bytes; the limit is {MAX_TEXT_BYTES}")
        if weight > most:
            raise WireError(f"the message exceeds {most} bytes of memory once decoded: split it")
    if left or position > end:
        raise WireError("the message is truncated: it ends in the middle of a value")
    return weight


def _head_of(data: bytes | bytearray, first: int, position: int) -> tuple[str, int, int]:
    """Return the kind of an item with a length, its length, and the position of its content."""
    if 0x80 <= first < 0xA0:
        return "map" if first < 0x90 else "array", first & 15, position + 1
    if first not in _LENGTHS:
        raise WireError(f"the message has a value of msgpack type {first:#04x}, which hookcore does not use")
    size, kind = _LENGTHS[first]
    begin = position + 1
    return kind, int.from_bytes(data[begin : begin + size], "big"), begin + size


MAX_DECODED_BYTES: Final = 384 * 2**20  # of a batch in memory, once decoded
MAX_SETTINGS_BYTES: Final = 65_536


class _RunSize(msgspec.Struct):
    settings: msgspec.Raw = msgspec.Raw(b"\x80")
    config: msgspec.Raw = msgspec.Raw(b"\x80")
    facts: msgspec.Raw = msgspec.Raw(b"\x80")


class _Size(msgspec.Struct):
    """The parts of a batch that can be large, not decoded yet."""

    run: _RunSize


_encoder = msgspec.msgpack.Encoder()
_sizes = msgspec.msgpack.Decoder(_Size)
_batches = msgspec.msgpack.Decoder(Batch)
_answers = msgspec.msgpack.Decoder(Receipt)
Message = TypeVar("Message", Batch, Receipt, _Size)


def encode(message: Batch | Receipt) -> bytes:
    """Encode a message."""
    return _encoder.encode(message)


def decode_batch(data: bytes | bytearray, most_bytes: int = MAX_DECODED_BYTES) -> Batch:
    """Decode a batch. Raises WireError with the problem.

    A batch that would take more than `most_bytes` of memory is refused before it is decoded.
    """
    if (len(data) + 1) * _ITEM > most_bytes:  # or it can't take so much, whatever it contains
        weigh(data, most_bytes)
    run = _decode(_sizes, data).run
    for name in run.__struct_fields__:
        size, most = len(getattr(run, name)), MAX_SETTINGS_BYTES if name == "settings" else MAX_BYTES
        if size > most:
            raise WireError(f"a batch has {size} bytes of {name}; at most {most} are allowed")
    batch = _decode(_batches, data)
    if batch.schema != SCHEMA:
        raise WireError(f"a batch of schema {batch.schema}; this server reads schema {SCHEMA}: use the same hookcore")
    return batch


def decode_answer(data: bytes) -> Receipt:
    """Decode an answer. Raises WireError with the problem."""
    return _decode(_answers, data)


def _decode(decoder: msgspec.msgpack.Decoder[Message], data: bytes | bytearray) -> Message:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise WireError(f"this is not a hookcore message: {error}") from None


def first_values(values: Mapping[str, Value]) -> tuple[dict[str, Value], int]:
    """Return the first values, as many as fit into a description, and how many were left out."""
    kept: dict[str, Value] = {}
    room = MAX_BYTES - _ENTRY
    for name, value in islice(values.items(), MAX_VALUES):
        room -= _ENTRY + sum(len(text.encode("utf-8", "replace")) for text in (name, value) if isinstance(text, str))
        if room < 0:
            break
        kept[name] = value
    return kept, len(values) - len(kept)

"""The encoding of records between processes: msgpack by msgspec, arrays as little-endian bytes. Knows no network.

A `Batch` contains all that a receiver needs to place it, even one that has lost its memory: the sender (`run`), the
taps that may be unknown to the receiver, and numbered items. The answer says what the receiver has; if that is less
than expected, the sender sends it again. Items with a known number are ignored, so sending twice stores once.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from hookcore.errors import WireError
from hookcore.records.values import MAX_BYTES
from hookcore.records.wire.items import DTYPES, LATEST_TIME_S, frame_item, frame_of, snapshot_item, snapshot_of
from hookcore.records.wire.messages import (
    CONTENT_TYPE,
    MAX_TEXT,
    SCHEMA,
    Answer,
    Batch,
    DeliveryCounters,
    Description,
    EndItem,
    FrameItem,
    Item,
    Place,
    RunInfo,
    SnapshotItem,
    keep_folder,
    keep_text,
)
from hookcore.records.wire.weigh import weigh

MAX_DECODED_BYTES: Final = 384 * 2**20  # of a batch in memory, once decoded
MAX_SETTINGS_BYTES: Final = 65_536
WEIGHED_FROM_BYTES: Final = 256 * 2**10  # smaller messages can't take much memory


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
_answers = msgspec.msgpack.Decoder(Answer)
Message = TypeVar("Message", Batch, Answer, _Size)


def encode(message: Batch | Answer) -> bytes:
    """Encode a message."""
    return _encoder.encode(message)


def decode_batch(data: bytes | bytearray, most_bytes: int = MAX_DECODED_BYTES) -> Batch:
    """Decode a batch. Raises WireError with the problem.

    A batch that would take more than `most_bytes` of memory is refused before it is decoded.
    """
    if len(data) > WEIGHED_FROM_BYTES:
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


def decode_answer(data: bytes) -> Answer:
    """Decode an answer. Raises WireError with the problem."""
    return _decode(_answers, data)


def _decode(decoder: msgspec.msgpack.Decoder[Message], data: bytes | bytearray) -> Message:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise WireError(f"this is not a hookcore message: {error}") from None


# fmt: off
__all__ = [
    "CONTENT_TYPE", "DTYPES", "LATEST_TIME_S", "MAX_DECODED_BYTES", "MAX_TEXT", "SCHEMA", "Answer", "Batch",
    "DeliveryCounters", "Description", "EndItem", "FrameItem", "Item", "Place", "RunInfo", "SnapshotItem",
    "decode_answer", "decode_batch", "encode", "frame_item", "frame_of", "keep_folder", "keep_text", "snapshot_item",
    "snapshot_of",
]
# fmt: on

"""What a restart must bring back, as a training had it at one moment: hashes and norms of weights and states."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from hookcore.errors import ArgumentError

MOMENT_TYPE: Final = "application/x-hookcore-moment"  # the dtype of a snapshot whose values are a moment's bytes
MAX_ROWS: Final = 4096  # tensors of a moment
_MAX_BYTES: Final = 8 * 2**20  # unpacked
WEIGHT: Final = "weight"
BUFFER: Final = "buffer"
COUNTER: Final = "counter"  # a buffer that is a single integer, such as the number of batches of a BatchNorm


When = Literal["begun", "saved", "ended"]  # before the first step, by `state_dict()`, or as the watch closes


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """A tensor: its name, what it is (or the name of an optimizer's state), and what its first values are."""

    name: str
    what: str
    dtype: str
    size: int  # values of the whole tensor, or of this rank's part
    hash: str
    norm: float | None  # of the values that are hashed; None if it isn't finite


class Moment(msgspec.Struct, frozen=True):
    """What one optimizer steps and keeps: before its first step in a run, as its state is saved, or at the end."""

    when: When
    optimizer: int  # its place among those of the run
    type: str
    rates: tuple[float | None, ...]  # the learning rate of each group; None if it is on a device
    generators: dict[str, str]  # hashes of the states of random generators
    scale: float | None  # of the loss; None without a scaler, or if it is on a device
    held: tuple[Noted, ...]
    left_out: int  # tensors without a row

    def packed(self) -> bytes:
        """Return it as bytes."""
        return zlib.compress(msgspec.json.encode(self), 6)

    @property
    def by_name(self) -> Mapping[tuple[str, str], Noted]:
        """Its tensors by name and by what they are."""
        return {(each.name, each.what): each for each in self.held}


_decode: Final = msgspec.json.Decoder(Moment).decode


def unpack_moment(data: Any) -> Moment:
    """Return a moment from its bytes."""
    try:
        opened = zlib.decompressobj()
        return _decode(opened.decompress(bytes(data), _MAX_BYTES))
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"what a run says about its state can't be read ({error}): it was damaged, or written by a newer version"
        ) from None

"""What a training notes apart from its frames, as bytes in snapshots.

What a restart must bring back, as it was at one moment: hashes and norms of weights and states. And which samples each
step had: the ledger of samples.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from hookcore.errors import ArgumentError

MOMENT_TYPE: Final = "application/x-hookcore-moment"  # the dtype of a snapshot whose values are a moment's bytes
MAX_ROWS: Final = 4096  # tensors of a moment
HASHED: Final = 65_536  # values of a tensor, the first ones
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
    return cast(Moment, _unpack(data, _decode, "its state"))


def _unpack(data: Any, decode: Callable[[bytes], Any], what: str) -> Any:
    try:
        opened = zlib.decompressobj()
        return decode(opened.decompress(bytes(data), _MAX_BYTES))
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"what a run says about {what} can't be read ({error}): it was damaged, or written by a newer version"
        ) from None


# The ledger of samples.

SAMPLES_TYPE: Final = "application/x-hookcore-samples"  # the dtype of a snapshot whose values are a block's bytes
MAX_IDS: Final = 4096  # of one batch; of a larger one, the rest is counted
Id = int | str


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A batch of a step, and what its samples are called."""

    back: int  # by how many steps it is before its block's last step
    source: str  # the class of its data set; empty if the script named the samples
    ids: tuple[Id, ...]
    rows: tuple[int, ...]  # how many samples each row has; empty: one
    left_out: int  # samples beyond the limit
    why: str  # the samples aren't known; empty if they are


class SampleBlock(msgspec.Struct, frozen=True):
    """The batches of some steps."""

    batches: tuple[Batch, ...]
    dropped: int  # batches of the run until now that found no room
    doubt: str  # why no batch of a loader is known to be its step's, if it turned out that some weren't

    def packed(self) -> bytes:
        """Return it as bytes."""
        return zlib.compress(msgspec.json.encode(self), 6)


class SamplesOfStep(NamedTuple):
    """The batches of a step, and why their samples aren't known, or not all."""

    batches: tuple[Batch, ...]
    why: str | None


NO_SAMPLES: Final = (
    "no batch of a torch DataLoader was seen in a training step, and the script has named no samples with "
    "watcher.samples(ids)"
)


def why_unknown(
    step: int, found: tuple[Batch, ...], near: Iterable[int], newest: SampleBlock, is_gone: bool
) -> str | None:
    """Return why the samples of a step aren't known; None if they are. `near`: the steps of batches around it."""
    if found:
        return next((each.why or newest.doubt for each in found if each.why or (newest.doubt and each.source)), None)
    if is_gone:
        return f"the batches of step {step:,} were dropped, because the ledger keeps the newest ones"
    before = max((each for each in near if each < step), default=None)
    last = "" if before is None else f"; the last one before it was loaded in step {before:,}"
    lost = f", or {newest.dropped:,} batches had no room" if newest.dropped else ""
    return f"no batch was loaded in step {step:,}{last}{lost}"


_decode_block: Final = msgspec.json.Decoder(SampleBlock).decode


def unpack_samples(data: Any) -> SampleBlock:
    """Return a block from its bytes."""
    return cast(SampleBlock, _unpack(data, _decode_block, "its samples"))

"""The messages between a trainer and a server, and their parts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from hookcore.records import Command, Coverage, Event, Failure, HookRecord, ModuleRecord, Names, Tap, Value, text_of
from hookcore.records.flow import Flow

SCHEMA: Final = 1
CONTENT_TYPE: Final = "application/vnd.hookcore.v1+msgpack"
MAX_TEXT: Final = 1000  # characters of a name; longer ones are refused


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


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver's state. If `taps` is below the batch's `taps_from`, it took nothing from the batch."""

    acknowledged: int  # the highest item taken; -1 before the first
    taps: int  # number of known taps
    described: int  # the known version of the description; -1 before the first
    commands: tuple[Command, ...] = ()
    incidents: int = 0  # the version of the run's incidents; another number means that they have changed
    durable: int | None = None  # the highest item that a restart can't lose; None: the sender needn't retain any
    saved: bool | None = None  # whether a restart can lose nothing, not even the end; None: see `durable`
    given_up: str = ""  # why the rest of an ended run will not be saved, such as a full disk; empty if it may be


def keep_text(folder: str) -> str:
    """Return a folder's path as text that every receiver can read: a path that isn't UTF-8 becomes a file: address."""
    return folder if text_of(folder) == folder else Path(folder).absolute().as_uri()


def keep_folder(text: str) -> str:
    """Return the path behind a text of `keep_text`."""
    return os.fsdecode(unquote_to_bytes(text[len("file://") :])) if text.startswith("file://") else text

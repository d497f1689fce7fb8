"""The contents of the outbox: records with their sizes, shortened to fit, and sent again if a receiver loses them."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from hookcore.records import Coverage, Event, Frame, HookRecord, ModuleRecord, Snapshot, Tap, plain
from hookcore.records.flow import Flow, TensorForm
from hookcore.records.wire import MAX_TEXT, DeliveryCounters, Description, EndItem, Receipt, RunInfo

# Shortens strings that exceed the server's limits, so that one odd name doesn't get a whole batch rejected.

MAX_LONG_TEXT: Final = 16_000  # characters of a message, or of a traceback
MAX_SETTING: Final = 4_000  # characters of one setting
_LONG_TEXTS: Final = frozenset({"message", "reason", "function", "where", "warning", "source"})

Record = TypeVar("Record", Tap, Event, ModuleRecord, Coverage, HookRecord)


def cut(text: str, longest: int = MAX_TEXT) -> str:
    """Return the text, or its beginning and a hash of the rest, so that two long names stay distinct."""
    if len(text) <= longest:
        return text
    mark = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{text[: longest - 14]}~{mark}"


def fitted(record: Record) -> Record:
    """Return the record with shortened strings; most are returned unchanged."""
    changes: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        longest = MAX_LONG_TEXT if field.name in _LONG_TEXTS or isinstance(value, dict) else MAX_TEXT
        short = _cut_texts(value, longest)
        if short != value:
            changes[field.name] = short
    return replace(record, **changes) if changes else record


def _cut_texts(value: Any, longest: int) -> Any:
    """Return a value with all strings in it shortened, but the names of facts."""
    if isinstance(value, str):
        return cut(value, longest)
    if isinstance(value, tuple):
        return tuple(_cut_texts(part, longest) for part in value)
    return {name: _cut_texts(fact, longest) for name, fact in value.items()} if isinstance(value, dict) else value


def fitted_frame(frame: Frame) -> Frame:
    """Return the frame with shortened strings; its new taps are not checked."""
    has_texts = frame.events or frame.labels or frame.flow is not None
    if all(len(name) <= MAX_TEXT for name in frame.scalars) and not has_texts:
        return frame
    return replace(
        frame,
        events=tuple(map(fitted, frame.events)),
        scalars={cut(name): value for name, value in frame.scalars.items()},
        labels={cut(name): cut(text) for name, text in frame.labels.items()},
        flow=None if frame.flow is None else _fitted_flow(frame.flow),
    )


def _fitted_flow(flow: Flow) -> Flow:
    calls, sizes = flow.calls, flow.sizes
    if any(len(call.module) > MAX_TEXT for call in calls):
        calls = tuple(replace(call, module=cut(call.module)) for call in calls)
    if any(len(form.place) > MAX_TEXT for size in sizes for form in (*size.inputs, *size.outputs)):
        sizes = tuple(replace(size, inputs=_cut(size.inputs), outputs=_cut(size.outputs)) for size in sizes)
    return replace(flow, calls=calls, sizes=sizes)


def _cut(forms: tuple[TensorForm, ...]) -> tuple[TensorForm, ...]:
    return tuple(replace(form, place=cut(form.place)) for form in forms)


def fitted_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with very long lists abbreviated."""
    texts = {name: repr(value) for name, value in settings.items()}
    short = {name: value for name, value in plain(settings).items() if len(texts[name]) <= MAX_SETTING}
    return {name: short[name] if name in short else cut(texts[name]) for name in settings}


PARCEL_BYTES: Final = 8_000_000  # a larger item is sent alone
STRIKES: Final = 2  # a part that was refused this often by itself is dropped
_TAP_BYTES: Final = 80  # of a tap, besides its texts

Described = TypeVar("Described", ModuleRecord, Coverage)


@dataclass(slots=True, eq=False)
class Entry:
    """A frame or a snapshot with its number."""

    number: int
    record: Frame | Snapshot
    size: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """The content of one batch."""

    taps_from: int
    taps: tuple[Tap, ...]
    description: Description | None
    entries: tuple[Entry, ...]
    end: EndItem | None
    counters: DeliveryCounters
    retained: int = -1  # the highest acknowledged item that can be sent again

    @property
    def has_news(self) -> bool:
        """Whether it is more than a sign of life."""
        return bool(self.taps or self.description or self.entries or self.end)


def _some_taps(taps: Sequence[Tap], first: int) -> tuple[Tap, ...]:
    """Return the taps from this number on, as many as one parcel takes."""
    room, last = PARCEL_BYTES, first
    while last < len(taps) and room > 0:
        room -= _TAP_BYTES + len(taps[last].module) + len(taps[last].index)
        last += 1
    return tuple(taps[first:last])


class CurrentDescription:
    """The description of the run, with a version that changes only if the content does."""

    def __init__(self) -> None:
        self.version = -1
        self._modules: dict[str, ModuleRecord] = {}
        self._coverage: dict[str, Coverage] = {}
        self._hooks: tuple[HookRecord, ...] = ()

    def update(
        self, modules: Sequence[ModuleRecord], coverage: Sequence[Coverage], hooks: Sequence[HookRecord]
    ) -> bool:
        """Return whether anything is new."""
        differs = _update(self._modules, modules)
        differs |= _update(self._coverage, coverage)
        new_hooks = tuple(map(fitted, hooks)) or self._hooks
        if not differs and new_hooks == self._hooks:
            return False
        self._hooks = new_hooks
        self.version += 1
        return True

    @property
    def whole(self) -> Description:
        """The description."""
        return Description(self.version, tuple(self._modules.values()), tuple(self._coverage.values()), self._hooks)


def _update(records: dict[str, Described], described: Sequence[Described]) -> bool:
    """Update records by path; return whether any of them changed."""
    differs = False
    for record in described:
        if records.get(record.path) != record and records.get((record := fitted(record)).path) != record:
            records[record.path] = record
            differs = True
    return differs


class Recipient:
    """What the receiver of a run knows of its taps and its description, and which part of a batch it refuses.

    A trainer's queue in memory (`Outbox`) and a collector's on disk (`app/collector/lanes.py`) ask it what to send.
    """

    def __init__(self) -> None:
        self.taps = 0  # how many it knows
        self.described = -1  # the version of the description that it has
        self._refused = -1  # and the one that it will never take
        self.is_careful = False  # something was refused, so parts are sent one by one to find it
        self._strikes: Counter[tuple[int | None, ...]] = Counter()  # of a part that was sent by itself

    def lacks(self, taps: int, version: int) -> bool:
        """Return whether it needs names of taps, or the description."""
        return self.taps < taps or self._lacks_description(version)

    def _lacks_description(self, version: int) -> bool:
        return max(self.described, self._refused) < version

    def next_parts(self, taps: Sequence[Tap], version: int) -> tuple[tuple[Tap, ...], bool, bool]:
        """Return the taps to send now, whether to send the description, and whether to send items: after their taps."""
        describes = self._lacks_description(version)
        some = () if self.is_careful and describes else _some_taps(taps, self.taps)
        is_whole = self.taps + len(some) == len(taps)
        return some, describes, is_whole and not (self.is_careful and (some or describes))

    def hear(self, answer: Receipt, taps: int, version: int, has_arrived: bool) -> bool:
        """Process an answer to a batch of which some item has arrived, or none. Return whether it knows more now."""
        before = self.taps, self.described
        self.taps, self.described = max(0, min(answer.taps, taps)), min(answer.described, version)
        if has_arrived:
            self.is_careful = False
            self._strikes.clear()
        return self.taps > before[0] or self.described > before[1]

    def refuse(self, has_taps: bool, version: int | None, items: Sequence[int], is_final: bool = False) -> bool:
        """Process the refusal of these parts. Return whether their only item must be dropped."""
        self.is_careful, part = True, (version, *items)
        if has_taps + (version is not None) + len(items) != 1:
            return False
        self._strikes[part] += 1
        is_out = is_final or self._strikes[part] >= STRIKES
        if is_out and version is not None:
            self._refused = version
        return is_out and bool(items)


class Retained:
    """Acknowledged items that aren't on the receiver's disk yet: all of them, or the newest that there is room for.

    There is room for what a receiver accepts before it has saved it, unless its disk takes nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.arrived = -1  # the highest number that the receiver has
        self.is_saved = True  # whether it would lose none of its data
        self.given_up: str | None = None  # why it will save no more of the ended run
        self.durable = -1  # the highest number that is on its disk
        self._max_bytes = max_bytes
        self.entries: deque[Entry] = deque()
        self._nbytes = 0

    @property
    def newest(self) -> int:
        """The highest number that can be sent again."""
        return self.entries[-1].number if self.entries else -1

    def unsaved(self, produced: int) -> int:
        """Return how many of a number of acknowledged items may not be on the receiver's disk."""
        return max(0, min(self.arrived, produced - 1) - self.durable)

    def update(self, arrived: Sequence[Entry], answer: Receipt) -> list[Entry]:
        """Retain arrived data, and release saved data. Return the data that the receiver has lost, oldest first."""
        self.arrived = answer.acknowledged
        self.durable = answer.acknowledged if answer.durable is None else answer.durable
        self.entries.extend(arrived)
        self._nbytes += sum(entry.size for entry in arrived)
        while self.entries and self.entries[0].number <= self.durable:
            self._nbytes -= self.entries.popleft().size
        while self._nbytes > self._max_bytes and len(self.entries) > 1:
            self._nbytes -= self.entries.popleft().size
        lost: deque[Entry] = deque()
        while self.newest > answer.acknowledged:
            lost.appendleft(self.entries.pop())
            self._nbytes -= lost[0].size
        # An older server doesn't say it, and its `durable` never counts the end.
        self.is_saved = not self.entries if answer.saved is None else answer.saved
        self.given_up = None if self.is_saved else answer.given_up or None
        return list(lost)


# What a spool offers: it keeps what can't be delivered on disk. It is implemented in `delivery.archive`.


@dataclass(frozen=True, slots=True)
class DescribedRun:
    """What a run consists of, and what became of its items so far."""

    taps: tuple[Tap, ...]
    description: Description
    end: EndItem | None
    counters: DeliveryCounters


class Spool(Protocol):
    """A run's undelivered items on disk. `take` can be called from any thread, the rest from one. None of it raises."""

    path: Path
    newest: int  # the highest number that it was given; -1 before the first
    trouble: str | None  # why it can't be written

    def take(self, number: int, record: Frame | Snapshot) -> None:
        """Queue an item for the next part; never wait."""

    def write(self) -> None:
        """Write what is queued."""

    def read(self, first: int) -> Iterator[tuple[int, Frame | Snapshot]]:
        """Yield the written items from this number on. They are read only once."""

    def close(self, run: RunInfo) -> int:
        """Write the rest and leave it to the next dashboard. Return how many items couldn't be written."""

    def discard(self) -> None:
        """Remove it, because everything was delivered."""

    def abandon(self) -> None:
        """Leave it alone in a forked child."""


MakeSpool = Callable[[RunInfo, Callable[[], DescribedRun]], Spool]

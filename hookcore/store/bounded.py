"""Data other than rows of taps, each kind within its limit: events, snapshots, names, scalars, numbers of probes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookcore.records import Coverage, Event, HookRecord, ModuleRecord, Snapshot, Tap, adds_up
from hookcore.records.vocabulary import ELAPSED, GRAD_SCALE, MICRO_BATCHES, TIME
from hookcore.store.answers import Channels, Steps
from hookcore.store.ladder import Ladder
from hookcore.store.segments import SCALAR_SCHEMA, Floats, Lanes, lanes_of, later_wins

# Data other than numbers, each kind within its own limit: events, snapshots, and names.

_RECORD_BYTES: Final = 256  # an object, its fields and its place in a list or dictionary
Item = TypeVar("Item")


class BoundedLog(Generic[Item]):
    """The newest items within a limit. Older ones are dropped and counted."""

    def __init__(self, max_bytes: int, lock: threading.Lock) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.dropped = 0  # older items, dropped
        self.refused = 0  # items larger than the limit
        self.taken = 0  # all items that were ever added
        self._lock = lock
        self._items: deque[tuple[int, Item]] = deque()

    def add(self, item: Item, nbytes: int) -> None:
        with self._lock:
            if nbytes > self.max_bytes:
                self.refused += 1
                return
            while self.nbytes + nbytes > self.max_bytes:
                self.nbytes -= self._items.popleft()[0]
                self.dropped += 1
            self._items.append((nbytes, item))
            self.nbytes += nbytes
            self.taken += 1

    def items(self) -> list[Item]:
        """Return the items, oldest first."""
        with self._lock:
            return [item for _, item in self._items]

    def items_after(self, taken: int) -> tuple[int, list[Item]]:
        """Return the items after the first `taken` that still exist, and the number of all that were ever added."""
        with self._lock:
            fresh = min(len(self._items), max(0, self.taken - taken))
            return self.taken, [self._items[place][1] for place in range(len(self._items) - fresh, len(self._items))]


class Room:
    """Bytes that several catalogs share. The caller holds their lock."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0

    def take(self, nbytes: int) -> bool:
        """Take some bytes, or return them if negative; False if they aren't free."""
        if self.nbytes + nbytes > self.max_bytes:
            return False
        self.nbytes += nbytes
        return True


class BoundedMap(Generic[Item]):
    """Named items. When their room is full, new names are refused and counted."""

    def __init__(self, room: Room, lock: threading.Lock) -> None:
        self._room = room
        self.refused = 0
        self.changes = 0  # number of items set so far, so that readers see whether there are others
        self._lock = lock
        self._items: dict[Hashable, tuple[int, Item]] = {}

    def put(self, name: Hashable, item: Item, nbytes: int) -> bool:
        """Set the item of a name; False if there is no room for it."""
        with self._lock:
            old = self._items.get(name, (0, None))[0]
            if not self._room.take(nbytes - old):
                self.refused += 1
                return False
            self._items[name] = (nbytes, item)
            self.changes += 1
            return True

    def __len__(self) -> int:
        with self._lock:
            return len(self._items)

    def get(self, name: Hashable) -> Item | None:
        with self._lock:
            found = self._items.get(name)
            return None if found is None else found[1]

    def names(self) -> list[Any]:
        """Return all names, oldest first."""
        with self._lock:
            return list(self._items)

    def items(self) -> list[Item]:
        """Return all items, in the order of their names."""
        with self._lock:
            return [item for _, item in self._items.values()]


def bytes_of(record: Tap | Event | ModuleRecord | Coverage | HookRecord | Snapshot) -> int:
    """Return roughly the memory of a record, rather too much than too little."""
    size = _RECORD_BYTES
    for name in type(record).__slots__:
        value = getattr(record, name)
        if isinstance(value, np.ndarray):
            size += value.nbytes
        elif isinstance(value, str):
            size += _text_bytes(value)
        elif isinstance(value, tuple):
            size += sum(map(_part_bytes, value))
    if isinstance(record, Snapshot):
        names = record.names
        size += bytes_of(record.tap) + (0 if names is None else sum(map(texts_bytes, (*names.tokens, names.labels))))
    return size


def _part_bytes(part: object) -> int:
    if isinstance(part, str):
        return _text_bytes(part)
    last = part[-1] if isinstance(part, tuple) and part else None
    return 160 + (_text_bytes(last) if isinstance(last, str) else 0)


def texts_bytes(texts: Sequence[str]) -> int:
    """Return roughly the memory of a record with these texts."""
    return _RECORD_BYTES + sum(map(_text_bytes, texts))


def _text_bytes(text: str) -> int:
    return 56 + (len(text) if text.isascii() else 4 * len(text))


# Scalars by name: each has a lane of one ladder, which it gets with its first value.

_BAD, _VALUE = SCALAR_SCHEMA.columns.index("bad"), SCALAR_SCHEMA.columns.index("value")
_Lanes = NDArray[np.intp]


class _Fitting(NamedTuple):
    """Those of a frame's scalars that have a lane, in the order of their lanes."""

    lanes: _Lanes
    neighbors: Lanes  # the same, as a slice if they are: NumPy lets go of the interpreter to write to others
    places: list[int]  # among the frame's scalars


_NONE: Final = _Fitting(np.empty(0, np.intp), slice(0), [])


class LoggedData(Protocol):
    """A frame's data other than tensors, in memory and on the wire."""

    @property
    def time_s(self) -> float: ...
    @property
    def elapsed_s(self) -> float: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def grad_scale(self) -> float | None: ...
    @property
    def scalars(self) -> dict[str, float]: ...


def scalars_of(frame: LoggedData) -> dict[str, float]:
    """Return the logged scalars of a frame and hookcore's own, by name."""
    named = {TIME: frame.time_s, **frame.scalars}
    if frame.elapsed_s == frame.elapsed_s:
        named[ELAPSED] = frame.elapsed_s
    if frame.micro_batches:
        named[MICRO_BATCHES] = frame.micro_batches
    if frame.grad_scale is not None:
        named[GRAD_SCALE] = frame.grad_scale
    return named


class ScalarLog:
    """A row for each step that has any of these scalars. One thread writes."""

    def __init__(self, max_bytes: int, names: Room, lock: threading.Lock) -> None:
        self.ladder = Ladder(SCALAR_SCHEMA, max_bytes, lock)
        self.lanes: BoundedMap[int] = BoundedMap(names, lock)
        self.refused = 0
        self._known: tuple[tuple[str, ...], _Fitting] = (), _NONE
        self._firsts: dict[int, tuple[int, float]] = {}  # of each lane: its first step and value, never merged

    def by_name(self) -> dict[str, int]:
        """Return the lane of each scalar."""
        return {name: lane for name in self.lanes.names() if (lane := self.lanes.get(name)) is not None}

    def add(self, steps: Sequence[int], named: Sequence[Mapping[str, float]]) -> tuple[_Lanes, Floats, bool]:
        """Add numbers of the same names, in the same order, to steps: one row each, and all but the first are new.

        Return the lanes of those that fit, their values [column, row, lane], and if all fit.
        """
        names = tuple(named[0])
        may_be_first = names != self._known[0]
        lanes, neighbors, places = self._fitting(names)
        values = np.empty((len(SCALAR_SCHEMA.columns), len(steps), len(lanes)))
        if not places:
            return lanes, values, not names
        values[0] = 1
        values[_VALUE] = np.array([list(numbers.values()) for numbers in named], np.float64)[:, places]
        np.logical_not(np.isfinite(values[_VALUE]), out=values[_BAD])
        if self.ladder.newest == steps[0]:
            assert len(steps) == 1
            self.ladder.merge_newest(neighbors, values[:, 0], later_wins)
            may_be_first = True
        else:
            self.ladder.append(steps, neighbors, values)
        for lane, value in zip(lanes.tolist(), values[_VALUE, 0].tolist(), strict=True) if may_be_first else ():
            if self._firsts.get(lane, (steps[0], value))[0] == steps[0]:
                self._firsts[lane] = steps[0], value
        return lanes, values, len(places) == len(names)

    def first(self, name: str) -> tuple[int, float] | None:
        """Return the first step in which a scalar was added, and its value then; None if it never was."""
        lane = self.lanes.get(name)
        return None if lane is None else self._firsts.get(lane)

    def add_name(self, name: str) -> None:
        """Make a lane for a scalar that has values elsewhere only."""
        self._lane_of(name)

    def _fitting(self, names: tuple[str, ...]) -> _Fitting:
        """Return the lanes of those scalars that have one."""
        if names == self._known[0]:  # most frames have the same scalars
            return self._known[1]
        lanes = {place: lane for place, name in enumerate(names) if (lane := self._lane_of(name)) is not None}
        places = sorted(lanes, key=lanes.__getitem__)
        numbers = np.array([lanes[place] for place in places], np.intp)
        found = _Fitting(numbers, lanes_of(numbers), places)
        if len(places) == len(names):
            self._known = names, found
        return found

    def _lane_of(self, name: str) -> int | None:
        """Return the lane of a scalar, created if needed; None if there is no room."""
        lane = self.lanes.get(name)
        if lane is None:
            lane = len(self.lanes)
            if lane >= self.ladder.max_lanes or not self.lanes.put(name, lane, texts_bytes([name])):
                self.refused += 1
                return None
            self.ladder.grow(lane + 1)
        return lane


MAX_COLUMNS: Final = 512  # of one tap; then older ones are merged
_COLUMN_BYTES: Final = 160  # an array's header, and its steps
_LANE_BYTES: Final = 1024
Values = NDArray[np.float32]


@dataclass(slots=True)
class _Lane:
    """One tap: columns of the same width, oldest first."""

    channels: int  # of the tensor; more than the width if each value stands for several
    width: int
    merge: Callable[[Values, Values], Values] = np.maximum
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return _LANE_BYTES + len(self.values) * (4 * self.width + _COLUMN_BYTES)

    def put(self, step: int, values: Values) -> None:
        """Add the values of a step. Those of a step that is already here are merged with it."""
        place = next((at for at in range(len(self.first) - 1, -1, -1) if self.first[at] <= step), -1)
        if place >= 0 and step <= self.last[place]:
            self.values[place] = self.merge(self.values[place], values)
            return
        self.first.insert(place + 1, step)
        self.last.insert(place + 1, step)
        self.values.insert(place + 1, values)

    def thin(self) -> int:
        """Merge the older half in pairs. Return the number of columns that are gone."""
        half = max(2, len(self.first) // 2) // 2 * 2
        pairs = range(0, half, 2)
        values: list[Values] = [self.merge(self.values[at], self.values[at + 1]) for at in pairs]
        self.first[:half], self.last[:half] = self.first[:half:2], self.last[1:half:2]
        self.values[:half] = values
        return len(pairs)


class ChannelLog:
    """The columns of all taps within one limit: the newest exact, older ones merged; the largest value wins, or NaN.

    The choices of a router are counts: they are added, over steps and over ranks, and read as shares.
    """

    def __init__(self, max_bytes: int, lock: threading.Lock) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.merged = 0  # columns that were merged into their neighbors
        self.dropped = 0  # columns of another width than the tap's newest
        self.refused = 0  # columns without room
        self._lock = lock
        self._lanes: dict[Tap, _Lane] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add what a probe computed in a step."""
        with np.errstate(over="ignore"):
            values = np.real(snapshot.values).astype(np.float32).reshape(-1)
        channels = int(np.prod(snapshot.shape))
        with self._lock:
            lane = self._lanes.get(snapshot.tap)
            if lane is not None and (lane.channels, lane.width) != (channels, len(values)):
                self.dropped += len(lane.values)
                self.nbytes -= lane.nbytes
                lane = None
            if lane is None:
                self._lanes.pop(snapshot.tap, None)
                lane = _Lane(channels, len(values), np.add if adds_up(snapshot.tap) else np.maximum)
                if not len(values) or not self._make_room(lane.nbytes + 4 * lane.width + _COLUMN_BYTES):
                    self.refused += 1
                    return
                self._lanes[snapshot.tap] = lane
                self.nbytes += lane.nbytes
            elif not self._make_room(4 * lane.width + _COLUMN_BYTES):
                self.refused += 1
                return
            before = lane.nbytes
            lane.put(snapshot.step, values)
            if len(lane.first) > MAX_COLUMNS:
                self.merged += lane.thin()
            self.nbytes += lane.nbytes - before

    def _make_room(self, nbytes: int) -> bool:
        """Merge columns of the largest taps until there is room."""
        if nbytes > self.max_bytes:
            return False
        while self.nbytes + nbytes > self.max_bytes:
            several = [lane for lane in self._lanes.values() if len(lane.first) > 1]
            if not several:
                return False
            largest = max(several, key=lambda lane: lane.nbytes)
            before = largest.nbytes
            self.merged += largest.thin()
            self.nbytes += largest.nbytes - before
        return True

    def taps(self) -> list[Tap]:
        """Return the taps that have columns."""
        with self._lock:
            return list(self._lanes)

    def counts(self, tap: Tap) -> tuple[Steps, NDArray[np.float64]]:
        """Return all columns as they are kept: their first steps, and their values [row, column]."""
        with self._lock:
            lane = self._lanes.get(tap)
            if lane is None:
                return np.empty(0, np.int64), np.empty((0, 0))
            return np.array(lane.first, np.int64), np.array(lane.values, np.float64).T

    def read(self, tap: Tap, first: int | None, last: int | None, columns: int, rows: int) -> Channels:
        """Return the values in some steps, in at most `columns` by `rows` cells; the largest value of each, or NaN."""
        with self._lock:
            lane = self._lanes.get(tap)
            places = [] if lane is None else _between(lane, first, last)
            shown = np.array([lane.values[at] for at in places] if lane else [], np.float64)
            begins = np.array([lane.first[at] for at in places] if lane else [], np.int64)
            ends = np.array([lane.last[at] for at in places] if lane else [], np.int64)
            channels, width = (lane.channels, lane.width) if lane else (0, 0)
        shown = shown.reshape(len(places), width).T
        each = -(-len(places) // columns) or 1
        starts = np.arange(0, len(places), each)
        each_row = -(-width // rows) or 1
        row_starts = np.arange(0, width, each_row)
        if shown.size and adds_up(tap):
            shown = np.add.reduceat(np.add.reduceat(shown, starts, axis=1), row_starts, axis=0)
            shown = shown / np.maximum(shown.sum(axis=0), 1)
        elif shown.size:
            shown = np.maximum.reduceat(np.maximum.reduceat(shown, starts, axis=1), row_starts, axis=0)
        group = -(-channels // width) if width else 1
        lasts = np.minimum(starts + each, len(places)) - 1
        return Channels(_at(begins, starts), _at(ends, lasts), row_starts * group, channels, shown)


def _between(lane: _Lane, first: int | None, last: int | None) -> Sequence[int]:
    return [
        at
        for at in range(len(lane.first))
        if (first is None or lane.last[at] >= first) and (last is None or lane.first[at] <= last)
    ]


def _at(steps: Steps, places: NDArray[Any]) -> Steps:
    return steps[places] if len(steps) else steps

"""What is kept beside the numbers, each within its own limit: events, snapshots, and the names of things."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np

from hookcore.records import Coverage, Event, HookRecord, ModuleRecord, Snapshot, Tap

_RECORD_BYTES: Final = 256  # an object, its fields and its place in a list or dictionary
Item = TypeVar("Item")


class BoundedLog(Generic[Item]):
    """The newest items within a limit; the oldest ones go, and are counted."""

    def __init__(self, max_bytes: int, lock: threading.Lock) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.dropped = 0  # older ones that had to go
        self.refused = 0  # larger than the limit by themselves
        self.taken = 0  # all that were ever kept
        self._lock = lock
        self._items: deque[tuple[int, Item]] = deque()

    def add(self, item: Item, nbytes: int) -> None:
        """Keeps an item that takes so many bytes."""
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
        """What is kept, oldest first."""
        with self._lock:
            return [item for _, item in self._items]

    def items_after(self, taken: int) -> tuple[int, list[Item]]:
        """What came after so many were taken and is still kept, and how many are taken now."""
        with self._lock:
            fresh = min(len(self._items), max(0, self.taken - taken))
            return self.taken, [self._items[place][1] for place in range(len(self._items) - fresh, len(self._items))]


class Room:
    """Bytes that several catalogues share. The caller holds their lock."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0

    def take(self, nbytes: int) -> bool:
        """Take so many bytes, or give them back; False if they are not free."""
        if self.nbytes + nbytes > self.max_bytes:
            return False
        self.nbytes += nbytes
        return True


class BoundedMap(Generic[Item]):
    """Named items; once their room is full, new names are refused and counted."""

    def __init__(self, room: Room, lock: threading.Lock) -> None:
        self._room = room
        self.refused = 0
        self._lock = lock
        self._items: dict[Hashable, tuple[int, Item]] = {}

    def put(self, name: Hashable, item: Item, nbytes: int) -> bool:
        """Keeps an item under its name, in place of the one before; False where it found no room."""
        with self._lock:
            old = self._items.get(name, (0, None))[0]
            if not self._room.take(nbytes - old):
                self.refused += 1
                return False
            self._items[name] = (nbytes, item)
            return True

    def get(self, name: Hashable) -> Item | None:
        """The item under a name."""
        with self._lock:
            found = self._items.get(name)
            return None if found is None else found[1]

    def names(self) -> list[Any]:
        """All names, in the order in which they came."""
        with self._lock:
            return list(self._items)

    def items(self) -> list[Item]:
        """All items, in the order in which their names came."""
        with self._lock:
            return [item for _, item in self._items.values()]


def bytes_of(record: Tap | Event | ModuleRecord | Coverage | HookRecord | Snapshot) -> int:
    """About what a record takes in memory, a little more rather than less."""
    size = _RECORD_BYTES
    for name in type(record).__slots__:
        value = getattr(record, name)
        if isinstance(value, np.ndarray):
            size += value.nbytes
        elif isinstance(value, str):
            size += _text_bytes(value)
        elif isinstance(value, tuple):
            size += sum(_text_bytes(part) if isinstance(part, str) else 160 for part in value)
    return size + (bytes_of(record.tap) if isinstance(record, Snapshot) else 0)


def texts_bytes(texts: Sequence[str]) -> int:
    """About what a record of these texts takes."""
    return _RECORD_BYTES + sum(map(_text_bytes, texts))


def _text_bytes(text: str) -> int:
    return 56 + (len(text) if text.isascii() else 4 * len(text))

"""Data other than numbers, each kind within its own limit: events, snapshots, and names."""

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

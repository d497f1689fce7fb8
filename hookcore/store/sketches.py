"""The sketches of a run in bounded memory: sparse rows of the newest steps, and exact sums of older ones."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import SketchBlock
from hookcore.records.sketch import BINS
from hookcore.store.ladder import FAR

FACTOR: Final = 8
SHARES: Final = (0.25, 0.25, 0.50)  # of the limit: single steps, 8 to 1, and the rest of the run
_TAPS_AT_ONCE: Final = 128  # dense rows (1.3 MB) that are summed at a time, to stay in the cache
_RECORD_BYTES: Final = 600  # the Python objects around the arrays
_LARGEST: Final = 0.4  # the largest entry, as a share of its level's limit


@dataclass(frozen=True, slots=True, eq=False)
class SketchRows:
    """The sketches of some taps over some steps, sparse and immutable."""

    first: int
    last: int
    steps: int  # number of steps in it
    taps: NDArray[np.uint32]  # ascending
    start: NDArray[np.uint32]
    bins: NDArray[np.uint16]
    counts: NDArray[Any]  # uint32, or uint64 if that is too small

    @property
    def nbytes(self) -> int:
        arrays = self.taps.nbytes + self.start.nbytes + self.bins.nbytes + self.counts.nbytes
        return arrays + _RECORD_BYTES

    def row(self, tap: int) -> tuple[NDArray[np.uint16], NDArray[Any]] | None:
        """Return the filled bins of one tap with their counts; None if there are none."""
        row = int(np.searchsorted(self.taps, tap))
        if row == len(self.taps) or self.taps[row] != tap:
            return None
        part = slice(int(self.start[row]), int(self.start[row + 1]))
        return (self.bins[part], self.counts[part]) if part.start < part.stop else None


class SketchLadder:
    """Sketches of single steps, then of 8 steps each, then of as many as it takes to keep the whole run."""

    def __init__(self, max_bytes: int, lock: threading.Lock) -> None:
        self.max_bytes = max_bytes
        self.merged = 0  # entries that were merged away
        self.refused = 0  # sketches that found no room
        self._lock = lock
        self._limits = [int(max_bytes * share) for share in SHARES]
        self._bytes = [0] * len(SHARES)
        self._levels: list[list[SketchRows]] = [[] for _ in SHARES]

    @property
    def nbytes(self) -> int:
        """The size of all entries in bytes."""
        return sum(self._bytes)

    def exact_since(self, whole_since: int) -> int | None:
        """Return the step since which all sketches are here, and of single steps; None if all are."""
        with self._lock:
            if not any(self._levels[1:]):
                return whole_since or None
            return max(whole_since, self._levels[0][0].first if self._levels[0] else FAR)

    @property
    def least_bytes(self) -> int:
        """The limit below which sketches are cut instead of merged. Sums have more bins than single steps."""
        largest = max((entry.nbytes for level in self._levels for entry in level), default=0)
        return int(largest * 2 / (_LARGEST * min(SHARES)))

    def shrink(self, max_bytes: int) -> None:
        """Lower the limit, and sum entries until they fit."""
        if max_bytes >= self.max_bytes:
            return
        self.max_bytes = max_bytes
        self._limits = [int(max_bytes * share) for share in SHARES]
        last = len(self._levels) - 1
        for level, entries in enumerate(self._levels):
            while self._bytes[level] > self._limits[level] and len(entries) > (level == last):
                if level < last:
                    self._promote(level)
                else:
                    self._merge_pair()

    def append(self, step: int, taps: NDArray[np.uint32], block: SketchBlock) -> None:
        """Append the sketches of a step or of a part of one. Arrays are kept, or copied if they are views."""
        if not block.bins.size:
            return
        arrays = _own(taps, np.uint32), _own(block.start, np.uint32), _own(block.bins, np.uint16)
        self._add(0, SketchRows(step, step, 1, *arrays, _own(block.counts, np.uint32)))

    def entries(self, first: int | None, last: int | None) -> list[SketchRows]:
        """Return the entries that overlap the steps, oldest first."""
        with self._lock:
            everything = [entry for level in reversed(self._levels) for entry in level]
        return [
            entry
            for entry in everything
            if (first is None or entry.last >= first) and (last is None or entry.first <= last)
        ]

    def _add(self, level: int, entry: SketchRows, replaces: int = 0) -> None:
        """Append to a level, and atomically remove the oldest `replaces` entries of the previous level."""
        limit, entries, absorbed = self._limits[level], self._levels[level], 0
        entry = self._cut(entry, int(limit * _LARGEST))
        while entries and not absorbed and self._bytes[level] + entry.nbytes > limit:
            if level + 1 < len(self._levels):
                self._promote(level)
            elif len(entries) > 1:
                self._merge_pair()
            else:
                entry, absorbed = self._cut(sum_up([entries[0], entry]), limit), 1
        with self._lock:
            self._take(level - 1, replaces)
            self._take(level, absorbed)
            if len(entry.taps):
                entries.append(entry)
                self._bytes[level] += entry.nbytes

    def _take(self, level: int, number: int) -> None:
        """Remove the oldest entries of a level (the lock must be held)."""
        if number:
            self._bytes[level] -= sum(old.nbytes for old in self._levels[level][:number])
            del self._levels[level][:number]

    def _promote(self, level: int) -> None:
        entries = self._levels[level]
        number = _oldest(entries)
        merged = sum_up(entries[:number])
        self.merged += number - 1
        self._add(level + 1, merged, replaces=number)

    def _merge_pair(self) -> None:
        """Sum two neighbors of the last level: the oldest pair with the fewest steps."""
        entries = self._levels[-1]
        at = min(range(len(entries) - 1), key=lambda i: entries[i].steps + entries[i + 1].steps)
        merged = sum_up(entries[at : at + 2])
        self.merged += 1
        with self._lock:
            self._bytes[-1] += merged.nbytes - entries[at].nbytes - entries[at + 1].nbytes
            entries[at : at + 2] = [merged]

    def _cut(self, entry: SketchRows, most: int) -> SketchRows:
        """Return the entry without the last taps, which make it too large. They are counted."""
        if entry.nbytes <= most:
            return entry
        bytes_to_row = entry.start[1:].astype(np.int64) * (2 + entry.counts.itemsize) + _RECORD_BYTES + 4
        bytes_to_row += 8 * np.arange(1, len(entry.taps) + 1)
        rows = int(np.searchsorted(bytes_to_row, most, side="right"))
        self.refused += len(entry.taps) - rows
        end = int(entry.start[rows])
        arrays = entry.taps[:rows].copy(), entry.start[: rows + 1].copy()
        return SketchRows(
            entry.first, entry.last, entry.steps, *arrays, entry.bins[:end].copy(), entry.counts[:end].copy()
        )


def sum_up(entries: Sequence[SketchRows]) -> SketchRows:
    """Return the exact sum of sketches of neighboring steps."""
    taps = entries[0].taps
    if all(entry.taps is taps for entry in entries):  # most steps share one array
        places = [np.arange(len(taps))] * len(entries)
    else:
        taps = np.unique(np.concatenate([entry.taps for entry in entries]))
        places = [np.searchsorted(taps, entry.taps) for entry in entries]
    lengths, bins, counts = [], [], []
    for low in range(0, len(taps), _TAPS_AT_ONCE):
        high = min(low + _TAPS_AT_ONCE, len(taps))
        dense = np.zeros((high - low) * BINS, np.uint64)
        for entry, place in zip(entries, places, strict=True):
            _add_part(dense, entry, place, low, high)
        filled, begins = np.flatnonzero(dense > 0), np.arange(high - low) * BINS
        lengths.append(np.diff(filled.searchsorted(begins + BINS), prepend=0))
        bins.append((filled - begins.repeat(lengths[-1])).astype(np.uint16))
        counts.append(narrow(dense[filled]))
    start = np.zeros(len(taps) + 1, np.uint32)
    np.cumsum(np.concatenate(lengths), out=start[1:])
    steps = len({entry.first for entry in entries if entry.steps == 1})  # parts of one step count once
    steps += sum(entry.steps for entry in entries if entry.steps > 1)
    ends = entries[0].first, entries[-1].last
    return SketchRows(*ends, steps, taps, start, np.concatenate(bins), np.concatenate(counts))


def _add_part(dense: NDArray[np.uint64], entry: SketchRows, place: NDArray[np.intp], low: int, high: int) -> None:
    first, last = place.searchsorted((low, high)).tolist()
    start = entry.start[first : last + 1]
    part = slice(int(start[0]), int(start[-1]))
    keys = ((place[first:last] - low) * BINS).repeat(start[1:] - start[:-1]) + entry.bins[part]
    dense[keys] += entry.counts[part]


def narrow(counts: NDArray[np.uint64]) -> NDArray[Any]:
    """Return counts in half the room, if they fit."""
    return counts.astype(np.uint32) if counts.max(initial=0) <= np.iinfo(np.uint32).max else counts


def _oldest(entries: Sequence[SketchRows]) -> int:
    """Return the number of entries with the oldest FACTOR steps. Parts of one step count once."""
    seen = 0
    for number, entry in enumerate(entries):
        seen += number == 0 or entry.first != entries[number - 1].first
        if seen > FACTOR:
            return number
    return len(entries)


def _own(array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """Return the array if it owns its memory, else a copy."""
    if array.base is None and array.dtype == dtype and array.flags.c_contiguous:
        return array
    # A copy by NumPy would let go of the interpreter; see hookcore.observe.harvest.
    return np.frombuffer(np.ascontiguousarray(array, dtype).tobytes(), dtype)

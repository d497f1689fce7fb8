"""The sketches of a run in bounded memory, and histograms and quantiles from them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hookcore.observe import cpu
from hookcore.records import SketchBlock
from hookcore.records.sketch import (
    BINS,
    EDGES,
    MAGNITUDES,
    MAX_EXPONENT,
    NAN,
    NEG_INF,
    NEG_OVER,
    NEG_UNDER,
    POS_FIRST,
    POS_INF,
    POS_OVER,
    POS_UNDER,
    ZERO,
    Sketch,
    bins_of,
    group_starts,
)
from hookcore.store.answers import Histograms, Quantiles, Steps
from hookcore.store.ladder import FAR

FACTOR: Final = 8
SHARES: Final = (0.20, 0.20, 0.60)  # of the limit: single steps, 8 to 1, and the rest of the run
_RECORD_BYTES: Final = 800  # the Python objects around the arrays
_LARGEST: Final = 0.4  # the largest entry, as a share of its level's limit


_NONE: Final = np.empty(0, np.uint32), np.empty(0, np.uint16)


@dataclass(frozen=True, slots=True, eq=False)
class SketchRows:
    """The sketches of some taps over some steps, sparse and immutable."""

    first: int
    last: int
    steps: int  # number of steps in it
    taps: NDArray[np.uint32]  # ascending
    start: NDArray[np.uint32]
    bins: NDArray[np.uint16]
    counts: NDArray[Any]  # uint32, or uint64 if that is too small; uint16 of packed ones
    more: tuple[NDArray[np.uint32], NDArray[Any]] | None = None  # of packed ones: the places of larger counts, and
    # what these are above their lower 16 bits

    @property
    def nbytes(self) -> int:
        more = 0 if self.more is None else self.more[0].nbytes + self.more[1].nbytes
        return self.taps.nbytes + self.start.nbytes + self.bins.nbytes + self.counts.nbytes + more + _RECORD_BYTES

    def pack(self) -> SketchRows:
        """Return the same in less memory, in arrays of its own: most counts of single steps fit into 16 bits."""
        counts, about = self.counts, (self.first, self.last, self.steps, self.taps, self.start, self.bins)
        if self.more is not None:
            return self
        lower, places, upper = cpu.split_counts(_bytes_of(counts, counts.dtype.type), counts.itemsize)
        if not places:
            return SketchRows(*about, np.frombuffer(lower, np.uint16), _NONE)
        if len(places) // 4 * 3 > len(counts):
            return SketchRows(*about, _own(counts, counts.dtype.type))
        more = np.frombuffer(upper, np.uint16 if counts.itemsize == 4 else np.uint64)
        return SketchRows(*about, np.frombuffer(lower, np.uint16), (np.frombuffer(places, np.uint32), more))

    def counts_at(self, part: slice | NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Return the counts at some places, ascending."""
        counts = self.counts[part]
        if self.more is None or not len(self.more[0]):
            return counts
        places, upper = self.more
        wide = counts.astype(np.uint32 if upper.itemsize == 2 else np.uint64)
        if isinstance(part, slice):
            begin, end = places.searchsorted((part.start, part.stop))
            wide[places[begin:end] - part.start] += upper[begin:end].astype(wide.dtype) << 16
            return wide
        at = places.searchsorted(part)
        is_large = places.take(at, mode="clip") == part
        wide[is_large] += upper[at[is_large]].astype(wide.dtype) << 16
        return wide

    def row(self, tap: int) -> tuple[NDArray[np.uint16], NDArray[Any]] | None:
        """Return the filled bins of one tap with their counts; None if there are none."""
        row = int(np.searchsorted(self.taps, tap))
        if row == len(self.taps) or self.taps[row] != tap:
            return None
        part = slice(int(self.start[row]), int(self.start[row + 1]))
        return (self.bins[part], self.counts_at(part)) if part.start < part.stop else None


class SketchLadder:
    """Sketches of single steps, then of 8 steps each, then of as many as it takes to keep the whole run."""

    def __init__(self, max_bytes: int, lock: threading.Lock) -> None:
        self.max_bytes = max_bytes
        self.merged = 0  # entries that were merged away
        self.refused = 0  # sketches that found no room
        self._lock = lock
        self.level_limits = [int(max_bytes * share) for share in SHARES]
        self.level_bytes = [0] * len(SHARES)
        self._levels: list[list[SketchRows]] = [[] for _ in SHARES]

    @property
    def nbytes(self) -> int:
        """The size of all entries in bytes."""
        return sum(self.level_bytes)

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
        self.level_limits = [int(max_bytes * share) for share in SHARES]
        last = len(self._levels) - 1
        for level, entries in enumerate(self._levels):
            while self.level_bytes[level] > self.level_limits[level] and len(entries) > (level == last):
                if level < last:
                    self._promote(level)
                else:
                    self._merge_pair()

    def append(self, step: int, taps: NDArray[np.uint32], block: SketchBlock) -> None:
        """Append the sketches of a step or of a part of one. Arrays are kept, or copied if they are views."""
        if not block.bins.size:
            return
        arrays = _own(taps, np.uint32), _own(block.start, np.uint32), _own(block.bins, np.uint16)
        self._add(0, SketchRows(step, step, 1, *arrays, block.counts))

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
        limit, entries, absorbed = self.level_limits[level], self._levels[level], 0
        entry = self._cut(entry.pack(), int(limit * _LARGEST))
        nbytes = entry.nbytes
        while entries and not absorbed and self.level_bytes[level] + nbytes > limit:
            if level + 1 < len(self._levels):
                self._promote(level)
            elif len(entries) > 1:
                self._merge_pair()
            else:
                entry, absorbed = self._cut(sum_up([entries[0], entry]).pack(), limit), 1
                nbytes = entry.nbytes
        with self._lock:
            self._take(level - 1, replaces)
            self._take(level, absorbed)
            if len(entry.taps):
                entries.append(entry)
                self.level_bytes[level] += nbytes

    def _take(self, level: int, number: int) -> None:
        """Remove the oldest entries of a level (the lock must be held)."""
        if number:
            self.level_bytes[level] -= sum(old.nbytes for old in self._levels[level][:number])
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
        merged = sum_up(entries[at : at + 2]).pack()
        self.merged += 1
        with self._lock:
            self.level_bytes[-1] += merged.nbytes - entries[at].nbytes - entries[at + 1].nbytes
            entries[at : at + 2] = [merged]

    def _cut(self, entry: SketchRows, most: int) -> SketchRows:
        """Return the entry without the last taps, which make it too large. They are counted."""
        if entry.nbytes <= most:
            return entry
        bytes_to_row = entry.start[1:].astype(np.int64) * (2 + entry.counts.itemsize) + _RECORD_BYTES + 4
        bytes_to_row += 8 * np.arange(1, len(entry.taps) + 1)
        if entry.more is not None:
            places, upper = entry.more
            bytes_to_row += places.searchsorted(entry.start[1:]) * (places.itemsize + upper.itemsize)
        rows = int(np.searchsorted(bytes_to_row, most, side="right"))
        self.refused += len(entry.taps) - rows
        end = int(entry.start[rows])
        arrays = entry.taps[:rows].copy(), entry.start[: rows + 1].copy(), entry.bins[:end].copy()
        return SketchRows(entry.first, entry.last, entry.steps, *arrays, entry.counts_at(slice(0, end))).pack()


def sum_up(entries: Sequence[SketchRows]) -> SketchRows:
    """Return the exact sum of sketches of neighboring steps."""
    taps = entries[0].taps
    places: list[bytes] = []
    if any(entry.taps is not taps for entry in entries):  # most steps share one array
        taps = np.unique(np.concatenate([entry.taps for entry in entries]))
        places = [np.searchsorted(taps, entry.taps).astype(np.int64).tobytes() for entry in entries]
    given = [
        (
            places[number] if places else None,
            _bytes_of(entry.start, np.uint32),
            _bytes_of(entry.bins, np.uint16),
            _bytes_of(every := entry.counts_at(slice(0, len(entry.counts))), every.dtype.type),
        )
        for number, entry in enumerate(entries)
    ]
    start, bins, counts = cpu.sum_sketches(given, len(taps))
    steps = len({entry.first for entry in entries if entry.steps == 1})  # parts of one step count once
    steps += sum(entry.steps for entry in entries if entry.steps > 1)
    arrays = np.frombuffer(start, np.uint32), np.frombuffer(bins, np.uint16)
    sums = np.frombuffer(counts, np.uint64 if len(counts) > 2 * len(bins) else np.uint32)
    return SketchRows(entries[0].first, entries[-1].last, steps, taps, *arrays, sums)


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
    """Return the array if it alone has its memory, else a copy."""
    has_all = array.base is None or (type(array.base) is bytes and len(array.base) == array.nbytes)
    if has_all and array.dtype == dtype and array.flags.c_contiguous:
        return array
    return np.frombuffer(_bytes_of(array, dtype), dtype)


def _bytes_of(array: NDArray[Any], dtype: type[np.generic]) -> bytes:
    """Return the memory of an array: the bytes that it was made of, if these are all, else a copy."""
    base = array.base
    if type(base) is bytes and len(base) == array.nbytes and array.dtype == dtype:
        return base
    # A copy by NumPy would let go of the interpreter; see hookcore.observe.arena.
    return np.ascontiguousarray(array, dtype).tobytes()


# Histograms and quantiles over time, from the sketches.

# For spans of steps: the smallest and the largest finite value, and the magnitude from which all is "too large".
BoundsOf = Callable[[Steps, Steps], list[tuple[float, float, float]]]
TOO_LARGE = 2.0**MAX_EXPONENT
MIN_BINS = 5  # too large, negative, around zero, positive, too large


@dataclass(frozen=True, slots=True)
class CountsOverTime:
    """The exact sums of a tap's sketches in spans of steps [span, bin], for the filled bins, ascending."""

    first: Steps
    last: Steps
    bins: NDArray[np.intp]
    counts: NDArray[np.uint64]

    @classmethod
    def of(cls, entries: Sequence[SketchRows], tap: int, most: int) -> CountsOverTime:
        """Sum up sketches in at most this many equal spans."""
        rows_of_tap = [(entry, row) for entry in entries if (row := entry.row(tap)) is not None]
        if not rows_of_tap:
            none = np.empty(0, np.int64)
            return cls(none, none, np.empty(0, np.intp), np.zeros((0, 0), np.uint64))
        first = np.array([entry.first for entry, _ in rows_of_tap], np.int64)
        last = np.array([entry.last for entry, _ in rows_of_tap], np.int64)
        span = int(last[-1] - first[0]) + 1
        place = (first - first[0]) * min(most, span) // span
        begins = np.diff(place, prepend=-1) > 0
        # All rows at once: one by one, a window of 500 steps takes a hundred times as long.
        every = np.concatenate([bins for _, (bins, _) in rows_of_tap])
        column_of = np.zeros(BINS, np.intp)
        column_of[every] = 1
        used = np.flatnonzero(column_of)
        column_of[used] = np.arange(len(used))
        keys = np.repeat((np.cumsum(begins) - 1) * len(used), [len(bins) for _, (bins, _) in rows_of_tap])
        keys += column_of[every]
        counts = np.zeros((int(begins.sum()), len(used)), np.uint64)
        np.add.at(
            counts.reshape(-1), keys, np.concatenate([counts for _, (_, counts) in rows_of_tap]).astype(np.uint64)
        )
        ends = np.append(np.flatnonzero(begins)[1:], len(rows_of_tap)) - 1
        return cls(first[begins], last[ends], used, counts)

    def of_bin(self, number: int) -> NDArray[np.uint64]:
        """Return the counts of one bin, by span."""
        sums: NDArray[np.uint64] = self.counts[:, self.bins == number].sum(axis=1, dtype=np.uint64)
        return sums

    def folded(self, largest: float) -> CountsOverTime:
        """Return these counts with everything from a magnitude on in "too large", where the order is unknown."""
        edge = int(bins_of(largest))
        bins = np.where((self.bins >= edge) & (self.bins < POS_OVER), POS_OVER, self.bins)
        bins = np.where((bins > NEG_OVER) & (bins <= 2 * ZERO - edge), NEG_OVER, bins)
        begins = np.flatnonzero(np.diff(bins, prepend=-1))
        return replace(self, bins=bins[begins], counts=np.add.reduceat(self.counts, begins, axis=1, dtype=np.uint64))


def histograms_of(entries: Sequence[SketchRows], tap: int, columns: int, bins: int, bounds_of: BoundsOf) -> Histograms:
    """Return at most `columns` columns of at most `bins` bins, on the same edges."""
    over_time, largest = CountsOverTime.of(entries, tap, columns), TOO_LARGE
    if over_time.of_bin(NEG_OVER).any() or over_time.of_bin(POS_OVER).any():
        largest = min(bound[2] for bound in bounds_of(over_time.first, over_time.last))
        if largest < TOO_LARGE:
            over_time = over_time.folded(largest)
    finite = (over_time.bins > NEG_INF) & (over_time.bins < POS_INF)
    starts = display_groups(over_time.bins[finite], bins)
    counts = np.zeros((len(over_time.first), max(0, len(starts) - 1)), np.uint64)
    if len(starts):
        group = np.searchsorted(starts, over_time.bins[finite], side="right") - 1
        begins = np.flatnonzero(np.diff(group, prepend=-1))
        counts[:, group[begins]] = np.add.reduceat(over_time.counts[:, finite], begins, axis=1, dtype=np.uint64)
    apart = (over_time.of_bin(NAN), over_time.of_bin(NEG_INF), over_time.of_bin(POS_INF))
    edges = EDGES[starts]
    inner = (starts > NEG_OVER) & (starts < POS_INF)
    edges[inner] = np.clip(edges[inner], -largest, largest)
    kept = np.diff(edges, append=np.inf) > 0  # bins that "too large" has absorbed are empty
    return Histograms(tap, over_time.first, over_time.last, edges[kept], counts[:, kept[:-1]], *apart)


def quantiles_of(entries: Sequence[SketchRows], tap: int, qs: ArrayLike, points: int, bounds_of: BoundsOf) -> Quantiles:
    """Return the quantiles of the values that aren't NaN, with a limit for points; NaN if unknown."""
    over_time = CountsOverTime.of(entries, tap, points)
    wanted = np.atleast_1d(np.asarray(qs, np.float64))
    Sketch.empty().quantiles(wanted)  # raises for a wrong quantile even if there are no sketches
    values = np.full((len(over_time.first), len(wanted)), np.nan)
    out = np.isin(over_time.bins, (NEG_OVER, NEG_UNDER, POS_UNDER, POS_OVER))
    reaching = np.flatnonzero(over_time.counts[:, out].any(axis=1))
    known_bounds = bounds_of(over_time.first[reaching], over_time.last[reaching]) if len(reaching) else []
    bounds = dict(zip(reaching.tolist(), known_bounds, strict=True))
    for point, counts in enumerate(over_time.counts):
        sketch, known_here = Sketch.of_bins(over_time.bins, counts), bounds.get(point)
        values[point] = sketch.quantiles(wanted) if known_here is None else sketch.known_quantiles(wanted, *known_here)
    return Quantiles(tap, wanted, over_time.first, over_time.last, values)


def display_groups(filled: NDArray[np.intp], bins: int) -> NDArray[np.intp]:
    """Return the first bins of at most this many groups that hold every filled finite bin, and the end of the last one.

    Empty bins on both sides of zero belong to the group around zero. Otherwise they would take most of the groups.
    """
    if not len(filled):
        return np.empty(0, np.intp)
    steps = np.abs(filled - ZERO) - (POS_FIRST - ZERO)  # of the magnitudes, from the smallest one in range
    smallest = int(steps[steps >= 0].min(initial=MAGNITUDES))
    for k in range(1, MAGNITUDES + 1):
        reach = smallest // k * k
        starts = np.append(group_starts(k), POS_INF)
        starts = starts[(starts <= NEG_UNDER - reach) | (starts >= POS_FIRST + reach)]
        low = int(np.searchsorted(starts, filled[0], side="right")) - 1
        high = int(np.searchsorted(starts, filled[-1], side="right"))
        if high - low <= bins:
            break
    return starts[low : high + 1]

"""The exact record of non-finite values: kept from the first frame on, never merged, in bounded memory.

Rows of a ladder lose their exact steps as they age. The ledger keeps which tensor was non-finite first, in which step,
and for how long, by recording it as frames arrive. It costs nothing in a run without non-finite values. Logged scalars
have their own ledger, with scalars in the place of taps.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

FIRST_KEPT: Final = 8  # episodes from the beginning of the run
NEWEST_KEPT: Final = 24
CAPTURED_KEPT: Final = 1024  # newest step numbers
_NEVER: Final = -1

Steps = NDArray[np.int64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.float64] | NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Episode:
    """Captured steps in which at least one tap was non-finite, until all taps that were seen again were finite.

    `previous` is the captured step before `begin` (None if there is none). `first` holds the numbers of the taps that
    were non-finite in `begin`, and `taps` those of all. `skipped`: a gradient scaler skipped one of the steps.
    """

    begin: int
    last: int
    steps: int
    is_over: bool
    skipped: bool
    previous: int | None
    first: NDArray[np.int64]
    taps: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NonfiniteTaps:
    """The record of every tap that was ever non-finite, ascending by its number.

    `since` is the start of its newest streak of non-finite steps; `is_over` says that it was finite after `last_step`.
    """

    numbers: NDArray[np.int64]
    first_step: Steps
    last_step: Steps
    since: Steps
    first_until: Steps  # the end of its first streak
    streaks: Steps
    steps: Steps
    nan: Steps  # number of values
    inf: Steps
    is_over: Flags


@dataclass(slots=True)
class _Open:
    """An episode being written. `closed_at` is the step that ended it; a later part of that step may reopen it."""

    begin: int
    last: int
    steps: int
    previous: int | None
    first: Flags
    taps: Flags
    closed_at: int = _NEVER
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class _Closed:
    """An episode that is over, with its taps as bits."""

    about: Episode  # without the taps
    first: bytes
    taps: bytes


class Ledger:
    """Non-finite values by tap and by episode, and the newest captured steps. One thread writes, many read."""

    def __init__(self, max_bytes: int, lock: threading.Lock) -> None:
        self.max_bytes = max_bytes  # enough for as many taps as a store can hold
        self.dropped = 0  # episodes that were dropped to make room
        self._lock = lock
        self._lanes = 0
        self._any = False
        self._columns = {name: np.empty(0, np.int64) for name in _COLUMNS}
        self._fine = np.empty(0, np.int64)  # the first step after `last_step` in which a tap was finite
        self._open: _Open | None = None
        self._closed: list[_Closed] = []
        self._captured: deque[int] = deque(maxlen=CAPTURED_KEPT)
        self._captured_count = 0
        self._skipped: deque[int] = deque(maxlen=8)

    @property
    def nbytes(self) -> int:
        """The bytes in use; zero in a run without non-finite values."""
        closed = sum(len(each.first) + len(each.taps) + 256 for each in self._closed)
        return self._lanes * 8 * (len(_COLUMNS) + 1) + closed + (2 * self._lanes if self._open else 0)

    def append(self, step: int, taps: NDArray[np.integer], nan: Counts, inf: Counts) -> None:
        """Record a captured step, or another part of the newest one. Each tap occurs at most once in `taps`.

        `nan` and `inf` are the numbers of such values in each tap, both NaN if unknown.
        """
        previous = self._note_captured(step)
        bad, fine = nan + inf > 0, nan + inf == 0
        if not self._any and not bad.any():
            return
        with self._lock:
            self._any = True
            self._grow(int(taps.max()) + 1 if len(taps) else 0)
            self._note_finite(step, taps[fine])
            self._note_bad(step, taps[bad], nan[bad], inf[bad])
            self._follow(step, previous, taps[bad], taps[fine])

    def note_skipped(self, step: int) -> None:
        """Record that a gradient scaler skipped a step. Its non-finite gradients are how the scaler finds its scale."""
        with self._lock:
            self._skipped.append(step)
            if self._open is not None:
                self._open.skipped |= _touches(self._open.begin, self._open.last, step)
            for place, each in enumerate(self._closed):
                if _touches(each.about.begin, each.about.last, step):
                    self._closed[place] = replace(each, about=replace(each.about, skipped=True))

    def taps(self) -> NonfiniteTaps:
        """Return every tap that was ever non-finite."""
        with self._lock:
            columns, fine = {name: each.copy() for name, each in self._columns.items()}, self._fine.copy()
        numbers = np.flatnonzero(columns["steps"] > 0)
        picked = {name: each[numbers] for name, each in columns.items()}
        return NonfiniteTaps(numbers, **picked, is_over=fine[numbers] > picked["last_step"])

    def episodes(self) -> list[Episode]:
        """Return the first and the newest episodes, oldest first. `dropped` counts the others."""
        with self._lock:
            closed, newest = list(self._closed), self._read_open()
        found = [replace(each.about, first=_numbers(each.first), taps=_numbers(each.taps)) for each in closed]
        return found if newest is None else [*found, newest]

    def captured(self, first: int | None = None) -> int:
        """Return the number of captured steps from `first` on, exact among the newest CAPTURED_KEPT."""
        with self._lock:
            if first is None:
                return self._captured_count
            return sum(step >= first for step in self._captured)

    def captured_step(self, back: int) -> int | None:
        """Return the captured step this many before the newest one, or the oldest known one."""
        with self._lock:
            return self._captured[max(-len(self._captured), -1 - back)] if self._captured else None

    def _note_captured(self, step: int) -> int | None:
        """Count a step, and return the captured step before it."""
        with self._lock:
            steps = self._captured
            if not steps or steps[-1] != step:
                steps.append(step)
                self._captured_count += 1
            return steps[-2] if len(steps) > 1 else None

    def _grow(self, lanes: int) -> None:
        missing = lanes - self._lanes
        if missing <= 0:
            return
        for name, fill in _COLUMNS.items():
            self._columns[name] = np.append(self._columns[name], np.full(missing, fill, np.int64))
        self._fine = np.append(self._fine, np.full(missing, _NEVER, np.int64))
        if self._open is not None:
            self._open.first, self._open.taps = (
                np.append(flags, np.zeros(missing, bool)) for flags in (self._open.first, self._open.taps)
            )
        self._lanes = lanes

    def _note_finite(self, step: int, taps: NDArray[np.integer]) -> None:
        last = self._columns["last_step"][taps]
        ends = taps[(last != _NEVER) & (last < step) & (self._fine[taps] <= last)]
        self._fine[ends] = step

    def _note_bad(self, step: int, taps: NDArray[np.integer], nan: Counts, inf: Counts) -> None:
        columns = self._columns
        last, fine = columns["last_step"][taps], self._fine[taps]
        is_new = last != step
        begins = is_new & ((last == _NEVER) | ((fine > last) & (fine < step)))
        first = taps[last == _NEVER]
        columns["first_step"][first] = step
        columns["since"][taps[begins]] = step
        columns["streaks"][taps[begins]] += 1
        columns["last_step"][taps] = step
        in_first = taps[columns["streaks"][taps] == 1]
        columns["first_until"][in_first] = step
        columns["steps"][taps[is_new]] += 1
        columns["nan"][taps] += nan.astype(np.int64)
        columns["inf"][taps] += inf.astype(np.int64)

    def _follow(self, step: int, previous: int | None, bad: NDArray[np.integer], fine: NDArray[np.integer]) -> None:
        """Open, extend or close an episode."""
        episode = self._open
        if not len(bad):
            if episode is not None and step > episode.last and episode.closed_at < 0 and episode.taps[fine].any():
                episode.closed_at = step
            return
        if episode is not None and 0 <= episode.closed_at < step:
            self._file(episode)
            episode = None
        if episode is None:
            flags = np.zeros(self._lanes, bool), np.zeros(self._lanes, bool)
            episode = self._open = _Open(step, step, 0, previous, *flags)
        episode.steps += episode.last != step or episode.steps == 0
        episode.last, episode.closed_at = step, _NEVER
        episode.taps[bad] = True
        if step == episode.begin:
            episode.first[bad] = True
        episode.skipped |= any(_touches(episode.begin, episode.last, each) for each in self._skipped)

    def _file(self, episode: _Open) -> None:
        self._closed.append(_Closed(_about(episode), *(_bits(flags) for flags in (episode.first, episode.taps))))
        if len(self._closed) > FIRST_KEPT + NEWEST_KEPT:
            skipped = (place for place, each in enumerate(self._closed) if each.about.skipped)
            del self._closed[next(skipped, FIRST_KEPT)]
            self.dropped += 1

    def _read_open(self) -> Episode | None:
        episode = self._open
        if episode is None:
            return None
        return replace(_about(episode), first=np.flatnonzero(episode.first), taps=np.flatnonzero(episode.taps))


_COLUMNS: Final = {
    "first_step": _NEVER,
    "last_step": _NEVER,
    "since": _NEVER,
    "first_until": _NEVER,
    "streaks": 0,
    "steps": 0,
    "nan": 0,
    "inf": 0,
}
_NONE: Final = np.empty(0, np.int64)


def _about(episode: _Open) -> Episode:
    about = episode.begin, episode.last, episode.steps, episode.closed_at >= 0, episode.skipped, episode.previous
    return Episode(*about, _NONE, _NONE)


def _touches(begin: int, last: int, step: int) -> bool:
    """Return whether a skipped step belongs to an episode. The number in the event may be off by one."""
    return begin - 1 <= step <= last + 1


def _bits(flags: Flags) -> bytes:
    return np.packbits(flags).tobytes()


def _numbers(bits: bytes) -> NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8)))

"""The exact record of non-finite values: kept from the first frame on, never merged, in bounded memory.

Rows of a ladder lose their exact steps as they age. The ledger keeps when each tensor was non-finite, by recording it
as frames arrive; hookcore.store.incidents says which was first. It costs nothing in a run without non-finite values.
Logged scalars have their own ledger, with scalars in the place of taps.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

CAPTURED_KEPT: Final = 1024  # newest step numbers
_NEVER: Final = -1

Steps = NDArray[np.int64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.float64] | NDArray[np.bool_]


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


class Look(NamedTuple):
    """Which taps of a step are non-finite and which are not, and the captured step before it."""

    previous: int | None
    bad: Flags
    fine: Flags


class Ledger:
    """Non-finite values by tap, and the newest captured steps. One thread writes, many read."""

    def __init__(self, max_bytes: int, lock: threading.Lock) -> None:
        self.max_bytes = max_bytes  # enough for as many taps as a store can hold
        self._lock = lock
        self._lanes = 0
        self._any = False
        self._columns = {name: np.empty(0, np.int64) for name in _COLUMNS}
        self._fine = np.empty(0, np.int64)  # the first step after `last_step` in which a tap was finite
        self._captured: deque[int] = deque(maxlen=CAPTURED_KEPT)
        self._captured_count = 0

    @property
    def nbytes(self) -> int:
        """The bytes in use; zero in a run without non-finite values."""
        return self._lanes * 8 * (len(_COLUMNS) + 1)

    def append(self, step: int, taps: NDArray[np.integer], nan: Counts, inf: Counts) -> Look | None:
        """Record a captured step, or another part of the newest one. Each tap occurs at most once in `taps`.

        `nan` and `inf` are the numbers of such values in each tap, both NaN if unknown. Return None as long as nothing
        was ever non-finite.
        """
        previous = self.note_captured(step)
        nonfinite = nan + inf
        if not self._any and not np.count_nonzero(nonfinite):
            return None
        bad, fine = nonfinite > 0, nonfinite == 0
        if not self._any and not bad.any():  # they are unknown
            return None
        with self._lock:
            self._any = True
            self._grow(int(taps.max()) + 1 if len(taps) else 0)
            self._note_finite(step, taps[fine])
            self._note_bad(step, taps[bad], nan[bad], inf[bad])
        return Look(previous, bad, fine)

    def taps(self) -> NonfiniteTaps:
        """Return every tap that was ever non-finite."""
        with self._lock:
            columns, fine = {name: column.copy() for name, column in self._columns.items()}, self._fine.copy()
        numbers = np.flatnonzero(columns["steps"] > 0)
        picked = {name: column[numbers] for name, column in columns.items()}
        return NonfiniteTaps(numbers, **picked, is_over=fine[numbers] > picked["last_step"])

    def begin_after(self, captured: int) -> None:
        """Count steps that were captured before the first one to come."""
        with self._lock:
            self._captured_count = captured

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

    def captured_around(self, step: int) -> tuple[int | None, int | None]:
        """Return the captured steps before and after a step, None if they aren't among the newest CAPTURED_KEPT."""
        with self._lock:
            before = next((captured for captured in reversed(self._captured) if captured < step), None)
            after = next((captured for captured in self._captured if captured > step), None)
        return before, after

    def note_captured(self, *steps: int) -> int | None:
        """Count captured steps in which nothing may be non-finite, and return the captured step before the last one."""
        with self._lock:
            known = self._captured
            for step in steps:
                if not known or known[-1] != step:
                    known.append(step)
                    self._captured_count += 1
            return known[-2] if len(known) > 1 else None

    def _grow(self, lanes: int) -> None:
        missing = lanes - self._lanes
        if missing <= 0:
            return
        for name, fill in _COLUMNS.items():
            self._columns[name] = np.append(self._columns[name], np.full(missing, fill, np.int64))
        self._fine = np.append(self._fine, np.full(missing, _NEVER, np.int64))
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

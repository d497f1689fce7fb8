"""The taps of one watcher: each one's slot in the arena, and its number in the frames."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from hookcore.records import Tap


class TapTable:
    """Assigns slots and numbers. Both only grow, because frames and the store refer to taps by number."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.taps: list[Tap] = []  # by slot
        self.numbers: list[int] = []  # by slot: its number in the frames; -1 if no frame shows it
        self.refused = 0
        self.filled: set[int] = set()  # numbers that occurred in a frame
        self.newest: set[int] = set()  # those of the newest step
        self.newest_step = -1
        self._slots: dict[Tap, int] = {}
        self._last: tuple[NDArray[np.uint32] | None, set[int]] = None, set()  # the taps of the newest frame
        self._shown = 0
        self._announced = 0
        self._by_number: list[Tap] = []  # as far as it was asked for
        self._lock = threading.Lock()

    def add(self, tap: Tap, hidden: bool = False) -> int:
        """Return the slot of a tap, or -1 if there is no room. Frames don't show a hidden one."""
        with self._lock:
            if not hidden and tap in self._slots:
                return self._slots[tap]  # a model of the same name continues where the last one ended
            if len(self.taps) >= self._capacity:
                self.refused += 1
                return -1
            if not hidden:
                self._slots[tap] = len(self.taps)
            self.taps.append(tap)
            self.numbers.append(-1 if hidden else self._shown)
            self._shown += not hidden
            return len(self.taps) - 1

    @property
    def room(self) -> int:
        """The number of taps for which there is room."""
        return self._capacity - len(self.taps)

    def shown_taps(self) -> list[Tap]:
        """Return the taps by their numbers."""
        with self._lock:
            if len(self._by_number) != self._shown:
                self._by_number = [self.taps[slot] for slot, number in enumerate(self.numbers) if number >= 0]
            return self._by_number

    def slot(self, tap: Tap) -> int:
        """Return the slot of a tap that was added, else -1."""
        return self._slots.get(tap, -1)

    def take_new(self) -> tuple[Tap, ...]:
        """Return the taps that no frame has announced yet, in the order of their numbers."""
        first, self._announced = self._announced, len(self.taps)
        fresh = range(first, self._announced)
        return tuple(self.taps[slot] for slot in fresh if self.numbers[slot] >= 0) if fresh else ()

    def saw_frame(self, step: int, taps: NDArray[np.uint32]) -> None:
        """Note that a frame, or a part of one, was built with these taps. Many frames share one array."""
        if taps is not self._last[0]:
            self._last = taps, set(taps.tolist())
            self.filled |= self._last[1]
        numbers = self._last[1]
        if not numbers:
            return  # a step that isn't captured has a frame, too, with its loss
        if step > self.newest_step:
            self.newest_step, self.newest = step, set()
        if step == self.newest_step:
            self.newest = self.newest | numbers

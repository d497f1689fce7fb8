"""Data that a receiver has acknowledged but would lose if it were killed. It is then sent again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hookcore.delivery.http.parcels import Entry
from hookcore.records.wire import Answer


class Retained:
    """Acknowledged items that aren't on the receiver's disk yet: all of them, or the newest that there is room for.

    There is room for what a receiver accepts before it has saved it, unless its disk takes nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.arrived = -1  # the highest number that the receiver has
        self.is_saved = True  # whether it would lose none of its data
        self.given_up = ""  # why it will save no more of the ended run; empty if it may
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

    def note(self, arrived: Sequence[Entry], answer: Answer) -> list[Entry]:
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
        self.given_up = "" if self.is_saved else answer.given_up
        return list(lost)

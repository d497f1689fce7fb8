"""What a spool offers: it keeps what can't be delivered on disk. It is implemented in `delivery.archive`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hookcore.records import Frame, Snapshot, Tap
from hookcore.records.wire import DeliveryCounters, Description, EndItem, RunInfo


@dataclass(frozen=True, slots=True)
class Described:
    """What a run consists of, and what became of its items so far."""

    taps: tuple[Tap, ...]
    description: Description
    end: EndItem | None
    counters: DeliveryCounters


class Spool(Protocol):
    """A run's undelivered items on disk. `take` can be called from any thread, the rest from one. None of it raises."""

    path: Path
    newest: int  # the highest number that it was given; -1 before the first
    trouble: str  # why it can't be written; empty if it can

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


MakeSpool = Callable[[RunInfo, Callable[[], Described]], Spool]

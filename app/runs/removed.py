"""The removed runs that a server remembers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .gone import Gone
from .joint import as_joint
from .run import Run

MAX_GONE: Final = 200  # removed runs that are remembered


class Removals:
    """The removed runs by id, latest removal last. The list of runs has a lock, which must be held to change them."""

    def __init__(self) -> None:
        self._gone: dict[str, Gone] = {}

    def __iter__(self) -> Iterator[Gone]:
        return iter(list(self._gone.values()))

    def get(self, run_id: str) -> Run | None:
        """Return a removed run by its id, if it can be restored."""
        gone = self._gone.get(run_id)
        return None if gone is None else gone.run

    def put(self, gone: Gone) -> None:
        """Remember a removed run, and forget the oldest beyond the limit."""
        self.drop(gone.id)
        self._gone[gone.id] = gone
        while len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]

    def drop(self, run_id: str) -> None:
        """Forget a removed run: it is back, or nothing is left of it."""
        self._gone.pop(run_id, None)

    def restorable(self) -> list[Run]:
        """Return the runs that can be restored."""
        return [gone.run for gone in self if gone.run is not None]

    def let_go(self, run_id: str) -> None:
        """Release a removed run, which can no longer be restored."""
        if (gone := self._gone.get(run_id)) is not None:
            gone.run = None

    def latest_first(self) -> list[Gone]:
        """Return the removals, the latest first. Those of the ranks of one training are one."""
        oldest_first = map(as_joint, sorted(self, key=lambda gone: gone.at_s))
        return list({each.id: each for each in oldest_first}.values())[::-1]

    def ranks_of(self, run_id: str) -> list[str]:
        """Return the ids of the removed runs that were the ranks of a training."""
        return [gone.id for gone in self if as_joint(gone).id == run_id != gone.id]

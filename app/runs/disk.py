"""What the list of runs needs of the disk."""

from __future__ import annotations

from typing import Protocol

from .gone import Why
from .run import Run


class Disk(Protocol):
    """Writes runs to disk and loads them."""

    def load(self, run: Run) -> None:
        """Load a run from disk into memory."""

    def is_whole(self, run: Run) -> bool:
        """Return whether all of a run is on disk, so that it can leave memory."""

    def release(self, run: Run) -> None:
        """Write the rest of a run and close its files."""

    def discard(self, run: Run, why: Why) -> None:
        """Move a run's folder to the trash."""

    def restore(self, run: Run) -> None:
        """Restore a run's folder from the trash."""

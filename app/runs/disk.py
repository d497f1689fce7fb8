"""The interface between the list of runs and their storage: the disk, or ClickHouse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hookcore.delivery.archive import Recorded
from hookcore.errors import HookcoreError

from .gone import Why
from .run import Run


class WrongKeyError(HookcoreError):
    """A trainer tries to continue a run that another trainer started."""


class Disk(Protocol):
    """Keeps runs and loads them."""

    @property
    def partial(self) -> str:
        """Why runs may be missing now; empty if none are."""

    def find(self, run_id: str) -> Run | None:
        """Return a run that isn't in the list, and list it; None if it isn't here either."""

    def recorded(self, runs: Sequence[Run]) -> Mapping[str, Recorded | HookcoreError]:
        """Return what is kept of the ranks of a training, or why it can't be read, by the ids of their runs."""

    def recall(self, run: Run) -> None:
        """Give the run of all ranks the steps before those that are read next, if they are kept elsewhere."""

    def load(self, run: Run) -> None:
        """Load a run from disk into memory."""

    def wait_until_listed(self) -> None:
        """Wait until the runs in the server's folder are in the list, but not forever."""

    def is_whole(self, run: Run) -> bool:
        """Return whether all of a run is on disk, so that it can leave memory."""

    def is_saving(self, run: Run) -> bool:
        """Return whether the rest of a run is being written, so that all of it will be on disk soon."""

    def release(self, run: Run) -> None:
        """Write the rest of a run and close its files."""

    def discard(self, run: Run, why: Why) -> None:
        """Move a run's folder to the trash."""

    def restore(self, run: Run) -> None:
        """Restore a run's folder from the trash."""

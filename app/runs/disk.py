"""The interface between the list of runs and their storage, and runs that were removed or are not listed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from hookcore.delivery.archive import Recorded
from hookcore.errors import HookcoreError
from hookcore.records import text_of

from .run import Run

# A run that was removed.

Why = Literal["deleted", "memory", "disk"]
_WHY: Final[dict[Why, str]] = {
    "deleted": "was deleted",
    "memory": "was removed to make room in memory",
    "disk": "was removed to make room on disk",
}


@dataclass(slots=True)
class Gone:
    """A removed run. It can be restored as long as there is a `run`."""

    id: str
    name: str
    at_s: float
    why: Why
    run: Run | None

    @property
    def words(self) -> str:
        return _WHY[self.why].removeprefix("was ")

    @property
    def sentence(self) -> str:
        """Why and when it was removed, and whether it can be restored."""
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.at_s))
        undo = "To restore it, select Undo on the Runs page." if self.run is not None else "It can't be restored."
        return f"The run {self.name or self.id} {_WHY[self.why]} at {at}. {undo}"


def why_gone(gone: Iterable[Gone], run_id: str) -> str | None:
    """Return why a run was removed; None if it isn't among these."""
    return next((removed.sentence for removed in gone if removed.id == run_id), None)


class WrongKeyError(HookcoreError):
    """A trainer tries to continue a run that another trainer started."""


class Disk(Protocol):
    """Keeps runs and loads them."""

    @property
    def partial(self) -> str | None:
        """Why runs may be missing now; None if none are."""

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


class Unlisted:
    """Which folders of saved runs a list doesn't have, and why."""

    def __init__(self) -> None:
        self.unread: dict[Path, str] = {}  # those that can't be read, and why
        self.too_many: set[Path] = set()  # those of older runs that the list has no room for

    def forget(self, path: Path) -> None:
        """Forget a folder that was removed."""
        self.too_many.discard(path)
        self.unread.pop(path, None)

    @property
    def words(self) -> str | None:
        """Say which runs are missing from the list, and why; None if none are."""
        sentences = []
        unread = list(self.unread.values())
        if many := len(self.too_many):
            runs, link = ("run is", "its link works") if many == 1 else ("runs are", "their links work")
            sentences.append(f"{many:,} older saved {runs} not listed, but {link}.")
        if many := len(unread):
            runs = "1 saved run" if many == 1 else f"{many:,} saved runs"
            sentences.append(f"{runs} can't be read{'' if many == 1 else '. The first'}: {text_of(unread[0])}.")
        return " ".join(sentences) or None

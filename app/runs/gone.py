"""A run that was removed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from .run import Run

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


def why_gone(gone: Iterable[Gone], run_id: str) -> str:
    """Return why a run was removed; empty if it isn't among these."""
    return next((each.sentence for each in gone if each.id == run_id), "")

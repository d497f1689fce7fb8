"""The timeline of a run by itself: what the pages' scripts request to keep the one under their header live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from .page import PartsPage
from .views.moment import note_of
from .views.timeline import timeline_view


@dataclass(frozen=True, kw_only=True)
class TimelinePage(PartsPage):
    """The line, and the note about the held step."""

    name = "timeline"
    instead = "overview"
    parts = ("line", "note")

    def part_line(self) -> dict[str, Any]:
        timeline = timeline_view(self.run)
        if timeline is None:
            raise HTTPException(404, "This run has no step")
        return {"timeline": timeline}

    def part_note(self) -> dict[str, Any]:
        return {"note": note_of(self.run.reader, self.span)}

"""The timeline of a run by itself: what the pages' scripts request to keep the one under their header live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from .frame import address_of
from .page import Page, RunPage
from .views.moment import note_of
from .views.timeline import timeline_view


@dataclass(frozen=True, kw_only=True)
class TimelinePage(RunPage):
    """It has no page of its own: without a part, it leads to the Overview."""

    name = "timeline"

    def respond(self) -> Response:
        """Render the part."""
        if self.part:
            return Page.respond(self)
        address = address_of(self.run, **dict(self.shared.parts))
        return RedirectResponse(f"{self.request.scope.get('root_path', '')}/{address}", 307)

    def part_line(self) -> dict[str, Any]:
        """Return the timeline."""
        timeline = timeline_view(self.run)
        if timeline is None:
            raise HTTPException(404, "This run has no step yet")
        return {"timeline": timeline}

    def part_note(self) -> dict[str, Any]:
        """Return what must be known of the held step."""
        return {"note": note_of(self.run.store, self.span)}

"""The page Incident: what went wrong, why, what followed, and the values around the first step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from fastapi import Query
from starlette.exceptions import HTTPException

from hookcore.config.patterns import literal
from hookcore.records import Tap
from hookcore.store.incidents import Incident

from .frame import address_of
from .page import RunPage
from .views.incident import SHOWN, IncidentView, default_stat, view_of
from .views.incident_graph import graph_of
from .views.overview import layer_address
from .views.saved_steps import capsule_of, capsules_of, source_of
from .views.span import Shared, usual_steps
from .views.words import STAT_WORDS


@dataclass(frozen=True, kw_only=True)
class IncidentPage(RunPage):
    """One incident, named by its id, which stays the same after a restart and in a saved run."""

    name = "incident"
    parts = ("about", "cause", "graph", "tensors", "chain")

    id: Annotated[str, Query(max_length=200, description="of the incident")] = ""
    stat: Annotated[str, Query(max_length=20, description="the stat that is shown; empty: the usual one")] = ""

    @cached_property
    def incident(self) -> Incident:
        """The incident with that id. Raises HTTPException if the run has none."""
        if not self.id:
            raise HTTPException(
                422, "This address lacks the id of an incident. The Events page lists the run's incidents"
            )
        found = next((each for each in self.run.store.incidents() if each.id == self.id), None)
        if found is None:
            dropped = "It may have been dropped to make room for later ones"
            why = self.run.partial or f"{dropped}; the Events page lists the others"
            raise HTTPException(404, f"This run has no such incident. {why}")
        return found

    @property
    def usual(self) -> Shared:
        """The steps around the first one."""
        shown, step = self.view, str(self.incident.first_step)
        if shown.first is None or shown.until is None:
            return Shared(usual_steps(self.run), step)
        return Shared(f"{shown.first}-{max(shown.first, shown.until)}", step)

    @cached_property
    def view(self) -> IncidentView:
        stat = self.stat if self.stat in SHOWN else default_stat(self.incident)
        return view_of(self.incident, stat, self.run.state != "live")

    def values(self) -> dict[str, Any]:
        """Return what all parts show."""
        incident, module = self.incident, self.incident.culprit.tap.module
        muted = self.run.edits.quiet.muting(self.run.store)(incident.rule, module)
        return {
            "view": self.view,
            "incident": incident,
            "stat_words": STAT_WORDS,
            "shown_stats": SHOWN,
            "usual_stat": default_stat(incident),
            "acknowledged": self.run.edits.quiet.has_seen(incident.key, incident.first_step),
            "muted": None if muted is None else muted.match,
            "mute_here": literal(module) if module else "",
            "layer_of": self._layer_of,
        }

    def part_cause(self) -> dict[str, Any]:
        capsules = capsules_of(self.request, self.run)
        return {"capsule": capsule_of(self.incident, capsules), "capsule_heading": "h2", "source_of": source_of}

    def part_graph(self) -> dict[str, Any]:
        is_placed = not self.view.is_of_loss and self.incident.culprit_known
        graph = graph_of(self.incident, self.run.reader) if is_placed else None
        return {"graph": graph, "module_of": lambda path: address_of(self.run, "layer", module=path)}

    def _layer_of(self, tap: Tap, step: int) -> str:
        return layer_address(self.run, tap, step)

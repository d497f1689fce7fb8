"""The page Events: findings and events, filtered and over steps, and the origin of a finding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

from fastapi import Query
from starlette.responses import PlainTextResponse, Response

from hookcore.config.patterns import literal
from hookcore.reading.answers import Mute
from hookcore.records import SEVERITIES
from hookcore.records.vocabulary import counted

from ..analysis.selection import finder_of
from ..analysis.titles import title_of_rule
from ..runs import Run
from ..runs.muting import mutes_of
from .frame import address_of
from .page import FindText, Page, RowNumber, RunPage, TablePage, Text
from .views.event_list import FINDING, Filter, Line, all_lines, markdown_of, names_of
from .views.overview import incident_address, layer_address
from .views.provenance import incident_of, provenance_of
from .views.saved_steps import capsule_for, capsules_of, source_of

ROWS: Final = 100  # per page
MAX_COPIED: Final = 1000


@dataclass(frozen=True, slots=True)
class Shown:
    """A line and the addresses it links to."""

    line: Line
    layer: str
    here: str  # this page with the line's details


@dataclass(frozen=True, kw_only=True)
class EventsPage(RunPage):
    """Findings and events, newest first. Empty form fields match everything."""

    name = "events"
    parts = ("badge", "mutes", "list", "detail")

    severity: Text = ""
    rule: Annotated[str, Query(alias="name", max_length=1000, description="of an event or a finding's rule")] = ""
    f: FindText = ""
    text: Text = ""
    hide: Annotated[Literal["", "0", "1"], Query(description="1 hides acknowledged and muted lines")] = ""
    event: Annotated[str, Query(max_length=2300, description="the id of the line whose details are shown")] = ""
    row: RowNumber = 0
    format: Annotated[Literal["", "markdown"], Query(description="the list as a Markdown table")] = ""

    @cached_property
    def lines(self) -> list[Line]:
        """All lines of the run, or of the steps that the page is about."""
        return all_lines(self.run, *self.listed_in)

    @cached_property
    def wanted(self) -> Filter:
        """The requested lines."""
        fits = finder_of(self.run, self.f).fits
        return Filter(self.severity, self.rule, fits, self.text.strip(), self.hide == "1")

    @cached_property
    def fitting(self) -> list[Line]:
        """The lines that match."""
        return [line for line in self.lines if self.wanted.fits(line)]

    @cached_property
    def chosen(self) -> Line | None:
        """The line whose details are shown. One that was asked for is found wherever it is."""
        found = _chosen(self.lines, self.fitting, self.event)
        if found is None and self.event and self.listed_in != (None, None):
            return _chosen(all_lines(self.run), [], self.event)
        return found

    @cached_property
    def asked(self) -> dict[str, str]:
        """The filter in the address."""
        given = {"severity": self.severity, "name": self.rule, "f": self.f, "text": self.text}
        return given | {"hide": self.hide.replace("0", "")}

    def respond(self) -> Response:
        """Render the page or its parts, or the list as Markdown."""
        if not self.format:
            return Page.respond(self)
        root, given = str(self.request.base_url).rstrip("/"), self.request.query_params.multi_items()
        query = urlencode([(key, value) for key, value in given if key != "format"])
        address = f"{root}/{address_of(self.run, 'events')}{'?' + query if query else ''}"
        copied, title = self.fitting[:MAX_COPIED], f"Events of {self.run.name or self.run.id}"
        text = markdown_of(copied, title, address, len(self.fitting) - len(copied))
        return PlainTextResponse(text, media_type="text/markdown")

    def values(self) -> dict[str, Any]:
        """Return the filter, what there is to choose from, and how much fits."""
        return {
            "asked": self.asked | {"event": self.event, "row": self.row},
            "names": names_of(self.lines),
            "severities": SEVERITIES,
            "finding_name": FINDING,
            "total": len(self.lines),
            "alerting": sum(line.is_alert for line in self.lines),
            "fitting": len(self.fitting),
            "muted": sum(line.muted is not None for line in self.lines),
            "hidden_seen": sum(line.is_quiet for line in self.lines) if self.wanted.hides_seen else 0,
            "query": urlencode({key: value for key, value in self.asked.items() if value}),
            "detail": self.chosen,
        }

    def part_mutes(self) -> dict[str, Any]:
        """Return the mutes of the run, each with its title and what it covers."""
        mutes = mutes_of(self.run).mutes
        return {"mutes": [(each, title_of_rule(each.rule), _covered_by(each)) for each in mutes]}

    def part_list(self) -> dict[str, Any]:
        """Return one page of the list."""
        table = TablePage.at(self.row, ROWS, len(self.fitting))
        return {"rows": [_shown(self.run, line, self.asked) for line in table.cut(self.fitting)], "table": table}

    def part_detail(self) -> dict[str, Any]:
        """Return the origin of the selected finding."""
        run, line = self.run, self.chosen
        finding = line.finding if line is not None else None
        # The cause of a bad loss is unknown, because a loss is not a layer's tensor.
        has_origin = finding is not None and not finding.is_of_loss and finding.culprit_known
        origin = provenance_of(run.store, finding) if finding is not None and has_origin else None
        incident = line.incident if line is not None else None
        if finding is not None:
            incident = incident_of(run.store.incidents(), finding)
        return {
            "incident_page": "" if incident is None else address_of(run, "incident", id=incident.id),
            "capsule": capsule_for(line, capsules_of(self.request, run)) if line is not None else None,
            "source_of": source_of,
            "mute_here": literal(line.module) if line is not None and line.module else "",
            "detail_layer": _layer_of(run, line) if line is not None else "",
            "origin": origin,
            "layer_of": lambda tap, step: layer_address(run, tap, step),
        }


def _covered_by(mute: Mute) -> str:
    counts = (mute.findings, "finding"), (mute.incidents, "incident"), (mute.events, "event")
    return ", ".join(counted(count, word) for count, word in counts if count) or "nothing so far"


def _shown(run: Run, line: Line, asked: dict[str, str]) -> Shown:
    return Shown(line, _layer_of(run, line), address_of(run, "events", **asked, event=line.id))


def _layer_of(run: Run, line: Line) -> str:
    if not line.is_placed:
        return incident_address(run, line)
    if not line.is_of_layer:
        return address_of(run, "flow", step=line.step)
    if line.tap is not None:
        return layer_address(run, line.tap, line.step)
    return address_of(run, "layer", module=line.module, step=line.step)


def _chosen(lines: list[Line], fitting: list[Line], key: str) -> Line | None:
    """Return the requested line, or else the first of the worst findings that are neither acknowledged nor muted.

    A finding is found by its key even if its onset has moved since the link was created.
    """
    if key:
        kept = key.rpartition("@")[0]
        return next((each for wanted in (key, kept) for each in lines if wanted in (each.id, each.key)), None)
    findings = [each for each in fitting if not each.is_event and not each.is_quiet]
    # A bad loss is the consequence, and the problem that began first is nearest to the cause.
    return min(
        findings, key=lambda each: (SEVERITIES.index(each.severity), each.name == "loss", each.step), default=None
    )

"""The pages Problems, Incident, and Rules: findings and events, one problem with its cause, and the rules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

from fastapi import Query
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from hookcore.config.patterns import literal
from hookcore.findings import RULES, SENTENCES, THRESHOLDS, Finding, examine, examine_with, read_choices
from hookcore.findings.follower import words_of
from hookcore.reading.answers import Mute, RunRule, Threshold
from hookcore.records import SEVERITIES, Tap
from hookcore.records.vocabulary import counted
from hookcore.store.incidents import Incident

from ..analysis.modules import finder_of
from ..analysis.numerals import title_of_rule
from ..runs import Run
from ..runs.edits import mutes_of, rules_of
from ..runs.saved import tried
from .frame import address_of, no_change_words
from .page import FindText, Page, RowNumber, RunPage, TablePage, Text
from .views.events import FINDING, Filter, Line, all_lines, incident_of, markdown_of, names_of, provenance_of
from .views.incident import (
    SHOWN,
    IncidentView,
    capsule_for,
    capsule_of,
    capsules_of,
    default_stat,
    graph_of,
    source_of,
    view_of,
)
from .views.overview import incident_address, layer_address
from .views.span import Shared, usual_steps
from .views.words import STAT_WORDS

# The page Problems: findings and events, filtered and over steps, and the origin of a finding.

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
        return {"mutes": [(mute, title_of_rule(mute.rule), _covered_by(mute)) for mute in mutes]}

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
        return next((line for wanted in (key, kept) for line in lines if wanted in (line.id, line.key)), None)
    findings = [each for each in fitting if not each.is_event and not each.is_quiet]
    # A bad loss is the consequence, and the problem that began first is nearest to the cause.
    return min(
        findings, key=lambda each: (SEVERITIES.index(each.severity), each.name == "loss", each.step), default=None
    )


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
                422, "This address lacks the id of an incident. The Problems page lists the run's incidents"
            )
        found = next((each for each in self.run.store.incidents() if each.id == self.id), None)
        if found is None:
            dropped = "It may have been dropped to make room for later ones"
            why = self.run.partial or f"{dropped}; the Problems page lists the others"
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


# The page Rules: what each rule looks for, as a sentence with its numbers, what it has found, and what it would find.

RuleState = Literal["found", "fine", "nothing", "off"]


@dataclass(frozen=True, slots=True)
class RuleLine:
    """A rule of the run: its sentence with fields for the numbers, its state, and the address of what it found."""

    rule: RunRule
    pieces: tuple[str | Threshold, ...]  # of the sentence
    state: RuleState
    words: str  # of the state
    address: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What a rule would find with other numbers."""

    rule: str
    numbers: Mapping[str, str]  # as they were entered
    problem: str = ""  # with them
    before: int = 0
    found: tuple[Finding, ...] = ()
    steps: tuple[int | None, int | None] = (None, None)  # that were looked at
    is_whole: bool = False  # whether they are all of the run


@dataclass(frozen=True, kw_only=True)
class RulesPage(RunPage):
    """The rules, those that found something first."""

    name = "rules"
    parts = ("rules", "preview")

    rule: Annotated[
        str, Query(max_length=100, description="the rule whose numbers are tried; they are named as is")
    ] = ""

    def part_rules(self) -> dict[str, Any]:
        """Return the rules by their state."""
        rules = rules_of(self.run, self.runs.later_rules)
        lines = [self._line(each, found) for each, found in zip(rules.rules, self._found(rules.rules), strict=True)]
        groups: dict[RuleState, list[RuleLine]] = {"found": [], "fine": [], "nothing": [], "off": []}
        for line in lines:
            groups[line.state].append(line)
        return {
            "groups": groups,
            "own_rules": rules.own,
            "changed_rules": self.run.rules,
            "keep": self.runs.settings.keep if self.runs.settings.keeps else "",
            "later": {
                each.rule.title: (each.rule.name, words) for each in lines if (words := self._later(each.rule.name))
            },
            "no_change_words": no_change_words(self.run),
        }

    def _later(self, rule: str) -> str:
        return words_of({rule: what}, {}) if (what := self.runs.later_rules.get(rule)) is not None else ""

    def part_preview(self) -> dict[str, Any]:
        """Return what the rule in the address would find."""
        return {"preview": self._preview() if self.rule in THRESHOLDS else None}

    def _found(self, rules: Sequence[RunRule]) -> list[list[Line]]:
        """Return the findings and incidents of each rule."""
        by_rule: dict[str, list[Line]] = {each.name: [] for each in rules}
        for line in all_lines(self.run):
            if not line.is_event:
                by_rule.get(line.name, []).append(line)
        return list(by_rule.values())

    def _line(self, rule: RunRule, found: list[Line]) -> RuleLine:
        if not rule.on:
            state: RuleState = "off"
            words = "Off."
        elif found:
            first = min(line.step for line in found)
            state, words = "found", f"Found {counted(len(found), 'problem')}, the first one since step {first:,}."
        elif rule.needs:
            state, words = "nothing", f"No data: it needs {rule.needs}."
        elif rule.looks_at is None:
            state, words = "fine", "Fine. The trainer checks it."
        else:
            state, words = "fine", f"Fine. Checks {rule.looks_at:,} of this run's tensors or logged values."
        named = {each.name: each for each in rule.thresholds}
        split = re.split(r"\{(\w+)\}", SENTENCES.get(rule.name, RULES[rule.name].help))  # type: ignore[index]
        pieces = tuple(named[part] if place % 2 else part for place, part in enumerate(split))
        return RuleLine(rule, pieces, state, words, address_of(self.run, "events", name=rule.name))

    def _preview(self) -> Preview:
        given, thresholds = self.request.query_params, THRESHOLDS[self.rule]
        numbers = {each.name: given.get(each.name, f"{each.default:g}") for each in thresholds}
        try:
            chosen = read_choices({self.rule: {name: float(text) for name, text in numbers.items()}}, self.run.rules)
        except ValueError as error:  # also ArgumentError
            return Preview(self.rule, numbers, str(error))
        whole = tried(self.runs, self.run, chosen)
        after = examine_with(self.run.store, chosen) if whole is None else examine(whole)
        found = tuple(each for each in after.findings if each.rule == self.rule)
        before = sum(each.rule == self.rule for each in self.run.findings.current())
        looked = whole.steps() if whole is not None else None
        steps = (after.scope.first_step, after.scope.last_step) if looked is None else (looked.first, looked.newest)
        return Preview(self.rule, numbers, "", before, found, steps, whole is not None)

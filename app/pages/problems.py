"""The pages Problems, Problem, and Rules: one list, the page of one of its lines, and what each rule looks for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

from fastapi import Query
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from hookcore.config.patterns import literal
from hookcore.findings import RULES, SENTENCES, THRESHOLDS, Finding, examine, examine_with, read_choices
from hookcore.findings.follower import words_of
from hookcore.reading.answers import Mute, RunRule, Threshold
from hookcore.records import SEVERITIES, Tap
from hookcore.records.vocabulary import counted, found_words

from ..analysis.modules import finder_of
from ..analysis.numerals import title_of_rule
from ..runs.answering import samples_of
from ..runs.edits import mutes_of, rules_of
from ..runs.saved import tried
from .frame import address_of, no_change_words
from .page import FindText, Page, RowNumber, RunPage, TablePage, Text
from .views.events import (
    EVERYTHING,
    Around,
    Filter,
    Line,
    all_lines,
    annotation_lines,
    around_of,
    counts_of,
    line_with,
    markdown_of,
    names_of,
    problem_lines,
    problems_among,
)
from .views.incident import (
    SHOWN,
    IncidentView,
    capsule_for,
    capsule_of,
    capsules_of,
    default_stat,
    explained_by,
    graph_of,
    may_be_of_samples,
    precursors_of,
    rule_after,
    source_of,
    view_of,
)
from .views.overview import layer_address, line_layer, problem_address, spark_of_finding
from .views.span import Shared, usual_steps
from .views.words import STAT_WORDS

# The page Problems: one list of problems and notes, and of everything that happened.

ROWS: Final = 100  # per page
MAX_COPIED: Final = 1000


@dataclass(frozen=True, kw_only=True)
class EventsPage(RunPage):
    """Problems and notes by severity and step, or everything, newest first. Empty form fields match everything."""

    name = "events"
    parts = ("badge", "mutes", "list")

    severity: Text = ""
    rule: Annotated[str, Query(alias="name", max_length=1000, description="of an event or a finding's rule")] = ""
    f: FindText = ""
    text: Text = ""
    hide: Annotated[Literal["", "0", "1"], Query(description="1 hides acknowledged and muted lines")] = ""
    event: Annotated[str, Query(max_length=2300, description="the id of a line, whose page this leads to")] = ""
    row: RowNumber = 0
    format: Annotated[Literal["", "markdown"], Query(description="the list as a Markdown table")] = ""

    @cached_property
    def everything(self) -> list[Line]:
        """All lines of the run, or of the steps that the page is about, newest first."""
        return sorted(all_lines(self.run, *self.listed_in) + self.annotations, key=lambda line: -line.step)

    @cached_property
    def annotations(self) -> list[Line]:
        """What readers have written about these steps."""
        return annotation_lines(self.run, *self.listed_in)

    @cached_property
    def lines(self) -> list[Line]:
        """The lines that can be filtered: problems, notes, and what readers wrote, unless others are asked for."""
        return self.everything if self.rule else problems_among(self.everything) + self.annotations

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
    def asked(self) -> dict[str, str]:
        """The filter in the address."""
        given = {"severity": self.severity, "name": self.rule, "f": self.f, "text": self.text}
        return given | {"hide": self.hide.replace("0", "")}

    def respond(self) -> Response:
        """Render the page or its parts, the list as Markdown, or lead to the page of a line."""
        if self.event and not self.part:
            address = address_of(self.run, "incident", id=self.event, **dict(self.shared.parts))
            return RedirectResponse(f"{self.request.scope.get('root_path', '')}/{address}", 307)
        if not self.format:
            return Page.respond(self)
        root, given = str(self.request.base_url).rstrip("/"), self.request.query_params.multi_items()
        query = urlencode([(key, value) for key, value in given if key != "format"])
        address = f"{root}/{address_of(self.run, 'events')}{'?' + query if query else ''}"
        copied, title = self.fitting[:MAX_COPIED], f"Problems of {self.run.name or self.run.id}"
        text = markdown_of(copied, title, address, len(self.fitting) - len(copied))
        return PlainTextResponse(text, media_type="text/markdown")

    def values(self) -> dict[str, Any]:
        """Return the filter, what there is to choose from, and how much fits."""
        return {
            "asked": self.asked | {"row": self.row},
            "names": names_of(self.everything),
            "severities": SEVERITIES,
            "everything": EVERYTHING,
            "events": len(self.everything),
            "total": len(self.lines),
            "count_words": found_words(*counts_of(self.lines)),
            "annotations": len(self.annotations),
            "fitting": len(self.fitting),
            "quiet": sum(line.is_quiet for line in self.lines),
            "hidden_seen": sum(line.is_quiet for line in self.lines) if self.wanted.hides_seen else 0,
            "query": urlencode({key: value for key, value in self.asked.items() if value}),
        }

    def part_mutes(self) -> dict[str, Any]:
        """Return the mutes of the run, each with its title and what it covers."""
        mutes = mutes_of(self.run).mutes
        return {"mutes": [(mute, title_of_rule(mute.rule), _covered_by(mute)) for mute in mutes]}

    def part_list(self) -> dict[str, Any]:
        """Return one page of the list."""
        table, capsules = TablePage.at(self.row, ROWS, len(self.fitting)), capsules_of(self.request, self.run)
        rows = [
            (line, problem_address(self.run, line), line_layer(self.run, line), explained_by(line, capsules))
            for line in table.cut(self.fitting)
        ]
        return {"rows": rows, "table": table}


def _covered_by(mute: Mute) -> str:
    counts = (mute.findings, "finding"), (mute.incidents, "incident"), (mute.events, "event")
    return ", ".join(counted(count, word) for count, word in counts if count) or "nothing so far"


@dataclass(frozen=True, kw_only=True)
class IncidentPage(RunPage):
    """The page of one line of the list: an incident, by an id that stays the same, or else a finding or an event."""

    name = "incident"
    parts = ("about", "cause", "graph", "tensors", "chain")

    id: Annotated[str, Query(max_length=2300, description="of the incident, the finding, or the event")] = ""
    stat: Annotated[str, Query(max_length=20, description="the stat that is shown; empty: the usual one")] = ""

    @cached_property
    def line(self) -> Line:
        """The line with that id, with its incident if it has one. Raises HTTPException if the run has none."""
        if not self.id:
            raise HTTPException(422, "This address lacks the id of a problem: the Problems page lists them")
        found = line_with(self.run, self.id)
        if found is None:
            dropped = "It has cleared, or was dropped to make room for later ones"
            why = self.run.partial or f"{dropped}; the Problems page lists the others"
            raise HTTPException(404, f"This run has no such problem. {why}")
        return found

    @property
    def usual(self) -> Shared:
        """The steps around the first one of an incident."""
        shown, step = self.view, str(self.line.step)
        if shown is None:
            return Shared(usual_steps(self.run))
        if shown.first is None or shown.until is None:
            return Shared(usual_steps(self.run), step)
        return Shared(f"{shown.first}-{max(shown.first, shown.until)}", step)

    @cached_property
    def view(self) -> IncidentView | None:
        """What is shown of an incident; None of a finding or an event without one."""
        incident = self.line.incident
        if incident is None:
            return None
        stat = self.stat if self.stat in SHOWN else default_stat(incident)
        return view_of(incident, stat, self.run.state != "live")

    def values(self) -> dict[str, Any]:
        """Return what all parts show."""
        line, incident = self.line, self.line.incident
        listed = [each.page_id for each in problem_lines(self.run)]
        place = listed.index(line.page_id) if line.page_id in listed else None
        rule = next((each for each in rules_of(self.run).rules if each.name == line.name and line.rule), None)
        return {
            "view": self.view,
            "incident": incident,
            "line": line,
            "around": self._around,
            "spark": None
            if line.finding is None or incident is not None
            else spark_of_finding(self.run.reader, line.finding),
            "is_end": line.is_event and self.run.end.failure is not None and self.run.end.failure.outcome == line.name,
            "layer": line_layer(self.run, line),
            "listed": [address_of(self.run, "incident", id=each) for each in listed],
            "place": place,
            "rule": rule,
            "pieces": () if rule is None else pieces_of(rule),
            "stat_words": STAT_WORDS,
            "shown_stats": SHOWN,
            "usual_stat": "" if incident is None else default_stat(incident),
            "mute_here": literal(line.module) if line.module else "",
            "layer_of": self._layer_of,
        }

    @property
    def _around(self) -> Around | None:
        """The steps around the onset of a finding without an incident. A loss is not a layer's tensor."""
        finding, has_incident = self.line.finding, self.line.incident is not None
        if finding is None or has_incident or finding.is_of_loss or not finding.culprit_known:
            return None
        return around_of(self.run.store, finding)

    def part_cause(self) -> dict[str, Any]:
        """Return the saved step, and what its replay found."""
        line, capsules = self.line, capsules_of(self.request, self.run)
        capsule = capsule_for(line, capsules) if line.incident is None else capsule_of(line.incident, capsules)
        incident = line.incident
        samples = samples_of(self.run, line.step) if may_be_of_samples(incident) else None
        return {
            "capsule": capsule,
            "capsule_heading": "h2",
            "advised": rule_after(line.rule, capsule),
            "source_of": source_of,
            "samples": samples,
            "precursors": [] if incident is None else precursors_of(incident, self.run.store.incidents()),
        }

    def part_graph(self) -> dict[str, Any]:
        """Return the modules around the culprit."""
        incident = self.line.incident
        is_placed = incident is not None and incident.placed and incident.culprit_known
        graph = graph_of(incident, self.run.reader) if is_placed and incident is not None else None
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


def pieces_of(rule: RunRule) -> tuple[str | Threshold, ...]:
    """Return the sentence of a rule, cut at its numbers."""
    named = {each.name: each for each in rule.thresholds}
    split = re.split(r"\{(\w+)\}", SENTENCES.get(rule.name, RULES[rule.name].help))  # type: ignore[index]
    return tuple(named[part] if place % 2 else part for place, part in enumerate(split))


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
            if not line.is_event and line.is_problem:
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
        return RuleLine(rule, pieces_of(rule), state, words, address_of(self.run, "events", name=rule.name))

    def _preview(self) -> Preview:
        given, thresholds = self.request.query_params, THRESHOLDS[self.rule]
        numbers = {each.name: given.get(each.name, f"{each.default:g}") for each in thresholds}
        try:
            chosen = read_choices({self.rule: {name: float(text) for name, text in numbers.items()}}, self.run.rules)
        except ValueError as error:  # also ArgumentError
            return Preview(self.rule, numbers, str(error))
        whole = tried(self.runs, self.run, chosen)
        after = examine_with(self.run.store, chosen) if whole is None else examine(whole)
        found = tuple(each for each in after.findings if each.rule == self.rule and not each.is_part)
        before = sum(each.rule == self.rule and not each.is_part for each in self.run.findings.current())
        looked = whole.steps() if whole is not None else None
        steps = (after.scope.first_step, after.scope.last_step) if looked is None else (looked.first, looked.newest)
        return Preview(self.rule, numbers, "", before, found, steps, whole is not None)

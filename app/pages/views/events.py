"""Problems, notes, and events as lines of one list, and the steps around the onset of a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from hookcore.findings import Finding, Rule, rule_about
from hookcore.findings.finding import OF_LOSS, OF_TIME
from hookcore.reading import Mute, Reader, answers
from hookcore.records import ROOT, SEVERITIES, Kind, Severity, Tap, worst_first
from hookcore.records.vocabulary import NONFINITE_STEP, TRACEBACK
from hookcore.store import Store
from hookcore.store.incidents import Incident

from ...analysis.figures.lines import Spark, spark_of
from ...analysis.numerals import title_of, title_of_rule
from ...runs import Run

SIGNS: Final = {"error": "\u2715", "warning": "\u25b2", "info": "\u2022"}  # not by color alone
EVERYTHING: Final = "all"  # as the name to filter by: events too
ANNOTATION: Final = "annotation"  # the name of what a reader has written about a step
MAX_EVENTS: Final = 10_000  # of an answer


@dataclass(frozen=True, slots=True)
class Line:
    """A finding, an event, or an incident as it was known at a step."""

    key: str  # to acknowledge it; a finding keeps its key when it comes back
    name: str  # of the event, or of the rule
    title: str
    severity: Severity
    step: int
    until: int | None
    module: str
    message: str
    count: int
    time_s: float
    acknowledged: bool
    finding: Finding | None = None
    muted: str | None = None  # the pattern of its mute
    incident: Incident | None = None  # as it was known at a step, in place of a finding
    traceback: str = ""  # of an error

    @property
    def id(self) -> str:
        """The id in the list. A rule can find the same tensor at several steps."""
        return self.key if self.is_event else f"{self.key}@{self.step}"

    @property
    def page_id(self) -> str:
        """The id of its page: that of its incident, if it has one."""
        if self.incident is not None:
            return self.incident.id
        return (self.finding.incident if self.finding is not None else "") or self.id

    @property
    def is_problem(self) -> bool:
        """Whether it is a problem or a note by itself: a finding, an incident, or an event of a warning or an error."""
        if self.is_event:
            return self.severity != "info" and self.name != NONFINITE_STEP
        return self.finding is None or not self.finding.is_part

    @property
    def rule(self) -> Rule | None:
        """The rule of a finding, with its advice."""
        found = self.finding or self.incident
        return None if found is None else rule_about(self.name, found.value)

    @property
    def sign(self) -> str:
        """A mark that doesn't depend on color."""
        return SIGNS[self.severity]

    @property
    def quantity(self) -> str:
        """The quantity of the finding's values; empty for an event."""
        if self.finding is None:
            return ""
        rule = self.finding.rule
        return OF_TIME.get(rule, "loss") if rule in OF_LOSS else self.finding.stat

    @property
    def is_event(self) -> bool:
        """Whether it is an event, which has one step."""
        return self.finding is None and self.incident is None

    @property
    def is_annotation(self) -> bool:
        """Whether a reader wrote it. It is listed, but doesn't count as something that was found."""
        return self.name == ANNOTATION

    @property
    def is_of_loss(self) -> bool:
        """Whether it is about a logged loss, not about a tensor."""
        if self.incident is not None:
            return not self.incident.placed
        return self.finding is not None and self.finding.is_of_loss

    @property
    def tap(self) -> Tap | None:
        """The tensor that it is about; None if it isn't known."""
        if not self.is_placed:
            return None
        if self.finding is not None:
            return self.finding.tap
        return None if self.incident is None else self.incident.culprit.tap

    @property
    def is_of_layer(self) -> bool:
        """Whether it is about a layer, which can be the root."""
        return bool(self.module) or (not self.is_event and not self.is_of_loss and self.is_placed)

    @property
    def earliest(self) -> int:
        """The first step in which it may have begun."""
        found = self.finding or self.incident
        return self.step if found is None else found.earliest_step

    @property
    def is_placed(self) -> bool:
        """Whether the layer in which it began is known."""
        found = self.finding or self.incident
        return found is None or found.culprit_known

    @property
    def after(self) -> int:
        """The number of modules that were affected after its own. An incident's message says so itself."""
        return 0 if self.finding is None or not self.is_placed else self.finding.downstream

    @property
    def is_ongoing(self) -> bool:
        """Whether it is a finding that still holds."""
        return not self.is_event and self.until is None

    @property
    def is_alert(self) -> bool:
        """Whether it counts as a problem: a warning or an error that is neither acknowledged nor muted."""
        return self.is_problem and self.severity != "info" and not self.is_quiet

    @property
    def is_quiet(self) -> bool:
        """Whether it is acknowledged or muted."""
        return self.acknowledged or self.muted is not None


def finding_lines(run: Run) -> list[Line]:
    """Return the findings of a run, the worst first."""
    muting = run.edits.quiet.muting(run.store)
    return [
        _line_of(run, finding, _match_of(muting(finding.rule, finding.module))) for finding in run.findings.current()
    ]


def _match_of(mute: Mute | None) -> str | None:
    return None if mute is None else mute.match


def _line_of(run: Run, finding: Finding, muted: str | None) -> Line:
    return Line(
        finding.key,
        finding.rule,
        title_of_rule(finding.rule),
        finding.severity,
        finding.since_step,
        finding.until_step,
        finding.module,
        finding.message,
        1,
        float("nan"),
        run.has_seen(finding),
        finding,
        muted,
    )


def every_event(reader: Reader, name: str | None = None) -> Iterator[answers.Event]:
    """Yield the events of a run, the oldest first: all of them, or those with a name."""
    after, left = 0, True
    while left:
        some = reader.events(name=name, after=after, limit=MAX_EVENTS)
        yield from some.events
        after, left = some.next, some.total > len(some.events)


def event_lines(run: Run) -> list[Line]:
    """Return the events of a run, the oldest first."""
    muting = run.edits.quiet.muting(run.store)
    found = []
    for event in every_event(run.reader):
        found.append(
            Line(
                event.key,
                event.name,
                title_of(event.name),
                event.severity,
                event.step,
                None,
                event.module,
                event.message.replace(ROOT, run.store.root),
                event.count,
                event.time_s,
                event.acknowledged,
                muted=_match_of(muting(event.name, event.module)) if event.muted else None,
                traceback=str(event.about.get(TRACEBACK, "")),
            )
        )
    return found


def annotation_lines(run: Run, first: int | None = None, last: int | None = None) -> list[Line]:
    """Return what readers have written about some steps of a run, the first step first."""
    return [
        Line(f"{ANNOTATION}@{step}", ANNOTATION, "Reader's note", "info", step, None, "", text, 1, float("nan"), False)
        for step, text in run.edits.annotations.items()
        if (first is None or step >= first) and (last is None or step <= last)
    ]


def incident_lines(run: Run, first: int | None, last: int) -> list[Line]:
    """Return the incidents that touch some steps, as they were known at the last of these steps."""
    muting = run.edits.quiet.muting(run.store)
    return [
        _line_of_incident(run, incident.as_of(last), _match_of(muting(incident.rule, incident.culprit.tap.module)))
        for incident in reversed(run.store.incidents())
        if incident.touches(first, last)
    ]


def _line_of_incident(run: Run, incident: Incident, muted: str | None) -> Line:
    until = incident.last_step if incident.is_over or incident.short else None
    return Line(
        incident.key,
        incident.rule,
        title_of_rule(incident.rule),
        incident.severity,
        incident.first_step,
        until,
        incident.culprit.tap.module if incident.placed else "",
        incident.sentence,
        1,
        float("nan"),
        run.edits.quiet.has_seen(incident.key, incident.first_step),
        muted=muted,
        incident=incident,
    )


def problem_lines(run: Run, first: int | None = None, last: int | None = None) -> list[Line]:
    """Return the problems and notes of a run or of some steps: by severity and step; acknowledged and muted ones last.

    All pages list them, and count those that are alerts.
    """
    return problems_among(all_lines(run, first, last))


def problems_among(lines: Iterable[Line]) -> list[Line]:
    """Return the problems and notes among lines, in the order of `problem_lines`."""

    def key(line: Line) -> tuple[bool, int, int, bool]:
        return worst_first(line.severity, line.earliest, is_of_loss=line.is_of_loss, is_quiet=line.is_quiet)

    return sorted((line for line in lines if line.is_problem), key=key)


def all_lines(run: Run, first: int | None = None, last: int | None = None) -> list[Line]:
    """Return findings and events, the newest first, and within a step the worst first.

    With bounds, return the events of these steps, and the incidents that touch them instead of today's findings.
    """
    if last is None:
        lines = finding_lines(run) + event_lines(run)
    else:
        events = (line for line in event_lines(run) if (first is None or line.step >= first) and line.step <= last)
        lines = incident_lines(run, first, last) + list(events)
    return sorted(lines, key=lambda line: (-line.step, line.is_event, SEVERITIES.index(line.severity)))


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines to show. An empty field matches everything."""

    severity: str = ""
    name: str = ""
    fits_module: Callable[[str], bool] = lambda path: True
    text: str = ""
    hides_seen: bool = False

    def fits(self, line: Line) -> bool:
        """Return whether a line is shown."""
        return (
            self.severity in ("", line.severity)
            and (line.is_problem or line.is_annotation if self.name == "" else self.name in (line.name, EVERYTHING))
            and self.fits_module(line.module)
            and self.text.casefold() in f"{line.title}\n{line.message}\n{line.module}\n{line.traceback}".casefold()
            and not (self.hides_seen and line.is_quiet)
        )


def names_of(lines: Iterable[Line]) -> dict[str, str]:
    """Return the names that lines can be filtered by, each with its title."""
    return dict(sorted({line.name: line.title for line in lines}.items(), key=lambda each: each[1]))


def counts_of(lines: Iterable[Line]) -> tuple[int, int]:
    """Return the number of problems and of notes among lines, without acknowledged and muted ones."""
    open_ones = [line for line in lines if line.is_problem and not line.is_quiet]
    problems = sum(line.is_alert for line in open_ones)
    return problems, len(open_ones) - problems


def line_with(run: Run, id: str) -> Line | None:
    """Return the line with an id, or of the incident with it. A finding is found even if its onset has moved."""
    kept, lines = id.rpartition("@")[0], all_lines(run)
    ids = [wanted for wanted in (id, kept) if wanted]
    found = next((line for wanted in ids for line in lines if wanted in (line.page_id, line.id, line.key)), None)
    wanted = id if found is None else found.page_id
    incident = next((each for each in run.store.incidents() if each.id == wanted), None)
    if incident is None:
        return found
    muted = _match_of(run.edits.quiet.muting(run.store)(incident.rule, incident.culprit.tap.module))
    own = found.finding if found is not None and found.is_problem else None
    return replace(_line_of_incident(run, incident, muted), finding=own)


def markdown_of(lines: Sequence[Line], title: str, address: str, left_out: int = 0) -> str:
    """Return the lines as a Markdown table, and how many more there are."""
    rows = [
        f"| {line.step:,} | {line.severity} | {_cell(line.title)} | {_code(line.module)} | {_cell(line.message)} |"
        for line in lines
    ]
    head = ["| step | severity | event | module | message |", "| ---: | --- | --- | --- | --- |"]
    table = head + rows if rows else ["No events."]
    more = ["", f"{left_out:,} older ones are left out."] if left_out else []
    return "\n".join([f"# {_cell(title)}", "", f"<{address}>", "", *table, *more, ""])


def _cell(text: str) -> str:
    """Escape text so that it stays in its cell and contains no markup."""
    flat = " ".join(text.split())
    return "".join(f"\\{each}" if each in "\\|*_`<>[]#~" else each for each in flat)


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|').replace('`', chr(39))}`" if text else ""


# The steps around the onset of a finding that has no incident. Pure: records in, words and sparklines out.

AROUND: Final = 50  # steps on either side
PHASES: Final[dict[Kind, str]] = {
    "input": "forward",
    "output": "forward",
    "output_grad": "backward",
    "input_grad": "backward",
    "raw_grad": "backward",
    "param_grad": "backward",
    **dict.fromkeys(("exp_avg", "exp_avg_sq", "state"), "optimizer"),
    "update": "optimizer",
    "param": "optimizer",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive steps with the same state."""

    first: int
    last: int
    state: str  # finite, bad, unseen


@dataclass(frozen=True, slots=True)
class Around:
    """The tensor of a finding in the steps around its onset."""

    phase: str
    first: int
    last: int
    spark: Spark | None
    strip: tuple[Stretch, ...]
    merged: int  # the maximum number of steps per point of the strip: old ones are merged


def around_of(store: Store, finding: Finding) -> Around | None:
    """Return the steps around the onset of a finding; None if its tensor was never captured, such as a weight."""
    if finding.number < 0:
        return None
    first, last = max(0, finding.since_step - AROUND), finding.since_step + AROUND
    rows = store.rows(np.array([finding.number], np.int64), finding.stat, first, last)
    low, high, bad = rows.low[:, 0], rows.high[:, 0], rows.nonfinite[:, 0] > 0
    worst = np.where(bad, np.nan, np.where(np.abs(low) > np.abs(high), low, high))
    seen = rows.present[:, 0] > 0
    states = dict.fromkeys(range(first, min(last, store.steps().newest or last) + 1), "unseen")
    for begin, end, is_bad in zip(rows.first[seen].tolist(), rows.last[seen].tolist(), bad[seen].tolist(), strict=True):
        inside = range(max(first, begin), min(last, end) + 1)
        states |= {step: "bad" if is_bad else "finite" for step in inside if step in states}
    strip = [list(steps) for _, steps in groupby(states.items(), lambda each: each[1])]
    return Around(
        PHASES[finding.tap.kind],
        first,
        last,
        spark_of(rows.first[seen], worst[seen]),
        tuple(Stretch(steps[0][0], steps[-1][0], steps[0][1]) for steps in strip),
        int((rows.last - rows.first).max(initial=0)) + 1,
    )

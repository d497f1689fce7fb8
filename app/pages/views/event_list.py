"""Findings and events as lines of one list, which all pages show and count in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hookcore.findings import RULES, Finding, Rule
from hookcore.findings.rule import OF_LOSS
from hookcore.reading import Mute, Reader, answers
from hookcore.records import SEVERITIES, Severity, Tap
from hookcore.records.vocabulary import NONFINITE_STEP
from hookcore.store.incidents import Incident

from ...analysis.titles import title_of, title_of_rule
from ...runs import Run

SIGNS: Final = {"error": "\u2715", "warning": "\u25b2", "info": "\u2022"}  # not by color alone
FINDING: Final = "finding"
MAX_EVENTS: Final = 10_000  # of an answer
_TRACEBACK: Final = re.compile(r"\n(?=Traceback \(most recent call last\):\n)")


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
    def rule(self) -> Rule | None:
        """The rule of a finding, with its advice."""
        return None if self.is_event else RULES.get(self.name)  # type: ignore[call-overload]

    @property
    def sign(self) -> str:
        """A mark that doesn't depend on color."""
        return SIGNS[self.severity]

    @property
    def quantity(self) -> str:
        """The quantity of the finding's values; empty for an event."""
        return "" if self.finding is None else "loss" if self.is_of_loss else self.finding.stat

    @property
    def is_event(self) -> bool:
        """Whether it is an event, which has one step."""
        return self.finding is None and self.incident is None

    @property
    def is_of_loss(self) -> bool:
        """Whether it is about a logged loss, not about a tensor."""
        return not self.is_event and self.name in OF_LOSS

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
        """Whether it is a warning or an error that is neither acknowledged nor muted, and not a part of an incident."""
        return self.severity != "info" and not self.is_quiet and self.name != NONFINITE_STEP

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
        message, *traceback = _TRACEBACK.split(event.message, 1)
        found.append(
            Line(
                event.key,
                event.name,
                title_of(event.name),
                event.severity,
                event.step,
                None,
                event.module,
                message,
                event.count,
                event.time_s,
                event.acknowledged,
                muted=_match_of(muting(event.name, event.module)) if event.muted else None,
                traceback="".join(traceback),
            )
        )
    return found


def incident_lines(run: Run, first: int | None, last: int) -> list[Line]:
    """Return the incidents that touch some steps, the worst first, as they were known at the last of these steps."""
    muting = run.edits.quiet.muting(run.store)
    found = [
        _line_of_incident(run, each.as_of(last), _match_of(muting(each.rule, each.culprit.tap.module)))
        for each in reversed(run.store.incidents())
        if each.touches(first, last)
    ]
    return sorted(found, key=lambda line: (SEVERITIES.index(line.severity), line.is_of_loss))


def _line_of_incident(run: Run, incident: Incident, muted: str | None) -> Line:
    until = incident.last_step if incident.is_over or incident.short else None
    return Line(
        incident.key,
        incident.rule,
        title_of_rule(incident.rule),
        incident.severity,
        incident.first_step,
        until,
        "" if incident.rule in OF_LOSS else incident.culprit.tap.module,
        incident.sentence,
        1,
        float("nan"),
        run.edits.quiet.has_seen(incident.key, incident.first_step),
        muted=muted,
        incident=incident,
    )


def alert_lines(run: Run) -> list[Line]:
    """Return what to look at: errors first, then findings in their order, then events from the newest."""
    found = [line for line in (*finding_lines(run), *reversed(event_lines(run))) if line.is_alert]
    return sorted(found, key=lambda line: line.severity != "error")


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
            and self.name in ("", line.name, "" if line.is_event else FINDING)
            and self.fits_module(line.module)
            and self.text.casefold() in f"{line.title}\n{line.message}\n{line.module}\n{line.traceback}".casefold()
            and not (self.hides_seen and line.is_quiet)
        )


def names_of(lines: Iterable[Line]) -> dict[str, str]:
    """Return the names that lines can be filtered by, each with its title."""
    return dict(sorted({line.name: line.title for line in lines}.items(), key=lambda each: each[1]))


def markdown_of(lines: Sequence[Line], title: str, address: str, left_out: int = 0) -> str:
    """Return the lines as a Markdown table, and how many older ones it lacks."""
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

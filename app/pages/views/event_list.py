"""Findings and events as lines of one list, which all pages show and count in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hookcore.findings import RULES, Finding, Rule
from hookcore.reading import Mute
from hookcore.records import SEVERITIES, Severity
from hookcore.records.vocabulary import OWN_RULE

from ...runs import Run

SIGNS: Final = {"error": "\u2715", "warning": "\u25b2", "info": "\u2022"}  # not by color alone
FINDING: Final = "finding"


@dataclass(frozen=True, slots=True)
class Line:
    """A finding or an event."""

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

    @property
    def id(self) -> str:
        """The id in the list. A rule can find the same tensor at several steps."""
        return self.key if self.finding is None else f"{self.key}@{self.step}"

    @property
    def rule(self) -> Rule | None:
        """The rule of a finding, with its advice."""
        return None if self.finding is None else RULES.get(self.finding.rule)

    @property
    def sign(self) -> str:
        """A mark that doesn't depend on color."""
        return SIGNS[self.severity]

    @property
    def quantity(self) -> str:
        """The quantity of the finding's values; empty for an event."""
        return "" if self.finding is None else "loss" if self.finding.is_of_loss else self.finding.stat

    @property
    def is_ongoing(self) -> bool:
        """Whether it is a finding that still holds."""
        return self.finding is not None and self.until is None

    @property
    def is_alert(self) -> bool:
        """Whether it is a warning or an error that is neither acknowledged nor muted."""
        return self.severity != "info" and not self.is_quiet

    @property
    def is_quiet(self) -> bool:
        """Whether it is acknowledged or muted."""
        return self.acknowledged or self.muted is not None


def finding_lines(run: Run) -> list[Line]:
    """Return the findings of a run, the worst first."""
    muting = run.quiet.muting(run.store)
    return [
        _line_of(run, finding, _match_of(muting(finding.rule, finding.module))) for finding in run.findings.current()
    ]


def _match_of(mute: Mute | None) -> str | None:
    return None if mute is None else mute.match


def _line_of(run: Run, finding: Finding, muted: str | None) -> Line:
    return Line(
        finding.key,
        finding.rule,
        RULES[finding.rule].title if finding.rule in RULES else title_of(finding.rule),
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


def event_lines(run: Run) -> list[Line]:
    """Return the events of a run, the oldest first."""
    _, events = run.store.events_after(0)
    muting = run.quiet.muting(run.store)
    found = []
    for event in events:
        key = event.key
        found.append(
            Line(
                key,
                event.name,
                title_of(event.name),
                event.severity,
                event.step,
                None,
                event.module,
                event.message,
                event.count,
                event.time_s,
                key in run.quiet.acknowledged,
                muted=_match_of(muting(event.name, event.module)),
            )
        )
    return found


def title_of(name: str) -> str:
    """Return the name of an event as a title."""
    return name.removeprefix(OWN_RULE).replace("-", " ").capitalize()


def alert_lines(run: Run) -> list[Line]:
    """Return what needs attention: errors first, then findings in their order, then events from the newest."""
    found = [line for line in (*finding_lines(run), *reversed(event_lines(run))) if line.is_alert]
    return sorted(found, key=lambda line: line.severity != "error")


def all_lines(run: Run) -> list[Line]:
    """Return findings and events, the newest first, and within a step the worst first."""
    lines = finding_lines(run) + event_lines(run)
    return sorted(lines, key=lambda line: (-line.step, line.finding is None, SEVERITIES.index(line.severity)))


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines to show. An empty field matches everything."""

    severity: str = ""
    name: str = ""
    fits_module: Callable[[str], bool] = lambda path: True
    text: str = ""
    first: int | None = None
    last: int | None = None
    hides_seen: bool = False

    def fits(self, line: Line) -> bool:
        """Return whether a line is shown."""
        return (
            self.severity in ("", line.severity)
            and self.name in ("", line.name, FINDING if line.finding is not None else "")
            and self.fits_module(line.module)
            and self.text.casefold() in f"{line.title}\n{line.message}\n{line.module}".casefold()
            and (self.first is None or line.is_ongoing or (line.until or line.step) >= self.first)
            and (self.last is None or line.step <= self.last)
            and not (self.hides_seen and line.is_quiet)
        )


def names_of(lines: Iterable[Line]) -> dict[str, str]:
    """Return the names that lines can be filtered by, each with its title."""
    return dict(sorted({line.name: line.title for line in lines}.items(), key=lambda each: each[1]))


def markdown_of(lines: Sequence[Line], title: str, address: str) -> str:
    """Return the lines as a Markdown table."""
    rows = [
        f"| {line.step:,} | {line.severity} | {_cell(line.title)} | {_code(line.module)} | {_cell(line.message)} |"
        for line in lines
    ]
    head = ["| step | severity | event | module | message |", "| ---: | --- | --- | --- | --- |"]
    return "\n".join([f"# {_cell(title)}", "", f"<{address}>", "", *(head + rows if rows else ["No events."]), ""])


def _cell(text: str) -> str:
    """Escape text so that it stays in its cell and contains no markup."""
    flat = " ".join(text.split())
    return "".join(f"\\{each}" if each in "\\|*_`<>[]#~" else each for each in flat)


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|').replace('`', chr(39))}`" if text else ""

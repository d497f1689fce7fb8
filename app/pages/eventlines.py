"""Findings and events as lines of one list: what the pages Events and Overview show. Pure but for the run it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hookcore.records import Severity
from hookcore.store.names import matcher

from ..attention import RULES, Finding, key_of_event
from ..runs import Run

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
SIGNS: Final = {"error": "\u2715", "warning": "\u25b2", "info": "\u2022"}  # never by colour alone
FINDING: Final = "finding"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened, or that was found."""

    key: str  # by which it is acknowledged
    sort: str  # the name of the event, or the rule's
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

    @property
    def sign(self) -> str:
        """A mark that needs no colour."""
        return SIGNS[self.severity]

    @property
    def layer(self) -> dict[str, str | int]:
        """What of an address leads to its layer at its step."""
        if self.finding is None:
            return {"module": self.module, "step": self.step}
        tap = self.finding.tap
        phase = "" if tap.phase == "train" else tap.phase
        return {
            "module": tap.module,
            "kind": tap.kind,
            "index": tap.index,
            "call": tap.call or "",
            "phase": phase,
            "step": self.step,
        }


def line_of(run: Run, finding: Finding) -> Line:
    """A finding."""
    return Line(
        finding.key,
        finding.rule,
        RULES[finding.rule].title,
        finding.severity,
        finding.since_step,
        finding.until_step,
        finding.module,
        finding.message,
        1,
        float("nan"),
        run.has_seen(finding),
        finding,
    )


def event_lines(run: Run) -> list[Line]:
    """The events of a run, the oldest first."""
    _, events = run.store.events_after(0)
    found = []
    for event in events:
        key = key_of_event(event)
        words = event.name.replace("-", " ").capitalize()
        found.append(
            Line(
                key,
                event.name,
                words,
                event.severity,
                event.step,
                None,
                event.module,
                event.message,
                event.count,
                event.time_s,
                key in run.acknowledgements,
            )
        )
    return found


def all_lines(run: Run) -> list[Line]:
    """Findings and events, the newest first; of one step the worst first."""
    lines = [line_of(run, finding) for finding in run.attention.findings()] + event_lines(run)
    return sorted(lines, key=lambda line: (-line.step, line.finding is None, SEVERITIES.index(line.severity)))


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines are wanted; what is empty asks for nothing."""

    severity: str = ""
    name: str = ""
    fits_module: Callable[[str], bool] = lambda path: True
    text: str = ""
    first: int | None = None
    last: int | None = None
    hides_seen: bool = False

    def fits(self, line: Line) -> bool:
        """Whether a line is wanted."""
        return (
            self.severity in ("", line.severity)
            and self.name in ("", line.sort, FINDING if line.finding is not None else "")
            and self.fits_module(line.module)
            and self.text.casefold() in f"{line.title}\n{line.message}\n{line.module}".casefold()
            and (self.first is None or (line.until or line.step) >= self.first)
            and (self.last is None or line.step <= self.last)
            and not (self.hides_seen and line.acknowledged)
        )


def modules_of(text: str) -> Callable[[str], bool]:
    """Which modules are meant: those with every one of these words in their path.

    A word may be a glob, or an expression between slashes.
    """
    fitting = [_fits(word) for word in text.split()]
    return lambda path: all(fits(path) for fits in fitting)


def _fits(word: str) -> Callable[[str], bool]:
    if len(word) > 2 and word[0] == word[-1] == "/":
        return matcher(f"re:.*(?:{word[1:-1]}).*")
    if "*" in word or "?" in word:
        return matcher(word)
    return lambda path: word.casefold() in path.casefold()


def names_of(lines: Iterable[Line]) -> dict[str, str]:
    """What lines can be filtered by: the name of each sort, and its words."""
    return dict(sorted({line.sort: line.title for line in lines}.items(), key=lambda each: each[1]))


def markdown_of(lines: Sequence[Line], title: str, address: str) -> str:
    """The lines as a table for a report."""
    rows = [
        f"| {line.step:,} | {line.severity} | {_cell(line.title)} | {_code(line.module)} | {_cell(line.message)} |"
        for line in lines
    ]
    head = ["| step | severity | what | module | message |", "| ---: | --- | --- | --- | --- |"]
    return "\n".join(
        [f"# {_cell(title)}", "", f"<{address}>", "", *(head + rows if rows else ["Nothing happened."]), ""]
    )


def _cell(text: str) -> str:
    """Text that ends no cell, no row, and begins no markup."""
    flat = " ".join(text.split())
    return "".join(f"\\{each}" if each in "\\|*_`<>[]#~" else each for each in flat)


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|').replace('`', chr(39))}`" if text else ""

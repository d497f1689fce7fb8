"""The steps that a page of a run shows, and the pages' statements about a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import urlencode

from hookcore.findings import without_data
from hookcore.records.vocabulary import TIME, counted, is_found_loss

from ...analysis.cost import cost_of
from ...analysis.numerals import duration
from ...formats import words_of
from ...runs import Run
from .events import Line, finding_lines, incident_lines

# `steps` is `all`, the newest ones (`live:500`), or a range (`100-200`). `step` is the one that the page is held at.
# `by` is the quantity on the axis of charts.

LIVE_STEPS: Final = 500  # of a live run, if the address says nothing
ALL: Final = "all"
SHARED: Final = ("steps", "step", "by")  # of every address of a run
AXES: Final = {"captured": "captured steps", "step": "all steps", "time": "time", "samples": "samples"}


Values: TypeAlias = tuple[int | None, int | None]  # first and last step; None is any


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts of an address that all pages of a run have in common."""

    steps: str = ""
    step: str = ""
    by: str = ""

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The names and values that are given, for a form."""
        return [(name, value) for name in SHARED if (value := getattr(self, name))]

    @property
    def query(self) -> str:
        """The query of links to other pages that show the same."""
        return urlencode(self.parts)


@dataclass(frozen=True, slots=True)
class Span:
    """The first and last step on the axis of charts, and what the reader chose.

    `step` is the step that the page is held at: then no number is of another one. `is_chosen` says that `first` and
    `last` are a range of the reader.
    """

    first: int
    last: int
    step: int | None = None
    is_chosen: bool = False

    @property
    def held(self) -> bool:
        """Whether values are those of certain steps, not the newest ones."""
        return self.step is not None or self.is_chosen

    @property
    def values(self) -> Values:
        """The steps of which the newest values are shown: one, those of the range, or any."""
        if self.step is not None:
            return self.step, self.step
        return (self.first, self.last) if self.is_chosen else (None, None)

    @property
    def words(self) -> str:
        """The steps on the axis in words."""
        return words_of(self.first, self.last)

    @property
    def values_words(self) -> str:
        """The steps of the values in words; empty for the newest ones."""
        return words_of_values(self.values)


def words_of_values(values: Values) -> str:
    """Return the steps of values in words; empty for the newest ones."""
    first, last = values
    return "" if first is None or last is None else words_of(first, last)


def asked_values(steps: str, step: str) -> Values:
    """Return the steps of the values that an address asks for, whether or not the run has any: one, a range, or any."""
    held, chosen = step_in(step), range_in(steps) if "-" in steps else None
    return (held, held) if held is not None else chosen or (None, None)


def step_in(text: str) -> int | None:
    """Return the step that a text in an address means; None if it isn't one."""
    return int(text) if re.fullmatch(r"\d{1,15}", text) else None


def range_in(text: str) -> tuple[int, int] | None:
    """Return the first and the last step of "100-200" or of a single step; None for anything else."""
    ends = [step_in(each) for each in text.split("-", 1)]
    first, last = ends[0], ends[-1]
    return (first, last) if first is not None and last is not None and first <= last else None


def usual_steps(run: Run) -> str:
    """Return the steps shown if the address says nothing: all of a finished run, the newest of a live one."""
    return f"live:{LIVE_STEPS}" if run.state == "live" else ALL


def span_of(run: Run, steps: str = "", step: str = "") -> Span | None:
    """Return the steps in an address; None before the first step."""
    known = run.reader.steps()
    if known.first is None or known.newest is None:
        return None
    asked, chosen = step_in(step), range_in(steps) if "-" in steps else None
    held = None if asked is None else min(asked, known.newest)
    if chosen is not None:
        return Span(*_around(chosen[0], chosen[1], held, known.newest), held, True)
    length = _length(run, steps)
    if length is None:
        return Span(known.first, known.newest, held)
    last = known.newest if held is None else min(known.newest, held + length - 1)
    return Span(max(known.first, last - length + 1), last, held)


def _around(first: int, last: int, step: int | None, newest: int) -> tuple[int, int]:
    """Return a range up to the newest step, moved as far as needed to contain a step."""
    by = 0 if step is None else min(0, step - first) + max(0, step - last)
    last = min(last + by, newest)
    return min(first + by, last), last


def _length(run: Run, steps: str) -> int | None:
    """Return how many of the newest steps are shown; None for all."""
    for text in (steps, usual_steps(run)):
        if text == ALL:
            return None
        if live := re.fullmatch(r"live:(\d{1,9})", text):
            return max(2, int(live[1]))
    return None


# The pages' statements about a run: its progress, and that no problem was found, each with its scope.

_STATES: Final = {
    "live": "Live",
    "ended": "Ended",
    "crashed": "Crashed",
    "stopped": "Stopped",
    "lost": "Lost",
    "waiting": "Waiting for the trainer",
}


_BAD_ENDS: Final = ("crashed", "stopped", "lost")
LAST_S: Final = 10.0  # of a run that failed, which one link shows
LAST_STEPS: Final = 10  # at least
_POINTS: Final = 1000


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run ended early."""

    title: str
    error: str
    traceback: str
    module: str | None  # the innermost watched one whose call raised
    file: str  # with the innermost line of the user's own code
    where: str
    code: str


def stop_of(run: Run) -> Stop | None:
    """Return why a run ended early, or None."""
    failure = run.end.failure
    if failure is None:
        return None
    texts = failure.sentence, failure.error, failure.traceback
    return Stop(*texts, failure.module, failure.file, failure.where, failure.code)


@dataclass(frozen=True, slots=True)
class Ending:
    """The last seconds of a run."""

    steps: str  # as in an address
    words: str


def ending_of(run: Run) -> Ending | None:
    """Return the last seconds of a run that failed or is lost; None if it isn't, or if that is all of it."""
    known = run.reader.steps()
    if run.state not in _BAD_ENDS or known.first is None or known.newest is None:
        return None
    if TIME not in run.reader.scalars().names:
        return None
    first, last, ended_s = known.first, known.newest, 0.0
    while first < last:  # a point of a long run is of several steps
        times = run.reader.scalars(TIME, first, last, _POINTS)[TIME]
        ended_s = ended_s or float(times.max[-1])
        place = int((times.max >= ended_s - LAST_S).argmax())
        if (first, last) == (found := (int(times.first_step[place]), int(times.last_step[place]))):
            break  # they have been merged
        first, last = found
    first = max(known.first, min(first, known.newest - LAST_STEPS + 1))
    if first == known.first:
        return None
    times = run.reader.scalars(TIME, first, known.newest, _POINTS)[TIME]
    seconds = duration(float(times.max[-1] - times.min[0]))
    return Ending(f"{first}-{known.newest}", f"Show the last {seconds}: {words_of(first, known.newest)}")


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is, in a sentence around its newest step, which the page's script keeps up to date."""

    before: str
    newest: int | None
    after: str


def progress_of(run: Run) -> RunProgress:
    """Return the progress of a run. The captured steps and those left out are all of its steps."""
    state, steps = _STATES.get(run.state, run.state.capitalize()), run.reader.steps()
    if steps.first is None or steps.newest is None:
        return RunProgress(f"{state}. No step has been captured.", None, "")
    if (failure := run.end.failure) is not None:
        state += f" in step {failure.step:,}"
    cost, captured = cost_of(run), run.store.captured()
    words = "step " if steps.first == steps.newest else f"steps {steps.first:,} to "
    if cost.origin:
        return RunProgress(f"Imported from {cost.origin}: {words}", steps.newest, ".")
    # Of a live run, the sum changes faster than anybody reads it.
    more = f", {cost.left_out:,} left out" if cost.left_out and run.state != "live" else ""
    turns = sum(map(is_found_loss, run.reader.scalars().names))
    each = f" Each of {turns} optimizers that take turns counts its own steps." if turns > 1 else ""
    return RunProgress(f"{state}: {words}", steps.newest, f", {captured:,} captured{more}.{each}")


def claim_of(run: Run, span: Span | None = None) -> str:
    """Return a statement about a run without findings, with how much was examined."""
    steps = run.reader.steps()
    if steps.first is None or steps.newest is None:
        return "Problems appear here once steps have been captured." if run.state == "live" else "Nothing was captured."
    if span is not None and span.held:
        return _claim_at(run, span)
    scope = run.findings.scope()
    stopped = {"crashed": "This run crashed. ", "stopped": "This run was stopped. "}.get(run.state, "")
    known = _known_among(finding_lines(run))
    if scope.verdict == "problems":
        return f"{stopped}{', '.join([*known, 'nothing new'])}. {scope.sentence}"
    silent = len(without_data(run.store))
    rules = f" {silent:,} rule{' has' if silent == 1 else 's have'} nothing to look at: see Rules." if silent else ""
    return f"{stopped}{scope.sentence}{rules}"


def _claim_at(run: Run, span: Span) -> str:
    """Say what is known about incidents in the steps of a page that lists no alert."""
    first, last = span.values
    lines = [] if last is None else incident_lines(run, first, last)
    notes = sum(line.severity == "info" and not line.is_quiet for line in lines)
    known = [*_known_among(lines), *([counted(notes, "note")] if notes else [])]
    unknown = ""
    if dropped := run.store.usage().merged["incidents"]:
        alerts = f"{run.store.dropped_alerts:,} of them warnings or errors"
        unknown = f" {counted(dropped, 'other incident')} ({alerts}) dropped from memory may touch it."
    if known:
        return f"No new incident touches {span.values_words}: {', '.join(known)}.{unknown}"
    return f"No incident touches {span.values_words}, judging by what was captured.{unknown}"


def _known_among(lines: Sequence[Line]) -> list[str]:
    """Return how many lines are acknowledged, and how many are muted."""
    acknowledged = sum(line.acknowledged for line in lines)
    muted = sum(line.muted is not None and not line.acknowledged for line in lines)
    return [f"{count:,} {word}" for count, word in ((acknowledged, "acknowledged"), (muted, "muted")) if count]

"""The pages' statements about a run: its progress, and that no problem was found, each with its scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hookcore.findings import without_data
from hookcore.records.vocabulary import TIME, counted, is_found_loss

from ...analysis.cost import cost_of
from ...analysis.numerals import duration
from ...formats import words_of
from ...runs import Run
from .event_list import Line, finding_lines, incident_lines
from .span import Span

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
class Progress:
    """How far a run is, in a sentence around its newest step, which the page's script keeps up to date."""

    before: str
    newest: int | None
    after: str


def progress_of(run: Run) -> Progress:
    """Return the progress of a run. The captured steps and those left out are all of its steps."""
    state, steps = _STATES.get(run.state, run.state.capitalize()), run.reader.steps()
    if steps.first is None or steps.newest is None:
        return Progress(f"{state}. No step has been captured.", None, "")
    left_out, captured = cost_of(run).left_out, run.store.captured()
    words = "step " if steps.first == steps.newest else f"steps {steps.first:,} to "
    # Of a live run, the sum changes faster than anybody reads it.
    more = f", {left_out:,} left out" if left_out and run.state != "live" else ""
    turns = sum(map(is_found_loss, run.reader.scalars().names))
    each = f" Each of {turns} optimizers that take turns counts its own steps." if turns > 1 else ""
    return Progress(f"{state}: {words}", steps.newest, f", {captured:,} captured{more}.{each}")


def claim_of(run: Run, span: Span | None = None) -> str:
    """Return a statement about a run without findings, with how much was examined."""
    steps = run.reader.steps()
    if steps.first is None or steps.newest is None:
        return "Findings appear here once steps have been captured." if run.state == "live" else "Nothing was captured."
    if span is not None and span.held:
        return _claim_at(run, span)
    scope = run.findings.scope()
    stopped = {"crashed": "This run crashed. ", "stopped": "This run was stopped. "}.get(run.state, "")
    known = _known_among(finding_lines(run))
    if scope.verdict == "problems":
        return f"{stopped}{', '.join([*known, 'nothing new'])}. {scope.sentence}"
    silent = len(without_data(run.store))
    rules = f" {silent:,} rule{' has' if silent == 1 else 's have'} nothing to look at: see Hooks." if silent else ""
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

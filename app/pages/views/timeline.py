"""The timeline under the header: the run as a strip, with marks where something happened. Positions are in percent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hookcore.reading.answers import Series, TimelineMark

from ...analysis.figures.lines import Strip, strip_of
from ...analysis.timeline import line_of, marks_of, quantity_of
from ...formats import words_of
from ...runs import Run
from ..frame import address_of
from .span import SHARED, Span

NO_LOSS: Final = "No loss was logged, so this line shows {}. Log it with watcher.log(loss=loss.item())."


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark: where it is, its tooltip, and where it leads."""

    x: float
    step: int
    severity: str
    words: str
    address: str


@dataclass(frozen=True, slots=True)
class Note:
    """A reader's annotation of a step."""

    x: float
    step: int
    text: str


@dataclass(frozen=True, slots=True)
class TimelineView:
    """A run from its first to its newest step."""

    first: int
    last: int
    title: str
    about: str  # what the line is, in a sentence
    strip: Strip | None
    marks: tuple[Mark, ...]
    notes: tuple[Note, ...]


def timeline_view(run: Run) -> TimelineView | None:
    """Return the timeline of a run; None before its first step."""
    known, drawn = run.reader.steps(), quantity_of(run.store)
    if known.first is None or known.newest is None:
        return None
    first, last = known.first, known.newest
    line = None if drawn is None else line_of(run.store, drawn)
    strip = None if line is None else _strip_of(line, first, last)
    title, is_loss = ("", False) if drawn is None else (drawn.words, drawn.is_loss)
    kind = "" if strip is None or not strip.is_log else ", on a log scale"
    about = f"{title}, {words_of(first, last)}{kind}." if strip is not None else "Nothing to draw."
    marks = tuple(_mark_of(run, mark, first, last) for mark in marks_of(run))
    return TimelineView(
        first,
        last,
        title,
        about if is_loss or strip is None else f"{about} {NO_LOSS.format(title)}",
        strip,
        marks,
        tuple(
            Note(place_of(step, first, last), step, text)
            for step, text in run.edits.annotations.items()
            if first <= step <= last
        ),
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """The choices on the timeline, and the form that changes them without JavaScript."""

    range_x: float
    range_width: float
    step_x: float | None
    action: str
    others: list[tuple[str, str]]  # the rest of the address


def bar_of(timeline: TimelineView, span: Span, action: str, query: list[tuple[str, str]]) -> Bar:
    """Return where a page's steps are on the timeline."""
    first, last = timeline.first, timeline.last
    begin = place_of(max(span.first, first) - 0.5, first, last)
    end = place_of(min(span.last, last) + 0.5, first, last)
    step = None if span.step is None or not first <= span.step <= last else place_of(span.step, first, last)
    others = [(name, value) for name, value in query if name not in SHARED]
    return Bar(begin, round(end - begin, 3), step, action, others)


def place_of(step: float, first: int, last: int) -> float:
    """Return where the middle of a step is, in percent."""
    return round(100 * (step - first + 0.5) / (last - first + 1), 3)


def _strip_of(line: Series, first: int, last: int) -> Strip | None:
    bad = np.zeros(len(line.mean), bool) if line.nonfinite is None else line.nonfinite > 0
    return strip_of(line.first_step, line.last_step, (line.mean, line.min, line.max), bad, (first, last))


def _mark_of(run: Run, mark: TimelineMark, first: int, last: int) -> Mark:
    where = f" in {mark.module}" if mark.module else ""
    more = f", and {mark.count - 1:,} more" if mark.count > 1 else ""
    words = f"{mark.severity}, step {mark.step:,}: {mark.title}{where}{more}"
    if mark.incident:
        address = address_of(run, "incident", id=mark.incident)
    else:
        address = address_of(run, "incident", id=mark.event, step=mark.step)
    return Mark(place_of(mark.step, first, last), mark.step, mark.severity, words, address)

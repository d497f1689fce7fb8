"""A whole run at a glance, for the line under the header of its pages and for REST."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from hookcore.reading import answers
from hookcore.reading.answers import TimelineMark
from hookcore.records import SEVERITIES, Tap
from hookcore.records.vocabulary import ELAPSED, OWN, is_loss, loss_rank, titled
from hookcore.store import Store
from hookcore.store.incidents import Incident

from ..runs import Run
from .numerals import title_of, title_of_rule

COLUMNS: Final = 600
MAX_MARKS: Final = 200  # spans of steps; what happens in the same one shares a mark

Steps = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Drawn:
    """The quantity of a line: a scalar, or a stat of a tap."""

    words: str
    is_loss: bool = False
    scalar: str = ""
    tap: int = -1
    stat: str = "rms"


def quantity_of(store: Store) -> Drawn | None:
    """Return what the line of a run shows: a loss, or the best there is instead."""
    names = sorted((name for name in store.scalar_names() if not name.startswith(OWN)), key=loss_rank)
    if names and is_loss(names[0]):
        return Drawn(titled(names[0]), True, scalar=names[0])
    taps = store.taps()
    outputs = [(number, tap) for number, tap in taps if tap.kind == "output"]
    returned = next((pair for pair in outputs if is_loss(pair[1].index)), None)
    if returned is not None:
        name = _name_of(returned[1], store.root)
        return Drawn(f"{name}, as the model returns it", True, tap=returned[0], stat="mean")
    if names:
        return Drawn(names[0], scalar=names[0])
    root = next((pair for pair in outputs if not pair[1].module), outputs[-1] if outputs else None)
    if root is not None:
        return Drawn(f"rms of the activation of {_name_of(root[1], store.root)}", tap=root[0])
    return Drawn("seconds per step", scalar=ELAPSED) if ELAPSED in store.scalar_names() else None


def _name_of(tap: Tap, root: str) -> str:
    return tap.name if tap.module else f"{root}{f' [{tap.index}]' if tap.index else ''}"


def timeline_of(
    run: Run, first: int | None = None, last: int | None = None, columns: int = COLUMNS
) -> answers.Timeline:
    """Return a run, or some of its steps, at a glance, with limits for points, marks, and captured steps."""
    store = run.store
    drawn, known = quantity_of(store), store.steps()
    begin, end = store.captured_rows(first, last)
    shown = _thinned(end, 2 * columns)
    return answers.Timeline(
        run=run.id,
        state=run.state,
        first_step=known.first,
        newest_step=known.newest,
        quantity="" if drawn is None else drawn.words,
        is_loss=drawn is not None and drawn.is_loss,
        captured=store.captured(),
        captured_first=begin[shown],
        captured_last=end[shown],
        captured_all=len(shown) == len(end),
        marks=marks_of(run, first, last),
        line=None if drawn is None else line_of(store, drawn, first, last, columns),
    )


def line_of(
    store: Store, drawn: Drawn, first: int | None = None, last: int | None = None, columns: int = COLUMNS
) -> answers.Series | None:
    """Return the line of a run, or of some of its steps, with a limit for points; None if there is nothing to draw."""
    if drawn.scalar:
        found = store.scalars(drawn.scalar, first, last, columns)
    else:
        found = store.series(drawn.tap, drawn.stat, first, last, columns)
    return answers.Series.of(found) if len(found.first_step) else None


def _thinned(steps: Steps, most: int) -> NDArray[np.intp]:
    """Return the places of a limited number of steps: the newest one in each of equal spans."""
    if len(steps) <= most:
        return np.arange(len(steps))
    span = int(steps[-1] - steps[0]) + 1
    place = (steps - steps[0]) * most // span
    return np.flatnonzero(np.diff(place, append=most))


def marks_of(run: Run, first: int | None = None, last: int | None = None) -> tuple[TimelineMark, ...]:
    """Return marks for the incidents and events of a run, or of some of its steps, up to a limit."""
    known = run.store.steps()
    begin = known.first or 0 if first is None else first
    end = known.newest or 0 if last is None else last
    width = max(1, (end - begin + 1) / MAX_MARKS)
    spans: dict[int, list[TimelineMark]] = {}
    for each in _all_of(run):
        if begin <= each.step <= end:
            spans.setdefault(int((each.step - begin) / width), []).append(each)
    return tuple(_mark_of(spans[place]) for place in sorted(spans))


def _mark_of(together: list[TimelineMark]) -> TimelineMark:
    worst = min(together, key=lambda each: (SEVERITIES.index(each.severity), not each.incident, each.step))
    steps = [each.step for each in together]
    count = sum(each.count for each in together)
    return replace(worst, first_step=min(steps), last_step=max(steps), count=count)


def _all_of(run: Run) -> Iterable[TimelineMark]:
    """Return every incident and event that isn't muted."""
    muting = run.edits.quiet.muting(run.store)
    for incident in run.store.incident_heads():
        if muting(incident.rule, incident.culprit.tap.module) is None:
            yield _of_incident(incident)
    for event in run.store.events_after(0)[1]:
        if muting(event.name, event.module) is None:
            about = event.severity, title_of(event.name), event.module, event.count
            yield TimelineMark(event.step, event.step, event.step, *about, incident="", event=event.key)


def _of_incident(incident: Incident) -> TimelineMark:
    is_placed = incident.placed and incident.culprit_known
    step, module = incident.first_step, incident.culprit.tap.module or incident.root if is_placed else ""
    about = incident.severity, title_of_rule(incident.rule), module, 1
    return TimelineMark(step, step, step, *about, incident.id, event=f"{incident.key}@{step}")

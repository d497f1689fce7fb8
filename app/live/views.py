"""The frames of a subscription: pure functions of its progress and the run's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np

from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.reading.answers.live import (
    EventsMessage,
    IncidentsMessage,
    LiveRow,
    RowsMessage,
    RunNews,
    RunsMessage,
    ScalarsMessage,
    StateMessage,
)
from hookcore.store import STAT_NAMES, Heatmap, TapList

from ..analysis.coverage import why_empty
from ..runs import Run
from ..runs.answering import incidents_of
from .frames import DELTA, SNAPSHOT, Body, as_colors, as_f4, json_body, scale_for, values_body
from .marks import Mark, events_between, new_steps
from .publisher import TapCache
from .requests import MAX_ROWS, ViewSpec, read_rows

MAX_COLUMNS: Final = 4  # of a delta; more new steps become one column
MAX_SCALARS: Final = 200
MEASURES: Final = ("mean", "std", "rms", "norm", "min", "max", "ratio")  # the other stats are counts and shares


@dataclass(frozen=True, slots=True)
class Made:
    """Frames, and the spec with the computed scale of colors."""

    bodies: tuple[Body, ...]
    spec: ViewSpec

    @property
    def nbytes(self) -> int:
        """The size in memory."""
        return sum(len(body.data) for body in self.bodies)


def concern(spec: ViewSpec, mark: Any) -> Any:
    """Return the part of a mark that a view shows. Changes of other parts cause no message."""
    if not isinstance(mark, Mark) or spec.view == "runs":
        return mark
    if spec.view == "events":
        return mark.events, mark.state
    if spec.view == "incidents":
        return mark.incidents, mark.state
    if spec.last is not None and mark.steps.newest > spec.last:
        return mark.taps, mark.state
    return (mark.steps, mark.state) if spec.view == "scalars" else (mark.steps, mark.taps, mark.state)


def make(selections: TapCache, run: Run | None, spec: ViewSpec, sent: Any, now: Any) -> Made:
    """Return the frames that bring a reader from `sent` (None: it has nothing) up to `now`."""
    if run is None:
        return Made((json_body(RunsMessage(tuple(news_of(*each) for each in now))),), spec)
    if spec.view == "events":
        bodies = _events(run, spec, sent, now)
    elif spec.view == "incidents":
        bodies = _incidents(run, sent, now)
    elif spec.view == "scalars":
        bodies = _scalars(run, spec, sent, now)
    else:
        wanted, every = _wanted(selections, run, spec)
        if sent is not None and len(wanted.numbers) and wanted.numbers[-1] >= sent.taps:
            sent = None  # the reader doesn't have some of the rows
        if sent is not None and not len(wanted.numbers) and sent.steps.newest < 0 <= now.steps.newest:
            sent = None  # the reason for having no rows has changed
        show = _heatmap if spec.view == "heatmap" else _latest
        bodies, spec = show(every, run, spec, wanted, sent, now)
    if sent is None or sent.state != now.state:
        last = now.steps.newest if now.steps.newest >= 0 else None
        bodies.append(json_body(StateMessage(run.id, now.state, last), last or 0))
    return Made(tuple(bodies), spec)


def _wanted(selections: TapCache, run: Run, spec: ViewSpec) -> tuple[TapList, int]:
    """Return the selected taps, and how many match."""
    found = selections.get(run.store, spec.kind, spec.match)
    every = len(found.taps)
    how, first, last = read_rows(spec.rows, spec.view) if spec.rows is not None else ("all", 0, 0)
    if how == "idx":
        found = found.at(range(len(found.taps))[first : last + 1])
    elif how == "numbers":
        places = np.flatnonzero(np.isin(found.numbers, np.array(spec.rows)))
        found = found.at(places.tolist())
    return found if how == "fit" or len(found.taps) <= MAX_ROWS else found.at(range(MAX_ROWS)), every


def _heatmap(
    every: int, run: Run, spec: ViewSpec, wanted: TapList, sent: Mark | None, now: Mark
) -> tuple[list[Body], ViewSpec]:
    how, rows, _ = read_rows(spec.rows, spec.view) if spec.rows is not None else ("all", 0, 0)
    most = rows if how == "fit" else None
    span = _span(spec, sent, now)
    if sent is not None:
        if span is None:
            return [], spec
        length = span[1] - span[0] + 1
        columns = length if length <= MAX_COLUMNS else 1
    else:
        columns = spec.columns
    first, last = span or (0, -1)
    heat = run.store.heatmap(str(spec.kind), spec.stats[0], None, first, last, columns, most, wanted)
    if sent is not None:
        return ([_cells(DELTA, heat, spec)] if len(heat.first_step) else []), spec
    if spec.dtype == "u8" and spec.scale is None:
        spec = replace(spec, scale=scale_for(spec.scale_kind, heat.worst))
    starts = _starts(len(wanted.taps), most)  # known before there is a step
    groups = np.diff(starts, append=len(wanted.taps))
    about = _rows(every, run, spec, wanted, starts, groups)
    return [json_body(about, first), _cells(SNAPSHOT, heat, spec, len(starts))], spec


def _starts(rows: int, most: int | None) -> Any:
    number = min(most or rows, rows)
    return -(-np.arange(number, dtype=np.int64) * rows // number) if number else np.empty(0, np.int64)


def _span(spec: ViewSpec, sent: Mark | None, now: Mark) -> tuple[int, int] | None:
    newest = now.steps.newest
    last = newest if spec.last is None else min(newest, spec.last)
    if sent is not None:
        fresh = new_steps(sent.steps, now.steps)
        return (fresh[0], min(fresh[1], last)) if fresh is not None and fresh[0] <= last else None
    first = spec.first or 0
    return (first if first >= 0 else max(0, last + 1 + first), last) if newest >= 0 else None


def _cells(kind: int, heat: Heatmap, spec: ViewSpec, rows: int = 0) -> Body:
    values, absent = np.where(heat.infinite, np.inf, heat.worst).T, heat.present.T == 0
    if not values.size:
        values, absent = np.empty((0, rows)), np.empty((0, rows), bool)
    if spec.dtype == "u8" and spec.scale is not None:
        return _values(kind, as_colors(values, absent, spec.scale), heat)
    return _values(kind, as_f4(values, absent), heat)


def _values(kind: int, values: Any, heat: Heatmap) -> Body:
    nonfinite = (heat.nonfinite > 0).sum(axis=0)
    return values_body(kind, np.ascontiguousarray(values), heat.first_step, heat.last_step, nonfinite)


def _latest(
    every: int, run: Run, spec: ViewSpec, wanted: TapList, sent: Mark | None, now: Mark
) -> tuple[list[Body], ViewSpec]:
    span = _span(spec, sent, now) or (None if sent is not None else (0, 0))
    if span is None:
        return [], spec
    asked = spec.first if spec.first is not None and spec.first >= 0 else None
    found = run.store.latest(first=span[0] if sent is not None else asked, last=span[1], wanted=wanted)
    places = np.searchsorted(wanted.numbers, found.numbers)
    columns = [STAT_NAMES.index(stat) for stat in spec.stats]
    values = np.full((len(columns), len(wanted.taps)), np.nan)
    values[:, places] = _flagged(found.values, columns).T
    absent = np.ones(values.shape, bool)
    absent[:, places] = False
    if spec.last is not None and sent is None and absent.any():
        begin_at = span[1] if asked is None else asked
        _fill_from_merged(run, spec, wanted, (begin_at, span[1]), values, absent)
    bad = int((found.values[:, STAT_NAMES.index("nonfinite")] > 0).sum())
    if sent is not None and span[0] < span[1]:
        heat = run.store.heatmap("", "nan", None, *span, columns=1, wanted=wanted)
        bad = int((heat.nonfinite > 0).sum())
    # The newest step may have only logged values.
    newest = int(found.steps.max()) if len(found.steps) else span[1]
    begin, end = (np.full(len(columns), step, np.int64) for step in (min(span[0], newest), newest))
    body = values_body(
        SNAPSHOT if sent is None else DELTA, as_f4(values, absent), begin, end, np.full(len(columns), bad)
    )
    if sent is not None:
        return [body] if len(found.steps) else [], spec
    each = np.arange(len(wanted.taps))
    about = _rows(every, run, spec, wanted, each, np.ones(len(each), np.int64))
    if len(each) < every and spec.rows is None:
        why = f"Only the first {MAX_ROWS:,} of {every:,} tensors are shown: narrow the selection with a filter."
        about = msgspec.structs.replace(about, why=why)
    return [json_body(about, span[0]), body], spec


def _flagged(stats: Any, columns: list[int]) -> Any:
    """Return some stats. Measures of a tensor with NaN or infinities become NaN or infinite, although stored finite."""
    values = stats[:, columns]
    nan, inf = (stats[:, STAT_NAMES.index(name)] > 0 for name in ("nan", "inf"))
    measures = [place for place, column in enumerate(columns) if STAT_NAMES[column] in MEASURES]
    values[np.ix_(inf, measures)] = np.inf
    values[np.ix_(nan, measures)] = np.nan
    return values


def _fill_from_merged(
    run: Run, spec: ViewSpec, wanted: TapList, span: tuple[int, int], values: Any, absent: Any
) -> None:
    """Fill in the worst values around merged steps, for the taps without exact ones."""
    for place, stat in enumerate(spec.stats):
        heat = run.store.heatmap("", stat, None, *span, columns=1, wanted=wanted)
        if not len(heat.first_step):
            continue
        found = absent[place] & (heat.present[:, 0] > 0)
        values[place, found] = np.where(heat.infinite[:, 0], np.inf, heat.worst[:, 0])[found]
        absent[place, found] = False


def _rows(every: int, run: Run, spec: ViewSpec, wanted: TapList, starts: Any, groups: Any) -> RowsMessage:
    """Return the names of the rows of the snapshot that follows."""
    types = run.store.module_types()
    rows = tuple(
        LiveRow.of(number, tap, group=group, type=types.get(tap.module, ""))
        for (number, tap), group in zip(wanted.at(starts), groups.tolist(), strict=True)
    )
    why = "" if rows else why_empty(run.store, spec.kind or "", run.state == "live")
    return RowsMessage(run.id, spec.view, spec.kind, spec.stats, every, rows, why, spec.scale)


def _events(run: Run, spec: ViewSpec, sent: Mark | None, now: Mark) -> list[Body]:
    before = sent.events if sent is not None else 0
    events = events_between(run, before, now.events)[-spec.columns :]
    if not events and sent is not None:
        return []
    message = EventsMessage(run.id, sent is None, now.events, events)
    return [json_body(message, now.steps.newest)]


def _incidents(run: Run, sent: Mark | None, now: Mark) -> list[Body]:
    changed = incidents_of(run, sent.incidents if sent is not None else 0)
    if not changed and sent is not None:
        return []
    return [json_body(IncidentsMessage(run.id, sent is None, changed), now.steps.newest)]


def _scalars(run: Run, spec: ViewSpec, sent: Mark | None, now: Mark) -> list[Body]:
    span = _span(spec, sent, now)
    if span is None and sent is not None:
        return []
    known = run.store.scalar_names()
    chosen = [name for name in known if name in spec.stats] if spec.stats else known
    first, last = span or (0, -1)
    found = [run.store.scalars(name, first, last, spec.columns) for name in chosen[:MAX_SCALARS]]
    listed = tuple(answers.Series.of(series) for series in found if len(series.first_step))
    if not listed and sent is not None:
        return []
    left_out = len(chosen) - len(found)
    return [json_body(ScalarsMessage(run.id, sent is None, first, last, left_out, listed), first)]


def news_of(run_id: str, name: str, mark: Mark) -> RunNews:
    """Return how far a run is."""
    last = mark.steps.newest if mark.steps.newest >= 0 else None
    return RunNews(
        run_id,
        name,
        mark.state,
        last,
        mark.steps.different,
        mark.taps,
        mark.events,
        mark.edits,
        mark.paused,
        mark.flow_step,
        mark.snapshots,
        mark.waiting,
        mark.steps.frames,
        None if mark.time_s is None else Number(mark.time_s),
    )

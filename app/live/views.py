"""The subscriptions of a page: their requests, and their binary frames, pure functions of progress and run."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from hookcore.config.patterns import STRUCTURE, parse
from hookcore.errors import ArgumentError
from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.reading.answers.live import (
    EventsMessage,
    IncidentsMessage,
    LatestMessage,
    LiveRow,
    Message,
    RowsMessage,
    RunNews,
    RunsMessage,
    ScalarsMessage,
    StateMessage,
)
from hookcore.records.vocabulary import OWN, TIME
from hookcore.store import STAT_NAMES, Heatmap, Latest, TapList, checks, of_all_values

from ..analysis.modules import why_empty
from ..formats import json_of
from ..runs import Run
from ..runs.answering import incidents_of
from .publisher import Mark, TapCache, events_between, new_steps

# The binary frames of the socket: a header of 32 bytes, values column by column, then facts about each column.
#
# docs/live.md has the table of bytes.

SNAPSHOT: Final = 1
DELTA: Final = 2
JSON: Final = 3
HEADER: Final = struct.Struct("<BxHIQIId")  # kind, subscription, sequence, first step, columns, rows, time
NOBODY: Final = 65535  # the subscription of an error that belongs to none
# "Not captured": a separate NaN, to be read as an integer. A tensor's NaN is 0x7FC00000.
ABSENT_BITS: Final = 0x7FC00001
_MAX_F4: Final = float(np.finfo(np.float32).max)
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Body:
    """A frame without the part of its header that differs between readers."""

    kind: int
    first_step: int
    columns: int
    rows: int
    data: bytes
    type: str = ""  # of a message in JSON

    def frame(self, subscription: int, sequence: int, time_s: float) -> bytes:
        """Return the whole frame."""
        header = HEADER.pack(self.kind, subscription, sequence, self.first_step, self.columns, self.rows, time_s)
        return header + self.data


def json_body(content: Message, first_step: int = 0) -> Body:
    """Return a frame of JSON."""
    return Body(JSON, max(0, first_step), 0, 0, json_of(content), str(content.__struct_config__.tag))


def values_body(
    kind: int,
    values: NDArray[np.float32],
    first_steps: NDArray[np.int64],
    last_steps: NDArray[np.int64],
    nonfinite: NDArray[Any],
) -> Body:
    """Return a frame of values [column, row], with the steps of each column and its number of non-finite rows."""
    columns, rows = values.shape
    data = values.tobytes()
    padding = bytes(-len(data) % 8)
    about = first_steps.astype("<f8").tobytes() + last_steps.astype("<f8").tobytes() + nonfinite.astype("<u4").tobytes()
    return Body(kind, int(first_steps[0]) if columns else 0, columns, rows, data + padding + about)


def as_f4(values: Floats, absent: Flags) -> NDArray[np.float32]:
    """Return values as sent: finite ones stay finite, and uncaptured ones differ from NaN."""
    finite = np.isfinite(values)
    small = np.where(finite, np.clip(values, -_MAX_F4, _MAX_F4), values).astype("<f4")
    bits = small.view("<u4")
    bits[np.isnan(values)] = 0x7FC00000
    bits[absent] = ABSENT_BITS
    return small


# The requests of a page over the socket, validated.

MAX_ROWS: Final = 10_000
MAX_ID: Final = NOBODY - 1
DEFAULT_ROWS: Final = "fit:600"
MAX_STATS: Final = len(STAT_NAMES)

View = Literal["heatmap", "latest", "scalars", "events", "incidents", "runs"]
_Id = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]
_Sequence = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_First = Annotated[int, msgspec.Meta(gt=-(2**53), lt=2**53)]
_Name = Annotated[str, msgspec.Meta(max_length=1000)]


class _Request(msgspec.Struct, tag_field="op", forbid_unknown_fields=True, frozen=True, kw_only=True):
    id: _Id


class Subscribe(_Request, tag="subscribe", frozen=True, kw_only=True):
    """Starts a subscription, or replaces the one with the same id."""

    view: View
    run: _Name | None = None
    kind: _Name | None = None
    stat: _Name | None = None
    stats: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=MAX_STATS)] = ()
    match: _Name | None = None
    rows: _Name | None = None
    first: _First | None = msgspec.field(name="from", default=None)
    last: _Number | None = msgspec.field(name="to", default=None)
    columns: Annotated[int, msgspec.Meta(ge=1, le=4000)] = 500
    hz: Annotated[float, msgspec.Meta(ge=1, le=30)] = 10.0


class Unsubscribe(_Request, tag="unsubscribe", frozen=True, kw_only=True):
    """Ends a subscription."""


class Ack(_Request, tag="ack", frozen=True, kw_only=True):
    """Everything up to this number has arrived."""

    sequence: _Sequence


Request = Subscribe | Unsubscribe | Ack
_decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def read(text: str) -> Request:
    """Parse a request. Raises ArgumentError with the problem."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ArgumentError(f"this is not a request of the socket: {error}; docs/live.md lists them") from None


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """The contents of a subscription. Two with the same spec get the same bytes."""

    view: View
    kind: str | None
    match: str | None
    stats: tuple[str, ...]
    rows: str | None
    first: int | None  # negative: counted back from the last one
    last: int | None
    columns: int
    json: bool = False  # the latest values are in JSON, of all taps


def spec_of(asked: Subscribe) -> ViewSpec:
    """Return the spec of a request, checked as a whole."""
    stats = asked.stats or ((asked.stat,) if asked.stat else ())
    if asked.view in ("heatmap", "latest"):
        stats = stats or (("rms",) if asked.view == "heatmap" else ("rms", "min", "max", "nan", "inf"))
        for stat in stats:
            checks.require("stat", stat, STAT_NAMES)
        checks.require_kind(asked.kind)
        check_match(asked.match)
    if asked.view == "heatmap":
        _check_heatmap(asked, stats)
    rows = asked.rows
    if rows is None and asked.view == "heatmap":
        rows = DEFAULT_ROWS
    if rows is not None:
        read_rows(rows, asked.view)
    return ViewSpec(
        asked.view,
        asked.kind,
        asked.match,
        tuple(dict.fromkeys(stats)),
        rows,
        asked.first,
        asked.last,
        asked.columns,
    )


def check_match(match: str | None) -> None:
    """Raise PatternError unless a match is a pattern whose answer changes only when taps come."""
    if match is not None:
        parse(match, STRUCTURE)


def _check_heatmap(asked: Subscribe, stats: tuple[str, ...]) -> None:
    if asked.kind is None:
        raise ArgumentError("a heatmap without a kind: give one, such as output_grad")
    if len(stats) != 1:
        raise ArgumentError(f"a heatmap of {len(stats)} stats: a heatmap shows one stat, so subscribe once for each")


def read_rows(rows: str, view: str) -> tuple[str, int, int]:
    """Return how rows are selected: ("fit", n, 0), or ("idx", first, last)."""
    how, _, what = rows.partition(":")
    parts: list[Any] = [int(part) for part in what.split("-") if part.isdecimal() and len(part) < 9]
    if how == "fit" and view == "heatmap" and len(parts) == 1 and what == str(parts[0]) and 1 <= parts[0] <= MAX_ROWS:
        return "fit", parts[0], 0
    if how == "idx" and len(parts) == 2 and 0 <= parts[1] - parts[0] < MAX_ROWS and what.count("-") == 1:
        return "idx", parts[0], parts[1]
    fits = '"fit:600" (heatmaps only) or ' if view == "heatmap" else ""
    raise ArgumentError(f'rows={rows!r} is invalid: use {fits}"idx:120-160"')


# The frames of a subscription: pure functions of its progress and the run's.

MAX_COLUMNS: Final = 4  # of a delta; more new steps become one column
MAX_SCALARS: Final = 200


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


def make(selections: TapCache, run: Run | None, spec: ViewSpec, sent: Any, now: Any) -> tuple[Body, ...]:
    """Return the frames that bring a reader from `sent` (None: it has nothing) up to `now`."""
    if run is None:
        return (json_body(RunsMessage(tuple(news_of(*each) for each in now))),)
    if spec.view == "events":
        bodies = _events(run, spec, sent, now)
    elif spec.view == "incidents":
        bodies = _incidents(run, sent, now)
    elif spec.view == "scalars":
        bodies = scalars_of(run, spec, sent, now)
    else:
        wanted, every = _wanted(selections, run, spec)
        if sent is not None and (sent.taps < 0 or (len(wanted.numbers) and wanted.numbers[-1] >= sent.taps)):
            sent = None  # the reader doesn't have some of the rows
        if sent is not None and not len(wanted.numbers) and sent.steps.newest < 0 <= now.steps.newest:
            sent = None  # the reason for having no rows has changed
        show = _heatmap if spec.view == "heatmap" else _latest
        bodies = show(every, run, spec, wanted, sent, now)
    if sent is None or sent.state != now.state:
        last = now.steps.newest if now.steps.newest >= 0 else None
        bodies.append(json_body(StateMessage(run.id, now.state, last), last or 0))
    return tuple(bodies)


def _wanted(selections: TapCache, run: Run, spec: ViewSpec) -> tuple[TapList, int]:
    """Return the selected taps, and how many match."""
    found = selections.get(run.store, spec.kind, spec.match)
    every = len(found.taps)
    how, first, last = read_rows(spec.rows, spec.view) if spec.rows is not None else ("all", 0, 0)
    if how == "idx":
        found = found.at(range(len(found.taps))[first : last + 1])
    return found if how == "fit" or spec.json or len(found.taps) <= MAX_ROWS else found.at(range(MAX_ROWS)), every


def _heatmap(every: int, run: Run, spec: ViewSpec, wanted: TapList, sent: Mark | None, now: Mark) -> list[Body]:
    how, rows, _ = read_rows(spec.rows, spec.view) if spec.rows is not None else ("all", 0, 0)
    most = rows if how == "fit" else None
    span = _span(spec, sent, now)
    if sent is not None:
        if span is None:
            return []
        length = span[1] - span[0] + 1
        columns = length if length <= MAX_COLUMNS else 1
    else:
        columns = spec.columns
    first, last = span or (0, -1)
    heat = run.store.heatmap(wanted, spec.stats[0], first, last, columns, most)
    if sent is not None:
        return [_cells(DELTA, heat)] if len(heat.first_step) else []
    starts = _starts(len(wanted.taps), most)  # known before there is a step
    groups = np.diff(starts, append=len(wanted.taps))
    about = _rows(every, run, spec, wanted, starts, groups)
    return [json_body(about, first), _cells(SNAPSHOT, heat, len(starts))]


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


def _cells(kind: int, heat: Heatmap, rows: int = 0) -> Body:
    values, absent = np.where(heat.infinite, np.inf, heat.worst).T, heat.present.T == 0
    if not values.size:
        values, absent = np.empty((0, rows)), np.empty((0, rows), bool)
    nonfinite = (heat.nonfinite > 0).sum(axis=0)
    return values_body(kind, as_f4(values, absent), heat.first_step, heat.last_step, nonfinite)


def _latest(every: int, run: Run, spec: ViewSpec, wanted: TapList, sent: Mark | None, now: Mark) -> list[Body]:
    span = _span(spec, sent, now) or (None if sent is not None else (0, 0))
    if span is None:
        return []
    asked = spec.first if spec.first is not None and spec.first >= 0 else None
    found = run.store.latest(wanted, first=span[0] if sent is not None else asked, last=span[1])
    if sent is not None and not len(found.steps):
        return []
    # The newest step may have only logged values.
    newest = int(found.steps.max()) if len(found.steps) else span[1]
    shown = min(span[0], newest), newest
    bad = _nonfinite(run, wanted, found, span if sent is not None else (newest, newest))
    if spec.json:
        bodies = [json_body(_listed(run, spec, found, shown, bad, sent is None), shown[0])] if len(found.steps) else []
    else:
        merged = (span[1] if asked is None else asked, span[1]) if spec.last is not None and sent is None else None
        bodies = [_columns(SNAPSHOT if sent is None else DELTA, run, spec, wanted, found, merged, shown, len(bad))]
    if sent is not None:
        return bodies
    each = np.arange(len(wanted.taps))
    about = _rows(every, run, spec, wanted, each, np.ones(len(each), np.int64))
    if len(each) < every and spec.rows is None:
        why = f"Only the first {MAX_ROWS:,} of {every:,} tensors are shown: narrow the selection with a filter."
        about = msgspec.structs.replace(about, why=why)
    return [json_body(about, span[0]), *bodies]


def _nonfinite(run: Run, wanted: TapList, found: Latest, span: tuple[int, int]) -> Any:
    """Return the taps that were non-finite in any step of the span, not only in the newest."""
    if span[0] < span[1]:
        heat = run.store.heatmap(wanted, "nan", *span, columns=1)
        if heat.nonfinite.size:
            return heat.numbers[heat.nonfinite[:, 0] > 0]
    return found.numbers[found.values[:, STAT_NAMES.index("nonfinite")] > 0]


def _listed(
    run: Run, spec: ViewSpec, found: Latest, shown: tuple[int, int], bad: Any, is_snapshot: bool
) -> LatestMessage:
    times = run.store.scalars(TIME, shown[1], shown[1])
    return LatestMessage(
        run=run.id,
        snapshot=is_snapshot,
        first_step=shown[0],
        last_step=shown[1],
        time_s=Number(times.max[-1]) if len(times.max) else None,
        stats=spec.stats,
        numbers=found.numbers,
        steps=found.steps,
        values={name: found.values[:, STAT_NAMES.index(name)] for name in spec.stats},
        nonfinite=bad,
    )


def _columns(
    kind: int,
    run: Run,
    spec: ViewSpec,
    wanted: TapList,
    found: Latest,
    merged: tuple[int, int] | None,
    shown: tuple[int, int],
    bad: int,
) -> Body:
    places = np.searchsorted(wanted.numbers, found.numbers)
    columns = [STAT_NAMES.index(stat) for stat in spec.stats]
    values = np.full((len(columns), len(wanted.taps)), np.nan)
    values[:, places] = of_all_values(found.values)[:, columns].T
    absent = np.ones(values.shape, bool)
    absent[:, places] = False
    if merged is not None and absent.any():
        _fill_from_merged(run, spec, wanted, merged, values, absent)
    begin, end, nonfinite = (np.full(len(columns), number, np.int64) for number in (*shown, bad))
    return values_body(kind, as_f4(values, absent), begin, end, nonfinite)


def _fill_from_merged(
    run: Run, spec: ViewSpec, wanted: TapList, span: tuple[int, int], values: Any, absent: Any
) -> None:
    """Fill in the worst values around merged steps, for the taps without exact ones."""
    for place, stat in enumerate(spec.stats):
        heat = run.store.heatmap(wanted, stat, *span, columns=1)
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
    why = "" if rows or spec.kind is None else why_empty(run.store, spec.kind, run.state == "live")
    return RowsMessage(run.id, spec.view, spec.kind, spec.stats, every, rows, why)


def _events(run: Run, spec: ViewSpec, sent: Mark | None, now: Mark) -> list[Body]:
    before = sent.events if sent is not None else 0
    events = events_between(run, before, now.events)[-spec.columns :]
    if not events and sent is not None:
        return []
    message = EventsMessage(run.id, not before, now.events, events)
    return [json_body(message, now.steps.newest)]


def _incidents(run: Run, sent: Mark | None, now: Mark) -> list[Body]:
    before = sent.incidents if sent is not None else 0
    changed = incidents_of(run, before)
    if not changed and sent is not None:
        return []
    return [json_body(IncidentsMessage(run.id, not before, changed), now.steps.newest)]


def scalars_of(run: Run, spec: ViewSpec, sent: Mark | None, now: Mark) -> list[Body]:
    span = _span(spec, sent, now)
    if span is None and sent is not None:
        return []
    stats = spec.stats
    chosen = [name for name in run.store.scalar_names() if (name in stats if stats else not name.startswith(OWN))]
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

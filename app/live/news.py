"""The news of a run, as blocks of a stream: pure functions of the follower's progress and the run's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hookcore.reading import answers
from hookcore.reading.answers import Number
from hookcore.reading.answers.live import FrameNews
from hookcore.records.vocabulary import OWN, TIME
from hookcore.store import STAT_NAMES, Latest, TapList

from ..formats import json_of
from ..runs import Run
from ..runs.answering import incidents_of
from .publisher import Cursor, Mark, Publisher, Steps, events_between, mark_of, new_steps, token_of

MAX_POINTS: Final = 100  # of each scalar in one event
MAX_SCALARS: Final = 200


@dataclass(frozen=True, slots=True)
class StreamQuery:
    """The parts of a run that a reader wants."""

    kind: str | None
    match: str | None
    stats: tuple[str, ...]
    hz: float


def begin(run: Run, sent: Cursor | None) -> Cursor:
    """Return the point at which a reader continues in a run: after its last item, or at the newest step."""
    token = token_of(run.store)
    if sent is not None and sent.run == run.id:
        if sent.store == token:
            return sent
        # The server was restarted: the steps continue, but its counts started again.
        newest = mark_of(run).steps.newest
        seen = min(sent.frames.newest, newest), min(sent.scalars.newest, newest)
        frames, scalars = (Steps(step) for step in seen)
        return Cursor(run.id, token, frames, scalars)
    now = mark_of(run)
    steps = now.steps
    before = Steps(max(-1, steps.newest - 1), max(0, steps.different - 1), max(0, steps.frames - 1))
    return Cursor(run.id, token, before, before, now.events, incidents=now.incidents)


def has_all(sent: Cursor, now: Mark) -> bool:
    """Return whether there is no news."""
    return (sent.frames, sent.scalars, sent.events, sent.taps, sent.incidents, sent.state) == (
        now.steps,
        now.steps,
        now.events,
        now.taps,
        now.incidents,
        now.state,
    )


def make_blocks(publisher: Publisher, run: Run, query: StreamQuery, sent: Cursor, now: Mark) -> tuple[bytes, Cursor]:
    """Return everything between the follower's progress and now, and the new cursor."""
    made = []
    for name, content, cursor in _news_of(publisher, run, query, sent, now):
        if content is not None:
            made.append(block(name, {"run": run.id, **content} if isinstance(content, dict) else content, cursor))
    return b"".join(made), Cursor(
        sent.run, sent.store, now.steps, now.steps, max(now.events, sent.events), now.taps, now.incidents, now.state
    )


def _news_of(
    publisher: Publisher, run: Run, query: StreamQuery, sent: Cursor, now: Mark
) -> Iterator[tuple[str, dict[str, Any] | FrameNews | None, Cursor]]:
    """Yield each kind of news, or None, with its new cursor. A change to `ended` comes last, after all other news."""
    state = {"state": now.state, "last_step": now.steps.newest if now.steps.newest >= 0 else None}
    if now.state == "live" and sent.state != "live":
        sent = sent._replace(state=now.state)
        yield "state", state, sent
    content = _new_taps(publisher, run, query, sent, now)
    sent = sent._replace(taps=now.taps)
    yield "taps", content, sent
    events = events_between(run, sent.events, now.events)
    sent = sent._replace(events=max(now.events, sent.events))
    yield "event", {"events": events} if events else None, sent
    changed = incidents_of(run, sent.incidents) if sent.incidents != now.incidents else ()
    sent = sent._replace(incidents=now.incidents)
    yield "incident", {"incidents": changed} if changed else None, sent
    content = _new_scalars(run, sent.scalars, now.steps)
    sent = sent._replace(scalars=now.steps)
    yield "scalars", content, sent
    frame = _new_frame(publisher, run, query, sent.frames, now.steps)
    sent = sent._replace(frames=now.steps)
    yield "frame", frame, sent
    if now.state != sent.state:
        yield "state", state, sent._replace(state=now.state)


def _new_taps(publisher: Publisher, run: Run, query: StreamQuery, sent: Cursor, now: Mark) -> dict[str, Any] | None:
    if sent.taps >= now.taps:
        return None
    found = publisher.selections.get(run.store, query.kind, query.match)
    first, last = np.searchsorted(found.numbers, [sent.taps, now.taps]).tolist()
    return {"taps": [answers.Tap.of(*each) for each in found.at(range(first, last))]} if first < last else None


def _new_scalars(run: Run, sent: Steps, now: Steps) -> dict[str, Any] | None:
    span = new_steps(sent, now)
    if span is None:
        return None
    names = [name for name in run.store.scalar_names() if not name.startswith(OWN)]
    found = [run.store.scalars(name, *span, points=MAX_POINTS) for name in names[:MAX_SCALARS]]
    found = [series for series in found if len(series.first_step)]
    if not found:
        return None
    left_out = max(0, len(names) - MAX_SCALARS)
    listed = [answers.Series.of(series) for series in found]
    return {"first_step": span[0], "last_step": span[1], "left_out": left_out, "scalars": listed}


def _new_frame(publisher: Publisher, run: Run, query: StreamQuery, sent: Steps, now: Steps) -> FrameNews | None:
    span = new_steps(sent, now)
    if span is None:
        return None
    wanted = publisher.selections.get(run.store, query.kind, query.match)
    latest = run.store.latest(first=span[0], last=span[1], wanted=wanted)
    if not len(latest.numbers):
        return None
    values = {name: latest.values[:, STAT_NAMES.index(name)] for name in query.stats}
    times = run.store.scalars(TIME, span[1], span[1])
    return FrameNews(
        run=run.id,
        first_step=span[0],
        last_step=span[1],
        time_s=Number(times.max[-1]) if len(times.max) else None,
        stats=query.stats,
        numbers=latest.numbers,
        steps=latest.steps,
        values=values,
        nonfinite=_not_finite(run, wanted, latest, span),
    )


def _not_finite(run: Run, wanted: TapList, latest: Latest, span: tuple[int, int]) -> Any:
    """Return the taps that were non-finite in any step of the span, not only in the newest."""
    bad = latest.values[:, STAT_NAMES.index("nonfinite")] > 0
    if span[0] == span[1]:
        return latest.numbers[bad]
    heat = run.store.heatmap("", "nan", first=span[0], last=span[1], columns=1, wanted=wanted)
    return heat.numbers[heat.nonfinite[:, 0] > 0] if heat.nonfinite.size else latest.numbers[bad]


def block(name: str, content: dict[str, Any] | FrameNews, cursor: Cursor) -> bytes:
    """Return an event of the stream."""
    return b"event: %b\nid: %b\ndata: %b\n\n" % (name.encode(), cursor.as_text().encode(), json_of(content))

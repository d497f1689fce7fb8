"""Reads rows, cells, and sketches of a run: what memory has exactly from there, and the rest from the store's past."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hookcore.store.answers import TapList
from hookcore.store.contents import Contents
from hookcore.store.ladder import Ladder
from hookcore.store.parts import Parts
from hookcore.store.past import Lane, Past, Span, Wanted, divide, look_together, rows_together
from hookcore.store.rows import Cells, Columns, Rows, Streaks
from hookcore.store.segments import Floats, Lanes, Steps
from hookcore.store.sketches import SketchRows

MAX_ROWS: Final = 1000  # of the past, if the caller doesn't say


@dataclass(frozen=True, slots=True)
class Source:
    """One column of some lanes of a ladder, and what the past calls them."""

    ladder: Ladder
    column: int
    lanes: Lanes
    stat: str
    names: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """Rows of a span in parts, oldest first: what memory has of them, and what the past is asked for."""

    near: list[Rows]
    kept: list[Rows] = field(default_factory=list)  # those of memory that the past doesn't have better
    wanted: Wanted | None = None

    def answer(self, older: Rows | None) -> list[Rows]:
        """Return all rows, with those of the past if it was asked and has answered."""
        return self.near if older is None else [part for part in (older, *self.kept) if len(part.first)]


@dataclass(frozen=True, slots=True)
class View:
    """The data of a heatmap: rows in memory, and earlier steps in the past."""

    near: list[Rows]  # all that memory has
    kept: list[Rows]  # those of it that the past doesn't have better
    past: tuple[int, int] | None = None


class Deep(Contents):
    """Reads a store's state, and its past if it has one, from any thread."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._here = threading.local()

    @property
    def whole_since(self) -> int:
        """The step since which memory has had every step of the run, if not from the beginning."""
        return self._parts.whole_since

    @property
    def exact_since(self) -> int | None:
        """The step since which memory has each step's values of tensors; None if it has all."""
        return self._parts.stats.exact_since(self._parts.whole_since)

    @contextmanager
    def in_memory(self) -> Iterator[None]:
        """Answer this thread from memory alone, as rules need it: they look at thousands of taps, and often."""
        before = getattr(self._here, "only", False)
        self._here.only = True
        try:
            yield
        finally:
            self._here.only = before

    def _past_of(self, span: Span, exact_since: int | None) -> Past | None:
        """Return the past if a span reaches steps that memory doesn't have exactly."""
        past = None if getattr(self._here, "only", False) else self._parts.past
        if past is None or exact_since is None or (span[0] is not None and span[0] >= exact_since):
            return None
        return past

    def _gather(self, source: Source, span: Span, most: int = MAX_ROWS) -> list[Rows]:
        """Return the rows of a span in parts, oldest first; of the past about `most` if there are more."""
        return gather_together([(self, source, span)], most)[0]

    def _ask(self, source: Source, span: Span, most: int) -> Question:
        near = source.ladder.gather(source.column, source.lanes, *span)
        since = source.ladder.exact_since(self._parts.whole_since)
        past = self._past_of(span, since)
        if past is None or since is None:
            return Question(near)
        deep, kept = divide(near, since, span, past.stored_until())
        wanted = None if deep is None else Wanted(past, source.stat, source.names, deep, most)
        return Question(near, kept, wanted)

    def _entries(self, number: int, span: Span, most: int) -> list[SketchRows]:
        """Return the sketches of a tap, or sums of them, oldest first."""
        return self._divided(span, lambda past, deep: past.sketches(number, deep, most))

    def _divided(self, span: Span, ask: Callable[[Past, Span], list[SketchRows] | None]) -> list[SketchRows]:
        """Return sketches of memory, and of the past where memory has only sums."""
        near = self._parts.sketches.entries(*span)
        since = self._parts.sketches.exact_since(self._parts.whole_since)
        past = self._past_of(span, since)
        if past is None or since is None:
            return near
        stored = past.stored_until()
        kept = [entry for entry in near if entry.last > stored or (entry.first >= since and entry.steps == 1)]
        end = min([stored, *(entry.first - 1 for entry in kept), *(each for each in span[1:] if each is not None)])
        older = ask(past, (span[0], end)) if end >= (span[0] or 0) else None
        if older is None:
            return near
        # A sum of the past may be of steps after the end, too, or the last steps may be too many for it.
        until = max((entry.last for entry in older), default=-1)
        return [*older, *(entry for entry in near if entry.first > until)]

    def _all_entries(self, span: Span) -> list[SketchRows]:
        """Return the sketches of all taps, or sums of them, oldest first."""
        return self._divided(span, lambda past, deep: past.all_sketches(len(self._parts.taps), deep))

    def _latest(self, span: Span) -> tuple[Steps, Floats]:
        """Return the newest step of each tap in a span, -1 if it has none, and its exact stats there [stat, tap]."""
        since = self.exact_since
        past = self._past_of(span, since)
        if past is not None and since is not None and span[1] is not None and span[1] < since:
            found = past.latest(len(self._parts.taps), span)
            if found is not None:
                return found
        return self._parts.stats.latest(*span)

    def _has_past(self, span: Span) -> bool:
        """Return whether the past has the steps of a span that memory has merged."""
        past = self._past_of(span, self.exact_since)
        return past is not None and not past.trouble

    def _rows_between(self, span: Span) -> tuple[Steps, Steps]:
        """Return the first and the last step of every row of taps that overlaps a span, oldest first."""
        begin, end = self._parts.stats.rows_between(*span)
        since = self.exact_since
        past = self._past_of(span, since)
        if past is None or since is None:
            return begin, end
        stored = past.stored_until()
        ours = (end > stored) | (begin >= since)
        until = min([stored, *begin[ours][:1].tolist(), *(each for each in span[1:] if each is not None)])
        until -= bool(ours.any() and until == begin[ours][0])
        older = past.captured((span[0], until)) if until >= (span[0] or 0) else None
        if older is None:
            return begin, end
        return np.concatenate([older, begin[ours]]), np.concatenate([older, end[ours]])

    def _view(self, source: Source, span: Span) -> View:
        """Return what a heatmap of a span shows."""
        near = source.ladder.gather(source.column, source.lanes, *span)
        since = source.ladder.exact_since(self._parts.whole_since)
        past = self._past_of(span, since)
        if past is not None and since is not None:
            deep, kept = divide(near, since, span, past.stored_until())
            ends = None if deep is None else past.ends(deep)
            if ends is not None:
                return View(near, kept, ends)
        return View(near, near)

    def _cells(self, stat: str, wanted: TapList, over: Columns, view: View, streaks: Streaks) -> Cells:
        """Return the values of a view in cells."""
        past, older = self._parts.past, None
        if past is not None and view.past is not None:
            older = past.cells(stat, wanted.numbers.tolist(), over, view.past)
        cells = Cells.make(over.number, len(wanted.taps)) if older is None else older
        for part in view.near if older is None else view.kept:
            cells.add(over, part, streaks)
        return cells


def gather_together(asked: Sequence[tuple[Deep, Source, Span]], most: int) -> list[list[Rows]]:
    """Return the rows of spans of several stores in parts. Pasts that are stored in one place are queried once."""
    since = [source.ladder.exact_since(store._parts.whole_since) for store, source, _ in asked]
    pasts = [store._past_of(span, step) for (store, _, span), step in zip(asked, since, strict=True)]
    look_together([past for past in pasts if past is not None])
    questions = [store._ask(source, span, most) for store, source, span in asked]
    older = iter(rows_together([each.wanted for each in questions if each.wanted is not None]))
    return [each.answer(None if each.wanted is None else next(older)) for each in questions]

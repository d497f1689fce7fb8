"""The whole of one run in ClickHouse, as a store asks for the steps that its memory doesn't have."""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

import numpy as np

from hookcore.errors import HookcoreError
from hookcore.records import STATS
from hookcore.records.sketch import places_of
from hookcore.store import StepRange
from hookcore.store.heatmap import Cells, Columns
from hookcore.store.past import Lane, Past, Span
from hookcore.store.rows import Rows
from hookcore.store.segments import Floats, Steps
from hookcore.store.sketches import SketchRows, narrow

from .client import Shard
from .levels import Budget, Piece, pieces_of
from .names import lane_of_scalar, number_of_run
from .native import Answer
from .questions import cells_sql, latest_sql, rows_sql, sketches_sql
from .tables import CHUNK, FRAME, LEVELS, SKETCH_LEVELS

logger = logging.getLogger("hookcore")

FRESH_S: Final = 1.0  # for which the newest stored step is believed
TROUBLED_S: Final = 30.0  # for which something that couldn't be read is missing, unless it is read after all
MAX_EXACT: Final = 16_384  # rows that are read exactly, whatever is asked for
MAX_SKETCHES: Final = 8192
MAX_SKETCHES_OF_ALL: Final = 200_000
MAX_CAPTURED: Final = 50_000  # steps
MIN_SUMS: Final = 16  # in time, of the sketches of all taps
MAX_CELL_ROWS: Final = 2_000_000  # rows that are read for a heatmap
_PER_POINT: Final = 4  # buckets
_PER_CELL: Final = 8  # exact rows, even if that is too many for all rows of a heatmap
_BACK: Final = 4  # chunks in which the newest values of all taps are looked for together
Found = TypeVar("Found")


class Troubles:
    """Why something couldn't be read lately, by what was asked. `what` names it in the log."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._found: dict[Hashable, tuple[str, float]] = {}

    @property
    def text(self) -> str:
        """All reasons; empty if there are none."""
        recent = time.monotonic() - TROUBLED_S
        return "; ".join(dict.fromkeys(text for text, at in list(self._found.values()) if at >= recent))

    def note(self, question: Hashable, why: str) -> None:
        """Note that an answer lacks something."""
        now = time.monotonic()
        for old in [each for each, (_, at) in list(self._found.items()) if at < now - TROUBLED_S]:
            self._found.pop(old, None)
        self._found[question] = why, now

    def attempt(self, question: Hashable, ask: Callable[[], Found]) -> Found | None:
        """Ask. What could be read says nothing about what couldn't: that stays missing until it is read."""
        try:
            found = ask()
        except HookcoreError as error:
            if not self.text:
                logger.warning("hookcore: %s can't be read from ClickHouse: %s", self._what, error)
            self.note(question, str(error))
            return None
        self._found.pop(question, None)
        return found


class StoredPast(Past):
    """What is stored, as far as was seen last. Any thread can ask. What can't be read is None; `trouble` says why."""

    def __init__(self, what: str) -> None:
        self._troubles = Troubles(what)
        self._stored, self._asked_at = -1, float("-inf")
        self._lock = threading.Lock()

    @property
    def trouble(self) -> str:
        return self._troubles.text

    def stored_until(self) -> int:
        with self._lock:
            if time.monotonic() - self._asked_at > FRESH_S:
                self._troubles.attempt("stored_until", self._look)
                self._asked_at = time.monotonic()
            return self._stored

    @abstractmethod
    def _look(self) -> None:
        """Find out up to which step everything is stored."""


class RunPast(StoredPast):
    """One run on its shard."""

    def __init__(self, shard: Shard, run_id: str, steps: Callable[[], StepRange]) -> None:
        super().__init__("old steps")
        self._shard, self._run, self._steps = shard, number_of_run(run_id), steps
        self._number = 0

    def _look(self) -> None:
        found = self._shard.read(
            f"SELECT max(number) AS newest, max(step) AS until, count() AS found FROM items "
            f"WHERE run = {self._run} AND number >= {self._number} AND kind = {FRAME}"
        )
        if found.one("found"):
            self._number, self._stored = found.one("newest"), max(self._stored, found.one("until"))

    def rows(self, stat: str, lanes: Sequence[Lane], span: Span, most: int) -> Rows | None:
        numbers = [lane_of_scalar(each) if isinstance(each, str) else each for each in lanes]
        first, last = self._within(span)
        budget = Budget(most, max(most, MAX_EXACT // len(numbers)), _PER_POINT * most)
        pieces = self._pieces(first, last, budget, LEVELS)
        found = self._read("rows", rows_sql(self._run, stat, numbers, pieces))
        return None if found is None else _rows_of(found, numbers)

    def captured(self, span: Span) -> Steps | None:
        first, last = self._within(span)
        if first > last:
            return np.empty(0, np.int64)
        width = (last - first) // MAX_CAPTURED + 1
        found = self._read(
            "captured",
            f"SELECT max(step) AS newest FROM items WHERE run = {self._run} AND kind = {FRAME} AND rows > 0 "
            f"AND step BETWEEN {first} AND {last} GROUP BY intDiv(step - {first}, {width}) ORDER BY newest",
        )
        return None if found is None else found.numbers("newest").astype(np.int64)

    def ends(self, span: Span) -> tuple[int, int] | None:
        first, last = self._within(span)
        steps = self._steps()
        if span[0] is None and last + 1 >= (steps.newest or 0):
            return (first, last) if first <= last else None  # what memory knows, or has after it
        found = self._read(
            "ends",
            f"SELECT min(step) AS first, max(step) AS last, count() AS found FROM items "
            f"WHERE run = {self._run} AND kind = {FRAME} AND step BETWEEN {first} AND {last}",
        )
        return (found.one("first"), found.one("last")) if found is not None and found.one("found") else None

    def cells(self, stat: str, taps: Sequence[int], columns: Columns, span: Span) -> Cells | None:
        first, last = self._within(span)
        number = max(1, (last - first + 1) * columns.number // (columns.last - columns.first + 1))
        each = MAX_CELL_ROWS // len(taps)
        pieces = self._pieces(first, last, Budget(number, max(_PER_CELL * number, each), each), LEVELS)
        found = self._read("cells", cells_sql(self._run, stat, taps, columns, pieces))
        return None if found is None else _cells_of(found, taps, columns)

    def sketches(self, tap: int, span: Span, most: int) -> list[SketchRows] | None:
        first, last = self._within(span)
        pieces = self._pieces(first, last, Budget(most, max(most, MAX_SKETCHES), _PER_POINT * most), SKETCH_LEVELS)
        found = self._read("sketches", sketches_sql(self._run, tap, pieces))
        return None if found is None else _sketches_of(found, tap)

    def all_sketches(self, taps: int, span: Span) -> list[SketchRows] | None:
        first, last = self._within(span)
        each = max(1, MAX_SKETCHES_OF_ALL // max(1, taps))
        pieces = self._pieces(first, last, Budget(min(each, MIN_SUMS), each, each), SKETCH_LEVELS)
        found = self._read("all_sketches", sketches_sql(self._run, None, pieces))
        return None if found is None else _all_sketches_of(found, taps)

    def latest(self, taps: int, span: Span) -> tuple[Steps, Floats] | None:
        first, last = self._within(span)
        steps, values = np.full(taps, -1, np.int64), np.full((len(STATS), taps), np.nan)
        chunk = last >> CHUNK
        for back in range(_BACK + 1):
            missing = np.flatnonzero(steps < 0)
            if not len(missing) or chunk - back < first >> CHUNK:
                break
            # After some chunks of all taps, what is left was captured rarely, so all of it is few rows.
            chunks = (chunk - back, chunk - back) if back < _BACK else (first >> CHUNK, chunk - back)
            found = self._read("latest", latest_sql(self._run, missing.tolist(), chunks, (first, last)))
            if found is None:
                return None
            lanes = found.numbers("lane").astype(np.intp)
            steps[lanes] = found.numbers("newest")
            for column, stat in enumerate(STATS):
                values[column, lanes] = found.numbers(f"{stat}_then")
        return steps, values

    def _within(self, span: Span) -> tuple[int, int]:
        steps = self._steps()
        first, last = span
        return max(first or 0, steps.first or 0), self._stored if last is None else last

    def _pieces(self, first: int, last: int, budget: Budget, levels: Sequence[int]) -> list[Piece]:
        """Return what to read of a span."""
        steps = self._steps()
        spread = max(1.0, ((steps.newest or 0) - (steps.first or 0) + 1) / max(1, steps.count))
        level = budget.level(last - first + 1, levels, spread)
        return list(pieces_of(first, last, level, levels)) if first <= last else []

    def _read(self, question: str, sql: str) -> Answer | None:
        return Answer({}) if not sql else self._troubles.attempt(question, lambda: self._shard.read(sql))


def _rows_of(found: Answer, lanes: Sequence[int]) -> Rows:
    level, bucket = (found.numbers(name).astype(np.int64) for name in ("level", "bucket"))
    if not len(level):
        return Rows.empty(len(lanes))
    first, last = bucket << level, ((bucket + 1) << level) - 1
    begins, place, row = np.unique(first, return_index=True, return_inverse=True)
    order = np.argsort(np.array(lanes, np.uint64))
    lane = order[np.searchsorted(np.array(lanes, np.uint64)[order], found.numbers("lane"))]
    shape = len(begins), len(lanes)
    counts = {name: np.zeros(shape, np.uint32) for name in ("finite", "present", "bad")}
    for name, column in counts.items():
        column[row, lane] = found.numbers(name)
    known = counts["finite"] > 0
    low, high, mean = (np.full(shape, np.nan) for _ in range(3))
    for name, values in (("low", low), ("high", high), ("total", mean)):
        values[row, lane] = found.numbers(name)
        values[~known] = np.nan
    with np.errstate(invalid="ignore"):
        mean /= np.maximum(counts["finite"], 1)
        np.clip(mean, low, high, out=mean)  # a sum of the largest numbers may be infinite, but not their mean
    return Rows(begins, last[place], mean, low, high, counts["finite"], counts["present"], counts["bad"])


def _cells_of(found: Answer, taps: Sequence[int], columns: Columns) -> Cells:
    cells = Cells.make(columns.number, len(taps))
    at = found.numbers("cell").astype(np.intp), np.searchsorted(np.array(taps, np.uint64), found.numbers("lane"))
    known = found.numbers("finite") > 0
    np.fmin.at(cells.low, at, np.where(known, found.numbers("low"), np.nan))
    np.fmax.at(cells.high, at, np.where(known, found.numbers("high"), np.nan))
    np.add.at(cells.nonfinite, at, found.numbers("bad").astype(np.uint32))
    np.add.at(cells.present, at, found.numbers("present").astype(np.uint32))
    return cells


def _sketches_of(found: Answer, tap: int) -> list[SketchRows]:
    bins, counts = found.lists("bins"), found.lists("counts").values
    first, last, steps = (found.numbers(name).tolist() for name in ("first", "last", "steps"))
    taps = np.array([tap], np.uint32)
    made = []
    for place in np.argsort(first, kind="stable").tolist():
        part = slice(int(bins.starts[place]), int(bins.starts[place + 1]))
        start = np.array([0, part.stop - part.start], np.uint32)
        about = first[place], last[place], steps[place], taps, start
        made.append(SketchRows(*about, bins.values[part], narrow(counts[part])))
    return made


def _all_sketches_of(found: Answer, taps: int) -> list[SketchRows]:
    bins, counts = found.lists("bins"), found.lists("counts").values
    lanes, first, last, steps = (found.numbers(name).astype(np.int64) for name in ("lane", "first", "last", "steps"))
    order = np.lexsort((lanes, first))
    order = order[lanes[order] < taps]
    made = []
    for rows in np.split(order, np.flatnonzero(np.diff(first[order])) + 1) if len(order) else ():
        start, places = places_of(bins.starts, rows)
        # Taps may be captured in different steps; there are at least as many as of one of them.
        about = int(first[rows[0]]), int(last[rows[0]]), int(steps[rows].max()), lanes[rows].astype(np.uint32)
        made.append(SketchRows(*about, start.astype(np.uint32), bins.values[places], narrow(counts[places])))
    return made

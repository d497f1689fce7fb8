"""The whole of runs in ClickHouse, as stores ask for the steps that their memory doesn't have."""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import HookcoreError
from hookcore.records import STATS
from hookcore.records.sketch import places_of
from hookcore.store import StepRange
from hookcore.store.past import Lane, Past, Span, Together, Wanted
from hookcore.store.rows import Cells, Columns, Rows
from hookcore.store.segments import Floats, Steps
from hookcore.store.sketches import SketchRows, narrow

from .client import Shard
from .native import Answer
from .questions import (
    EXACT,
    Budget,
    Piece,
    RunQuery,
    cells_sql,
    latest_sql,
    newest_sql,
    pieces_of,
    portions,
    rows_sql,
    sketches_sql,
)
from .schema import CHUNK, FRAME, LEVELS, SKETCH_LEVELS, lane_of_scalar, number_of_run

# What ClickHouse answers about runs, in the form in which a store reads it. Pure.

Places = NDArray[np.intp]


def of_run(found: Answer, run: int) -> Places:
    """Return the rows of an answer that are about a run."""
    return np.flatnonzero(found.numbers("run") == np.uint64(run))


def rows_of(found: Answer, mine: Places, lanes: Sequence[int]) -> Rows:
    """Return rows of some lanes in time.

    A bucket may be in several rows, which are its parts. A single step in several rows was stored again.
    """
    if not len(mine):
        return Rows.empty(len(lanes))

    def numbers(name: str) -> NDArray[Any]:
        return found.numbers(name)[mine]

    level, bucket = (numbers(name).astype(np.int64) for name in ("level", "bucket"))
    first, last = bucket << level, ((bucket + 1) << level) - 1
    begins, place, row = np.unique(first, return_index=True, return_inverse=True)
    order = np.argsort(np.array(lanes, np.uint64))
    lane = order[np.searchsorted(np.array(lanes, np.uint64)[order], numbers("lane"))]
    at, exact = row * len(lanes) + lane, level == EXACT
    known = numbers("finite") > 0

    def combined(add: np.ufunc, values: NDArray[Any], none: float) -> NDArray[Any]:
        found = np.full(len(begins) * len(lanes), none, values.dtype)
        found[at[exact]] = values[exact]
        add.at(found, at[~exact], values[~exact])
        return found.reshape(len(begins), len(lanes))

    finite, present, bad = (combined(np.add, numbers(name), 0) for name in ("finite", "present", "bad"))
    low, high = (
        combined(extreme, np.where(known, numbers(name), np.nan), np.nan)
        for name, extreme in (("low", np.fmin), ("high", np.fmax))
    )
    with np.errstate(invalid="ignore", over="ignore"):
        mean = combined(np.add, np.where(known, numbers("total"), 0.0), 0.0)
        mean[finite == 0] = np.nan
        mean /= np.maximum(finite, 1)
        np.clip(mean, low, high, out=mean)  # a sum of the largest numbers may be infinite, but not their mean
    return Rows(begins, last[place], mean, low, high, finite, present, bad)


def cells_of(found: Answer, taps: Sequence[int], columns: Columns) -> Cells:
    cells, many = Cells.make(columns.number, len(taps)), len(taps)
    places = np.zeros(max(taps) + 1, np.intp)
    places[np.array(taps, np.intp)] = np.arange(many)
    at = found.numbers("cell").astype(np.intp) * many + places[found.numbers("tap").astype(np.intp)]
    known = found.numbers("finite") > 0
    also = np.flatnonzero(found.numbers("more"))  # buckets that are in the next column, too
    for name, combine, into in (("low", np.fmin, cells.low), ("high", np.fmax, cells.high)):
        values = np.where(known, found.numbers(name), np.nan)
        combine.at(into.reshape(-1), at, values)
        combine.at(into.reshape(-1), at[also] + many, values[also])
    for name, counts in (("bad", cells.nonfinite), ("present", cells.present)):
        np.add.at(counts.reshape(-1), at, found.numbers(name).astype(np.uint32))
    return cells


def sketches_of(found: Answer, mine: Places, tap: int) -> list[SketchRows]:
    """Return the sketches of a tap, oldest first."""
    bins, counts = found.histograms()
    first, last, steps = (found.numbers(name).tolist() for name in ("first", "last", "steps"))
    taps = np.array([tap], np.uint32)
    made = []
    for place in sorted(mine.tolist(), key=lambda place: first[place]):
        part = slice(int(bins.starts[place]), int(bins.starts[place + 1]))
        start = np.array([0, part.stop - part.start], np.uint32)
        about = first[place], last[place], steps[place], taps, start
        made.append(SketchRows(*about, bins.values[part], narrow(counts[part])))
    return made


def all_sketches_of(found: Answer, taps: int) -> list[SketchRows]:
    """Return the sketches of the first taps, oldest first."""
    bins, counts = found.histograms()
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


# The common part of the pasts of stores: how far everything is stored, and why something can't be read.

logger = logging.getLogger("hookcore")

FRESH_S: Final = 1.0  # for which the newest stored step is believed
TROUBLED_S: Final = 30.0  # for which something that couldn't be read is missing, unless it is read after all
Found = TypeVar("Found")


class Troubles:
    """Recent reasons why something couldn't be read, by query. `what` names the subject in the log."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._found: dict[Hashable, tuple[str, float]] = {}

    @property
    def text(self) -> str | None:
        """All reasons; None if there are none."""
        recent = time.monotonic() - TROUBLED_S
        return "; ".join(dict.fromkeys(text for text, at in list(self._found.values()) if at >= recent)) or None

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
    """The stored data, as last seen. Any thread can ask. Unreadable data is None, and `trouble` says why."""

    def __init__(self, what: str) -> None:
        self.troubles = Troubles(what)
        self.stored, self.asked_at = -1, float("-inf")
        self._lock = threading.Lock()

    @property
    def together(self) -> Together | None:
        return None

    @property
    def trouble(self) -> str | None:
        return self.troubles.text

    @property
    def is_fresh(self) -> bool:
        """Whether how far everything is stored was seen just now."""
        return time.monotonic() - self.asked_at <= FRESH_S

    def stored_until(self) -> int:
        with self._lock:
            if not self.is_fresh:
                self._try_to_look(self._look)
            return self.stored

    def _try_to_look(self, look: Callable[[], None]) -> None:
        self.troubles.attempt("stored_until", look)
        self.asked_at = time.monotonic()

    @abstractmethod
    def _look(self) -> None:
        """Find out up to which step everything is stored."""


MAX_EXACT: Final = 16_384  # rows that are read exactly, whatever is asked for
MAX_SKETCHES: Final = 8192
MAX_SKETCHES_OF_ALL: Final = 200_000
MAX_CAPTURED: Final = 50_000  # steps
MIN_SUMS: Final = 16  # in time, of the sketches of all taps
MAX_CELL_ROWS: Final = 2_000_000  # rows that are read for a heatmap
RUNS_AT_ONCE: Final = 16  # that are asked about together, so that no answer is too large
LANES_AT_ONCE: Final = 2048  # of all of them
PER_POINT: Final = 4  # buckets
_PER_CELL: Final = 8  # exact rows, even if that is too many for all rows of a heatmap
_BACK: Final = 4  # chunks in which the newest values of all taps are looked for together


class RunPast(StoredPast):
    """One run on its shard."""

    def __init__(self, shard: Shard, run_id: str, steps: Callable[[], StepRange]) -> None:
        super().__init__("old steps")
        self.shard, self._run, self._steps = shard, number_of_run(run_id), steps
        self._number = 0

    @property
    def together(self) -> RunsOfShard:
        return RunsOfShard(self.shard)

    def _look(self) -> None:
        self._take_look(self.shard.read(newest_sql([self.seen])))

    @property
    def seen(self) -> tuple[int, int]:
        """The run's number, and that of the newest frame which was seen to be stored."""
        return self._run, self._number

    def decode_look(self, answer: ShardAnswer) -> None:
        """Take how far some runs are stored, or why that isn't known."""
        with self._lock:
            self._try_to_look(lambda: self._take_look(answer.value()))

    def _take_look(self, found: Answer) -> None:
        for place in of_run(found, self._run).tolist():
            self._number = int(found.numbers("newest")[place])
            self.stored = max(self.stored, int(found.numbers("until")[place]))

    def rows(self, stat: str, lanes: Sequence[Lane], span: Span, most: int) -> Rows | None:
        return self.together.rows([Wanted(self, stat, lanes, span, most)])[0]

    def rows_query(self, wanted: Wanted) -> RunQuery:
        """Return the query for rows."""
        numbers = tuple(lane_of_scalar(lane) if isinstance(lane, str) else lane for lane in wanted.lanes)
        budget = Budget(wanted.most, max(wanted.most, MAX_EXACT // len(numbers)), PER_POINT * wanted.most)
        return RunQuery(self._run, numbers, self._pieces(*self._within(wanted.span), budget, LEVELS))

    def decode_rows(self, asked: RunQuery, answer: ShardAnswer) -> Rows | None:
        """Return this run's rows from an answer about several runs."""
        return self.troubles.attempt("rows", lambda: rows_of(*answer.about(asked.run), asked.lanes))

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
        return None if found is None else cells_of(found, taps, columns)

    def sketches(self, tap: int, span: Span, most: int) -> list[SketchRows] | None:
        return self.together.sketches([(self, tap)], span, most)[0]

    def sketches_query(self, tap: int, span: Span, most: int) -> RunQuery:
        """Return the query for the sketches of a tap."""
        budget = Budget(most, max(most, MAX_SKETCHES), PER_POINT * most)
        return RunQuery(self._run, (tap,), self._pieces(*self._within(span), budget, SKETCH_LEVELS))

    def decode_sketches(self, asked: RunQuery, answer: ShardAnswer) -> list[SketchRows] | None:
        """Return this run's sketches from an answer about several runs."""
        return self.troubles.attempt("sketches", lambda: sketches_of(*answer.about(asked.run), *asked.lanes))

    def all_sketches(self, taps: int, span: Span) -> list[SketchRows] | None:
        first, last = self._within(span)
        each = max(1, MAX_SKETCHES_OF_ALL // max(1, taps))
        pieces = self._pieces(first, last, Budget(min(each, MIN_SUMS), each, each), SKETCH_LEVELS)
        found = self._read("all_sketches", sketches_sql([RunQuery(self._run, (), pieces)]))
        return None if found is None else all_sketches_of(found, taps)

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
        return max(first or 0, steps.first or 0), self.stored if last is None else last

    def _pieces(self, first: int, last: int, budget: Budget, levels: Sequence[int]) -> tuple[Piece, ...]:
        """Return what to read of a span."""
        steps = self._steps()
        spread = max(1.0, ((steps.newest or 0) - (steps.first or 0) + 1) / max(1, steps.count))
        level = budget.level(last - first + 1, levels, spread)
        return tuple(pieces_of(first, last, level, levels)) if first <= last else ()

    def _read(self, question: str, sql: str) -> Answer | None:
        return Answer({}) if not sql else self.troubles.attempt(question, lambda: self.shard.read(sql))


@dataclass(frozen=True, slots=True)
class ShardAnswer:
    """The answer to a query about several runs, or the reason why there is none, for each of them."""

    content: Answer | HookcoreError

    @classmethod
    def to(cls, shard: Shard, sql: str) -> ShardAnswer:
        """Ask, unless there is nothing to ask."""
        try:
            return cls(shard.read(sql) if sql else Answer({}))
        except HookcoreError as error:
            return cls(error)

    def value(self) -> Answer:
        """Return the answer. Raises HookcoreError if there is none."""
        if isinstance(self.content, HookcoreError):
            raise self.content
        return self.content

    def about(self, run: int) -> tuple[Answer, Places]:
        """Return the answer and which of its rows are about a run."""
        answer = self.value()
        return answer, of_run(answer, run)


@dataclass(frozen=True, slots=True)
class RunsOfShard(Together):
    """Asks a shard about several runs at once."""

    shard: Shard

    def look(self, pasts: Sequence[Past]) -> None:
        stale = [past for past in pasts if isinstance(past, RunPast) and not past.is_fresh]
        if stale:
            answer = ShardAnswer.to(self.shard, newest_sql([past.seen for past in stale]))
            for past in stale:
                past.decode_look(answer)

    def rows(self, wanted: Sequence[Wanted]) -> list[Rows | None]:
        rows: list[Rows | None] = []
        for stat, some in groupby(wanted, key=lambda one: one.stat):
            queries = [(one.past, one.past.rows_query(one)) for one in some if isinstance(one.past, RunPast)]
            for part in _portions(queries):
                answer = ShardAnswer.to(self.shard, rows_sql(stat, [query for _, query in part]))
                rows += [past.decode_rows(query, answer) for past, query in part]
        return rows

    def sketches(self, wanted: Sequence[tuple[RunPast, int]], span: Span, most: int) -> list[list[SketchRows] | None]:
        """Return what `RunPast.sketches` returns of a tap of each run."""
        sketches: list[list[SketchRows] | None] = []
        for part in _portions([(past, past.sketches_query(tap, span, most)) for past, tap in wanted]):
            answer = ShardAnswer.to(self.shard, sketches_sql([query for _, query in part]))
            sketches += [past.decode_sketches(query, answer) for past, query in part]
        return sketches


def _portions(queries: Sequence[tuple[RunPast, RunQuery]]) -> Iterator[list[tuple[RunPast, RunQuery]]]:
    """Divide what is asked about runs into questions whose answers aren't too large."""
    return portions(queries, lambda query: (1, len(query[1].lanes)), (RUNS_AT_ONCE, LANES_AT_ONCE))


MAX_BYTES: Final = 32 * 2**20


class Recent:
    """A cache of answers of up to `max_bytes` in total; the least recently used one is dropped first."""

    def __init__(self, nbytes: Callable[[Any], int], max_bytes: int = MAX_BYTES) -> None:
        self._nbytes_of, self._max_bytes = nbytes, max_bytes
        self._found: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, asked: Hashable, find: Callable[[], Found], state: Callable[[], Hashable] = lambda: None) -> Found:
        """Return the answer to a question, found now if it isn't known. Callers must not change it.

        It is the answer in the state that is found with it.
        """
        question = asked, state()
        with self._lock:
            if question in self._found:
                self._found.move_to_end(question)
                known: Found = self._found[question][0]
                return known
        found = find()
        nbytes, question = self._nbytes_of(found), (asked, state())
        with self._lock:
            if question not in self._found and nbytes <= self._max_bytes // 4:
                self._found[question] = found, nbytes
                self._nbytes += nbytes
            while self._nbytes > self._max_bytes:
                self._nbytes -= self._found.popitem(last=False)[1][1]
        return found

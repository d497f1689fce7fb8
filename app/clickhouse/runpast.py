"""The whole of runs in ClickHouse, as stores ask for the steps that their memory doesn't have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from hookcore.errors import HookcoreError
from hookcore.records import STATS
from hookcore.store import StepRange
from hookcore.store.heatmap import Cells, Columns
from hookcore.store.past import Lane, Past, Span, Together, Wanted
from hookcore.store.rows import Rows
from hookcore.store.segments import Floats, Steps
from hookcore.store.sketches import SketchRows

from .client import Shard
from .groups import portions
from .levels import Budget, Piece, pieces_of
from .names import lane_of_scalar, number_of_run
from .native import Answer
from .past import StoredPast
from .questions import OfRun, cells_sql, latest_sql, newest_sql, rows_sql, sketches_sql
from .runanswers import Places, all_sketches_of, cells_of, of_run, rows_of, sketches_of
from .tables import CHUNK, FRAME, LEVELS, SKETCH_LEVELS

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
        self._shard, self._run, self._steps = shard, number_of_run(run_id), steps
        self._number = 0

    @property
    def together(self) -> RunsOfShard:
        return RunsOfShard(self._shard)

    def _look(self) -> None:
        self._take_look(self._shard.read(newest_sql([self.seen])))

    @property
    def seen(self) -> tuple[int, int]:
        """The run's number, and that of the newest frame which was seen to be stored."""
        return self._run, self._number

    def take_look(self, said: Said) -> None:
        """Take how far some runs are stored, or why that isn't known."""
        with self._lock:
            self._try_to_look(lambda: self._take_look(said.answer()))

    def _take_look(self, found: Answer) -> None:
        for place in of_run(found, self._run).tolist():
            self._number = int(found.numbers("newest")[place])
            self._stored = max(self._stored, int(found.numbers("until")[place]))

    def rows(self, stat: str, lanes: Sequence[Lane], span: Span, most: int) -> Rows | None:
        return self.together.rows([Wanted(self, stat, lanes, span, most)])[0]

    def rows_asked(self, wanted: Wanted) -> OfRun:
        """Return the query for rows."""
        numbers = tuple(lane_of_scalar(each) if isinstance(each, str) else each for each in wanted.lanes)
        budget = Budget(wanted.most, max(wanted.most, MAX_EXACT // len(numbers)), PER_POINT * wanted.most)
        return OfRun(self._run, numbers, self._pieces(*self._within(wanted.span), budget, LEVELS))

    def take_rows(self, asked: OfRun, said: Said) -> Rows | None:
        """Return this run's rows from an answer about several runs."""
        return self._troubles.attempt("rows", lambda: rows_of(*said.about(asked.run), asked.lanes))

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

    def sketches_asked(self, tap: int, span: Span, most: int) -> OfRun:
        """Return the query for the sketches of a tap."""
        budget = Budget(most, max(most, MAX_SKETCHES), PER_POINT * most)
        return OfRun(self._run, (tap,), self._pieces(*self._within(span), budget, SKETCH_LEVELS))

    def take_sketches(self, asked: OfRun, said: Said) -> list[SketchRows] | None:
        """Return this run's sketches from an answer about several runs."""
        return self._troubles.attempt("sketches", lambda: sketches_of(*said.about(asked.run), *asked.lanes))

    def all_sketches(self, taps: int, span: Span) -> list[SketchRows] | None:
        first, last = self._within(span)
        each = max(1, MAX_SKETCHES_OF_ALL // max(1, taps))
        pieces = self._pieces(first, last, Budget(min(each, MIN_SUMS), each, each), SKETCH_LEVELS)
        found = self._read("all_sketches", sketches_sql([OfRun(self._run, (), pieces)]))
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
        return max(first or 0, steps.first or 0), self._stored if last is None else last

    def _pieces(self, first: int, last: int, budget: Budget, levels: Sequence[int]) -> tuple[Piece, ...]:
        """Return what to read of a span."""
        steps = self._steps()
        spread = max(1.0, ((steps.newest or 0) - (steps.first or 0) + 1) / max(1, steps.count))
        level = budget.level(last - first + 1, levels, spread)
        return tuple(pieces_of(first, last, level, levels)) if first <= last else ()

    def _read(self, question: str, sql: str) -> Answer | None:
        return Answer({}) if not sql else self._troubles.attempt(question, lambda: self._shard.read(sql))


@dataclass(frozen=True, slots=True)
class Said:
    """The answer to a query about several runs, or the reason why there is none, for each of them."""

    found: Answer | HookcoreError

    @classmethod
    def to(cls, shard: Shard, sql: str) -> Said:
        """Ask, unless there is nothing to ask."""
        try:
            return cls(shard.read(sql) if sql else Answer({}))
        except HookcoreError as error:
            return cls(error)

    def answer(self) -> Answer:
        """Return the answer. Raises HookcoreError if there is none."""
        if isinstance(self.found, HookcoreError):
            raise self.found
        return self.found

    def about(self, run: int) -> tuple[Answer, Places]:
        """Return the answer and which of its rows are about a run."""
        found = self.answer()
        return found, of_run(found, run)


@dataclass(frozen=True, slots=True)
class RunsOfShard(Together):
    """Asks a shard about several runs at once."""

    shard: Shard

    def look(self, pasts: Sequence[Past]) -> None:
        stale = [each for each in pasts if isinstance(each, RunPast) and not each.is_fresh]
        if stale:
            said = Said.to(self.shard, newest_sql([each.seen for each in stale]))
            for each in stale:
                each.take_look(said)

    def rows(self, wanted: Sequence[Wanted]) -> list[Rows | None]:
        found: list[Rows | None] = []
        for stat, some in groupby(wanted, key=lambda each: each.stat):
            asked = [(each.past, each.past.rows_asked(each)) for each in some if isinstance(each.past, RunPast)]
            for part in _portions(asked):
                said = Said.to(self.shard, rows_sql(stat, [each for _, each in part]))
                found += [past.take_rows(each, said) for past, each in part]
        return found

    def sketches(self, wanted: Sequence[tuple[RunPast, int]], span: Span, most: int) -> list[list[SketchRows] | None]:
        """Return what `RunPast.sketches` returns of a tap of each run."""
        found: list[list[SketchRows] | None] = []
        for part in _portions([(past, past.sketches_asked(tap, span, most)) for past, tap in wanted]):
            said = Said.to(self.shard, sketches_sql([each for _, each in part]))
            found += [past.take_sketches(each, said) for past, each in part]
        return found


def _portions(asked: Sequence[tuple[RunPast, OfRun]]) -> Iterator[list[tuple[RunPast, OfRun]]]:
    """Divide what is asked about runs into questions whose answers aren't too large."""
    return portions(asked, lambda each: (1, len(each[1].lanes)), (RUNS_AT_ONCE, LANES_AT_ONCE))

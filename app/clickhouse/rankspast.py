"""The whole run of all ranks: what ClickHouse has of each rank, and what each has logged, added up on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final

import numpy as np

from hookcore.errors import HookcoreError
from hookcore.records import ACTIVATION_KINDS, STATS, Tap
from hookcore.records.vocabulary import GRAD_SCALE, THROUGHPUT, TIME
from hookcore.store import StepRange
from hookcore.store.past import Lane, Span
from hookcore.store.rows import Cells, Columns, Rows, Streaks
from hookcore.store.segments import Floats, Steps
from hookcore.store.sketches import SketchRows

from .attempts import Attempt, Marks, Progress, RankRun, by_shard, frames_of, of_runs
from .questions import Budget, TooManyError, check, in_steps, or_too_many
from .rankrows import (
    Logged,
    Sums,
    add_cells,
    in_time,
    merge_scalar,
    moved,
    nbytes_of,
    placed,
    rows_in,
    rows_of_scalar,
    rows_over,
    sketches_in,
)
from .rankshares import RankShares, sums_of
from .ranksquery import RanksQuery
from .ranksums import OfAttempt, RankSums, number_of_sum
from .runpast import (
    MAX_CAPTURED,
    MAX_CELL_ROWS,
    MIN_SUMS,
    PER_POINT,
    TROUBLED_S,
    Found,
    Recent,
    RunPast,
    RunsOfShard,
    StoredPast,
)
from .schema import CHUNK, FRAME, PART, RANK_ROLLUPS, RANK_SKETCH_ROLLUPS, SCALARS, Table, lane_of_scalar, lane_of_sum

# What all ranks of a training have logged, as one value for each step; also their throughput, as in memory.

_FIRST: Final = 8  # captured steps of each rank, which show of which taps it has values of its own
_AMONG: Final = 4096  # its first items


@dataclass(frozen=True, slots=True)
class RankRates:
    """Finds out which ranks these are, and adds up the newest value of each, since they sample in different steps."""

    taps: Callable[[], Sequence[Tap]]
    leaves_out: Callable[[Tap], bool]
    progress_of: Callable[[RankRun], Progress]
    _known: dict[Hashable, frozenset[int] | None] = field(default_factory=dict)  # by attempt and taps

    def add_up(self, name: str, attempt: Attempt, first: int, said: Logged) -> tuple[Steps, Floats]:
        """Return the values of an attempt in the steps in which ranks said these; the earliest one may be `first`."""
        holders = self._holders_of(attempt)
        at, many = np.unique(said.step, return_counts=True)
        if holders is None:
            return merge_scalar(name, said, (at, many))
        before = _before(attempt, name, first)
        total, is_whole, trains_some = np.zeros(len(at)), np.ones(len(at), bool), np.zeros(len(at), bool)
        for rank in sorted(attempt.ranks, key=lambda each: each.rank):
            if rank.rank in holders:
                mine = said.some(said.rank == rank.rank)
                earlier = before.get(rank.rank, np.empty(0))
                value, place = np.append(earlier, mine.value), np.searchsorted(mine.step, at, side="right") - 1
                place += len(earlier)
                trains = at <= self.progress_of(rank).newest if rank.is_over else np.ones(len(at), bool)
                counts = trains & (place >= 0)
                total[counts] += value[place[counts]]
                is_whole &= counts | ~trains
                trains_some |= trains
        found = is_whole & trains_some
        return at[found], total[found]

    def _holders_of(self, attempt: Attempt) -> frozenset[int] | None:
        """Return the ranks with batches of their own; None if that isn't known. Memory goes by `runs/ranks.py`."""
        taps = [tap for tap in self.taps() if tap.kind in ACTIVATION_KINDS and not self.leaves_out(tap)]
        key = number_of_sum(attempt), frozenset(taps)
        if key not in self._known:
            captured = _first_captured(attempt)
            if len(captured) < len(attempt.ranks):
                return None
            own: dict[Tap, set[int]] = {tap: set() for tap in taps}
            unowned = set()
            for tap, rank, is_unowned in _own_taps(attempt, captured):
                if tap in own:
                    own[tap].add(rank)
                    unowned |= {tap} if is_unowned else set()
            widest = max(own.values(), key=len, default=set())
            self._known[key] = frozenset(widest) if widest and not unowned else None
        return self._known[key]


def _own_taps(attempt: Attempt, captured: Mapping[int, Sequence[int]]) -> Iterator[tuple[Tap, int, bool]]:
    """Yield the taps of which each rank has values of its own in these steps, or may have: then it isn't known."""
    of_run = {each.run: (each.rank, {number: tap for tap, number in each.taps().items()}) for each in attempt.ranks}
    for shard, ranks in by_shard(attempt.ranks):
        alike: dict[tuple[int, ...], list[RankRun]] = {}
        for each in ranks:
            alike.setdefault(tuple(captured[each.run]), []).append(each)
        for steps, here in alike.items():
            chunks = ", ".join(map(str, sorted({step >> CHUNK for step in steps})))
            found = shard.read(
                f"SELECT run, lane, toUInt8(max(owner < 0)) AS unowned FROM rows WHERE {of_runs(here)} "
                f"AND chunk IN ({chunks}) AND step IN ({', '.join(map(str, steps))}) AND lane < {SCALARS} "
                f"AND role > {PART} AND (owner = rank OR owner < 0) GROUP BY run, lane"
            )
            columns = (found.numbers(name).tolist() for name in ("run", "lane", "unowned"))
            for run, lane, is_unowned in zip(*columns, strict=True):
                rank, named = of_run[run]
                if lane in named:
                    yield named[lane], rank, bool(is_unowned)


def _first_captured(attempt: Attempt) -> dict[int, list[int]]:
    """Return the first steps that each run has captured, if it has any."""
    captured: dict[int, list[int]] = {}
    for shard, ranks in by_shard(attempt.ranks):
        found = shard.read(
            f"SELECT run, step FROM items WHERE {of_runs(ranks)} AND kind = {FRAME} AND rows > 0 "
            f"AND number < {_AMONG} ORDER BY run, number LIMIT {_FIRST} BY run"
        )
        for run, step in zip(found.numbers("run").tolist(), found.numbers("step").tolist(), strict=True):
            captured.setdefault(run, []).append(step)
    return captured


def _before(attempt: Attempt, name: str, first: int) -> dict[int, Floats]:
    """Return the newest value of each rank before a step."""
    before: dict[int, Floats] = {}
    for shard, ranks in by_shard(attempt.ranks):
        found = shard.read(
            f"SELECT rank, argMax(mean, step) AS value FROM rows WHERE {of_runs(ranks)} "
            f"AND chunk <= {first >> CHUNK} AND lane = {lane_of_scalar(name)} AND step < {first} AND role > {PART} "
            "GROUP BY rank"
        )
        values = found.numbers("value").astype(np.float64)[:, None]
        before |= dict(zip(found.numbers("rank").tolist(), values, strict=True))
    return before


@dataclass(frozen=True, slots=True)
class RankLogged:
    """Reads it: sums over steps where they are stored, and what each rank has logged elsewhere."""

    shares: RankShares
    sums: RankSums
    rates: RankRates

    def rows(self, name: str, within: Iterable[OfAttempt], budget: Budget, most: int) -> Rows:
        """Return the rows of some steps. Raises TooManyError if more than `most` values would have to be added up."""
        lane = lane_of_scalar(name)
        parts, left = ([], [*within]) if name in THROUGHPUT else self.sums.rows("mean", [lane], within, budget, most)
        for attempt, steps in left:
            said = self.shares.without_lost(attempt.ranks, steps, _logged(attempt, name, steps, most))
            if name in THROUGHPUT:
                at, value = self.rates.add_up(name, attempt, steps[0], said)
            else:
                frames = _logged(attempt, TIME, steps, most) if name == GRAD_SCALE else said
                at, value = merge_scalar(name, said, np.unique(frames.step, return_counts=True))
            parts.append(rows_of_scalar(at + attempt.shift, value))
        return in_time(parts, 1)


def _logged(attempt: Attempt, name: str, steps: tuple[int, int], most: int) -> Logged:
    """Return the values of a scalar that the ranks of an attempt logged, by step and rank."""
    lane = lane_of_scalar(name)
    where = f"lane = {lane} AND {in_steps(*steps)} AND role > {PART}"
    asked = [(shard, f"FROM rows WHERE {of_runs(ranks)} AND {where}") for shard, ranks in by_shard(attempt.ranks)]
    check(sum(shard.read(f"SELECT count() AS found {rest}").one("found") for shard, rest in asked), most, "values")
    found = [shard.read(f"SELECT rank, step, mean {rest}") for shard, rest in asked]
    rank, step = (np.concatenate([each.numbers(name) for each in found]).astype(np.int64) for name in ("rank", "step"))
    value = np.concatenate([each.numbers("mean") for each in found]).astype(np.float64)
    return Logged.of(rank, step, value)


MAX_ADDED: Final = 2_000_000  # rows of ranks that are added up for one question
MAX_SKETCHES_ADDED: Final = 200_000
MAX_SUMS_OF_ALL: Final = 50_000  # histograms
_BASE: Final = ("count", "nan", "inf")  # of which every sum makes use
_ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "std": ("std", "mean"),
    "ratio": ("ratio", "norm"),
    "zero_fraction": ("zero",),
    "nonfinite": (),
}
_BACK: Final = (2, 16, 128, 1024)  # captured steps in which the newest values of all taps are looked for


class RanksPast(StoredPast):
    """The values of all ranks together."""

    def __init__(
        self,
        attempts: Callable[[], Sequence[Attempt]],
        taps: Callable[[], Sequence[Tap]],
        leaves_out: Callable[[Tap], bool] = lambda tap: False,
    ) -> None:
        super().__init__("old steps of all ranks")
        self.attempts = attempts
        self._known: dict[int, Progress] = {}  # by run
        self.taps, self._leaves_out = taps, leaves_out
        self.recent = Recent(nbytes_of)
        self._marks = Marks()
        self._shares = RankShares(self.progress_of, self.troubles.note)
        self._sums_over = RankSums(self.progress_of)
        rates = RankRates(taps, leaves_out, self.progress_of)
        self._logged = RankLogged(self._shares, self._sums_over, rates)

    def rows(self, stat: str, lanes: Sequence[Lane], span: Span, most: int) -> Rows | None:
        scalars = [lane for lane in lanes if isinstance(lane, str)]
        if scalars:
            (name,) = scalars
            return self._once("scalars", (name,), span, most, lambda: self._scalar(name, span, most))
        numbers = [lane for lane in lanes if not isinstance(lane, str)]
        return self._once("rows", (stat, *numbers), span, most, lambda: self._rows(stat, numbers, span, most))

    def cells(self, stat: str, taps: Sequence[int], columns: Columns, span: Span) -> Cells | None:
        found = self._once("cells", (stat, *taps), span, columns, lambda: self._cells(stat, taps, columns, span))
        # A copy, since callers add to it what memory has.
        return None if found is None else Cells(*(getattr(found, each.name).copy() for each in fields(Cells)))

    def sketches(self, tap: int, span: Span, most: int) -> list[SketchRows] | None:
        budget = Budget(most, 0, PER_POINT * most)
        return self._once("sketches", (tap,), span, most, lambda: self._sketches([tap], span, budget))

    def all_sketches(self, taps: int, span: Span) -> list[SketchRows] | None:
        each = max(1, MAX_SUMS_OF_ALL // max(1, taps))
        budget = Budget(min(each, MIN_SUMS), 0, each)
        return self._once("all_sketches", (taps,), span, None, lambda: self._sketches(range(taps), span, budget))

    def _once(
        self, question: str, lanes: tuple[Hashable, ...], span: Span, much: Hashable, find: Callable[[], Found]
    ) -> Found | None:
        """Return the answer to a query. Until new data arrives, it is asked once, even if it was too large."""
        asked, stored = (question, *lanes), self.stored_until()
        table = RANK_SKETCH_ROLLUPS if "sketches" in question else RANK_ROLLUPS

        def ask() -> Found:
            if span[1] is None or span[1] > stored:
                found = or_too_many(find)
            else:
                key = asked, span, much, self._here(span, table)
                found = self.recent.get(key, lambda: or_too_many(find), self._state)
            if not isinstance(found, TooManyError):
                return found
            if found.rest is None:
                raise TooManyError(str(found))
            self.troubles.note(("rest", *asked), str(found))
            rest: Found = found.rest
            return rest

        return self.troubles.attempt(asked, ask)

    def _here(self, span: Span, table: Table) -> Hashable:
        """Return what an answer depends on: which ranks there are, and how far each is stored."""
        here: list[Hashable] = [frozenset(tap for tap in self.taps() if self._leaves_out(tap))]
        for attempt, (_, last) in self._within(span):
            known = [(rank.run, len(rank.taps()), rank.trained, self.progress_of(rank)) for rank in attempt.ranks]
            stored = self._sums_over.marks_of(attempt, table).until(last)
            here.append(
                (attempt.shift, stored, *((*about, None if of.newest > last else of.after) for *about, of in known))
            )
        return tuple(here)

    def _state(self) -> Hashable:
        """Return what else a cached answer depends on: lost data may only be late, so it is looked for again."""
        lacks = self._shares.lost, self._marks.uneven
        return any(lacks) and (*lacks, time.monotonic() // TROUBLED_S)

    def latest(self, taps: int, span: Span) -> tuple[Steps, Floats] | None:
        return self.troubles.attempt("latest", lambda: self._latest(taps, span))

    def _rows(self, stat: str, numbers: Sequence[int], span: Span, most: int) -> Rows:
        parts, left = self._over_steps(stat, numbers, span, Budget(most, 0, PER_POINT * most))
        for each in self._asked(numbers, left):
            part = each.part_of_one()
            if part is None:
                width = (each.steps[1] - each.steps[0] + 1) // (PER_POINT * most) if each.is_large else 1
                for sums in self._sums(_needed_for(stat), each):
                    parts.append(rows_over(rows_in(sums, stat, len(numbers)), width))
            else:
                past = self._run_of(part.ranks[0])
                rows = _known(past.rows(stat, part.numbers, each.steps, most), past)
                parts.append(placed(rows, part.places, len(numbers), each.attempt.shift))
        return in_time(parts, len(numbers))

    def _over_steps(
        self, stat: str, numbers: Sequence[int], span: Span, budget: Budget
    ) -> tuple[list[Rows], list[OfAttempt]]:
        """Return the rows of some taps over steps that are stored, and what must be added up."""
        self.stored_until()
        every = self.taps()
        places = [place for place, number in enumerate(numbers) if not self._leaves_out(every[number])]
        lanes = [lane_of_sum(every[numbers[place]]) for place in places]
        found, left = self._sums_over.rows(stat, lanes, self._within(span), budget, MAX_ADDED)
        return [placed(each, np.array(places, np.int64), len(numbers), 0) for each in found], left

    def _cells(self, stat: str, taps: Sequence[int], columns: Columns, span: Span) -> Cells:
        cells, none = Cells.make(columns.number, len(taps)), np.zeros((1, len(taps)), np.int64)
        most = max(columns.number, MAX_CELL_ROWS // len(taps))
        found, left = self._over_steps(stat, taps, span, Budget(columns.number, 0, most))
        for rows in found:
            if len(rows.first):
                cells.add(columns, rows, Streaks(none, none - 1))
        for each in self._asked(taps, left):
            part, shift = each.part_of_one(), each.attempt.shift
            if part is not None:
                over = Columns(columns.first - shift, columns.last - shift, columns.number)
                past = self._run_of(part.ranks[0])
                add_cells(cells, _known(past.cells(stat, part.numbers, over, each.steps), past), part.places)
                continue
            for sums in self._sums(_needed_for(stat), each):
                if len(sums.step):
                    cells.add(columns, rows_in(sums, stat, len(taps)), Streaks(none, none - 1))
        return cells

    def _sketches(self, numbers: Sequence[int], span: Span, budget: Budget) -> list[SketchRows]:
        self.stored_until()
        lanes, every = np.array(numbers, np.uint32), self.taps()
        known = {lane_of_sum(every[number]): number for number in numbers if not self._leaves_out(every[number])}
        found, left = self._sums_over.sketches(known, self._within(span), budget, MAX_SKETCHES_ADDED)
        try:
            asked = self._asked(numbers, left, with_sketches=True)
        except TooManyError as error:
            if not found:
                raise
            raise TooManyError(str(error), sorted(found, key=lambda entry: entry.first)) from None
        for each in asked:
            holders = each.holders if each.is_large else None
            if holders is not None and len(numbers) == 1:
                for shard, ranks in by_shard(holders):
                    pasts = [(self._run_of(rank), each.part_of(rank).numbers[0]) for rank in ranks]
                    answers = RunsOfShard(shard).sketches(pasts, each.steps, budget.least)
                    for (past, _), entries in zip(pasts, answers, strict=True):
                        found += [moved(entry, lanes, each.attempt.shift) for entry in _known(entries, past)]
            else:
                for part in self._sums((*_BASE, "sketched"), each, with_sketches=True):
                    found += sketches_in(part, lanes)
        return sorted(found, key=lambda entry: entry.first)

    def _latest(self, taps: int, span: Span) -> tuple[Steps, Floats]:
        steps, values = np.full(taps, -1, np.int64), np.full((len(STATS), taps), np.nan)
        captured = self._captured(span)
        until, last = len(captured), span[1]
        for back in (*_BACK, len(captured)):
            missing = np.flatnonzero(steps < 0)
            if not len(missing) or not until:
                break
            until = max(0, until - back)
            first = int(captured[until]) if until else span[0]
            for each in self._asked(missing.tolist(), self._within((first, last)), exactly=True):
                for sums in self._sums(STATS, each):
                    lanes = missing[sums.lane]  # the steps ascend, so that the newest one stays
                    steps[lanes], values[:, lanes] = sums.step, sums.stats.T
            last = None if first is None else first - 1
        return steps, values

    def _scalar(self, name: str, span: Span, most: int) -> Rows:
        self.stored_until()
        return self._logged.rows(name, self._within(span), Budget(most, 0, PER_POINT * most), MAX_ADDED)

    # -- adding up ---------------------------------------------------------------------------------------------------

    def _asked(
        self,
        numbers: Sequence[int],
        within: Iterable[OfAttempt],
        with_sketches: bool = False,
        exactly: bool = False,
    ) -> list[RanksQuery]:
        """Return the query for some steps of attempts. Raises an error if it is too much to add up."""
        self.stored_until()
        every = self.taps()
        taps = [every[number] for number in numbers]
        asked = [RanksQuery.of(attempt, steps, taps, self._leaves_out) for attempt, steps in within]
        for each in asked:
            self._shares.note_without_rows(each)
        asked = [self._without_uncertain(each) for each in asked if each.rows]
        added = [each for each in asked if exactly or not each.is_easy(with_sketches)]
        check(sum(each.rows for each in added), MAX_ADDED, "values")
        if with_sketches:
            check(sum(each.sketches for each in added), MAX_SKETCHES_ADDED, "histograms")
        return asked

    def _without_uncertain(self, asked: RanksQuery) -> RanksQuery:
        """Return what is asked, to be added up row by row if sums over steps may lack something or have it twice."""
        if not asked.is_large or asked.holders is None:
            return asked
        return asked if self._marks.are_sure(asked.holders, self.progress_of) else replace(asked, held={})

    def _sums(self, columns: Sequence[str], asked: RanksQuery, with_sketches: bool = False) -> Iterator[Sums]:
        """Yield the sums of some taps over the ranks of an attempt in portions, oldest first."""
        for sums in sums_of(asked, columns, self._shares, with_sketches):
            yield replace(sums, step=sums.step + asked.attempt.shift)

    def _run_of(self, rank: RankRun) -> RunPast:
        """Return the past of a rank's own run."""
        known = self.progress_of(rank)
        return RunPast(rank.shard, rank.id, lambda: StepRange(0, known.newest, max(1, known.captured)))

    # The past of all ranks as far as it is about steps

    def _look(self) -> None:
        stored = -1
        for attempt in self.attempts():
            for shard, ranks in by_shard(attempt.ranks):
                runs = " OR ".join(f"(run = {rank.run} AND number >= {self.progress_of(rank).after})" for rank in ranks)
                found = shard.read(
                    "SELECT run, max(number) AS newest, max(step) AS until, countIf(rows > 0) AS captured, "
                    f"groupUniqArray(spool) AS spools FROM items WHERE ({runs}) AND kind = {FRAME} GROUP BY run"
                )
                columns = (found.numbers(name).tolist() for name in ("run", "newest", "until", "captured"))
                spools = found.lists("spools")
                for place, (run, number, until, captured) in enumerate(zip(*columns, strict=True)):
                    known = self._known[run]
                    known.spools |= {*spools.values[spools.starts[place] : spools.starts[place + 1]].tolist()}
                    known.after, known.newest = number + 1, max(known.newest, until)
                    known.captured += captured
            waited = [self.progress_of(rank).newest for rank in attempt.ranks if not rank.is_over]
            every = [self.progress_of(rank).newest for rank in attempt.ranks]
            here = attempt.shift + (min(waited) if waited else max(every, default=-1))
            stored = max(stored, here if attempt.end is None else min(here, attempt.end - 1))
        self.stored = stored

    def progress_of(self, rank: RankRun) -> Progress:
        """Return how far a rank's run is stored, as far as it was seen."""
        return self._known.setdefault(rank.run, Progress())

    def frames(self, span: Span) -> tuple[Steps, Steps]:
        """Return the steps for which any rank has a frame, and those for which any has tensor values."""
        every, captured = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for attempt, steps in self._within(span):
            for shard, where in frames_of(attempt, steps):
                found = shard.read(f"SELECT step, toUInt8(max(rows > 0)) AS captured FROM items {where} GROUP BY step")
                here = found.numbers("step").astype(np.int64) + attempt.shift
                every.append(here)
                captured.append(here[found.numbers("captured").astype(bool)])
        return np.unique(np.concatenate(every)), np.unique(np.concatenate(captured))

    def ends(self, span: Span) -> tuple[int, int] | None:
        return self.troubles.attempt("ends", lambda: self._ends(span))

    def _ends(self, span: Span) -> tuple[int, int] | None:
        ends: list[int] = []
        for attempt, steps in self._within(span):
            for shard, where in frames_of(attempt, steps):
                found = shard.read(f"SELECT min(step) AS first, max(step) AS last, count() AS found FROM items {where}")
                if found.one("found"):
                    ends += (found.one(name) + attempt.shift for name in ("first", "last"))
        return (min(ends), max(ends)) if ends else None

    def captured(self, span: Span) -> Steps | None:
        return self.troubles.attempt("captured", lambda: self._captured(span))

    def _captured(self, span: Span) -> Steps:
        captured = [np.empty(0, np.int64)]
        for attempt, steps in self._within(span):
            width = (steps[1] - steps[0]) // MAX_CAPTURED + 1
            for shard, where in frames_of(attempt, steps):
                found = shard.read(
                    f"SELECT max(step) AS newest FROM items {where} AND rows > 0 "
                    f"GROUP BY intDiv(step - {steps[0]}, {width})"
                )
                captured.append(found.numbers("newest").astype(np.int64) + attempt.shift)
        return np.unique(np.concatenate(captured))

    def _within(self, span: Span) -> Iterator[tuple[Attempt, tuple[int, int]]]:
        """Yield the attempts that have steps of a span, with their own steps in it."""
        first, last = span[0] or 0, self.stored if span[1] is None else span[1]
        for attempt in self.attempts():
            steps = attempt.within(first, last)
            if steps is None:
                continue
            missing = attempt.world - len(attempt.ranks)
            if missing > 0:
                told = f"{missing:,} of {attempt.world:,} ranks aren't in ClickHouse, so old steps don't include them"
                self.troubles.note(("ranks", attempt.shift), told)
            if attempt.ranks:
                yield attempt, steps


def _needed_for(stat: str) -> Sequence[str]:
    return (*_BASE, *_ALSO.get(stat, (stat,)))


def _known(found: Found | None, past: RunPast) -> Found:
    """Return what a rank's own run answers."""
    if found is None:
        raise HookcoreError(past.trouble)
    return found

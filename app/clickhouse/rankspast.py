"""The whole run of all ranks: what ClickHouse has of each rank is added up when a store asks for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.errors import HookcoreError
from hookcore.records import STATS, Tap
from hookcore.records.vocabulary import GRAD_SCALE, SAMPLES_RATE, TIME, TOKENS_RATE
from hookcore.store import StepRange
from hookcore.store.heatmap import Cells, Columns, Streaks
from hookcore.store.past import Lane, Past, Span
from hookcore.store.rows import Rows
from hookcore.store.segments import Floats, Steps
from hookcore.store.sketches import SketchRows

from .asked import Asked, Part
from .attempts import Attempt, RankRun, by_shard, frames_of, of_runs, uneven
from .names import lane_of_scalar
from .past import FRESH_S, MAX_CAPTURED, Found, RunPast, Troubles
from .questions import in_lanes, in_steps
from .rankanswers import add_cells, moved, nbytes_of, placed, rows_in, sketches_in
from .rankrows import Logged, Shares, Sums, add_up, merge_scalar
from .recent import Recent
from .tables import CHUNK, FRAME, PART

MAX_ADDED: Final = 2_000_000  # rows of ranks that are added up for one question
MAX_SKETCHES_ADDED: Final = 200_000
PORTION: Final = 250_000  # rows that are read at once
SKETCH_PORTION: Final = 20_000
_RATES: Final = (SAMPLES_RATE, TOKENS_RATE)
_BASE: Final = ("count", "nan", "inf")  # of which every sum makes use
_ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "std": ("std", "mean"),
    "ratio": ("ratio", "norm"),
    "zero_fraction": ("zero",),
    "nonfinite": (),
}
_BACK: Final = (2, 16, 128, 1024)  # captured steps in which the newest values of all taps are looked for


class TooManyError(HookcoreError):
    """More rows than are added up for one question."""


@dataclass(slots=True)
class _Progress:
    """How far a rank's run is stored."""

    after: int = 0  # the number after that of the newest frame
    newest: int = -1  # step
    captured: int = 0  # frames with rows


class RanksPast(Past):
    """The ranks of one training on their shards. Any thread can ask. What can't be read is None."""

    def __init__(
        self,
        attempts: Callable[[], Sequence[Attempt]],
        taps: Callable[[], Sequence[Tap]],
        leaves_out: Callable[[Tap], bool] = lambda tap: False,
    ) -> None:
        self._attempts, self._taps, self._leaves_out = attempts, taps, leaves_out
        self._troubles = Troubles("old steps of all ranks")
        self._recent = Recent(nbytes_of)
        self._known: dict[int, _Progress] = {}  # by run
        self._own: dict[tuple[int, Tap], bool] = {}  # whether a run has values of its own
        self._stored, self._asked_at = -1, float("-inf")
        self._lock = threading.Lock()

    @property
    def trouble(self) -> str:
        return self._troubles.text

    # -- which steps there are ---------------------------------------------------------------------------------------

    def stored_until(self) -> int:
        with self._lock:
            if time.monotonic() - self._asked_at > FRESH_S:
                self._troubles.attempt("stored_until", self._look)
                self._asked_at = time.monotonic()
            return self._stored

    def _look(self) -> None:
        stored = -1
        for attempt in self._attempts():
            for shard, ranks in by_shard(attempt.ranks):
                runs = " OR ".join(f"(run = {each.run} AND number >= {self._of(each).after})" for each in ranks)
                found = shard.read(
                    "SELECT run, max(number) AS newest, max(step) AS until, countIf(rows > 0) AS captured "
                    f"FROM items WHERE ({runs}) AND kind = {FRAME} GROUP BY run"
                )
                columns = (found.numbers(name).tolist() for name in ("run", "newest", "until", "captured"))
                for run, number, until, captured in zip(*columns, strict=True):
                    known = self._known[run]
                    known.after, known.newest = number + 1, max(known.newest, until)
                    known.captured += captured
            waited = [self._of(each).newest for each in attempt.ranks if not each.is_over]
            newest = min(waited) if waited else max((self._of(each).newest for each in attempt.ranks), default=-1)
            here = attempt.shift + newest
            stored = max(stored, here if attempt.end is None else min(here, attempt.end - 1))
        self._stored = max(self._stored, stored)

    def _of(self, rank: RankRun) -> _Progress:
        return self._known.setdefault(rank.run, _Progress())

    def frames(self, span: Span) -> tuple[Steps, Steps]:
        """Return the steps of which some rank has a frame, and those of which some has values of tensors."""
        every, captured = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for attempt, steps in self._within(span):
            for shard, where in frames_of(attempt, steps):
                found = shard.read(f"SELECT step, toUInt8(max(rows > 0)) AS captured FROM items {where} GROUP BY step")
                here = found.numbers("step").astype(np.int64) + attempt.shift
                every.append(here)
                captured.append(here[found.numbers("captured").astype(bool)])
        return np.unique(np.concatenate(every)), np.unique(np.concatenate(captured))

    def ends(self, span: Span) -> tuple[int, int] | None:
        return self._troubles.attempt("ends", lambda: self._ends(span))

    def _ends(self, span: Span) -> tuple[int, int] | None:
        ends: list[int] = []
        for attempt, steps in self._within(span):
            for shard, where in frames_of(attempt, steps):
                found = shard.read(f"SELECT min(step) AS first, max(step) AS last, count() AS found FROM items {where}")
                if found.one("found"):
                    ends += (found.one(name) + attempt.shift for name in ("first", "last"))
        return (min(ends), max(ends)) if ends else None

    def captured(self, span: Span) -> Steps | None:
        return self._troubles.attempt("captured", lambda: self._captured(span))

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
        first, last = span[0] or 0, self._stored if span[1] is None else span[1]
        for attempt in self._attempts():
            steps = attempt.within(first, last)
            if steps is not None and attempt.ranks:
                missing = attempt.world - len(attempt.ranks)
                if missing > 0:
                    told = f"{missing:,} of {attempt.world:,} ranks aren't in ClickHouse, so old steps are without them"
                    self._troubles.note("ranks", told)
                yield attempt, steps

    # -- values ------------------------------------------------------------------------------------------------------

    def rows(self, stat: str, lanes: Sequence[Lane], span: Span, most: int) -> Rows | None:
        scalars = [lane for lane in lanes if isinstance(lane, str)]
        if scalars:
            (name,) = scalars
            return self._troubles.attempt("scalars", lambda: self._scalar(name, span))
        numbers = [lane for lane in lanes if not isinstance(lane, str)]
        return self._once("rows", (stat, *numbers), span, most, lambda: self._rows(stat, numbers, span, most))

    def cells(self, stat: str, taps: Sequence[int], columns: Columns, span: Span) -> Cells | None:
        found = self._once("cells", (stat, *taps), span, columns, lambda: self._cells(stat, taps, columns, span))
        # A copy, since callers add to it what memory has.
        return None if found is None else Cells(*(getattr(found, each.name).copy() for each in fields(Cells)))

    def sketches(self, tap: int, span: Span, most: int) -> list[SketchRows] | None:
        return self._once("sketches", (tap,), span, most, lambda: self._sketches([tap], span, most))

    def all_sketches(self, taps: int, span: Span) -> list[SketchRows] | None:
        return self._once("all_sketches", (taps,), span, None, lambda: self._sketches(range(taps), span))

    def _once(
        self, question: str, lanes: tuple[Hashable, ...], span: Span, much: Hashable, find: Callable[[], Found]
    ) -> Found | None:
        """Return the answer to a question. If nothing more can come, it is asked once for a while."""
        stored = self.stored_until()
        if span[1] is None or span[1] > stored:
            return self._troubles.attempt(question, find)
        here = tuple((each.shift, len(each.ranks)) for each, _ in self._within(span))
        return self._troubles.attempt(question, lambda: self._recent.get((question, lanes, span, much, here), find))

    def latest(self, taps: int, span: Span) -> tuple[Steps, Floats] | None:
        return self._troubles.attempt("latest", lambda: self._latest(taps, span))

    def _rows(self, stat: str, numbers: Sequence[int], span: Span, most: int) -> Rows:
        parts = []
        for each in self._asked(numbers, span):
            part = each.part_of_one()
            if part is None:
                parts += [rows_in(sums, stat, len(numbers)) for sums in self._sums(_needed_for(stat), each)]
            else:
                past = self._run_of(part.ranks[0])
                rows = _known(past.rows(stat, part.numbers, each.steps, most), past)
                parts.append(placed(rows, part.places, len(numbers), each.attempt.shift))
        return Rows.stack(parts) if parts else Rows.empty(len(numbers))

    def _cells(self, stat: str, taps: Sequence[int], columns: Columns, span: Span) -> Cells:
        cells, none = Cells.make(columns.number, len(taps)), np.zeros((1, len(taps)), np.int64)
        for each in self._asked(taps, span):
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

    def _sketches(self, numbers: Sequence[int], span: Span, most: int = 1) -> list[SketchRows]:
        lanes = np.array(numbers, np.uint32)
        found: list[SketchRows] = []
        for each in self._asked(numbers, span, with_sketches=True):
            holders = each.holders if each.is_large else None
            if holders is not None and len(numbers) == 1:
                for rank in holders:
                    past, (number,) = self._run_of(rank), each.part_of(rank).numbers
                    entries = _known(past.sketches(number, each.steps, most), past)
                    found += [moved(entry, lanes, each.attempt.shift) for entry in entries]
            else:
                for part in self._sums(_BASE, each, with_sketches=True):
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
            for each in self._asked(missing.tolist(), (first, last), exactly=True):
                for sums in self._sums(STATS, each):
                    lanes = missing[sums.lane]  # the steps ascend, so that the newest one stays
                    steps[lanes], values[:, lanes] = sums.step, sums.stats.T
            last = None if first is None else first - 1
        return steps, values

    def _scalar(self, name: str, span: Span) -> Rows:
        if name in _RATES:
            raise HookcoreError(f"{name} of all ranks together is only in memory. The runs of the ranks have it")
        found = []
        for attempt, steps in self._within(span):
            said = _logged(attempt, name, steps)
            frames = _logged(attempt, TIME, steps) if name == GRAD_SCALE else said
            at, value = merge_scalar(name, said, np.unique(frames.step, return_counts=True))
            found.append((at + attempt.shift, value))
        if not found:
            return Rows.empty(1)
        step, value = (np.concatenate(columns) for columns in zip(*found, strict=True))
        present = np.ones((len(step), 1), np.uint32)
        finite = np.isfinite(value)[:, None]
        values = np.where(finite, value[:, None], np.nan)
        counts = finite.astype(np.uint32), present, (~finite).astype(np.uint32)
        return Rows(step, step, values, values, values, *counts)

    # -- adding up ---------------------------------------------------------------------------------------------------

    def _asked(
        self, numbers: Sequence[int], span: Span, with_sketches: bool = False, exactly: bool = False
    ) -> list[Asked]:
        """Return what is asked for of each attempt, oldest first, if it isn't too much to add up."""
        self.stored_until()
        every = self._taps()
        taps = [every[number] for number in numbers]
        asked = [Asked.of(attempt, steps, taps, self._leaves_out) for attempt, steps in self._within(span)]
        asked = [each for each in asked if each.rows]
        added = [each for each in asked if exactly or not each.is_easy(with_sketches)]
        _check(sum(each.rows for each in added), MAX_ADDED, "values")
        if with_sketches:
            _check(sum(each.sketches for each in added), MAX_SKETCHES_ADDED, "histograms")
        return asked

    def _run_of(self, rank: RankRun) -> RunPast:
        """Return the past of a rank's own run."""
        known = self._of(rank)
        return RunPast(rank.shard, rank.id, lambda: StepRange(0, known.newest, max(1, known.captured)))

    def _sums(self, columns: Sequence[str], asked: Asked, with_sketches: bool = False) -> Iterator[Sums]:
        """Yield the sums of some taps over the ranks of an attempt in portions, oldest first."""
        portions = -(-asked.rows // PORTION)
        if with_sketches:
            portions = max(portions, -(-asked.sketches // SKETCH_PORTION))
        needed = STATS if asked.has_unowned else columns  # rows that nobody owns count once if all is equal
        shares = self._shares(asked)
        for steps in _divided(asked.steps, portions):
            if (rows := asked.read(needed, steps)) is not None:
                block = asked.read_sketches(rows, steps) if with_sketches else None
                sums = add_up(rows, shares, block)
                yield Sums(sums.step + asked.attempt.shift, sums.lane, sums.stats, sums.block)

    def _shares(self, asked: Asked) -> Shares:
        """Return which ranks lack steps that others captured, and which of the taps they have a part in."""
        ranks = [each for each in asked.attempt.ranks if self._of(each).captured]
        skipped = {}
        for each, steps in uneven(ranks, asked.steps).items():
            missed = steps[steps <= self._of(each).newest]  # later ones, the rank never reached
            if len(missed):
                skipped[each.rank] = missed
        if not skipped:
            return Shares()
        own = {}
        for part in asked.parts:
            for each in part.ranks:
                if each.rank in skipped:
                    own[each.rank] = self._own_of(each, part, len(asked.taps))
        return Shares(skipped, own)

    def _own_of(self, rank: RankRun, part: Part, lanes: int) -> NDArray[np.bool_]:
        """Return of which lanes a rank has values of its own, as its first and its newest steps show."""
        unknown = [tap for tap in part.taps if (rank.run, tap) not in self._own]
        if unknown:
            own = set()
            for order in ("ASC", "DESC"):
                found = rank.shard.read(
                    f"SELECT step FROM items WHERE run = {rank.run} AND kind = {FRAME} AND rows > 0 "
                    f"ORDER BY number {order} LIMIT 1"
                )
                chunk = found.one("step") >> CHUNK
                found = rank.shard.read(
                    f"SELECT lane FROM rows WHERE run = {rank.run} AND chunk = {chunk} AND {in_lanes(part.numbers)} "
                    f"AND role > {PART} AND (owner = {rank.rank} OR owner < 0) GROUP BY lane"
                )
                own |= set(found.numbers("lane").tolist())
            self._own |= {(rank.run, tap): number in own for tap, number in zip(part.taps, part.numbers, strict=True)}
        owns = np.zeros(lanes, bool)
        owns[part.places] = [self._own[rank.run, tap] for tap in part.taps]
        return owns


def _check(count: int, most: int, what: str) -> None:
    if count > most:
        raise TooManyError(
            f"{count:,} {what} of ranks would have to be added up for this, and {most:,} is the limit: choose "
            f"fewer steps or tensors, or look at the run of a rank"
        )


def _needed_for(stat: str) -> Sequence[str]:
    return (*_BASE, *_ALSO.get(stat, (stat,)))


def _known(found: Found | None, past: RunPast) -> Found:
    """Return what a rank's own run answers."""
    if found is None:
        raise HookcoreError(past.trouble)
    return found


def _divided(steps: tuple[int, int], portions: int) -> Iterator[tuple[int, int]]:
    first, last = steps
    width = -(-(last - first + 1) // portions)
    for begin in range(first, last + 1, width):
        yield begin, min(begin + width - 1, last)


def _logged(attempt: Attempt, name: str, steps: tuple[int, int]) -> Logged:
    """Return what the ranks of an attempt said of a scalar, by step and rank."""
    lane = lane_of_scalar(name)
    where = f"lane = {lane} AND {in_steps(*steps)} AND role > {PART}"
    asked = [(shard, f"FROM rows WHERE {of_runs(ranks)} AND {where}") for shard, ranks in by_shard(attempt.ranks)]
    count = sum(shard.read(f"SELECT count() AS found {rest}").one("found") for shard, rest in asked)
    _check(count, MAX_ADDED, "values")
    found = [shard.read(f"SELECT rank, step, mean {rest}") for shard, rest in asked]
    rank, step = (np.concatenate([each.numbers(name) for each in found]).astype(np.int64) for name in ("rank", "step"))
    value = np.concatenate([each.numbers("mean") for each in found]).astype(np.float64)
    order = np.lexsort((rank, step))
    return Logged(rank[order], step[order], value[order])

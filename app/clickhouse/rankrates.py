"""What all ranks of a training have logged, as one value for each step; also their throughput, as in memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hookcore.records import ACTIVATION_KINDS, Tap
from hookcore.records.vocabulary import GRAD_SCALE, SAMPLES_RATE, TIME, TOKENS_RATE
from hookcore.store.rows import Rows
from hookcore.store.segments import Floats, Steps

from .attempts import Attempt, Progress, RankRun, by_shard, of_runs
from .questions import Budget, check, in_steps
from .rankrows import Logged, in_time, merge_scalar, rows_of_scalar
from .rankshares import RankShares
from .ranksums import OfAttempt, RankSums, number_of_sum
from .schema import CHUNK, FRAME, PART, SCALARS, lane_of_scalar

RATES: Final = (SAMPLES_RATE, TOKENS_RATE)
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
        for each in sorted(attempt.ranks, key=lambda each: each.rank):
            if each.rank in holders:
                mine = said.some(said.rank == each.rank)
                earlier = before.get(each.rank, np.empty(0))
                value, place = np.append(earlier, mine.value), np.searchsorted(mine.step, at, side="right") - 1
                place += len(earlier)
                trains = at <= self.progress_of(each).newest if each.is_over else np.ones(len(at), bool)
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
        parts, left = ([], [*within]) if name in RATES else self.sums.rows("mean", [lane], within, budget, most)
        for attempt, steps in left:
            said = self.shares.without_lost(attempt.ranks, steps, _logged(attempt, name, steps, most))
            if name in RATES:
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

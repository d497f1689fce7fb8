"""Adds up what ranks have stored, and finds ranks that lack a step: they captured others, or ClickHouse lacks it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, STATS, SketchBlock, Tap
from hookcore.store.segments import Steps

from .attempts import Progress, RankRun, by_shard, uneven
from .client import Shard
from .questions import in_lanes
from .rankrows import Logged, RankRows, Shares, Sums, add_up, lacking
from .ranksquery import ALL_VALUES, HISTOGRAMS, LOGGED, VALUES, Losses, Part, RanksQuery, Sent, are_whole, have_all
from .schema import CHUNK, FRAME, PART

MAX_KNOWN: Final = 256  # spans that are known to have all rows
_SKETCHED: Final = STAT_COLUMN["sketched"]
Key = TypeVar("Key")


def _joined(one: Mapping[Key, Steps], other: Mapping[Key, Steps]) -> dict[Key, Steps]:
    none = np.empty(0, np.int64)
    return {each: np.union1d(one.get(each, none), other.get(each, none)) for each in {**one, **other}}


class RankShares:
    """Finds these ranks, and remembers permanent results. Calls `note` with the reason why an answer is incomplete."""

    def __init__(self, progress_of: Callable[[RankRun], Progress], note: Callable[[Hashable, str], None]) -> None:
        self._progress_of, self._note = progress_of, note
        self._losses = Losses(progress_of)
        self._with_rows: dict[Hashable, None] = {}  # spans of ranks of which all frames have rows, oldest first
        self._own: dict[tuple[int, Tap], int | None] = {}  # None, or how far a run had no values of its own

    @property
    def lost(self) -> Hashable:
        """The known losses; none if it is empty."""
        return self._losses.found

    def of(self, asked: RanksQuery, steps: tuple[int, int], rows: RankRows, block: SketchBlock | None) -> Shares:
        """Return which ranks lack steps that others captured, and which of the taps they have a part in."""
        parts = {rank: part for part in asked.parts for rank in part.ranks}
        skipped = {}
        for each, missing in uneven([each for each in parts if self._progress_of(each).captured], steps).items():
            # Later ones, the rank never reached.
            missed = missing[missing < max(self._progress_of(each).newest + 1, each.trained)]
            if len(missed):
                skipped[each] = missed
        lost = self._lost(parts, len(asked.taps), skipped, rows, block)
        without = {
            each: np.concatenate([found[each] for found in (skipped, lost) if each in found])
            for each in {**skipped, **lost}
        }
        return Shares(
            {each.rank: found for each, found in without.items()},
            {each.rank: self._own_of(each, parts[each], len(asked.taps), each in lost) for each in without},
        )

    def _lost(
        self,
        parts: Mapping[RankRun, Part],
        lanes: int,
        skipped: Mapping[RankRun, Steps],
        rows: RankRows,
        block: SketchBlock | None,
    ) -> dict[RankRun, Steps]:
        """Return the steps for which ClickHouse lacks data that a rank has sent, as far as it matters here."""
        none = np.empty(0, np.int64)
        has = {each.rank: np.isin(np.arange(lanes), part.places) for each, part in parts.items()}
        ranks = {each.rank: each for each in parts}
        lacks = [(VALUES, lacking(rows, has))]
        if block is not None:
            has_sketch = np.diff(block.start.astype(np.int64)) > 0
            with_sketch = rows.take(np.flatnonzero(has_sketch))
            without = rows.take(np.flatnonzero(~has_sketch & (rows.stats[:, _SKETCHED] > 0)))
            own = {rank: without.step[without.rank == rank] for rank in np.unique(without.rank).tolist()}
            lacks.append((HISTOGRAMS, _joined(lacking(with_sketch, has), own)))
        lost: dict[RankRun, Steps] = {}
        for sent, of_rank in lacks:
            asked = {ranks[rank]: np.setdiff1d(at, skipped.get(ranks[rank], none)) for rank, at in of_rank.items()}
            lost = _joined(lost, self._find(sent, asked))
        return lost

    def note_without_rows(self, asked: RanksQuery) -> None:
        """Note if there are frames of which ClickHouse has no rows, because none of any rank may tell that."""
        self._without_rows(ALL_VALUES, [rank for part in asked.parts for rank in part.ranks], asked.steps)

    def note_lost_histograms(self, ranks: Sequence[RankRun], steps: tuple[int, int]) -> None:
        """Note if ClickHouse lacks some of what these ranks have sent."""
        for shard, here in by_shard(ranks):
            if not have_all(HISTOGRAMS, shard, here, steps):  # or else what is asked reads whole chunks
                self._find(HISTOGRAMS, dict.fromkeys(here, np.arange(steps[0], steps[1] + 1)))

    def _without_rows(self, sent: Sent, ranks: Sequence[RankRun], steps: tuple[int, int]) -> dict[RankRun, Steps]:
        """Return in which of these steps each rank has frames without rows."""
        some = [each for shard, here in by_shard(ranks) if not self._have_rows(shard, here, steps) for each in here]
        return self._find(sent, dict.fromkeys(some, np.arange(steps[0], steps[1] + 1))) if some else {}

    def _have_rows(self, shard: Shard, ranks: Sequence[RankRun], steps: tuple[int, int]) -> bool:
        """Return whether all frames of some steps have rows. If they have, that is asked once until there are more."""
        asked = shard.number, steps, tuple((rank.run, self._progress_of(rank).after) for rank in ranks)
        if asked in self._with_rows:
            return True
        is_whole = are_whole(shard, ranks, steps)
        if is_whole:
            self._with_rows = dict.fromkeys([*list(self._with_rows)[1 - MAX_KNOWN :], asked])
        return is_whole

    def without_lost(self, ranks: Sequence[RankRun], steps: tuple[int, int], said: Logged) -> Logged:
        """Return the logged values of the steps for which ClickHouse has the logged values of all these ranks."""
        lost = self._without_rows(LOGGED, ranks, steps).values()
        return said.some(~np.isin(said.step, np.concatenate([*lost]))) if lost else said

    def _find(self, sent: Sent, lacks: Mapping[RankRun, Steps]) -> dict[RankRun, Steps]:
        """Return which of the steps that ranks lack are lost, and note it."""
        reached = {each: steps[steps <= self._progress_of(each).newest] for each, steps in lacks.items()}
        lost = self._losses.find(sent, reached)
        for each in lost:
            why = f"steps are left out because {sent.name} that rank {each.rank} sent are missing in ClickHouse"
            self._note(("lost", sent.name, each.run), why)
        return lost

    def _own_of(self, rank: RankRun, part: Part, lanes: int, is_damaged: bool) -> NDArray[np.bool_]:
        """Return of which lanes a rank has values of its own, or may have if what it has sent is damaged."""
        of, run = self._progress_of(rank).after, rank.run
        unknown = [
            number
            for tap, number in zip(part.taps, part.numbers, strict=True)
            if is_damaged or self._own.get((run, tap), -1) not in (None, of)
        ]
        own: set[int] = set()
        seen: set[int] = set()
        chunks = (*self._ends_of(rank), None) if unknown else ()
        for chunk in chunks:  # the first ones show it of most; else, the whole run does
            rest = [number for number in unknown if number not in own]
            if rest:
                found = rank.shard.read(
                    f"SELECT lane, toUInt8(max(owner = {rank.rank} OR owner < 0)) AS own FROM rows "
                    f"WHERE run = {run} AND {'1' if chunk is None else f'chunk = {chunk}'} AND {in_lanes(rest)} "
                    f"AND role > {PART} GROUP BY lane"
                )
                lane, is_own = found.numbers("lane"), found.numbers("own").astype(bool)
                seen |= set(lane.tolist())
                own |= set(lane[is_own].tolist())
        asked = set(unknown)
        owns = np.zeros(lanes, bool)
        for tap, number, place in zip(part.taps, part.numbers, part.places.tolist(), strict=True):
            if number in asked:
                self._own[run, tap] = None if number in own else of
            owns[place] = self._own[run, tap] is None or (is_damaged and number not in seen)
        return owns

    def _ends_of(self, rank: RankRun) -> Iterator[int]:
        """Yield the chunks of the first and of the newest step that a rank has captured."""
        for order in ("ASC", "DESC"):
            found = rank.shard.read(
                f"SELECT step FROM items WHERE run = {rank.run} AND kind = {FRAME} AND rows > 0 "
                f"ORDER BY number {order} LIMIT 1"
            )
            yield found.one("step") >> CHUNK


PORTION: Final = 250_000  # rows that are read at once
SKETCH_PORTION: Final = 20_000


def sums_of(
    asked: RanksQuery, columns: Sequence[str], shares: RankShares, with_sketches: bool = False
) -> Iterator[Sums]:
    """Yield the sums of some taps over the ranks in portions, oldest first. Steps are those of the attempt."""
    portions = -(-asked.rows // PORTION)
    if with_sketches:
        portions = max(portions, -(-asked.sketches // SKETCH_PORTION))
    needed = STATS if asked.has_unowned else columns  # rows without an owner count once if all are equal
    for steps in _divided(asked.steps, portions):
        if (rows := asked.read(needed, steps)) is not None:
            block = asked.read_sketches(rows, steps) if with_sketches else None
            yield add_up(rows, shares.of(asked, steps, rows, block), block)


def _divided(steps: tuple[int, int], portions: int) -> Iterator[tuple[int, int]]:
    first, last = steps
    width = -(-(last - first + 1) // portions)
    for begin in range(first, last + 1, width):
        yield begin, min(begin + width - 1, last)

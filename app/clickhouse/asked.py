"""What is asked of the ranks of one attempt: some taps in some steps, how much that is, and the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, STATS, SketchBlock, Tap
from hookcore.records.sketch import places_of

from .attempts import Attempt, RankRun
from .client import Shard
from .native import Answer
from .questions import ranks_sql
from .rankrows import RankRows
from .tables import MERGED, PART

LARGE: Final = 250_000  # rows: of more, sums over steps are read if they say the same


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Ranks of one shard that number the taps in the same way."""

    shard: Shard
    ranks: Sequence[RankRun]
    taps: Sequence[Tap]  # those that they have
    numbers: list[int]  # of these taps, ascending
    places: NDArray[np.int64]  # of these taps among those that are asked for

    def where(self, steps: tuple[int, int]) -> str:
        return ranks_sql([each.run for each in self.ranks], self.numbers, steps)

    def ranks_of(self, found: Answer) -> NDArray[np.int64]:
        order = sorted(self.ranks, key=lambda each: each.run)
        runs = np.array([each.run for each in order], np.uint64)
        return np.array([each.rank for each in order], np.int64)[np.searchsorted(runs, found.numbers("run"))]

    def lanes_of(self, found: Answer) -> NDArray[np.int64]:
        return self.places[np.searchsorted(np.array(self.numbers, np.uint64), found.numbers("lane"))]


@dataclass(frozen=True, slots=True, eq=False)
class _Counts:
    """How many rows each rank has of each lane, and in which steps."""

    rank: NDArray[np.int64]
    lane: NDArray[np.int64]
    rows: NDArray[np.int64]
    unowned: NDArray[np.int64]
    owner: NDArray[np.int64]  # -1 if it isn't the same in all rows
    several: NDArray[np.int64]  # steps with several frames
    digest: NDArray[np.uint64]  # of the steps

    @classmethod
    def of(cls, part: Part, steps: tuple[int, int]) -> _Counts:
        found = part.shard.read(
            "SELECT run, lane, count() AS rows, countIf(owner < 0) AS unowned, min(owner) AS least, "
            f"max(owner) AS most, countIf(role = {MERGED}) AS several, groupBitXor(intHash64(step)) AS digest "
            f"FROM rows WHERE {part.where(steps)} AND role > {PART} GROUP BY run, lane"
        )
        least, most = (found.numbers(name).astype(np.int64) for name in ("least", "most"))
        rows, unowned, several = (found.numbers(name).astype(np.int64) for name in ("rows", "unowned", "several"))
        owner, digest = np.where(least == most, least, -1), found.numbers("digest")
        return cls(part.ranks_of(found), part.lanes_of(found), rows, unowned, owner, several, digest)

    @classmethod
    def join(cls, parts: Sequence[_Counts]) -> _Counts:
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def holders(self, pairs: int) -> set[int] | None:
        """Return the ranks whose rows count, if that is so in all steps of all lanes, of which each rank has the same.

        There should be so many pairs of ranks and lanes. Otherwise, or if there is any doubt, return None.
        """
        if len(self.rank) != pairs or self.unowned.any() or self.several.any() or (self.owner < 0).any():
            return None
        order = np.argsort(self.lane, kind="stable")
        same = np.diff(self.lane[order]) > 0
        for column in (self.rows, self.digest):
            same_here = column[order][1:] == column[order][:-1]
            if not (same | same_here).all():
                return None
        own = self.owner == self.rank
        held = {(lane, rank) for lane, rank in zip(self.lane[own].tolist(), self.rank[own].tolist(), strict=True)}
        if not all(pair in held for pair in zip(self.lane.tolist(), self.owner.tolist(), strict=True)):
            return None
        ranks = {rank for _, rank in held}
        return ranks if len(held) == len(ranks) * len(np.unique(self.lane)) else None


@dataclass(frozen=True, eq=False)
class Asked:
    """Taps of one attempt in some of its steps, and how much that is."""

    attempt: Attempt
    steps: tuple[int, int]
    taps: Sequence[Tap]
    parts: Sequence[Part]
    rows: int
    has_unowned: bool
    holders: Sequence[RankRun] | None  # the ranks whose rows count, if that is the same in all steps

    @property
    def is_large(self) -> bool:
        """Whether sums over steps are used if they are there."""
        return self.rows > LARGE

    def part_of_one(self) -> Part | None:
        """Return the rank to ask if only one rank's rows count, so that the sums over its steps are those of all."""
        if not self.is_large or self.holders is None or len(self.holders) != 1:
            return None
        return self.part_of(self.holders[0])

    def part_of(self, rank: RankRun) -> Part:
        """Return the taps as a rank numbers them."""
        part = next(part for part in self.parts if rank in part.ranks)
        return Part(part.shard, [rank], part.taps, part.numbers, part.places)

    def is_easy(self, with_sketches: bool) -> bool:
        """Return whether sums over steps of single ranks answer."""
        if with_sketches:
            return self.is_large and self.holders is not None and len(self.taps) == 1
        return self.part_of_one() is not None

    @classmethod
    def of(
        cls, attempt: Attempt, steps: tuple[int, int], taps: Sequence[Tap], leaves_out: Callable[[Tap], bool]
    ) -> Asked:
        wanted = [(place, tap) for place, tap in enumerate(taps) if not leaves_out(tap)]
        alike: dict[tuple[int, tuple[tuple[int, int], ...]], list[RankRun]] = {}
        for rank in attempt.ranks:
            known = rank.taps()
            places = tuple(sorted((known[tap], place) for place, tap in wanted if tap in known))
            if places:
                alike.setdefault((rank.shard.number, places), []).append(rank)
        parts = [
            Part(
                ranks[0].shard,
                ranks,
                [taps[place] for _, place in places],
                [number for number, _ in places],
                np.array([place for _, place in places], np.int64),
            )
            for (_, places), ranks in alike.items()
        ]
        counts = _Counts.join([_Counts.of(part, steps) for part in parts]) if parts else None
        if counts is None:
            return cls(attempt, steps, taps, parts, 0, False, None)
        ranks = counts.holders(sum(len(part.ranks) * len(part.numbers) for part in parts))
        holders = None if ranks is None else [each for each in attempt.ranks if each.rank in ranks]
        return cls(attempt, steps, taps, parts, int(counts.rows.sum()), bool(counts.unowned.any()), holders)

    @cached_property
    def sketches(self) -> int:
        """How many sketches there are."""
        found = [
            part.shard.read(f"SELECT count() AS found FROM sketches WHERE {part.where(self.steps)}")
            for part in self.parts
        ]
        return sum(each.one("found") for each in found)

    def read(self, columns: Sequence[str], steps: tuple[int, int]) -> RankRows | None:
        """Return the rows of some steps; None if there are none."""
        parts = []
        stats = ", ".join(f"`{column}`" for column in columns)
        for part in self.parts:
            found = part.shard.read(
                f"SELECT run, lane, step, number, owner, role, {stats} FROM rows WHERE {part.where(steps)}"
            )
            if count := len(found.numbers("step")):
                values = np.full((count, len(STATS)), np.nan)
                for column in columns:
                    values[:, STAT_COLUMN[column]] = found.numbers(column)
                step, number = (found.numbers(name).astype(np.int64) for name in ("step", "number"))
                owner, role = found.numbers("owner").astype(np.int32), found.numbers("role").astype(np.uint8)
                rank, lane = part.ranks_of(found), part.lanes_of(found)
                parts.append(RankRows(rank, lane, step, number, owner, role, values))
        rows = RankRows.join(parts) if parts else None
        return rows if rows is not None and len(rows.step) else None

    def read_sketches(self, rows: RankRows, steps: tuple[int, int]) -> SketchBlock:
        keys = _Keys(rows, len(self.taps))
        order, lengths, bins, counts = [], np.zeros(len(rows.step), np.int64), [], []
        for part in self.parts:
            found = part.shard.read(f"SELECT run, lane, number, bins, counts FROM sketches WHERE {part.where(steps)}")
            starts = found.lists("bins").starts
            place = keys.find(part.ranks_of(found), part.lanes_of(found), found.numbers("number").astype(np.int64))
            found_at, known = np.unique(place, return_index=True)  # of one that is stored twice, the first
            known = known[found_at >= 0]
            _, inside = places_of(starts, known)
            lengths[place[known]] = np.diff(starts)[known]
            order.append(np.repeat(place[known], np.diff(starts)[known]))
            bins.append(found.lists("bins").values[inside].astype(np.uint16))
            counts.append(found.lists("counts").values[inside].astype(np.uint32))
        by_row = np.argsort(np.concatenate(order), kind="stable")
        start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32)
        return SketchBlock(start, np.concatenate(bins)[by_row], np.concatenate(counts)[by_row])


class _Keys:
    """Finds rows by rank, frame, and lane, of which each row has its own."""

    def __init__(self, rows: RankRows, lanes: int) -> None:
        self._lanes, self._numbers = lanes, np.unique(rows.number)
        keys = self._of(rows.rank, rows.lane, np.searchsorted(self._numbers, rows.number))
        self._order = np.argsort(keys)
        self._keys = keys[self._order]

    def find(self, rank: NDArray[np.int64], lane: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of each row; -1 if there is none."""
        at = np.minimum(np.searchsorted(self._numbers, number), len(self._numbers) - 1)
        keys = self._of(rank, lane, at)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        is_here = (self._keys[place] == keys) & (self._numbers[at] == number)
        found: NDArray[np.int64] = np.where(is_here, self._order[place], -1)
        return found

    def _of(self, rank: NDArray[np.int64], lane: NDArray[np.int64], at: NDArray[np.intp]) -> NDArray[np.int64]:
        keys: NDArray[np.int64] = (rank * len(self._numbers) + at) * self._lanes + lane
        return keys

"""A query to the ranks of one attempt of a training, its size and rows, and frames whose rows are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hookcore.records import STAT_COLUMN, STATS, SketchBlock, Tap
from hookcore.records.sketch import places_of
from hookcore.records.vocabulary import TIME
from hookcore.store.segments import Steps

from .attempts import Attempt, Progress, RankRun, by_shard, of_runs
from .client import Shard
from .native import Answer
from .questions import begins_of, in_steps, ranks_sql
from .rankrows import RankRows
from .schema import CHUNK, FRAME, MERGED, PART, ROWS, SCALARS, SKETCHES, Table, lane_of_scalar

LARGE: Final = 250_000  # rows: of more, sums over steps are read if they say the same
LARGE_SKETCHES: Final = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Ranks of one shard that number the taps in the same way."""

    shard: Shard
    ranks: Sequence[RankRun]
    taps: Sequence[Tap]  # those that they have
    numbers: list[int]  # of these taps, ascending
    places: NDArray[np.int64]  # of these taps among those that are asked for

    def some(self, which: Sequence[int]) -> Part:
        """Return some of the taps."""
        numbers, taps = [self.numbers[at] for at in which], [self.taps[at] for at in which]
        return replace(self, taps=taps, numbers=numbers, places=self.places[which])

    def where(self, steps: tuple[int, int]) -> str:
        return ranks_sql([rank.run for rank in self.ranks], self.numbers, steps)

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
    sketched: NDArray[np.uint64]  # of the steps with a histogram

    @classmethod
    def of(cls, part: Part, steps: tuple[int, int]) -> _Counts:
        found = part.shard.read(
            "SELECT run, lane, count() AS rows, countIf(owner < 0) AS unowned, min(owner) AS least, "
            f"max(owner) AS most, countIf(role = {MERGED}) AS several, groupBitXor(intHash64(step)) AS digest, "
            "groupBitXorIf(intHash64(step), sketched > 0) AS with_sketch "
            f"FROM rows WHERE {part.where(steps)} AND role > {PART} GROUP BY run, lane"
        )
        least, most = (found.numbers(name).astype(np.int64) for name in ("least", "most"))
        rows, unowned, several = (found.numbers(name).astype(np.int64) for name in ("rows", "unowned", "several"))
        owner, digests = np.where(least == most, least, -1), map(found.numbers, ("digest", "with_sketch"))
        return cls(part.ranks_of(found), part.lanes_of(found), rows, unowned, owner, several, *digests)

    @classmethod
    def join(cls, parts: Sequence[_Counts]) -> _Counts:
        """Return the counts of all parts by lane."""
        joined = cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))
        order = np.argsort(joined.lane, kind="stable")
        return cls(*(getattr(joined, field.name)[order] for field in fields(cls)))

    def holders(self, known: NDArray[np.int64]) -> dict[int, frozenset[int]]:
        """Return the ranks whose rows count, by lane, if that is so in all steps, of which each rank has the same.

        Each rank must have histograms in the same ones, too.
        So many ranks know each lane. If there is any doubt about a lane, it is left out.
        """
        begins = begins_of(self.lane)
        if not len(begins):
            return {}
        own, ranks = self.owner == self.rank, int(self.rank.max()) + 1
        # An owner whose own rows aren't there is a rank that hasn't sent what others have the same of.
        has_owner = np.isin(self.lane * ranks + self.owner, (self.lane * ranks + self.rank)[own])
        fine = (self.unowned == 0) & (self.several == 0) & (self.owner >= 0) & (self.owner < ranks) & has_owner
        is_sure = np.logical_and.reduceat(fine, begins)
        for column in (self.rows, self.digest, self.sketched):
            is_sure &= np.minimum.reduceat(column, begins) == np.maximum.reduceat(column, begins)
        ends = np.append(begins[1:], len(self.lane))
        is_sure &= ends - begins == known[self.lane[begins]]
        return {
            int(self.lane[begin]): frozenset(self.rank[begin:end][own[begin:end]].tolist())
            for begin, end in zip(begins[is_sure].tolist(), ends[is_sure].tolist(), strict=True)
        }


@dataclass(frozen=True, eq=False)
class RanksQuery:
    """Taps of one attempt in some of its steps, and how much that is."""

    attempt: Attempt
    steps: tuple[int, int]
    taps: Sequence[Tap]
    parts: Sequence[Part]
    rows: int
    has_unowned: bool
    held: Mapping[int, frozenset[int]]  # by tap's place: the ranks whose rows count, if that is the same in all steps

    @property
    def is_large(self) -> bool:
        """Whether sums over steps are used if they are there."""
        return self.rows > LARGE

    @property
    def holders(self) -> Sequence[RankRun] | None:
        """The ranks whose rows count, if that is the same for all taps in all steps."""
        every = {place for part in self.parts for place in part.places.tolist()}
        ranks = {*self.held.values()}
        if every != self.held.keys() or len(ranks) != 1:
            return None
        (only,) = ranks
        return [rank for rank in self.attempt.ranks if rank.rank in only]

    def part_of_one(self) -> Part | None:
        """Return the rank to ask if only one rank's rows count, so that the sums over its steps are those of all."""
        if not self.is_large or self.holders is None or len(self.holders) != 1:
            return None
        return self.part_of(self.holders[0])

    def part_of(self, rank: RankRun) -> Part:
        """Return the taps as a rank numbers them."""
        return replace(next(part for part in self.parts if rank in part.ranks), ranks=[rank])

    def held_parts(self) -> Iterator[Part]:
        """Yield the taps whose holders are known, with the ranks whose rows count."""
        for part in self.parts:
            alike: dict[frozenset[int], list[int]] = {}
            for at, place in enumerate(part.places.tolist()):
                if place in self.held:
                    alike.setdefault(self.held[place], []).append(at)
            for holders, which in alike.items():
                if ranks := [rank for rank in part.ranks if rank.rank in holders]:
                    yield replace(part.some(which), ranks=ranks)

    def others(self) -> RanksQuery:
        """Return the taps whose holders aren't known."""
        parts = [part.some(np.flatnonzero(~np.isin(part.places, [*self.held])).tolist()) for part in self.parts]
        return replace(self, parts=[each for each in parts if each.numbers], held={})

    def is_easy(self, with_sketches: bool) -> bool:
        """Return whether sums over steps of single ranks answer."""
        if with_sketches:
            return self.is_large and self.holders is not None and len(self.taps) == 1
        return self.part_of_one() is not None

    @classmethod
    def of(
        cls,
        attempt: Attempt,
        steps: tuple[int, int],
        taps: Sequence[Tap],
        leaves_out: Callable[[Tap], bool] = lambda tap: False,
        rows: int | None = None,
    ) -> RanksQuery:
        """Return what is asked. If it doesn't matter whose rows count, say how many there are."""
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
        if rows is not None or not parts:
            return cls(attempt, steps, taps, parts, rows or 0, True, {})
        counts, ranks = _Counts.join([_Counts.of(part, steps) for part in parts]), np.zeros(len(taps), np.int64)
        for part in parts:
            ranks[part.places] += len(part.ranks)
        held = counts.holders(ranks)
        return cls(attempt, steps, taps, parts, int(counts.rows.sum()), bool(counts.unowned.any()), held)

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
            found_bins, found_counts = found.histograms()
            starts = found_bins.starts
            place = keys.find(part.ranks_of(found), part.lanes_of(found), found.numbers("number").astype(np.int64))
            found_at, known = np.unique(place, return_index=True)  # of one that is stored twice, the first
            known = known[found_at >= 0]
            _, inside = places_of(starts, known)
            lengths[place[known]] = np.diff(starts)[known]
            order.append(np.repeat(place[known], np.diff(starts)[known]))
            bins.append(found_bins.values[inside].astype(np.uint16))
            counts.append(found_counts[inside].astype(np.uint32))
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
        """Return the place of each row, or -1."""
        at = np.minimum(np.searchsorted(self._numbers, number), len(self._numbers) - 1)
        keys = self._of(rank, lane, at)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        is_here = (self._keys[place] == keys) & (self._numbers[at] == number)
        found: NDArray[np.int64] = np.where(is_here, self._order[place], -1)
        return found

    def _of(self, rank: NDArray[np.int64], lane: NDArray[np.int64], at: NDArray[np.intp]) -> NDArray[np.int64]:
        keys: NDArray[np.int64] = (rank * len(self._numbers) + at) * self._lanes + lane
        return keys


# Frames of ranks whose rows ClickHouse has lost, or doesn't have yet.


@dataclass(frozen=True, slots=True)
class Sent:
    """Something that frames have: in which table it is, how many rows an item says there are, and which ones."""

    name: str
    table: Table
    count: str
    where: str


VALUES: Final = Sent("values", ROWS, "rows", f"lane < {SCALARS} AND role < {MERGED}")
HISTOGRAMS: Final = Sent("histograms", SKETCHES, "sketches", f"lane < {SCALARS}")
_TIMES: Final = f"lane = {lane_of_scalar(TIME)}"  # each frame has one, in the same block as its other rows
LOGGED: Final = Sent("logged values", ROWS, "1", _TIMES)
ALL_VALUES: Final = Sent("all values", ROWS, "1", _TIMES)
_CHUNK: Final = f"intDiv(step, {1 << CHUNK})"


def are_whole(shard: Shard, ranks: Sequence[RankRun], steps: tuple[int, int]) -> bool:
    """Return whether all frames of some steps have rows."""
    runs, (first, last) = of_runs(ranks), steps
    frames = f"items WHERE {runs} AND kind = {FRAME} AND step BETWEEN {first} AND {last}"
    rows = f"rows WHERE {runs} AND {in_steps(first, last)} AND {_TIMES}"
    digest = "count() AS found, sum(intHash64(bitXor(run, number))) AS digest"
    said, here = (shard.read(f"SELECT {digest} FROM {each}") for each in (frames, rows))
    if said.one("found") == here.one("found") and said.one("digest") == here.one("digest"):
        return True  # each once, which takes ClickHouse much less time than to find out which are there
    some = shard.read(f"SELECT count() AS found FROM (SELECT run, number FROM {rows} GROUP BY run, number)")
    return said.one("found") <= some.one("found")


def have_all(sent: Sent, shard: Shard, ranks: Sequence[RankRun], steps: tuple[int, int]) -> bool:
    """Return whether all frames of some steps have all that they should, each once."""
    runs, (first, last), of_frame = of_runs(ranks), steps, "intHash64(bitXor(run, number))"
    said = shard.read(
        f"SELECT sum({of_frame} * {sent.count}) AS digest FROM items "
        f"WHERE {runs} AND kind = {FRAME} AND {sent.count} > 0 AND step BETWEEN {first} AND {last}"
    )
    here = shard.read(
        f"SELECT sum({of_frame}) AS digest FROM {sent.table.name} "
        f"WHERE {runs} AND {in_steps(first, last)} AND {sent.where}"
    )
    return said.one("digest") == here.one("digest")


class Losses:
    """Finds them among steps where a rank lacks something that others have.

    Chunks that are whole stay so: those before the newest step of a rank for good, and others until it has more frames.
    """

    def __init__(self, progress_of: Callable[[RankRun], Progress]) -> None:
        self._progress_of = progress_of
        # By what was sent, run, and chunk: None, or the progress up to which it is whole.
        self._whole: dict[tuple[str, int, int], int | None] = {}
        self.found: frozenset[tuple[str, int, int]] = frozenset()  # those that aren't whole

    def find(self, sent: Sent, lacking: Mapping[RankRun, Steps]) -> dict[RankRun, Steps]:
        """Return in which of these steps each rank has frames without all that they should have."""
        asked = {
            each: {chunk for chunk in np.unique(steps >> CHUNK).tolist() if not self._is_whole(sent, each, chunk)}
            for each, steps in lacking.items()
        }
        lost: dict[RankRun, Steps] = {}
        for shard, ranks in by_shard([each for each in asked if asked[each]]):
            chunks = sorted(set[int]().union(*(asked[rank] for rank in ranks)))
            uneven = self._uneven(sent, shard, ranks, chunks)
            every = {run: _damaged(sent, shard, run, [*these]) for run, these in uneven.items() if these}
            for each in ranks:
                steps = every.get(each.run, np.empty(0, np.int64))
                self._note(sent, each, chunks, {*np.unique(steps >> CHUNK).tolist()})
                if len(steps := np.intersect1d(lacking[each], steps)):
                    lost[each] = steps
        return lost

    def _is_whole(self, sent: Sent, rank: RankRun, chunk: int) -> bool:
        return self._whole.get((sent.name, rank.run, chunk), -1) in (None, self._progress_of(rank).after)

    def _note(self, sent: Sent, rank: RankRun, chunks: Sequence[int], damaged: set[int]) -> None:
        keys = {chunk: (sent.name, rank.run, chunk) for chunk in chunks}
        self.found = self.found - {*keys.values()} | {keys[chunk] for chunk in damaged & keys.keys()}
        progress = self._progress_of(rank)
        self._whole |= {
            key: None if chunk < progress.newest >> CHUNK else progress.after
            for chunk, key in keys.items()
            if chunk not in damaged
        }

    @staticmethod
    def _uneven(sent: Sent, shard: Shard, ranks: Sequence[RankRun], chunks: Sequence[int]) -> dict[int, set[int]]:
        """Return the chunks of each run in which frames don't have as much as they should."""
        runs, these = of_runs(ranks), ", ".join(map(str, chunks))
        # Sums of hashes, because a block that is there twice could make up for one that is lost.
        said = shard.read(
            f"SELECT run, {_CHUNK} AS chunk, sum(intHash64(number) * {sent.count}) AS digest FROM items "
            f"WHERE {runs} AND kind = {FRAME} AND {sent.count} > 0 AND {_CHUNK} IN ({these}) GROUP BY run, chunk"
        )
        here = shard.read(
            f"SELECT run, chunk, sum(intHash64(number)) AS digest FROM {sent.table.name} "
            f"WHERE {runs} AND chunk IN ({these}) AND {sent.where} GROUP BY run, chunk"
        )
        columns = ([found.numbers(name).tolist() for name in ("run", "chunk", "digest")] for found in (said, here))
        one, other = ({(run, chunk): digest for run, chunk, digest in zip(*column, strict=True)} for column in columns)
        found: dict[int, set[int]] = {}
        for run, chunk in one:
            if one[run, chunk] != other.get((run, chunk)):
                found.setdefault(run, set()).add(chunk)
        return found


def _damaged(sent: Sent, shard: Shard, run: int, chunks: Sequence[int]) -> Steps:
    """Return the steps of frames that don't have as much as they should."""
    these = ", ".join(map(str, chunks))
    said = shard.read(
        f"SELECT number, step, {sent.count} AS count FROM items "
        f"WHERE run = {run} AND kind = {FRAME} AND {sent.count} > 0 AND {_CHUNK} IN ({these})"
    )
    here = shard.read(
        f"SELECT number, count() AS count FROM {sent.table.name} "
        f"WHERE run = {run} AND chunk IN ({these}) AND {sent.where} GROUP BY number"
    )
    counts = dict(zip(here.numbers("number").tolist(), here.numbers("count").tolist(), strict=True))
    columns = (said.numbers(name).tolist() for name in ("number", "step", "count"))
    lost = {step for number, step, count in zip(*columns, strict=True) if counts.get(number, 0) < count}
    return np.array(sorted(lost), np.int64)

"""The attempts of a training in ClickHouse, and the marks of segments that tell whether sums have every block."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hookcore.records import Tap
from hookcore.store.segments import Steps

from .client import Shard
from .questions import in_runs
from .schema import FRAME, ITEMS, MARK, ROLLUPS, ROWS, SKETCH_ROLLUPS, SKETCHES, Table, number_of_run


@dataclass(frozen=True, slots=True)
class RankRun:
    """The run of one rank in one attempt."""

    shard: Shard
    id: str
    rank: int
    taps: Callable[[], Mapping[Tap, int]] = field(repr=False)  # with their numbers
    is_over: bool = False  # no more frames are expected
    trained: int = 0  # steps, as far as it has said so at its end
    day: int = 0  # on which it began
    is_settled: bool = False  # not even late frames are expected

    @property
    def run(self) -> int:
        return number_of_run(self.id)


@dataclass(slots=True)
class Progress:
    """How far a rank's run is stored."""

    after: int = 0  # the number after that of the newest frame
    newest: int = -1  # step
    captured: int = 0  # frames with rows
    spools: frozenset[int] = frozenset()  # that have inserted something of it


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the training: its ranks, and which steps of the run of all ranks are its own."""

    shift: int  # of its steps
    end: int | None  # the step of the run of all ranks at which the next attempt begins; None for the newest one
    world: int
    ranks: Sequence[RankRun]

    def within(self, first: int, last: int) -> tuple[int, int] | None:
        """Return which of its own steps are among steps of the run of all ranks."""
        begin = max(0, first - self.shift)
        end = (last if self.end is None else min(last, self.end - 1)) - self.shift
        return (begin, end) if begin <= end else None


def by_shard(ranks: Sequence[RankRun]) -> list[tuple[Shard, list[RankRun]]]:
    found: dict[int, list[RankRun]] = {}
    for rank in ranks:
        found.setdefault(rank.shard.number, []).append(rank)
    return [(here[0].shard, here) for here in found.values()]


def of_runs(ranks: Sequence[RankRun]) -> str:
    return in_runs([rank.run for rank in ranks])


def frames_of(attempt: Attempt, steps: tuple[int, int]) -> Iterator[tuple[Shard, str]]:
    """Yield the condition for the frames of some steps on each shard."""
    for shard, ranks in by_shard(attempt.ranks):
        yield shard, f"WHERE {of_runs(ranks)} AND kind = {FRAME} AND step BETWEEN {steps[0]} AND {steps[1]}"


def uneven(ranks: Sequence[RankRun], steps: tuple[int, int]) -> dict[RankRun, Steps]:
    """Return which steps each rank hasn't captured, of those that some rank has."""
    shards = by_shard(ranks)
    pairs = []
    for shard, here in shards:
        # On one shard, only the steps that aren't the same in all ranks are read.
        having = f" HAVING length(runs) < {len(here)}" if len(shards) == 1 else ""
        found = shard.read(
            f"SELECT step, groupUniqArray(run) AS runs FROM items WHERE {of_runs(here)} AND kind = {FRAME} "
            f"AND rows > 0 AND step BETWEEN {steps[0]} AND {steps[1]} GROUP BY step{having}"
        )
        runs = found.lists("runs")
        pairs.append((np.repeat(found.numbers("step").astype(np.int64), np.diff(runs.starts)), runs.values))
    if not pairs:
        return {}
    step, run = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
    every = np.unique(step)
    return {rank: np.setdiff1d(every, step[run == rank.run], assume_unique=False) for rank in ranks}


# Tables with a block of the same segments, the mark among other rows, and how often it was inserted.
_PAIRS: Final = (
    ((ROWS, "chunk = 0", "count()"), (ROLLUPS, "level = 0", "sum(present)")),
    ((SKETCHES, "chunk = 0", "count()"), (SKETCH_ROLLUPS, "level = 0", "sum(steps)")),
)


class Marks:
    """Looks at those of the segments that some spools have inserted.

    What ClickHouse has twice, or has lost, can be told from rows, but not from sums that it has made of them.
    """

    def __init__(self) -> None:
        self._whole: dict[int, Hashable] = {}  # by shard: for which spools that is known, in which state
        self.uneven: frozenset[int] = frozenset()  # shards that don't have each block once

    def are_sure(self, ranks: Sequence[RankRun], progress_of: Callable[[RankRun], Progress]) -> bool:
        """Return whether sums over steps of some ranks have every block once."""
        return all(
            self.are_whole(
                shard,
                frozenset[int]().union(*(progress_of(each).spools for each in here)),
                tuple(progress_of(each).after for each in here),
            )
            for shard, here in by_shard(ranks)
        )

    def are_whole(self, shard: Shard, spools: Collection[int], state: Hashable) -> bool:
        """Return whether a shard has each block of these spools once. If it has, that is asked once in each state."""
        asked = frozenset(spools), state
        if self._whole.get(shard.number) == asked:
            return True
        is_whole = _are_whole(shard, spools)
        self.uneven = self.uneven - {shard.number} if is_whole else self.uneven | {shard.number}
        if is_whole:
            self._whole[shard.number] = asked
        return is_whole


def _are_whole(shard: Shard, spools: Collection[int]) -> bool:
    # The list of items has the last block of a segment. Others may still be inserted.
    done = shard.read(
        f"SELECT run, max({ITEMS.marked}) AS last FROM items WHERE {in_runs(sorted(spools))} GROUP BY run"
    )
    last = dict(zip(done.numbers("run").tolist(), done.numbers("last").tolist(), strict=True))
    return all(len({number for each in pair for number in _counts(shard, *each, last)}) == 1 for pair in _PAIRS)


def _counts(shard: Shard, table: Table, where: str, times: str, last: dict[int, int]) -> tuple[int, int]:
    """Return how many blocks a table has, and of how many segments."""
    finished = " OR ".join(f"(run = {run} AND {table.marked} <= {segment})" for run, segment in last.items())
    found = shard.read(
        f"SELECT sum(times) AS blocks, count() AS segments FROM (SELECT {times} AS times FROM {table.name} "
        f"WHERE ({finished or '0'}) AND {where} AND lane = {MARK} GROUP BY run, {table.marked})"
    )
    return found.one("blocks"), found.one("segments")

"""The attempts of a training in ClickHouse, and the conditions that find what their ranks have stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hookcore.records import Tap
from hookcore.store.segments import Steps

from .client import Shard
from .names import number_of_run
from .questions import in_runs
from .tables import FRAME


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
    for each in ranks:
        found.setdefault(each.shard.number, []).append(each)
    return [(here[0].shard, here) for here in found.values()]


def of_runs(ranks: Sequence[RankRun]) -> str:
    return in_runs([each.run for each in ranks])


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
    return {each: np.setdiff1d(every, step[run == each.run], assume_unique=False) for each in ranks}

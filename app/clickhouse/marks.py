"""Marks of segments: each block has one, so they tell whether sums over steps have every block once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Final

from .attempts import Progress, RankRun, by_shard
from .client import Shard
from .questions import in_runs
from .tables import ITEMS, MARK, ROLLUPS, ROWS, SKETCH_ROLLUPS, SKETCHES, Table

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

"""Frames of ranks whose rows or sketches ClickHouse has lost, or doesn't have yet, although it has the frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from hookcore.store.segments import Steps

from .attempts import Progress, RankRun, by_shard, of_runs
from .client import Shard
from .names import SCALARS
from .tables import CHUNK, FRAME, MERGED, ROWS, SKETCHES, Table

_OF_FRAMES: Final = {  # the rows that the column of the same name in `items` counts
    ROWS: f"lane < {SCALARS} AND role < {MERGED}",
    SKETCHES: f"lane < {SCALARS}",
}
_CHUNK: Final = f"intDiv(step, {1 << CHUNK})"


class Losses:
    """Finds them among steps where a rank lacks something that others have.

    Chunks that are whole stay so: those before the newest step of a rank for good, and others until it has more frames.
    """

    def __init__(self, progress_of: Callable[[RankRun], Progress]) -> None:
        self._progress_of = progress_of
        # By table, run, and chunk: None, or the progress up to which it is whole.
        self._whole: dict[tuple[str, int, int], int | None] = {}
        self.found: frozenset[tuple[str, int, int]] = frozenset()  # those that aren't whole

    def find(self, table: Table, lacking: Mapping[RankRun, Steps]) -> dict[RankRun, Steps]:
        """Return in which of these steps each rank has frames without all that they should have."""
        asked = {
            each: {chunk for chunk in np.unique(steps >> CHUNK).tolist() if not self._is_whole(table, each, chunk)}
            for each, steps in lacking.items()
        }
        lost: dict[RankRun, Steps] = {}
        for shard, ranks in by_shard([each for each in asked if asked[each]]):
            chunks = sorted(set[int]().union(*(asked[each] for each in ranks)))
            uneven = self._uneven(table, shard, ranks, chunks)
            every = {run: _damaged(table, shard, run, [*these]) for run, these in uneven.items() if these}
            for each in ranks:
                steps = every.get(each.run, np.empty(0, np.int64))
                self._note(table, each, chunks, {*np.unique(steps >> CHUNK).tolist()})
                if len(steps := np.intersect1d(lacking[each], steps)):
                    lost[each] = steps
        return lost

    def _is_whole(self, table: Table, rank: RankRun, chunk: int) -> bool:
        return self._whole.get((table.name, rank.run, chunk), -1) in (None, self._progress_of(rank).after)

    def _note(self, table: Table, rank: RankRun, chunks: Sequence[int], damaged: set[int]) -> None:
        keys = {chunk: (table.name, rank.run, chunk) for chunk in chunks}
        self.found = self.found - {*keys.values()} | {keys[chunk] for chunk in damaged & keys.keys()}
        progress = self._progress_of(rank)
        self._whole |= {
            key: None if chunk < progress.newest >> CHUNK else progress.after
            for chunk, key in keys.items()
            if chunk not in damaged
        }

    @staticmethod
    def _uneven(table: Table, shard: Shard, ranks: Sequence[RankRun], chunks: Sequence[int]) -> dict[int, set[int]]:
        """Return the chunks of each run in which frames don't have as much as they should."""
        runs, these = of_runs(ranks), ", ".join(map(str, chunks))
        # Sums of hashes, because a block that is there twice could make up for one that is lost.
        said = shard.read(
            f"SELECT run, {_CHUNK} AS chunk, sum(intHash64(number) * {table.name}) AS digest FROM items "
            f"WHERE {runs} AND kind = {FRAME} AND {table.name} > 0 AND {_CHUNK} IN ({these}) GROUP BY run, chunk"
        )
        here = shard.read(
            f"SELECT run, chunk, sum(intHash64(number)) AS digest FROM {table.name} "
            f"WHERE {runs} AND chunk IN ({these}) AND {_OF_FRAMES[table]} GROUP BY run, chunk"
        )
        columns = ([found.numbers(name).tolist() for name in ("run", "chunk", "digest")] for found in (said, here))
        one, other = ({(run, chunk): digest for run, chunk, digest in zip(*each, strict=True)} for each in columns)
        found: dict[int, set[int]] = {}
        for run, chunk in one:
            if one[run, chunk] != other.get((run, chunk)):
                found.setdefault(run, set()).add(chunk)
        return found


def _damaged(table: Table, shard: Shard, run: int, chunks: Sequence[int]) -> Steps:
    """Return the steps of frames that don't have as much as they should."""
    these = ", ".join(map(str, chunks))
    said = shard.read(
        f"SELECT number, step, {table.name} AS count FROM items "
        f"WHERE run = {run} AND kind = {FRAME} AND {table.name} > 0 AND {_CHUNK} IN ({these})"
    )
    here = shard.read(
        f"SELECT number, count() AS count FROM {table.name} "
        f"WHERE run = {run} AND chunk IN ({these}) AND {_OF_FRAMES[table]} GROUP BY number"
    )
    counts = dict(zip(here.numbers("number").tolist(), here.numbers("count").tolist(), strict=True))
    columns = (said.numbers(name).tolist() for name in ("number", "step", "count"))
    lost = {step for number, step, count in zip(*columns, strict=True) if counts.get(number, 0) < count}
    return np.array(sorted(lost), np.int64)

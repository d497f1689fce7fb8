"""Frames of ranks whose rows ClickHouse has lost, or doesn't have yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hookcore.records.vocabulary import TIME
from hookcore.store.segments import Steps

from .attempts import Progress, RankRun, by_shard, of_runs
from .client import Shard
from .names import SCALARS, lane_of_scalar
from .questions import in_steps
from .tables import CHUNK, FRAME, MERGED, ROWS, SKETCHES, Table


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
            chunks = sorted(set[int]().union(*(asked[each] for each in ranks)))
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
        one, other = ({(run, chunk): digest for run, chunk, digest in zip(*each, strict=True)} for each in columns)
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

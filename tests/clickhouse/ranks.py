"""Runs and ranks of runs, in memory and in ClickHouse, for tests that compare both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from hookcore.records import STATS, Frame, SketchBlock, Tap
from hookcore.records.wire import frame_item
from hookcore.store import Store
from hookcore.store.past import Past
from hookcore_app.clickhouse.attempts import Attempt, RankRun
from hookcore_app.clickhouse.client import Shard
from hookcore_app.clickhouse.native import Answer
from hookcore_app.clickhouse.rankspast import RanksPast
from hookcore_app.clickhouse.schema import number_of_run
from hookcore_app.clickhouse.writing import Piece, blocks_of
from hookcore_app.runs.assembly import Assembly
from tests.build import frame

TAPS: Final = tuple(Tap(f"layers.{number}", "output" if number else "param_grad") for number in range(4))
SMALL: Final = 2**20


class Alike:
    """A large store, and a small one with a past in ClickHouse."""

    whole: Store
    small: Store
    past: Past

    def same(self, question: str, *asked: Any, **named: Any) -> None:
        """Assert that both give the same answer."""
        one, other = (getattr(store, question)(*asked, **named) for store in (self.whole, self.small))
        assert not self.past.trouble
        for name in one.__dataclass_fields__:
            expected, found = getattr(one, name), getattr(other, name)
            if isinstance(expected, np.ndarray):
                assert np.array_equal(expected, found, equal_nan=expected.dtype.kind == "f"), (question, asked, name)
            elif not name.startswith("_"):
                assert expected == found, (question, asked, name)


def store_rank(shard: Shard, run: str, made: Sequence[Frame], taps: int, rank: int = 0) -> None:
    """Insert the frames of a run like a collector, in several segments."""
    items = [frame_item(number, each) for number, each in enumerate(made)]
    before = -1
    for segment, first in enumerate(range(0, len(items), 9000)):
        part = items[first : first + 9000]
        piece = Piece(number_of_run(run), 20_000, rank, 0, taps, before, part)
        for table, block in blocks_of(f"spool of {run}", segment, [piece]).items():
            shard.insert(table.name, block)
        before = max(item.step for item in part)


OF_RANKS: Final = (  # each tap with the owner of its rows
    (Tap("weights", "param_grad"), 0),  # rank 0 owns it, and the others have the same values
    (Tap("batch", "output"), None),  # each rank has its own values
    (Tap("unknown", "output"), -1),  # unknown
    (Tap("experts", "output"), None),  # rank 0 has none
    (Tap("stage", "output"), None),  # of a module that differs between the ranks
    (Tap("orphan", "update"), 0),  # owned by rank 0, which doesn't send it
)
WORLD: Final = 3
LENGTHS: Final = (150, 250)  # steps of two attempts


def frames_of(rank: int, steps: int, seed: int) -> list[Frame]:
    """Return the frames of a rank, which orders its taps differently, has non-finite values, and skips some steps."""
    random, common = np.random.default_rng([seed, rank]), np.random.default_rng(seed)
    order = np.roll(np.arange(len(OF_RANKS)), rank)
    made = []
    for step in range(steps):
        of_all = common.lognormal(0, 2, (len(OF_RANKS), len(STATS)))
        stats = random.lognormal(0, 2, (len(OF_RANKS), len(STATS)))
        stats[[0, 5]] = of_all[[0, 5]]
        if step % 3:
            stats[2] = of_all[2]
        stats[:, :4], stats[:, 10:12] = (64, 0, 0, 3), (1, 64)
        if step % 97 == 7 and rank == 1:
            stats[1, [1, 4, 8]] = 2, math.nan, math.nan
        stats[1, STATS.index("ratio")] = math.nan
        counts, bins = np.full(len(OF_RANKS), 64, np.uint32), random.integers(1800, 2300, len(OF_RANKS))
        wanted = [number for number in order.tolist() if not (rank == 0 and number in (3, 5))]
        if rank == 2 and seed and step % 4 == 1:
            wanted = []
        owners = [rank if (owner := OF_RANKS[number][1]) is None else owner for number in wanted]
        block = SketchBlock(np.arange(len(wanted) + 1, dtype=np.uint32), bins[wanted].astype(np.uint16), counts[wanted])
        places = [order.tolist().index(number) for number in wanted]
        others: dict[str, Any] = {"scalars": {"loss": float(random.random())}, "elapsed_s": float(random.random())}
        others |= {"owners": np.array(owners, np.int32), "time_s": 1000.0 + step + rank}
        made.append(frame(step, stats[wanted], numbers=places, sketches=block, **others))
        if step % 50 == 3 and rank == 1:
            more = frame(step, stats[[1]] * 2, numbers=[order.tolist().index(1)], scalars={"loss": 2.0})
            made.append(replace(more, owners=np.array([1], np.int32), time_s=1001.0 + step))
    return made


class Ranks(Alike):
    """The sum of all ranks over two attempts, as a server computes it, and in a small store over ClickHouse.

    In the first attempt, one shard has all ranks; in the second one, they are on two shards.
    """

    past: RanksPast

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.whole, self.small = Store(600_000_000), Store(SMALL)
        attempts = []
        assembly = Assembly(lambda merged, _: self._append(merged), 2**30, lambda: 0.0)
        assembly.part(frozenset(["stage"]))
        for turn, steps in enumerate(LENGTHS):
            assembly.begin_round()
            shift, ranks, every = assembly.newest + 1, [], []
            for rank in range(WORLD):
                taps = tuple(OF_RANKS[number][0] for number in np.roll(np.arange(len(OF_RANKS)), rank))
                made, shard = frames_of(rank, steps, turn), shards[rank % 2 if turn else 0]
                store_rank(shard, f"rank-{rank}-{turn}", made, len(taps), rank)
                assembly.join(rank, WORLD, lambda taps=taps: taps)
                numbers = {tap: number for number, tap in enumerate(taps)}
                ranks.append(RankRun(shard, f"rank-{rank}-{turn}", rank, lambda numbers=numbers: numbers, is_over=True))
                every += [(each.step, rank, each) for each in made]
            for step, rank, each in sorted(every, key=lambda each: each[:2]):
                assembly.take(rank, replace(each, step=step + shift))
            assembly.flush()
            attempts.append(Attempt(shift, shift + steps if turn == 0 else None, WORLD, ranks))
        self.partial = assembly.partial
        self.past = RanksPast(lambda: attempts, lambda: self.small.taps().taps, assembly.leaves_out)
        self.small.recall_from(self.past)

    def _append(self, merged: Frame) -> None:
        for store in (self.whole, self.small):
            store.append(merged)


def reads_of(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each query is added."""
    shard = ranks.past.attempts()[0].ranks[0].shard
    read, asked = shard.read, list[str]()

    def noted(sql: str) -> Answer:
        asked.append(sql)
        return read(sql)

    monkeypatch.setattr(shard, "read", noted)
    return asked


BATCH: Final = Tap("batch", "output")


def batches(rank: int, steps: Sequence[int], numbers: Sequence[int] = (0,), owner: int | None = None) -> list[Frame]:
    """Return frames in which a rank has 64 values for each tap: its own, or those of an owner."""
    stats = np.zeros((len(numbers), len(STATS)))
    stats[:, 0], stats[:, 10:12] = 64, (1, 64)
    many = len(numbers)
    bins, counts = np.full(many, 2000, np.uint16), np.full(many, 64, np.uint32)
    block = SketchBlock(np.arange(many + 1, dtype=np.uint32), bins, counts)
    more: dict[str, Any] = {
        "owners": np.full(many, rank if owner is None else owner, np.int32),
        "sketches": block,
        "scalars": {"loss": rank},
    }
    return [frame(step, stats, numbers=numbers, **more) for step in steps]


def without_histograms(made: Frame) -> Frame:
    """Return a frame as of a captured step in which no histograms are counted."""
    stats = made.stats.copy()
    stats[:, STATS.index("sketched")] = 0
    return replace(made, stats=stats, sketches=SketchBlock.empty(len(stats)))


def store_parts(shard: Shard, run: str, rank: int, parts: Sequence[tuple[Sequence[Frame], dict[str, int]]]) -> None:
    """Insert segments of a run, each given by its frames and by how often blocks of tables are stored, if not once."""
    number, before = 0, -1
    for segment, (made, times) in enumerate(parts):
        items = [frame_item(number + place, each) for place, each in enumerate(made)]
        piece = Piece(number_of_run(run), 20_000, rank, 0, 2, before, items)
        for table, block in blocks_of(f"spool of {run}", segment, [piece]).items():
            for _ in range(times.get(table.name, 1)):
                shard.insert(table.name, block)
        number, before = number + len(items), items[-1].step


def past_of(shard: Shard, *runs: str, taps: Sequence[Tap] = (BATCH,)) -> RanksPast:
    """Return the past of a training whose ranks have these runs, all of which seem to have ended."""
    numbers = {tap: number for number, tap in enumerate(taps)}
    ranks = [RankRun(shard, run, rank, lambda: numbers, is_over=True) for rank, run in enumerate(runs)]
    return RanksPast(lambda: [Attempt(0, None, len(runs), ranks)], lambda: taps)


def ask_again(past: Any) -> None:
    """Let a past ask ClickHouse how far it goes, although it has just asked."""
    past.asked_at = -math.inf


def counts_of(past: RanksPast, span: tuple[int, int], tap: int = 0) -> dict[int, float]:
    """Return the number of values by step."""
    rows = past.rows("count", [tap], span, 1000)
    assert rows is not None
    return dict(zip(rows.first.tolist(), rows.mean[:, 0].tolist(), strict=True))

"""The throughput of all ranks over ClickHouse is the same as that of a server that added up every step in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from hookcore.records import Frame, Tap
from hookcore.records.vocabulary import SAMPLES_RATE, TOKENS_RATE
from hookcore.store import Store
from hookcore_app.clickhouse.attempts import Attempt, RankRun
from hookcore_app.clickhouse.client import Shard
from hookcore_app.clickhouse.rankspast import RanksPast
from hookcore_app.runs.assembly import Assembly
from tests.clickhouse.ranks import batches, store_rank

pytestmark = pytest.mark.slow
TAPS: Final = (Tap("layer", "output"), Tap("weights", "param_grad"), Tap("stage", "output"))
WORLD: Final = 3
STEPS: Final = (60, 50)  # two attempts
ENDS: Final = 40  # the step at which rank 2 ends in the first attempt


def frames_of(rank: int, turn: int, owner: int | None) -> list[Frame]:
    """Return the frames of a rank that samples its throughput every third step, and its tokens once."""
    made = []
    for each in batches(rank, range(ENDS if (rank, turn) == (2, 0) else STEPS[turn]), (0, 1, 2)):
        owners = np.array([rank if owner is None else owner, 0, rank], np.int32)
        rates = {SAMPLES_RATE: 100.0 + rank + each.step / 7} if each.step % 3 == rank and each.step > 5 * rank else {}
        rates |= {TOKENS_RATE: 1e6 + rank} if each.step == 11 + rank else {}
        made.append(replace(each, owners=owners, scalars={"loss": 1.0, **rates}))
    return made


@pytest.mark.parametrize("owner", [None, -1, 0])
def test_the_throughput_of_all_ranks_is_the_same_as_the_one_in_memory(
    shards: Sequence[Shard],
    owner: int | None,
) -> None:
    """Each rank has its own batch, the owner is unknown, or all have the batch of rank 0."""
    store, attempts = Store(600_000_000), []
    assembly = Assembly(lambda merged, _: store.append(merged), 2**30, lambda: 0.0)
    assembly.part(frozenset(["stage"]))
    for turn, steps in enumerate(STEPS):
        assembly.begin_round()
        shift, ranks, every = assembly.newest + 1, [], []
        for rank in range(WORLD):
            made, run, shard = frames_of(rank, turn, owner), f"rates-{owner}-{rank}-{turn}", shards[rank % 2]
            store_rank(shard, run, made, len(TAPS), rank)
            assembly.join(rank, WORLD, lambda: TAPS)
            taps = {tap: number for number, tap in enumerate(TAPS)}
            ranks.append(RankRun(shard, run, rank, lambda taps=taps: taps, is_over=True))
            every += [(each.step, rank, each) for each in made]
        for step, rank, each in sorted(every, key=lambda each: each[:2]):
            if (step, turn) == (ENDS, 0):
                assembly.leave(2, ENDS)
            assembly.take(rank, replace(each, step=step + shift))
        assembly.flush()
        attempts.append(Attempt(shift, shift + steps if turn == 0 else None, WORLD, ranks))
    past = RanksPast(lambda: attempts, lambda: store.taps().taps, assembly.leaves_out)
    for name, sampled in ((SAMPLES_RATE, 30), (TOKENS_RATE, 2)):
        exact = store.scalar_rows(name)
        assert len(exact.first) >= (sampled if name == SAMPLES_RATE or owner is not None else 2)
        for span in ((0, sum(STEPS) - 1), (20, 55), (ENDS, 70), (63, 109)):
            found = past.rows("value", [name], span, 1000)
            assert found is not None, past.trouble
            inside = (exact.first >= span[0]) & (exact.first <= span[1])
            assert found.first.tolist() == exact.first[inside].tolist(), (name, span)
            assert found.mean[:, 0].tolist() == exact.mean[inside, 0].tolist(), (name, span)
        assert not past.trouble
    rates = store.scalar_rows(SAMPLES_RATE).mean[:, 0]
    assert (rates.max() > 250) == (owner is None), "the sum of three ranks, or one's"

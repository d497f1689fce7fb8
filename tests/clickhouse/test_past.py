"""A store with little memory, whose past is in ClickHouse, gives the same answers as one with room for everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookcore.records import STATS, Frame, SketchBlock, Tap
from hookcore.records.wire import frame_item
from hookcore.store import RowsOf, Store, rows_of_all
from hookcore.store.rows import Columns
from hookcore_app.clickhouse import rankshares, rankspast, ranksquery, runpast
from hookcore_app.clickhouse import runpast as past
from hookcore_app.clickhouse.client import Cluster, Shard, UnreachableError
from hookcore_app.clickhouse.cluster import ranks as ranks_of_cluster
from hookcore_app.clickhouse.cluster.ranks import SumOfRanks
from hookcore_app.clickhouse.native import Answer
from hookcore_app.clickhouse.questions import EXACT, Budget, pieces_of
from hookcore_app.clickhouse.rankrows import nbytes_of
from hookcore_app.clickhouse.rankspast import RanksPast
from hookcore_app.clickhouse.runpast import Recent, RunPast, rows_of
from hookcore_app.clickhouse.schema import LEVELS, number_of_run
from hookcore_app.clickhouse.writing import Piece, blocks_of
from tests.build import frame
from tests.clickhouse.ranks import (
    BATCH,
    OF_RANKS,
    SMALL,
    TAPS,
    Alike,
    Ranks,
    ask_again,
    batches,
    counts_of,
    past_of,
    reads_of,
    store_parts,
    store_rank,
)

STEPS: Final = 8000


# -- which levels ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**7), st.integers(0, 10**6), st.sampled_from([EXACT, *LEVELS]))
def test_pieces_cover_every_step_of_a_span_once_in_whole_buckets(first: int, length: int, level: int) -> None:
    pieces = list(pieces_of(first, first + length, level, LEVELS))
    assert pieces[0].first == first
    assert pieces[-1].last == first + length
    for one, two in pairwise(pieces):
        assert one.last + 1 == two.first
    for piece in pieces:
        assert piece.first % (1 << piece.level) == 0 or piece.level == EXACT
        assert (piece.last + 1) % (1 << piece.level) == 0 or piece.level == EXACT
    rows = sum((piece.last - piece.first + 1) >> piece.level for piece in pieces if piece.level != level)
    assert rows <= 2 * 3 * len(LEVELS) + 2 * 8


@pytest.mark.parametrize(("steps", "level"), [(1000, EXACT), (16_384, EXACT), (20_000, 3), (10**6, 9), (10**7, 13)])
def test_a_series_of_a_thousand_points_reads_at_most_a_few_thousand_rows(steps: int, level: int) -> None:
    found = Budget(1000, 16_384, 4000).level(steps, LEVELS)
    assert found == level
    assert found == EXACT or 1000 <= steps >> found <= 4000


def test_a_heatmap_reads_finer_buckets_the_fewer_rows_it_has() -> None:
    budgets = [Budget(500, max(4000, 2_000_000 // taps), 2_000_000 // taps) for taps in (1, 10, 100, 1000, 10_000)]
    levels = [each.level(10**6, LEVELS) for each in budgets]
    assert levels == [EXACT, 3, 7, 9, 9]


def test_parts_of_a_bucket_are_added_up_and_a_step_that_is_stored_again_is_not() -> None:
    nan, parts = (
        np.nan,
        {  # an unknown sum is 0, and so are its extremes
            "lane": [7, 5, 7, 5, 5, 5, 7],
            "level": [3, 3, 3, 3, 0, 0, 3],
            "bucket": [1, 1, 1, 1, 16, 16, 1],
            "low": [2.0, 0.0, -1.0, 0.0, 4.0, 4.0, 0.0],
            "high": [3.0, 0.0, 5.0, 0.0, 4.0, 4.0, 0.0],
            "total": [10.0, 0.0, 4.0, 0.0, 4.0, 4.0, 0.0],
            "finite": [4, 0, 2, 0, 1, 1, 0],
            "present": [4, 2, 3, 3, 1, 1, 1],
            "bad": [0, 2, 1, 3, 0, 0, 1],
        },
    )
    found = rows_of(Answer({name: np.array(column) for name, column in parts.items()}), np.arange(7), [7, 5])
    assert found.first.tolist() == [8, 16]
    assert found.last.tolist() == [15, 16]
    for name, expected in (
        ("mean", [[14 / 6, nan], [nan, 4.0]]),
        ("low", [[-1.0, nan], [nan, 4.0]]),
        ("high", [[5.0, nan], [nan, 4.0]]),
        ("finite", [[6, 0], [0, 1]]),
        ("present", [[8, 5], [0, 1]]),
        ("nonfinite", [[2, 5], [0, 0]]),
    ):
        assert np.array_equal(getattr(found, name), expected, equal_nan=True), name


# -- the same answers --------------------------------------------------------------------------------------------------


class Both(Alike):
    """A run in both stores."""

    past: RunPast

    def __init__(self, cluster: Cluster, run: str, made: list[Frame], small: int = SMALL) -> None:
        self.whole, self.small = Store(600_000_000), Store(small)
        for store in (self.whole, self.small):
            store.announce(TAPS)
        shard = cluster.shards[0]
        store_rank(shard, run, made, len(TAPS))
        for each in made:
            self.whole.append(each)
            self.small.append(each)
        self.past = RunPast(shard, run, self.small.steps)
        self.small.recall_from(self.past)


def a_run(steps: int, stride: int = 1, seed: int = 1, parts: bool = True) -> list[Frame]:
    """Return the frames of a run with non-finite values, taps that come and go, and steps in several parts."""
    random = np.random.default_rng(seed)
    everything = random.lognormal(0, 2, (steps, 4, len(STATS)))
    everything[:, :, :4] = 64, 0, 0, 3
    everything[:, :, 10:12] = 1, 64
    bins, losses = random.integers(1800, 2300, (steps, 4)).astype(np.uint16), random.random(steps)
    made = []
    for place in range(steps):
        step = place * stride
        numbers = np.arange(4) if place % 5 else np.array([0, 2])
        stats = everything[place, : len(numbers)]
        if place % 997 == 7:
            stats[1, [1, 4, 8]] = 2, math.nan, math.nan
        block = SketchBlock(
            np.arange(len(numbers) + 1, dtype=np.uint32),
            bins[place, : len(numbers)],
            np.full(len(numbers), 64, np.uint32),
        )
        scalars = {"loss": math.inf if place == 500 else float(losses[place])}
        made.append(frame(step, stats, numbers=numbers, sketches=block, scalars=scalars, time_s=1000.0 + step))
        if parts and place % 300 == 3:
            made.append(frame(step, stats[:1] * 2, numbers=numbers[:1], scalars={"loss": 2.0}, time_s=1000.5 + step))
    return made


@pytest.fixture(scope="module")
def short(cluster: Cluster) -> Both:
    """A run whose steps are merged in memory, but exact in ClickHouse."""
    return Both(cluster, "short", a_run(6000))


@pytest.fixture(scope="module")
def sparse(cluster: Cluster) -> Both:
    """A run that captured one step in a hundred."""
    return Both(cluster, "sparse", a_run(3000, stride=100, seed=3))


@pytest.fixture(scope="module")
def long_one(cluster: Cluster) -> Both:
    return Both(cluster, "long", a_run(STEPS, seed=2, parts=False))


@pytest.fixture
def long(long_one: Both, monkeypatch: pytest.MonkeyPatch) -> Both:
    """A run so long that ClickHouse isn't asked for single steps."""
    for name in ("MAX_EXACT", "MAX_SKETCHES"):
        monkeypatch.setattr(runpast, name, 1000)
    return long_one


SPANS: Final = [(None, None), (100, 5000), (None, 1200), (5990, None), (2, 2), (777, 1003)]
pytestmark = pytest.mark.slow


def test_memory_has_merged_most_of_these_runs(short: Both, sparse: Both, long_one: Both) -> None:
    for each in (short, sparse, long_one):
        assert each.small.usage().merged["stats"] > 1000
        assert each.whole.usage().merged["stats"] == 0


@pytest.mark.parametrize("span", SPANS)
def test_answers_are_the_same_to_the_bit_where_clickhouse_is_exact(short: Both, span: tuple[Any, Any]) -> None:
    first, last = span
    for points in (10_000, 100, 7):
        for stat in ("rms", "mean", "nan", "zero_fraction", "nonfinite", "ratio"):
            short.same("series", 1, stat, first, last, points)
        for name in ("loss", "hookcore/time_s"):
            short.same("scalars", name, first, last, points)
    for columns in (1000, 63, 1):
        short.same("heatmap", "output", "rms", first, last, columns)
    short.same("heatmap", short.whole.taps("layers.2", "output"), "nan", first, last, 40, 1)
    short.same("histograms", 2, first, last, 50, 20)
    short.same("quantiles", 0, [0.1, 0.5], first, last, 50)


@pytest.mark.parametrize("span", [(None, None), (30_000, 250_000), (12_345, 54_321)])
def test_answers_are_the_same_if_few_steps_were_captured(sparse: Both, span: tuple[Any, Any]) -> None:
    first, last = span
    for points in (5000, 100):
        sparse.same("series", 2, "rms", first, last, points)
        sparse.same("scalars", "loss", first, last, points)
    sparse.same("heatmap", "output", "rms", first, last, 200)
    sparse.same("histograms", 1, first, last, 50, 20)


@pytest.mark.parametrize("step", [0, 3, 5, 1234, 5800])
def test_the_newest_values_before_any_step_are_known(short: Both, step: int) -> None:
    short.same("latest", last=step)
    short.same("latest", first=max(0, step - 1), last=step, sort="rms")


@pytest.mark.clickhouse("18.16", "26")
def test_points_of_a_long_run_match_exactly_the_steps_they_name(long: Both) -> None:
    everything = long.whole.series(1, "rms", points=STEPS)
    for span in ((None, None), (1000, 7900), (1234, 6777)):
        found = long.small.series(1, "rms", *span, points=300)
        assert 250 <= len(found.first_step) <= 300
        for place, (first, last) in enumerate(zip(found.first_step.tolist(), found.last_step.tolist(), strict=True)):
            inside = (everything.first_step >= first) & (everything.first_step <= last)
            known = everything.mean[inside & ~np.isnan(everything.mean)]
            assert found.present[place] == everything.present[inside].sum()
            assert found.nonfinite[place] == everything.nonfinite[inside].sum()
            assert np.array_equal([found.min[place], found.max[place]], [known.min(), known.max()])
            assert np.isclose(found.mean[place], known.mean(), rtol=1e-12)
        asked = (everything.first_step >= (span[0] or 0)) & (everything.first_step <= (span[1] or STEPS))
        assert found.present.sum() == everything.present[asked].sum()


@pytest.mark.clickhouse("18.16", "26")
@pytest.mark.parametrize("span", [(None, None), (1000, 7900), (1234, 6777)])
def test_a_heatmap_of_a_long_run_shows_every_extreme_and_counts_every_step(
    long: Both, span: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runpast, "MAX_CELL_ROWS", 1000)
    asked = ("output", "rms", *span, 150)
    exact, found = long.whole.heatmap(*asked), long.small.heatmap(*asked)
    assert np.array_equal(exact.first_step, found.first_step)
    assert np.array_equal(exact.present.sum(axis=1), found.present.sum(axis=1))
    assert np.array_equal(exact.nonfinite.sum(axis=1), found.nonfinite.sum(axis=1))
    fine = (exact.nonfinite == 0) & (found.nonfinite == 0)
    assert (found.worst[fine] >= exact.worst[fine]).all(), "a bucket in two columns shows in both"
    assert (found.worst[fine] == exact.worst[fine]).mean() > 0.4
    assert set(found.worst[fine]) <= set(long.whole.rows(found.numbers, "rms").high.ravel())


@pytest.mark.clickhouse("18.16", "26")
def test_histograms_of_a_long_run_count_every_value(long: Both) -> None:
    exact, found = long.whole.histograms(1, columns=100, bins=40), long.small.histograms(1, columns=100, bins=40)
    assert np.array_equal(exact.edges, found.edges)
    assert np.array_equal(exact.counts.sum(axis=0), found.counts.sum(axis=0))
    assert len(found.first_step) > 60


def test_unstored_steps_come_from_memory_without_a_gap(cluster: Cluster) -> None:
    """ClickHouse lags by more steps than memory has exactly."""
    made = a_run(6000, seed=5, parts=False)
    both = Both(cluster, "lagging", made)
    both.past.stored, both.past.asked_at = 3000, math.inf
    series = both.small.series(1, "rms", points=6000)
    assert (series.first_step[1:] > series.last_step[:-1]).all()
    assert series.present.sum() == both.whole.series(1, "rms", points=6000).present.sum()
    heat, exact = (store.heatmap("output", "rms", columns=100) for store in (both.small, both.whole))
    assert np.array_equal(heat.present.sum(axis=1), exact.present.sum(axis=1))
    counts = [store.histograms(1, columns=50, bins=30).counts.sum() for store in (both.small, both.whole)]
    assert counts[0] == counts[1]


def test_rules_read_only_memory_and_the_page_says_why_old_steps_are_coarse(cluster: Cluster) -> None:
    both = Both(cluster, "away", a_run(3000, seed=6))
    memory = Store(SMALL)
    memory.announce(TAPS)
    for each in a_run(3000, seed=6):
        memory.append(each)
    with both.small.in_memory():
        found = both.small.series(1, "rms", points=3000)
    assert np.array_equal(found.first_step, memory.series(1, "rms", points=3000).first_step)
    (node,) = both.past.shard.nodes
    address, node.address = node.address, type(node.address)("127.0.0.1", 9)
    node.close()
    try:
        away = both.small.series(1, "rms", points=3000)
        assert np.array_equal(away.first_step, found.first_step)
        assert "127.0.0.1:9" in both.past.trouble
        assert both.small.heatmap("output", "rms", columns=50).present.sum() > 0
        assert both.small.latest(last=10) is not None
    finally:
        node.address = address
    ask_again(both.past)
    assert len(both.small.series(1, "rms", points=3000).first_step) > len(found.first_step)
    both.small.heatmap("output", "rms", columns=50)
    both.small.latest(last=10)
    assert not both.past.trouble


def test_unreadable_rows_stay_missing_whatever_else_is_read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(cluster, "partly", a_run(3000, seed=6))
    shard, read = both.past.shard, both.past.shard.read

    def reads_no_sketches(sql: str) -> Answer:
        if " FROM sketch" in sql:
            raise UnreachableError("the disk is broken")
        return read(sql)

    monkeypatch.setattr(shard, "read", reads_no_sketches)
    both.small.histograms(1, columns=50, bins=20)
    assert "the disk is broken" in both.past.trouble
    both.small.series(1, "rms", points=3000)
    ask_again(both.past)
    both.past.stored_until()
    assert "the disk is broken" in both.past.trouble, "the histogram on the page still lacks its old steps"
    monkeypatch.setattr(past, "TROUBLED_S", 0.0)
    assert not both.past.trouble, "the answer has not been requested again yet"
    monkeypatch.setattr(past, "TROUBLED_S", 1000.0)
    monkeypatch.setattr(shard, "read", read)
    both.small.histograms(1, columns=50, bins=20)
    assert not both.past.trouble


def test_one_query_about_several_runs_gives_the_same_answers_as_one_query_each(
    short: Both, sparse: Both, long_one: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, (shard, read, reads) = (short, sparse, long_one), (short.past.shard, short.past.shard.read, list[str]())

    def noted(sql: str) -> Answer:
        reads.append(sql)
        return read(sql)

    monkeypatch.setattr(shard, "read", noted)
    monkeypatch.setattr(past, "FRESH_S", 100.0)
    for what, lanes, span in (
        (np.array([1]), 1, (None, None)),
        (np.array([0, 3]), 2, (100, 5000)),
        ("loss", 1, (2, 5555)),
    ):
        for each in both:
            ask_again(each.past)
        reads.clear()
        together = rows_of_all([RowsOf(each.small, what, "rms", span) for each in both])
        if not isinstance(what, str):  # memory may have all values of a scalar
            assert ["max(number)" in sql for sql in reads] == [True, False]
        for each, found in zip(both, together, strict=True):
            (alone,) = rows_of_all([RowsOf(each.small, what, "rms", span)])
            (exact,) = rows_of_all([RowsOf(each.whole, what, "rms", span)])
            assert found.mean.shape[1] == lanes
            here = exact.present.any(axis=1)  # memory has rows for steps without these taps, too
            for other, some in ((alone, slice(None)), (exact, here)):
                for name in ("first", "last", "mean", "low", "high", "finite", "present", "nonfinite"):
                    one, two = getattr(found, name), getattr(other, name)[some]
                    same = one[found.present.any(axis=1)] if other is exact else one
                    assert np.array_equal(same, two, equal_nan=one.dtype.kind == "f"), (what, name)
    monkeypatch.setattr(runpast, "MAX_EXACT", 100)  # so that buckets are read
    buckets = [RowsOf(each.small, np.array([1]), "rms", (7, 250_000)) for each in both]
    for found, one in zip(rows_of_all(buckets, 100), buckets, strict=True):
        (alone,) = rows_of_all([one], 100)
        assert (found.last > found.first).any()
        assert np.array_equal(found.mean, alone.mean, equal_nan=True)
        assert np.array_equal(found.first, alone.first)
    monkeypatch.setattr(runpast, "RUNS_AT_ONCE", 2)
    reads.clear()
    assert len(rows_of_all([RowsOf(each.small, np.array([1]), "rms") for each in both])) == len(both)
    assert len([sql for sql in reads if "max(number)" not in sql]) == 2

    def is_away(sql: str) -> Answer:
        raise UnreachableError("the shard is away")

    monkeypatch.setattr(shard, "read", is_away)
    rows_of_all([RowsOf(each.small, np.array([1]), "rms") for each in both])
    assert all("the shard is away" in each.past.trouble for each in both)
    monkeypatch.setattr(shard, "read", read)
    rows_of_all([RowsOf(each.small, np.array([1]), "rms") for each in both])
    assert not any(each.past.trouble for each in both)


# -- all ranks ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def all_ranks(shards: Sequence[Shard]) -> Ranks:
    return Ranks(shards)


@pytest.fixture
def ranks(all_ranks: Ranks) -> Ranks:
    all_ranks.past.troubles = past.Troubles("a test")
    all_ranks.past.recent = Recent(nbytes_of)
    return all_ranks


def test_the_sum_of_all_ranks_is_the_same_to_the_bit_as_the_one_in_memory(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rankshares, "PORTION", 2000)
    monkeypatch.setattr(rankshares, "SKETCH_PORTION", 1000)
    asked = reads_of(ranks, monkeypatch)
    assert ranks.small.usage().merged["stats"] > 100
    assert ranks.whole.usage().merged["stats"] == 0
    assert ranks.partial > 50, "rank 2 has skipped steps"
    names = [tap for tap in ranks.whole.taps().taps if tap.module != "stage"]
    assert len(names) == 5
    for tap in names:
        for stat in ("rms", "ratio"):
            ranks.same("series", tap, stat, points=1000)
        ranks.same("histograms", tap, 100, 300, 40, 20)
    for stat in ("std", "mean", "min", "nan", "zero_fraction", "nonfinite"):
        ranks.same("series", 1, stat, 148, 153)
    ranks.same("heatmap", "output", "rms", 50, 399, 63)
    for name in ("loss", "hookcore/time_s", "hookcore/elapsed_s"):
        ranks.same("scalars", name, 10, 300, 100)
    for last in (5, 149, 200):
        ranks.same("latest", last=last)
    one, other = (store.sample(0, 100).entries for store in (ranks.whole, ranks.small))
    assert len(one) > 100
    assert sum(each.counts.sum() for each in one) == sum(each.counts.sum() for each in other)
    asked.clear()
    monkeypatch.setattr(rankshares, "PORTION", 500)
    ranks.past.rows("mean", list(range(len(names))), (0, 149), 1000)
    uneven = [sql for sql in asked if "groupUniqArray" in sql]
    assert len({*uneven}) == len(uneven) > 1, "skipped steps are queried in portions"


def test_sums_over_the_steps_of_ranks_are_read_if_they_agree(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first attempt, all ranks have captured the same steps."""
    monkeypatch.setattr(ranksquery, "LARGE", 0)
    monkeypatch.setattr(rankspast, "MAX_ADDED", 0)
    weights, batch = OF_RANKS[0][0], OF_RANKS[1][0]
    ranks.same("series", weights, "rms", 20, 149, 1000)
    ranks.same("series", weights, "ratio", 20, 149, 11)
    ranks.same("heatmap", "param_grad", "mean", 20, 149, 17)
    ranks.same("heatmap", "param_grad", "mean", 148, 150, 3)  # from before the second attempt
    with monkeypatch.context() as patch:
        patch.setattr(rankspast, "MAX_SKETCHES_ADDED", 0)
        assert ranks.past.sketches(1, (0, 49), 10) is None, "unknown for a step with several frames"
        ranks.same("histograms", batch, 54, 102, 20, 20)
        ranks.same("histograms", weights, 20, 149, 20, 20)
    assert ranks.past.rows("rms", [1], (54, 102), 1000) is None, "each rank has its own values"
    assert ranks.past.rows("rms", [0], (140, 160), 1000) is None, "in the second attempt, rank 2 skips steps"


def test_the_sum_of_all_ranks_is_partial_if_it_is_too_large_or_a_rank_is_missing(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(rankspast, "MAX_ADDED", 100)
        coarse = ranks.small.series(1, "rms", points=1000)
        assert len(coarse.first_step) < 250
        too_many = "values of ranks, and 100 is the limit"
        assert too_many in ranks.past.trouble
        assert ranks.past.rows("rms", [1], (0, 300), 1000) is None
        asked = reads_of(ranks, patch)
        assert ranks.past.rows("rms", [1], (0, 300), 1000) is None
        assert not [sql for sql in asked if " FROM rows" in sql], "it isn't counted again"
        assert ranks.past.rows("rms", [0], (0, 10), 1000) is not None
        assert too_many in ranks.past.trouble, "another tensor says nothing about this one"
    ranks.past.recent = Recent(nbytes_of)
    assert ranks.past.rows("rms", [1], (0, 300), 1000) is not None
    exact = ranks.small.series(1, "rms", points=1000)
    assert not ranks.past.trouble
    with monkeypatch.context() as patch:
        patch.setattr(ranks.past, "_rows", None)
        assert len(ranks.small.series(1, "rms", points=1000).mean) == len(exact.mean), "it isn't added up again"
    missing = [replace(each, world=4) for each in ranks.past.attempts()]
    monkeypatch.setattr(ranks.past, "attempts", lambda: missing)
    ranks.small.series(1, "rms", points=1000)
    assert "1 of 4 ranks aren't in ClickHouse" in ranks.past.trouble
    without = [replace(missing[0], ranks=[]), missing[1]]
    ranks.past.troubles = past.Troubles("a test")
    assert ranks.past.rows("rms", [0], (0, 100), 1000) is not None
    assert "4 of 4 ranks" not in ranks.past.trouble
    monkeypatch.setattr(ranks.past, "attempts", lambda: without)
    ranks.past.rows("rms", [0], (0, 100), 1000)
    assert "4 of 4 ranks aren't in ClickHouse" in ranks.past.trouble


# -- ranks that are stored differently ---------------------------------------------------------------------------------


def test_lost_rows_make_their_steps_unknown_and_duplicate_rows_count_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = cluster.shards[0]
    for rank in (0, 2):
        store_rank(shard, f"whole-{rank}", batches(rank, range(12)), 1, rank)
    lost = {"rows": 0, "rollups_in": 0}
    parts = [
        (range(3), {}),
        (range(3, 5), lost),
        (range(5, 7), {"sketches": 0}),
        (range(7, 12), {"rows": 2, "sketches": 2}),
    ]
    store_parts(shard, "lossy-1", 1, [(batches(1, steps), times) for steps, times in parts])
    found = past_of(shard, "whole-0", "lossy-1", "whole-2")
    known = {step: 192 for step in range(12) if step not in (3, 4)}
    assert counts_of(found, (0, 11)) == known, "not 128 without a rank, nor 256 with one twice"
    assert "because values that rank 1 sent are missing in ClickHouse" in found.trouble
    sketches = found.sketches(0, (0, 11), 1000)
    assert sketches is not None
    assert {each.first: each.counts.tolist() for each in sketches} == {
        step: [192] for step in known if step not in (5, 6)
    }
    assert "because histograms that rank 1 sent are missing" in found.trouble
    losses = found.rows("mean", ["loss"], (0, 11), 1000)
    assert losses is not None
    assert dict(zip(losses.first.tolist(), losses.mean[:, 0].tolist(), strict=True)) == dict.fromkeys(known, 1.0)
    assert "because logged values that rank 1 sent are missing" in found.trouble
    # A replica that lagged has them now.
    piece = Piece(
        number_of_run("lossy-1"), 20_000, 1, 0, 1, 2, [frame_item(each.step, each) for each in batches(1, (3, 4))]
    )
    for table, block in blocks_of("late", 0, [piece]).items():
        if table.name == "rows":
            shard.insert(table.name, block)
    monkeypatch.setattr(rankspast, "TROUBLED_S", 1e-9)
    assert counts_of(found, (0, 11)) == dict.fromkeys(range(12), 192)


def test_data_of_all_ranks_lost_by_clickhouse_is_reported_as_missing(cluster: Cluster) -> None:
    shard = cluster.shards[0]
    parts = [(range(3), {}), (range(3, 5), {"rows": 0}), (range(5, 7), {"sketches": 0}), (range(7, 9), {})]
    for rank in range(2):
        store_parts(shard, f"gone-{rank}", rank, [(batches(rank, steps), times) for steps, times in parts])
    known = [0, 1, 2, 5, 6, 7, 8]
    found = past_of(shard, "gone-0", "gone-1")
    assert counts_of(found, (0, 8)) == dict.fromkeys(known, 128)
    for rank in range(2):
        assert f"because all values that rank {rank} sent are missing in ClickHouse" in found.trouble
    found = past_of(shard, "gone-0", "gone-1")
    assert found.rows("mean", ["loss"], (0, 8), 1000).first.tolist() == known  # type: ignore[union-attr]
    assert "because logged values that rank 1 sent are missing" in found.trouble
    sketches = found.sketches(0, (0, 8), 1000)
    assert sketches is not None
    assert [each.first for each in sketches] == [0, 1, 2, 7, 8]
    assert "because histograms that rank 1 sent are missing" in found.trouble
    found = past_of(shard, "gone-0", "gone-1")
    assert counts_of(found, (7, 8)) == {7: 128, 8: 128}
    assert not found.trouble


@pytest.mark.rota
@pytest.mark.parametrize("table", ["rows", "rollups_in", "sketches", "sketch_rollups"])
def test_sums_over_steps_with_duplicates_or_gaps_are_not_used(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """All ranks have the same damage, so they don't differ."""
    monkeypatch.setattr(ranksquery, "LARGE", 0)
    monkeypatch.setattr(rankspast, "PER_POINT", 128)
    for name in ("MAX_EXACT", "MAX_SKETCHES"):
        monkeypatch.setattr(runpast, name, 1)
    shard, times = cluster.shards[0], (1, 2, 0)
    for many in times if table in ("rollups_in", "sketch_rollups") else times[:2]:
        runs = [f"{table}-{many}-{rank}" for rank in range(2)]
        for rank, run in enumerate(runs):
            parts = [batches(rank, steps, owner=0) for steps in (range(64), range(64, 128))]
            store_parts(shard, run, rank, [(parts[0], {table: many}), (parts[1], {})])
        found = past_of(shard, *runs)
        rows, cells = found.rows("mean", [0], (0, 127), 1), found.cells("mean", [0], Columns(0, 127, 4), (0, 127))
        sketches = found.sketches(0, (0, 127), 1)
        assert rows is not None
        assert cells is not None
        assert sketches is not None
        assert (len(rows.first) < 128) == (many == 1), "the sums are read, unless that is uncertain"
        assert rows.present.sum() == 128
        assert cells.present.sum() == 128
        assert sum(int(each.counts.sum()) for each in sketches) == 128 * 64
        assert not found.trouble


def test_a_rank_that_stores_late_is_in_answers_from_then_on(cluster: Cluster) -> None:
    shard = cluster.shards[0]
    store_rank(shard, "early-0", batches(0, range(6)), 1, 0)
    store_parts(shard, "late-1", 1, [(batches(1, range(2)), {})])
    found = past_of(shard, "early-0", "late-1")
    assert counts_of(found, (0, 5)) == {step: 128 if step < 2 else 64 for step in range(6)}, "it seems lost"
    (attempt,) = found.attempts()
    first, second = attempt.ranks
    ended = RanksPast(lambda: [replace(attempt, ranks=[first, replace(second, trained=5)])], found.taps)
    assert counts_of(ended, (0, 5)) == {0: 128, 1: 128, 5: 64}, "it has trained more steps than it captured"
    items = [frame_item(each.step, each) for each in batches(1, range(2, 6))]
    piece = Piece(number_of_run("late-1"), 20_000, 1, 0, 1, 1, items)
    for table, block in blocks_of("late again", 0, [piece]).items():
        shard.insert(table.name, block)
    ask_again(found)
    assert counts_of(found, (0, 5)) == dict.fromkeys(range(6), 128)
    (attempt,) = found.attempts()
    found.attempts = lambda: [
        replace(attempt, ranks=[*attempt.ranks, replace(attempt.ranks[0], id="nothing yet", rank=2, is_over=False)])
    ]
    assert found.stored_until() == 5
    ask_again(found)
    assert found.stored_until() == -1, "a rank that joins late is waited for"


def test_a_part_is_not_mistaken_for_the_whole_if_a_rank_captured_a_tensor_rarely(cluster: Cluster) -> None:
    shard, rarely = cluster.shards[0], {5000: (1,), 10_000: (1,)}
    for rank, skipped in ((0, None), (1, 10_000)):
        made = [
            batches(rank, [step], () if step == skipped else rarely.get(step, (0,)))[0]
            for step in (0, 5000, 10_000, 15_000, 20_000)
        ]
        store_rank(shard, f"rarely-{rank}", made, 2, rank)
    found = past_of(shard, "rarely-0", "rarely-1", taps=(BATCH, Tap("validation", "output")))
    assert counts_of(found, (10_000, 10_000), 1) == {}, "neither the first nor the newest step shows that rank 1 has it"
    assert counts_of(found, (0, 20_000), 1) == {5000: 128}


def test_each_start_of_a_training_has_its_ranks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks started again before the first start had a step."""
    info = SimpleNamespace(started_s=0.0)
    about: dict[str, Any] = {"finished": False, "loaded": False, "trained": None, "info": info}
    runs = {run: SimpleNamespace(id=run, **about) for run in ("00", "10", "11")}
    members = {
        run: SimpleNamespace(run=each, round=int(run[0]), place=SimpleNamespace(rank=int(run[1]), world=3))
        for run, each in runs.items()
    }
    joint: Any = SimpleNamespace(sum=SimpleNamespace(shifts={0: 0, 1: 0}), rounds=SimpleNamespace(members=members))
    shard: Any = SimpleNamespace(number=0)
    sums = SumOfRanks(joint, lambda run: shard, {}, None)
    found = [(each.shift, each.end, [rank.id for rank in each.ranks]) for each in sums.attempts()]
    assert found == [(0, 0, ["00"]), (0, None, ["10", "11"])]
    assert sums.attempts()[0].within(0, 100) is None
    asked: list[int] = []
    monkeypatch.setattr(ranks_of_cluster, "names_of", lambda _, run: (asked.append(run), ((BATCH,), ()))[1])
    for _ in range(3):
        assert [dict(each.taps()) for each in sums.attempts()[1].ranks] == [{BATCH: 0}] * 2
    assert len(asked) == 2, "the names of a live run aren't asked for by each question"


@pytest.mark.parametrize(
    ("state", "silent_s", "is_settled"),
    [("live", 0, False), ("ended", 0, True), ("crashed", 0, True), ("lost", 600, False), ("lost", 4000, True)],
)
def test_a_lost_rank_may_still_store_something(state: str, silent_s: float, is_settled: bool) -> None:
    about: dict[str, Any] = {"finished": state != "live", "state": state, "is_silent": lambda s: silent_s > s}
    run = SimpleNamespace(id="run", loaded=False, trained=None, info=SimpleNamespace(started_s=86_400.0), **about)
    member = SimpleNamespace(run=run, round=0, place=SimpleNamespace(rank=0, world=1))
    joint: Any = SimpleNamespace(sum=SimpleNamespace(shifts={0: 0}), rounds=SimpleNamespace(members={"run": member}))
    shard: Any = SimpleNamespace(number=0)
    (attempt,) = SumOfRanks(joint, lambda run: shard, {}, None).attempts()
    assert [(each.is_settled, each.day) for each in attempt.ranks] == [(is_settled, 1)]

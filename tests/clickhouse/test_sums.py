"""Stored sums of ranks over steps: they agree with the steps, whichever server stores them and however often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookcore.errors import HookcoreError
from hookcore.records.wire import frame_item
from hookcore.store.rows import Columns, Rows
from hookcore.store.sketches import SketchRows, sum_up
from hookcore_app.clickhouse import adder as adders
from hookcore_app.clickhouse import rankspast, ranksums
from hookcore_app.clickhouse import ranksums as sumstore
from hookcore_app.clickhouse import runpast as past_module
from hookcore_app.clickhouse.adder import Adder
from hookcore_app.clickhouse.attempts import Attempt
from hookcore_app.clickhouse.client import Cluster, Shard
from hookcore_app.clickhouse.rankrows import nbytes_of
from hookcore_app.clickhouse.rankspast import RanksPast
from hookcore_app.clickhouse.ranksums import SumMarks
from hookcore_app.clickhouse.runpast import Recent
from hookcore_app.clickhouse.schema import (
    LEAF,
    MIGRATIONS,
    OF_SUMS,
    RANK_ROLLUPS,
    RANK_SKETCH_ROLLUPS,
    SKETCH_LEVELS,
    SUM_LEVELS,
    Schema,
    Table,
    connect,
    number_of_run,
)
from hookcore_app.clickhouse.writing import Piece, blocks_of
from tests.clickhouse.ranks import (
    LENGTHS,
    Ranks,
    ask_again,
    batches,
    counts_of,
    past_of,
    reads_of,
    store_parts,
    without_histograms,
)

pytestmark = pytest.mark.slow

SCALARS = ("loss", "hookcore/time_s", "hookcore/elapsed_s")
STATS = ("rms", "min", "max", "count", "nonfinite", "ratio")


# -- which steps are stored --------------------------------------------------------------------------------------------


@given(
    st.integers(0, 3000),
    st.integers(0, 3000),
    st.sampled_from(SUM_LEVELS),
    st.sets(st.integers(0, 45)),
    st.integers(1, 1 << LEAF),
)
def test_every_step_of_a_span_is_covered_once_or_left_out(
    first: int, length: int, level: int, leaves: set[int], in_last: int
) -> None:
    last = first + length
    numbers = np.array(sorted({*leaves, 46}), np.int64)
    steps = np.full(len(numbers), 1 << LEAF)
    steps[-1] = in_last  # the last step of an attempt that has ended
    marks = SumMarks({LEAF: (numbers, steps), 8: (np.array([1, 2, 5]), np.array([256, 256, 256]))})
    covered, left = marks.cover(level, (first, last))
    spans = sorted([*((each.begin, each.end) for each in covered), *left])
    assert [begin for begin, _ in spans] == [first, *(end + 1 for _, end in spans[:-1])]
    assert spans[-1][1] == last
    assert all(each.level <= level for each in covered)
    stored = np.zeros(8192, bool)
    for leaf, count in zip(numbers.tolist(), steps.tolist(), strict=True):
        stored[leaf << LEAF : (leaf << LEAF) + count] = True
    for bucket in (1, 2, 5) if level >= 8 else ():
        stored[bucket << 8 : (bucket + 1) << 8] = True
    assert all(stored[each.begin : each.end + 1].all() for each in covered)


# -- their values ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(shards: Sequence[Shard]) -> Iterator[Ranks]:
    """All ranks of two attempts whose sums are stored."""
    made = Ranks(shards)
    with pytest.MonkeyPatch.context() as patch:
        for module in (adders, ranksums):
            patch.setattr(module, "LARGE", 0)
            patch.setattr(module, "LARGE_SKETCHES", 0)
        patch.setitem(sumstore.MOST, "rank_rollups", 600)
        patch.setitem(sumstore.MOST, "rank_sketch_rollups", 20)
        asked = reads_of(made, patch)
        assert add_all(made.past) > 10
        for table in ("sketches", "sketch_rollups"):
            assert any(f"FROM {table} " in sql for sql in asked), "sums of ranks are used if they agree"
        yield made


def add_all(past: RanksPast) -> int:
    """Store all sums of a training that has ended, and return the number of portions."""
    adder, parts = Adder(lambda: [*settled(past)], past, settled_s=0.0), 0
    while adder.advance():
        parts += 1
    return parts


def settled(past: RanksPast) -> Iterator[Attempt]:
    for attempt in past.attempts():
        yield replace(attempt, ranks=[replace(each, is_settled=True) for each in attempt.ranks])


def check(ranks: Ranks, found: Rows, exact: Rows, span: tuple[int, int]) -> None:
    """Assert that each row is the sum of the steps that it names, and that no step is missing."""
    assert (np.diff(found.first) > 0).all()
    assert (found.first[1:] > found.last[:-1]).all()
    for place, (first, last) in enumerate(zip(found.first.tolist(), found.last.tolist(), strict=True)):
        inside = (exact.first >= first) & (exact.first <= last)
        for name in ("present", "nonfinite", "finite"):
            assert getattr(found, name)[place, 0] == getattr(exact, name)[inside, 0].sum(), (name, first, last)
        values = exact.mean[inside, 0][~np.isnan(exact.mean[inside, 0])]
        if len(values):
            assert (found.low[place, 0], found.high[place, 0]) == (values.min(), values.max())
            assert found.mean[place, 0] == pytest.approx(values.mean(), rel=1e-12)
        else:
            assert np.isnan(found.mean[place, 0])
    within = (exact.first >= span[0]) & (exact.first <= span[1])
    assert found.present[:, 0].sum() == exact.present[within, 0].sum() > 0


@pytest.mark.rota
@pytest.mark.parametrize("span", [(0, sum(LENGTHS) - 1), (30, 333), (128, 149), (151, 399)])
def test_stored_sums_equal_exactly_those_of_the_steps(
    ranks: Ranks, span: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = {}
    names = [tap for tap in ranks.whole.taps().taps if tap.module != "stage"]
    numbers = [ranks.whole.find_tap(tap)[0] for tap in names]
    for stat in STATS:
        exact |= {(stat, number): ranks.whole.rows(np.array([number]), stat) for number in numbers}
    for points in (1, 5):
        for (stat, number), rows in exact.items():
            found = ranks.past.rows(stat, [number], span, points)
            assert found is not None, ranks.past.trouble
            check(ranks, found, rows, span)
        for name in SCALARS:
            found = ranks.past.rows("value", [name], span, points)
            assert found is not None, ranks.past.trouble
            check(ranks, found, ranks.whole.scalar_rows(name), span)


def test_a_large_query_is_answered_from_few_rows(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rankspast, "MAX_ADDED", 0)
    asked = reads_of(ranks, monkeypatch)
    found = ranks.past.rows("rms", [1], (0, 399), 5)
    assert found is not None, ranks.past.trouble
    assert not ranks.past.trouble
    assert len(found.first) <= 4 * 5 * len(LENGTHS)
    assert not [sql for sql in asked if " FROM rows" in sql], "no rank's rows are read"
    stage = next(number for number, tap in enumerate(ranks.whole.taps().taps) if tap.module == "stage")
    left_out = ranks.past.rows("rms", [stage], (0, 399), 5)
    assert left_out is not None
    assert not left_out.present.any(), "it differs in each rank"


@pytest.mark.parametrize("span", [(0, 399), (50, 360)])
def test_a_heatmap_of_stored_sums_shows_every_extreme_and_counts_every_step(
    ranks: Ranks, span: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rankspast, "MAX_CELL_ROWS", 100)
    columns, taps = Columns(*span, 6), [1, 2, 3]
    exact = [ranks.whole.rows(np.array([tap]), "rms", *span) for tap in taps]
    found = ranks.past.cells("rms", taps, columns, span)
    assert found is not None, ranks.past.trouble
    for place, rows in enumerate(exact):
        assert found.present[:, place].sum() == rows.present.sum()
        assert found.nonfinite[:, place].sum() == rows.nonfinite.sum()
        assert np.nanmax(found.high[:, place]) == np.nanmax(rows.high)
        assert np.nanmin(found.low[:, place]) == np.nanmin(rows.low)
        column = columns.columns_of(rows.first)
        for number in range(columns.number):
            known = rows.high[column == number, 0]
            assert np.nanmax(known) <= found.high[number, place], "a bucket in two columns shows in both"


# -- histograms --------------------------------------------------------------------------------------------------------


def check_sketches(ranks: Ranks, found: Sequence[SketchRows] | None, taps: Sequence[int], span: tuple[int, int]) -> int:
    """Assert that each sum counts exactly the values of the steps that it names. Return the total number of steps."""
    assert found is not None, ranks.past.trouble
    assert all(one.last < two.first for one, two in pairwise(found))
    assert found[0].first <= span[0]
    assert found[-1].last >= span[1]
    for each in found:
        inside = ranks.whole.parts.sketches.entries(each.first, each.last)
        exact = sum_up(inside)
        assert each.steps == max(len([one for one in inside if one.row(tap) is not None]) for tap in taps)
        assert all(each.first <= one.first <= one.last <= each.last for one in inside), "memory has single steps"
        for tap in taps:
            one, other = each.row(tap), exact.row(tap)
            assert (one is None) == (other is None), (tap, each.first, each.last)
            if one is not None and other is not None:
                assert one[0].tolist() == other[0].tolist(), (tap, each.first, each.last)
                assert one[1].tolist() == other[1].tolist(), (tap, each.first, each.last)
    return sum(each.last - each.first + 1 for each in found)


def all_taps(ranks: Ranks) -> list[int]:
    return [number for number, tap in enumerate(ranks.whole.taps().taps) if tap.module != "stage"]


@pytest.mark.clickhouse("18.16", "26")
@pytest.mark.rota
@pytest.mark.parametrize("span", [(0, sum(LENGTHS) - 1), (30, 333), (128, 149), (151, 399)])
def test_stored_histograms_have_exactly_the_counts_of_the_steps(ranks: Ranks, span: tuple[int, int]) -> None:
    for tap in all_taps(ranks):
        for columns in (1, 3):
            found = ranks.past.sketches(tap, span, columns)
            assert found is not None, ranks.past.trouble
            assert any(each.steps > 1 for each in found) or columns == 3 or span == (128, 149), "sums are read"
            here = [each for each in found if each.row(tap) is not None]
            inside = [each for each in ranks.whole.parts.sketches.entries(*span) if each.row(tap) is not None]
            check_sketches(ranks, here, [tap], (inside[0].first, inside[-1].first))
    found = ranks.past.all_sketches(len(ranks.whole.taps().taps), span)
    assert check_sketches(ranks, found, all_taps(ranks), span) == span[1] - span[0] + 1


@pytest.mark.clickhouse("18.16", "26")
def test_histograms_of_all_layers_over_many_steps_are_read_from_few_rows(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_ADDED", "MAX_SKETCHES_ADDED"):
        monkeypatch.setattr(rankspast, name, 0)
    ranks.past.recent = Recent(nbytes_of)
    asked, taps, whole = reads_of(ranks, monkeypatch), len(ranks.whole.taps().taps), (0, sum(LENGTHS) - 1)
    found = ranks.past.all_sketches(taps, whole)
    assert check_sketches(ranks, found, all_taps(ranks), whole) == sum(LENGTHS)
    assert len(found or ()) == 7
    some = ranks.past.all_sketches(taps, (70, 180))
    assert check_sketches(ranks, some, all_taps(ranks), (70, 180)) == 150, "steps 64 to 213 are in these buckets"
    assert not [sql for sql in asked if " FROM rows" in sql or " FROM sketches" in sql], "no rank's rows are read"
    exact, other = (sum_up(store.sample(*whole).entries) for store in (ranks.whole, ranks.small))
    for tap in all_taps(ranks):
        one, two = exact.row(tap), other.row(tap)
        assert one is not None
        assert two is not None
        assert [one[0].tolist(), one[1].tolist()] == [two[0].tolist(), two[1].tolist()]
    assert not ranks.past.trouble


def test_sums_that_several_servers_store_count_once(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    before, histograms = ranks.past.rows("count", [1], (0, 399), 5), ranks.past.sketches(1, (0, 399), 1)
    assert add_all(ranks.past) == 0, "nothing is missing"
    before_again = {
        table: sum(shard.read(f"SELECT count() AS found FROM {table}").one("found") for shard in homes(ranks))
        for table in ("rank_rollups", "rank_sketch_rollups")
    }
    known = SumMarks.of
    looks = {"rank_rollups": iter(range(3)), "rank_sketch_rollups": iter(range(3))}

    def look(attempt: Attempt, table: Table = RANK_ROLLUPS) -> SumMarks:
        return known(attempt, table) if next(looks[table.name], None) is None else SumMarks({}, table.levels)

    monkeypatch.setattr(SumMarks, "of", look)
    for shard in homes(ranks):
        shard.do("SYSTEM STOP MERGES")
    assert add_all(ranks.past) >= 6
    for table, less in before_again.items():
        more = sum(shard.read(f"SELECT count() AS found FROM {table}").one("found") for shard in homes(ranks))
        assert more > less, "ClickHouse doesn't merge them yet"
    for shard in homes(ranks):
        shard.do("SYSTEM START MERGES")
    again = Ranks.__new__(Ranks)
    again.past = rankspast.RanksPast(ranks.past.attempts, lambda: ranks.small.taps().taps)
    after = again.past.rows("count", [1], (0, 399), 5)
    assert before is not None
    assert after is not None
    assert np.array_equal(before.mean, after.mean, equal_nan=True)
    assert np.array_equal(before.present, after.present)
    others = again.past.sketches(1, (0, 399), 1)
    assert histograms is not None
    assert others is not None
    assert [(each.first, each.last, each.counts.tolist()) for each in histograms] == [
        (each.first, each.last, each.counts.tolist()) for each in others
    ]


def homes(ranks: Ranks) -> list[Shard]:
    return [*{shard.number: shard for shard in map(ranksums.home_of, ranks.past.attempts())}.values()]


# -- when they are stored ----------------------------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (adders, ranksums):
        monkeypatch.setattr(module, "LARGE", 0)
        monkeypatch.setattr(module, "LARGE_SKETCHES", 0)


def leaves_of(attempt: Attempt, table: Table = RANK_ROLLUPS) -> list[int]:
    return SumMarks.of(attempt, table).stored.get(LEAF, (np.empty(0, np.int64),))[0].tolist()


@pytest.mark.usefixtures("at_once")
def test_incomplete_steps_are_not_stored_and_the_others_are(cluster: object, shards: Sequence[Shard]) -> None:
    shard, runs = shards[0], ("lacking-0", "lacking-1")
    for rank, run in enumerate(runs):
        lost = {"rows": 0} if rank else {}
        parts = [(range(64), {}), (range(64, 128), lost), (range(128, 200), {})]
        store_parts(shard, run, rank, [(batches(rank, steps), times) for steps, times in parts])
    past = past_of(shard, *runs)
    (attempt,) = past.attempts()
    add_all(past)
    assert leaves_of(attempt) == [0, 2, 3]
    assert counts_of(past, (0, 40)) == dict.fromkeys(range(41), 128.0)
    found = past.rows("count", [0], (0, 199), 1)
    assert found is not None
    assert found.present.sum() == 136
    assert "because values that rank 1 sent are missing" in past.trouble


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("owner", [None, 0])
def test_steps_in_which_some_rank_counted_no_histogram_are_in_no_histogram(
    cluster: object, shards: Sequence[Shard], owner: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, runs = shards[0], [f"lean-{owner}-{rank}" for rank in range(2)]
    for rank, run in enumerate(runs):
        made = batches(rank, range(200), owner=owner)
        made = [without_histograms(each) if rank == 1 and each.step % 4 else each for each in made]
        store_parts(shard, run, rank, [(made, {})])
    past = past_of(shard, *runs)
    steps = range(0, 200, 4 if owner is None else 1)  # of copies, only the owner's count
    found = past.sketches(0, (0, 199), 1)
    assert found is not None
    assert {one.first: one.counts.sum() for one in found} == dict.fromkeys(steps, 128 if owner is None else 64)
    add_all(past)
    (attempt,) = past.attempts()
    assert leaves_of(attempt, RANK_SKETCH_ROLLUPS) == [0, 1, 2, 3]
    monkeypatch.setattr(rankspast, "MAX_SKETCHES_ADDED", 0)
    past = past_of(shard, *runs)
    found = past.sketches(0, (0, 191), 1)
    assert found is not None
    before = [step for step in steps if step < 192]
    assert sum(int(one.counts.sum()) for one in found) == len(before) * (128 if owner is None else 64)
    assert sum(one.steps for one in found) == len(before)
    assert not past.trouble


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("owner", [None, 0])
def test_lost_histograms_are_not_stored_and_neither_are_the_others_of_their_steps(
    cluster: object,
    shards: Sequence[Shard],
    owner: int | None,
) -> None:
    """This also holds if the sums over steps of the rank are lost with them, so that these look complete."""
    shard, runs = shards[0], [f"unsketched-{owner}-{rank}" for rank in range(2)]
    for rank, run in enumerate(runs):
        lost = {"sketches": 0, "sketch_rollups": 0} if rank == 0 else {}
        parts = [(range(64), {}), (range(64, 128), lost), (range(128, 200), {})]
        store_parts(shard, run, rank, [(batches(rank, steps, owner=owner), times) for steps, times in parts])
    past = past_of(shard, *runs)
    (attempt,) = past.attempts()
    add_all(past)
    assert leaves_of(attempt) == [0, 1, 2, 3]
    assert leaves_of(attempt, RANK_SKETCH_ROLLUPS) == [0, 2, 3]
    found = past.sketches(0, (0, 199), 1)
    assert found is not None
    each = 64 * (2 if owner is None else 1)
    assert {one.first: one.counts.sum() for one in found} == {0: each * 64, 128: each * 64, 192: each * 8}
    assert "because histograms that rank 0 sent are missing" in past.trouble


@pytest.mark.usefixtures("at_once")
def test_histograms_of_too_many_layers_are_left_out_and_the_answer_says_so(
    shards: Sequence[Shard],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shard, runs = shards[0], ("wide-0", "wide-1")
    for rank, run in enumerate(runs):
        store_parts(shard, run, rank, [(batches(rank, range(150)), {})])
    past = past_of(shard, *runs)
    adder = Adder(past.attempts, past, settled_s=0.0)
    while adder.advance():
        pass
    monkeypatch.setattr(rankspast, "MAX_SKETCHES_ADDED", 20)
    for _ in range(2):  # the second time, it is remembered
        past.troubles = past_module.Troubles("a test")
        found = past.all_sketches(1, (3, 149))
        assert found is not None
        assert [(each.first, each.last) for each in found] == [(0, 63), (64, 127)]
        assert "this needs the sum of 44 histograms of ranks, and 20 is the limit" in past.trouble
    assert past.all_sketches(1, (128, 149)) is None, "there is no sum"
    found = past.all_sketches(1, (3, 131))
    assert found is not None
    assert [(each.first, each.last) for each in found][:3] == [(0, 63), (64, 127), (128, 128)]


@pytest.mark.clickhouse("18.16", "26")
@pytest.mark.usefixtures("at_once")
def test_sums_of_a_release_without_summed_histograms_are_kept_and_histograms_are_added(
    cluster: Cluster,
) -> None:
    runs = ("migrated-0", "migrated-1")
    address = replace(cluster.address, database=f"{cluster.address.database}_third")
    before = Schema(address, "the release before", MIGRATIONS[:3])
    with closing(Cluster(address, before.prepare)) as old:
        shard = old.shards[0]
        for rank, run in enumerate(runs):
            store_parts(shard, run, rank, [(batches(rank, range(128)), {})])
        past = past_of(shard, *runs)
        with pytest.raises(HookcoreError, match="rank_sketch_rollups"):
            add_all(past)
        (attempt,) = past.attempts()
        assert leaves_of(attempt) == [0, 1]
        rows = shard.read("SELECT count() AS found FROM rank_rollups").one("found")
    with closing(connect(address, "this release")) as new:
        past = past_of(new.shards[0], *runs)
        assert add_all(past) == len(SKETCH_LEVELS)
        (attempt,) = past.attempts()
        assert leaves_of(attempt, RANK_SKETCH_ROLLUPS) == [0, 1]
        assert new.shards[0].read("SELECT count() AS found FROM rank_rollups").one("found") == rows
        found = past.sketches(0, (0, 127), 1)
        assert found is not None
        assert [(each.first, each.last, each.counts.tolist()) for each in found] == [(0, 63, [8192]), (64, 127, [8192])]


@pytest.mark.usefixtures("at_once")
def test_steps_wait_for_the_slowest_rank_and_for_late_collectors(
    shards: Sequence[Shard],
) -> None:
    shard, runs = shards[0], ("slow-0", "slow-1")
    for rank, (run, steps) in enumerate(zip(runs, (200, 100), strict=True)):
        store_parts(shard, run, rank, [(batches(rank, range(steps)), {})])
    past = past_of(shard, *runs)
    (over,) = past.attempts()
    adder = Adder(past.attempts, past, settled_s=0.0)
    assert not Adder(past.attempts, past, settled_s=3600.0).advance()
    while adder.advance():
        pass
    assert leaves_of(over) == [0], "steps 64 to 99 are less than a bucket, and more may arrive, even from a lost rank"
    add_all(past)
    assert leaves_of(over) == [0, 1, 2, 3]
    assert SumMarks.of(over).stored[LEAF][1].tolist() == [64, 64, 64, 8]


def test_steps_of_a_live_training_are_summed_once_there_are_many_or_it_ends(
    shards: Sequence[Shard],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then, queries add them up."""
    for name in ("LARGE", "LARGE_SKETCHES"):
        monkeypatch.setattr(adders, name, 280)
    shard, runs = shards[0], ("few-0", "few-1")
    past, stored = past_of(shard, *runs), []
    adder = Adder(past.attempts, past, settled_s=0.0)
    for segment, steps in enumerate((range(130), range(130, 200), range(200, 270))):
        for rank, run in enumerate(runs):
            items = [frame_item(each.step, each) for each in batches(rank, steps)]
            piece = Piece(number_of_run(run), 20_000, rank, 0, 2, steps.start - 1, items)
            for table, block in blocks_of(f"spool of {run}", segment, [piece]).items():
                shard.insert(table.name, block)
        ask_again(past)
        while adder.advance():
            pass
        (attempt,) = past.attempts()
        stored.append([leaves_of(attempt, each) for each in OF_SUMS])
    assert stored == [[[], []], [[0, 1, 2], [0, 1, 2]], [[0, 1, 2], [0, 1, 2]]]
    add_all(past)
    assert [leaves_of(attempt, each) for each in OF_SUMS] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


@pytest.mark.usefixtures("at_once")
def test_nothing_is_stored_while_ranks_are_missing_or_taps_have_no_names(shards: Sequence[Shard]) -> None:
    shard, runs = shards[0], ("missing-0", "missing-1")
    for rank, run in enumerate(runs):
        store_parts(shard, run, rank, [(batches(rank, range(70), numbers=(0, 1)), {})])
    past = past_of(shard, *runs)  # names one of two taps
    (attempt,) = past.attempts()
    add_all(past)
    assert leaves_of(attempt) == []
    assert not Adder(lambda: [replace(attempt, world=3)], past, settled_s=0.0).advance()
    assert sumstore.missing(SumMarks(), LEAF, sumstore.Reach(69, True)) == [0, 1]

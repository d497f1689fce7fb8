"""Sums of ranks: in any order and number of parts, every value counts once, as if one process had measured it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookcore.records import STAT_COLUMN, STATS, UNKNOWN_OWNER, SketchBlock
from hookcore.records.sketch import BINS
from hookcore.store.rankstep import Repeated, Rows, StepOfRanks
from tests.kernels import Measured, measure
from tests.lanes import examples

EXACT = ("count", "nan", "inf", "zero", "min", "max", "sketched", "parts")
CLOSE = ("mean", "std", "rms", "norm")
TAPS = 5
# The owner of each tap's values: the rank itself, the first rank, or every second one. For the last two taps, it is
# unknown: one differs between all ranks, and one is the same on all of them.
LAYOUTS = ("own", "first", "alternating", "unknown, own", "unknown, first")
Sent = list[tuple[int, Measured, int]]  # tap, measured values, owner


def holder(layout: str, rank: int) -> int:
    """Return the lowest rank with the same values."""
    layout = layout.removeprefix("unknown, ")
    return {"own": rank, "first": 0, "alternating": rank % 2}[layout]


def values_of(seed: int, tap: int, owner: int, part: int) -> torch.Tensor:
    generator = np.random.default_rng([seed, tap, owner, part])
    values = generator.normal(size=int(generator.integers(2, 30))) * 10.0 ** generator.integers(-3, 4)
    if generator.random() < 0.2:
        values[0] = generator.choice([np.nan, np.inf, -np.inf, 0.0])
    return torch.from_numpy(values)


def arrays_of(rows: Sent) -> tuple[np.ndarray, np.ndarray, SketchBlock, np.ndarray]:
    """Return taps, stats, sketches, and owners, as a frame has them."""
    stats = np.array([[measured[name] for name in STATS] for _, (measured, _), _ in rows]).reshape(len(rows), -1)
    dense = [sketch for _, (_, sketch), _ in rows]
    bins = [np.flatnonzero(each) for each in dense]
    start = np.cumsum([0, *map(len, bins)]).astype(np.uint32)
    counts = np.concatenate([each[filled] for each, filled in zip(dense, bins, strict=True)]).astype(np.uint32)
    block = SketchBlock(start, np.concatenate(bins).astype(np.uint16), counts)
    return (
        np.array([tap for tap, _, _ in rows], np.int64),
        stats,
        block,
        np.array([owner for _, _, owner in rows], np.int32),
    )


def assert_is(found: Rows, expected: dict[int, Measured]) -> None:
    assert found.lanes.tolist() == sorted(expected)
    for row, tap in enumerate(found.lanes.tolist()):
        stats, sketch = expected[tap]
        for name in EXACT:
            assert found.stats[row, STAT_COLUMN[name]] == pytest.approx(stats[name], rel=0, nan_ok=True), (tap, name)
        scale = 0.0 if np.isnan(stats["rms"]) else stats["rms"]
        for name in CLOSE:
            value = found.stats[row, STAT_COLUMN[name]]
            assert value == pytest.approx(stats[name], rel=1e-9, abs=1e-12 * scale, nan_ok=True), (tap, name)
        at = slice(int(found.block.start[row]), int(found.block.start[row + 1]))
        dense = np.zeros(BINS, np.int64)
        dense[found.block.bins[at]] = found.block.counts[at]
        assert np.array_equal(dense, sketch), tap


@settings(deadline=None, max_examples=examples(60))
@given(st.data())
def test_ranks_in_any_order_add_up_to_the_values_of_one_process(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**32 - 1))
    world = data.draw(st.integers(1, 5))
    parts = data.draw(st.integers(1, 3))
    layouts = {tap: data.draw(st.sampled_from(LAYOUTS)) for tap in range(TAPS)}
    repeated = Repeated()
    for step in range(2):  # the second one knows what several ranks share
        rows = StepOfRanks(repeated)
        left = {rank: list(range(parts)) for rank in range(world)}
        while any(left.values()):
            rank = data.draw(st.sampled_from([rank for rank, waiting in left.items() if waiting]))
            part = left[rank].pop(0)
            order = data.draw(st.permutations(range(TAPS)))
            sent: Sent = []
            for tap in order:
                owner = holder(layouts[tap], rank)
                said = UNKNOWN_OWNER if "unknown" in layouts[tap] else owner
                sent.append((tap, measure(values_of(seed + step, tap, owner, part)), said))
            rows.add(rank, *arrays_of(sent))
        expected = {}
        for tap, layout in layouts.items():
            owners = sorted({holder(layout, rank) for rank in range(world)})
            tensors = [values_of(seed + step, tap, owner, part) for owner in owners for part in range(parts)]
            expected[tap] = measure(*tensors)
        assert_is(rows.finish(), expected)
        assert rows.differences() == []
        repeated.known = True


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
def test_a_rank_whose_copy_differs_is_named(order: tuple[int, ...]) -> None:
    common, other = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.5])
    rows = StepOfRanks(Repeated())
    for rank in order:
        rows.add(rank, *arrays_of([(0, measure(other if rank == 2 else common), 0), (1, measure(common), rank)]))
    assert rows.compared == 2
    found = rows.finish()
    assert found.stats[:, STAT_COLUMN["count"]].tolist() == [3, 9]
    assert found.stats[0, STAT_COLUMN["max"]] == 3.0  # the owner's values, whichever came first
    (difference,) = rows.differences()
    assert (difference.lane, difference.stat, difference.odd) == (0, "max", (2,))
    assert difference.groups == (((0, 1), 3.0), ((2,), 3.5))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0), (2, 3, 0, 1)])
def test_two_ranks_against_two_have_no_odd_one_out(order: tuple[int, ...]) -> None:
    rows = StepOfRanks(Repeated())
    for rank in order:
        rows.add(rank, *arrays_of([(0, measure(torch.tensor([1.0, 2.0 + rank // 2])), 0)]))
    (difference,) = rows.differences()
    assert difference.odd == ()
    assert difference.groups == (((0, 1), 2.0), ((2, 3), 3.0))


def test_only_one_rank_replaces_a_silent_owner() -> None:
    """This also holds if the owner arrives after the sum was taken."""
    rows, shared = StepOfRanks(Repeated()), measure(torch.tensor([1.0, 2.0]))
    for rank in (3, 2):
        rows.add(rank, *arrays_of([(0, shared, 0), (1, measure(torch.tensor([5.0])), rank)]))
    found = rows.finish()
    assert found.stats[:, STAT_COLUMN["count"]].tolist() == [2, 2]
    assert int(found.block.counts.sum()) == 4
    assert len(rows.add(0, *arrays_of([(0, shared, 0)])).lanes) == 0
    assert len(rows.add(1, *arrays_of([(0, shared, 0)])).lanes) == 0
    assert rows.finish().stats[0, STAT_COLUMN["count"]] == 2
    assert rows.compared == 3


def test_steps_that_arrive_after_the_sum_count_once_too() -> None:
    rows, shared = StepOfRanks(Repeated()), measure(torch.tensor([1.0, 2.0]))
    rows.finish()
    counted = [len(rows.add(rank, *arrays_of([(0, shared, 0)])).lanes) for rank in (2, 0, 1)]
    assert counted == [1, 0, 0]


def test_sums_that_were_rounded_differently_are_not_a_difference() -> None:
    rows = StepOfRanks(Repeated())
    lanes, stats, block, _ = arrays_of([(0, measure(torch.tensor([1.0, 2.0, 3.0])), 0)])
    rows.add(0, lanes, stats, block, np.zeros(1, np.int32))
    for name in CLOSE:
        stats = stats.copy()
        stats[0, STAT_COLUMN[name]] *= 1 + 1e-9
    rows.add(1, lanes, stats, block, np.zeros(1, np.int32))
    assert (rows.differences(), rows.compared) == ([], 1)
    stats[0, STAT_COLUMN["max"]] = np.nextafter(3.0, 4.0)
    again = StepOfRanks(Repeated())
    again.add(0, *arrays_of([(0, measure(torch.tensor([1.0, 2.0, 3.0])), 0)]))
    again.add(1, lanes, stats, block, np.zeros(1, np.int32))
    assert [each.stat for each in again.differences()] == ["max"]


def test_the_update_of_a_split_parameter_is_relative_to_the_whole_parameter() -> None:
    rows = StepOfRanks(Repeated())
    for rank, (norm, ratio) in enumerate([(3.0, 0.3), (4.0, 0.1)]):  # parts with the norms 10 and 40
        lanes, stats, block, _ = arrays_of([(0, measure(torch.tensor([norm])), rank)])
        stats[0, STAT_COLUMN["ratio"]] = ratio
        rows.add(rank, lanes, stats, block, np.array([rank], np.int32))
    assert rows.finish().stats[0, STAT_COLUMN["ratio"]] == pytest.approx(5 / np.hypot(10, 40))


def test_the_update_of_a_split_parameter_with_an_unchanged_part_is_unknown() -> None:
    for norms, expected in (([3.0, 0.0], np.nan), ([0.0, 0.0], 0.0)):
        rows = StepOfRanks(Repeated())
        for rank, norm in enumerate(norms):
            lanes, stats, block, _ = arrays_of([(0, measure(torch.tensor([norm])), rank)])
            stats[0, STAT_COLUMN["ratio"]] = norm / 10
            rows.add(rank, lanes, stats, block, np.array([rank], np.int32))
        np.testing.assert_equal(rows.finish().stats[0, STAT_COLUMN["ratio"]], expected)


def test_many_ranks_take_little_more_memory_than_one() -> None:
    """Only values that several ranks share are kept for comparison."""
    taps, sizes = 400, []
    repeated = Repeated()
    repeated.known = True
    repeated.add(np.arange(taps // 2))
    stats = np.ones((taps, len(STATS)))
    block = SketchBlock.empty(taps)
    rows = StepOfRanks(repeated)
    for rank in range(64):
        owners = np.where(np.arange(taps) < taps // 2, 0, rank).astype(np.int32)
        rows.add(rank, np.arange(taps), stats, block, owners)
        sizes.append(rows.nbytes)
    assert sizes[-1] < 2 * sizes[0]
    assert all(later - earlier < stats.nbytes / 8 for earlier, later in pairwise(sizes))
    assert rows.compared == 63 * taps // 2


def without_sketch(measured: Measured) -> Measured:
    return measured[0] | {"sketched": 0.0}, np.zeros_like(measured[1])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_tap_of_which_some_rank_has_no_histogram_has_none(order: tuple[int, ...]) -> None:
    each, one, rows = measure(torch.tensor([1.0, 2.0])), measure(torch.tensor([4.0])), StepOfRanks(Repeated())
    for rank in order:
        mine = without_sketch(each) if rank == 1 else each
        shared = one if rank == 0 else without_sketch(one)  # its owner has it
        unknown = without_sketch(one) if rank == 2 else one  # equal on all ranks, and counted once
        sent = [(0, mine, rank), (1, each, rank), (2, shared, 0), (3, unknown, UNKNOWN_OWNER)]
        rows.add(rank, *arrays_of(sent))
    thrice = measure(*[torch.tensor([1.0, 2.0])] * 3)
    expected = {0: without_sketch(thrice), 1: thrice, 2: one, 3: without_sketch(one)}
    assert_is(rows.finish(), expected)
    assert_is(rows.finish(), expected)


def test_a_histogram_that_arrives_after_the_sum_does_not_stand_for_ranks_without_one() -> None:
    rows, each = StepOfRanks(Repeated()), measure(torch.tensor([1.0, 2.0]))
    rows.add(0, *arrays_of([(0, without_sketch(each), 0), (1, each, 0)]))
    rows.finish()
    late = rows.add(1, *arrays_of([(0, each, 1), (1, each, 1)]))
    assert_is(late, {0: without_sketch(each), 1: each})

"""The planning model: its formulas agree with calculations by hand, and grow with the demand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.demand import (
    BUSY,
    NAMES,
    SCALARS,
    Costs,
    Demand,
    Layout,
    Model,
    Sizes,
    Sum,
    acknowledged_s,
    buckets_of,
    doublings_of,
    fit,
    frame_bytes,
    least_memory_bytes,
    period_s,
    waiting,
    waits_s,
    work_of,
)
from hookcore.records import Tap
from hookcore.store import Store
from hookcore_app.clickhouse.cluster.shared import FULL
from hookcore_app.clickhouse.schema import LEVELS
from hookcore_app.collector.cutter import MIN_ROWS
from hookcore_app.collector.sending import LOOK_S
from tests.build import frame, stats_of

demands = st.builds(
    Demand,
    ranks=st.integers(1, 10_000),
    layers=st.integers(1, 2000),
    kinds=st.integers(1, 5),
    steps_per_s=st.floats(0.01, 10.0),
    bins=st.sampled_from([0.0, 196.0]),
)
layouts = st.builds(
    Layout, st.integers(1, 50), st.integers(1, 8), st.integers(1, 3), st.floats(0.5, 60.0, allow_nan=False)
)
MODEL = Model(
    Costs(dict.fromkeys(NAMES, 1e-5), 0.01),
    Costs(dict.fromkeys(NAMES, 1e-5), 0.02),
    Costs({"segments": 1e-3}, 0.01),
    Sizes(frame=500.0, row=100.0, rollup=Sum(200.0), sketch=300.0, sketch_rollup=Sum(400.0), item=50.0),
    Costs({"rows": 100.0, "runs": 1e5}, 5e7),
)


def test_ten_ranks_of_two_layers_are_worked_out_by_hand() -> None:
    demand, layout = Demand(10, 2, 3, 2.0, 100.0), Layout(2, 1, insert_s=5.0)
    period = 1 / (2.0 * (10 / 2 + 1)) + 5.0 + LOOK_S
    work = work_of(demand, layout)
    steps = 2 * period
    assert (demand.taps, demand.lanes, demand.frames_per_s) == (6, 10 * (6 + SCALARS), 20.0)
    assert (work.frames, work.rows, work.sketches, work.runs) == (20.0, 20 * (6 + SCALARS), 120.0, 10)
    assert work.segments == pytest.approx(2 / period)
    assert work.pieces == pytest.approx(10 / period)
    assert work.rollups == pytest.approx(10 / period * (6 + SCALARS) * sum(1 + (steps - 1) / 2**n for n in LEVELS))
    assert frame_bytes(demand, 500.0) == 500 + 6 * (8 * 13 + 8 + 600)


def test_a_segment_is_cut_early_if_it_has_enough_rows() -> None:
    demand = Demand(100, 1000, 1, 1.0, 0.0)
    assert period_s(demand, Layout(1, 1, insert_s=60.0)) == pytest.approx(MIN_ROWS / demand.rows_per_s + LOOK_S)


def test_buckets_are_correct_for_any_first_step() -> None:
    for steps in (1, 5, 8, 40):
        touched = [
            len({step >> level for step in range(begin, begin + steps)}) for level in (3, 5) for begin in range(32)
        ]
        assert buckets_of(steps, (3, 5)) == pytest.approx(sum(touched) / 32)


def test_sums_of_more_steps_take_more_bytes_within_the_measured_range() -> None:
    assert doublings_of(8, [0]) == 0
    assert doublings_of(1, LEVELS) == 0
    assert doublings_of(1000, [20]) == pytest.approx(np.log2(1000), abs=0.01)
    seen = [(2.0, 10.0, 10 * 70.0), (4.0, 5.0, 5 * 90.0)]
    found = Sum.fit(seen)
    assert (found.single, found.doubling) == pytest.approx((50.0, 10.0))
    assert found.nbytes(1, [20]) == pytest.approx(70.0)
    assert found.nbytes(8, [20]) == pytest.approx(80.0, rel=1e-4)
    assert found.nbytes(1e6, [30]) == pytest.approx(90.0, rel=1e-2)
    assert Sum.fit([(2.0, 10.0, 700.0), (2.0, 10.0, 900.0)]).nbytes(4, [20]) == pytest.approx(80.0, rel=1e-4)


def test_a_slow_rank_makes_a_piece_of_each_step() -> None:
    work = work_of(Demand(10, 5, 2, 0.01), Layout(1, 1, insert_s=5.0))
    assert work.pieces == pytest.approx(work.frames)
    assert work.segments <= work.pieces


@given(demands, layouts)
def test_more_ranks_or_layers_make_more_of_everything(demand: Demand, layout: Layout) -> None:
    work = work_of(demand, layout)
    for more in (replace(demand, ranks=2 * demand.ranks), replace(demand, layers=2 * demand.layers)):
        grown = work_of(more, layout)
        assert all(getattr(grown, name) >= getattr(work, name) * (1 - 1e-9) for name in NAMES)
        assert MODEL.collector_cores(more, layout) > MODEL.collector_cores(demand, layout)
        assert MODEL.sizes.disk_bytes(more, 60.0) > MODEL.sizes.disk_bytes(demand, 60.0)


@given(demands, layouts, st.floats(0.0, 10.0))
def test_waiting_work_is_the_rate_times_the_waiting_time(demand: Demand, layout: Layout, insert_s: float) -> None:
    wait_s = waits_s(demand, layout, insert_s)
    assert wait_s >= 1 / demand.steps_per_s + insert_s
    assert waiting(demand, wait_s) == pytest.approx(demand.frames_per_s * wait_s)


@given(demands)
def test_a_layout_of_the_right_size_is_not_too_busy_and_grows_with_the_ranks(demand: Demand) -> None:
    layout = MODEL.size(demand, cores=8)
    assert MODEL.collector_cores(demand, layout) / layout.collectors <= BUSY
    assert MODEL.database_cores(demand, layout) / (layout.shards * layout.replicas * 8) <= BUSY
    more = MODEL.size(replace(demand, ranks=2 * demand.ranks), cores=8)
    assert more.collectors >= layout.collectors
    assert more.shards >= layout.shards


def test_the_queueing_time_grows_without_bound_as_load_approaches_capacity() -> None:
    assert acknowledged_s(0.01, 0.0) == 0.01
    assert acknowledged_s(0.01, 0.5) == 0.02
    assert acknowledged_s(0.01, 1.0) == math.inf


def test_fitting_recovers_the_known_costs() -> None:
    costs = Costs({"frames": 1e-3, "rows": 2e-6, "pieces": 0.0}, 0.05)
    layouts = [Layout(1, 1, insert_s=seconds) for seconds in (2.0, 5.0, 10.0)]
    works = [work_of(Demand(ranks, layers, 2, 1.0), layouts[ranks % 3]) for ranks in (3, 10, 50) for layers in (5, 80)]
    found = fit(works, [costs.cores(work, 2) for work in works], tuple(costs.each), 0.05, 2)
    assert list(found.each) == list(costs.each)
    assert np.allclose(list(found.each.values()), list(costs.each.values()), rtol=1e-3, atol=1e-7)


def test_a_server_has_room_for_all_taps_in_its_least_memory() -> None:
    demand = Demand(1, 700, 3, 1.0)
    assert not _refused(demand, least_memory_bytes(demand, jobs=0))
    assert _refused(demand, 0.9 * FULL * least_memory_bytes(demand, jobs=0))


def _refused(demand: Demand, max_bytes: float) -> int:
    store = Store(int(max_bytes))
    store.append(frame(0, stats_of(demand.taps, 1.0), tuple(Tap(str(tap), "output") for tap in range(demand.taps))))
    return store.refused_taps


def test_memory_grows_with_the_data_that_arrives() -> None:
    demand = Demand(10, 2, 1, 1.0)
    assert MODEL.memory_bytes(demand, 20.0) == pytest.approx(5e7 + 10 * 1e5 + 20 * 10 * (2 + SCALARS) * 100)


def test_data_on_disk_is_that_of_rows_and_of_their_sums() -> None:
    demand = Demand(1, 1, 1, 1.0, 0.0)
    rows, rolled = 100 * (1 + SCALARS), (1 + SCALARS) * buckets_of(100, LEVELS)
    assert MODEL.sizes.disk_bytes(demand, 100.0) == pytest.approx(rows * 100 + rolled * 200 + 100 * 50)


def test_a_collector_that_is_slower_at_making_segments_makes_fewer() -> None:
    demand, layout = Demand(500, 5, 2, 0.1), Layout(2, 2)
    settled = MODEL.settled(demand, layout)
    assert settled.cut_s > 0
    assert period_s(demand, settled) == pytest.approx(period_s(demand, layout) + settled.cut_s)

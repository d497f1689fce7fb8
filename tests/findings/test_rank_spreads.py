"""How far ranks are apart, and which one is late, computed only from their values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookcore.findings import RULES
from hookcore.findings.times import STEPS, Waits, late_rank, waits_of
from hookcore.records import Tap
from hookcore.records.vocabulary import ELAPSED, GRADIENT_WAIT, REDUCTION_WAIT
from hookcore.store import Store
from hookcore_app.analysis.distributed import OfRank, layers_of, spreads_in
from tests.build import append, frame, stats_of

LIMITS = RULES["late-rank"].limits
MIN_STEPS = int(LIMITS["steps"])
VALUES = st.one_of(st.just(np.nan), st.just(np.inf), st.floats(-1e6, 1e6))


@settings(deadline=None)
@given(st.integers(1, 6).flatmap(lambda ranks: st.lists(VALUES, min_size=ranks, max_size=ranks)))
def test_the_odd_one_out_is_twice_as_far_from_the_median_as_every_other_rank(values: list[float]) -> None:
    found = spreads_in(np.array([values]).T)
    finite = sorted(value for value in values if np.isfinite(value))
    present = [value for value in values if not np.isnan(value)]
    assert (found.finite[0], found.present[0]) == (len(finite), len(present))
    if finite:
        middle = len(finite) // 2
        median = finite[middle] if len(finite) % 2 else (finite[middle - 1] + finite[middle]) / 2
        assert (found.low[0], found.high[0]) == (finite[0], finite[-1])
        assert found.median[0] == pytest.approx(median, rel=1e-12, abs=1e-12)
    else:
        median = np.nan
        assert np.isnan([found.low[0], found.median[0], found.high[0]]).all()
    off = [-1.0 if np.isnan(each) else abs(each - median) if np.isfinite(each) else np.inf for each in values]
    farthest = off.index(max(off))
    others = [each for rank, each in enumerate(off) if rank != farthest and each >= 0]
    stands_apart = others and max(off) > 0 and max(others) < np.inf and max(off) >= 2 * max(others)
    assert found.odd[0] == (farthest if stands_apart else -1)


def test_two_ranks_are_equally_far_from_their_median() -> None:
    assert spreads_in(np.array([[1.0], [3.0]])).odd.tolist() == [-1]
    assert spreads_in(np.array([[1.0], [np.inf]])).odd.tolist() == [1]


def test_the_spread_of_ranks_is_relative_to_the_median() -> None:
    values = np.array([[2.0, 5.0, 0.0, np.inf], [4.0, 5.0, 0.0, 1.0], [3.0, 5.0, 1.0, 1.0]])
    assert spreads_in(values).apart.tolist() == [2 / 3, 0.0, np.inf, np.inf]
    assert spreads_in(np.empty((0, 2))).odd.tolist() == [-1, -1]


def test_the_spread_of_ranks_is_known_for_the_largest_numbers() -> None:
    most = np.finfo(np.float64).max
    found = spreads_in(np.array([[most, -most, most], [most, most, 1.0], [most, most, -most]]))
    assert found.median.tolist() == [most, most, 1.0]
    assert found.apart.tolist() == [0.0, np.inf, np.inf]
    assert spreads_in(np.array([[3.0], [np.nan]])).present.tolist() == [1]


def test_values_of_merged_steps_are_those_of_the_requested_step_and_name_their_steps() -> None:
    many, steps = 60, 600  # wide steps, so that a small store soon merges them
    taps = tuple(Tap(f"layers.{number}", "output") for number in range(many))
    stores = [Store(2**20) for _ in range(3)]  # all ranks, and two of them
    for step in range(steps):
        for rank, store in enumerate(stores):
            append(store, step, [1.0 + rank] * many, taps if step == 0 else ())
    ranks = [OfRank(rank, store, 0, np.arange(many)) for rank, store in enumerate(stores[1:])]
    wanted = stores[0].taps()
    begin, end = (int(each[0]) for each in stores[1].captured_rows(101, 101))
    assert begin < 101 < end
    merged = layers_of(stores[0], lambda step: ranks, wanted, "rms", 101, 101)
    assert merged is not None
    assert (merged.first_step, merged.step) == (begin, end)
    assert merged.values == pytest.approx(np.repeat([[2.0], [3.0]], many, axis=1))
    exact = layers_of(stores[0], lambda step: ranks, wanted, "rms", None, None)
    assert exact is not None
    assert (exact.first_step, exact.step) == (steps - 1, steps - 1)


def test_the_newest_steps_are_counted_in_captured_ones() -> None:
    nan = np.nan
    sparse = [
        [0.5 if step % 100 == 0 else nan for step in range(8000)],
        [0.1 if step % 50 == 0 else nan for step in range(8000)],
    ]
    found = waits(sparse)
    assert (found.steps, found.first, found.last, found.latest(LIMITS)) == (STEPS, 1600, 7900, 1)


def ranks_with(waits: list[list[float]], name: str = REDUCTION_WAIT, elapsed_s: float = 1.0) -> list[OfRank]:
    """Return ranks that waited this long in each step. NaN means that the rank didn't capture the step."""
    ranks = []
    for rank, each in enumerate(waits):
        store = Store()
        for step, seconds in enumerate(each):
            if not np.isnan(seconds):
                store.append(frame(step, stats_of(0), scalars={name: seconds}, elapsed_s=elapsed_s))
        ranks.append(OfRank(rank, store))
    return ranks


def waits(*arguments: object, **named: object) -> Waits:
    found = waits_of(ranks_with(*arguments, **named))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_the_rank_that_waits_least_is_the_slowest() -> None:
    found = waits([[0.5] * 20, [0.1] * 20, [0.4] * 20])
    assert found.latest(LIMITS) == 1
    assert found.was_last.tolist() == [0, 20, 0]
    assert found.after_first_s.tolist() == pytest.approx([0.0, 0.4, 0.1])
    assert found.share.tolist() == pytest.approx([0.5, 0.1, 0.4])


def test_no_rank_is_late_if_it_varies_barely_matters_or_too_few_steps_are_known() -> None:
    turns = [[0.5 if step % 3 == rank else 0.1 for step in range(21)] for rank in range(3)]
    assert waits(turns).latest(LIMITS) is None
    assert waits([[0.01] * 20, [0.0] * 20]).latest(LIMITS) is None  # a hundredth of a step
    assert waits([[0.5] * (MIN_STEPS - 1), [0.0] * (MIN_STEPS - 1)]).latest(LIMITS) is None
    assert waits([[0.5] * MIN_STEPS, [0.0] * MIN_STEPS]).latest(LIMITS) == 1


def test_a_late_rank_is_a_finding_with_the_share_of_a_step_that_the_others_wait() -> None:
    joint = Store()
    append(joint, 0, [1.0], (Tap("", "output"),))
    found = late_rank(joint, ranks_with([[0.5] * 20, [0.1] * 20]), 19)
    assert found is not None
    assert (found.rule, found.severity, found.since) == ("late-rank", "warning", 0)
    assert found.message == (
        "rank 1 is late: it was last in 20 of 20 steps, on average 400 ms after the first rank, 40% of a step, "
        "in which the others wait"
    )
    assert late_rank(joint, ranks_with([[0.5] * 20, [0.1] * 20]), 5) is None  # too few steps were over by then
    assert late_rank(joint, ranks_with([[0.1] * 20, [0.1] * 20]), 19) is None


def test_only_steps_that_all_ranks_captured_are_compared() -> None:
    nan = np.nan
    found = waits([[0.9, 0.5, nan, 0.5] * 20, [nan, 0.1, 0.1, 0.1] * 20])
    assert (found.steps, found.last) == (40, 79)
    assert found.wait_s.tolist() == pytest.approx([0.5, 0.1])
    assert waits([[0.5] * 1000, [0.1] * 1000]).steps == STEPS
    assert waits_of(ranks_with([[0.5, nan], [nan, 0.5]])) is None


def test_one_way_of_measuring_is_used_for_all_ranks() -> None:
    hooked, plain = ranks_with([[0.5] * 20] * 2), ranks_with([[0.2] * 20] * 3, GRADIENT_WAIT)
    found = waits_of([*hooked, *(OfRank(2 + each.rank, each.store) for each in plain)])
    assert found is not None
    assert (found.name, found.ranks) == (REDUCTION_WAIT, (0, 1))
    only = waits_of([hooked[0], *(OfRank(2 + each.rank, each.store) for each in plain)])
    assert only is not None
    assert (only.name, only.ranks) == (GRADIENT_WAIT, (2, 3, 4))
    assert waits_of([hooked[0]]) is None
    assert waits_of([]) is None


def test_the_steps_of_a_restarted_training_are_shifted() -> None:
    ranks = ranks_with([[0.5] * 20, [0.1] * 20])
    found = waits_of([OfRank(each.rank, each.store, 100) for each in ranks], last=109)
    assert found is not None
    assert (found.first, found.last) == (100, 109)
    assert ELAPSED in ranks[0].store.scalar_names()

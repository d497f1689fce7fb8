"""The methods of the store: parts of a step, late frames, limits, names, and the result of each query."""

from __future__ import annotations

import ast
import gc
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hookcore.store
from hookcore.delivery.sinks import Sink, StoreSink
from hookcore.errors import ArgumentError, ClosedError, PatternError
from hookcore.records import (
    STAT_COLUMN,
    STATS,
    Coverage,
    Event,
    Frame,
    ModuleRecord,
    SketchBlock,
    Snapshot,
    Tap,
)
from hookcore.records.sketch import BINS, POS_INF
from hookcore.store import STAT_NAMES, Store
from hookcore.store.segments import lanes_of
from hookcore.store.sketches import SketchLadder
from hookcore.store.unlike import Sample
from tests import build
from tests.inside import module_of
from tests.sketches import block_of, rebin, sketch_of


def stats_of(values: np.ndarray) -> np.ndarray:
    """Compute the stats of values by their definitions."""
    finite = values[np.isfinite(values)]
    row = dict.fromkeys(STATS, np.nan)
    row |= {
        "count": values.size,
        "nan": np.isnan(values).sum(),
        "inf": np.isinf(values).sum(),
        "zero": (values == 0).sum(),
        "parts": 1,
        "sketched": values.size,
    }
    row["norm"] = np.sqrt((finite**2).sum())
    if finite.size:
        row |= {"mean": finite.mean(), "std": finite.std(), "min": finite.min(), "max": finite.max()}
        row["rms"] = np.sqrt((finite**2).mean())
    return np.array([row[name] for name in STATS], np.float64)


def frame(step: int, rows: dict[int, list[float]], new: tuple[Tap, ...] = (), **further: object) -> Frame:
    """Return a frame with the stats and sketches of these values for these taps."""
    arrays = [np.array(values, np.float64) for values in rows.values()]
    stats = np.array([stats_of(array) for array in arrays]).reshape(len(rows), len(STATS))
    block = block_of([sketch_of(array) for array in arrays])
    return build.frame(step, stats, new, numbers=list(rows), sketches=block, **further)


TAPS = (Tap("a.one", "output"), Tap("a.two", "output"), Tap("b", "output_grad"))


@pytest.fixture
def store() -> Store:
    made = Store(2**20, clock=lambda: 5.0)
    made.append(frame(1, {0: [1, 2, 3], 1: [0, 0, 5], 2: [-4, np.nan]}, TAPS, scalars={"loss": 2.0}))
    made.append(frame(3, {0: [2, 2], 2: [np.inf, 1]}, scalars={"loss": np.nan}, grad_scale=8.0, micro_batches=2))
    return made


@given(
    st.lists(st.floats(-1e6, 1e6) | st.sampled_from([np.nan, np.inf, 0.0]), min_size=1),
    st.lists(st.floats(-1e6, 1e6) | st.sampled_from([np.nan, -np.inf, 0.0]), min_size=1),
)
def test_a_tap_in_two_parts_of_a_step_has_the_stats_of_all_its_values(one: list[float], two: list[float]) -> None:
    store = Store(2**20)
    store.append(frame(7, {0: one}, (TAPS[0],)))
    store.append(frame(7, {0: two}))
    expected = stats_of(np.array(one + two))
    expected[STAT_COLUMN["parts"]] = 2
    found = store.latest()
    assert store.steps().count == 1
    assert found.values[0, : len(STATS)] == pytest.approx(expected, rel=1e-9, abs=1e-6, nan_ok=True)
    shown = store.histograms(0)
    total = sketch_of(one + two)
    assert len(shown.first_step) == 1
    if len(shown.edges):
        assert np.array_equal(shown.counts[0], rebin(total, shown.edges))
    assert shown.counts.sum() == np.isfinite(one + two).sum()
    assert (shown.nan[0], shown.positive_infinity[0]) == (total.nan, total.counts[POS_INF])


def test_moments_of_two_parts_do_not_cancel_or_overflow() -> None:
    store = Store(2**20)
    for values in ([1e8 + 1, 1e8 + 2], [1e8 + 3, 1e8 + 4]):
        store.append(frame(1, {0: values}, (TAPS[0],) if values[0] == 1e8 + 1 else ()))
    assert store.latest(stat="std").values[0, 0] == pytest.approx(np.std([1, 2, 3, 4]), rel=1e-9)


def test_a_tap_in_a_later_part_of_the_step_is_added(store: Store) -> None:
    store.append(frame(3, {1: [7.0], 3: [9.0]}, (Tap("late", "output"),)))
    assert store.series(1, "max").max.tolist() == [5, 7]
    assert store.series(3, "max").first_step.tolist() == [3]
    assert store.series(0, "max").max.tolist() == [3, 2]
    assert store.steps().count == 2


def test_a_tap_named_twice_in_one_frame_is_merged_and_order_does_not_matter() -> None:
    store = Store(2**20)
    stats = np.array([stats_of(np.array(values)) for values in ([9.0], [1.0], [3.0])])
    block = block_of([sketch_of([9.0]), sketch_of([1.0]), sketch_of([3.0])])
    store.append(build.frame(0, stats, TAPS, numbers=[2, 0, 0], sketches=block))
    assert store.latest(stat="mean").values[:, 0].tolist() == [2.0, 9.0]
    assert store.latest(stat="count").values[:, 0].tolist() == [2, 1]
    assert store.quantiles(0, [1.0]).values[0, 0] == pytest.approx(3, rel=0.07)
    assert store.quantiles(2, [1.0]).values[0, 0] == pytest.approx(9, rel=0.07)


def test_lanes_are_a_slice_only_if_they_are_neighbors_in_order() -> None:
    assert lanes_of(np.array([3, 4, 5], np.uint32)) == slice(3, 6)
    assert lanes_of(np.array([7])) == slice(7, 8)
    assert lanes_of(np.array([], np.int64)) == slice(0, 0)
    for numbers in ([1, 1, 3], [1, 3, 2, 4], [2, 1], [1, 3]):
        lanes = lanes_of(np.array(numbers, np.uint32))
        assert isinstance(lanes, np.ndarray)
        assert lanes.tolist() == numbers


def test_an_array_of_taps_that_its_owner_fills_again_is_read_again() -> None:
    store = Store(2**20)
    taps = np.array([0, 1], np.uint32)
    announced = tuple(Tap(f"layer.{number}", "output") for number in range(4))
    for step in range(4):
        each = build.frame(step, build.stats_of(2, 1.0, mean=step), announced if step == 0 else ())
        taps[:] = (0, 1) if step % 2 == 0 else (2, 3)
        store.append(replace(each, taps=taps))
    assert [store.series(number, "mean").mean.tolist() for number in range(4)] == [[0, 2], [0, 2], [1, 3], [1, 3]]


def test_a_frame_older_than_the_newest_step_is_counted_and_dropped(store: Store) -> None:
    store.append(frame(2, {0: [100.0]}, (Tap("new", "param"),), events=(Event(2, 0.0, "note", "kept"),)))
    assert store.series(0, "max").max.tolist() == [3, 2]
    assert store.usage().dropped["too_late"] == 1
    assert [event.name for event in store.events()] == ["note", "too-late"]
    assert store.events(name="too-late")[0].time_s == 5.0
    assert store.taps(kind="param").numbers.tolist() == [3]  # otherwise, the numbers of later taps would be wrong


def test_a_frame_of_the_wrong_shape_is_refused() -> None:
    good = frame(0, {0: [1.0]}, TAPS)
    with pytest.raises(ArgumentError, match=r"\[1, 13\]"):
        Store(2**20).append(replace(good, stats=good.stats[:, :3]))
    with pytest.raises(ArgumentError, match="starts"):
        Store(2**20).append(replace(good, sketches=block_of([])))


def test_rows_of_unannounced_taps_are_counted(store: Store) -> None:
    store.append(frame(4, {0: [1.0], 99: [1.0]}))
    assert store.usage().dropped["rows_of_unknown_taps"] == 1
    assert store.series(0, "count").present.sum() == 3


def test_a_store_too_small_to_work_says_how_much_it_needs() -> None:
    with pytest.raises(ArgumentError, match="1 MiB"):
        Store(1000)


def test_taps_without_room_are_refused_counted_and_reported_once() -> None:
    store = Store(2**20)
    for step in range(3):
        new = tuple(Tap(f"m{step}.{number}", "output") for number in range(5000))
        store.append(build.frame(step, build.stats_of(5000, 1.0), new, numbers=range(step * 5000, step * 5000 + 5000)))
        usage = store.usage()
        assert usage.nbytes <= usage.max_bytes
    kept = len(store.taps().taps)
    assert 0 < kept < 5000
    assert store.usage().dropped["taps_refused"] == 15_000 - kept
    assert store.usage().dropped["rows_of_unknown_taps"] == 15_000 - kept
    assert [event.name for event in store.events()] == ["taps-refused"]
    assert store.series(kept - 1, "count").first_step.tolist() == [0]


def test_taps_are_found_by_glob_expression_and_kind(store: Store) -> None:
    assert store.taps("a*").numbers.tolist() == [0, 1]
    assert store.taps("a.t?o").taps == (TAPS[1],)
    assert store.taps("re:.*o.*|b").numbers.tolist() == [0, 1, 2]
    assert store.taps("re:a").numbers.tolist() == []
    assert store.taps(kind="output_grad").taps == (TAPS[2],)
    with pytest.raises(PatternError, match="regular expression"):
        store.taps("re:(")


def test_the_error_for_a_wrong_name_lists_allowed_ones_and_the_nearest(store: Store) -> None:
    with pytest.raises(ArgumentError, match=r"unknown stat 'nrm'; did you mean 'norm'\? Allowed: count"):
        store.series(0, "nrm")
    with pytest.raises(ArgumentError, match="unknown kind 'outputs'; did you mean 'output'"):
        store.heatmap("outputs", "norm")
    with pytest.raises(ArgumentError, match="unknown tap number 3: there are 3 taps"):
        store.series(3, "norm")
    with pytest.raises(ArgumentError, match=r"unknown tap 'a\.on output'; did you mean 'a\.one output'"):
        store.series(Tap("a.on", "output"), "norm")
    with pytest.raises(ArgumentError, match="unknown scalar 'los'; did you mean 'loss'"):
        store.scalars("los")
    with pytest.raises(ArgumentError, match="points=0 is too small"):
        store.series(0, "norm", points=0)
    with pytest.raises(ArgumentError, match="bins=2 is too small"):
        store.histograms(0, bins=2)
    with pytest.raises(ArgumentError, match="unknown stat 'bad'"):
        store.latest(sort="-bad")
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        store.quantiles(1, [2.0])


def test_a_series_is_limited_by_inclusive_steps_and_found_by_tap_or_number(store: Store) -> None:
    assert store.series(TAPS[0], "mean", first=3).mean.tolist() == [2.0]
    assert store.series(0, "mean", last=1).mean.tolist() == [2.0]
    assert store.series(0, "mean", first=2, last=2).mean.tolist() == []
    assert store.series(0, "mean", points=1).max.tolist() == [2.0]


def test_derived_stats_and_nonfinite_steps_are_shown(store: Store) -> None:
    assert store.series(1, "zero_fraction").mean == pytest.approx([2 / 3])
    bad = store.series(2, "nonfinite")
    assert (bad.mean.tolist(), bad.nonfinite.tolist()) == ([1.0, 1.0], [1, 1])
    assert STAT_NAMES[-2:] == ("zero_fraction", "nonfinite")


def test_a_nonfinite_step_wins_its_cell_of_the_heatmap(store: Store) -> None:
    shown = store.heatmap("output_grad", "max", columns=1)
    assert np.isnan(shown.worst[0, 0])
    assert shown.nonfinite.tolist() == [[2]]
    assert shown.taps == (TAPS[2],)


def test_a_heatmap_of_very_many_taps_has_fewer_columns_and_loses_no_step(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = store.heatmap("output", "rms", columns=5000)
    monkeypatch.setattr(module_of("Question", "store"), "MAX_CELLS", 2 * len(whole.taps))
    found = store.heatmap("output", "rms", columns=5000)
    assert (len(found.first_step), len(whole.first_step) > 2) == (2, True)
    assert found.present.sum() == whole.present.sum()
    assert found.nonfinite.sum() == whole.nonfinite.sum()


def test_heatmap_rows_are_grouped_to_the_requested_number(store: Store) -> None:
    shown = store.heatmap("output", "max", columns=1, rows=1)
    assert shown.worst.tolist() == [[5.0]]
    assert (shown.numbers.tolist(), shown.groups.tolist()) == ([0], [2])
    assert store.heatmap(store.taps("zzz", "output"), "max").worst.shape == (0, 0)
    assert store.heatmap("output", "max", first=50).worst.shape == (0, 0)


def test_latest_is_sorted_with_non_finite_values_first(store: Store) -> None:
    found = store.latest(sort="mean")
    assert found.numbers.tolist() == [2, 0, 1]
    assert found.steps.tolist() == [3, 3, 1]
    assert store.latest(sort="-mean").numbers.tolist() == [2, 1, 0]
    assert store.latest(sort="ratio", stat="ratio", limit=1).values.shape == (1, 1)
    assert store.latest("output_grad").taps == (TAPS[2],)
    assert Store(2**20).latest().values.shape == (0, len(STAT_NAMES))


def test_a_tensor_with_one_nan_is_before_all_others_however_small_its_finite_values_are() -> None:
    store = Store(2**20)
    store.append(frame(0, {0: [5.0], 1: [0.0, np.nan], 2: [9.0]}, TAPS))
    for sort in ("norm", "-norm", "rms"):
        assert store.latest(sort=sort).numbers[0] == 1
    assert store.latest(sort="norm").numbers.tolist() == [1, 2, 0]
    assert store.latest(sort="count").numbers.tolist() == [1, 0, 2]


def test_the_latest_values_of_a_tap_outlive_the_exact_rows() -> None:
    store = Store(2**20)
    store.append(frame(0, {0: [3.0, 4.0]}, TAPS))
    for step in range(1, 3000):
        store.append(frame(step, {1: [1.0]}))
    found = store.latest(stat="norm")
    assert (found.steps.tolist(), found.values[:, 0].tolist()) == ([0, 2999], [5.0, 1.0])


def test_the_newest_values_in_a_range_are_exact_or_name_the_merged_steps_they_average() -> None:
    store = Store(2**20)
    for step in range(0, 3_000, 3):
        rows = {0: [float(step)], 2: [np.nan if step == 303 else 1.0]} if step % 2 else {0: [float(step)], 1: [-1.0]}
        store.append(frame(step, rows, TAPS if step == 0 else ()))
    exact = store.latest(first=2_997, last=2_997, merged=True)
    assert np.array_equal(exact.values[0], store.latest().values[0], equal_nan=True)
    assert store.latest(first=2_996, last=2_996, merged=True).numbers.tolist() == [], "this step was not captured"
    old = store.latest(first=303, last=303, merged=True)
    assert old.numbers.tolist() == [0, 1, 2]
    assert old.first_steps[0] <= 303 <= old.steps[0]
    assert old.first_steps[0] < old.steps[0], "this test is about steps that are merged"
    merged = store.series(0, "mean", 303, 303)
    mean = old.values[0, STAT_NAMES.index("mean")]
    assert (old.first_steps[0], old.steps[0], mean) == (merged.first_step[0], merged.last_step[0], merged.mean[0])
    assert old.values[2, STAT_NAMES.index("nan")] == 1, "one NaN in eight steps must not be an eighth"
    both = store.latest(first=0, last=2_999, merged=True)
    assert both.steps.tolist() == store.latest().steps.tolist()
    smallest = store.latest(stat="mean", sort="-mean", limit=2, first=303, last=303, merged=True)
    assert smallest.taps == (TAPS[2], TAPS[1]), "the one with a NaN is the first"
    assert store.latest("output_grad", first=300, last=310, merged=True).taps == (TAPS[2],)


def test_captured_rows_are_every_captured_step_once(store: Store) -> None:
    assert [ends.tolist() for ends in store.captured_rows()] == [[1, 3], [1, 3]]
    assert [ends.tolist() for ends in store.captured_rows(2, 2)] == [[], []]
    assert [ends.tolist() for ends in store.captured_rows(2)] == [[3], [3]]
    for step in range(4, 3_000):
        store.append(frame(step, {0: [1.0]}))
    first, last = store.captured_rows()
    assert (first[0], last[-1]) == (1, 2_999)
    assert (first[1:] > last[:-1]).all()
    assert [ends.tolist() for ends in Store(2**20).captured_rows()] == [[], []]


def test_scalars_count_non_finite_values_separately(store: Store) -> None:
    loss = store.scalars("loss")
    assert loss.present.tolist() == [1, 1]
    assert loss.nonfinite.tolist() == [0, 1]
    assert loss.mean[0] == 2.0
    assert np.isnan(loss.mean[1])
    assert store.scalars("hookcore/grad_scale").mean.tolist() == [8.0]
    assert store.scalars("hookcore/micro_batches").first_step.tolist() == [3]
    assert set(store.scalar_names()) == {
        "loss",
        *(f"hookcore/{name}" for name in ("time_s", "grad_scale", "micro_batches")),
    }


def test_a_scalar_logged_twice_in_a_step_has_the_later_value(store: Store) -> None:
    store.append(frame(3, {}, scalars={"loss": 0.5, "lr": 0.1}))
    assert store.scalars("loss").mean.tolist() == [2.0, 0.5]
    assert store.scalars("lr").first_step.tolist() == [3]


def test_scalars_without_room_are_refused_and_counted() -> None:
    store = Store(2**20)
    for step in range(200):
        store.append(frame(step, {}, scalars={f"s{step}.{number}": 1.0 for number in range(20)}))
        usage = store.usage()
        assert all(part.nbytes <= part.limit for part in usage.parts.values())
    assert store.usage().dropped["scalars_refused"] > 0
    assert store.scalars("s0.0").mean.tolist() == [1.0]
    assert "scalars-refused" in [event.name for event in store.events()]


def test_the_oldest_events_are_dropped_first_at_their_limit() -> None:
    store = Store(2**20)
    for step in range(1000):
        store.add_event(
            Event(step, 0.0, "odd" if step % 2 else "even", "x" * 100, "error" if step % 10 == 0 else "info")
        )
    kept = store.events()
    usage = store.usage()
    assert kept[-1].step == 999
    assert [event.step for event in kept] == list(range(1000 - len(kept), 1000))
    assert usage.dropped["events_dropped"] == 1000 - len(kept) > 0
    assert usage.parts["events"].nbytes <= usage.parts["events"].limit
    assert [event.step for event in store.events(severity="error", limit=2)] == [980, 990]
    assert {event.name for event in store.events(first=995, last=998, name="odd")} == {"odd"}


def test_snapshots_are_copied_and_the_oldest_are_dropped_to_make_room() -> None:
    store = Store(2**20)
    values = np.zeros(5000, np.float64)
    for step in range(10):
        values[:] = step
        store.add_snapshot(Snapshot(TAPS[0], step, 0.0, "float64", (5000,), values))
    kept = store.snapshots()
    assert [snapshot.step for snapshot in kept] == [8, 9]
    assert all((snapshot.values == snapshot.step).all() for snapshot in kept)
    assert store.usage().dropped["snapshots_dropped"] == 8
    store.add_snapshot(Snapshot(TAPS[0], 10, 0.0, "float64", (50_000,), np.zeros(50_000)))
    assert store.usage().dropped["snapshots_refused"] == 1
    assert [event.name for event in store.events()] == ["snapshot-refused"]


def test_modules_and_coverage_are_replaced_by_path_and_bounded() -> None:
    store = Store(2**20, names_bytes=50_000)
    store.describe([ModuleRecord("a", "Linear", None)], [Coverage("a", "Linear", False, reason="unused")])
    assert [covered.captured for covered in store.coverage()] == [False]
    store.describe([ModuleRecord("a", "Linear", None, parameters=3)], [Coverage("a", "Linear", True)])
    assert [module.parameters for module in store.modules()] == [3]
    assert [covered.captured for covered in store.coverage()] == [True]
    store.describe([ModuleRecord("b", "Linear", None)])
    assert [covered.captured for covered in store.coverage()] == [True, False]
    store.announce((Tap("b", "output"),))
    assert [covered.captured for covered in store.coverage()] == [True, True]
    store.describe([ModuleRecord(f"m{number}", "Linear", None) for number in range(1000)])
    usage = store.usage()
    assert usage.dropped["names_refused"] == 1002 - len(store.modules()) > 0
    assert usage.parts["names"].nbytes <= usage.parts["names"].limit


def test_names_and_coverage_of_a_large_model_fit_into_a_small_store() -> None:
    store = Store(2**20)
    paths = [f"encoder.layers.{number}.attention.projection" for number in range(5000)]
    store.describe(
        [ModuleRecord(path, "Linear", None, shapes=(("weight", (3, 3)),)) for path in paths],
        [Coverage(path, "Linear", False, reason="not called in this step") for path in paths],
    )
    store.append(frame(4, {0: [1.0]}, (Tap("a", "output"),)))
    assert len(store.modules()) == len(store.coverage()) == 5000
    assert not any(store.usage().dropped.values())


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_a_store_that_shrinks_loses_only_resolution(share: float) -> None:
    rng = np.random.default_rng(7)
    store = Store(8 * 2**20)
    store.announce(tuple(Tap(f"m{number}", "output") for number in range(50)))
    steps, block = 1200, block_of([sketch_of(rng.standard_normal(1000).astype(np.float32))] * 50)
    means = rng.standard_normal((steps, 50))
    for step in range(steps):
        stats = build.stats_of(50, 1.0, mean=means[step])
        store.append(build.frame(step, stats, sketches=block, scalars={"loss": step}))
    store.add_event(Event(5, 0.0, "note", "text"))
    before = store.usage()
    assert before.merged["stats"] > 0  # it is full
    saved = store.shrink(int(store.usage().max_bytes * share))
    after = store.usage()
    assert before.nbytes - after.nbytes == saved > 0
    assert all(part.nbytes <= part.limit for part in after.parts.values())
    assert after.dropped == before.dropped
    assert (store.steps().first, store.steps().newest, store.steps().count) == (0, steps - 1, steps)
    series = store.series(3, "mean", points=100_000)
    assert series.present.sum() == steps
    assert (series.min.min(), series.max.max()) == (means[:, 3].min(), means[:, 3].max())
    assert store.histograms(3, columns=1).counts.sum() == steps * 1000
    assert [event.name for event in store.events()] == ["note"]
    for step in range(steps, steps + 100):  # it still works
        store.append(build.frame(step, build.stats_of(50, 1.0), sketches=block))
    assert store.usage().dropped == before.dropped
    assert store.series(3, "mean", points=100_000).present.sum() == steps + 100


def test_labels_show_their_newest_text(store: Store) -> None:
    store.append(frame(4, {}, labels={"optimizer": "SGD"}))
    store.append(frame(5, {}, labels={"optimizer": "AdamW", "gradients": "unscaled"}))
    assert store.labels() == {"optimizer": "AdamW", "gradients": "unscaled"}


def test_sketches_without_room_are_cut_and_counted_and_the_stats_stay_complete() -> None:
    store, taps = Store(2**20), 40
    wide = sketch_of(np.geomspace(1e-12, 1e6, 5000))
    new = tuple(Tap(f"m{tap}", "output") for tap in range(taps))
    for step in range(20):
        store.append(build.frame(step, build.stats_of(taps, 1.0), new, sketches=block_of([wide] * taps)))
        new = ()
        assert store.usage().parts["sketches"].nbytes <= store.usage().parts["sketches"].limit
    assert store.usage().dropped["sketches_refused"] > 0
    assert store.histograms(0).counts.sum() == 20 * 5000
    assert store.histograms(taps - 1).counts.size == 0
    assert store.series(taps - 1, "count").present.sum() == 20


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.05, 0.9]))
def test_numbers_of_values_of_any_size_are_added_exactly(seed: int, large: float) -> None:
    random, ladder, taps = np.random.default_rng(seed), SketchLadder(100_000, threading.Lock()), np.arange(5)
    total = np.zeros((5, BINS), object)
    for step in range(60):
        filled = (random.random((5, BINS)) < 0.2) & (np.arange(BINS) < 100)
        counts = np.where(random.random(filled.sum()) < large, 2**32 - 1, random.integers(1, 2**16, filled.sum()))
        start = np.append(0, filled.sum(axis=1).cumsum()).astype(np.uint32)
        block = SketchBlock(start, np.nonzero(filled)[1].astype(np.uint16), counts.astype(np.uint32))
        ladder.append(step, taps.astype(np.uint32), block)
        total[filled] += counts
    entries = ladder.entries(None, None)
    assert ladder.refused == 0
    assert len(entries) < 60, "some are sums"
    for tap in taps:
        summed = np.zeros(BINS, object)
        for bins, counts in filter(None, (entry.row(tap) for entry in entries)):
            summed[bins] += counts.astype(object)
        assert (summed == total[tap]).all()
    assert (Sample(tuple(entries)).sums(np.array([1, 3])) == total[[1, 3]].astype(np.float64)).all()


def test_a_histogram_of_few_values_takes_four_bytes_for_each_filled_bin() -> None:
    store, bins = Store(2**24), np.arange(1000, dtype=np.uint16)
    block = SketchBlock(np.array([0, 1000], np.uint32), bins, np.full(1000, 65_535, np.uint32))
    store.append(build.frame(0, build.stats_of(1, 1.0), TAPS[:1], sketches=block))
    assert store.usage().parts["sketches"].nbytes < 4000 + 1000
    assert store.histograms(0).counts.sum() + store.histograms(0).negative_infinity.sum() == 1000 * 65_535


def test_old_histograms_are_merged_evenly() -> None:
    store, steps = Store(2**20), 4000
    block = block_of([sketch_of(np.geomspace(1e-6, 1e3, 1000))] * 4)
    new = tuple(Tap(f"m{tap}", "output") for tap in range(4))
    for step in range(steps):
        store.append(build.frame(step, build.stats_of(4, 1.0), new, sketches=block))
        new = ()
    shown = store.histograms(0, columns=steps)
    lengths = shown.last_step - shown.first_step + 1
    assert lengths.max() > 1, "some are merged"
    assert lengths.max() <= steps / 8, "none covers much more of the run than its neighbors"


def test_captured_steps_are_counted_from_a_step_on() -> None:
    store = Store(2**20)
    for step in (0, 3, 4, 9):
        store.append(build.frame(step, build.stats_of(1, 1.0), TAPS if step == 0 else ()))
    assert [store.captured(first) for first in (None, 0, 3, 4, 5, 10)] == [4, 4, 3, 2, 1, 0]


def test_sketch_arrays_that_are_views_are_copied_and_others_are_not() -> None:
    store, buffer = Store(2**20), np.array([700, 701, 702], np.uint16)
    counts = np.array([5], np.uint32)
    block = SketchBlock(np.array([0, 1], np.uint32), buffer[:1], counts)
    store.append(build.frame(0, build.stats_of(1, 1.0), TAPS, sketches=block))
    buffer[:] = 0
    assert store.histograms(0).counts.sum() == 5


def test_a_sink_passes_frames_to_its_store_until_it_is_closed() -> None:
    store = Store(2**20)
    sink = StoreSink(store)
    assert isinstance(sink, Sink)
    sink.send(frame(0, {0: [1.0]}, TAPS))
    sink.describe([ModuleRecord("a", "Linear", None)])
    sink.close()
    sink.close()
    assert (store.steps().newest, len(store.modules())) == (0, 1)
    with pytest.raises(ClosedError, match="closed"):
        sink.send(frame(1, {0: [1.0]}))


def test_the_store_imports_neither_torch_nor_numba_nor_a_web_library() -> None:
    root = Path(hookcore.store.__file__).parent
    for source in [*root.glob("*.py"), root.parent / "records" / "sketch.py", root.parent / "delivery" / "sinks.py"]:
        for node in ast.walk(ast.parse(source.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {name.split(".")[0] for name in names} & {"torch", "numba", "starlette", "fastapi", "httpx"}


def test_coverage_never_reports_refused_tensors_as_captured() -> None:
    store = Store(2**20)
    kinds = ("output", "output_grad")
    taps = tuple(Tap(f"m{number}", kind) for number in range(300) for kind in kinds)
    store.announce(taps)
    store.describe((), [Coverage(f"m{number}", "Linear", True, kinds) for number in range(300)])
    store.describe((), [Coverage("idle", "Linear", False, reason="not called")])
    kept = store.taps().taps
    assert 0 < len(kept) < len(taps)
    assert store.refused_taps == len(taps) - len(kept)
    coverage = {each.path: each for each in store.coverage()}
    for path, found in coverage.items():
        have = tuple(tap.kind for tap in kept if tap.module == path)
        assert (found.captured, found.kinds) == (bool(have), have)
        assert ("refused by the store" in found.reason) == (path != "idle" and have != kinds)
    assert coverage["idle"].reason == "not called"
    assert f"room for {len(kept)} of 600 tensors" in coverage["m299"].reason


def test_the_empty_magnitudes_around_zero_share_one_bin_of_a_histogram() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    values = values[np.abs(values) > 1e-3]
    store = Store(2**21)
    store.append(frame(0, {0: values.tolist()}, (TAPS[0],)))
    shown = store.histograms(0, bins=80)
    filled = shown.counts[0] > 0
    assert 60 < filled.sum() <= 80
    around = int(np.searchsorted(shown.edges, 0.0, side="right")) - 1
    assert shown.counts[0][around] == 0
    assert 5e-4 < shown.edges[around + 1] == -shown.edges[around] <= 1.1e-3
    assert shown.counts.sum() == len(values)


def test_the_size_that_a_store_states_is_what_it_holds() -> None:
    taps = tuple(Tap(f"layers.{number}", "output") for number in range(60))
    random = np.random.default_rng(0)
    kinds = [sketch_of(random.normal(0, scale, 2000)) for scale in np.geomspace(1e-4, 10, 60)]
    blocks = [block_of(kinds[first:] + kinds[:first]) for first in range(8)]

    def add(store: Store, first: int, last: int) -> None:
        for step in range(first, last):
            stats, block = random.random((60, len(STATS))), blocks[step % 8]
            own = SketchBlock(block.start.copy(), block.bins.copy(), block.counts.copy())
            store.append(build.frame(step, stats, taps if step == 0 else (), sketches=own))

    add(Store(2**23), 0, 600)  # NumPy imports some of its modules as late as this
    gc.collect()
    tracemalloc.start()
    try:
        store = Store(2**23)
        for first in range(0, 2500, 500):  # exact rows only at first, then merged ones, too, up to the limit
            add(store, first, first + 500)
            gc.collect()
            usage = store.usage()
            assert usage.nbytes <= usage.max_bytes + usage.parts["names"].nbytes
            assert tracemalloc.get_traced_memory()[0] == pytest.approx(usage.nbytes, rel=0.05, abs=100_000)
    finally:
        tracemalloc.stop()

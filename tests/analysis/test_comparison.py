"""The comparison of two stores, checked cell by cell, and its REST addresses."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from hookcore.errors import ArgumentError, PatternError
from hookcore.records import Tap
from hookcore.store import Store
from hookcore_app.analysis.comparison import ComparisonQuery, Pairs, compare, differences, renamer
from tests.api_world import STEPS, TAPS, World, make_frame, open_run, value_at

NAN = math.nan


@pytest.fixture
def world() -> World:
    return World()


def filled(taps: list[Tap], rows: dict[int, list[float]]) -> Store:
    """Return a store with these rms values at these steps."""
    store = Store(8_000_000)
    for place, (step, values) in enumerate(rows.items()):
        store.append(make_frame(step, values, new_taps=tuple(taps) if not place else ()))
    return store


def share(one: float, two: float) -> float:
    """Return the difference of two values as a share; infinite if only one is a number."""
    if one == two or (math.isnan(one) and math.isnan(two)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(two)):
        return math.inf
    return abs(two - one) / max(abs(one), abs(two))


def test_every_cell_is_the_largest_share_of_its_layers_and_steps() -> None:
    rng = np.random.default_rng(3)
    taps = [Tap(f"m.{place}", "output") for place in range(150)]
    values = rng.normal(size=(2, 30, 150))
    values[1, :, ::3] = values[0, :, ::3]
    values[rng.random(values.shape) < 0.01] = NAN
    # The second store numbers its taps in reverse and has only every second step.
    one = filled(taps, {step: values[0, step].tolist() for step in range(30)})
    two = filled(taps[::-1], {step: values[1, step, ::-1].tolist() for step in range(10, 30, 2)})
    asked = ComparisonQuery("rms")
    pairs = Pairs.of(one, two, asked)
    for columns, rows in ((100, 200), (7, 40), (1, 1)):
        found = differences(one, two, pairs, asked, columns, rows)
        ends = [*found.starts.tolist()[1:], 150]
        for row, (start, end) in enumerate(zip(found.starts.tolist(), ends, strict=True)):
            for column, (first, last) in enumerate(zip(found.first_step, found.last_step, strict=True)):
                steps = [step for step in range(10, 30, 2) if first <= step <= last]
                cells = [share(*values[:, step, lane].tolist()) for step in steps for lane in range(start, end)]
                wanted = max(cells) if cells else NAN
                assert found.share[row, column] == pytest.approx(wanted, nan_ok=True)


def test_a_map_takes_memory_for_its_rows_not_for_all_layers() -> None:
    taps = [Tap(f"m.{place}", "output") for place in range(400)]
    one = filled(taps, {step: [1.0] * 400 for step in (0, 4999)})
    asked = ComparisonQuery("rms")
    pairs = Pairs.of(one, one, asked)
    tracemalloc.start()
    assert differences(one, one, pairs, asked, 5000, 4).share.shape == (4, 5000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000  # 5,000 columns of 400 layers would be 16 MB


def test_each_layer_has_its_largest_share_and_its_step() -> None:
    taps = [Tap("a", "output"), Tap("b", "output")]
    one = filled(taps, {0: [1.0, 1.0], 1: [1.0, 1.0], 2: [1.0, 1.0]})
    two = filled(taps, {0: [1.0, 1.0], 1: [2.0, NAN], 2: [1.5, 1.0]})
    asked = ComparisonQuery("rms")
    layers = compare(one, two, Pairs.of(one, two, asked), asked, 10)
    assert [(layer.share, layer.at_step, layer.parts_at) for layer in layers] == [(0.5, 1, 1), (math.inf, 1, 1)]


def test_renamed_modules_are_matched_and_others_stay_unmatched() -> None:
    one = filled([Tap("enc.0", "output"), Tap("enc.1", "output"), Tap("head", "output")], {0: [1.0, 2.0, 3.0]})
    two = filled([Tap("encoder.block1", "output"), Tap("encoder.block0", "output")], {0: [2.0, 5.0]})
    assert Pairs.of(one, two, ComparisonQuery("rms")).taps == ()
    asked = ComparisonQuery("rms", rename=r"^encoder\.block(\d+)$ -> enc.\1")
    pairs = Pairs.of(one, two, asked)
    assert [(tap.module, numbers) for tap, numbers in zip(pairs.taps, pairs.numbers, strict=True)] == [
        ("enc.0", (0, 1)),
        ("enc.1", (1, 0)),
    ]
    assert [tap.module for tap in pairs.alone[0]] == ["head"]
    assert [layer.share for layer in compare(one, two, pairs, asked, 1)] == [0.8, 0.0]


@pytest.mark.parametrize("rule", ["no arrow", "-> x", "( -> x", "a -> \\7", "(?=a) -> x"])
def test_a_rule_that_renames_nothing_is_reported(rule: str) -> None:
    with pytest.raises((ArgumentError, PatternError)):
        renamer(rule)


def test_a_name_that_no_expression_matches_is_unchanged() -> None:
    assert renamer("a -> b")("a\ud800") == "a\ud800"


def test_runs_without_a_common_step_have_no_columns() -> None:
    taps = [Tap("a", "output")]
    one, two, asked = filled(taps, {0: [1.0]}), filled(taps, {5: [1.0]}), ComparisonQuery("rms")
    found = differences(one, two, Pairs.of(one, two, asked), asked, 10, 10)
    assert found.share.shape == (1, 0)
    nothing = Store(8_000_000)
    assert differences(one, nothing, Pairs.of(one, nothing, asked), asked, 10, 10).share.shape == (0, 0)


# -- the addresses -----------------------------------------------------------------------------------------------------


def other_run(world: World, changed: dict[tuple[int, int], float]) -> None:
    """Return a second run with the values of the first, except for some (step, row)."""
    run = open_run(world.runs, "two", started_s=0.0)
    for step in range(STEPS):
        values = [changed.get((step, row), value_at(step, row)) for row in range(len(TAPS))]
        run.store.append(make_frame(step, values, new_taps=TAPS if step == 0 else ()))


def test_the_matrix_marks_equal_cells_and_cells_finite_in_one_run_only(world: World) -> None:
    other_run(world, {(3, 0): value_at(3, 0) * 2, (4, 0): NAN})
    said: dict[str, Any] = world.json("compare/heatmap", runs="one,two")
    assert (len(said["rows"]), len(said["first_step"])) == (len(TAPS), STEPS)
    assert said["worst"][0][2:6] == [0.0, 0.5, "NaN", 0.0]
    assert said["state"][0][2:6] == [1, 1, 2, 1]
    assert [place for place, state in enumerate(said["state"][1]) if state != 1] == [7]
    assert said["state"][1][7] == 3  # NaN in both runs is no difference, but is marked differently from equal values
    assert said["rows"][0]["numbers"] == [0, 0]


def test_the_matrix_comes_in_every_format(world: World) -> None:
    other_run(world, {(3, 0): value_at(3, 0) * 2})
    matrix = np.load(_file(world.get("compare/heatmap", runs="one,two", format="npy").content), allow_pickle=False)
    assert matrix.shape == (len(TAPS), STEPS)
    assert matrix[0, 3] == 0.5
    lines = world.get("compare/heatmap", runs="one,two", format="csv").text.splitlines()
    assert len(lines) == 1 + len(TAPS)
    assert world.get("compare/heatmap", runs="one,two", format="arrow").status_code == 200


def _file(data: bytes) -> Any:
    import io

    return io.BytesIO(data)


def test_layers_come_in_the_requested_order(world: World) -> None:
    other_run(world, {(5, 3): value_at(5, 3) * 2, (9, 1): value_at(9, 1) * 10, (2, 4): value_at(2, 4) * 1.1})
    order = {
        sort: [layer["tap"]["number"] for layer in world.json("compare", runs="one,two", sort=sort)["layers"]]
        for sort in ("model", "share", "step")
    }
    assert order == {"model": [0, 1, 2, 3, 4], "share": [1, 3, 4, 0, 2], "step": [4, 3, 1, 0, 2]}


def test_one_module_is_compared_by_its_path(world: World) -> None:
    other_run(world, {})
    layers = world.json("compare", runs="one,two", module="layers.1")["layers"]
    assert {layer["tap"]["module"] for layer in layers} == {"layers.1"}
    assert world.json("compare", runs="one,two", module="layers.*")["layers"] == []


def test_a_meaningless_comparison_is_refused(world: World) -> None:
    other_run(world, {})
    assert "cells" in world.error("compare/heatmap", 400, runs="one,two", columns=5000, rows=5000)
    assert "rename" in world.error("compare/heatmap", 400, runs="one,two", rename="x")
    assert "stat" in world.error("compare/heatmap", 400, runs="one,two", stat="mena")

"""Tensors as pictures over REST: pooling never hides the worst value, and statistics come from the exact values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hookcore.records import Snapshot
from hookcore_app.analysis.tiles import factors_of, pool, real_of, statistics_of, tiles_of
from tests.api_world import TAPS, World, csv_columns, npy, same
from tests.lanes import examples

NUMBERS = st.floats(-1e6, 1e6, width=32) | st.sampled_from([math.nan, math.inf, -math.inf])


@pytest.fixture
def world() -> World:
    return World()


def add(world: World, values: Any, number: int = 77) -> str:
    world.run.store.add_snapshot(Snapshot(TAPS[1], 5, 1.0, str(values.dtype), values.shape, values, number=number))
    return f"snapshots/{number}"


def _worst(cell: list[float]) -> float:
    if any(value != value for value in cell):
        return math.nan
    return max(cell, key=lambda value: (abs(value), value > 0))


@given(
    arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7)), elements=NUMBERS), st.data()
)
@settings(max_examples=examples(60), deadline=None)
def test_a_pooled_cell_is_correct_for_all_its_values(tiles: Any, data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8))
    down, across = factors_of(tiles.shape, rows, columns)
    truths = {"worst": _worst, "min": np.min, "max": np.max, "mean": lambda cell: np.mean(np.array(cell, np.float64))}
    for how, truth in truths.items():
        found = pool(tiles, rows, columns, how)  # type: ignore[arg-type]
        assert found.shape[1] <= rows
        assert found.shape[2] <= columns
        for place, row, column in np.ndindex(found.shape):
            part = tiles[place, row * down : (row + 1) * down, column * across : (column + 1) * across]
            with np.errstate(invalid="ignore"):
                expected = truth(part.ravel().tolist())
            assert np.isclose(np.float32(expected), found[place, row, column], rtol=1e-5, atol=1e-2, equal_nan=True)


def test_any_tensor_becomes_tiles() -> None:
    assert tiles_of(np.array(3.0)).shape == (1, 1, 1)
    assert tiles_of(np.arange(4)).shape == (1, 1, 4)
    assert tiles_of(np.zeros((2, 3, 4, 5))).shape == (6, 4, 5)
    assert tiles_of(np.zeros((0, 3, 4))).shape == (0, 3, 4)
    assert same(real_of(np.array([3 + 4j])), [5.0])
    assert real_of(np.array([True])).dtype == np.float32
    assert real_of(np.array([2**40 + 1])).tolist() == [2**40 + 1]


def test_tiles_are_cut_pooled_and_paged(world: World) -> None:
    values = np.arange(2 * 3 * 4 * 6, dtype=np.float32).reshape(2, 3, 4, 6)
    values[1, 2, 3, 5] = np.nan
    path = add(world, values)
    said = world.json(f"{path}/tiles", slice="1", rows=2, columns=3)
    assert (said["total"], said["tile_shape"], said["factors"]) == (3, [4, 6], [2, 2])
    assert said["values"][2][1][2] == "NaN"
    assert said["values"][0][0][0] == values[1, 0, 1, 1]
    assert same(npy(world.get(f"{path}/tiles", format="npy", slice="1", after=1, limit=1).content), values[1, 1:2])
    assert same(world.json(f"{path}/tiles")["values"], values.reshape(6, 4, 6))
    assert world.json(f"{path}/tiles", slice="0,0,0,0")["values"] == [[[0.0]]]
    assert "more than 2000000" in world.error(f"{add(world, np.zeros((40, 256, 256), np.int8), 78)}/tiles", 400)
    assert "no snapshot 5000" in world.error("snapshots/5000/tiles", 404)
    assert "does not fit" in world.error(f"{path}/tiles", 400, slice="9")


def test_statistics_are_of_the_exact_values_in_float64(world: World) -> None:
    draw = np.random.default_rng(0)
    values = (draw.normal(3, 2, (4, 500)) * 1e-3 + 100).astype(np.float32)
    values[0, :4] = [np.nan, np.inf, -np.inf, 0]
    said = world.json(f"{add(world, values)}/statistics", slice="0")
    found, finite = said["statistics"], values[0][np.isfinite(values[0])].astype(np.float64)
    assert said["shape"] == [500]
    assert (found["count"], found["nan"], found["inf"], found["zero"]) == (500, 1, 2, 1)
    expected = {"mean": finite.mean(), "std": finite.std(), "min": finite.min(), "max": finite.max()}
    expected |= {"rms": np.sqrt((finite**2).mean()), "p5": np.quantile(finite, 0.05), "p50": np.median(finite)}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12), name


def test_casts_in_blocks_keep_what_one_scale_for_all_values_loses(world: World) -> None:
    values = np.random.default_rng(0).normal(size=(4, 500)).astype(np.float32)
    values[0, :8] *= 1e7
    path = add(world, values)
    found = world.json(f"{path}/casts")
    assert (found["values"], found["of"]) == (2000, 2000)
    one, blocks = found["formats"]["e4m3"], found["formats"]["mxfp8"]
    assert (one["block"], blocks["block"], found["formats"]["nvfp4"]["block"]) == (0, 32, 16)
    assert one["underflow"] > 0.99
    assert one["most_noise"] > 0.99
    assert blocks["underflow"] < 0.02
    assert blocks["most_noise"] < 0.2
    assert world.json(f"{path}/casts", slice="1,:7")["of"] == 7
    nothing = add(world, np.array([0.0, np.nan], np.float32), 78)
    assert world.json(f"{nothing}/casts")["formats"] == {}


def test_statistics_neither_overflow_nor_vanish() -> None:
    large = statistics_of(np.array([1e308, -1e308, 1e308]))
    assert large["std"] == pytest.approx(1e308 * (math.sqrt(8) / 3), rel=1e-12)
    assert statistics_of(np.array([3e-300, 4e-300]))["rms"] == pytest.approx(math.sqrt(12.5) * 1e-300, rel=1e-12)
    nothing = statistics_of(np.array([np.nan]))
    assert (nothing["count"], nothing["nan"]) == (1, 1)
    assert math.isnan(nothing["mean"])
    assert math.isnan(nothing["p50"])
    assert statistics_of(np.array([True, False]))["mean"] == 0.5
    assert statistics_of(np.array([3 + 4j]))["max"] == 5


def test_histograms_of_several_taps_equal_those_of_each(world: World) -> None:
    said = world.json("histograms", tap=["2", TAPS[0].label], columns=6, bins=9)["histograms"]
    for each, tap in zip(said, (2, 0), strict=True):
        alone = world.json("histograms", tap=tap, columns=6, bins=9)
        assert each == {name: value for name, value in alone.items() if name != "run"}
    rows = csv_columns(world.get("histograms", "text/csv", tap=["2", "0"]).content)
    assert sum(map(int, rows["count"])) == sum(
        sum(map(sum, world.json("histograms", tap=tap)["counts"])) for tap in (2, 0)
    )
    assert set(rows["tap"]) == {"0", "2"}
    assert "tap" in world.error("histograms", 422)
    assert "99" in world.error("histograms", 400, tap=["1", "99"])
    assert "unknown tap 'x'" in world.error("histograms", 400, tap=["1", "x"])
    assert "bins: request fewer" in world.error("histograms", 400, tap=["1"] * 50, columns=2000, bins=80)

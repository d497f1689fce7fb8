"""Figures are valid for Plotly, contain the store's numbers, and mark non-finite values."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from msgspec.structs import replace

from hookcore.errors import ArgumentError
from hookcore.reading import StoreReader
from hookcore.reading.answers import Series
from hookcore.records import Snapshot, Tap
from hookcore.store import Store
from hookcore_app.analysis import figures
from hookcore_app.analysis.figures.lines import smoothed
from hookcore_app.analysis.figures.style import escaped, is_log, log_ticks
from tests.api_world import MATRIX, STEPS, TAPS, World, fill, open_run, value_at
from tests.build import append

CHARTS: list[dict[str, Any]] = [
    {"chart": "heatmap"},
    {"chart": "heatmap", "kind": "output_grad", "stat": "mean", "scale": "linear"},
    {"chart": "series", "tap": 1, "smooth": 3},
    {"chart": "series", "tap": "layers.0 output", "stat": "p90"},
    {"chart": "series", "match": "layers.*"},
    {"chart": "histograms", "tap": 1},
    {"chart": "profile", "kind": "output,output_grad"},
    {"chart": "profile", "step": 7},
    {"chart": "fan", "tap": 2},
    {"chart": "scalars"},
    {"chart": "scalars", "name": ["loss", "hookcore/time_s"], "from": 2, "to": 9},
    {"chart": "compare", "other": "two"},
    {"chart": "tensor", "number": 0},
    {"chart": "tensor", "number": 0, "slice": "1"},
]


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    fill(open_run(made.runs, "two"), 3.0)
    return made


def values_of(told: Any) -> Any:
    """Return the values of a typed array as Plotly writes it."""
    shape = [int(size) for size in told["shape"].split(",")] if "shape" in told else -1
    return np.frombuffer(base64.b64decode(told["bdata"]), told["dtype"]).reshape(shape)


def named(figure: dict[str, Any], name: str | None) -> list[dict[str, Any]]:
    return [trace for trace in figure["data"] if trace.get("name") == name]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("asked", CHARTS, ids=lambda asked: "-".join(map(str, asked.values())))
def test_every_chart_is_valid_for_plotly(world: World, asked: dict[str, Any], theme: str) -> None:
    told = world.json("figure", run="one", theme=theme, **asked)
    figure = go.Figure(told)
    assert figure.data
    assert figure.layout.paper_bgcolor == figures.THEMES[theme].paper
    assert figure.layout.title.text


def test_a_heatmap_has_the_worst_values_and_marks_nan_and_infinities_differently(world: World) -> None:
    told = world.json("figure", run="one", chart="heatmap")
    cells, nan, infinite = told["data"]
    values = values_of(cells["customdata"])
    assert values[0].tolist() == [value_at(step, 0) for step in range(STEPS)]
    assert np.allclose(values_of(cells["z"])[0], np.log10(values[0]), atol=1e-6)
    assert (nan["name"], infinite["name"]) == ("NaN", "infinity")
    assert np.argwhere(np.isfinite(values_of(nan["z"]))).tolist() == [[1, 7]]
    assert np.argwhere(np.isfinite(values_of(infinite["z"]))).tolist() == [[2, 9]]
    assert np.isnan(values_of(cells["z"])[1, 7])
    assert cells["y"][:2] == ["(root)", "layers.0"]
    assert values_of(cells["x"]).tolist() == [step - 0.5 for step in range(STEPS + 1)]


def test_color_bars_of_logarithms_show_values(world: World) -> None:
    bar = world.json("figure", run="one", chart="heatmap")["data"][0]["colorbar"]
    assert [float(text) for text in bar["ticktext"]] == pytest.approx([10.0**place for place in bar["tickvals"]])


def test_lines_mark_non_finite_values_at_the_axis(world: World) -> None:
    told = world.json("figure", run="one", chart="series", tap=1)
    (marks,) = named(told, "NaN or infinity")
    assert values_of(marks["x"]).tolist() == [7]
    assert marks["yaxis"] == "y2"
    (line,) = named(told, "layers.0 output")
    assert math.isnan(values_of(line["y"])[7])
    assert told["layout"]["yaxis"]["type"] == "log"
    linear = world.json("figure", run="one", chart="series", tap=1, scale="linear")
    assert "type" not in linear["layout"]["yaxis"]


def test_merged_points_have_a_band_of_their_extremes(world: World) -> None:
    told = world.json("figure", run="one", chart="series", tap=0, points=5)
    (low,), (high,) = named(told, "least"), named(told, "largest")
    assert high["fill"] == "tonexty"
    assert (values_of(low["y"]) < values_of(high["y"])).all()
    assert not named(world.json("figure", run="one", chart="series", tap=0), "least")


def test_a_smoothed_line_keeps_the_original_line_behind_it(world: World) -> None:
    told = world.json("figure", run="one", chart="series", tap=0, smooth=4)
    (behind,), (line,) = named(told, "(root) output (raw)"), named(told, "(root) output")
    assert behind["opacity"] < 0.5
    raw = values_of(behind["y"])
    assert raw.tolist() == [value_at(step, 0) for step in range(STEPS)]
    assert (values_of(line["y"])[1:] < raw[1:]).all()  # the values rise, so the mean lags


@settings(deadline=None)
@given(
    arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e6, 1e6) | st.just(math.nan)),
    st.floats(0.1, 100),
    st.integers(1, 9),
)
def test_smoothing_stays_within_the_values_and_is_not_biased(values: Any, half_life: float, stride: int) -> None:
    steps = np.arange(len(values)) * stride + 1000
    found = smoothed(steps, values, half_life)
    finite = np.isfinite(values)
    assert (np.isfinite(found) == finite).all()
    if finite.any():
        first = int(np.flatnonzero(finite)[0])
        assert found[first] == pytest.approx(values[first])
        bound = 1e-9 * np.abs(values[finite]).max() + 1e-12
        assert (found[finite] >= values[finite].min() - bound).all()
        assert (found[finite] <= values[finite].max() + bound).all()
    constant = smoothed(steps, np.where(finite, 3.5, np.nan), half_life)
    assert np.allclose(constant[finite], 3.5)


def test_smoothing_is_by_steps_and_not_by_points() -> None:
    dense = smoothed(np.array([0, 10]), np.array([0.0, 1.0]), 10.0)[-1]
    assert dense == pytest.approx(1 / 1.5)
    sparse = smoothed(np.array([0, 1000]), np.array([0.0, 1.0]), 10.0)[-1]
    assert sparse == pytest.approx(1.0)


def test_a_profile_has_a_bar_for_each_layer_and_a_cross_for_non_finite_ones(world: World) -> None:
    told = world.json("figure", run="one", chart="profile", step=7)
    (bars,) = named(told, "activation")
    assert bars["x"] == ["(root)", "layers.0", "layers.1 [past.1] call 2"]
    heights = values_of(bars["y"])
    assert heights[0] == value_at(7, 0)
    assert math.isnan(heights[1])
    (marks,) = named(told, "output: NaN or infinity")
    assert marks["x"] == ["layers.0"]


def test_histograms_hold_every_count_and_mark_steps_with_nan() -> None:
    found = World().run.reader.histograms(1)
    told = figures.histograms(found, figures.LIGHT, "t")
    assert values_of(told["data"][0]["customdata"]).sum() == found.counts.sum()
    assert values_of(told["data"][1]["x"]).tolist() == found.first_step[found.nan > 0].tolist()
    assert len(told["layout"]["yaxis"]["ticktext"]) == len(told["layout"]["yaxis"]["tickvals"]) > 1


def test_a_fan_chart_lists_its_bands_from_the_outside_in(world: World) -> None:
    told = world.json("figure", run="one", chart="fan", tap=0)
    names = [trace["name"] for trace in told["data"]]
    assert names[1::2][:3] == ["1 % to 99 %", "5 % to 95 %", "25 % to 75 %"]
    (middle,) = named(told, "50 %")
    assert values_of(middle["y"]) == pytest.approx([value_at(step, 0) for step in range(STEPS)], rel=0.07)


def test_a_comparison_shows_how_many_times_as_large_the_second_run_is(world: World) -> None:
    told = world.json("figure", run="one", chart="compare", other="two")
    cells = told["data"][0]
    ratios = values_of(cells["customdata"])
    assert ratios[0] == pytest.approx([3.0] * STEPS)
    assert cells["zmin"] == -cells["zmax"]
    (both,) = named(told, "non-finite in both runs")
    assert np.isfinite(values_of(both["z"])).sum() == 2


def test_a_comparison_matches_taps_in_a_different_order() -> None:
    one, two = Store(2**24), Store(2**24)
    taps = (Tap("a", "output"), Tap("b", "output"))
    for step in range(10):
        append(one, step, [1.0, 10.0], taps if step == 0 else ())
        append(two, step + 5, [20.0, math.nan], taps[::-1] if step == 0 else ())
    maps = figures.same_maps(StoreReader(one), StoreReader(two), "output", "rms", None, (None, None), 100, 100)
    assert maps[0].first_step.tolist() == [5, 6, 7, 8, 9]
    told = figures.difference(*maps, figures.LIGHT, "t")
    assert values_of(told["data"][0]["customdata"])[1].tolist() == pytest.approx([2.0] * 5)
    (only,) = named(told, "non-finite only in the second run")
    assert np.isfinite(values_of(only["z"])).tolist() == [[True] * 5, [False] * 5]
    with pytest.raises(ArgumentError, match="no layer in common"):
        figures.same_maps(StoreReader(one), StoreReader(two), "param", "rms", None, (None, None), 100, 100)


@pytest.mark.parametrize("part", ["", "0", "0,0", "1,:"])
def test_a_tensor_marks_nan_and_infinities(part: str) -> None:
    snapshot = Snapshot(TAPS[1], 3, 103.0, "float32", (2, 3), MATRIX)
    values = {"": MATRIX, "0": MATRIX[0], "0,0": MATRIX[0, 0:1][0], "1,:": MATRIX[1]}[part]
    told = figures.tensor(snapshot, np.asarray(values), figures.LIGHT, "t")
    go.Figure(told)
    assert bool(named(told, "NaN")) == bool(np.isnan(values).any())
    assert bool(named(told, "infinity")) == bool(np.isinf(values).any())


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        ({"chart": "series", "tap": 1, "stat": "mena"}, 400, "did you mean 'mean'"),
        ({"chart": "histograms"}, 400, "needs tap="),
        ({"chart": "compare"}, 400, "needs other="),
        ({"chart": "compare", "other": "nobody"}, 404, "unknown run"),
        ({"chart": "tensor"}, 400, "needs number="),
        ({"chart": "tensor", "number": 5}, 404, "no snapshot 5"),
        ({"chart": "heatmap", "kind": "outputs"}, 400, "did you mean 'output'"),
        ({"chart": "heatmap", "columns": 5000, "rows": 5000}, 400, "more than"),
        ({"chart": "scalars", "name": "los"}, 404, "did you mean 'loss'"),
        ({"chart": "pie"}, 422, "chart"),
    ],
)
def test_the_error_for_an_invalid_query_says_what_to_do(
    world: World, asked: dict[str, Any], status: int, told: str
) -> None:
    assert told in world.error("figure", status, run="one", **asked)


def test_charts_of_an_empty_run_are_empty_and_not_errors() -> None:
    world = World()
    open_run(world.runs, "empty", started_s=9.0)
    for chart in ("heatmap", "series", "profile", "scalars"):
        go.Figure(world.json("figure", run="empty", chart=chart))


def test_names_are_escaped(world: World) -> None:
    assert escaped("<b>a & b</b>") == "&lt;b&gt;a &amp; b&lt;/b&gt;"
    series = Series(
        "s", None, *(np.arange(2) for _ in range(2)), *(np.ones(2) for _ in range(3)), *2 * [np.zeros(2, np.uint32)]
    )
    told = figures.series([("<i>x</i>", series)], figures.LIGHT, "<b>")
    assert told["layout"]["title"]["text"] == "&lt;b&gt;"
    assert told["data"][0]["name"] == "&lt;i&gt;x&lt;/i&gt;"
    assert world


def test_a_constant_line_is_visible() -> None:
    steps = np.arange(3)
    series = Series("lr", None, steps, steps, *(np.full(3, 0.01) for _ in range(3)), *2 * [np.zeros(3, np.uint32)])
    low, high = figures.series([("lr", series)], figures.LIGHT, "lr")["layout"]["yaxis"]["range"]
    assert 0 < low < 0.01 < high < 0.1


@given(st.floats(-320, 200), st.floats(0, 100))
def test_ticks_of_logarithms_are_few_and_within_the_range(low: float, span: float) -> None:
    places, texts = log_ticks(low, low + span)
    assert 1 <= len(places) <= 12
    assert len(places) == len(texts)
    assert all(low - 1e-6 <= place <= low + span + 1e-6 for place in places)


def test_values_that_may_be_negative_have_no_logarithm() -> None:
    assert is_log("auto", "rms", np.array([1.0, math.nan]))
    assert not is_log("auto", "mean", np.array([1.0]))
    assert is_log("log", "mean", np.array([1.0]))
    assert not is_log("log", "mean", np.array([-1.0, 1.0]))
    assert not is_log("auto", "rms", np.array([0.0]))
    assert not is_log("auto", "zero_fraction", np.array([0.5]))


def test_charts_leave_out_what_was_not_captured_and_say_how_much() -> None:
    found = Series("rms", None, np.array([0, 1, 33, 65]), np.array([0, 1, 33, 65]), *np.ones((3, 4)))
    layout = figures.series([("rms", found)], figures.LIGHT, "t", "rms")["layout"]
    assert layout["xaxis"]["categoryarray"] == ["0", "1", "33", "65"]
    assert layout["xaxis"]["title"]["text"] == "captured steps; 31 steps left out at each mark"
    assert [mark["x0"] for mark in layout["shapes"]] == [1.5, 2.5]
    logged = figures.series([("acc", found)], figures.LIGHT, "t", captured=False)["layout"]["xaxis"]
    assert (logged["title"]["text"], "categoryarray" in logged) == ("step", False)
    whole = World().run.reader.heatmap("output", "rms")
    state = np.array(whole.state)
    state[:, 1:3] = figures.EMPTY
    seen = figures.captured_only(replace(whole, state=state))
    assert seen.first_step.tolist() == [0, *range(3, STEPS)]
    assert figures.heatmap(seen, figures.LIGHT, "t")["data"][0]["x"][:2] == ["0", "3"]

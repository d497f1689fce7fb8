"""The same values of many runs, for each run or as mean and range of each group, compared with plain sums."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest

from hookcore.records import Tap
from hookcore.store import Series
from hookcore_app.analysis.overlay import GRADIENT_NORM, band_of, name_of
from hookcore_app.api.routing import MAX_RUN_ID
from tests.build import append, open_run
from tests.serving import World, make_world

WEIGHT, BIAS, OUTPUT = Tap("0", "param_grad", "weight"), Tap("0", "param_grad", "bias"), Tap("0", "output")


def series_of(points: dict[int, float]) -> Series:
    steps, values = np.array(list(points), np.int64), np.array(list(points.values()))
    ones = np.ones(len(steps), np.uint32)
    finite = np.where(np.isfinite(values), values, np.nan)
    return Series("loss", None, steps, steps, finite, finite, finite, ones, (~np.isfinite(values)).astype(np.uint32))


@pytest.fixture
def world() -> World:
    """Return six runs: two learning rates by three seeds, with known losses and norms. One logs another name."""
    world = make_world()
    for place in range(6):
        name, lr = f"run-{place}", (0.1, 1.0)[place % 2]
        run = open_run(world.runs, name, name=f"seed {place // 2}", config={"lr": lr, "seed": place // 2})
        for step in range(10 if place else 4):  # the first one crashed
            new = (OUTPUT, WEIGHT, BIAS) if not step else ()
            logged = {"train/loss" if place == 5 else "loss": lr + step + place}
            append(run.store, step, [lr * step, 3.0 * (place + 1), 4.0 * (place + 1)], new, logged)
    return world


def ask(world: World, status: int = 200, **asked: Any) -> Any:
    asked.setdefault("runs", ",".join(f"run-{place}" for place in range(6)))
    answer = world.client.get("/api/v1/overlay", params=asked)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_each_run_is_a_line_with_its_own_values(world: World) -> None:
    found = ask(world, scalar="loss")
    assert [line["run"] for line in found["lines"]] == [f"run-{place}" for place in range(6)]
    for place, line in enumerate(found["lines"]):
        lr = (0.1, 1.0)[place % 2]
        assert line["mean"] == pytest.approx([lr + step + place for step in range(10 if place else 4)])
        assert line["source"] == ("train/loss" if place == 5 else "loss")
    assert found["without"] == []


def test_runs_with_one_name_are_told_apart_by_their_settings_or_by_when_they_began(world: World) -> None:
    found = ask(world, scalar="loss")
    assert [line["name"] for line in found["lines"][:3]] == ["seed 0 (lr 0.1)", "seed 0 (lr 1)", "seed 1 (lr 0.1)"]
    assert [line["name"] for line in ask(world, scalar="loss", runs="run-0,run-2")["lines"]] == ["seed 0", "seed 1"]
    for place in (6, 7):
        run = open_run(world.runs, f"run-{place}", name="again", config={"lr": 0.1}, started_s=1e9 + place)
        append(run.store, 0, [1.0], (OUTPUT,), {"loss": 1.0})
    one, two = (line["name"] for line in ask(world, scalar="loss", runs="run-6,run-7")["lines"])
    assert re.fullmatch(r"again \(\d\d-\d\d \d\d:\d\d:46\)", one)
    assert one != two
    page = world.client.get("/group?f=seed", headers={"Accept": "text/html"}).text
    assert "&#9733; seed 0 (lr 0.1)" in page


def test_fewer_steps_have_as_many_points(world: World) -> None:
    whole, part = ask(world, scalar="loss", points=5), ask(world, scalar="loss", points=5, **{"from": 5, "to": 8})
    assert len(whole["lines"][1]["mean"]) == 5
    assert part["lines"][0]["first_step"] == part["lines"][0]["last_step"] == [5, 6, 7, 8]
    assert part["lines"][0]["mean"] == pytest.approx([1.0 + step + 1 for step in range(5, 9)])
    assert part["without"] == ["run-0"]  # it had crashed before
    layer = {"tap": OUTPUT.label, "from": 5, "to": 8}
    assert [line["last_step"] for line in ask(world, **layer)["lines"]] == [[5, 6, 7, 8]] * 5
    norm = ask(world, scalar=GRADIENT_NORM, group_by="lr", band=True, **{"from": 5, "to": 8})
    assert [line["first_step"] for line in norm["lines"]] == [[5, 6, 7, 8]] * 2


def test_a_group_has_the_mean_and_the_range_of_its_runs(world: World) -> None:
    found = ask(world, scalar="loss", group_by="lr", band=True)
    assert [(line["run"], line["name"]) for line in found["lines"]] == [(None, "0.1"), (None, "1")]
    small, large = found["lines"]
    at = dict(zip(large["first_step"], zip(large["mean"], large["min"], large["max"], strict=True), strict=True))
    for step in range(10):  # runs 1, 3, and 5
        assert at[step] == pytest.approx((1 + step + 3, 1 + step + 1, 1 + step + 5))
    assert large["runs"] == [3] * 10
    assert small["runs"] == [3] * 4 + [2] * 6  # one of them has only four steps
    assert small["mean"][-1] == pytest.approx(0.1 + 9 + 3)  # runs 2 and 4


def test_the_norm_of_all_gradients_is_that_of_the_parts_together(world: World) -> None:
    found = ask(world, scalar=GRADIENT_NORM)
    assert [line["mean"][0] for line in found["lines"]] == pytest.approx([5.0 * (place + 1) for place in range(6)])


def test_a_layers_stat_is_overlaid_too_and_runs_without_it_are_named(world: World) -> None:
    open_run(world.runs, "other", name="other")
    for name in (OUTPUT.label, OUTPUT.words):
        found = ask(world, runs="run-1,run-2,other", tap=name, stat="rms")
        assert [line["mean"][3] for line in found["lines"]] == pytest.approx([3.0, 0.3])
        assert found["without"] == ["other"]
        assert found["what"] == f"{name} rms"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"scalar": "loss", "tap": "0 output"}, "either scalar="),
        ({}, "either scalar="),
        ({"scalar": "loss", "runs": "a b"}, "ids of 1 to 200 runs"),
        ({"scalar": "loss", "runs": ",".join(f"r{n}" for n in range(201))}, "ids of 1 to 200 runs"),
        ({"tap": "0 output", "stat": "rsm"}, "rms"),
    ],
)
def test_an_invalid_query_is_an_error_that_says_what_is_allowed(
    world: World, asked: dict[str, Any], words: str
) -> None:
    assert words in json.dumps(ask(world, 400, **asked))


def test_runs_that_are_captured_at_other_steps_are_averaged_without_inventing_values() -> None:
    fine, rough = series_of({step: 1.0 for step in range(100)}), series_of({step: 3.0 for step in range(5, 100, 10)})
    band = band_of([fine, rough])
    assert band.runs.tolist() == [2] * len(band.runs)
    assert 8 <= len(band.runs) <= 10
    assert band.mean == pytest.approx([2.0] * len(band.runs))
    assert (band.low.tolist(), band.high.tolist()) == ([1.0] * len(band.runs), [3.0] * len(band.runs))
    assert (band.first[0], band.last[-1]) == (0, 99)


def test_a_short_run_does_not_coarsen_the_others_and_non_finite_values_are_counted() -> None:
    long, short = series_of({step: float(step) for step in range(50)}), series_of({0: 2.0, 1: math.nan, 2: math.inf})
    band = band_of([long, short])
    assert len(band.mean) == 50
    assert band.runs.tolist() == [2] + [1] * 49
    assert band.nonfinite.tolist() == [0, 1, 1] + [0] * 47
    assert band.mean[:3].tolist() == [1.0, 1.0, 2.0]
    assert not len(band_of([]).mean)
    assert band_of([series_of({3: 1.0})]).mean.tolist() == [1.0]


def test_a_band_is_the_mean_over_steps_and_contains_every_value() -> None:
    steps = np.array([0, 10]), np.array([9, 10])  # ten merged steps and a single one
    values = np.array([1.0, 12.0]), np.array([0.5, 12.0]), np.array([2.0, 12.0])
    counts = np.array([10, 1], np.uint32), np.zeros(2, np.uint32)
    merged, single = Series("loss", None, *steps, *values, *counts), series_of({5: 4.0})
    band = band_of([merged, single])
    assert (band.first.tolist(), band.last.tolist(), band.runs.tolist()) == ([0, 10], [9, 10], [2, 1])
    assert band.mean.tolist() == [2.5, 12.0]
    assert (band.low.tolist(), band.high.tolist()) == ([0.5, 12.0], [4.0, 12.0])
    rough = band_of([merged, series_of({0: 4.0, 100: 4.0})])
    assert rough.mean.tolist() == [3.0, 4.0]  # the first run has a mean of 2 over its 11 steps
    assert (rough.low.tolist(), rough.high.tolist()) == ([0.5, 4.0], [12.0, 4.0])


def test_as_many_long_ids_are_listed_as_fit_in_a_url(world: World) -> None:
    ids = ",".join(f"{place:03}".ljust(MAX_RUN_ID, "x") for place in range(39))
    assert "".ljust(MAX_RUN_ID - 3, "x") in ask(world, 404, runs=ids, scalar="loss")["error"]


def test_a_loss_after_a_hundred_other_values_is_known(world: World) -> None:
    run = open_run(world.runs, "many")
    for step in range(10):
        append(run.store, step, [], scalars={**{f"a{place:03}": 1.0 for place in range(150)}, "z/loss": float(step)})
    found = world.client.get("/api/v1/runs/many").json()["results"]
    assert (len(found), found["z/loss"], found["recent_loss"]) == (102, 9.0, 9.0)


def test_loss_is_the_loss_of_a_run_whatever_its_name() -> None:
    assert name_of("loss", ["val_loss", "backward/loss", "train/loss"]) == "train/loss"
    assert name_of("loss", ["val_loss", "backward/loss"]) == "backward/loss"
    assert name_of("accuracy", ["lr", "val/accuracy"]) == "val/accuracy"
    assert name_of("loss", ["lr"]) is None


def test_results_have_the_mean_of_the_last_tenth_of_the_loss(world: World) -> None:
    run = open_run(world.runs, "long", name="long")
    for step in range(100):
        append(run.store, step, [], scalars={"loss": float(step), "val": float("nan")})
    (found,) = (each for each in world.client.get("/api/v1/runs").json()["runs"] if each["id"] == "long")
    assert found["results"] == {"loss": 99.0, "val": "NaN", "recent_loss": 94.5}
    assert world.client.get("/api/v1/runs", params={"query": "recent_loss>94 steps=100"}).json()["total"] == 1

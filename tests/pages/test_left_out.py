"""Answers, charts, and files say what they omit or sum up, in every format."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hookcore.records import Tap
from hookcore_app.live.publisher import mark_of
from hookcore_app.live.views import MAX_SCALARS, ViewSpec, scalars_of
from hookcore_app.pages.report import ReportSteps, report_of
from hookcore_app.pages.views.events import markdown_of
from hookcore_app.runs import Run
from tests.api_world import World as Filled
from tests.api_world import arrow_columns, attend, csv_columns, fill, fill_ranks, npy
from tests.build import append, open_run
from tests.serving import World, make_world

LAYERS = 60
STEPS = 400
LOGGED = tuple(f"value {number:03}" for number in range(8))


@pytest.fixture(scope="module")
def world() -> World:
    """Return a run of sixty layers whose older steps are merged, and a group of two short runs."""
    world = make_world(memory=500_000_000)
    taps = tuple(Tap(f"layers.{number:02}", "output") for number in range(LAYERS))
    run = open_run(world.runs, "one", started_s=2.0)
    for step in range(STEPS):
        append(run.store, step, [1.0 + step] * LAYERS, () if step else taps, dict.fromkeys(LOGGED, float(step)))
    run.store.shrink(run.store.usage().nbytes // 2)
    for seed in range(2):
        short = open_run(world.runs, f"seed-{seed}", config={"lr": 0.1})
        for step in range(3):
            append(short.store, step, [1.0], () if step else taps[:1], {"loss": float("nan") if step == 1 else 1.0})
    return world


@pytest.fixture(scope="module")
def run(world: World) -> Run:
    found = world.runs.get("one")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def merged(run: Run) -> tuple[int, int]:
    """Return the ends of a span of merged steps."""
    first, last = run.store.captured_rows(0, 40)
    place = int(np.flatnonzero(last > first)[0])
    return int(first[place]), int(last[place])


def test_every_table_is_available_in_every_format() -> None:
    server = Filled()
    fill(open_run(server.runs, "two"), 3.0)
    attend(server.run)
    fill_ranks(server.runs)
    tables: tuple[tuple[str, dict[str, Any]], ...] = (
        ("series", {"tap": "0", "stat": "rms,p50"}),
        ("heatmap", {"kind": "output", "stat": "rms"}),
        ("histograms", {"tap": "0"}),
        ("histograms", {"tap": ["0", "1"]}),
        ("channels", {}),
        ("latest", {}),
        ("scalars", {"name": "loss"}),
        ("compare", {"runs": "one,two"}),
        ("compare/heatmap", {"runs": "one,two"}),
        ("differences", {"from": 0, "to": 3}),
        ("overlay", {"runs": "one,two", "scalar": "loss"}),
        ("overlay", {"runs": "one,two", "scalar": "loss", "band": True}),
        ("model", {}),
        ("ranks", {"run": "ranks-4f2a"}),
        ("ranks/map", {"run": "ranks-4f2a"}),
        ("ranks/spread", {"run": "ranks-4f2a", "kind": "output"}),
        ("attention-rollout", {}),
    )
    paths = server.app.openapi()["paths"]
    listed = {path for path, each in paths.items() if "text/csv" in str(each.get("get", {}).get("responses"))}
    assert {f"/api/v1/{path}" for path, _ in tables} == listed - {"/api/v1/snapshots/{number}"}
    for path, asked in tables:
        if "runs" not in asked:
            asked.setdefault("run", "one")
        rows = {len(column) for column in csv_columns(server.get(path, format="csv", **asked).content).values()}
        assert rows == {len(each) for each in arrow_columns(server.get(path, format="arrow", **asked).content).values()}
        assert npy(server.get(path, format="npy", **asked).content).dtype.hasobject is False


def title_of(world: World, **asked: str | int) -> str:
    figure = world.client.get("/api/v1/figure", params={"run": "one", **asked}).json()
    return str(figure["layout"]["title"]["text"])


def test_a_band_of_runs_is_available_in_every_format(world: World) -> None:
    asked = {"runs": "seed-0,seed-1", "scalar": "loss", "group_by": "lr", "band": "true"}
    found = {each: world.client.get("/api/v1/overlay", params={**asked, "format": each}) for each in ("csv", "arrow")}
    assert [each.status_code for each in found.values()] == [200, 200]
    for columns in (csv_columns(found["csv"].content), arrow_columns(found["arrow"].content)):
        assert set(columns["run"]) == {""}
        assert [int(each) for each in columns["runs"]] == [2, 0, 2]
        assert [int(each) for each in columns["nonfinite"]] == [0, 2, 0]


def test_newest_values_name_their_steps_and_say_how_many_more_there_are(world: World, merged: tuple[int, int]) -> None:
    first, last = merged
    asked = {"run": "one", "from": first, "to": first, "limit": 2}
    found = world.client.get("/api/v1/latest", params=asked).json()
    assert (len(found["taps"]), found["total"]) == (2, LAYERS)
    assert (found["taps"][0]["first_step"], found["taps"][0]["step"]) == merged
    for name, read in (("csv", csv_columns), ("arrow", arrow_columns)):
        columns = read(world.client.get("/api/v1/latest", params={**asked, "format": name}).content)
        assert [(int(columns["first_step"][row]), int(columns["step"][row])) for row in (0, 1)] == [merged] * 2
    assert npy(world.client.get("/api/v1/latest", params={**asked, "format": "npy"}).content)["first_step"][0] == first
    assert world.client.get("/api/v1/latest", params={"run": "one", "limit": 2}).json()["total"] == LAYERS
    assert last > first


def test_a_chart_of_some_layers_says_how_many_there_are(world: World) -> None:
    assert title_of(world, chart="series", kind="output") == f"rms of activation (the first 50 of {LAYERS})"
    assert title_of(world, chart="profile", rows=3, step=STEPS - 1).endswith(f"(the first 3 of {LAYERS})")
    assert title_of(world, chart="scalars") == "scalars"


def test_a_profile_of_merged_steps_names_the_steps(world: World, run: Run, merged: tuple[int, int]) -> None:
    first, last = merged
    assert title_of(world, chart="profile", step=first) == f"rms as the mean of steps {first} to {last}"
    assert title_of(world, chart="profile", step=STEPS - 1) == f"rms at step {STEPS - 1}"
    html = report_of(run, ReportSteps(at=first)).decode()
    assert f"Means of steps {first} to {last}, layer by layer (rms)" in html
    assert f"Step {last}, layer by layer" not in html


def test_a_report_names_the_logged_values_that_it_does_not_draw(run: Run) -> None:
    html = report_of(run).decode()
    assert f"MB: {LOGGED[6]}, {LOGGED[7]}" in html


def test_the_profile_of_a_report_is_of_the_newest_captured_step(world: World) -> None:
    run = open_run(world.runs, "sparse")
    append(run.store, 0, [1.0], (Tap("a", "output"),))
    append(run.store, 1, [], (), {"loss": 1.0})
    assert "Step 0, layer by layer (rms)" in report_of(run).decode()


def test_a_stream_of_scalars_says_how_many_more_there_are(world: World) -> None:
    run = open_run(world.runs, "many")
    names = [f"value {number:03}" for number in range(MAX_SCALARS + 3)]
    append(run.store, 0, [], (), dict.fromkeys(names, 1.0))
    spec = ViewSpec("scalars", None, None, (), None, -512, None, 300)
    (body,) = scalars_of(run, spec, None, mark_of(run))
    told = json.loads(body.data)
    assert (len(told["scalars"]), told["left_out"]) == (MAX_SCALARS, 3)


def test_copied_events_say_how_many_older_ones_are_missing() -> None:
    assert "1,234 older ones are left out." in markdown_of([], "Events", "http://box/", 1234)
    assert "left out" not in markdown_of([], "Events", "http://box/")

"""REST: every route returns the store's values, in every format, and explains each error."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from hookcore.reading import answers
from hookcore.reading.answers.base import Answer, decode
from hookcore.records import HookRecord, Snapshot, Tap
from hookcore.store import STAT_NAMES
from hookcore_app.api.routing import ATTEMPTS, example_of
from hookcore_app.formats import json_of
from hookcore_app.runs import Run
from tests.api_world import (
    COVERAGE,
    HOOKS,
    MODULES,
    STEPS,
    TAPS,
    World,
    arrow_columns,
    csv_columns,
    fill,
    floats,
    make_frame,
    npy,
    open_run,
    same,
    strict,
    value_at,
)

MANY = {
    "series": {"stat": "rms", "match": "*", "limit": 10},
    "heatmap": {"kind": "output", "stat": "rms"},
    "histograms": {"tap": "1"},
    "latest": {},
    "scalars": {"name": ["loss", "lr"]},
    "compare": {"runs": "one,two", "stat": "rms"},
}
ARROW, CSV, NPY = "application/vnd.apache.arrow.stream", "text/csv", "application/x-npy"


@pytest.fixture
def world() -> World:
    return World()


# -- the parts of a run ------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_in_pages(world: World) -> None:
    for number in range(4):
        open_run(world.runs, f"run-{number}", started_s=10.0 + number)
    ids, after = [], {}
    while True:
        page = world.json("runs", limit=2, **after)
        assert page["total"] == 5
        ids += [run["id"] for run in page["runs"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert ids == ["run-3", "run-2", "run-1", "run-0", "one"]
    assert "start again without after=" in world.error("runs", 404, after="gone")


def test_a_run_states_its_progress_and_hides_its_key(world: World) -> None:
    said = world.json("runs/one")
    assert (said["first_step"], said["newest_step"], said["steps"]) == (0, STEPS - 1, STEPS)
    assert said["taps"] == len(TAPS)
    assert said["usage"]["nbytes"] == world.run.store.usage().nbytes
    assert "secret of one" not in world.get("runs/one").text


def test_no_setting_of_a_trainer_breaks_an_answer(world: World) -> None:
    assert world.json("runs/one")["settings"]["budget"] == "Infinity"
    assert world.json("settings")["settings"]["odd"] == ["b'bytes'", {"1": "NaN"}]


def test_a_run_is_renamed_and_annotated_independently(world: World) -> None:
    assert world.client.patch("/api/v1/runs/one", json={"name": "baseline"}).json()["name"] == "baseline"
    said = world.client.patch("/api/v1/runs/one", json={"notes": "<b>"}).json()
    assert (said["name"], said["notes"]) == ("baseline", "<b>")
    assert world.client.patch("/api/v1/runs/one", json={"color": 1}).status_code == 422


def test_a_deleted_run_is_gone(world: World) -> None:
    assert world.client.delete("/api/v1/runs/one").status_code == 204
    assert "one" in world.error("runs/one", 404)
    assert "no run yet" in world.error("taps", 404)


def test_an_unknown_run_gets_the_nearest_id_as_a_hint(world: World) -> None:
    assert "did you mean 'one'" in world.error("series", 404, run="onee", stat="rms", tap="0")


def test_without_an_id_the_newest_run_is_used(world: World) -> None:
    assert world.json("taps")["run"] == "one"
    open_run(world.runs, "later", started_s=5.0)
    assert world.json("taps")["run"] == "later"
    assert world.json("taps", run="one")["total"] == len(TAPS)


def test_the_tree_has_every_module_with_its_coverage_and_taps(world: World) -> None:
    rows = world.json("runs/one/modules")["modules"]
    assert [row["path"] for row in rows] == [module.path for module in MODULES]
    first = rows[1]
    assert (first["type"], first["parent"], first["aliases"]) == ("Linear", "layers", ["again.0"])
    assert (first["parameters"], first["trainable"]) == (10, 10)
    assert first["coverage"]["captured"] is True
    assert [(tap["number"], tap["values"], tap["shape"]) for tap in first["taps"]] == [(1, 8.0, [2, 3])]
    assert rows[2]["coverage"]["kinds"] == ["output", "output_grad"]
    assert [row["path"] for row in world.json("runs/one/modules", match="layers.*")["modules"]] == [
        "layers.0",
        "layers.1",
    ]


@pytest.mark.parametrize("path", ["runs/one/modules", "taps", "coverage", "hooks", "events", "snapshots"])
def test_the_pages_of_a_list_are_complete_and_without_duplicates(world: World, path: str) -> None:
    name = path.rpartition("/")[2]
    whole = world.json(path, limit=10_000)[name]
    found: list[Any] = []
    after = 0
    for _ in range(len(whole)):
        page = world.json(path, limit=1, after=after)
        assert len(page[name]) == 1
        found += page[name]
        after = page["next"]
    assert found == whole
    assert len(whole) >= 1


def test_taps_are_selected_by_module_kind_and_class(world: World) -> None:
    def numbers(**asked: Any) -> list[int]:
        return [tap["number"] for tap in world.json("taps", **asked)["taps"]]

    assert numbers() == [0, 1, 2, 3, 4]
    assert numbers(match="layers.*") == [1, 2, 3]
    assert numbers(kind="output") == [0, 1, 2]
    assert numbers(match="type:Lin*") == [1, 4]
    assert numbers(module="layers.1", kind="output") == [2]
    assert "kind" in world.error("taps", 422, kind="outputs")
    assert "expression" in world.error("taps", 400, match="re:(")


def test_coverage_and_hooks_are_those_that_the_trainer_sent(world: World) -> None:
    said = world.json("coverage", captured=False)["coverage"]
    assert [(each["path"], each["reason"]) for each in said] == [("head", COVERAGE[2].reason)]
    assert [each["function"] for each in world.json("hooks")["hooks"]] == [each.function for each in HOOKS]
    assert world.json("hooks")["hooks"][0]["warning"] == "it lies"


def test_the_flow_is_the_newest_or_the_one_known_at_a_step(world: World) -> None:
    newest = world.json("flow")
    assert (newest["step"], newest["steps"], newest["seconds"]) == (9, [0, 9], 0.001)
    assert [(each["module"], each["fed_by"], each["how"]) for each in newest["calls"]] == [
        ("layers.0", [], "graph"),
        ("layers.1", [0], "graph"),
        ("", [0, 1], "order"),
    ]
    assert world.json("flow", step=9) == newest
    earlier = world.json("flow", step=8)
    assert (earlier["step"], [each["returns"] for each in earlier["calls"]]) == (0, [[], [0]])
    assert "step" in world.error("flow", 422, step=-1)


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stat", STAT_NAMES)
@pytest.mark.parametrize("points", [5, 1000])
def test_a_series_equals_that_of_the_store(world: World, stat: str, points: int) -> None:
    for number in range(len(TAPS)):
        said = world.json("series", tap=number, stat=stat, points=points, first=2, last=18)["series"][0]
        truth = world.run.store.series(number, stat, 2, 18, points)
        for name in ("first_step", "last_step", "mean", "min", "max", "present", "nonfinite"):
            assert same(said[name], getattr(truth, name)), name


def test_known_numbers_are_exact_to_the_last_bit(world: World) -> None:
    said = world.json("series", tap=1, stat="rms")["series"][0]
    assert said["mean"][7] == "NaN"
    assert [each for each in said["mean"] if each != "NaN"] == [value_at(step, 1) for step in range(STEPS) if step != 7]


def test_a_tap_is_found_by_its_number_and_by_its_label(world: World) -> None:
    for number, tap in enumerate(TAPS):
        said = world.json("series", tap=tap.label, stat="mean")["series"]
        assert [each["tap"]["number"] for each in said] == [number]
        assert said == world.json("series", tap=str(number), stat="mean")["series"]


@pytest.mark.parametrize("tap", ["99", "nonsense", "layers.7 output", "9" * 30, "layers.0 output [x]"])
def test_an_unknown_tap_is_refused_with_a_hint(world: World, tap: str) -> None:
    assert "tap" in world.error("series", 400, tap=tap, stat="mean")


def test_several_stats_in_one_answer_equal_single_answers(world: World) -> None:
    names = ["min", "p50", "rms", "p99"]
    said = world.json("series", tap=4, stat=",".join(names), points=7)["series"]
    assert [one["name"] for one in said] == names
    assert said == [world.json("series", tap=4, stat=name, points=7)["series"][0] for name in names]
    lines = world.get("series", tap=4, stat="min,rms", points=7, format="csv").text.splitlines()
    assert "stat" in lines[0]
    assert len(lines) == 1 + 2 * len(said[0]["mean"])
    assert "meen" in world.error("series", 400, tap=4, stat="min,meen")


def test_several_taps_come_in_the_requested_order(world: World) -> None:
    said = world.json("series", tap=[4, 1], stat="min,rms", points=7)["series"]
    assert [(one["tap"]["number"], one["name"]) for one in said] == [(4, "min"), (4, "rms"), (1, "min"), (1, "rms")]
    assert said[3] == world.json("series", tap=1, stat="rms", points=7)["series"][0]


def test_many_series_come_in_one_answer_in_pages(world: World) -> None:
    said = world.json("series", match="layers.*", stat="mean", limit=2)
    assert [each["tap"]["number"] for each in said["series"]] == [1, 2]
    assert (said["total"], said["next"]) == (3, 2)
    behind = world.json("series", match="layers.*", stat="mean", limit=2, after=2)
    assert [each["tap"]["number"] for each in behind["series"]] == [3]
    assert behind["next"] is None
    assert "fewer" in world.error("series", 400, match="*", stat="mean", limit=100, points=10_000)


@pytest.mark.parametrize("asked", [{}, {"tap": "0", "match": "*"}])
def test_a_series_needs_either_tap_or_match(world: World, asked: dict[str, str]) -> None:
    assert "tap=" in world.error("series", 400, stat="mean", **asked)


@pytest.mark.parametrize(("stat", "share"), [("p50", 0.5), ("p99.9", 0.999), ("p0", 0.0), ("p100", 1.0)])
def test_quantiles_are_series_without_counts(world: World, stat: str, share: float) -> None:
    said = world.json("series", tap=4, stat=stat, points=7)["series"][0]
    truth = world.run.store.quantiles(4, [share], points=7)
    assert same(said["mean"], truth.values[:, 0])
    assert "present" not in said
    rows = world.get("series", tap=4, stat=f"rms,{stat}", points=7, format="csv").text.splitlines()
    assert rows[0].endswith('"max","present","nonfinite"')  # also for the series that has counts
    assert [row.endswith(",nan,nan") for row in rows[1:]] == [False] * 7 + [True] * 7
    assert "stat" in world.error("series", 400, tap=4, stat="p101")


@pytest.mark.parametrize(("columns", "rows"), [(500, 1000), (4, 2), (1, 1)])
def test_a_heatmap_equals_that_of_the_store(world: World, columns: int, rows: int) -> None:
    said = world.json("heatmap", kind="output", stat="rms", columns=columns, rows=rows, counts=True)
    truth = world.run.store.heatmap("output", "rms", None, None, columns, rows)
    assert same(said["worst"], truth.worst)
    assert said["first_step"] == truth.first_step.tolist()
    assert said["nonfinite"] == truth.nonfinite.tolist()
    assert said["present"] == truth.present.tolist()
    assert [row["group"] for row in said["rows"]] == truth.groups.tolist()


def test_a_heatmap_distinguishes_nan_infinity_and_no_data(world: World) -> None:
    world.run.store.append(make_frame(STEPS, [1.0]))
    said = world.json("heatmap", kind="output", stat="rms")
    assert said["state"][1][7] == 2
    assert said["state"][2][9] == 3
    assert said["state"][1][STEPS] == 0
    assert said["state"][0][STEPS] == 1


def test_a_heatmap_without_taps_is_empty(world: World) -> None:
    said = world.json("heatmap", kind="update", stat="rms")
    assert (said["rows"], said["worst"]) == ([], [])
    assert "cells" in world.error("heatmap", 400, kind="output", stat="rms", columns=5000, rows=5000)


def test_histograms_equal_those_of_the_store(world: World) -> None:
    for tap in range(3):
        said = world.json("histograms", tap=tap, columns=6, bins=9)
        truth = world.run.store.histograms(tap, None, None, 6, 9)
        for name in ("first_step", "edges", "counts", "nan", "negative_infinity", "positive_infinity"):
            assert same(said[name], getattr(truth, name)), name


def test_the_newest_values_equal_those_of_the_store_and_are_sorted_as_requested(world: World) -> None:
    said = world.json("latest", sort="-rms", limit=3, match="layers.*")
    truth = world.run.store.latest(world.run.store.taps("layers.*"), None, "-rms", 3)
    assert said["stats"] == list(STAT_NAMES)
    assert [tap["number"] for tap in said["taps"]] == truth.numbers.tolist()
    assert same([tap["values"] for tap in said["taps"]], truth.values)
    world.run.store.append(make_frame(STEPS, [math.inf, -math.inf, math.nan, 0.1]))
    said = world.json("latest", stat="rms")["taps"]
    assert [tap["values"][0] for tap in said[:4]] == ["Infinity", "-Infinity", "NaN", 0.1]
    assert world.json("latest", stat="rms", kind="param_grad")["taps"][0]["values"] == [value_at(STEPS - 1, 4)]


def test_scalars_list_names_and_the_requested_series(world: World) -> None:
    said = world.json("scalars", match="l*")
    assert (said["names"], said["series"]) == (["loss", "lr"], [])
    said = world.json("scalars", name=["lr", "loss"], points=1000)
    assert [each["name"] for each in said["series"]] == ["lr", "loss"]
    assert said["series"][1]["mean"][:4] == [1.0, 0.5, 1 / 3, "NaN"]
    assert "did you mean 'loss'" in world.error("scalars", 404, name="los")


def test_reversed_bounds_are_refused(world: World) -> None:
    for path, asked in MANY.items():
        if path != "latest":
            world.runs.get("two") or fill(open_run(world.runs, "two", started_s=0.0))
            assert "from=9" in world.error(path, 400, first=9, last=3, **asked)


# -- formats -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(world: World) -> World:
    fill(open_run(world.runs, "two", started_s=0.0), scale=2.0)
    return world


@pytest.mark.parametrize("path", MANY)
def test_arrow_csv_and_npy_hold_the_same_numbers(two: World, path: str) -> None:
    asked = {**MANY[path], "run": "one"} if path != "compare" else MANY[path]
    arrow = arrow_columns(two.get(path, ARROW, **asked).content)
    lines = csv_columns(two.get(path, CSV, **asked).content)
    assert list(arrow) == list(lines)
    numbers = {name: values for name, values in arrow.items() if not any(isinstance(each, str) for each in values)}
    for name, values in arrow.items():
        assert same(values, lines[name]) if name in numbers else values == lines[name], name
    held = npy(two.get(path, NPY, **asked).content)
    if held.dtype.names:
        assert set(held.dtype.names) == set(numbers)
        assert all(same(held[name], values) for name, values in numbers.items())
        assert any(len(values) > 0 for values in numbers.values())


def test_json_and_arrow_of_series_hold_the_same_numbers(world: World) -> None:
    said = world.json("series", match="*", stat="rms")["series"]
    arrow = arrow_columns(world.get("series", match="*", stat="rms", format="arrow").content)
    for name in ("first_step", "mean", "min", "max", "present", "nonfinite"):
        assert same(np.concatenate([floats(each[name]) for each in said]), arrow[name])
    assert math.isnan(arrow["mean"][STEPS + 7])


def test_json_and_npy_of_matrices_hold_the_same_numbers(world: World) -> None:
    asked = {"kind": "output", "stat": "rms"}
    assert same(world.json("heatmap", **asked)["worst"], npy(world.get("heatmap", NPY, **asked).content))
    assert same(world.json("histograms", tap=2)["counts"], npy(world.get("histograms", NPY, tap=2).content))
    said = world.json("latest", sort="rms")
    held = npy(world.get("latest", NPY, sort="rms").content)
    assert same([tap["values"][8] for tap in said["taps"]], held[said["stats"][8]])


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("*/*", "application/json"),
        ("", "application/json"),
        ("text/csv;q=0.5, application/x-npy", NPY),
        ("text/*, application/json;q=0.9", CSV),
        ("application/json;q=0, */*;q=0.1", ARROW),
        ("text/html, application/xhtml+xml, */*;q=0.8", "application/json"),
        ("APPLICATION/X-NPY;Q=1.0;v=b", NPY),
        ("text/csv;q=nonsense, application/x-npy;q=0.1", NPY),
    ],
)
def test_the_clients_preferred_format_is_sent(world: World, accept: str, expected: str) -> None:
    answer = world.get("latest", accept)
    assert answer.headers["content-type"].split(";")[0] == expected
    assert answer.headers["vary"] == "Accept"


def test_an_unknown_format_is_refused_with_the_known_ones(world: World) -> None:
    answer = world.get("series", "image/png", 406, tap=0, stat="rms")
    assert "text/csv" in answer.json()["error"]
    assert "format" in world.error("series", 422, tap=0, stat="rms", format="xml")


# -- polling -----------------------------------------------------------------------------------------------------------

POLLED = [
    *MANY.items(),
    ("runs", {}),
    ("runs/one", {}),
    ("runs/one/modules", {}),
    ("taps", {}),
    ("coverage", {}),
    ("hooks", {}),
    ("flow", {}),
    ("events", {}),
    ("settings", {}),
    ("snapshots", {}),
]


@pytest.mark.parametrize(("path", "asked"), POLLED, ids=[path for path, _ in POLLED])
def test_an_unchanged_answer_is_not_sent_again(two: World, path: str, asked: dict[str, Any]) -> None:
    first = two.get(path, **asked)
    known = {"If-None-Match": f'"other", {first.headers["etag"]}'}
    again = two.client.get(f"/api/v1/{path}", params=asked, headers=known)
    assert (again.status_code, again.content) == (304, b"")
    for run in two.runs.all():
        run.store.append(make_frame(STEPS, [1.0] * len(TAPS)))
        run.changes.tell()
    later = two.client.get(f"/api/v1/{path}", params=asked, headers=known)
    assert later.status_code == 200
    assert later.headers["etag"] != first.headers["etag"]


def test_tags_differ_by_format_query_and_state(world: World) -> None:
    tags = {world.get("series", accept, tap=0, stat="rms").headers["etag"] for accept in (ARROW, CSV, NPY, "*/*")}
    tags |= {world.get("series", tap=0, stat="mean").headers["etag"]}
    before = world.get("runs/one").headers["etag"]
    world.now += 1000.0
    assert world.json("runs/one")["state"] == "lost"
    assert len(tags) == 5
    assert world.get("runs/one").headers["etag"] != before


# -- the trainer -------------------------------------------------------------------------------------------------------


def test_events_are_filtered_and_followed(world: World) -> None:
    said = world.json("events", severity="warning", first=5, last=15)
    assert [event["step"] for event in said["events"]] == [5, 10, 15]
    assert said["next"] == STEPS
    newest = world.json("events", limit=3)
    assert [event["step"] for event in newest["events"]] == [17, 18, 19]
    world.run.store.append(make_frame(99, [1.0], events=()))
    assert world.json("events", after=newest["next"])["events"] == []
    assert [event["step"] for event in world.json("events", after=18)["events"]] == [18, 19]


def test_changed_settings_wait_for_the_trainer(world: World) -> None:
    changes = {"every": 4, "budget": None, "include": "layers.*", "kinds": ["output"], "paused": True}
    answer = world.client.patch("/api/v1/settings", json=changes)
    assert answer.status_code == 202
    assert answer.headers["location"] == answer.json()["look"]
    [command] = world.run.commands
    assert (command.number, command.name, command.changes) == (answer.json()["number"], "settings", changes)
    look = world.client.get(answer.json()["look"]).json()
    assert look["waiting"] == [{"number": command.number, "name": "settings", "changes": changes}]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"every": 0},
        {"every": "2"},
        {"every": None},
        {"every": True},
        {"budget": 0},
        {"budget": 11},
        {"kinds": ["outputs"]},
        {"kinds": []},
        {"include": ""},
        {"include": []},
        {"include": "re:("},
        {"exclude": ["layers.*", 3]},
        {"paused": None},
        {"paused": "yes"},
        {"memory": "1GB"},
    ],
)
def test_a_change_that_the_trainer_would_refuse_is_refused_immediately(world: World, changes: dict[str, Any]) -> None:
    answer = world.client.patch("/api/v1/settings", json=changes)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]
    assert not world.run.commands


def test_commands_to_a_run_without_a_trainer_are_refused(world: World) -> None:
    world.now += 1000.0
    for method, path, body in (
        ("PATCH", "settings", {"every": 2}),
        ("POST", "snapshots", {"tap": 0}),
        ("POST", "hooks", None),
    ):
        answer = world.client.request(method, f"/api/v1/{path}", json=body)
        assert answer.status_code == 409
        assert "lost" in answer.json()["error"]
    assert not world.run.commands


def test_an_inventory_can_be_requested(world: World) -> None:
    assert world.client.post("/api/v1/hooks").status_code == 202
    assert [command.name for command in world.run.commands] == ["inventory"]


# -- two runs side by side ---------------------------------------------------------------------------------------------


def _pair(world: World, change: dict[tuple[int, int], float]) -> Any:
    """Make run two equal to run one, except for some values by (step, tap)."""
    run = open_run(world.runs, "two", started_s=0.0)
    for step in range(STEPS):
        values = [change.get((step, row), value_at(step, row)) for row in range(len(TAPS))]
        run.store.append(make_frame(step, values, new_taps=TAPS if step == 0 else ()))
    return run


def test_equal_runs_do_not_differ_even_with_nan_or_infinity(world: World) -> None:
    _pair(world, {})
    said = world.json("compare", runs="one,two")
    assert (said["first"], said["parted"], said["total"]) == (None, 0, len(TAPS))
    assert all(set(layer["difference"]) == {0.0} and layer["points"] == STEPS for layer in said["layers"])


@pytest.mark.parametrize("other", [1e9, math.nan, math.inf, -math.inf])
def test_the_first_differing_step_and_layer_of_two_runs_is_found(world: World, other: float) -> None:
    _pair(world, {(12, 1): 0.0, (11, 4): 0.0, (11, 3): other, (15, 0): other})
    said = world.json("compare", runs="one,two")
    assert said["first"]["step"] == 11
    assert said["first"]["tap"]["number"] == 3
    assert [layer["parts_at"] for layer in said["layers"]] == [15, 12, None, 11, 11]
    assert said["parted"] == 4


def test_a_difference_within_the_tolerance_does_not_count(world: World) -> None:
    _pair(world, {(5, 0): value_at(5, 0) * 1.001})
    assert world.json("compare", runs="one,two", tolerance=0.01)["first"] is None
    assert world.json("compare", runs="one,two", tolerance=0.0001)["first"]["step"] == 5
    layer = world.json("compare", runs="one,two", points=3)["layers"][0]
    assert layer["largest"] == max(layer["difference"]) == pytest.approx(value_at(5, 0) * 0.001)


def test_layers_are_compared_however_each_run_numbers_them(world: World) -> None:
    run = open_run(world.runs, "two", started_s=0.0)
    backwards = tuple(reversed(TAPS))
    for step in range(0, STEPS, 2):  # the other run captured only every second step
        values = [value_at(step, TAPS.index(tap)) * (2.0 if tap == TAPS[2] and step >= 8 else 1.0) for tap in backwards]
        run.store.append(make_frame(step, values, new_taps=backwards if step == 0 else ()))
    said = world.json("compare", runs="one,two")
    assert [layer["numbers"] for layer in said["layers"]] == [[0, 4], [1, 3], [2, 2], [3, 1], [4, 0]]
    assert [layer["parts_at"] for layer in said["layers"]] == [None, None, 8, None, None]
    found = said["layers"][2]
    assert found["first_step"] == list(range(0, STEPS, 2))
    assert found["difference"] == [0.0 if step < 8 else value_at(step, 2) for step in range(0, STEPS, 2)]


def test_all_layers_are_compared_even_beyond_one_batch_of_reads(world: World) -> None:
    taps = tuple(Tap(f"layer.{number}", "output") for number in range(150))
    for name in ("wide", "wider"):
        run = open_run(world.runs, name)
        values = [float(number + (name == "wider" and number in (70, 140))) for number in range(150)]
        run.store.append(make_frame(0, values, new_taps=taps))
    said = world.json("compare", runs="wide,wider", after=100, limit=50)
    assert (said["total"], said["parted"], said["first"]["tap"]["number"]) == (150, 2, 70)
    assert [layer["tap"]["number"] for layer in said["layers"] if layer["largest"] == 1.0] == [140]


def test_taps_of_only_one_run_are_listed(world: World) -> None:
    run = _pair(world, {})
    run.store.announce((Tap("extra", "output"),))
    said = world.json("compare", runs="one,two", kind="output")
    assert said["only_in"]["one"] == []
    assert [tap["module"] for tap in said["only_in"]["two"]] == ["extra"]


@pytest.mark.parametrize("pair", ["one", "one,two,three", "one,../x", ","])
def test_a_query_that_does_not_name_two_runs_is_refused(world: World, pair: str) -> None:
    assert "two" in world.error("compare", 400, runs=pair)


# -- the description ---------------------------------------------------------------------------------------------------


def test_every_route_is_described_with_an_example_and_its_errors(world: World) -> None:
    paths = world.app.openapi()["paths"]
    ours = [path for path, methods in paths.items() if any(said.get("tags") == ["runs"] for said in methods.values())]
    assert len(ours) == 57
    for path in ours:
        for method, said in paths[path].items():
            assert said["summary"]
            assert {"400", "404", "422"} <= set(said["responses"])
            if method == "get":
                content = said["responses"]["200"]["content"]
                assert (content.get("application/json") or content["text/html"])["example"], path


def test_the_type_for_non_finite_numbers_is_declared_once(world: World) -> None:
    schemas = world.app.openapi()["components"]["schemas"]
    holding = [name for name, schema in schemas.items() if '"-Infinity"' in str(schema).replace("'", '"')]
    assert holding == ["Number"]


WITHOUT_EXAMPLES = (answers.Problem, answers.HistogramsList)
ANSWERS = [each for each in vars(answers).values() if isinstance(each, type) and issubclass(each, Answer)]


@pytest.mark.parametrize("kind", [each for each in ANSWERS if each not in WITHOUT_EXAMPLES])
def test_an_example_has_all_fields_of_its_answer_and_no_others(kind: type[Any]) -> None:
    assert strict(json_of(decode(json.dumps(example_of(kind)).encode(), kind))) == example_of(kind)


def test_snapshots_of_the_script_and_of_requests_are_both_found(world: World) -> None:
    world.run.store.add_snapshot(Snapshot(TAPS[0], 4, 104.0, "int64", (2,), np.array([1, 2]), number=1234567890123))
    listed = world.json("snapshots")["snapshots"]
    assert [(each["number"], each["asked"]) for each in listed] == [(0, False), (1234567890123, True)]
    for each in listed:
        assert world.json(f"snapshots/{each['number']}")["step"] == each["step"]


STEADY: tuple[tuple[str, dict[str, Any]], ...] = (
    ("latest", {}),
    ("incidents", {}),
    ("series", {"tap": "1", "stat": "rms"}),
    ("histograms", {"tap": "1"}),
    ("heatmap", {"kind": "output", "stat": "rms"}),
    ("figure", {"chart": "series", "tap": "1"}),
)


@pytest.mark.parametrize(("path", "asked"), STEADY)
def test_an_answer_is_the_same_if_its_run_leaves_memory_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, Any]
) -> None:
    expected = world.json(path, **asked)
    leaving = _Leaving(world, monkeypatch, times=1)
    assert world.json(path, **asked) == expected
    assert leaving.times == 0


def test_an_answer_whose_run_never_stays_in_memory_is_to_be_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = _Leaving(world, monkeypatch, times=ATTEMPTS)
    answer = world.get("series", status=503, tap="1", stat="rms")
    assert int(answer.headers["Retry-After"]) > 0
    assert leaving.times == 0


class _Leaving:
    """Lets a run leave memory right after each of its first reads, and lets the server read it again from "disk"."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.times, self._run, self._read, self._store = times, world.run, world.runs.read, world.run.store
        monkeypatch.setattr(world.runs, "read", self._read_and_leave)
        monkeypatch.setattr(world.runs.disk, "load", lambda run: run.swap(self._store, loaded=True))

    def _read_and_leave(self, run: Run) -> Run:
        self._read(run)
        if self.times:
            self.times -= 1
            run.outline(self._store.steps(), run.end)
        return run


def test_the_files_of_the_hooks_page_have_all_hooks_however_many_they_are(world: World) -> None:
    hooks = [HookRecord("module", f"layers.{place}", "forward", "f", "a.py:1", False) for place in range(12_000)]
    world.run.store.describe((), (), hooks)
    assert [each["owner"] for each in world.json("runs/one/hook-rows")["hooks"]] == [each.owner for each in hooks]
    lines = world.get("runs/one/hook-rows", format="csv").text.splitlines()
    assert lines[1].replace('"', "") == "module,layers.0,forward,f,a.py:1,,false,false,"
    assert len(lines) == 1 + len(hooks)


def test_rows_of_the_hooks_page_count_calls_values_and_other_hooks(world: World) -> None:
    rows = {row["path"]: row for row in world.json("runs/one/module-rows")}
    assert list(rows) == [module.path for module in MODULES]
    assert (rows["layers.1"]["parent"], rows["layers.1"]["captured"]) == ("layers", True)
    assert [(row["calls"], row["values"], row["hooks"]) for row in rows.values()] == [
        (1, 8, 0),
        (1, 8, 0),
        (3, 16, 0),
        (0, 8, 1),
    ]
    lines = world.client.get("/api/v1/runs/one/module-rows?format=csv").text.splitlines()
    assert lines[0].replace('"', "") == "path,type,captured,kinds,calls,values,hooks"
    assert len(lines) == 1 + len(MODULES)

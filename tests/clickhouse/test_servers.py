"""`hookcore serve --store clickhouse://...`: servers that share their runs, and report unavailable parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from hookcore.delivery.archive import Recorded
from hookcore.errors import ArgumentError, HookcoreError
from hookcore.records import Failure
from hookcore.records.wire import Batch, EndItem, Place, RunInfo, frame_item
from hookcore.store import Store
from hookcore_app.clickhouse import adder, rankspast, ranksums
from hookcore_app.clickhouse import client as clickhouse_client
from hookcore_app.clickhouse.client import ClickHouseError, ClusterAddress
from hookcore_app.clickhouse.client import Cluster as Client
from hookcore_app.clickhouse.cluster import entry, shared, sharing
from hookcore_app.clickhouse.cluster.sharing import Retention, days_of
from hookcore_app.clickhouse.native import FormatError
from hookcore_app.clickhouse.reading import Extent
from hookcore_app.clickhouse.schema import (
    OF_RUNS,
    OF_SUMS,
    ROWS,
    SKETCHES,
    SchemaError,
    connect,
    number_of_run,
    rank_shards,
)
from hookcore_app.runs import Joint, Run, ranks_in
from hookcore_app.runs.assembly import GRACE_S
from hookcore_app.runs.ranks import LATE_S
from hookcore_app.serving import server as serving
from hookcore_app.settings import ServerSettings
from tests.clickhouse.conftest import Serve
from tests.clickhouse.nodes import Cluster, running
from tests.clickhouse.world import TAPS, Collector, a_frame, database_of, store_frames
from tests.receiver import a_run
from tests.serving import World, make_batch, make_world
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


def _listed(world: World) -> dict[str, dict[str, object]]:
    answer = world.client.get("/api/v1/runs").json()
    return {run["id"]: run for run in answer["runs"]}


def _frames(world: World, run: str) -> int:
    found = world.runs.get(run)
    return found.store.steps().count if found is not None and found.loaded else 0


# -- several servers ---------------------------------------------------------------------------------------------------


@pytest.mark.clickhouse("18.16", "26")
def test_two_servers_show_the_same_runs_and_the_same_edits(url: str, collector: Collector, serve: Serve) -> None:
    one, two = serve(url), serve(url)
    collector.send(range(20))
    collector.send(range(10), "other")
    for world in (one, two):
        wait_for(lambda world=world: _frames(world, "run") == 19 and _frames(world, "other") == 9, "the frames")
    one.client.patch("/api/v1/runs/run", json={"name": "renamed", "tags": ["good"], "notes": "because"})
    wait_for(lambda: _listed(two)["run"]["name"] == "renamed", "the edit")
    shown = two.runs.get("run")
    assert shown is not None
    assert (shown.edits.tags, shown.edits.notes) == (("good",), "because")
    late = serve(url)
    assert _listed(late)["run"]["name"] == "renamed"
    two.client.delete("/api/v1/runs/other")
    wait_for(lambda: "other" not in _listed(one), "the removal")
    assert "other" not in _listed(serve(url))
    assert one.client.post("/api/v1/removed-runs/other/restore").status_code == 200
    wait_for(lambda: "other" in _listed(two), "the restored run")


def test_an_edit_is_not_lost_if_another_server_that_has_not_heard_of_it_writes_something_else(url: str) -> None:
    one, two, late = (make_world(store=url) for _ in range(3))  # without threads: they poll when the test says so
    store_frames(url, a_run("run"), range(3))
    for world in (one, two):
        world.app.state.shared.look(world.app.state.shared.cluster.shards[0])
    for world, key in ((one, "a"), (two, "b")):
        run = world.runs.get("run")
        assert run is not None
        run.acknowledge(key)
    assert one.client.patch("/api/v1/runs/run", json={"name": "renamed"}).status_code == 200
    assert two.client.patch("/api/v1/runs/run", json={"notes": "because"}).status_code == 200
    late.app.state.shared.look(late.app.state.shared.cluster.shards[0])
    for world in (two, late):
        run = world.runs.get("run")
        assert run is not None
        assert (run.name, run.edits.notes, sorted(run.edits.quiet.acknowledged)) == ("renamed", "because", ["a", "b"])
    assert one.client.delete("/api/v1/runs/run").is_success
    assert two.client.patch("/api/v1/runs/run", json={"notes": "still here"}).status_code == 200
    two.app.state.shared.look(two.app.state.shared.cluster.shards[0])
    assert _listed(two) == {}
    for world in (one, two, late):
        world.app.state.shared.close()


def test_edits_at_the_very_same_moment_are_all_kept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, late = (make_world(store=url) for _ in range(3))  # without threads: they poll when the test says so

    def look(*worlds: World) -> None:
        for world in worlds:
            world.app.state.shared.look(world.app.state.shared.cluster.shards[0])

    store_frames(url, a_run("run"), range(3))
    look(one, two)
    for first in (True, False):  # the first time, nothing has been edited yet
        with monkeypatch.context() as blind:  # neither sees the other's edits
            blind.setattr(entry, "pages_of", lambda *of, **which: [])
            blind.setattr(sharing, "pages_of", lambda *of, **which: [])
            for world, what, name in (
                (one, {"name": f"renamed {first}"}, f"a{first}"),
                (two, {"notes": str(first)}, "b"),
            ):
                assert world.client.patch("/api/v1/runs/run", json=what).status_code == 200
                world.client.put("/api/v1/views", json={"name": name, "query": "sort=loss"})
        look(one, two, one, two)
        for world in (one, two):
            run = world.runs.get("run")
            assert run is not None
            assert (run.name, run.edits.notes) == (f"renamed {first}", str(first))
            assert set(world.runs.views.all()) >= {f"a{first}", "b"}
    cluster = _client(url)
    newest = "SELECT max(version) AS newest FROM pages"
    before = cluster.shards[0].read(newest).one("newest")
    look(one, two, late)
    assert cluster.shards[0].read(newest).one("newest") == before, "they agree"
    cluster.close()
    assert _listed(late)["run"]["name"] == "renamed False"
    for world in (one, two, late):
        world.app.state.shared.close()


def test_several_edits_of_two_servers_at_the_same_moment_are_all_kept(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (make_world(store=url) for _ in range(2))  # without threads: they poll when the test says so

    def look(*worlds: World) -> None:
        for world in worlds:
            world.app.state.shared.look(world.app.state.shared.cluster.shards[0])

    store_frames(url, a_run("run"), range(9))
    look(one, two)
    with monkeypatch.context() as blind:  # neither sees the other's edits
        blind.setattr(entry, "pages_of", lambda *of, **which: [])
        for step in range(8):
            world = (one, two)[step % 2]
            given = {"run": "run", "step": step, "text": f"at {step}"}
            assert world.client.post("/api/v1/annotations", json=given).is_success
            assert world.client.patch("/api/v1/runs/run", json={"archived": False}).is_success  # changes nothing
    look(one, two, one, two)
    for world in (one, two):
        run = world.runs.get("run")
        assert run is not None
        assert run.edits.annotations == {step: f"at {step}" for step in range(8)}
        world.app.state.shared.close()


def test_saved_views_and_the_board_are_shared_by_all_servers_and_outlast_them(url: str, serve: Serve) -> None:
    one, two = serve(url), serve(url)

    def names(world: World, what: str) -> list[str]:
        answer = world.client.get(f"/api/v1/{what}").json()
        return [each["name"] for each in answer["charts" if what == "board" else what]]

    view = {"query": "sort=loss"}
    for world, name in ((one, "a"), (two, "b")):  # the second one may not know about the first
        assert world.client.put("/api/v1/views", json={"name": name, **view}).status_code == 200
    chart = {"name": "norm", "path": "series", "query": "tap=layers.0+output&stat=norm"}
    assert two.client.put("/api/v1/board", json=chart).status_code == 200
    for world in (one, two, serve(url)):
        wait_for(lambda world=world: names(world, "views") == ["a", "b"], "the views")
        wait_for(lambda world=world: names(world, "board") == ["norm"], "the chart")
    assert one.client.delete("/api/v1/views?name=b").status_code == 204
    wait_for(lambda: names(two, "views") == ["a"], "the end of a view")
    assert _listed(one) == {}
    assert time.time() < sharing.DAY * 86_400, "only days that are over are dropped"


def test_thresholds_changed_on_one_server_apply_on_the_others(url: str, collector: Collector, serve: Serve) -> None:
    one, two = serve(url), serve(url)
    collector.send(range(20))
    for world in (one, two):
        wait_for(lambda world=world: _frames(world, "run") == 19, "the frames")
    run = one.runs.get("run")
    assert run is not None
    run.change_rules({"dead": False})
    other = two.runs.get("run")
    assert other is not None
    wait_for(lambda: other.store.rules.get("dead") is False, "the change")
    assert other.rules == run.rules


def test_a_server_that_dies_takes_nothing_with_it(url: str, collector: Collector, serve: Serve) -> None:
    one, two = serve(url), serve(url)
    collector.send(range(20))
    wait_for(lambda: _frames(one, "run") == _frames(two, "run") == 19, "the frames")
    one.app.state.shared.close()
    collector.send(range(20, 40))
    wait_for(lambda: _frames(two, "run") == 39, "the frames")
    again = serve(url)
    series = [each.client.get("/api/v1/series?run=run&stat=mean&tap=0").json() for each in (two, again)]
    assert series[0] == series[1]
    assert len(series[0]["series"][0]["first_step"]) == 39


@pytest.mark.clickhouse("18.16", "26")
def test_a_command_of_any_server_reaches_the_trainer_through_its_collector(
    url: str, collector: Collector, serve: Serve
) -> None:
    one, two = serve(url), serve(url)
    collector.send(range(20))
    for world in (one, two):
        wait_for(lambda world=world: _frames(world, "run") == 19, "the frames")
    numbers = []
    wanted: list[tuple[World, str, str, dict[str, object]]] = [
        (two, "POST", "snapshots", {"tap": 0}),
        (one, "PATCH", "settings", {"paused": True}),
        (two, "PATCH", "settings", {"every": 10}),
    ]
    for world, method, path, content in wanted:
        asked = world.client.request(method, f"/api/v1/{path}?run=run", json=content)
        assert asked.status_code == 202, asked.text
        numbers.append(asked.json()["number"])
    assert numbers == sorted(numbers), "a trainer ignores a command with a lower number than one that it knows"
    (lane,) = collector.lanes.all()
    wait_for(lambda: [each.number for each in lane.commands] == numbers, "the commands")
    said = [(each.name, each.tap, dict(each.changes)) for each in lane.commands]
    assert said == [
        ("snapshot", TAPS[0], {}),
        ("settings", None, {"paused": True}),
        ("settings", None, {"every": 10}),
    ]
    done = Batch(run=a_run("run"), taps_from=len(TAPS), commands_done=numbers[1])
    collector.post(done)
    wait_for(lambda: [each.number for each in lane.commands] == numbers[2:], "the last command")


def test_a_server_over_clickhouse_takes_no_batches_and_says_where_to_send_them(url: str, serve: Serve) -> None:
    world = serve(url)
    refused = world.post(make_batch(a_run("run"), [1]))
    assert refused.status_code == 403
    assert "hookcore collect --to" in refused.text
    assert "secret" not in refused.text


def test_a_run_beyond_the_length_of_the_list_is_found_by_its_link(
    url: str, collector: Collector, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "MAX_LISTED", 1)
    monkeypatch.setattr(shared, "RECENT_S", 0)
    for run in ("a", "b", "c"):
        collector.send(range(5), run)
        collector.end(5, run)
    collector.wait()
    wait_for(lambda: _signs(url) == 3, "the list")
    world = serve(url)
    assert world.client.get("/api/v1/runs").json()["partial"] == "2 older runs aren't listed; their links work"
    for run in ("a", "b", "c"):
        assert world.client.get(f"/api/v1/runs/{run}").json()["steps"] == 5
    missing = world.client.get("/api/v1/runs/nothing")
    assert missing.status_code == 404
    assert "2 older runs" in missing.text


def _client(url: str) -> Client:
    return connect(ClusterAddress.of(url), "a test")


def _signs(url: str) -> int:
    cluster = _client(url)
    found = cluster.shards[0].read("SELECT uniqExact(run) AS count FROM runs").one("count")
    cluster.close()
    return found


# -- rejected requests -------------------------------------------------------------------------------------------------


def test_a_database_of_a_later_release_is_refused_at_the_start(url: str, serve: Serve) -> None:
    cluster = _client(url)
    cluster.shards[0].do("INSERT INTO versions SELECT 99, now(), 'hookcore 9'")
    cluster.close()
    with pytest.raises(SchemaError, match=r"a later release wrote it\. Use that release"):
        serve(url)


def test_a_wrong_password_is_refused_at_the_start_and_a_server_that_is_away_is_not(url: str, serve: Serve) -> None:
    with pytest.raises(clickhouse_client.ClickHouseError, match="Wrong password"):
        serve(url.replace("secret", "wrong"))
    world = serve("clickhouse://127.0.0.1:9/runs")
    answer = world.client.get("/api/v1/runs")
    assert answer.json()["runs"] == []
    assert "Runs of 127.0.0.1:9 may be missing" in answer.headers["hookcore-partial"]
    assert "Runs of 127.0.0.1:9 may be missing" in world.client.get("/", headers={"Accept": "text/html"}).text


def test_incompatible_settings_are_refused() -> None:
    settings = ServerSettings(store="clickhouse://box/runs", keep="somewhere")
    with pytest.raises(ArgumentError, match="keep and store are both set"):
        serving.with_folder(settings, {})
    with pytest.raises(ArgumentError, match="retain='30' is invalid: use a number of days such as 30d"):
        days_of("30")
    with pytest.raises(ArgumentError, match="is not an address of ClickHouse"):
        make_world(store="http://box")


# -- a shard that is down ----------------------------------------------------------------------------------------------


def test_a_shard_that_is_down_hides_nothing_silently(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clickhouse_client, "CONNECT_S", 1.0)
    names = [f"run-{number}" for number in range(20)]
    here = [next(name for name in names if rank_shards(name, 2)[0] == shard) for shard in (0, 1)]
    with running(shards=2) as nodes:
        collector = Collector(tmp_path, nodes.url)
        collector.inserter.start()
        try:
            for name in here:
                collector.send(range(30), name)
            world = serve(nodes.url)
            wait_for(lambda: all(_frames(world, name) == 29 for name in here), "the frames")
            nodes.nodes[0].kill()
            wait_for(lambda: world.client.get("/api/v1/runs").json()["partial"], "the note")
            listed = world.client.get("/api/v1/runs")
            assert {run["id"] for run in listed.json()["runs"]} == set(here)
            assert f"127.0.0.1:{nodes.nodes[0].port}" in listed.headers["hookcore-partial"]
            assert "secret" not in listed.headers["hookcore-partial"]
            for name in here:  # data in memory is shown, with the note
                answer = world.client.get(f"/api/v1/series?run={name}&stat=mean&tap=0")
                assert len(answer.json()["series"][0]["first_step"]) == 29
                assert answer.headers["hookcore-partial"]
            collector.send(range(30, 50), here[1])
            wait_for(lambda: _frames(world, here[1]) == 49, "the frames of the other shard")
            late = serve(nodes.url)
            assert set(_listed(late)) == {here[1]}
            missing = late.client.get(f"/api/v1/runs/{here[0]}")
            assert missing.status_code == 404
            assert "may be missing" in missing.text
            nodes.nodes[0].start()
            nodes.nodes[0].wait()
            for each in (world, late):
                wait_for(lambda each=each: set(_listed(each)) == set(here), "the other shard")
                wait_for(lambda each=each: "hookcore-partial" not in each.client.get("/api/v1/runs").headers, "the end")
        finally:
            collector.stop()


def test_a_run_that_cannot_be_opened_now_says_so(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "FULL", 0.0)  # no run is read before a reader opens it
    with running() as nodes:
        collector = Collector(tmp_path, nodes.url)
        collector.inserter.start()
        try:
            collector.send(range(30))
            world = serve(nodes.url)
            wait_for(lambda: "run" in _listed(world), "the list")
            nodes.nodes[0].kill()
            answer = world.client.get("/api/v1/series?run=run&stat=mean&tap=0")
            assert answer.status_code == 503
            assert answer.json()["error"].startswith("partial: ClickHouse can't be read now")
            page = world.client.get("/runs/run", headers={"Accept": "text/html"})
            assert page.status_code == 503
            assert "partial" in page.text
        finally:
            collector.stop()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ClickHouseError("Memory limit exceeded", 241), "(Memory limit exceeded, code 241). Try again"),
        (FormatError("cut off"), "(cut off). Try again"),
        (SchemaError("a later release"), "(a later release). Try again"),
    ],
)
def test_clickhouse_failures_are_not_reported_as_client_errors(
    monkeypatch: pytest.MonkeyPatch, error: HookcoreError, said: str
) -> None:
    def refuse(run: str) -> None:
        raise error

    world = make_world(store="clickhouse://127.0.0.1:9/runs")  # nothing listens there, and it isn't contacted
    monkeypatch.setattr(world.app.state.shared, "find", refuse)
    answer = world.client.get("/api/v1/series?run=run&stat=mean&tap=0")
    assert answer.status_code == 503
    assert said in answer.json()["error"]


def test_a_crash_that_arrives_while_the_run_is_read_is_shown_once(
    url: str, collector: Collector, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "FULL", 0.0)  # no run is read before a reader opens it
    world = serve(url)
    collector.send(range(5))
    end = EndItem(5, 4, Failure("crashed", 4, "ValueError: bad batch"))
    collector.post(Batch(run=a_run("run"), taps_from=len(TAPS), items=(end,)))
    wait_for(lambda: _listed(world).get("run", {}).get("state") == "crashed", "the end")
    monkeypatch.setattr(shared, "extent_of", lambda *of: Extent(1, 4))  # as before the end arrived
    run = world.runs.find("run")
    assert run is not None
    wait_for(lambda: run.received.acknowledged == 5, "the rest")
    assert [event.name for event in run.store.events()].count("crashed") == 1


# -- frames whose rows don't match -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_inserted", [True, False])
def test_frames_that_lost_their_rows_are_named_and_do_not_delay_the_rest(
    url: str, serve: Serve, monkeypatch: pytest.MonkeyPatch, is_inserted: bool
) -> None:
    monkeypatch.setattr(shared, "LOOK_S", 0.05)
    stored = 19 if is_inserted else 9  # what the collector reports as inserted
    store_frames(url, a_run("run"), range(10), stored=stored)
    store_frames(url, a_run("run"), range(10, 13), {ROWS: 0}, stored)
    store_frames(url, a_run("run"), range(13, 15), {SKETCHES: 2}, stored)
    store_frames(url, a_run("run"), range(15, 20), stored=stored)
    world = serve(url)
    answer = world.client.get("/api/v1/series?run=run&stat=mean&tap=0")
    if not is_inserted:
        assert answer.json()["series"][0]["first_step"] == list(range(10))
        assert "Steps from 10 on aren't shown yet" in answer.headers["hookcore-partial"]
        assert "0 rows of statistics instead of 5 in ClickHouse" in answer.headers["hookcore-partial"]
        monkeypatch.setattr(entry, "PATIENCE", 0)
    wait_for(lambda: _frames(world, "run") == 20, "the frames after the damaged ones")
    answer = world.client.get("/api/v1/series?run=run&stat=mean&tap=0")
    wait_for(lambda: "hookcore-partial" not in world.client.get("/api/v1/runs/run").headers, "the end of the wait")
    assert answer.json()["series"][0]["first_step"] == [*range(10), *range(13, 20)]
    run = world.runs.get("run")
    assert run is not None
    assert len(run.store.scalars("loss").mean) == 20
    said = " ".join(event.message for event in run.store.events() if event.name == "damaged")
    assert "histograms instead of" in said
    assert "rows of statistics instead of" in said
    assert "see the log of 127.0.0.1:" in said


# -- all ranks of a training -------------------------------------------------------------------------------------------


def _a_rank(rank: int, attempt: int = 0) -> RunInfo:
    place = Place(job="job", rank=rank, world=2, attempt=attempt)
    return msgspec.structs.replace(a_run(f"rank-{rank}-{attempt}"), started_s=1e9 + attempt, place=place)


def _steps_of_all(world: World) -> list[int]:
    answer = world.client.get("/api/v1/series?run=ranks-job&stat=mean&tap=0")
    assert answer.status_code == 200, answer.text
    steps: list[int] = answer.json()["series"][0]["first_step"]
    return steps


@pytest.mark.parametrize(
    ("whole", "frames", "begin"), [(10_000, 1024, None), (600, 1024, 20), (300, 1024, 26), (300, 2, 28)]
)
def test_in_a_long_restarted_training_memory_has_the_newest_steps_and_clickhouse_the_rest(
    url: str, serve: Serve, monkeypatch: pytest.MonkeyPatch, whole: int, frames: int, begin: int | None
) -> None:
    monkeypatch.setattr(entry, "WHOLE_ROWS", whole)  # a frame counts as 25
    for name in ("WINDOW_FRAMES", "MIN_FRAMES"):
        monkeypatch.setattr(entry, name, frames)
    monkeypatch.setattr(entry, "WINDOW_ROWS", 200)
    monkeypatch.setattr(shared, "FULL", 0.0)
    for attempt, count in enumerate((20, 10)):
        for rank in range(2):
            store_frames(url, _a_rank(rank, attempt), range(count))
    world = serve(url)
    assert _steps_of_all(world) == list(range(30))
    joint = joint_in(world)
    assert joint.sum.shift == 20
    steps = joint.run.store.steps()
    assert (steps.first, steps.newest, steps.count) == (0, 29, 30)
    assert joint.run.store.exact_since == begin
    partial = joint.run.partial or ""
    assert f"cover steps from {begin} on" in partial or (begin is None and not partial)


def test_a_server_stores_sums_of_ranks_so_that_questions_about_a_long_training_are_answered(
    url: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry, "WHOLE_ROWS", 300)
    monkeypatch.setattr(entry, "WINDOW_ROWS", 200)
    monkeypatch.setattr(rankspast, "MAX_ADDED", 100)
    monkeypatch.setattr(rankspast, "MAX_SKETCHES_ADDED", 100)
    for module in (adder, ranksums):
        monkeypatch.setattr(module, "LARGE", 0)
        monkeypatch.setattr(module, "LARGE_SKETCHES", 0)
    monkeypatch.setattr(ranksums, "FRESH_S", 0.0)
    monkeypatch.setattr(shared, "ADD_S", 0.05)
    for rank in range(2):
        store_frames(url, _a_rank(rank), range(200))
    world = serve(url)
    of = "run=ranks-job&from=0&to=191&points=10"
    asked = [f"/api/v1/series?{of}&stat=mean&tap=0", f"/api/v1/scalars?{of}&name=loss"]
    histograms = "/api/v1/histograms?run=ranks-job&from=0&to=191&tap=0&columns=2"
    layers = "/api/v1/differences?run=ranks-job&from=0&to=63&other=ranks-job&other_from=64&other_to=191"
    for path in (*asked, histograms, layers):
        assert "this needs the sum of" in world.client.get(path).headers["hookcore-partial"], path
    monkeypatch.setattr(world.app.state.shared.adders["ranks-job"][1], "settled_s", 0.0)
    for path in asked:
        wait_for(
            lambda path=path: "this needs the sum of" not in world.client.get(path).headers.get("hookcore-partial", ""),
            "sums",
        )
        (found,) = world.client.get(path).json()["series"]
        assert sum(found["present"]) == 192
        assert (found["first_step"][0], found["last_step"][-1]) == (0, 191)
    for each in (world, serve(url)):  # the other one restarts, and finds the stored data
        for path in (histograms, layers):
            wait_for(lambda path=path, each=each: "this needs the sum of" not in partial_of(each, path), path)
        found = each.client.get(histograms).json()
        assert sum(map(sum, found["counts"])) == 192 * 16
        found = each.client.get(layers).json()
        assert found["inside"] == {"run": "ranks-job", "first": 0, "last": 63, "steps": 64}
        assert found["outside"] == {"run": "ranks-job", "first": 64, "last": 191, "steps": 128}
        assert found["compared"] == len(TAPS)


def joint_in(world: World) -> Joint:
    """Return the training of the ranks, as it is listed."""
    run = world.runs.get("ranks-job")
    assert run is not None
    joint = ranks_in(run)
    assert joint is not None
    return joint


def partial_of(world: World, path: str) -> str:
    return world.client.get(path).headers.get("hookcore-partial", "")


class Polled:
    """A server over ClickHouse without a thread: the test decides when it looks."""

    def __init__(self, url: str, now: Callable[[], float] = time.monotonic) -> None:
        self.world = make_world(now, store=url)
        self.shared = self.world.app.state.shared
        (self._shard,) = self.shared.cluster.shards
        self.shared.listed.set()

    def look(self) -> None:
        """Read what is new and pass it on."""
        self.shared.look(self._shard)
        self.shared.advance(self._shard)

    def look_at_joint(self) -> Joint:
        """Look, read the ranks, and return them together."""
        self.look()
        self.world.runs.find("ranks-job")
        return joint_in(self.world)


def test_the_last_steps_of_an_attempt_that_are_stored_after_the_next_one_has_begun_are_in_the_sum(url: str) -> None:
    """Servers therefore agree on the steps of the next attempt, whenever they read it."""
    polled = Polled(url)

    for rank, steps in ((0, range(10)), (1, range(8))):
        store_frames(url, _a_rank(rank), steps, sent=9)
    assert polled.look_at_joint().run.store.steps().newest == 7
    for rank in range(2):
        store_frames(url, _a_rank(rank, attempt=1), range(3))
    assert polled.look_at_joint().run.store.steps().newest == 7, "the next attempt waits"
    store_frames(url, _a_rank(1), range(8, 10))
    for rank in range(2):
        store_frames(url, _a_rank(rank, attempt=1), range(3, 5))
    joint = polled.look_at_joint()
    joint.sum.tick()
    assert (joint.sum.shift, joint.run.store.steps().newest, joint.sum.assembly.absences.incomplete) == (10, 14, 0)
    assert not [event.message for event in joint.run.store.events() if event.name == "rank-of-before"]
    polled.shared.close()


def test_ranks_too_large_for_memory_are_not_blamed_and_the_others_are_read_before_the_sum(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled = Polled(url)
    world = polled.world
    loaded: list[bool] = []

    def recorded(runs: Sequence[Run]) -> dict[str, Recorded]:
        loaded.extend(run.loaded for run in runs)
        return {}

    for rank in range(2):
        store_frames(url, _a_rank(rank), range(10))
    monkeypatch.setattr(shared, "FULL", 0.0)
    polled.look()
    assert world.runs.find("rank-0-0") is not None  # a reader opens only this one
    store_frames(url, _a_rank(0), range(10, 12))
    polled.look()
    joint, other = joint_in(world), world.runs.get("rank-1-0")
    assert joint.run.loaded
    assert joint.run.store.steps().newest == 11
    (message,) = (event.message for event in joint.run.store.events() if event.name.startswith("rank-"))
    assert "rank 1 isn't in this server's memory, because runs take" in message
    assert "more than 0% of --memory (2 GB)" in message
    assert joint.sum.assembly.absences.incomplete == 2
    joint.run.swap(Store.outline(joint.run.store.steps()), loaded=False)
    monkeypatch.setattr(shared, "FULL", 0.8)
    monkeypatch.setattr(polled.shared, "recorded", recorded)
    store_frames(url, _a_rank(0), range(12, 13))
    polled.look()
    assert other is not None
    assert other.loaded
    assert loaded == [True, True]
    polled.shared.close()


def test_frames_of_a_rank_that_was_not_in_memory_are_added_to_the_sum_or_counted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    polled = Polled(url, lambda: now_s)
    world = polled.world

    for rank in range(2):
        store_frames(url, _a_rank(rank), range(10))
    polled.look()
    world.runs.find("ranks-job")
    joint, away = joint_in(world), world.runs.get("rank-1-0")
    assert away is not None

    def leave_while(steps: range, others: range) -> None:
        nonlocal now_s
        now_s += GRACE_S + 1
        assert away is not None
        away.signs.seen_at = float("-inf")
        assert world.runs.memory.leave(away)
        joint.sum.tick()
        store_frames(url, _a_rank(0), others)
        polled.look()
        store_frames(url, _a_rank(1), steps)
        polled.look()
        assert away.loaded

    leave_while(range(10, 16), range(10, 15))
    progress = joint.sum.assembly.ranks[1]
    assert progress.late == 4, "steps 10 to 13: step 14 is still open, and 15 waits for the other rank"
    assert any(
        "rank 1 sent step 10 after step 14 had been added up" in each.message for each in joint.run.store.events()
    )
    store_frames(url, _a_rank(0), range(15, 17))
    store_frames(url, _a_rank(1), range(16, 17))
    polled.look()
    assert joint.run.store.steps().newest == 16
    assert joint.sum.assembly.absences.incomplete == 4
    monkeypatch.setattr(entry, "WHOLE_ROWS", 100)  # a frame counts as 25
    monkeypatch.setattr(entry, "WINDOW_ROWS", 50)
    leave_while(range(17, 25), range(17, 26))
    assert progress.late == 4 + 8
    assert any("rank 1 was away for 6 frames" in each.message for each in joint.run.store.events())
    shown = world.client.get("/api/v1/ranks?run=ranks-job").json()
    assert [each["late"] for each in shown["ranks"]] == [0, 12]
    polled.shared.close()


# -- how long runs are kept --------------------------------------------------------------------------------------------


@pytest.mark.clickhouse("18.16", "26")
def test_days_with_only_long_silent_runs_are_dropped_everywhere(
    url: str, nodes: Cluster, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    for name, days in (("old", 40), ("still", 40), ("new", 1)):
        began = int(now - days * 86_400) + (86_400 if name == "still" else 0)  # a day of its own
        items = tuple(frame_item(step, a_frame(step)) for step in range(20))
        info = msgspec.structs.replace(a_run(name), started_s=began)
        collector.post(Batch(run=info, taps=TAPS, items=items))
        collector.post(Batch(run=info, taps_from=len(TAPS), items=(EndItem(20, 20),)))
    collector.wait()
    cluster = _client(url)
    shard = cluster.shards[0]
    wait_for(lambda: shard.read("SELECT uniqExact(run) AS count FROM runs").one("count") == 3, "the list")
    collector.inserter.close()  # otherwise, it would write newer signs of life
    # Instead of waiting for days, the test makes the signs of life of one run old.
    old, node = number_of_run("old"), nodes.nodes[0]
    day = shard.read(f"SELECT toString(any(day)) AS day FROM runs WHERE run = {old}").texts("day")[0].decode()
    node.ask(
        f"INSERT INTO runs SELECT day, run, id, version, now() - 31 * 86400, content FROM runs WHERE run = {old}",
        database_of(url),
    )
    node.ask("OPTIMIZE TABLE runs FINAL", database_of(url))
    assert Retention("").keep(shard) == []
    assert Retention("60d").keep(shard) == []
    for table in OF_SUMS:  # another server stores sums just before or after their day is dropped
        for of in (day, "2020-01-01", "today()"):
            of_day = of if of == "today()" else f"'{of}'"
            node.ask(f"INSERT INTO {table.name} (day, run) SELECT toDate({of_day}), 7", database_of(url))
    keeping = Retention("30d")
    assert keeping.keep(shard) == [day]
    for table in OF_SUMS:
        assert shard.read(f"SELECT count() AS count FROM {table.name} WHERE day = today()").one("count") == 1
        assert shard.read(f"SELECT count() AS count FROM {table.name}").one("count") == 1, "days without runs are gone"
    assert keeping.keep(shard) == [], "not again so soon"
    monkeypatch.setattr(sharing, "EVERY_S", 0.0)
    assert keeping.keep(shard) == []
    left = shard.read("SELECT id FROM runs ORDER BY id").texts("id")
    assert left == [b"new", b"still"]
    for table in ("rows", "rollups", "sketches", "sketch_rollups", "items", "lanes"):
        assert shard.read(f"SELECT count() AS count FROM {table} WHERE run = {old}").one("count") == 0, table
        assert shard.read(f"SELECT count() AS count FROM {table} WHERE run = {number_of_run('still')}").one("count")
    cluster.close()


def test_runs_of_dropped_days_leave_the_list_on_every_server(
    url: str, nodes: Cluster, collector: Collector, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "UNLIST_LOOKS", 1)
    began = int(time.time() - 40 * 86_400)
    for name, started_s in (("old", began), ("deleted", began), ("new", int(time.time()))):
        info = msgspec.structs.replace(a_run(name), started_s=started_s)
        items = tuple(frame_item(step, a_frame(step)) for step in range(20))
        collector.post(Batch(run=info, taps=TAPS, items=items))
        collector.post(Batch(run=info, taps_from=len(TAPS), items=(EndItem(20, 20),)))
    collector.wait()
    one, two = serve(url), serve(url)
    for world in (one, two):
        wait_for(lambda world=world: sorted(_listed(world)) == ["deleted", "new", "old"], "the list")
    one.client.delete("/api/v1/runs/deleted")
    wait_for(lambda: "deleted" not in _listed(two), "the deletion")
    two.client.get("/api/v1/series?run=old&stat=mean&tap=0")  # its values are in memory
    collector.inserter.close()  # otherwise, it would write newer signs of life
    day = nodes.nodes[0].ask(f"SELECT any(day) FROM runs WHERE run = {number_of_run('old')}", database_of(url))
    for table in OF_RUNS:  # as another server's retention does
        nodes.nodes[0].ask(f"ALTER TABLE {table.name} DROP PARTITION '{day}'", database_of(url))
    for world in (one, two):
        wait_for(lambda world=world: list(_listed(world)) == ["new"], "the end of the ghosts")
        assert world.client.get("/api/v1/series?run=old&stat=mean&tap=0").status_code == 404
        assert world.client.post("/api/v1/removed-runs/deleted/restore").status_code == 404


def test_many_frames_with_few_values_make_a_run_long(
    url: str, collector: Collector, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry, "WHOLE_ROWS", 300)
    monkeypatch.setattr(entry, "WINDOW_ROWS", 200)
    collector.send(range(20))  # with 100 values of taps
    collector.end(20)
    collector.wait()
    answer = serve(url).client.get("/api/v1/series?run=run&stat=mean&tap=0")
    assert "This run is long" in answer.headers["hookcore-partial"]
    assert answer.json()["series"][0]["first_step"] == list(range(20))


def test_late_frames_are_in_the_sum_after_the_ranks_in_clickhouse_were_added_up_again(url: str) -> None:
    now_s = 1000.0
    polled = Polled(url, lambda: now_s)
    world = polled.world

    for rank, steps in ((0, range(10)), (1, range(3))):
        store_frames(url, _a_rank(rank), steps)
    polled.look_at_joint()
    now_s += LATE_S + 1
    joint_in(world).sum.tick()
    store_frames(url, _a_rank(1), range(3, 10))
    polled.look_at_joint()
    before = world.client.get("/api/v1/ranks?run=ranks-job").json()
    assert (before["incomplete"], before["ranks"][1]["late"]) == (6, 6), "the newest step is still open"
    for run in joint_in(world).runs():
        run.signs.seen_at = float("-inf")  # both are lost
    after = world.client.post("/api/v1/ranks?run=ranks-job").json()
    assert (after["incomplete"], after["ranks"][1]["late"], after["steps"]) == (0, 0, 10)
    polled.shared.close()

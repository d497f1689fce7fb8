"""The client: every call to a real server returns the store's values, and errors contain the server's messages."""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import hookcore
from hookcore.errors import ArgumentError, ServerError
from hookcore.reading import Client
from hookcore.reading.answers import HistogramsList, Overview, Scalars, Tabular, decode
from hookcore.reading.answers.live import News
from hookcore.reading.exchange import Exchange
from hookcore.records import Event, Snapshot, Tap, about_command
from hookcore_app.main import create_app
from hookcore_app.runs import Runs
from hookcore_app.runs.parts import MAX_COMMANDS, End
from hookcore_app.serving.server import complete, listen, make_server
from hookcore_app.settings import ServerSettings
from tests.api_world import COVERAGE, HOOKS, MATRIX, MODULES, STEPS, TAPS, fill, make_frame, open_run, same
from tests.serving import READ_TOKEN, TOKEN, Served, served
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def world() -> Iterator[Served]:
    with served(read_token=READ_TOKEN, lost_after_s=10_000.0) as server:
        yield server


@pytest.fixture
def client(world: Served) -> Iterator[Client]:
    for run in world.runs.all():
        world.runs.remove(run.id)
    fill(open_run(world.runs, "one"))
    with Client(world.url, TOKEN) as made:
        yield made


def _store(world: Served) -> Any:
    run = world.runs.get("one")
    assert run is not None
    return run.store


def test_an_answer_of_an_older_server_is_read_without_the_fields_that_it_does_not_send(
    world: Served, client: Client
) -> None:
    newest = client.overview()
    asked = Request(f"{world.url}/api/v1/overview", headers={"Authorization": f"Bearer {TOKEN}"})
    with urlopen(asked) as answer:
        sent = json.load(answer)
    del sent["gradient_norm_before"]
    older = decode(json.dumps(sent).encode(), Overview)
    assert (older.run, older.steps, older.gradient_norm_before) == (newest.run, newest.steps, None)


def test_an_unknown_incident_is_named_as_it_was_asked_for(client: Client) -> None:
    with pytest.raises(ServerError, match="unknown incident 'dead relu: 3%'"):
        client.incident("dead relu: 3%")


def test_store_and_client_take_the_same_tap_names_and_make_the_same_data_frames(world: Served, client: Client) -> None:
    store = _store(world)
    for tap in client.taps().taps[1:]:
        for name in (tap.number, tap.label, tap.record.words, tap.record, tap):
            for reader in (store, client):
                _require_equal_frames(reader.series(name, "rms"), store.series(tap.number, "rms"))
                _require_equal_frames(reader.histograms(name), store.histograms(tap.number))
        for name in (tap.label, tap.record.words, tap.record, tap):
            [line] = client.overlay(["one"], tap=name).lines
            np.testing.assert_array_equal(line.mean, store.series(tap.number, "rms", points=500).mean)
    _require_equal_frames(client.heatmap("output", "rms"), store.heatmap("output", "rms"))
    _require_equal_frames(client.latest(sort="rms"), store.latest(sort="rms"))
    _require_equal_frames(client.scalars("loss")["loss"], store.scalars("loss"))
    quantiles = store.quantiles("head param_grad [weight]", [0.5, 0.99]).to_pandas()
    assert list(quantiles) == ["first_step", "last_step", "p50", "p99"]
    with pytest.raises(
        ArgumentError, match=r"unknown tap 'head param_grad \[wait\]'; did you mean 'head param_grad \[w"
    ):
        store.series("head param_grad [wait]", "rms")


def _require_equal_frames(one: Any, two: Any) -> None:
    pandas.testing.assert_frame_equal(one.to_pandas(), two.to_pandas(), check_dtype=False)
    assert one.to_polars().columns == list(two.columns())


def test_runs_are_found_renamed_and_deleted(world: Served, client: Client) -> None:
    assert client.health()["status"] == "ok"
    fill(open_run(world.runs, "two", started_s=2.0))
    assert [run.id for run in client.runs()] == ["two", "one"]
    run = client.run("one")
    assert (run.state, run.newest_step, run.taps) == ("live", STEPS - 1, len(TAPS))
    assert client.rename("one", "baseline", notes="why").name == "baseline"
    assert client.run("one").notes == "why"
    client.delete_run("two")
    assert [run.id for run in client.runs()] == ["one"]


def test_a_client_of_a_run_draws_that_run(world: Served, client: Client) -> None:
    fill(open_run(world.runs, "two", started_s=2.0), steps=3)
    with Client(world.url, TOKEN, run="one") as mine:
        assert len(mine.figure("scalars", names=["loss"]).data[0].x) == STEPS
        assert len(mine.figure("scalars", names=["loss"], run="two").data[0].x) == 3


def test_steps_are_annotated(client: Client) -> None:
    assert [each.text for each in client.annotate(3, "first", run="one")] == ["first"]
    assert [(each.step, each.text) for each in client.annotate(1, "before")] == [(1, "before"), (3, "first")]
    assert [each.step for each in client.remove_annotation(3)] == [1]
    assert [each.step for each in client.annotations("one")] == [1]


def test_the_description_of_a_run_is_returned_as_sent(client: Client) -> None:
    modules = client.modules()
    assert [(each.path, each.type, each.parent) for each in modules] == [
        (each.path, each.type, each.parent) for each in MODULES
    ]
    assert (modules[1].aliases, modules[1].taps[0].number, modules[1].shapes) == (("again.0",), 1, {"weight": (4, 3)})
    assert modules[1].coverage == COVERAGE[1]
    assert tuple(tap.record for tap in client.taps().taps) == TAPS
    assert client.taps("type:Lin*").numbers.tolist() == [1, 4]
    assert client.coverage(captured=False) == [COVERAGE[2]]
    assert client.hooks() == list(HOOKS)


def test_numbers_over_time_equal_those_of_the_store(world: Served, client: Client) -> None:
    store = _store(world)
    one, truth = client.series(TAPS[2].label, "rms", 1, 18, points=5), store.series(2, "rms", 1, 18, 5)
    for name in ("first_step", "last_step", "mean", "min", "max", "present", "nonfinite"):
        assert same(getattr(one, name), getattr(truth, name))
    assert one.tap is not None
    assert one.tap.record == TAPS[2]
    assert client.series(4, "p99").present is None
    many = client.many_series("layers.*", stat="mean")
    assert [each.tap.number for each in many if each.tap] == [1, 2, 3]
    found, heatmap = client.heatmap("output", "rms", rows=2), store.heatmap("output", "rms", rows=2)
    assert same(found.worst, heatmap.worst)
    assert found.groups.tolist() == heatmap.groups.tolist()
    assert client.heatmap("update").worst.shape == (0, 0)
    histograms, expected = client.histograms(1, columns=4), store.histograms(1, columns=4)
    assert same(histograms.counts, expected.counts)
    assert same(histograms.edges, expected.edges)
    latest = client.latest(sort="rms", limit=2)
    assert same(latest.values, store.latest(sort="rms", limit=2).values)


def test_more_taps_than_a_page_holds_are_all_returned(world: Served, client: Client) -> None:
    store = _store(world)
    store.announce(tuple(Tap(f"more.{number}", "output") for number in range(250)))
    assert len(client.many_series("*", points=10)) == 250 + len(TAPS)


def test_scalars_have_names_and_series(client: Client) -> None:
    scalars = client.scalars("loss")
    assert {"loss", "lr"} <= set(scalars.names)
    assert np.isnan(scalars["loss"].mean[3])
    assert scalars["loss"].tap is None
    assert set(client.scalars(match="l*").names) == {"loss", "lr"}


def test_events_are_filtered_and_followed(world: Served, client: Client) -> None:
    said = client.events(severity="warning")
    assert [event.step for event in said.events] == [0, 5, 10, 15]
    assert client.events(after=said.next).events == ()
    about = {"found": "loss", "previous": None, "late": False, "share": 0.5}
    _store(world).add_event(Event(21, 121.0, "told", "words", about=about))
    assert client.events(name="told").events[0].about == about


def test_commands_reach_the_trainer(world: Served, client: Client) -> None:
    run = world.runs.get("one")
    assert run is not None
    for number in (
        client.change_settings(every=3, kinds={"output"}).number,
        client.pause().number,
        client.resume().number,
        client.look_for_hooks().number,
        client.request_snapshot(module="head", kind="input").number,
    ):
        assert any(command.number == number for command in run.commands)
    assert [command.changes for command in run.commands][:3] == [
        {"every": 3, "kinds": ["output"]},
        {"paused": True},
        {"paused": False},
    ]
    assert [each.number for each in client.settings().waiting] == [command.number for command in run.commands]
    assert client.settings().settings["every"] == 1


def test_a_snapshot_is_waited_for(world: Served, client: Client) -> None:
    run = world.runs.get("one")
    assert run is not None

    def obey() -> None:
        [command] = wait_for(lambda: list(run.commands))
        assert command.tap is not None
        run.store.add_snapshot(Snapshot(command.tap, 20, 1.0, "float32", (2, 3), MATRIX, number=command.number))

    trainer = threading.Thread(target=obey)
    trainer.start()
    snapshot = client.snapshot(1)
    trainer.join()
    assert same(snapshot.values, MATRIX)
    assert (snapshot.tap, snapshot.step, snapshot.shape) == (TAPS[1], 20, (2, 3))
    assert same(client.tensor(snapshot.number, "0,1:"), MATRIX[0, 1:])
    assert [each.number for each in client.snapshots()] == [0, snapshot.number]


def test_waiting_for_a_missing_snapshot_times_out(client: Client) -> None:
    with pytest.raises(ServerError, match="did not arrive within"):
        client.snapshot(1, timeout_s=0.0)


def test_two_readers_who_change_one_setting_at_once_each_learn_what_became_of_their_own(
    world: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with (
        hookcore.watch(model, server=world.url, budget=None, name="live"),
        Client(world.url, TOKEN) as one,
        Client(world.url, TOKEN) as two,
    ):
        _train(model, 3)
        wait_for(lambda: world.runs.all()[0].name == "live")
        first, second = one.change_settings(include=["0"]), two.change_settings(include=["1"])
        third = one.change_settings(include=["nothing"])
        assert one.outcome(first.number).outcome in ("waiting", "received")
        wait_for(lambda: all(each.outcome(said.number).reason for each, said in ((one, first), (two, second))))
        _train(model, 2)
        found = one.outcome(first.number, 30.0)
        assert (found.outcome, found.replaced_by) == ("superseded", second.number)
        assert found.reason == 'include: [] -> ["0"]. A later change replaced it before a step used it'
        found = two.outcome(second.number, 30.0)
        assert (found.outcome, found.reason, found.replaced_by) == ("applied", 'include: ["0"] -> ["1"]', None)
        found = one.outcome(third.number, 30.0)
        assert (found.outcome, found.reason[:32]) == ("refused", "include: 'nothing' matches no mo")
        asked = one.request_snapshot(module="1", kind="output")
        wait_for(lambda: one.outcome(asked.number).outcome == "received")
        _train(model, 2)
        assert one.outcome(asked.number, 30.0).outcome == "applied"
    ended = one.outcome(asked.number, 30.0)
    assert (ended.outcome, ended.module) == ("applied", "1")


def _train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_what_is_unknown_of_a_command_is_said(world: Served, client: Client) -> None:
    assert client.outcome(7).outcome == "unknown"
    numbers = [client.look_for_hooks().number for _ in range(MAX_COMMANDS + 1)]
    assert [client.outcome(number).outcome for number in numbers[:2]] == ["dropped", "waiting"]
    run = world.runs.get("one")
    assert run is not None
    run.commands.drop_received(numbers[1])
    assert client.outcome(numbers[1]).outcome == "received"
    path = f"/api/v1/commands?numbers={','.join(map(str, numbers))}"
    assert b"at most 256 are allowed" in world.ask(
        f"GET {path} HTTP/1.1\nHost: 127.0.0.1\nAuthorization: Bearer {TOKEN}"
    )
    run.end = End(5)
    said = client.outcome(numbers[2])
    assert (said.outcome, said.reason) == ("unknown", "the run is ended, and its trainer has not reported the outcome")


def test_a_refused_snapshot_is_an_error_with_its_reason(world: Served, client: Client) -> None:
    run = world.runs.get("one")
    assert run is not None

    def refuse() -> None:
        [command] = wait_for(lambda: list(run.commands))
        run.store.add_event(Event(3, 1.0, "snapshot-missed", "why", about=about_command(command.number, "refused")))

    trainer = threading.Thread(target=refuse)
    trainer.start()
    with pytest.raises(ServerError, match=r"was refused: why"):
        client.snapshot(1)
    trainer.join()


def test_two_runs_are_compared(world: Served, client: Client) -> None:
    fill(open_run(world.runs, "two", started_s=2.0), scale=2.0)
    found = client.compare("one", "two", tolerance=0.1)
    assert found.first is not None
    assert (found.first.step, found.first.tap.record) == (0, TAPS[0])
    assert found.parted == len(TAPS)
    assert found.only_in == {"one": (), "two": ()}
    assert found.verdict.outcome == "different"
    assert {each.name: each.outcome for each in found.logged}["loss"] == "NaN in both"
    same = client.compare("one", "one")
    assert (same.first, same.verdict.outcome) == (None, "no difference")
    assert (same.verdict.steps_compared, same.verdict.steps_not_comparable) == (20, 0)
    assert same.verdict.message.startswith("No difference in the 20 steps that both runs captured.")


def test_the_tail_continues_where_it_was(world: Served, client: Client) -> None:
    store, run = _store(world), world.runs.get("one")
    assert run is not None
    news = client.tail("one", kind="output", stats=["rms"])
    first = next(news)
    assert first.latest is not None
    assert (first.latest.last_step, first.latest.numbers.tolist()) == (STEPS - 1, [0, 1, 2])
    assert same(first.latest.values["rms"], store.latest("output", "rms").values[:, 0])
    news.close()  # type: ignore[attr-defined]  # it is a generator
    store.append(make_frame(STEPS, [1.0, 2.0, float("nan")]))
    run.changes.tell()
    behind = client.tail("one", kind="output", stats="all", after=first.id)
    later = next(behind).latest
    assert later is not None
    assert later.first_step == STEPS
    assert np.isnan(later.values["rms"][2])
    assert later.nonfinite.tolist() == [2]
    world.runs.remove("one")
    state = list(behind)[-1].state
    assert state is not None
    assert state.state == "removed"


def test_an_error_has_the_servers_message_and_status(world: Served, client: Client) -> None:
    with pytest.raises(ServerError, match="did you mean 'rms'") as raised:
        client.series(0, "rmz")
    assert raised.value.status == 400
    with pytest.raises(ServerError, match="run") as raised:
        next(client.tail("nobody"))
    assert raised.value.status in (400, 404)
    with pytest.raises(ServerError, match="run") as raised:
        client.run("nobody")
    assert raised.value.status == 404
    with Client(world.url, "w" * 40) as stranger, pytest.raises(ServerError, match="token") as raised:
        stranger.runs()
    assert raised.value.status == 401
    with Client(world.url, READ_TOKEN) as reader, pytest.raises(ServerError, match="token") as raised:
        reader.pause()
    assert raised.value.status == 403


def test_the_token_of_the_environment_may_end_with_a_newline(world: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKCORE_TOKEN", f"{TOKEN}\n")
    with Client(world.url) as client:
        client.runs()  # raises if the token isn't the server's


def test_an_unreachable_server_is_named() -> None:
    with pytest.raises(ServerError, match=r"http://127\.0\.0\.1:1 can't be reached") as raised:
        Client("http://127.0.0.1:1").runs()
    assert raised.value.status is None
    with pytest.raises(ServerError, match="can't be reached"):
        next(Client("http://127.0.0.1:1").tail())


@pytest.mark.parametrize("url", ["box:8642", "ftp://box", "http://", "http://box?x=1", ""])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ArgumentError, match="address"):
        Client(url)


def test_without_an_address_the_users_own_dashboard_is_used(
    world: Served, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOOKCORE_HOME", str(tmp_path))
    monkeypatch.delenv("HOOKCORE_URL", raising=False)
    monkeypatch.delenv("HOOKCORE_TOKEN", raising=False)
    with pytest.raises(ServerError, match="no dashboard is running for you"):
        Client()
    monkeypatch.setenv("HOOKCORE_URL", world.url)
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
    with Client() as own:
        assert [run.id for run in own.runs()] == ["one"]


def test_a_connection_that_the_server_closed_is_reopened(world: Served, client: Client) -> None:
    client.runs()
    connections = [each for each in gc.get_objects() if isinstance(each, HTTPConnection) and each.port == world.port]
    (connection,) = (each for each in connections if each.sock is not None)
    connection.sock.shutdown(socket.SHUT_RDWR)  # like a restarted server, or one whose timeout has passed
    assert [run.id for run in client.runs()] == ["one"]


def test_one_client_serves_many_threads(client: Client) -> None:
    found: list[int] = []

    def ask(number: int) -> None:
        found.extend(client.histograms(number % len(TAPS)).tap.number or 0 for _ in range(20))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted([number % len(TAPS) for number in range(6)] * 20)


def test_data_frames_need_their_library_and_say_so_without_it(client: Client) -> None:
    series = client.series(1)
    for name, make in (("pandas", series.to_pandas), ("polars", series.to_polars)):
        if importlib.util.find_spec(name) is None:
            with pytest.raises(ArgumentError, match=f"pip install {name}"):
                make()
        else:
            assert len(make()) == STEPS
    frames: list[Tabular] = [client.taps(), client.heatmap(), client.histograms(1), client.latest(), series]
    for each in frames:
        assert len({len(column) for column in each.columns().values()}) == 1


def test_the_client_needs_neither_torch_nor_a_web_framework() -> None:
    code = "import sys, json, hookcore; hookcore.Client; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert {"torch", "fastapi", "starlette", "pyarrow", "numba"} & set(json.loads(done.stdout)) == set()


def test_every_route_has_its_method(world: Served) -> None:
    source = inspect.getsource(sys.modules[Client.__module__])
    for path, methods in world.app.openapi()["paths"].items():
        for method, said in methods.items():
            if said.get("tags") == ["runs"]:
                pieces = re.split(r"{\w+}", path)
                assert all(piece in source for piece in pieces), f"{method} {path}"


@contextmanager
def _serving_at(port: int) -> Iterator[Runs]:
    """Serve at a port; 0 means any."""
    listening = listen("127.0.0.1", port)
    settings = complete(ServerSettings(host="127.0.0.1", port=port, token=TOKEN), listening)
    assert port in (0, settings.port)
    runs = Runs(settings)
    server = make_server(create_app(runs, settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield runs
    finally:
        server.stop()
        thread.join(30.0)


def test_a_tail_survives_a_restart_of_the_server() -> None:
    told: list[News] = []
    with _serving_at(0) as first:
        port = first.settings.port
        fill(open_run(first, "one"))
        reader = threading.Thread(target=_read_until_second, args=(f"http://127.0.0.1:{port}", told))
        reader.start()
        wait_for(lambda: any(each.latest for each in told))
    with _serving_at(port) as second:
        fill(open_run(second, "second", started_s=9.0), steps=5)
        reader.join(30.0)
        assert not reader.is_alive()
    assert told[-1].latest is not None
    assert told[-1].latest.run == "second"


def _read_until_second(url: str, told: list[News]) -> None:
    with Client(url, TOKEN) as client:
        for news in client.tail():
            told.append(news)
            if news.latest is not None and news.latest.run == "second":
                return


def test_later_pages_are_of_the_run_of_the_first_one_even_if_a_newer_run_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def ask(_: Exchange, kind: Any, _method: str, _path: str, given: dict[str, Any], _body: Any) -> Any:
        """Answer as a server on which a newer run starts after each answer."""
        asked.append(given["run"])
        run = given["run"] or f"run {len(asked)}"
        if kind is HistogramsList:
            return HistogramsList(run, ())
        if kind is Scalars:
            return Scalars(2, None if len(asked) > 1 else 1, run, (), ())
        return kind(2, None if len(asked) > 1 else 1, run, ())

    monkeypatch.setattr(Exchange, "ask", ask)
    reader = Client("http://127.0.0.1:9")
    for question in (
        reader.coverage,
        reader.taps,
        reader.hooks,
        reader.scalars,
        lambda: reader.many_histograms(range(52)),
    ):
        asked.clear()
        question()
        assert asked == [None, "run 1"]


def test_a_follower_waits_until_a_restarted_server_knows_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, unknown = Exchange("http://127.0.0.1:9", None, 1.0), ServerError("there is no run 'one'", 404)
    answers = iter([[("1", b"{}")], unknown, [("2", b"{}")], unknown, unknown])

    def events(*_: Any) -> Iterator[tuple[str, bytes]]:
        found = next(answers)
        if isinstance(found, ServerError):
            raise found
        yield from found

    monkeypatch.setattr(exchange, "_connect", lambda timeout_s: socket.socket())
    monkeypatch.setattr(exchange, "_events", events)
    monkeypatch.setattr("hookcore.reading.exchange.FIRST_WAIT_S", 0.0)
    news = exchange.follow("/api/v1/live", {}, None)
    assert [next(news)[0] for _ in range(2)] == ["1", "2"]
    monkeypatch.setattr("hookcore.reading.exchange.NEW_SERVER_S", 0.0)
    with pytest.raises(ServerError, match="there is no run"):
        next(news)
    with pytest.raises(ServerError, match="there is no run"):  # it never existed
        next(exchange.follow("/api/v1/live", {}, None))

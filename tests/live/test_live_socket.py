"""The binary socket: a snapshot and its deltas cover each step exactly once, with the store's values."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from hookcore.records import STAT_COLUMN, ModuleRecord, Snapshot, Tap, wire
from hookcore_app.live import publisher_of, views
from hookcore_app.live.publisher import TapCache, mark_of
from hookcore_app.live.views import Body, Subscribe, concern, make, read, spec_of
from hookcore_app.runs import Run, Runs
from hookcore_app.runs.parts import End
from hookcore_app.settings import ServerSettings
from tests.build import make_info, open_run
from tests.lanes import examples
from tests.live_world import (
    PATIENCE_S,
    Message,
    Served,
    event,
    frame,
    make_app,
    put,
    serving,
)
from tests.serving import (
    BATCH,
    BEARER,
    make_batch,
)
from tests.serving import served as whole_server
from tests.waiting import wait_for

ABSENT = 0x7FC00001
VALUE = st.sampled_from([0.5, -2.0, 1e-30, math.nan, math.inf, 1e300, None])
STEP = st.tuples(st.integers(1, 6), st.lists(VALUE, min_size=5, max_size=5))
DEEDS = st.lists(st.one_of(STEP, st.just("read")), max_size=40)


class Page:
    """The state of a page, built only from the frames."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def ask(self, op: str, number: int = 1, **more: Any) -> None:
        self.socket.send(json.dumps({"op": op, "id": number, **more}))

    def next(self, *, ack: bool = True) -> Message:
        data = self.socket.recv(PATIENCE_S)
        assert isinstance(data, bytes)
        message = Message.read(data)
        if ack and message.sequence:
            self.ask("ack", message.subscription, sequence=message.sequence)
        return message

    def read_on(self, into: list[Message]) -> None:
        """Read until the socket is closed."""
        while True:
            into.append(self.next(ack=False))

    def next_of(self, kind: int, said: str = "") -> Message:
        while True:
            message = self.next()
            if message.kind == kind and (not said or message.json["type"] == said):
                return message


@contextmanager
def open_page(served: Served) -> Iterator[Page]:
    with connect(served.url("ws") + "/api/v1/socket", compression=None, proxy=None) as socket:
        yield Page(socket)


def subscribe(page: Page, number: int = 1, **more: Any) -> None:
    query = {"view": "heatmap", "kind": "output", "stat": "rms", "hz": 30, **more}
    page.ask("subscribe", number, **query)


def make_run() -> Run:
    return open_run(Runs(ServerSettings()))


def bodies_of(run: Run, asked: Subscribe, told: Any, now: Any) -> list[Message]:
    return [Message.read(body.frame(1, 1, 0.0)) for body in make(TapCache(), run, spec_of(asked), told, now)]


def heatmap(**more: Any) -> Subscribe:
    query = {"op": "subscribe", "id": 1, "view": "heatmap", "kind": "output", "stat": "rms", **more}
    request = read(json.dumps(query))
    assert isinstance(request, Subscribe)
    return request


def expected_column(run: Run, first: int, last: int, rows: int) -> Any:
    """Return a column with the store's values, as it is sent."""
    heat = run.store.heatmap("output", "rms", first=first, last=last, columns=1, rows=rows)
    if not heat.worst.size:
        return [ABSENT] * min(rows, run.store.taps_announced)  # there is no step between these
    bits = np.clip(heat.worst[:, 0], -3.4028234663852886e38, 3.4028234663852886e38).astype("<f4").view("<u4").copy()
    bits[np.isnan(heat.worst[:, 0])] = 0x7FC00000
    bits[heat.infinite[:, 0]] = 0x7F800000
    bits[heat.present[:, 0] == 0] = ABSENT
    return bits.tolist()


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(DEEDS, st.sampled_from(["fit:2", "fit:600"]), st.integers(1, 9))
def test_a_snapshot_and_its_deltas_cover_every_step_once_and_equal_the_store(
    deeds: list[Any], rows: str, columns: int
) -> None:
    run, step, told = make_run(), -1, None
    run.store.announce(frame(0, [0.0] * 5, new=5).new_taps)
    page: list[tuple[float, float, list[int]]] = []
    steps: list[int] = []
    for deed in [*deeds, "read"]:
        if deed == "read":
            now = mark_of(run)
            for message in bodies_of(run, heatmap(rows=rows, columns=columns), told, now):
                if message.kind != 3:
                    page += zip(message.first, message.last, message.values.view("<u4").tolist(), strict=True)
            told = now
        else:
            gap, values = deed
            step += gap
            seen = [place for place, value in enumerate(values) if value is not None]
            put(run, frame(step, [values[place] for place in seen], seen))
            steps += [step] if seen else []
    for number in steps:
        assert sum(first <= number <= last for first, last, _ in page) == 1
    for first, last, bits in page:
        assert bits == expected_column(run, int(first), int(last), int(rows[4:]))


def test_a_column_of_merged_steps_still_shows_a_non_finite_value() -> None:
    run = open_run(Runs(ServerSettings(memory=8_000_000)))  # small, so that it soon merges
    put(run, frame(0, [1.0] * 4, new=4))
    now = mark_of(run)
    for step in range(1, 3000):
        put(run, frame(step, [1.0, math.nan if step == 40 else 1.0, math.inf if step == 50 else 1.0, 1.0]))
    assert run.store.usage().merged["stats"] > 1000
    (message,) = [each for each in bodies_of(run, heatmap(), now, mark_of(run)) if each.kind == 2]
    assert (message.first, message.last, message.nonfinite) == ([1], [2999], [2])
    assert message.values.view("<u4").tolist() == [[0x3F800000, 0x7FC00000, 0x7F800000, 0x3F800000]]


def test_the_first_answer_is_a_snapshot_followed_by_deltas_in_order() -> None:
    with serving(make_app()) as served, open_page(served) as page:
        run = open_run(served.runs)
        put(run, frame(0, [1.0, 2.0], new=2), frame(1, [3.0, 4.0]))
        subscribe(page)
        rows, snapshot, state = (page.next() for _ in range(3))
        assert [row["module"] for row in rows.json["rows"]] == ["layers.0", "layers.1"]
        assert (snapshot.kind, snapshot.first_step, snapshot.columns, snapshot.rows) == (1, 0, 2, 2)
        assert snapshot.values.tolist() == [[1.0, 2.0], [3.0, 4.0]]
        assert state.json == {"type": "state", "run": "one", "state": "live", "last_step": 1}
        assert [each.sequence for each in (rows, snapshot, state)] == [1, 2, 3]
        put(run, frame(2, [5.0, 6.0]))
        delta = page.next()
        assert (delta.kind, delta.sequence, delta.first_step) == (2, 4, 2)
        assert delta.values.tolist() == [[5.0, 6.0]]
        run.end = End(2)
        run.changes.tell()
        assert page.next_of(3, "state").json["state"] == "ended"


def test_a_slow_page_gets_one_coalesced_column_when_it_acknowledges() -> None:
    with serving(make_app()) as served, open_page(served) as page:
        run = open_run(served.runs)
        put(run, frame(0, [1.0], new=1))
        subscribe(page)
        last = [page.next(ack=False) for _ in range(3)][-1]
        for step in range(1, 50):
            put(run, frame(step, [7.0 if step == 20 else 1.0]))
        with pytest.raises(TimeoutError):
            page.socket.recv(0.3)
        page.ask("ack", sequence=last.sequence)
        delta = page.next(ack=False)
        assert (delta.first, delta.last, delta.values.tolist()) == ([1], [49], [[7.0]])


def test_new_taps_that_match_cause_a_new_snapshot_and_others_do_not() -> None:
    with serving(make_app()) as served, open_page(served) as page:
        run = open_run(served.runs)
        put(run, frame(0, [1.0], new=1))
        subscribe(page, 1)
        subscribe(page, 2, match="layers.0")
        for _ in range(6):
            page.next()
        put(run, frame(1, [1.0, 2.0], new=1, known=1))
        found = {}
        while len(found) < 2:
            message = page.next()
            if message.kind != 3:
                found[message.subscription] = (message.kind, message.rows)
        assert found == {1: (1, 2), 2: (2, 1)}


@pytest.mark.parametrize(
    ("query", "modules"),
    [
        ({"rows": "idx:1-2"}, ["layers.1", "layers.2"]),
        ({"rows": "idx:3-3"}, ["layers.3"]),
        ({"rows": "fit:2"}, ["layers.0", "layers.2"]),
        ({"match": "re:layers.[02]"}, ["layers.0", "layers.2"]),
        ({"match": "none"}, []),
    ],
)
def test_rows_are_the_requested_ones(query: dict[str, Any], modules: list[str]) -> None:
    run = make_run()
    put(run, frame(0, [1.0, 2.0, 3.0, 4.0], new=4))
    rows, snapshot = bodies_of(run, heatmap(**query), None, mark_of(run))[:2]
    assert [row["module"] for row in rows.json["rows"]] == modules
    assert snapshot.rows == len(modules)


def test_the_view_of_the_latest_values_has_a_column_for_each_stat() -> None:
    with serving(make_app()) as served, open_page(served) as page:
        run = open_run(served.runs)
        put(run, frame(0, [1.0, math.nan, math.inf], new=4))
        subscribe(page, view="latest", stat=None, stats=["rms", "nan"])
        rows, snapshot = page.next(), page.next()
        assert len(rows.json["rows"]) == 4
        assert snapshot.values.view("<u4").tolist() == [
            [0x3F800000, 0x7FC00000, 0x7F800000, ABSENT],
            [0, 0x3F800000, 0, ABSENT],
        ]
        assert snapshot.nonfinite == [2, 2]
        put(run, frame(1, [5.0], [2]))
        delta = page.next_of(2)
        assert delta.values.view("<u4").tolist()[0] == [ABSENT, ABSENT, 0x40A00000, ABSENT]
        assert (delta.first, delta.last) == ([1, 1], [1, 1])


def test_the_latest_values_name_the_step_that_was_captured_not_one_with_logged_values_only() -> None:
    run, asked = make_run(), Subscribe(id=1, view="latest", kind="output")
    put(run, frame(0, [1.0, 2.0], new=2))
    put(run, frame(1, [1.0, 2.0]))
    put(run, frame(9, [], scalars={"loss": 1.0}))
    _, latest, _ = bodies_of(run, asked, None, before := mark_of(run))
    assert (set(latest.first), set(latest.last)) == ({0}, {1})
    put(run, frame(10, [], scalars={"loss": 1.0}))
    assert bodies_of(run, asked, before, mark_of(run)) == [], "which would seem to be values of step 10"


def test_the_latest_values_of_too_many_tensors_are_limited_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MAX_ROWS", 3)
    run = make_run()
    put(run, frame(0, [1.0] * 5, new=5))
    rows, latest, _ = bodies_of(run, Subscribe(id=1, view="latest", kind="output"), None, mark_of(run))
    assert (len(rows.json["rows"]), rows.json["taps"]) == (3, 5)
    assert rows.json["why"].startswith("Only the first 3 of 5 tensors are shown")
    assert latest.values.shape == (5, 3)
    some = Subscribe(id=1, view="heatmap", kind="output", rows="idx:1-2")
    rows = bodies_of(run, some, None, mark_of(run))[0]
    assert (len(rows.json["rows"]), rows.json["taps"]) == (2, 5)


def test_the_latest_values_of_a_tensor_with_a_nan_are_nan_and_its_counts_are_not() -> None:
    with serving(make_app()) as served, open_page(served) as page:
        run = open_run(served.runs)
        partly = frame(0, [1.0, 2.0, 3.0], new=3)  # finite over the finite values
        partly.stats[1, STAT_COLUMN["nan"]] = 64
        partly.stats[2, STAT_COLUMN["inf"]] = 1
        put(run, partly)
        subscribe(page, view="latest", stat=None, stats=["rms", "nan", "zero_fraction"])
        _, snapshot = page.next(), page.next()
        assert snapshot.values.view("<u4").tolist()[0] == [0x3F800000, 0x7FC00000, 0x7F800000]
        assert snapshot.values[1].tolist() == [0.0, 64.0, 0.0]


def test_scalars_events_and_runs_come_as_json() -> None:
    with serving(make_app()) as served, open_page(served) as page:
        run = open_run(served.runs)
        logged = {"loss": math.nan, "rate": 1.0, "hookcore/cost": 1.0}
        put(run, frame(0, [1.0], new=1, scalars=logged, events=(event(0),)))
        page.ask("subscribe", 0, view="scalars", hz=1)
        listed = page.next_of(3, "scalars").json["scalars"]
        assert [each["name"] for each in listed] == ["loss", "rate"], "those that hookcore adds only if named"
        page.ask("unsubscribe", 0)
        page.ask("subscribe", 1, view="scalars", stats=["loss"], hz=30)
        while (message := page.next_of(3, "scalars")).subscription != 1:
            pass
        scalars = message.json
        assert (scalars["snapshot"], scalars["scalars"][0]["mean"]) == (True, ["NaN"])
        page.ask("subscribe", 2, view="events", hz=30)
        assert [each["name"] for each in page.next_of(3, "events").json["events"]] == ["note"]
        page.ask("subscribe", 3, view="runs", hz=30)
        (listed,) = page.next_of(3, "runs").json["runs"]
        assert (listed["run"], listed["state"], listed["last_step"]) == ("one", "live", 0)
        put(run, frame(1, [1.0], scalars={"loss": 2.0}, events=(event(1, "late"),)))
        found: dict[int, Any] = {}
        while {1, 2} - set(found):
            message = page.next()
            found[message.subscription] = message.json
        assert (found[1]["snapshot"], found[1]["scalars"][0]["first_step"]) == (False, [1])
        assert [each["name"] for each in found[2]["events"]] == ["late"]
        open_run(served.runs, "two", started_s=2.0)
        assert {each["run"] for each in page.next_of(3, "runs").json["runs"]} == {"one", "two"}


def test_the_list_of_runs_says_what_arrived_and_which_commands_wait() -> None:
    run = make_run()
    before = mark_of(run)
    assert (before.snapshots, before.waiting) == (0, ())
    asked = run.ask_snapshots([Tap("layer", "output")] * 2)
    assert mark_of(run).waiting == tuple(command.number for command in asked)
    run.commands.drop_received(asked[0].number)
    assert mark_of(run).waiting == (asked[1].number,)
    put(run, frame(0, [1.0], new=1), frame(0, [1.0]))  # a sample of the machine is such a part of the newest step
    run.store.add_snapshot(Snapshot(Tap("layer", "output"), 0, 0.0, "float32", (2,), np.ones(2, np.float32)))
    listed = ((run.id, "", mark_of(run)),)
    (body,) = make(TapCache(), None, spec_of(Subscribe(id=1, view="runs")), None, listed)
    (news,) = json.loads(body.data)["runs"]
    assert (news["steps"], news["frames"], news["snapshots"], news["waiting"]) == (1, 2, 1, [asked[1].number])


def test_a_tap_and_an_event_on_the_socket_have_the_fields_that_rest_gives_them() -> None:
    with whole_server() as server:
        run = open_run(server.runs)
        put(run, frame(0, [1.0, 2.0], new=2, events=(event(0), event(0, "seen"))))
        with httpx2.Client(base_url=f"{server.url}/api/v1", headers=BEARER) as rest:
            key = next(each["key"] for each in rest.get("/events").json()["events"] if each["name"] == "seen")
            assert rest.post("/acknowledgements", json={"run": "one", "key": key}).status_code == 200
            events, taps = rest.get("/events").json()["events"], rest.get("/taps").json()["taps"]
            query = {"kind": "output", "stat": "rms"}
            rows = rest.get("/heatmap", params={"run": "one", **query}).json()["rows"]
        address = f"ws://127.0.0.1:{server.port}/api/v1/socket"
        bearer = {"Authorization": BEARER["Authorization"]}
        with connect(address, compression=None, proxy=None, additional_headers=bearer) as socket:
            page = Page(socket)
            page.ask("subscribe", 1, run="one", view="events", hz=30)
            assert page.next_of(3, "events").json["events"] == events
            page.ask("subscribe", 2, run="one", view="heatmap", hz=30, **query)
            live = page.next_of(3, "rows").json["rows"]
    assert [each["acknowledged"] for each in events] == [False, True]
    assert [{name: value for name, value in row.items() if name != "type"} for row in live] == rows
    assert [{name: row[name] for name in tap} for row, tap in zip(live, taps, strict=True)] == taps


def test_incidents_come_when_they_begin_spread_and_end() -> None:
    with serving(make_app()) as served, open_page(served) as page:
        run = open_run(served.runs)
        put(run, frame(0, [1.0, 1.0], new=2))
        page.ask("subscribe", 1, view="incidents", hz=30)
        assert page.next_of(3, "incidents").json["incidents"] == []
        states = []
        for step, values in enumerate([[math.nan, 1.0], [math.nan, 1.0], [math.nan, math.nan], [1.0, 1.0]], 1):
            put(run, frame(step, values))
            if step != 2:  # there is nothing new about it
                (told,) = page.next_of(3, "incidents").json["incidents"]
                states.append((told["id"], told["modules"], told["recovered"], told["steps"]))
        assert states == [("nonfinite-1", 0, None, 1), ("nonfinite-1", 1, None, 3), ("nonfinite-1", 1, 4, 3)]


def test_an_ended_subscription_is_silent_and_its_number_is_free() -> None:
    with serving(make_app()) as served, open_page(served) as page:
        run = open_run(served.runs)
        put(run, frame(0, [1.0], new=1))
        subscribe(page)
        for _ in range(3):
            page.next()
        page.ask("unsubscribe")
        put(run, frame(1, [1.0]))
        subscribe(page, 2)
        assert {page.next().subscription for _ in range(3)} == {2}
        subscribe(page, 1)
        assert page.next().subscription == 1


@pytest.mark.parametrize(
    "query",
    [
        {"kind": None},
        {"kind": "nose"},
        {"stat": "nose"},
        {"stat": None, "stats": ["rms", "nan"]},
        {"run": "nobody"},
        {"rows": "fit:0"},
        {"rows": "fit:"},
        {"rows": "idx:5-2"},
        {"rows": "idx:--1"},
        {"rows": "all"},
        {"rows": [4, 7]},
        {"match": "re:("},
        {"hz": 31},
        {"columns": 0},
        {"view": "latest", "rows": "fit:5"},
        {"dtype": "u8"},
        {"unknown": 1},
        {"id": 65535},
    ],
    ids=json.dumps,
)
def test_an_invalid_request_gets_an_error_message(query: dict[str, Any]) -> None:
    with serving(make_app()) as served, open_page(served) as page:
        open_run(served.runs)
        asked = {"op": "subscribe", "id": 1, "view": "heatmap", "kind": "output", "stat": "rms", **query}
        page.socket.send(json.dumps(asked))
        message = page.next()
        assert (message.kind, message.sequence) == (3, 0)
        assert len(message.json["error"]) > 20


def test_a_page_is_told_of_any_error_that_keeps_its_message_from_being_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> tuple[Body, ...]:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr("hookcore_app.live.socket.make", fail)
    with serving(make_app()) as served, open_page(served) as page:
        put(open_run(served.runs), frame(0, [1.0], new=True))
        subscribe(page, 1)
        assert "the server failed" in page.next_of(3, "error").json["error"]
    assert "dictionary changed size" in caplog.text


def test_ten_wrong_requests_close_the_socket() -> None:
    with serving(make_app()) as served, open_page(served) as page:
        wrong = ["", "[" * 5000, "null", "{}", '{"op":"x","id":1}', "x" * 70_000, b"bytes", '{"op":"ack"}']
        for text in [*wrong, '{"op":"resume","id":1,"sequence":1}', "end"]:
            page.socket.send(text)
        said: list[Message] = []
        with pytest.raises(ConnectionClosed) as closed:
            page.read_on(said)
        assert [bool(message.json["error"]) for message in said] == [True] * 10
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


def test_a_socket_has_sixteen_subscriptions_at_most() -> None:
    with serving(make_app()) as served, open_page(served) as page:
        open_run(served.runs)
        for number in range(17):
            page.ask("subscribe", number, view="events")
        while (message := page.next()).sequence:
            pass
        assert "16 subscriptions" in message.json["error"]


def test_a_flood_of_subscriptions_is_processed_one_message_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, made = threading.Event(), []

    def slow_make(*given: Any) -> tuple[Body, ...]:
        made.append(given)
        assert may_go_on.wait(PATIENCE_S)
        return make(*given)

    monkeypatch.setattr("hookcore_app.live.socket.make", slow_make)
    with serving(make_app()) as served, open_page(served) as page:
        run = open_run(served.runs)
        for number in range(60):
            put(run, frame(number, [1.0], new=number == 0))
            subscribe(page, 1, columns=number + 1)
        wait_for(lambda: made)
        page.ask("nonsense")  # answered after everything before it was read
        assert "not a request" in page.next_of(3, "error").json["error"]
        assert len(made) == 1
        may_go_on.set()
        assert page.next_of(1).columns == 60
        assert len(made) == 2


def test_batches_are_accepted_while_every_encoder_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, made = threading.Event(), []

    def slow_make(*given: Any) -> tuple[Body, ...]:
        made.append(given)
        assert may_go_on.wait(PATIENCE_S)
        return make(*given)

    monkeypatch.setattr("hookcore_app.live.socket.make", slow_make)
    with whole_server() as server, ExitStack() as stack:
        body = wire.encode(make_batch(make_info(), [0]))
        httpx2.post(f"{server.url}/api/v1/ingest", content=body, headers={**BATCH, **BEARER})
        address = f"ws://127.0.0.1:{server.port}/api/v1/socket"
        for number in range(40):
            bearer = {"Authorization": BEARER["Authorization"]}
            socket = stack.enter_context(connect(address, compression=None, proxy=None, additional_headers=bearer))
            query = {"view": "heatmap", "kind": "output", "stat": "rms", "columns": number + 1}
            socket.send(json.dumps({"op": "subscribe", "id": 1, **query}))
        wait_for(lambda: made)
        for step in range(1, 5):
            body = wire.encode(make_batch(make_info(), [step], first=False))
            answer = httpx2.post(f"{server.url}/api/v1/ingest", content=body, headers={**BATCH, **BEARER})
            assert answer.status_code == 200
        may_go_on.set()


def test_a_text_that_is_not_utf_8_closes_the_socket_and_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with whole_server() as server:
        address = f"ws://127.0.0.1:{server.port}/api/v1/socket"
        for pieces in ([b"\xff\xfe"], [b"{", b"\xc3", b"}"]):
            with connect(address, compression=None, proxy=None) as socket:
                socket.send(pieces if len(pieces) > 1 else pieces[0], text=True)
                with pytest.raises(ConnectionClosed) as closed:
                    socket.recv(PATIENCE_S)
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1007
        wait_for(lambda: publisher_of(server.app).clients == 0)
    assert caplog.text == ""


def test_sockets_count_as_clients_and_a_server_that_stops_closes_them() -> None:
    with serving(make_app(max_clients=1)) as served:
        open_run(served.runs)
        with open_page(served) as page:
            page.ask("subscribe", view="events")
            page.next()
            with pytest.raises(InvalidStatus) as refused, open_page(served):
                pass
            assert refused.value.response.status_code == 503
            assert b"max_clients=1" in (refused.value.response.body or b"")
            served.publisher.stop()
            with pytest.raises(ConnectionClosed) as closed:
                page.read_on([])
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
        wait_for(lambda: served.publisher.clients == 0)


def test_a_page_that_is_closed_while_the_server_stops_leaves_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def close(*_: Any) -> None:
        raise WebSocketDisconnect(1006)

    monkeypatch.setattr(WebSocket, "close", close)
    with whole_server() as server, connect(f"ws://127.0.0.1:{server.port}/api/v1/socket", proxy=None):
        publisher = publisher_of(server.app)
        wait_for(lambda: publisher.clients == 1)
        publisher.stop()
        wait_for(lambda: publisher.clients == 0)
    assert caplog.text == ""


def test_removing_a_run_ends_its_subscriptions_but_not_the_socket() -> None:
    with serving(make_app()) as served, open_page(served) as page:
        run = open_run(served.runs)
        put(run, frame(0, [1.0], new=1))
        subscribe(page)
        for _ in range(3):
            page.next()
        served.runs.remove("one")
        assert page.next_of(3, "state").json["state"] == "removed"
        open_run(served.runs, "two")
        subscribe(page)
        assert page.next_of(3, "rows").json["run"] == "two"


def test_a_negative_first_step_counts_back_from_the_last_one() -> None:
    run = make_run()
    put(run, *(frame(step, [float(step)], new=int(step == 0)) for step in range(20)))
    newest = [each for each in bodies_of(run, heatmap(**{"from": -5}), None, mark_of(run)) if each.kind == 1]
    assert [each.first for each in newest] == [[15, 16, 17, 18, 19]]
    then = [each for each in bodies_of(run, heatmap(**{"from": -3, "to": 9}), None, mark_of(run)) if each.kind == 1]
    assert [(each.first, each.values.ravel().tolist()) for each in then] == [([7, 8, 9], [7.0, 8.0, 9.0])]
    whole = [each for each in bodies_of(run, heatmap(**{"from": -500}), None, mark_of(run)) if each.kind == 1]
    assert whole[0].first[0] == 0


def test_a_view_with_a_last_step_ends_there() -> None:
    run = make_run()
    put(run, frame(0, [0.0], new=1), frame(1, [1.0]))
    asked, before = heatmap(to=3), mark_of(run)
    put(run, *(frame(step, [float(step)]) for step in range(2, 8)))
    (delta,) = bodies_of(run, asked, before, mark_of(run))
    assert (delta.first, delta.last) == ([2, 3], [2, 3])
    beyond = mark_of(run)
    put(run, frame(8, [8.0]))
    assert concern(spec_of(asked), beyond) == concern(spec_of(asked), mark_of(run))
    assert bodies_of(run, asked, beyond, mark_of(run)) == []


def test_the_latest_values_at_a_step_are_those_of_each_tap_at_that_time() -> None:
    run = make_run()
    put(run, frame(0, [1.0, 2.0], new=2), frame(1, [3.0], [0]), frame(2, [4.0, 5.0]))
    asked = heatmap(view="latest", stat=None, stats=["rms"], to=1)
    found = [each for each in bodies_of(run, asked, None, mark_of(run)) if each.kind == 1]
    assert [each.values.tolist() for each in found] == [[[3.0, 2.0]]]
    assert found[0].last == [1]


def test_the_latest_values_in_some_steps_are_not_those_from_before() -> None:
    run = make_run()
    put(run, frame(0, [1.0, 2.0], new=2), frame(1, [3.0], [0]), frame(2, [4.0, 5.0]))
    asked = heatmap(view="latest", stat=None, stats=["rms"], **{"from": 1, "to": 1})
    (found,) = [each for each in bodies_of(run, asked, None, mark_of(run)) if each.kind == 1]
    assert found.values[0, 0].tolist() == 3.0
    assert found.values.view("<u4")[0, 1].tolist() == ABSENT


def test_the_latest_values_at_a_merged_step_are_the_worst_around_it() -> None:
    run = open_run(Runs(ServerSettings(memory=2**21)))
    put(run, frame(0, [0.0] * 50, new=50))
    put(run, *(frame(step, [math.nan if step == 10 else float(step)] * 50) for step in range(1, 1000)))
    assert run.store.latest(last=10).numbers.size == 0, "this test is about steps that are no longer exact"
    asked = heatmap(view="latest", stat=None, stats=["rms"], to=10)
    found = [each for each in bodies_of(run, asked, None, mark_of(run)) if each.kind == 1]
    assert all(math.isnan(value) for value in found[0].values.ravel())
    assert ABSENT not in found[0].values.view("<u4")


def test_the_latest_values_from_step_zero_are_the_worst_since_then() -> None:
    run = open_run(Runs(ServerSettings(memory=2**21)))
    put(run, frame(0, [0.0] * 50, new=50))
    put(run, *(frame(step, [math.nan if step == 10 else float(step)] * 50) for step in range(1, 1000)))
    assert run.store.latest(last=700).numbers.size == 0, "this test is about steps that are no longer exact"
    asked = heatmap(view="latest", stat=None, stats=["rms"], **{"from": 0, "to": 700})
    found = [each for each in bodies_of(run, asked, None, mark_of(run)) if each.kind == 1]
    assert all(math.isnan(value) for value in found[0].values.ravel())


def test_the_rows_have_the_types_of_their_modules() -> None:
    run = make_run()
    put(run, frame(0, [1.0, 2.0], new=2))
    run.store.describe([ModuleRecord("layers.1", "Linear", None)])
    said = bodies_of(run, heatmap(), None, mark_of(run))[0].json
    assert [row["type"] for row in said["rows"]] == ["", "Linear"]


def test_subscribing_to_an_unknown_run_is_never_counted_as_an_invalid_request() -> None:
    with serving(make_app()) as served, open_page(served) as page:
        for number in range(1, 15):
            subscribe(page, number, run="later")
            said = page.next(ack=False)
            assert (said.subscription, said.json["type"]) == (number, "error")
            assert "later" in said.json["error"]
        run = open_run(served.runs, "later")
        put(run, frame(0, [1.0], new=1))
        subscribe(page, 20, run="later")
        assert page.next_of(3, "rows").subscription == 20

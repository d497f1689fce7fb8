"""Server-sent events: all news exactly once, however slowly a client reads."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
from itertools import islice, pairwise
from typing import Any

import httpx2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookcore.store import STAT_NAMES
from hookcore_app.live import sse, views
from hookcore_app.live.publisher import Mark, Publisher, Steps, mark_of
from hookcore_app.live.sse import continued, make_news, progress_of, read_cursor, specs_of
from hookcore_app.live.views import Subscribe, make, spec_of
from hookcore_app.runs import Run, Runs
from hookcore_app.runs.parts import FOLLOWED_S, End
from hookcore_app.settings import ServerSettings
from tests.build import make_info, open_run
from tests.lanes import examples
from tests.live_world import (
    Http,
    blocks_of,
    event,
    frame,
    listening,
    make_app,
    next_of,
    put,
    serving,
)
from tests.waiting import wait_for

# What can happen: a step (its distance from the last one, its values, a scalar), an event, or a read.
STEP = st.tuples(
    st.integers(1, 3),
    st.lists(st.sampled_from([0.5, -2.0, math.nan, math.inf, 1e300, None]), min_size=3, max_size=3),
    st.booleans(),
)
DEEDS = st.lists(st.one_of(STEP, st.just("event"), st.just("read")), max_size=30)


def make_publisher() -> tuple[Publisher, Run]:
    settings_ = ServerSettings()
    runs = Runs(settings_)
    return Publisher(runs, settings_), open_run(runs)


def tell(publisher: Publisher, run: Run, told: Mark | None, stat: str = "rms,nan") -> tuple[dict[str, Any], Mark]:
    """Return the messages between what a reader has and now by their types, and what the reader has then."""
    now = progress_of(mark_of(run))
    sent = continued(told, now)
    if sent == now:
        return {}, now
    blocks = blocks_of(make_news(publisher, run, specs_of(None, None, stat), sent, now))
    for block in blocks:
        assert read_cursor(block.id) == (run.id, now)
    return (blocks[0].data if blocks else {}), now


@pytest.mark.parametrize("is_listed", [False, True], ids=["its own", "of the list"])
def test_a_run_is_followed_while_a_stream_is_open(is_listed: bool) -> None:
    publisher, run = make_publisher()
    assert not run.is_followed

    async def follow() -> None:
        with publisher.following(None if is_listed else run, 30, asyncio.Event()):
            async with asyncio.timeout(30):
                while not run.is_followed:
                    await asyncio.sleep(0.01)

    asyncio.run(follow())
    run.signs.followed_at -= FOLLOWED_S
    assert not run.is_followed


def play(run: Run, deed: Any, step: int) -> int:
    if deed == "event":
        run.store.add_event(event(step))
        return step
    gap, values, logs = deed
    step += gap
    seen = [place for place, value in enumerate(values) if value is not None]
    scalars = {"loss": float(step)} if logs else {}
    first = run.store.taps_announced == 0
    put(run, frame(step, [values[place] for place in seen], seen, 3 if first else 0, scalars=scalars))
    return step


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(DEEDS)
def test_every_step_value_scalar_and_event_is_sent_once_at_any_reading_speed(deeds: list[Any]) -> None:
    publisher, run = make_publisher()
    told, step, steps = continued(None, progress_of(mark_of(run))), -1, []
    news: list[dict[str, Any]] = []
    for deed in [*deeds, "read"]:
        if deed == "read":
            fresh, told = tell(publisher, run, told)
            news.append(fresh)
        else:
            step = play(run, deed, step)
            steps += [step] if deed != "event" else []
    latest = [each["latest"] for each in news if "latest" in each]
    spans = [(each["first_step"], each["last_step"]) for each in latest]
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    for numbers, (first, last) in ((each["taps"], span) for each, span in zip(latest, spans, strict=True)):
        expected = run.store.latest(first=first, last=last)
        assert numbers == expected.numbers.tolist()
    seen = {tap for each in deeds if isinstance(each, tuple) for tap, value in enumerate(each[1]) if value is not None}
    assert {tap for each in latest for tap in each["taps"]} == seen
    points = [point for each in news if "scalars" in each for point in each["scalars"]["scalars"][0]["first_step"]]
    logged = [number for number, deed in zip(steps, (d for d in deeds if isinstance(d, tuple)), strict=True) if deed[2]]
    assert points == logged
    assert sum(len(each["events"]["events"]) for each in news if "events" in each) == deeds.count("event")


def test_a_non_finite_step_is_named_even_if_the_newest_one_is_finite() -> None:
    publisher, run = make_publisher()
    put(run, frame(0, [1.0, 1.0], new=2))
    _, told = tell(publisher, run, None)
    put(run, frame(1, [1.0, math.nan]), frame(2, [math.inf, 1.0]), frame(3, [1.0, 1.0]))
    news, _ = tell(publisher, run, told)
    assert set(news) == {"latest", "incidents"}
    data = news["latest"]
    assert (data["first_step"], data["last_step"]) == (1, 3)
    assert data["nonfinite"] == [0, 1]
    assert data["values"]["rms"] == [1.0, 1.0]


def test_numbers_that_json_does_not_have_are_strings() -> None:
    publisher, run = make_publisher()
    put(run, frame(0, [math.nan, math.inf, -math.inf], new=3, scalars={"loss": math.nan}))
    news, _ = tell(publisher, run, None, "all")
    values = news["latest"]["values"]
    assert set(values) == set(STAT_NAMES)
    assert values["rms"] == ["NaN", "Infinity", "-Infinity"]
    assert values["ratio"] == ["NaN"] * 3
    (logs,) = news["scalars"]["scalars"]
    assert (logs["mean"], logs["nonfinite"]) == (["NaN"], [1])


def test_a_later_part_of_a_sent_step_sends_it_again() -> None:
    publisher, run = make_publisher()
    put(run, frame(5, [1.0], new=2))
    _, told = tell(publisher, run, None)
    put(run, frame(5, [2.0], [1], scalars={"loss": 3.0}))
    again, told = tell(publisher, run, told)
    assert set(again) == {"scalars", "latest"}
    assert again["latest"]["taps"] == [0, 1]
    assert tell(publisher, run, told)[0] == {}


def test_a_restarted_server_continues_after_the_step_and_sends_its_rows_and_events_again() -> None:
    publisher, run = make_publisher()
    put(run, frame(0, [1.0], new=1, scalars={"loss": 1.0}), frame(1, [1.0], scalars={"loss": 2.0}))
    _, told = tell(publisher, run, None)
    other, again = make_publisher()
    later = {"scalars": {"loss": 3.0}, "events": (event(1),)}
    put(again, frame(1, [1.0], new=1, scalars={"loss": 2.0}), frame(2, [2.0], **later), frame(3, [3.0]))
    news, told = tell(other, again, told)
    assert set(news) == {"rows", "latest", "scalars", "events", "state"}
    assert (news["latest"]["snapshot"], news["events"]["snapshot"]) == (True, True)
    assert (news["scalars"]["snapshot"], news["scalars"]["scalars"][0]["first_step"]) == (False, [2])
    put(again, frame(4, [4.0]))
    news, _ = tell(other, again, told)
    assert (set(news), news["latest"]["first_step"]) == ({"latest"}, 4)


@pytest.mark.parametrize(
    "text", ["", "a:b", "{}", '["one"]', '["one",[[1,2,-2],0,0,"live"]]', '["one",[[1,2,9e99],0,0,"live"]]', "é" * 2000]
)
def test_an_invalid_id_is_ignored(text: str) -> None:
    assert read_cursor(text) is None


def test_an_id_says_how_far_its_reader_is() -> None:
    assert read_cursor('["one",[[1,2,3],4,5,"live",6]]') == ("one", Mark(Steps(1, 2, 3), 4, 5, "live", 6))


def test_a_fresh_stream_starts_with_the_rows_their_newest_values_and_the_newest_step() -> None:
    with serving(make_app()) as served:
        run = open_run(served.runs)
        put(run, frame(0, [1.0, 2.0], new=2, scalars={"loss": 0.7}, events=(event(0),)))
        put(run, frame(1, [3.0, 4.0], scalars={"loss": 0.5}))
        with listening(served, stat="rms", match="layers.1") as events:
            first = next(events).data
            assert set(first) == {"rows", "latest", "scalars", "state"}
            assert first["state"] == {"type": "state", "run": "one", "state": "live", "last_step": 1}
            assert [row["module"] for row in first["rows"]["rows"]] == ["layers.1"]
            assert first["scalars"]["scalars"][0]["mean"] == [0.5]
            shown = first["latest"]
            assert (shown["snapshot"], shown["steps"], shown["values"]) == (True, [1], {"rms": [4.0]})
            put(run, frame(2, [5.0, 6.0, 7.0], new=1, known=2))
            put(run, frame(3, [5.0, 6.0, 7.0]))
            last = next_of(events, "latest")
            while last["last_step"] < 3:
                last = next_of(events, "latest")
            assert last["values"] == {"rms": [6.0]}


def test_the_messages_of_a_stream_are_those_of_the_socket() -> None:
    publisher, run = make_publisher()
    put(run, frame(0, [1.0], new=1, scalars={"loss": 0.7}, events=(event(0),)))
    before = continued(None, progress_of(mark_of(run)))
    put(run, frame(1, [math.nan], scalars={"loss": 0.5}, events=(event(1),)))
    news, now = tell(publisher, run, before)
    for view in ("scalars", "events", "incidents", "state"):
        spec = spec_of(Subscribe(id=1, view=view if view != "state" else "events"))
        bodies = {body.type: body.data for body in make(publisher.selections, run, spec, before, now)}
        assert json.loads(bodies[view]) == news[view]


def test_a_stream_has_all_taps_although_a_subscription_of_a_page_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MAX_ROWS", 3)
    publisher, run = make_publisher()
    put(run, frame(0, [1.0] * 5, new=5))
    news, _ = tell(publisher, run, None)
    assert (len(news["rows"]["rows"]), news["latest"]["taps"]) == (5, [0, 1, 2, 3, 4])


def test_a_reader_that_returns_misses_nothing_and_gets_nothing_twice() -> None:
    with serving(make_app()) as served:
        run = open_run(served.runs)
        put(run, frame(0, [1.0], new=1))
        steps: list[tuple[int, int]] = []
        last: str | None = None
        stop = threading.Event()

        def train() -> None:
            for step in range(1, 120):
                put(run, frame(step, [float(step)]))
                stop.wait(0.005)

        trainer = threading.Thread(target=train)
        trainer.start()
        try:
            while not steps or steps[-1][1] < 119:
                with listening(served, last, run="one", hz=30) as events:
                    for block in islice(events, 3):
                        last, latest = block.id, block.data["latest"]
                        steps.append((latest["first_step"], latest["last_step"]))
                        if steps[-1][1] == 119:
                            break
        finally:
            stop.set()
            trainer.join()
        covered = [step for first, end in steps for step in range(first, end + 1)]
        assert covered == list(range(120))


def test_new_taps_come_with_their_values() -> None:
    with serving(make_app()) as served:
        run = open_run(served.runs)
        put(run, frame(0, [1.0], new=1))
        with listening(served) as events:
            next_of(events, "latest")
            put(run, frame(1, [1.0, 2.0], new=1, known=1))
            fresh = next(events).data
            assert [row["number"] for row in fresh["rows"]["rows"]] == [0, 1]
            assert fresh["latest"]["taps"] == [0, 1]


def test_the_end_of_a_run_is_sent_with_or_after_its_last_step() -> None:
    with serving(make_app()) as served:
        run = open_run(served.runs)
        with listening(served, run="one") as events:
            assert "state" in next(events).data
            put(run, frame(0, [1.0], new=1))
            run.store.append(frame(1, [1.0]))
            run.end = End(1)
            run.changes.tell()
            news = []
            while (news and news[-1].get("state", {}).get("state")) != "ended":
                news.append(next(events).data)
            assert max(each["latest"]["last_step"] for each in news if "latest" in each) == 1
            assert news[-1]["state"] == {"type": "state", "run": "one", "state": "ended", "last_step": 1}


def test_a_run_without_a_sign_of_life_is_reported_as_lost() -> None:
    with serving(make_app(lost_after_s=0.05)) as served:
        run = open_run(served.runs)
        put(run, frame(0, [1.0], new=1))
        with listening(served) as events:
            while (message := next_of(events, "state"))["state"] != "lost":
                pass
            assert message["last_step"] == 0


def test_without_a_run_the_stream_waits_for_one_and_switches_to_a_newer_one() -> None:
    with serving(make_app()) as served, listening(served) as events:
        wait_for(lambda: served.publisher.clients)
        open_run(served.runs, "old", started_s=1.0)
        assert next_of(events, "state")["run"] == "old"
        new = open_run(served.runs, "new", started_s=2.0)
        put(new, frame(0, [1.0], new=1))
        assert next_of(events, "rows")["run"] == "new"


def test_removing_a_run_ends_its_stream() -> None:
    with serving(make_app()) as served:
        open_run(served.runs)
        with listening(served, run="one") as events:
            assert next_of(events, "state")["state"] == "live"
            served.runs.remove("one")
            assert [block.data["state"]["state"] for block in events] == ["removed"]


def test_a_server_that_stops_ends_its_streams() -> None:
    with serving(make_app()) as served:
        open_run(served.runs)
        with listening(served) as events:
            next(events)
            served.publisher.stop()
            assert list(events) == []
        wait_for(lambda: served.publisher.clients == 0)
        assert httpx2.get(served.url() + "/api/v1/live").status_code == 503


def test_excess_clients_are_refused_and_a_freed_place_is_reused() -> None:
    with serving(make_app(max_clients=2)) as served:
        open_run(served.runs)
        with listening(served) as one:
            next(one)
            with listening(served) as two:
                next(two)
                refused = httpx2.get(served.url() + "/api/v1/live")
                assert (refused.status_code, "max_clients=2" in refused.json()["error"]) == (503, True)
            wait_for(lambda: served.publisher.clients == 1)
            with listening(served) as three:
                assert next_of(three, "state")["run"] == "one"


@pytest.mark.parametrize("query", ["kind=nose", "stat=rms,nose", "run=nobody", "match=re:("])
def test_an_invalid_request_is_refused_with_a_message(query: str) -> None:
    with serving(make_app()) as served:
        open_run(served.runs)
        answer = httpx2.get(f"{served.url()}/api/v1/live?{query}")
        assert answer.status_code == (404 if query == "run=nobody" else 400)
        assert all(answer.json().values())


async def _follow(served: Any, steps: int, connected: asyncio.Semaphore) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    async with (
        httpx2.AsyncClient(timeout=30) as client,
        client.stream("GET", served.url() + "/api/v1/live", params={"stat": "rms"}) as answer,
    ):
        waiting = b""
        async for piece in answer.aiter_raw():
            waiting += piece
            whole, found, rest = waiting.rpartition(b"\n\n")
            waiting = rest if found else waiting
            for block in blocks_of(whole) if found else []:
                latest = block.data["latest"]
                spans.append((latest["first_step"], latest["last_step"]))
                if len(spans) == 1:
                    connected.release()
            if spans and spans[-1][1] >= steps:
                return spans
    return spans


def test_fifty_clients_with_one_subscription_share_the_work_of_one() -> None:
    app = make_app()
    with serving(app) as served:
        run = open_run(served.runs)
        put(run, frame(0, [1.0] * 20, new=20))

        async def all_follow() -> tuple[list[list[tuple[int, int]]], int]:
            connected = asyncio.Semaphore(0)
            tasks = [asyncio.create_task(_follow(served, 40, connected)) for _ in range(50)]
            for _ in tasks:
                await connected.acquire()
            made = served.publisher.shared.made
            for step in range(1, 41):
                put(run, frame(step, [1.0] * 20))
                await asyncio.sleep(0.01)
            return await asyncio.gather(*tasks), served.publisher.shared.made - made

        spans, made = asyncio.run(all_follow())
    for each in spans:
        covered = [step for first, last in each for step in range(first, last + 1)]
        assert covered == list(range(41))
    assert made < 400  # far less than 50 clients times 40 steps


class Impatient(Http):
    """A protocol that gives clients little time, and records the largest amount of waiting data."""

    write_s = 0.3
    most = 0

    def judge(self, before: int) -> None:
        Impatient.most = max(Impatient.most, before, self.transport.get_write_buffer_size())
        super().judge(before)


def test_a_reader_that_stops_reading_takes_bounded_memory_and_is_dropped() -> None:
    Impatient.most = 0
    with serving(make_app(), http=Impatient) as served:
        run = open_run(served.runs)
        values = np.random.default_rng(1).random(500).tolist()
        put(run, frame(0, values, new=500))
        with socket.create_connection(("127.0.0.1", served.port)) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.sendall(b"GET /api/v1/live?stat=all&hz=30 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_for(lambda: served.publisher.clients == 1)
            step = 0

            def is_gone() -> bool:
                nonlocal step
                step += 1
                put(run, frame(step, values))
                return served.publisher.clients == 0

            wait_for(is_gone)
    one_message = 500 * 15 * 30
    assert 0 < Impatient.most < 4 * one_message


def test_a_message_that_cannot_be_encoded_ends_only_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(make_app()) as served:
        run = open_run(served.runs)
        put(run, frame(0, [1.0], new=1))
        assert run.info == make_info("one")
        with listening(served) as events:
            next_of(events, "latest")
            monkeypatch.setattr(sse, "make_news", _fail)
            put(run, frame(1, [1.0]))
            with pytest.raises(httpx2.RemoteProtocolError):
                list(events)
            monkeypatch.setattr(sse, "make_news", make_news)
        with listening(served) as events:
            assert next_of(events, "latest")["last_step"] == 1


def _fail(*_given: Any) -> Any:
    raise ZeroDivisionError("on purpose")

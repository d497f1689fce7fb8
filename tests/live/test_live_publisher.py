"""The common part of both streams: when to look for news, what is shared, and when a client is dropped."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import orjson
import pytest

from hookcore_app import live
from hookcore_app.formats import json_of
from hookcore_app.live import publisher, views
from hookcore_app.live.publisher import ChangeTicker, MessageCache, Publisher, Steps, TapCache, mark_of, new_steps
from hookcore_app.live.socket import Pace
from hookcore_app.runs import Changes, Runs
from hookcore_app.serving.protocol import WriteDeadline
from hookcore_app.settings import ServerSettings
from tests.build import open_run
from tests.live_world import (
    frame,
    make_app,
    put,
)


def _looks(ticker: ChangeTicker, arrivals: list[float]) -> list[float]:
    """Return the times at which a ticker looks if data arrives at the given times."""
    looks, free = [], 0.0
    for place, arrival in enumerate(arrivals):
        at = max(arrival, free)
        if place + 1 < len(arrivals) and at > arrivals[place + 1]:
            continue  # by then, the next one has arrived, and one look covers both
        looks.append(at)
        free = at + ticker.rest_s(at)
    return looks


def test_data_arriving_at_the_polling_rate_never_waits_even_if_uneven() -> None:
    random = np.random.default_rng(3)
    arrivals = sorted((np.arange(200) / 20 + random.uniform(0, 0.04, 200)).tolist())
    looks = _looks(ChangeTicker(Changes(), int, 20), arrivals)
    assert np.mean([look in arrivals for look in looks]) > 0.95


def test_faster_data_is_polled_about_as_often_as_requested() -> None:
    looks = _looks(ChangeTicker(Changes(), int, 20), (np.arange(5000) / 1000).tolist())
    assert 90 <= len(looks) <= 20 / publisher.SOONER * 5 + publisher.EARLY + 2


def test_a_pulse_runs_only_while_there_are_listeners_and_survives_errors() -> None:
    async def live_through() -> None:
        changes, seen = Changes(), [0]

        def look() -> int:
            if seen[0] == 1:
                seen[0] = 2
                raise ZeroDivisionError("on purpose")
            return seen[0]

        ticker, wake = ChangeTicker(changes, look, 30), asyncio.Event()
        ticker.join(wake)
        seen[0] = 1
        changes.tell()
        await asyncio.wait_for(wake.wait(), 30)
        assert ticker.now == 2
        ticker.leave(wake)
        await asyncio.sleep(0)
        assert ticker.task is None

    asyncio.run(live_through())


def test_shared_requests_are_computed_once_and_the_cache_is_bounded() -> None:
    async def ask() -> None:
        shared, made = MessageCache(), []

        def make() -> bytes:
            made.append(1)
            return bytes(2**20)

        answers = await asyncio.gather(*(shared.get("one", make, len) for _ in range(50)))
        assert (len(made), len(answers)) == (1, 50)
        for number in range(200):
            await shared.get(number, make, len)
        assert shared.nbytes <= publisher.MAX_MADE_BYTES
        assert len(shared.kept) <= publisher.MAX_MADE

    asyncio.run(ask())


def test_failed_computations_are_retried() -> None:
    async def ask() -> None:
        shared, results = MessageCache(), iter([ZeroDivisionError("on purpose"), b"made"])

        def make() -> bytes:
            result = next(results)
            if isinstance(result, Exception):
                raise result
            return result

        with pytest.raises(ZeroDivisionError):
            await shared.get("one", make, len)
        assert await shared.get("one", make, len) == b"made"

    asyncio.run(ask())


def test_messages_dont_wait_for_the_batches_that_wait() -> None:
    async def ask() -> None:
        stored = threading.Event()
        batches = [asyncio.create_task(asyncio.to_thread(stored.wait)) for _ in range(100)]
        await asyncio.sleep(0)
        shared = MessageCache()
        assert await asyncio.wait_for(shared.get("one", lambda: b"made", len), 30) == b"made"
        assert not any(each.done() for each in batches)
        stored.set()
        await asyncio.gather(*batches)

    asyncio.run(ask())


def test_an_owner_can_always_connect_and_no_reader_uses_up_the_rest() -> None:
    publisher = Publisher(Runs(ServerSettings()), ServerSettings(max_clients=16))
    with ExitStack() as stack:
        taken = {reader: 0 for reader in ("greedy", "modest", "third")}
        for reader in taken:
            for _ in range(20):
                taken[reader] += stack.enter_context(publisher.client(reader))
        assert taken == {"greedy": 8, "modest": 4, "third": 0}
        assert [stack.enter_context(publisher.client()) for _ in range(5)] == [True] * 4 + [False]
        assert (publisher.clients, publisher.refused) == (16, 49)
    assert publisher.clients == 0
    with publisher.client("third") as room:
        assert room


@pytest.mark.parametrize("most", [1, 2, 3])
def test_one_reader_can_connect_whatever_the_client_limit(most: int) -> None:
    publisher = Publisher(Runs(ServerSettings()), ServerSettings(max_clients=most))
    with publisher.client("reader") as room:
        assert room


def test_requests_are_allowed_in_a_burst_and_then_at_an_even_rate() -> None:
    pace = Pace(rate=20.0, burst=10)
    assert [pace.rest_s(5.0) for _ in range(9)] == [0.0] * 9
    now, came = 5.0, 9
    while now < 15.0:
        now += pace.rest_s(now) + 1e-6
        came += 1
    assert 205 <= came <= 213
    assert pace.rest_s(100.0) == 0.0


def test_taps_are_searched_once_until_there_are_more() -> None:
    run, selections = open_run(Runs(ServerSettings())), TapCache()
    put(run, frame(0, [1.0], new=1))
    first = selections.get(run.store, "output", "*")
    assert selections.get(run.store, "output", "*") is first
    put(run, frame(1, [1.0, 1.0], new=1, known=1))
    assert selections.get(run.store, "output", "*").numbers.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("told", "now", "span"),
    [
        (Steps(), Steps(), None),
        (Steps(), Steps(4, 3, 3), (0, 4)),
        (Steps(4, 3, 3), Steps(4, 3, 3), None),
        (Steps(4, 3, 3), Steps(9, 4, 4), (5, 9)),
        (Steps(4, 3, 3), Steps(4, 3, 4), (4, 4)),
        (Steps(4, 3, 3), Steps(9, 4, 5), (4, 9)),
        (Steps(9, 0, 0), Steps(9, 3, 3), None),
    ],
)
def test_the_new_steps_are_found(told: Steps, now: Steps, span: Any) -> None:
    assert new_steps(told, now) == span


def test_an_array_in_json_keeps_non_finite_values() -> None:
    values = np.array([1.5, np.nan, np.inf, -np.inf])
    assert orjson.loads(json_of(values)) == [1.5, "NaN", "Infinity", "-Infinity"]
    assert orjson.loads(json_of(values[[1, 1]])) == ["NaN", "NaN"]
    assert orjson.loads(json_of(np.arange(6)[::2])) == [0, 2, 4]
    assert orjson.loads(json_of(np.empty(0))) == []


def test_finite_values_stay_finite_in_transit() -> None:
    given = np.array([1e300, -1e300, np.inf, np.nan, 0.0])
    sent = views.as_f4(given, np.array([False, False, False, False, True]))
    assert np.isfinite(sent[:2]).all()
    assert sent.view("<u4").tolist()[2:] == [0x7F800000, 0x7FC00000, views.ABSENT_BITS]


class Base:
    """The part of a protocol that the deadline relies on."""

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class Peer:
    """A transport whose client accepts the listed amounts, look by look."""

    def __init__(self, waiting: list[int]) -> None:
        self.waiting, self.aborted = waiting, asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.waiting.pop(0) if len(self.waiting) > 1 else self.waiting[0]

    def abort(self) -> None:
        self.aborted.set()


class Protocol(WriteDeadline, Base):
    write_s = 0.01

    def __init__(self, peer: Any) -> None:
        self.transport = peer


def test_a_slow_client_is_dropped_only_when_it_stops_reading() -> None:
    async def wait() -> None:
        peer = Peer([100, 90, 80, 70, 60])
        Protocol(peer).pause_writing()
        await asyncio.wait_for(peer.aborted.wait(), 30)
        assert peer.waiting == [60]

    asyncio.run(wait())


@pytest.mark.parametrize("end", ["resume_writing", "connection_lost"])
def test_a_client_that_reads_again_or_has_left_is_not_dropped(end: str) -> None:
    async def wait() -> None:
        peer = Peer([100])
        protocol = Protocol(peer)
        protocol.pause_writing()
        protocol.resume_writing() if end == "resume_writing" else protocol.connection_lost(None)
        assert protocol.write_timer is None

    asyncio.run(wait())


def test_an_application_has_one_publisher() -> None:
    app = make_app()
    assert live.publisher_of(app) is live.publisher_of(app) is app.state.live


class TellTale:
    """A run that ends during a look: the first reads are old, and the later ones new."""

    def __init__(self, run: Any) -> None:
        self._run, self.store, self.asked = run, self, list[str]()

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        is_of_run = name in ("state", "edits", "is_paused", "commands", "loaded")
        return getattr(self._run if is_of_run else self._run.store, name)


def test_a_reader_never_sees_a_runs_end_before_its_last_step_or_a_step_before_its_taps() -> None:
    tale: Any = TellTale(open_run(Runs(ServerSettings())))
    mark_of(tale)
    ordered = ("state", "steps", "taps_announced")
    assert tuple(name for name in tale.asked if name in ordered) == ordered

"""The server in a thread of the training process: one server for all runs, whose stores get the frames directly."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from hookcore.delivery.sinks import Sink
from hookcore.errors import ClosedError, ServerError
from hookcore.records import Command
from hookcore_app.runs import Runs
from hookcore_app.runs.parts import End
from hookcore_app.serving import server_thread
from hookcore_app.settings import ServerSettings
from tests.build import make_info
from tests.serving import (
    make_frame,
    make_taps,
)

MEMORY = 16_000_000


@pytest.fixture
def server() -> Iterator[server_thread.Embedded]:
    started = server_thread.start(port=0)
    yield started
    started.stop()
    assert not started.is_running


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_sent_frames_are_immediately_in_the_store_and_on_the_page(server: server_thread.Embedded) -> None:
    sink = server.open_run(make_info(), MEMORY)
    assert isinstance(sink, Sink)
    sink.send(make_frame(3, new_taps=make_taps(2)))
    assert sink.store.steps().newest == 3
    assert sink.store.usage().max_bytes == MEMORY
    assert "layer.1" in _get(f"{server.url}/runs/one")
    assert 'hookcore_runs{state="live"} 1.0' in _get(f"{server.url}/metrics")
    sink.close()
    sink.close()
    assert 'hookcore_runs{state="ended"} 1.0' in _get(f"{server.url}/metrics")
    with pytest.raises(ClosedError, match="open a new one"):
        sink.send(make_frame(4))
    assert sink.run.end.step == 3


def test_commands_reach_the_trainer_even_if_sent_before_it_listened(server: server_thread.Embedded) -> None:
    sink = server.open_run(make_info(), MEMORY)
    told: list[Command] = []
    first = sink.run.ask("inventory")
    sink.subscribe(told.append)
    second = sink.run.ask("settings", changes={"every": 2})
    assert told == [first, second]
    assert first.number < second.number
    sink.close()


def test_there_is_one_server_per_process_until_it_is_stopped(server: server_thread.Embedded) -> None:
    assert server_thread.start(port=0) is server
    server.stop()
    with pytest.raises(ServerError, match="start a new one"):
        server.open_run(make_info(), MEMORY)
    other = server_thread.start(port=0)
    try:
        assert other is not server
        assert json.loads(_get(f"{other.url}/healthz")) == {"status": "ok"}
    finally:
        other.stop()


def test_a_forked_copy_of_the_server_does_nothing(
    server: server_thread.Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(server_thread.os, "getpid", lambda: os.getppid())
        assert not server.is_running
        server.stop()  # this must not end the parent's server
    assert server.is_running
    assert json.loads(_get(f"{server.url}/healthz")) == {"status": "ok"}


def test_two_runs_of_one_process_are_shown(server: server_thread.Embedded) -> None:
    sinks = [server.open_run(make_info(name), MEMORY) for name in ("one", "two")]
    for number, sink in enumerate(sinks):
        sink.send(make_frame(number, new_taps=make_taps(2)))
    assert {run.id for run in server.runs.all()} == {"one", "two"}
    assert [sink.store.steps().newest for sink in sinks] == [0, 1]
    for sink in sinks:
        sink.close()


def _opened(runs: Runs, name: str, **others: Any) -> int | None:
    run = runs.open(make_info(name, **others))
    return None if run is None else run.store.usage().max_bytes


def test_every_run_can_grow_to_a_quarter_of_the_memory_and_as_many_fit_as_allowed() -> None:
    runs = Runs(ServerSettings(memory=400_000_000, max_runs=20))
    sizes = [_opened(runs, f"run-{number}", memory=10**9) for number in range(21)]
    assert sizes == [100_000_000] * 20 + [None]
    assert runs.used_bytes < 1_000_000


def test_short_runs_are_removed_only_by_number_the_oldest_first() -> None:
    now = [0.0]
    runs = Runs(ServerSettings(memory=400_000_000, max_runs=20), lambda: now[0])
    for number in range(30):
        now[0] += 1.0
        size = _opened(runs, f"run-{number}", memory=10**9)
        assert size == 100_000_000
        run = runs.get(f"run-{number}")
        assert run is not None
        run.end = End(0)
    left = [int(run.id.partition("-")[2]) for run in runs.all()]
    assert len(left) == 20
    assert sorted(left) == list(range(30 - len(left), 30))
    assert runs.removed == 30 - len(left)


def test_a_run_gets_no_more_memory_than_it_requests() -> None:
    runs = Runs(ServerSettings(memory=400_000_000))
    assert _opened(runs, "one", memory=5_000_000) == 5_000_000

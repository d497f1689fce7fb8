"""Findings and events are acknowledged by their keys. Those that happen again are new."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import pytest

import hookcore
from hookcore.records import Event, Tap
from hookcore_app.live.publisher import mark_of
from hookcore_app.live.views import Subscribe, concern, spec_of
from tests.api_world import World, open_run
from tests.build import append
from tests.inside import module_of
from tests.serving import TOKEN, Served, served


@pytest.fixture
def world() -> World:
    return World()


def acknowledge(world: World, key: str, status: int = 200, **more: Any) -> Any:
    answer = world.client.post("/api/v1/acknowledgements", json={"key": key, **more})
    assert answer.status_code == status, answer.text
    return answer.json()


def keys_of(world: World) -> dict[str, bool]:
    return {each["key"]: each["acknowledged"] for each in world.json("findings", run="one")["findings"]}


def test_a_finding_is_acknowledged_and_unacknowledged(world: World) -> None:
    key = next(iter(keys_of(world)))
    assert not keys_of(world)[key]
    unseen = sum(world.json("overview", run="one")["findings"].values())
    assert acknowledge(world, key, run="one") == {"run": "one", "key": key, "acknowledged": True}
    assert keys_of(world)[key]
    assert sum(world.json("overview", run="one")["findings"].values()) == unseen - 1
    acknowledge(world, key, acknowledged=False)
    assert not keys_of(world)[key]


def test_an_acknowledged_finding_that_recurs_is_new(world: World) -> None:
    run = open_run(world.runs, "again", started_s=9.0)
    for step in range(60):
        append(run.store, step, [math.nan if step == 20 else 1.0], (Tap("a", "output"),) if step == 0 else ())
    (finding,) = run.findings.current()
    run.acknowledge(finding.key)
    assert run.has_seen(finding)
    append(run.store, 60, [math.nan])
    again = run.findings.current()[0]
    assert again.key == finding.key
    assert not run.has_seen(again)


def test_an_event_is_acknowledged(world: World) -> None:
    events = world.json("events", run="one")["events"]
    assert len({event["key"] for event in events}) == len(events)
    assert not any(event["acknowledged"] for event in events)
    acknowledge(world, events[3]["key"])
    seen = [event["key"] for event in world.json("events", run="one")["events"] if event["acknowledged"]]
    assert seen == [events[3]["key"]]


@pytest.mark.parametrize("key", ["", "event:", "nonsense", "nonsense:a output", ":a"])
def test_an_invalid_key_is_refused(world: World, key: str) -> None:
    said = acknowledge(world, key, 422 if not key else 400)
    assert "key" in said["error"]


def test_an_unknown_run_is_an_error(world: World) -> None:
    assert "unknown run" in acknowledge(world, "event:1", 404, run="nobody")["error"]
    assert acknowledge(world, "event:1", 422, more=1)["error"]


def test_a_run_keeps_a_limited_number_of_the_newest_acknowledgements(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_of("Quiet", "reading"), "MAX_ACKNOWLEDGED", 3)
    for number in range(5):
        world.run.acknowledge(f"event:{number}")
    world.run.acknowledge("event:3")
    assert list(world.run.edits.quiet.acknowledged) == ["event:2", "event:4", "event:3"]


def test_followers_receive_acknowledgements(world: World) -> None:
    version = world.run.changes.version
    acknowledge(world, "event:1")
    assert asyncio.run(world.run.changes.wait_beyond(version, 30.0)) > version
    tag = world.get("events", run="one").headers["etag"]
    acknowledge(world, "event:2")
    assert world.get("events", run="one").headers["etag"] != tag


def test_an_edit_changes_the_run_even_without_a_new_step(world: World) -> None:
    before = mark_of(world.run)
    acknowledge(world, "event:1")
    assert concern(spec_of(Subscribe(id=1, view="runs")), mark_of(world.run)) != before
    noted = mark_of(world.run)
    world.client.patch("/api/v1/runs/one", json={"notes": "the one with a warm-up"})
    assert mark_of(world.run).edits == noted.edits + 1 == before.edits + 2


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(lost_after_s=10_000.0) as found:
        yield found


def test_the_client_has_methods_for_acknowledgements(server: Served) -> None:
    run = open_run(server.runs, "run-1")
    for step in range(60):
        rms = [1.0, math.nan if step >= 50 else 2.0]
        new = (Tap("a", "output"), Tap("b", "output_grad")) if step == 0 else ()
        append(run.store, step, rms, new, scalars={"loss": 0.5})
    run.store.add_event(Event(3, 1.0, "note", "text"))
    run.changes.tell()
    with hookcore.Client(server.url, TOKEN) as client:
        (finding,) = client.findings()
        assert (finding.tap.label, finding.rule, finding.since_step) == ("b output_grad", "nonfinite", 50)
        assert math.isnan(finding.value)
        assert finding.spark.tolist() == [2.0] * 48
        figures = client.overview()
        assert figures.loss is not None
        assert (figures.loss.value, figures.scalars, figures.newest_step) == (0.5, (figures.loss,), 59)
        assert figures.gradient_norm is not None
        assert math.isnan(figures.gradient_norm.value)
        assert figures.findings == {"error": 1, "warning": 0, "info": 0}
        client.acknowledge(finding.key)
        assert client.findings()[0].acknowledged
        (event,) = client.events().events
        client.acknowledge(event.key)
        assert [each.acknowledged for each in client.events().events] == [True]
        chart = client.figure("series", tap=1, stat="rms", first=40)
        assert chart.data[0].x[0] == 40
        assert chart.data[0].y[0] == 2.0
        assert client.figure("scalars", names=["loss"]).layout.title.text == "loss"
        assert client.report().startswith(b"<!doctype html>")

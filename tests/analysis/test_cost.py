"""The cost of watching: one sentence with one meaning, wherever it is shown."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from hookcore.records import Coverage, ModuleRecord, Tap
from hookcore_app.analysis.cost import Cost, cost_of, ordinal
from hookcore_app.runs.parts import End
from tests.build import frame, make_info, stats_of
from tests.serving import (
    World,
    make_frame,
    make_world,
)

MEASURED: dict[str, float] = {
    "hookcore/cost": 0.81,
    "hookcore/every": 27.0,
    "hookcore/effective_cost": 0.03,
    "hookcore/uncaptured_steps": 195.0,
}
SENTENCE = "adds 3.0% on average, limit 5%; captures every 27th step"


def _world(settings: dict[str, Any], scalars: dict[str, float] | None = None, left_out: int = 0) -> World:
    """Return a server with a run of which the first step was captured, and so many others were not."""
    world = make_world()
    run = world.runs.open(make_info("one", settings=settings))
    assert run is not None
    run.store.append(make_frame(0, new_taps=(Tap("a", "output"), Tap("b", "output")), scalars=scalars or {}))
    if left_out:
        run.store.append(frame(left_out, stats_of(0)))
    return world


def _cost(settings: dict[str, Any], scalars: dict[str, float] | None = None) -> Cost:
    run = _world(settings, scalars).runs.get("one")
    assert run is not None
    return cost_of(run)


def test_every_page_the_report_and_the_api_show_the_same_sentence() -> None:
    client = _world({"budget": 0.05, "every": 1}, MEASURED, 195).client
    headline, terms = SENTENCE.split(", ", 1)
    for path in ("/runs/one", "/runs/one/capture", "/api/v1/report?run=one"):
        text = client.get(path).text
        assert headline in text, path
        assert terms in text, path
    answer = client.get("/api/v1/overview?run=one").json()
    assert answer["cost"] == SENTENCE
    assert (answer["hook_cost"], answer["every"], answer["budget"], answer["steps_left_out"]) == (0.03, 27, 0.05, 195)


def test_the_pages_say_in_which_steps_histograms_are_counted_if_not_in_all_captured_ones() -> None:
    for stride, said in ((27.0, False), (108.0, True)):
        client = _world({"budget": 0.05}, MEASURED | {"hookcore/histograms_every": stride}).client
        sentence = client.get("/api/v1/overview?run=one").json()["cost"]
        assert sentence == SENTENCE + "; counts histograms in every 108th step" * said
        assert ("Counts histograms in every 108th step." in client.get("/runs/one/capture").text) == said
    assert _cost({"stride": 4, "histogram_stride": 8}).histograms_words == "histograms in every 8th step"


def test_the_pages_say_how_many_steps_were_left_out() -> None:
    world = _world({"budget": 0.05, "every": 1}, MEASURED, 195)
    hooks = world.client.get("/runs/one/capture").text
    assert "You requested every step; limited by the budget. 195 steps left out." in hooks
    every = _world({"budget": None}).client.get("/runs/one/capture").text
    assert "As requested.<" in every


def test_captured_steps_and_those_left_out_are_all_steps_of_the_run() -> None:
    world = _world({"budget": 0.05, "every": 1}, left_out=195)
    run = world.runs.get("one")
    assert run is not None
    run.end = End(196)
    words = re.sub("<[^>]+>", "", world.client.get("/runs/one").text)
    assert "Ended: steps 0 to 195, 1 captured, 195 left out." in words
    assert (run.store.captured(), cost_of(run).left_out, run.steps) == (1, 195, 196)


def test_every_step_is_about_now_or_the_end_if_earlier_ones_were_left_out() -> None:
    world = _world({"budget": 0.05}, {"hookcore/effective_cost": 0.03}, 92)
    hooks = world.client.get("/runs/one/capture").text
    assert ">every step now<" in hooks
    assert "As requested. 92 earlier steps left out." in hooks
    run = world.runs.get("one")
    assert run is not None
    run.end = End(1)
    assert cost_of(run).sentence == "adds 3.0% on average, limit 5%; captured every step at the end"


@pytest.mark.parametrize(
    ("settings", "scalars", "sentence"),
    [
        ({"budget": 0.05}, {}, "cost not measured yet, limit 5%; captures every step"),
        ({"budget": None}, {"hookcore/effective_cost": 0.8}, "adds 80.0% on average, no limit; captures every step"),
        (
            {"budget": 0.05, "cost": 0.6, "stride": 20},
            {},
            "adds 3.0% on average, limit 5%; captures every 20th step",
        ),
        (
            {"effective_cost": 0.0001, "budget": 0.005, "every": 2},
            {},
            "adds less than 0.1% on average, limit 0.5%; captures every 2nd step",
        ),
        (
            {"effective_cost": 0.01, "cost": 9.0, "budget": 0.05, "paused": True},
            {},
            "adds 1.0% on average, limit 5%; capture paused",
        ),
        (
            {"effective_cost": 0.626, "budget": 0.05, "allowance": 0.3},
            {},
            "adds 62.6% on average, limit 5% beyond 0.3 s a minute; captures every step",
        ),
        (
            {"effective_cost": 0.085, "following_cost": 0.082, "budget": 0.05, "stride": 256, "allowance": 0.3},
            {},
            "adds 8.5% on average, limit 5%, but following the steps alone adds 8.2%; captures every 256th step",
        ),
        (
            {"cost": "x", "stride": -1, "budget": "x"},
            {},
            "cost not measured yet, no limit; captures every step",
        ),
    ],
)
def test_the_sentence_states_what_is_known(settings: dict[str, Any], scalars: dict[str, float], sentence: str) -> None:
    assert _cost(settings, scalars).sentence == sentence


def test_the_cost_of_a_run_that_ended_unmeasured_is_not_awaited() -> None:
    run = _world({"budget": 0.05}).runs.get("one")
    assert run is not None
    run.end = End(1)
    assert cost_of(run).headline == "not measured"


@pytest.mark.parametrize(
    ("number", "words"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (11, "11th"), (113, "113th"), (1021, "1,021st")]
)
def test_ordinals_are_english(number: int, words: str) -> None:
    assert ordinal(number) == words


def test_all_pages_count_the_same_modules_including_unreported_ones() -> None:
    world = _world({})
    run = world.runs.get("one")
    assert run is not None
    modules = [ModuleRecord(path, "Linear", "") for path in ("a", "b", "c", "d")]
    run.store.describe(
        modules, [Coverage("a", "Linear", True, ("output",)), Coverage("c", "Linear", False, (), "unused")]
    )
    found = {each.path: (each.captured, each.reason) for each in run.store.coverage()}
    unreported = (False, "not reported by the trainer yet")
    assert found == {"a": (True, ""), "b": (True, ""), "c": (False, "unused"), "d": unreported}
    client: TestClient = world.client
    listed = client.get("/api/v1/coverage?run=one").json()["coverage"]
    assert [each["captured"] for each in listed] == [True, True, False, False]
    assert run.findings.scope().uncaptured == 2
    assert "All known modules were captured" not in client.get("/api/v1/report?run=one").text
    answer = client.get("/api/v1/overview?run=one").json()
    assert (answer["modules_captured"], answer["modules"]) == (2, 4)
    overview = client.get("/runs/one").text
    assert "2 of 4 modules captured" in overview
    hooks = client.get("/runs/one/capture").text
    assert "2 not captured" in hooks
    assert " of 4</span>" in hooks

"""Notes at steps: saved with the run, available by REST and the client, and shown on the timeline of every page."""

from __future__ import annotations

from typing import Any

import pytest

from hookcore_app.runs import edits
from hookcore_app.runs.edits import MAX_TEXT, annotations_in
from tests.api_world import World


@pytest.fixture
def world() -> World:
    return World()


def annotate(world: World, step: Any, text: str, status: int = 200, **more: Any) -> Any:
    answer = world.client.post("/api/v1/annotations", json={"step": step, "text": text, **more})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_annotations_are_listed_by_step_and_replaced_and_removed(world: World) -> None:
    annotate(world, 30, "later")
    said = annotate(world, 7, "  learning rate halved\n", run="one")
    expected = [{"step": 7, "text": "learning rate halved"}, {"step": 30, "text": "later"}]
    assert said == {"run": "one", "annotations": expected}
    annotate(world, 30, "other words")
    assert world.json("annotations", run="one")["annotations"][1] == {"step": 30, "text": "other words"}
    answer = world.client.delete("/api/v1/annotations?step=7")
    assert answer.json()["annotations"] == [{"step": 30, "text": "other words"}]
    again = world.client.delete("/api/v1/annotations?step=7")
    assert again.status_code == 404
    assert "step 7 of this run has no annotation" in again.json()["error"]


@pytest.mark.parametrize(
    ("step", "text"), [(-1, "x"), ("3", "x"), (1.5, "x"), (2**60, "x"), (1, ""), (1, " \n "), (1, "x" * (MAX_TEXT + 1))]
)
def test_invalid_annotations_are_refused(world: World, step: Any, text: str) -> None:
    assert annotate(world, step, text, 422)["error"]
    assert world.json("annotations", run="one")["annotations"] == []


def test_a_run_has_a_limited_number_of_annotations_and_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edits, "MAX_ANNOTATED", 2)
    for step in (1, 2):
        annotate(world, step, "x")
    assert "2 annotated steps already" in annotate(world, 3, "x", 400)["error"]
    annotate(world, 2, "may still change")
    assert [each["step"] for each in world.json("annotations")["annotations"]] == [1, 2]


def test_a_change_is_announced_to_the_pages(world: World) -> None:
    before = world.run.edits.count
    annotate(world, 1, "x")
    assert world.run.edits.count == before + 1
    world.client.delete("/api/v1/annotations?step=1")
    world.client.delete("/api/v1/annotations?step=1")
    assert world.run.edits.count == before + 2, "nothing was there the second time"


def test_the_timeline_draws_annotations_at_their_steps_and_escapes_their_text(world: World) -> None:
    newest = world.run.store.steps().newest
    assert newest is not None
    annotate(world, newest, '<b>"end"</b>')
    annotate(world, newest + 1000, "not there yet")
    text = world.client.get("/runs/one/timeline?part=line").text
    assert f'data-hold="{newest}" data-note="&lt;b&gt;&#34;end&#34;&lt;/b&gt;"' in text
    assert "not there yet" not in text


def test_damaged_annotations_on_disk_are_left_out() -> None:
    said = {"5": "five", "2": "two", "x": "no step", "-1": "no step", "7": 7, "9" * 20: "too large", "\u0663": "digit"}
    assert list(annotations_in(said).items()) == [(2, "two"), (5, "five")]
    assert annotations_in(["no mapping"]) == annotations_in(None) == {}

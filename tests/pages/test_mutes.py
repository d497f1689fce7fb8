"""Muted rules: their findings are still counted and listed, but raise no alert."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hookcore
from hookcore.config.patterns import Facts
from hookcore.reading import Mute, Quiet
from hookcore.records import Event, Tap
from hookcore.store import Store
from hookcore.store.incidents import Found
from hookcore_app.cli import main
from hookcore_app.pages.frame import alerts_of
from hookcore_app.pages.views.span import claim_of, span_of
from hookcore_app.runs import Run
from hookcore_app.runs.alerts import Lookout
from hookcore_app.runs.shelf import PAGE_FILE
from tests.api_world import World, open_run
from tests.archive_world import save_layer
from tests.build import append
from tests.inside import module_of
from tests.serving import TOKEN, Served, served

TAPS = (Tap("stem", "output"), Tap("layers.0", "output"), Tap("layers.1", "output"))


def fill(run: Run, bad: int = 40) -> Run:
    """Add steps in which the last layer is NaN from a certain step on."""
    for step in range(60):
        append(run.store, step, [1.0, 1.0, math.nan if step >= bad else 1.0], TAPS if step == 0 else ())
    run.store.add_event(Event(3, 1.0, "note", "something", "warning", "layers.0"))
    run.changes.tell()
    return run


@pytest.fixture
def world() -> World:
    found = World()
    fill(open_run(found.runs, "run-1", started_s=9.0))
    return found


def change(world: World, method: str, status: int = 200, **given: Any) -> Any:
    body: Any = {"json": given} if method == "POST" else {"params": given}
    answer = world.client.request(method, "/api/v1/mutes", **body)
    assert answer.status_code == status, answer.text
    return answer.json()


def told(world: World) -> set[str]:
    return {note.key[0] for note in Lookout(world.runs).news()}


def run_of(world: World) -> Run:
    found = world.runs.get("run-1")
    assert found is not None
    return found


def test_a_muted_rule_is_listed_and_counted_without_an_alert(world: World) -> None:
    run = run_of(world)
    assert alerts_of(run).severities == ("error", "warning")
    said = change(world, "POST", rule="nonfinite", match="layers.*")
    assert said["mutes"] == [{"rule": "nonfinite", "match": "layers.*", "findings": 1, "incidents": 1, "events": 0}]
    assert alerts_of(run).severities == ("warning",)
    figures = world.json("overview")
    assert (figures["findings"], figures["muted"]) == ({"error": 0, "warning": 0, "info": 0}, 1)
    assert [(each["muted"], each["rule"]) for each in world.json("findings")["findings"]] == [(True, "nonfinite")]
    (incident,) = world.json("incidents")["incidents"]
    assert incident["muted"]
    assert world.json(f"incidents/{incident['id']}")["muted"]
    page = world.client.get("/runs/run-1").text
    assert "1 acknowledged or muted" in page
    assert "No problems" not in page
    assert claim_of(run).startswith("1 muted, nothing new. 1 problem found")

    assert change(world, "DELETE", rule="nonfinite", match="layers.*")["mutes"] == []
    assert alerts_of(run).severities == ("error", "warning")
    assert world.json("overview")["muted"] == 0


def test_a_page_held_at_a_step_lists_the_incidents_at_that_step(world: World) -> None:
    run = run_of(world)
    change(world, "POST", rule="nonfinite")
    held = span_of(run, step="45")
    assert claim_of(run, held) == "No new incident touches step 45: 1 muted."
    change(world, "DELETE", rule="nonfinite")
    (incident,) = run.store.incidents()
    run.edits.quiet.acknowledge(incident.key, 59)
    assert claim_of(run, held) == "No new incident touches step 45: 1 acknowledged."
    assert claim_of(run, span_of(run, step="10")) == "No incident touches step 10, judging by what was captured."
    assert claim_of(run, span_of(run, steps="5-50")) == "No new incident touches steps 5 to 50: 1 acknowledged."


def test_a_page_held_at_a_step_counts_the_muted_incidents_of_that_step(world: World) -> None:
    change(world, "POST", rule="nonfinite")
    for query, said in (("step=45", True), ("step=10", False), ("steps=5-50", True), ("steps=5-20", False)):
        assert ("1 muted" in world.client.get(f"/runs/run-1?part=findings&{query}").text) == said, query
        assert "1 finding, 1 incident" in (mutes := world.client.get(f"/runs/run-1/problems?part=mutes&{query}").text)
        assert "the numbers cover the whole run" in mutes
    assert "the numbers cover" not in world.client.get("/runs/run-1/problems?part=mutes").text


def test_a_page_held_at_a_step_says_that_incidents_were_dropped(world: World) -> None:
    run = run_of(world)
    many = range(20, 20 + 16 + 5)
    run.store.judge([Found(f"rule {each}", "warning", 0, 1.0, 0.0, each, None, "odd", ((0, each),)) for each in many])
    claim = claim_of(run, span_of(run, step="0"))
    assert claim.endswith("5 other incidents (5 of them warnings or errors) dropped from memory may touch it.")


def test_a_note_is_counted_at_its_step(world: World) -> None:
    run = open_run(world.runs, "run-2")
    append(run.store, 0, [1.0], TAPS[:1])
    run.store.judge([Found("odd", "info", 0, 1.0, 0.0, 0, 0, "odd", ((0, 0),))])
    assert claim_of(run, span_of(run, step="0")) == "No new incident touches step 0: 1 note."


def test_a_mute_covers_only_what_matches(world: World) -> None:
    change(world, "POST", rule="nonfinite", match="stem")
    assert alerts_of(run_of(world)).severities == ("error", "warning")
    change(world, "POST", rule="note")
    assert alerts_of(run_of(world)).severities == ("error",)
    assert [each["muted"] for each in world.json("events", name="note")["events"]] == [True]


def test_the_first_mute_that_covers_something_counts(world: World) -> None:
    change(world, "POST", rule="nonfinite", match="layers.*")
    said = change(world, "POST", rule="nonfinite")
    assert [(each["match"], each["incidents"]) for each in said["mutes"]] == [("layers.*", 1), ("", 0)]


def test_wrong_mutes_are_refused_with_a_hint(world: World) -> None:
    assert "'nonfinit'" in change(world, "POST", 400, rule="nonfinit")["error"]
    assert "re:" in change(world, "POST", 400, rule="nonfinite", match="re:(")["error"]
    change(world, "POST", rule="nonfinite", match="layers.*")
    said = change(world, "DELETE", 400, rule="nonfinite")["error"]
    assert said == ("'nonfinite' in all modules is not muted: give an existing mute ('nonfinite' in 'layers.*')")


def test_a_run_has_a_limited_number_of_mutes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of("Quiet", "reading"), "MAX_MUTED", 2)
    for match in ("a", "b", "a"):
        change(world, "POST", rule="dead", match=match)
    assert "has 2 mutes already" in change(world, "POST", 400, rule="dead", match="c")["error"]


def test_muted_incidents_are_not_sent(world: World) -> None:
    run = run_of(world)
    run.mute(Mute("nonfinite", "layers.1"))
    assert "run-1" not in told(world)
    run.mute(Mute("nonfinite", "layers.1"), False)
    assert "run-1" in told(world)


def test_followers_receive_mutes(world: World) -> None:
    edits, tag = run_of(world).edits.count, world.get("incidents").headers["etag"]
    change(world, "POST", rule="nonfinite")
    assert run_of(world).edits.count == edits + 1
    assert world.get("incidents").headers["etag"] != tag


def test_the_pages_list_mutes_and_offer_to_mute(world: World) -> None:
    (incident,) = world.json("incidents")["incidents"]
    page = world.client.get(f"/runs/run-1/problems/incident?id={incident['id']}").text
    assert 'data-mute="nonfinite"' in page
    assert 'value="layers.1"' in page
    change(world, "POST", rule="nonfinite", match="layers.*")
    page = world.client.get("/runs/run-1/problems").text
    assert 'data-unmute="nonfinite" data-match="layers.*"' in page
    assert "1 finding, 1 incident" in page
    assert 'data-unmute="nonfinite"' in world.client.get(f"/runs/run-1/problems/incident?id={incident['id']}").text
    hidden = world.client.get("/runs/run-1/problems?hide=1").text
    assert "Show 1 acknowledged or muted" in hidden


def test_a_saved_mute_is_read_again_and_check_counts_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_layer(tmp_path, bad=40, name="layers.0")
    assert main(["check", path]) == 1
    said = Quiet()
    said.mute(Mute("nonfinite", "layers.*"))
    (Path(path) / PAGE_FILE).write_text(json.dumps(said.as_data()))
    capsys.readouterr()
    assert main(["check", path, "--fail-on", "info"]) == 0
    told = capsys.readouterr().out
    assert "at step 40. (muted)" in told
    assert "1 of 1 incident is muted." in told
    assert "No problems" not in told
    assert main(["check", path, "--format", "json"]) == 0
    told_json = json.loads(capsys.readouterr().out)
    assert (told_json["muted"], told_json["incidents"][0]["muted"]) == (1, True)


def test_saved_acknowledgements_are_read_back_unchanged() -> None:
    kept = Quiet()
    kept.mute(Mute("dead", "type:ReLU"))
    kept.acknowledge("a:b", 3)
    again = Quiet.of(json.loads(json.dumps(kept.as_data())))
    assert (again.acknowledged, list(again.mutes)) == ({"a:b": 3}, [Mute("dead", "type:ReLU")])


@pytest.mark.parametrize(
    "said", [None, 1, [], "x", [None], [{}], [{"rule": 1, "match": ""}], [{"rule": "a", "match": "re:("}]]
)
def test_invalid_mutes_on_disk_are_ignored_so_that_alerts_continue(said: object) -> None:
    assert not Quiet.of({"mutes": said, "acknowledgements": said}).mutes


def test_a_mute_can_match_module_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    monkeypatch.setattr(Store, "facts", lambda self: {"a": Facts("a", types=("ReLU",))})
    held = Quiet()
    held.mute(Mute("dead", "type:ReLU"))
    muting = held.muting(store)
    assert muting("dead", "a") == Mute("dead", "type:ReLU")
    assert muting("dead", "b") is None
    assert muting("nonfinite", "a") is None


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(lost_after_s=10_000.0) as found:
        yield found


def test_the_client_mutes_and_unmutes(server: Served) -> None:
    fill(open_run(server.runs, "run-1"))
    with hookcore.Client(server.url, TOKEN) as client:
        (mute,) = client.mute("nonfinite", "layers.*")
        assert (mute.rule, mute.match, mute.incidents) == ("nonfinite", "layers.*", 1)
        assert client.incidents().incidents[0].muted
        assert client.mutes() == [mute]
        assert client.unmute("nonfinite", "layers.*") == []
        assert not client.incidents().incidents[0].muted

"""The Problems page: lines of findings and events, their filters, and the origin of a finding."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from hookcore.findings import Finding, RuleName
from hookcore.records import Event, Kind, Tap
from hookcore.store import Store
from hookcore.store.incidents import Incident, Link
from hookcore_app.pages.views.events import Filter, Line, all_lines, around_of, markdown_of, problem_lines
from hookcore_app.pages.views.run_list import summary_of
from hookcore_app.runs import Run
from hookcore_app.runs.parts import End
from tests.build import make_info
from tests.inside import class_of
from tests.live_world import frame
from tests.serving import (
    World,
    make_world,
)

BAD_FROM = 60


@pytest.fixture
def world() -> World:
    return make_world()


def _run(world: World, kinds: tuple[Kind, ...] = ("output", "output", "output"), bad: tuple[int, ...] = (1, 2)) -> Run:
    """Return a run of 100 steps in which some taps are NaN from BAD_FROM on."""
    run = world.runs.open(make_info("one"))
    assert run is not None
    taps = tuple(Tap(f"layers.{place}" if len(set(kinds)) == 1 else "layer", kind) for place, kind in enumerate(kinds))
    run.store.announce(taps)
    for step in range(100):
        values = [1.0 + step % 3] * len(kinds)
        if step >= BAD_FROM:
            values = [math.nan if place in bad else value for place, value in enumerate(values)]
        run.store.append(frame(step, values))
    return run


def _line(step: int = 5, **changes: Any) -> Line:
    given: dict[str, Any] = {
        "key": f"event:{step}",
        "name": "hook-error",
        "title": "Hook error",
        "severity": "error",
        "until": None,
        "module": "net.0",
        "message": "it broke",
        "count": 1,
        "time_s": 0.0,
        "acknowledged": False,
    }
    return Line(step=step, **{**given, **changes})


@pytest.mark.parametrize(
    ("rule", "quantity"), [("late-rank", "seconds"), ("idle-gpu", "percent busy"), ("loss", "loss"), ("dead", "rms")]
)
def test_the_value_of_a_finding_has_the_name_of_what_it_is(rule: RuleName, quantity: str) -> None:
    finding = Finding(rule, "warning", 0, Tap("", "output"), "rms", 0.03, 0.05, 3, None, "it was so", (), 0)
    assert _line(finding=finding).quantity == quantity


def test_findings_and_events_are_one_list_the_newest_first(world: World) -> None:
    run = _run(world)
    run.store.add_event(Event(80, 1.0, "settings-changed", "every 1 -> 2"))
    lines = all_lines(run)
    assert [(line.step, line.name) for line in lines] == [(80, "settings-changed"), (BAD_FROM, "nonfinite")]
    assert lines[1].module == "layers.1"
    run.acknowledge(lines[0].key)
    assert [line.acknowledged for line in all_lines(run)] == [True, False]


def test_an_error_is_one_sentence_in_lists_and_has_its_traceback_in_the_details(world: World) -> None:
    run = _run(world)
    log = class_of("ErrorLog")(SimpleNamespace(number=3))
    try:
        raise ValueError("an image of\n7 channels")
    except ValueError as error:
        log.record("log", error)
    run.store.add_event(log.events[0])
    line = next(each for each in all_lines(run) if each.name == "hook-error")
    assert line.message == "log: ValueError: an image of 7 channels"
    assert line.traceback.startswith("Traceback (most recent call last):\n  File ")
    assert Filter(text="raise valueerror").fits(line)


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (Filter(), True),
        (Filter(severity="error"), True),
        (Filter(severity="warning"), False),
        (Filter(name="hook-error"), True),
        (Filter(name="all"), True),
        (Filter(name="nonfinite"), False),
        (Filter(fits_module=lambda path: path == "net.0"), True),
        (Filter(fits_module=lambda path: path != "net.0"), False),
        (Filter(text="BROKE"), True),
        (Filter(text="held"), False),
        (Filter(hides_seen=True), True),
    ],
)
def test_a_filter_selects_lines_that_meet_all_its_conditions(wanted: Filter, fits: bool) -> None:
    assert wanted.fits(_line()) is fits


def test_acknowledged_lines_can_be_hidden() -> None:
    assert not Filter(hides_seen=True).fits(_line(acknowledged=True))


def test_a_range_of_steps_has_its_events_and_overlapping_incidents(world: World) -> None:
    run = _run(world)
    run.store.add_event(Event(20, 1.0, "settings-changed", "every 1 -> 2"))
    run.store.add_event(Event(80, 1.0, "settings-changed", "every 2 -> 1"))

    def found(first: int | None, last: int) -> list[tuple[int, str]]:
        return [(line.step, line.name) for line in all_lines(run, first, last)]

    assert found(None, 59) == [(20, "settings-changed")]
    assert found(None, 60) == [(60, "nonfinite"), (20, "settings-changed")]
    assert found(70, 79) == [(60, "nonfinite")], "the incident is ongoing"
    assert found(10, 15) == []


def test_an_incident_is_shown_as_it_was_known_at_a_step(world: World) -> None:
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.store.announce(tuple(Tap(f"layers.{place}", "output") for place in range(3)))
    for step in range(100):
        bad = {1} if 60 <= step < 70 else {1, 2} if 70 <= step < 80 else set()
        run.store.append(frame(step, [math.nan if place in bad else 1.0 for place in range(3)]))
    (before,) = all_lines(run, None, 65)
    assert before.message == "NaN first appeared in the activation of layers.1, at step 60."
    assert (before.severity, before.until, before.is_ongoing) == ("error", None, True)
    (during,) = all_lines(run, None, 75)
    assert during.message.endswith("1 other module followed.")
    (after,) = all_lines(run, None, 90)
    assert after.message.endswith("All tensors were finite again at step 80; 1 other module had followed.")
    assert (after.until, after.is_ongoing) == (79, False)
    assert before.id == during.id == after.id


def test_a_message_that_was_found_later_says_when() -> None:
    tap = Tap("layers.1", "output")
    incident = Incident(
        "exploding",
        Link(1, tap, 60),
        50.0,
        60,
        90,
        None,
        30,
        found_step=70,
        message="the output has grown since step 60",
    )
    assert incident.as_of(65).sentence.startswith("Found at step 70: the output has grown since step 60")
    assert incident.as_of(70).sentence.startswith("The output has grown since step 60")


def test_a_markdown_copy_stays_a_table_whatever_the_messages_contain() -> None:
    text = markdown_of([_line(message="a | b\n*c* <d>", module="net`|0")], "Events of [x]", "http://box/")
    row = text.splitlines()[-1]
    assert len(re.findall(r"(?<!\\)\|", row)) == 6
    assert r"a \| b \*c\* \<d\>" in row
    assert r"# Events of \[x\]" in text
    assert "No events." in markdown_of([], "Events", "http://box/")


def test_the_steps_around_a_note_are_shown(world: World) -> None:
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.store.announce((Tap("relu", "output"),))
    for step in range(200):  # without a loss, growth is a note
        run.store.append(frame(step, [60.0 if step >= 120 else 1.0 + step % 3 * 0.01] if step != 119 else []))
    finding = next(each for each in run.findings.current() if each.rule == "exploding")
    found = around_of(run.store, finding)
    assert found is not None
    assert found.phase == "forward"
    assert [each.state for each in found.strip if each.first <= 119 <= each.last] == ["unseen"]
    assert found.merged == 1


def test_a_page_is_rendered_again_if_its_run_leaves_memory_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, usual = _run(world), Store.events
    store, leaves = run.store, iter([True])

    def events(self: Store, *given: Any, **others: Any) -> Any:
        if next(leaves, False):
            run.outline(store.steps(), run.end)
        return usual(self, *given, **others)

    run.findings.current()
    monkeypatch.setattr(Store, "events", events)
    monkeypatch.setattr(world.runs.disk, "load", lambda run: run.swap(store, loaded=True))
    answer = world.client.get("/runs/one/problems")
    assert answer.status_code == 200, answer.text
    assert next(leaves, None) is None
    assert "NaN or infinity" in answer.text


def test_a_layer_whose_onset_was_not_captured_is_never_called_the_first(world: World) -> None:
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.store.announce((Tap("layer", "input"), Tap("layer", "output")))
    for step, value in ((0, 1.0), (20, math.nan)):
        run.store.append(frame(step, [1.0, value]))
    (finding,) = run.findings.current()
    assert (finding.unseen, finding.culprit_known) == (19, False)
    client = world.client
    overview, page = client.get("/runs/one").text, "runs/one/problems/incident?id=nonfinite-20"
    assert "NaN or infinity; the layer isn&#39;t known" in client.get("/").text.replace("\n", "")
    assert "the first one isn&#39;t known" in overview
    assert page in overview
    assert ">layer<" not in overview.partition('id="findings"')[2].partition("</section>")[0]
    assert page in client.get("/runs/one/problems").text
    assert "NaN began between steps 1 and 20; the layer isn&#39;t known." in client.get(f"/{page}").text
    assert "Open layer" not in client.get(f"/{page}&part=about").text
    summary = summary_of(run)
    assert summary["alerts"][2:] == [
        "",
        "NaN began between steps 1 and 20; the layer isn't known",
        "; the layer isn't known",
    ]


def test_the_page_lists_problems_or_everything_and_filters_by_its_address(world: World) -> None:
    run = _run(world)
    run.store.add_event(Event(80, 1.0, "settings-changed", "every 1 -> 2"))
    text = world.client.get("/runs/one/problems").text
    assert ">1 problem<" in text
    assert "Settings changed</a>" not in text
    everything = world.client.get("/runs/one/problems?name=all").text
    assert ">2 events<" in everything
    assert "Settings changed</a>" in everything
    assert "1 of 2 shown" in world.client.get("/runs/one/problems?name=all&severity=info").text
    assert "1 of 2 shown" in world.client.get("/runs/one/problems?name=all&f=layers.1").text
    assert "Nothing matches" in world.client.get("/runs/one/problems?text=nowhere&in=3-4").text


def test_each_line_has_one_page_and_older_addresses_lead_to_it(world: World) -> None:
    run = _run(world)
    run.store.add_event(Event(80, 1.0, "settings-changed", "every 1 -> 2"))
    problem, event = problem_lines(run)[0], all_lines(run)[0]
    assert "The settings changed" not in world.client.get("/runs/one/problems").text
    for line, words in ((problem, "NaN first appeared in"), (event, "every 1 -&gt; 2")):
        text = world.client.get("/runs/one/problems/incident", params={"id": line.page_id}).text
        assert words in text
        moved = world.client.get("/runs/one/problems", params={"event": line.id}, follow_redirects=False)
        assert moved.status_code == 307
        assert words in world.client.get(moved.headers["location"]).text
    gone = world.client.get("/runs/one/problems/incident?id=gone")
    assert gone.status_code == 404
    assert "It has cleared" in gone.text


def test_problems_are_listed_by_severity_and_step_and_those_that_were_seen_come_last(world: World) -> None:
    run = _run(world)
    run.store.add_event(Event(70, 1.0, "hook-error", "it broke", "error", "layers.0"))
    run.store.add_event(Event(10, 1.0, "dropped", "some data", "warning"))
    run.store.add_event(Event(81, 1.0, "settings-changed", "every 1 -> 2"))
    assert [line.name for line in problem_lines(run)] == ["nonfinite", "hook-error", "dropped"]
    run.acknowledge(problem_lines(run)[0].key)
    assert [line.name for line in problem_lines(run)] == ["hook-error", "dropped", "nonfinite"]
    assert [line.is_alert for line in problem_lines(run)] == [True, True, False]


def test_what_readers_wrote_is_in_the_list_after_problems_and_not_counted(world: World) -> None:
    run = _run(world)
    before = run.findings.scope().problems
    for step, text in ((3, "learning rate halved"), (40, "new data")):
        assert world.client.post("/api/v1/annotations", json={"run": "one", "step": step, "text": text}).is_success
    page = world.client.get("/runs/one/problems?steps=all").text
    heading = page[page.index('id="list-title"') :]
    assert "and 2 notes of readers, not counted" in heading
    rows = [*re.findall(r'<tr role="row" id="row-([^"]+)"', page)]
    assert rows[-2:] == ["annotation@3", "annotation@40"]
    assert 'href="runs/one?step=40"' in page
    assert 'data-seen="annotation' not in page
    assert run.findings.scope().problems == before
    only = world.client.get("/runs/one/problems?steps=all&name=annotation").text
    assert "learning rate halved" in only
    assert "learning rate halved" in world.client.get("/runs/one/problems?steps=all&format=markdown").text


def test_two_findings_of_one_incident_are_one_problem(world: World) -> None:
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.store.announce((Tap("a", "output"), Tap("b", "output")))
    for step in range(200):
        size = 1e5 if step >= 150 else 1.0 + step % 3 * 0.01
        run.store.append(frame(step, [size, size], scalars={"loss": size}))
    found = [each.rule for each in run.findings.current() if each.severity != "info"]
    assert found == ["loss", "exploding", "loss-spike"], "the spike is the beginning of what lasts"
    incidents = [each for each in run.store.incidents() if each.severity != "info"]
    assert run.findings.scope().problems == len(incidents) == sum(line.is_alert for line in problem_lines(run))
    assert ">2<" in world.client.get("/runs/one").text


def test_an_imported_run_is_judged_by_its_logged_values_and_gets_no_advice_about_a_training_loop(world: World) -> None:
    info = msgspec.structs.replace(make_info("one"), facts={"imported from": "/logs", "format": "TensorBoard"})
    run = world.runs.open(info)
    assert run is not None
    for step in range(100):
        run.store.append(frame(step, [], scalars={"train/loss": math.nan if step > 80 else 1.0 / (1 + step)}))
    text = world.client.get("/runs/one").text
    assert "This run was imported from TensorBoard. Its log has no layers." in text
    assert 'Problems <span class="badge">1</span>' in text
    assert ".backward()" not in text
    assert "Gradient norm" not in text
    assert 'id="model"' not in text
    assert 'id="cost"' not in text
    assert "Imported from TensorBoard: steps 0 to " in text
    for page in ("", "/performance", "/capture"):
        shown = " ".join(re.sub("<[^>]*>", " ", world.client.get(f"/runs/one{page}").text).split())
        assert not re.search(r"left out|\d captured|at the end, limit|limit 5|As requested", shown), page
    assert "it cost nothing" in world.client.get("/runs/one/performance").text
    assert world.client.get("/api/v1/overview?run=one").json()["cost"] == "not watched, imported from TensorBoard"
    scope = run.findings.scope()
    assert (scope.verdict, scope.sentence[:41]) == ("problems", "1 problem found in logged values; no tens")


def test_the_value_of_a_finding_is_the_current_one_only_while_the_run_is_live(world: World) -> None:
    run = _run(world, bad=())
    for step in range(100, 140):
        run.store.append(frame(step, [1.0] * 3, scalars={"loss": math.nan}))
    address = f"/runs/one/problems/incident?id={problem_lines(run)[0].page_id}"
    assert '<dt>loss now</dt><dd><data value="nan">' in world.client.get(address).text
    run.end = End(139)
    assert '<dt>loss at the end</dt><dd><data value="nan">' in world.client.get(address).text


def test_the_page_hides_acknowledged_lines_on_request(world: World) -> None:
    run = _run(world)
    run.acknowledge(run.findings.current()[0].key)
    assert "1 acknowledged or muted" in world.client.get("/runs/one/problems").text
    assert "1 acknowledged" in world.client.get("/runs/one/problems?hide=1").text


def test_the_list_is_available_as_markdown(world: World) -> None:
    _run(world)
    answer = world.client.get("/runs/one/problems?severity=error&format=markdown")
    assert answer.headers["content-type"].startswith("text/markdown")
    assert "| 60 | error | NaN or infinity | `layers.1` |" in answer.text
    assert "runs/one/problems?severity=error>" in answer.text


def test_a_run_without_events_says_so(world: World) -> None:
    run = world.runs.open(make_info("one"))
    assert run is not None
    assert "No step has been captured" in world.client.get("/runs/one/problems").text
    run.store.append(frame(0, [1.0], new=1))
    assert "No problems." in world.client.get("/runs/one/problems").text
    assert "No events." in world.client.get("/runs/one/problems?name=all").text


def test_a_long_list_has_pages(world: World) -> None:
    run = _run(world, bad=())
    for number in range(130):
        run.store.add_event(Event(number % 100, float(number), "note", f"note {number}"))
    first = world.client.get("/runs/one/problems?name=all").text
    last = world.client.get("/runs/one/problems?name=all&row=100").text
    beyond = world.client.get("/runs/one/problems?name=all&row=5000").text
    assert (first.count('id="row-'), last.count('id="row-'), beyond.count('id="row-')) == (100, 30, 30)


def test_a_finding_shows_its_usual_causes_and_what_to_try(world: World) -> None:
    (line,) = all_lines(_run(world))
    text = world.client.get("/runs/one/problems/incident", params={"id": line.page_id}).text
    assert line.rule is not None
    assert all(each in text for each in (*line.rule.causes, *line.rule.tries))
    assert _line().rule is None


def test_the_overview_the_badge_and_the_events_page_count_the_same_alerts(world: World) -> None:
    run = _run(world)
    run.store.add_event(Event(80, 1.0, "hook-error", "it broke", "error", "layers.0"))
    run.store.add_event(Event(81, 1.0, "settings-changed", "every 1 -> 2"))
    run.store.add_event(Event(82, 1.0, "snapshot-missed", "no gradient reaches it", "info", "layers.0"))
    overview = world.client.get("/runs/one").text
    assert 'id="alerts" data-part="badge">2<' in overview
    assert 'Problems <span class="badge">2</span>' in overview
    events = world.client.get("/runs/one/problems").text
    assert ">2 problems<" in events
    assert "4 events" in events
    assert "hook-error" in events
    runs = world.client.get("/").text
    assert '<span class="badge error">2</span>' in runs


def test_notes_are_never_listed_under_the_words_no_problems_found(world: World) -> None:
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.store.announce((Tap("relu", "output"),))
    for step in range(200):  # without a loss, growth is a note, and so is one spike
        run.store.append(frame(step, [60.0 if step == 120 else 1.0 + step % 3 * 0.01]))
    scope = run.findings.scope()
    assert (scope.problems, scope.notes, scope.verdict) == (0, 1, "clear")
    assert (
        scope.sentence
        == "No problems, but 1 note found in the last 200 steps (200 captured). No evaluation was captured."
    )
    overview = world.client.get("/runs/one").text
    assert scope.sentence in overview
    assert "No problems, but 1 note, worst first" in overview
    assert "No problems found" not in overview
    assert '<span class="quiet-label">note: </span>' in overview
    assert '<span class="quiet none">none</span>' in world.client.get("/").text


def test_the_list_says_no_number_of_problems_of_a_run_on_disk_of_which_none_is_noted(world: World) -> None:
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.loaded, run.saved.summary = False, {"alerts": [[], "", "", "", ""]}
    assert '<span class="quiet none">none</span>' in world.client.get("/").text
    run.saved.summary = {}
    listed = world.client.get("/").text
    assert ">not loaded</span>" in listed
    assert '<span class="quiet none">none</span>' not in listed


def test_two_spikes_of_one_tensor_are_one_problem_and_one_of_the_two_lines_of_everything_can_be_selected(
    world: World,
) -> None:
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.store.announce((Tap("blocks.2.relu", "output"),))
    for step in range(200):
        run.store.append(frame(step, [500.0 if step in (120, 160) else 1.0 + step % 3 * 0.01]))
    spikes = [line for line in all_lines(run) if line.name == "spike"]
    assert [line.step for line in spikes] == [160, 120]
    assert len({line.id for line in spikes}) == 2
    (problem,) = (line for line in problem_lines(run) if line.name == "spike")
    assert problem.message.endswith("at step 120, and again at step 160")
    text = world.client.get("/runs/one/problems/incident", params={"id": spikes[1].page_id}).text
    assert "blocks.<wbr>2.<wbr>relu" in text
    assert "step 120" in text


def test_a_page_without_findings_says_how_much_it_examined(world: World) -> None:
    run = _run(world, bad=())
    assert "No problems found in the last 100 steps (100 captured)." in world.client.get("/runs/one").text
    for step in range(100, 1000):
        run.store.append(frame(step, [1.0 + step % 3] * 3 if step % 4 == 0 else []))
    assert re.search(r"found in the last 512 steps \(128 captured\)", world.client.get("/runs/one").text)
    few = world.runs.open(make_info("two"))
    assert few is not None
    few.store.announce((Tap("a", "output"),))
    for step in range(5):
        few.store.append(frame(step, [1.0]))
    text = world.client.get("/runs/two").text
    assert "Not enough captured to judge changes over time in any layer: 5 captured steps, 24 needed." in text

"""How a run ended, in the same words and with the same last step wherever it is shown."""

from __future__ import annotations

import re

import pytest
import torch

import hookcore
from hookcore.records import Failure
from hookcore.records.wire import EndItem
from hookcore_app.pages.views.events import problem_lines
from hookcore_app.pages.views.span import progress_of
from tests.build import make_info
from tests.inside import recorder_of
from tests.serving import World, make_frame, make_taps, make_world

HTML = {"Accept": "text/html"}
CRASH = Failure(
    "crashed",
    2,
    "RuntimeError: no",
    "Traceback\nRuntimeError: no",
    "",
    "encoder.3",
    "/me/model.py",
    14,
    "x = self.up(x)",
)
STOP = Failure("stopped", 2, signal="SIGTERM")


def ended(failure: Failure) -> World:
    """Return a server with a run of three steps that ended so."""
    world = make_world()
    run = world.runs.open(make_info("one"))
    assert run is not None
    for step in range(3):
        run.take_record(make_frame(step, new_taps=() if step else make_taps(2)))
    run.take_record(EndItem(0, 3, failure))
    return world


def words_of(html: str) -> str:
    main = html.partition("<main")[2]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", main.replace("&#39;", "'")))


def part(world: World, name: str) -> str:
    return world.client.get(f"/runs/one?part={name}", headers=HTML).text


def test_a_page_names_the_module_and_the_line_that_raised_with_the_traceback_a_click_away() -> None:
    world = ended(CRASH)
    page = world.client.get("/runs/one", headers=HTML).text
    words = words_of(page)
    assert "The training crashed in step 2: RuntimeError: no In encoder.3, at model.py:14: x = self.up(x)" in words
    assert "Crashed in step 2: steps 0 to " in words
    assert "crashed \u00b7 step" not in words
    assert 'model/layers?module=encoder.3"' in page
    assert "<details><summary>Traceback" in page, "the verdict is to be seen first"
    line = next(line for line in problem_lines(next(iter(world.runs.all()))) if line.name == "crashed")
    crash = world.client.get(f"/runs/one/problems/incident?id={line.page_id}", headers=HTML).text
    assert "<details open><summary>Traceback" in crash
    assert "x = self.up(x)" in crash
    assert crash.count("Why the run ended") == 0


def test_the_findings_do_not_repeat_how_the_run_ended() -> None:
    world = ended(CRASH)
    assert "RuntimeError" not in part(world, "findings")
    assert "Crashed" in part(world, "findings"), "the number of problems is that of the list"
    assert "RuntimeError" in world.client.get("/runs/one/problems?part=list").text  # an event as any other
    (event,) = world.client.get("/api/v1/events?run=one&name=crashed").json()["events"]
    assert (event["module"], event["about"]["line"]) == ("encoder.3", 14)


def test_rest_has_the_place_as_facts() -> None:
    answer = ended(CRASH).client.get("/api/v1/runs/one").json()
    assert answer["state"] == "crashed"
    found = {name: answer["failure"][name] for name in ("module", "file", "line", "code")}
    assert found == {"module": "encoder.3", "file": "/me/model.py", "line": 14, "code": "x = self.up(x)"}


def test_the_report_and_the_list_say_where_it_was() -> None:
    world = ended(CRASH)
    report = world.client.get("/api/v1/report?run=one").text
    assert "The training crashed in step 2 in encoder.3, at model.py:14" in report
    assert "<code>x = self.up(x)</code>" in report
    assert "in step 2, model.py:14: RuntimeError: no" in words_of(world.client.get("/", headers=HTML).text)


def test_a_run_that_a_signal_stopped_names_it_and_is_no_alert() -> None:
    world = ended(STOP)
    page = world.client.get("/runs/one", headers=HTML).text
    assert "The training was stopped by SIGTERM in step 2" in words_of(page)
    assert 'class="pill stopped"' in page
    assert "stopped in step 2 by SIGTERM" in words_of(world.client.get("/", headers=HTML).text)
    answer = world.client.get("/api/v1/runs/one").json()
    assert (answer["state"], answer["failure"]["signal"]) == ("stopped", "SIGTERM")
    (event,) = world.client.get("/api/v1/events?run=one&name=stopped").json()["events"]
    assert (event["severity"], event["about"]) == ("info", {"signal": "SIGTERM"})


@pytest.mark.parametrize("budget", [None, 0.05])
def test_the_last_step_of_a_run_is_the_last_one_that_it_trained(budget: float | None) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = hookcore.watch(model, server=None, every=50, budget=budget, memory="8MB")
    for _ in range(63):
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
    watcher.close()
    steps = watcher.store.steps()
    assert (steps.first, steps.newest, steps.length) == (0, 62, 63)
    times = watcher.store.scalars("hookcore/time_s", 62, 62)
    assert times.mean[0] <= watcher.store.steps().time_s  # type: ignore[operator]


def test_an_abrupt_end_sends_all_that_was_made_and_the_last_step() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = hookcore.watch(model, server=None, every=50, memory="8MB")
    for _ in range(63):
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
    recorder_of(watcher).stop(60.0)
    assert watcher.store.steps().newest == 62
    watcher.close()


def test_all_steps_of_an_ended_run_are_captured_or_left_out() -> None:
    run = ended(STOP).runs.get("one")
    assert run is not None
    run.store.append(make_frame(9))
    found = progress_of(run)
    assert f"{found.before}{found.newest}{found.after}" == "Stopped in step 2: steps 0 to 9, 4 captured, 6 left out."

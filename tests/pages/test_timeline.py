"""The timeline of a run: its line, its marks, and its captured steps, over REST and on the pages."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from hookcore.reading import StoreReader
from hookcore.records import Event, ModuleRecord, Tap
from hookcore.store import Store
from hookcore.store.incidents import Incident
from hookcore_app.analysis.figures.lines import strip_of
from hookcore_app.analysis.timeline import MAX_MARKS, quantity_of, timeline_of
from hookcore_app.pages.page import timeline_view
from hookcore_app.pages.views.layer import nearest_captured, note_of
from hookcore_app.pages.views.span import Shared, Span, range_in, span_of, step_in
from hookcore_app.runs import Run, Runs
from hookcore_app.runs.parts import End
from hookcore_app.settings import ServerSettings
from tests import build
from tests.api_world import World, fill, open_run
from tests.build import append, stats_of
from tests.live_world import frame

HTML = {"Accept": "text/html"}


@pytest.fixture
def world() -> World:
    return World()


def empty_run() -> Run:
    return open_run(Runs(ServerSettings(memory=500_000_000)), "one")


def test_the_line_of_a_run_is_its_whole_loss_with_its_extremes(world: World) -> None:
    said = world.json("timeline")
    assert (said["quantity"], said["is_loss"], said["first_step"], said["newest_step"]) == ("loss", True, 0, 19)
    same = world.json("scalars", name="loss")["series"][0]
    assert said["line"]["mean"] == same["mean"]
    assert said["line"]["nonfinite"] == same["nonfinite"]


def test_a_long_run_costs_no_more_than_a_short_one() -> None:
    run = empty_run()
    for step in range(0, 12_000, 3):
        loss = 500.0 if step == 6000 else 1.0
        run.store.append(frame(step, [1.0], new=int(step == 0), scalars={"loss": loss}))
        if step % 60 == 0:
            run.store.add_event(Event(step, 1.0, "note", "x", "error" if step == 6000 else "info"))
    found = timeline_of(run)
    assert found.line is not None
    assert len(found.line.mean) <= 600
    assert max(found.line.max) == 500.0, "a spike of one step stays"
    assert len(found.captured_last) <= 1200
    assert not found.captured_all
    assert found.captured == 4000
    assert len(found.marks) <= MAX_MARKS + 1
    assert sum(mark.count for mark in found.marks) == 200 + len(run.store.incidents())
    assert [mark.step for mark in found.marks if mark.severity == "error"] == [6000]
    part = timeline_of(run, 5990, 6010)
    assert part.captured_all
    assert part.captured_first.tolist() == part.captured_last.tolist() == list(range(5991, 6011, 3))


def test_every_captured_step_is_listed_if_there_are_few(world: World) -> None:
    said = world.json("timeline")
    assert said["captured_all"]
    assert said["captured_first"] == said["captured_last"] == list(range(20))
    assert world.json("timeline", first=5, last=7)["captured_first"] == [5, 6, 7]


@pytest.mark.parametrize(
    ("scalars", "taps", "words", "is_loss"),
    [
        ({"val/loss": 1.0, "acc": 0.5}, (), "val/loss", True),
        ({"acc": 0.5}, (Tap("", "output", "loss"),), "(root) [loss], as the model returns it", True),
        ({"acc": 0.5}, (Tap("", "output"),), "acc", False),
        ({}, (Tap("a", "output"), Tap("", "output")), "rms of the activation of (root)", False),
        ({}, (Tap("a", "output"), Tap("b", "output")), "rms of the activation of b", False),
        ({}, (), "seconds per step", False),
    ],
)
def test_without_a_loss_the_line_is_the_best_available_series(
    scalars: dict[str, float], taps: tuple[Tap, ...], words: str, is_loss: bool
) -> None:
    store = Store(2**20)
    for step in range(3):
        new = taps if step == 0 else ()
        store.append(build.frame(step, stats_of(len(taps)), new, scalars=scalars, elapsed_s=0.5))
    drawn = quantity_of(store)
    assert drawn is not None
    assert (drawn.words, drawn.is_loss) == (words, is_loss)
    assert quantity_of(Store(2**20)) is None


def test_sentences_and_marks_call_the_root_by_its_class() -> None:
    run = empty_run()
    run.store.describe([ModuleRecord("", "Net", None), ModuleRecord("head", "Linear", "")])
    for step in range(3):
        rms = [1.0, math.nan if step == 2 else 1.0]
        append(run.store, step, rms, (Tap("head", "output"), Tap("", "output")) if step == 0 else ())
    (incident,) = run.store.incidents()
    assert incident.headline == "NaN first appeared in the activation of Net, at step 2"
    assert [mark.module for mark in timeline_of(run).marks] == ["Net"]
    drawn = quantity_of(run.store)
    assert drawn is not None
    assert drawn.words == "rms of the activation of Net"


def test_each_part_of_the_timeline_is_marked_by_its_worst_event(world: World) -> None:
    run = empty_run()
    for step in range(100):
        bad = 40 <= step < 50
        run.store.append(frame(step, [math.nan if bad else 1.0], new=int(step == 0)))
    run.store.add_event(Event(40, 1.0, "note", "x"))
    run.store.add_event(Event(70, 1.0, "hook-error", "x", "warning", "layers.0", 3))
    one, two = timeline_of(run).marks
    assert (one.step, one.severity, one.incident, one.count, one.module) == (40, "error", "nonfinite-40", 2, "layers.0")
    assert (two.step, two.severity, two.incident, two.count, two.title) == (70, "warning", "", 3, "Hook error")
    assert two.event.startswith("event:")
    incident = run.store.incidents()[0]
    assert isinstance(incident, Incident)
    assert one.event == f"{incident.key}@40"


def test_a_muted_rule_leaves_no_mark(world: World) -> None:
    before = world.json("timeline")["marks"]
    assert any(mark["title"] == "Note" for mark in before)
    answer = world.client.post("/api/v1/mutes", json={"run": "one", "rule": "note"})
    assert answer.status_code == 200, answer.text
    assert not any(mark["title"] == "Note" for mark in world.json("timeline")["marks"])


def steps(*values: int) -> Any:
    return np.array(values, np.int64)


def test_a_strip_has_a_gap_and_a_mark_where_values_were_not_finite() -> None:
    mean = np.array([1.0, 2.0, np.nan, 1.0])
    drawn = strip_of(steps(0, 1, 2, 3), steps(0, 1, 2, 3), (mean, mean, mean), np.isnan(mean), (0, 3))
    assert drawn.line.count("M") == 2
    assert drawn.bad == ((50.0, 75.0),)
    assert (drawn.band, drawn.is_log) == ("", False)
    assert drawn.line.startswith("M125.0,94.0L375.0,6.0")


def test_a_strip_of_many_decades_is_logarithmic_and_shows_extremes_as_a_band() -> None:
    mean = np.array([1.0, 10.0, 1e6])
    drawn = strip_of(steps(0, 8, 16), steps(7, 15, 23), (mean, mean / 2, mean * 2), np.zeros(3, bool), (0, 23))
    assert drawn.is_log
    assert drawn.band.endswith("Z")
    heights = [float(each.split(",")[1]) for each in re.findall(r"[\d.]+,[\d.]+", drawn.line)]
    assert heights[0] > heights[1] > heights[2]


@pytest.mark.parametrize("value", [0.0, 3.5, math.nan, math.inf])
def test_a_strip_of_one_value_or_none_is_drawn(value: float) -> None:
    each = np.array([value])
    drawn = strip_of(steps(5), steps(5), (each, each, each), ~np.isfinite(each), (5, 5))
    assert "nan" not in drawn.line + drawn.band
    nothing = np.empty(0)
    assert strip_of(steps(), steps(), (nothing, nothing, nothing), nothing > 0, (0, 9)).line == ""


def filled(state: str = "ended") -> Run:
    run = empty_run()
    for step in range(700):
        run.store.append(frame(step, [1.0], new=int(step == 0)))
    if state == "ended":
        run.end = End(699)
    return run


@pytest.mark.parametrize(
    ("state", "asked", "step", "axis", "values"),
    [
        ("ended", "", "", (0, 699), (None, None)),
        ("live", "", "", (200, 699), (None, None)),
        ("live", "all", "", (0, 699), (None, None)),
        ("live", "live:50", "", (650, 699), (None, None)),
        ("ended", "nonsense", "x", (0, 699), (None, None)),
        ("ended", "100-200", "", (100, 200), (100, 200)),
        ("ended", "600-9000", "", (600, 699), (600, 699)),
        ("ended", "9000-9001", "", (699, 699), (699, 699)),
        ("ended", "", "120", (0, 699), (120, 120)),
        ("ended", "", "5000", (0, 699), (699, 699)),
        ("ended", "100-200", "150", (100, 200), (150, 150)),
        ("ended", "100-200", "250", (150, 250), (250, 250)),
        ("ended", "100-200", "20", (20, 120), (20, 20)),
        ("live", "", "50", (50, 549), (50, 50)),
    ],
)
def test_the_url_contains_the_steps_of_the_axis_and_of_the_values(
    state: str, asked: str, step: str, axis: tuple[int, int], values: tuple[int | None, int | None]
) -> None:
    span = span_of(filled(state), asked, step)
    assert span is not None
    assert (span.first, span.last) == axis
    assert span.values == values


def test_a_run_without_steps_has_no_span_and_no_timeline() -> None:
    run = empty_run()
    assert span_of(run, "100-200", "5") is None
    assert timeline_of(run).first_step is None
    assert (step_in("-1"), step_in("9" * 16), range_in("5-3"), range_in("7")) == (None, None, None, (7, 7))
    assert Shared("1-2", "", "time").query == "steps=1-2&by=time"


def test_a_step_that_was_not_captured_names_the_nearest_ones() -> None:
    store = Store(2**20)
    for step in (3, 30, 3000):
        append(store, step, [1.0], (Tap("a", "output"),) if step == 3 else ())
    reader = StoreReader(store)
    assert note_of(reader, Span(0, 3000, 30)) is None
    assert note_of(reader, Span(0, 3000)) is None
    note = note_of(reader, Span(0, 3000, 1000))
    assert note is not None
    assert (note.words, note.instead) == ("No tensor was captured in step 1,000.", (30, 3000))
    assert nearest_captured(reader, 1).words == "The nearest captured step is 3."
    assert nearest_captured(StoreReader(Store(2**20)), 1).words is None


def test_a_merged_step_names_the_steps_it_was_merged_with() -> None:
    store = Store(2**20)
    taps = tuple(Tap(f"layers.{number}", "output") for number in range(50))  # wide steps, so that they are soon merged
    for step in range(300):
        append(store, step, [1.0] * len(taps), taps if step == 0 else ())
    first, last = store.captured_rows(20, 20)
    assert first[0] < last[0]
    note = note_of(StoreReader(store), Span(0, 299, 20))
    assert note is not None
    assert note.words == f"Steps {first[0]:,} to {last[0]:,} have been merged: values are their means."


def test_the_timeline_is_on_every_page_of_a_run_and_says_what_is_held(world: World) -> None:
    for page in ("", "/flow", "/layer", "/histograms", "/differences", "/tensors", "/system", "/hooks", "/events"):
        text = world.client.get(f"/runs/one{page}?steps=3-9&step=5&by=time", headers=HTML).text
        assert 'id="timeline"' in text
        assert re.search(r'id="step-box"[^>]* value="5"', text)
        for href in re.findall(r'href="(runs/one[^"]*)" data-keeps-steps', text):
            assert href.partition("#")[0].endswith("?steps=3-9&amp;step=5&amp;by=time"), href


def test_marks_lead_to_the_incident_or_to_the_event_at_its_step(world: World) -> None:
    text = world.client.get("/runs/one", headers=HTML).text
    assert re.search(r'<a href="runs/one/problems/incident\?id=nonfinite-7"[^>]* class="mark error"', text)
    assert re.search(r'<a href="runs/one/problems/incident\?id=event%3A\w+&amp;step=0"[^>]* class="mark warning"', text)


def test_an_incident_opens_at_its_own_step_and_its_links_keep_it(world: World) -> None:
    text = world.client.get("/runs/one/problems/incident?id=nonfinite-7", headers=HTML).text
    assert re.search(r'id="step-box"[^>]* value="7"', text)
    assert 'data-step="7"' in text
    flow = re.search(r'href="(runs/one/flow[^"]*)" data-keeps-steps', text)
    assert flow is not None
    assert "step=7" in flow[1]
    assert "steps=0-" in flow[1]


def test_a_page_does_not_read_the_captured_steps_for_its_timeline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(Store, "captured_rows", lambda *given: asked.append(given))
    shown, said = timeline_view(world.run), world.json("overview")
    assert shown is not None
    assert (shown.first, shown.last, shown.title) == (0, said["newest_step"], "loss")
    assert not asked


def test_the_part_that_scripts_request_is_only_the_timeline(world: World) -> None:
    part = world.client.get("/runs/one/timeline?part=line&part=note&step=5", headers=HTML)
    assert part.status_code == 200
    assert "<main" not in part.text
    assert 'data-last="19"' in part.text
    whole = world.client.get("/runs/one/timeline", headers=HTML, follow_redirects=False)
    assert whole.headers["location"] == "/runs/one"
    held = world.client.get("/runs/one/timeline?step=5&by=time", headers=HTML, follow_redirects=False)
    assert held.headers["location"] == "/runs/one?step=5&by=time"
    fill(open_run(world.runs, "other"), steps=0)
    assert world.client.get("/runs/other/timeline?part=line", headers=HTML).status_code == 404

"""A report needs no server and no network, and treats names as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape as html_of
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request

from hookcore.errors import ArgumentError
from hookcore.findings import RULES
from hookcore.reading import StoreReader
from hookcore.records import Coverage, Event, Failure, ModuleRecord, Tap
from hookcore.store import Store
from hookcore_app.analysis import figures
from hookcore_app.cli import main
from hookcore_app.pages.report import MAX_BYTES, ReportSteps, alerts_of, line_of, picture_of, report_of
from hookcore_app.pages.views.span import progress_of
from hookcore_app.runs import Run, Runs
from hookcore_app.runs.parts import End
from hookcore_app.runs.saved import show
from hookcore_app.settings import ServerSettings
from tests.api_world import World, fill, make_info, open_run
from tests.browser.browsing import chromium
from tests.build import append, steady
from tests.serving import TOKEN, Served, served

EVIL = '</script><script>window.stolen = 1</script><img src=http://evil.example/x onerror="window.stolen = 1">\'"&amp;'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def text_in(html: str) -> str:
    """Return the text of a report, without its scripts."""
    bare = re.sub(r"<(script|style).*?</\1>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", bare).split())


def make_run(name: str = "run-1", layers: int = 5, steps: int = 60, **others: Any) -> Run:
    """Return a run in which a NaN appears in one layer and spreads."""
    runs = Runs(ServerSettings(memory=500_000_000))
    run = open_run(runs, name, **others)
    kinds = ("output", "output_grad", "param_grad", "update")
    taps = tuple(Tap(f"layers.{number}", kind) for kind in kinds for number in range(layers))
    rms = np.tile(steady(steps, layers), 4)
    rms[steps - 10 :, layers // 2 : layers] = np.nan
    for step, row in enumerate(rms):
        scalars = {"loss": 1.0 / (step + 1) if step != 7 else float("nan")}
        append(run.store, step, row, taps if step == 0 else (), scalars=scalars)
    run.store.describe(
        [ModuleRecord(f"layers.{number}", "Linear", "layers") for number in range(layers)],
        [Coverage("layers.9", "Linear", False, (), "it was never called")],
    )
    run.store.add_event(Event(3, 100.0, "note", "something happened", "warning"))
    return run


def test_a_report_contains_key_figures_findings_coverage_settings_and_events_without_a_script() -> None:
    html = re.sub(r"<script.*?</script>", "", report_of(make_run()).decode(), flags=re.DOTALL)
    for told in (
        "NaN in the activation since step 50",
        "+2 modules after it",
        "it was never called",
        "something happened",
        "budget",
        "Gradient norm",
        "<b>Usual causes:</b> " + html_of(RULES["nonfinite"].causes[0]),
        "Rules without data in this run: saturated-activation, overfit, ",
    ):
        assert told in html
    assert "data:image/png;base64," in html
    assert "<path d=" in html


@pytest.mark.parametrize(("outcome", "words"), [("crashed", "The training crashed"), ("stopped", "was stopped")])
def test_a_run_that_failed_says_so_first(outcome: Any, words: str) -> None:
    run = make_run()
    assert words not in report_of(run).decode()
    error = "RuntimeError: <b>no</b> memory " + "x" * 900
    run.end = End(None, Failure(outcome, 1234, error, "Traceback\n  in train.py"))
    html = report_of(run).decode()
    assert f"{words} in step 1,234" in html
    assert "RuntimeError: &lt;b&gt;no&lt;/b&gt; memory" in html
    assert "in train.py</pre>" in html
    assert html.index(words) < html.index("<h2>Problems")


def test_uncaptured_steps_are_not_called_captured() -> None:
    run = make_run()
    append(run.store, 60 + 6287, steady(1, 20)[0])
    html = report_of(run).decode()
    assert "6,287 steps" in html
    assert "(61 captured)" not in html


def test_names_are_escaped() -> None:
    run = make_run(name="evil", **{"settings": {EVIL: EVIL}, "script": EVIL, "host": EVIL})
    run.name, run.edits.notes = EVIL, EVIL
    taps = (Tap(EVIL, "output"),)
    run.store = Store(2**24)
    for step in range(40):
        append(run.store, step, [1.0 if step < 30 else np.nan], taps if step == 0 else (), scalars={EVIL: 1.0})
    run.store.describe([ModuleRecord(EVIL, EVIL, "")], [Coverage(EVIL, EVIL, False, (), EVIL)])
    run.store.add_event(Event(1, 1.0, EVIL, EVIL, "error", EVIL))
    run.__post_init__()
    html = report_of(run).decode()
    assert "<img src=http" not in html
    assert html.count("<script>") == html.count("</script>") - html.count('<script type="application/json"')
    assert "window.stolen = 1</script>" not in html


@pytest.mark.slow
@pytest.mark.rota
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_opens_from_a_file_without_requests_or_errors(browser: Browser, tmp_path: Path, scheme: Any) -> None:
    run = make_run()
    run.name = EVIL
    path = tmp_path / "report.html"
    path.write_bytes(report_of(run))
    context = browser.new_context(color_scheme=scheme)
    page, said, asked = listened_to(context.new_page())
    page.goto(path.as_uri())
    charts = page.locator("figure.chart")
    assert charts.count() == 6
    for place in range(charts.count()):
        charts.nth(place).scroll_into_view_if_needed()
        charts.nth(place).locator(".main-svg").first.wait_for()
    assert page.evaluate("window.stolen") is None
    assert page.locator("h1").inner_text() == EVIL
    assert not said
    assert asked == [path.as_uri()]
    context.close()


@pytest.mark.slow
def test_charts_below_the_fold_are_drawn_without_scrolling(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_bytes(report_of(make_run()))
    context = browser.new_context(viewport={"width": 1200, "height": 500})
    page = context.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    many = page.locator("figure.chart").count()
    page.locator("figure.chart.drawn").nth(many - 1).wait_for(state="attached")
    assert page.evaluate("scrollY") == 0
    context.close()


def test_a_report_without_scripts_shows_pictures_and_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(report_of(make_run()))
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator("figure.chart img").first.is_visible()
    assert page.locator("figure.chart svg.line").first.is_visible()
    assert not page.locator("figure.bare").first.is_visible()
    assert page.locator("body").bounding_box()["width"] <= 390  # type: ignore[index]
    context.close()


def listened_to(page: Page) -> tuple[Page, list[str], list[str]]:
    """Return a page, and lists of its console errors and requests."""
    said: list[str] = []
    asked: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            said.append(message.text)

    def note(request: Request) -> None:
        if not request.url.startswith(("data:", "blob:")):
            asked.append(request.url)

    page.on("console", hear)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", note)
    return page, said, asked


def test_a_report_is_never_larger_than_its_limit() -> None:
    run = make_run("large", layers=300, steps=400)
    content = report_of(run)
    assert 1_500_000 < len(content) < MAX_BYTES


def test_charts_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookcore_app.pages.report.MAX_CHART_BYTES", 5_000)
    html = report_of(make_run()).decode()
    assert "Left out to keep the report below" in html
    assert "Activations (rms)" in html


def test_an_empty_run_has_a_report() -> None:
    html = report_of(open_run(Runs(ServerSettings()), "empty")).decode()
    assert "No step has been captured: there is nothing to judge." in html


def test_settings_are_formatted_for_readers_and_not_as_json() -> None:
    settings = {"every": 1, "memory": 512_000_000, "include": [], "kinds": ["output", "update"], "keep": None}
    html = report_of(open_run(Runs(ServerSettings()), "told", settings={**settings, "paused": False})).decode()
    pairs = dict(re.findall(r"<dt>(\w+)</dt><dd><code>(.*?)</code></dd>", html))
    assert pairs == {
        "every": "1",
        "memory": "512,000,000",
        "include": "none",
        "kinds": "output, update",
        "keep": "none",
        "paused": "no",
    }


def test_rounding_noise_of_a_constant_stat_does_not_fill_its_chart() -> None:
    store = Store(8_000_000)
    noise = np.random.default_rng(0).normal(size=200) * 1e-9
    for step in range(200):
        append(store, step, np.array([1.0 + noise[step]]), (Tap("a", "output"),) if step == 0 else ())
    found = figures.series([("a", StoreReader(store).series(0, "rms"))], figures.LIGHT, "a", "rms", scale="linear")
    low, high = found["layout"]["yaxis"]["range"]
    assert (low, high) == pytest.approx((0.8, 1.2))


def test_the_route_answers_with_a_file_to_save() -> None:
    world = World()
    answer = world.get("report", run="one")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="hookcore-one.html"'
    assert answer.headers["content-security-policy"].startswith("sandbox")
    assert b"<h1>run one</h1>" in answer.content
    assert "unknown run" in world.error("report", 404, run="two")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(lost_after_s=10_000.0) as found:
        fill(open_run(found.runs, "older", started_s=1.0))
        fill(open_run(found.runs, "newer", started_s=2.0))
        yield found


def test_the_command_asks_a_server(server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.html"
    assert main(["report", server.url, "--token", TOKEN, "-o", str(path)]) == 0
    assert "newer" in capsys.readouterr().out
    assert b"run newer" in path.read_bytes()
    assert main(["report", server.url, "--token", TOKEN, "--run", "older", "-o", str(path)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["report", server.url, "--token", TOKEN, "--run", "older", "-o", str(path), "--force"]) == 0
    assert b"run older" in path.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_the_command_reads_a_saved_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hookcore.delivery.archive import ArchiveWriter

    world = World()
    writer = ArchiveWriter(
        str(tmp_path), msgspec.structs.replace(make_info("kept-1"), name="as it was"), world.run.store
    )
    for record in _frames():
        writer.take(record)
    writer.close(30.0)
    shown = show(Runs(ServerSettings()), writer.folder)
    assert shown.saved.from_disk
    out = tmp_path / "out.html"
    assert main(["report", str(writer.folder), "-o", str(out)]) == 0
    assert b"as it was" in out.read_bytes()
    assert main(["report", str(writer.folder), "--run", "other", "-o", "-"]) == 2
    assert "contains the run 'kept-1'" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "not a file, folder" in capsys.readouterr().err


def _frames() -> list[Any]:
    from tests.api_world import TAPS, make_frame, value_at

    rows = range(len(TAPS))
    return [
        make_frame(
            step, [value_at(step, row) for row in rows], new_taps=TAPS if step == 0 else (), scalars={"loss": 1.0}
        )
        for step in range(5)
    ]


def test_an_unwritable_path_is_reported(tmp_path: Path) -> None:
    from hookcore_app.cli.asking import write_file

    with pytest.raises(ArgumentError, match="can't write"):
        write_file(tmp_path / "no" / "such" / "folder.html", b"", False)


def test_pictures_mark_non_finite_values() -> None:
    assert line_of(np.array([np.nan, np.nan])) == ""
    line = str(line_of(np.array([1.0, 2.0, np.nan, 3.0])))
    assert line.count("M") == 2
    assert line.count("<circle") == 1
    world = World()
    assert picture_of(world.run.store.heatmap("output", "rms")).startswith("data:image/png;base64,iVBOR")


# --- Some steps of a run ---------------------------------------------------------------------------------------------


def test_a_report_of_some_steps_has_no_numbers_or_incidents_of_others() -> None:
    run = make_run()
    whole, before = text_in(report_of(run).decode()), text_in(report_of(run, ReportSteps(10, 40, 30)).decode())
    assert "Report of a training run" in whole
    assert re.search(r"NaN first appeared in .*, at step 50", whole) or "non-finite" in whole.lower()
    assert "Report of step 30, made" in before
    assert "Step 30 the run is" in before
    summary = re.sub(r"made \S+ \S+ UTC", "", before.split("Problems")[0])  # the minute may be 59, too
    assert "UTC" not in summary
    assert "59" not in summary
    assert "loss 0.03226 at step 30" in before  # 1 / 31
    assert "NaN/Inf 0 modules" in before
    assert "None of the incidents that are in memory touches step 30." in before
    assert "steps 10 to 40" in before  # of the charts
    assert "Step 30, layer by layer" in before
    assert "Cost of watching" not in before
    assert "something happened" not in before  # in step 3
    first = text_in(report_of(run, ReportSteps(at=0)).decode())
    assert "Step 0, layer by layer (rms) from the input" in first
    assert "newest step" not in first
    after = text_in(report_of(run, ReportSteps(45)).decode())
    assert "Report of steps 45 to 59" in after
    assert "at step 50" in after
    assert "loss 0.01667 at step 59" in after


def test_an_incident_in_a_report_is_as_it_was_known_at_its_step() -> None:
    run = make_run()
    (row,) = [each for each in alerts_of(run, (), ReportSteps(0, 59, 50)) if each.rule == "nonfinite"]
    (incident,) = [each for each in run.store.incidents() if each.rule == "nonfinite"]
    assert (row.since_step, row.severity, row.message) == (50, "error", incident.as_of(50).sentence)
    assert not [each for each in alerts_of(run, (), ReportSteps(0, 59, 49)) if each.rule == "nonfinite"]


def test_steps_that_the_run_does_not_have_are_an_error_that_says_which_it_has() -> None:
    world = World()
    assert "outside of the run, which has 0 to 19" in world.error("report", 400, first=10**6)
    assert "outside of the steps" in world.error("report", 400, at=10**6)
    assert "give the earlier step as from" in world.error("report", 400, first=3, last=2)


def test_a_held_overview_links_to_the_report_of_its_step() -> None:
    world = World()
    page = world.client.get(f"/runs/{world.run.id}", params={"step": "1", "steps": "0-1"}).text
    assert f'href="api/v1/report?run={world.run.id}&amp;from=0&amp;to=1&amp;at=1"' in page
    assert f'href="api/v1/report?run={world.run.id}"' in world.client.get(f"/runs/{world.run.id}").text


def test_the_losses_of_several_optimizers_share_a_chart_and_a_sentence_says_whose_steps_count() -> None:
    run = open_run(Runs(ServerSettings(memory=500_000_000)), "gan")
    for step, row in enumerate(steady(20, 1)):
        name = "judge" if step % 2 else "maker"
        append(run.store, step, row, (Tap("0", "output"),) if step == 0 else (), scalars={f"backward/loss {name}": 1.0})
    told = text_in(report_of(run).decode())
    assert "backward/loss maker, backward/loss judge" in told
    assert "Each of 2 optimizers that take turns counts its own steps." in progress_of(run).after


def test_the_root_is_called_by_the_class_of_the_model_and_findings_are_problems() -> None:
    run = open_run(Runs(ServerSettings(memory=500_000_000)), "rooted")
    run.store.describe([ModuleRecord("", "Net", None)], [Coverage("", "Net", False, (), "it was never called")])
    for step in range(60):
        values = np.full(1, np.nan if step > 50 else 1.0)
        append(run.store, step, values, (Tap("", "output"),) if step == 0 else ())
    html = report_of(run).decode()
    bare = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    assert "<h2>Problems</h2>" in bare
    assert "<code>Net</code>" in bare
    assert '<td class="mono">Net</td>' in bare

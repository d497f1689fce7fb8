"""Interactive charts: what they show, how readers use them, and their exports."""

from __future__ import annotations

import csv
import io
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Download, Locator, Page, Route, expect

import hookcore
from tests.waiting import wait_for

from .browsing import PATIENCE_MS, Visit, choose
from .conftest import Open, Paths
from .site import Site

BAD_AT = 40  # from this step on, the run "bad" has NaN
# Without the line's width, which Firefox includes with its corners.
BOX = """(where) => {
  const path = document.querySelector(where);
  const { x, y, width, height } = path.getBBox();
  const { a, d, e, f } = path.getScreenCTM();
  return [a * x + e, d * y + f, a * width, d * height];
}"""
GRADIENTS = "#chart-gradients"
VALUES = "#chart-values"


def open_layer(tab: Visit, paths: Paths, run: str = "bad", more: str = "") -> Page:
    """Open the page of a layer, and wait until its charts are drawn."""
    tab.goto(paths(run)["layer"] + more)
    expect(tab.page.locator(f"{VALUES} .plot-legend b").first).not_to_be_empty(timeout=PATIENCE_MS)
    for figure in tab.page.locator("#charts figure").all():
        expect(figure.locator(".main-svg").first).to_be_attached(timeout=PATIENCE_MS)
    return tab.page


def exported(page: Page, figure: str, words: str, folder: Path) -> bytes:
    """Return what an entry of a chart's menu downloads."""
    with page.expect_download(timeout=PATIENCE_MS) as found:
        choose(page.locator(figure), f"Save as {words}")
    download: Download = found.value
    download.save_as(folder / download.suggested_filename)
    return (folder / download.suggested_filename).read_bytes()


def ticks(page: Page, figure: str, axis: str = "y") -> list[str]:
    """Return the tick labels of a chart."""
    return page.locator(f"{figure} .{axis}tick text").all_text_contents()


def area(page: Page, figure: str) -> tuple[float, float, float, float]:
    """Return the plot area of a chart."""
    page.locator(figure).scroll_into_view_if_needed()
    box = page.locator(f"{figure} .plot-area").bounding_box()
    assert box is not None
    return box["x"], box["y"], box["width"], box["height"]


def drag(page: Page, figure: str, begin: float, end: float) -> None:
    """Drag between two positions, given as shares of a chart's width."""
    left, top, width, height = area(page, figure)
    page.mouse.move(left + begin * width, top + height / 2)
    page.mouse.down()
    page.mouse.move(left + end * width, top + height / 2, steps=6)
    page.mouse.up()


def legend(page: Page, figure: str) -> Locator:
    """Return the legend's text for the step under the pointer."""
    return page.locator(f"{figure} .plot-legend li").first


@pytest.mark.all
def test_no_chart_offers_an_upload(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = open_layer(tab, paths)
        contexts = page.evaluate("[...document.querySelectorAll('.js-plotly-plot')].map((plot) => plot['_context'])")
        assert len(contexts) == 4
        assert all(not each["showSendToCloud"] and not each["displaylogo"] for each in contexts)
        assert page.locator("[data-title*='hare'], [data-title*='loud']").count() == 0


def test_exported_numbers_are_those_of_the_server(visit: Open, paths: Paths, site: Site, tmp_path: Path) -> None:
    run = site.run("bad")["id"]
    with visit(accept_downloads=True) as tab:
        tab.require_downloads()
        page = open_layer(tab, paths)
        as_json = json.loads(exported(page, VALUES, "JSON", tmp_path))
        as_csv = list(csv.DictReader(io.StringIO(exported(page, VALUES, "CSV", tmp_path).decode())))
    tap = as_json["series"][0]["tap"]["number"]
    truth = site.get(f"series?run={run}&tap={tap}&stat=mean,min,max&points=10000")["series"]
    assert [each["tap"]["label"] for each in truth] == ["encoder.layers.1.linear1 output"] * 3
    assert as_json["series"] == truth
    assert [row["stat"] for row in as_csv] == [each["name"] for each in truth for _ in each["mean"]]
    words = [word for each in truth for word in each["mean"]]
    assert [float(row["mean"]) for row in as_csv if row["mean"] != "nan"] == [each for each in words if each != "NaN"]
    assert sum(row["mean"] == "nan" for row in as_csv) == words.count("NaN") > 0


@pytest.mark.all
def test_a_picture_is_exported_with_its_title_and_its_legend(visit: Open, paths: Paths, tmp_path: Path) -> None:
    with visit(accept_downloads=True) as tab:
        tab.require_downloads()
        page = open_layer(tab, paths)
        svg = exported(page, GRADIENTS, "SVG", tmp_path).decode()
        png = exported(page, GRADIENTS, "PNG", tmp_path)
    assert svg.startswith("<svg")
    assert "Gradients: norm" in svg
    assert "weight gradient" in svg
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert width >= 900
    assert height >= 400


def test_the_copied_script_fetches_the_same_numbers(visit: Open, paths: Paths, site: Site) -> None:
    run = site.run("bad")["id"]
    with visit(permissions=["clipboard-read", "clipboard-write"]) as tab:
        page = open_layer(tab, paths)
        choose(page.locator(GRADIENTS), "Copy as Python")
        expect(page.locator(".toast")).to_contain_text("Copied")
        script = page.evaluate("navigator.clipboard.readText()")
    found: dict[str, Any] = {}
    exec(script, found)  # as a reader would
    labels = [
        f"encoder.layers.1.linear1 {name}" for name in ("output_grad", "param_grad [weight]", "param_grad [bias]")
    ]
    assert list(found["series"]) == labels
    assert found["client"].url == site.url
    client = hookcore.Client(site.url)
    for label in labels:
        truth = client.series(label, "norm", run=run, points=10_000)
        assert found["series"][label].mean.tolist()[:BAD_AT] == truth.mean.tolist()[:BAD_AT]
    client.close()
    found["client"].close()


@pytest.mark.all
def test_a_log_axis_shows_values_instead_of_exponents(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = open_layer(tab, paths, "ended")
        said = [float(text.replace(",", "")) for text in ticks(page, GRADIENTS)]
        assert len(said) >= 2
        assert said == sorted(said)
        assert all(value > 0 for value in said)
        before = ticks(page, VALUES)
        assert "0" in before
        page.keyboard.press("l")
        expect(page.locator("#layer-tools [name=y]")).to_have_value("log")
        assert "y=log" in page.url
        # The output has negative values, so its logarithmic axis has both signs.
        expect(page.locator(f"{VALUES} .ytick text").first).not_to_have_text(before[0])
        signed = [float(text.replace(",", "")) for text in ticks(page, VALUES)]
        assert min(signed) < 0 < max(signed)


@pytest.mark.all
def test_smoothing_keeps_the_original_line_in_the_background(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = open_layer(tab, paths, "ended")
        lines = page.locator(f"{GRADIENTS} .scatterlayer .trace")
        expect(lines).to_have_count(3)
        page.locator("#layer-tools [name=smooth]").select_option("5")
        expect(lines).to_have_count(6)
        assert "smooth=5" in page.url
        faint = page.locator(f"{GRADIENTS} .scatterlayer .trace[style*='0.35']")
        expect(faint).to_have_count(3)


def test_zooming_one_chart_zooms_all_and_holds_the_page(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = open_layer(tab, paths, "live", more="&by=step")
        drag(page, VALUES, 0.3, 0.7)
        page.wait_for_url("**steps=*-*", timeout=PATIENCE_MS)
        steps = page.evaluate("new URLSearchParams(location.search).get('steps')")
        first, last = (int(each) for each in steps.split("-"))
        expect(page.locator("#follow")).to_have_attribute("data-does", "live")
        for figure in page.locator("#charts figure").all():
            name = f"#{figure.get_attribute('id')}"
            page.locator(name).scroll_into_view_if_needed()  # charts out of view are drawn when they become visible
            expect(page.locator(f"{name} .main-svg").first).to_be_attached()
            shown = f"document.querySelector('{name} .js-plotly-plot').layout.xaxis.range"
            wait_for(lambda shown=shown: page.evaluate(shown) == [first - 0.5, last + 0.5], f"{name} shows these steps")
        page.locator("#follow").click()
        expect(page).not_to_have_url(re.compile("steps="), timeout=PATIENCE_MS)  # the default for a live run


def test_the_pointed_step_is_marked_in_every_chart(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = open_layer(tab, paths, "ended")
        left, top, width, height = area(page, VALUES)
        page.mouse.move(left + width / 2, top + height / 2)
        cursors = page.locator("#charts .plot-cursor")
        expect(cursors.nth(1)).to_be_visible()
        # Updates are captured in step 16 alone, which is then the nearest one.
        figures = page.locator("#charts figure").filter(has_not_text="update")
        said = {each.inner_text() for each in figures.locator(".plot-legend li:first-child").all()}
        assert len(said) == 1, said
        step = int(said.pop().removeprefix("step "))
        assert 20 <= step <= 40
        page.mouse.move(2, 2)
        expect(cursors.first).to_be_hidden()


def test_non_finite_values_are_marked_at_the_bottom_and_break_the_line(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = open_layer(tab, paths)
        plot = f"document.querySelector('{VALUES} .js-plotly-plot')"
        marks = page.evaluate(f"{plot}.data.find((trace) => trace.name === 'NaN')")
        assert marks["x"] == list(range(BAD_AT, 60))
        assert marks["marker"]["symbol"] == "x-thin"
        line = page.evaluate(f"{plot}.data.find((trace) => trace.name === 'mean').y")
        # In the first bad step, one of its channels was NaN. The chart shows the finite part, marked.
        assert all(value is not None for value in line[: BAD_AT + 1])
        assert line[BAD_AT + 1 :] == [None] * 19
        expect(page.locator(f"{VALUES} .plot-legend")).to_contain_text("NaN in this span")


def test_a_chart_has_a_name_a_description_and_a_table(visit: Open, paths: Paths, site: Site) -> None:
    with visit() as tab:
        page = open_layer(tab, paths, "ended")
        picture = page.get_by_role("img", name="Gradients: norm")
        described = picture.get_attribute("aria-describedby")
        expect(page.locator(f"#{described}")).to_contain_text("Steps 0 to 59. activation gradient:")
        choose(page.locator(GRADIENTS), "Show as table")
        table = page.get_by_role("table", name="Gradients: norm")
        expect(table.get_by_role("row")).to_have_count(61)
        expect(table.get_by_role("columnheader")).to_have_text(
            ["step", "activation gradient", "weight gradient", "bias gradient"]
        )
        expect(table.get_by_role("rowheader").first).to_have_text("59")


def test_the_menu_of_a_chart_is_quiet_until_the_pointer_or_the_focus_is_there(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = open_layer(tab, paths, "ended")
        menu = page.locator(f"{GRADIENTS} .menu-place")
        page.mouse.move(0, 0)
        expect(menu).to_have_css("opacity", "0")
        page.locator(GRADIENTS).hover()
        expect(menu).to_have_css("opacity", "1")
        page.mouse.move(0, 0)
        menu.get_by_role("button").focus()
        expect(menu).to_have_css("opacity", "1")


@pytest.mark.all
def test_the_menu_of_a_chart_works_with_the_keyboard(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = open_layer(tab, paths, "ended")
        page.locator(f"{GRADIENTS} .plot-area").focus()
        page.keyboard.press("e")
        entries = page.locator(f"{GRADIENTS} [role=menuitem]")
        expect(entries.first).to_be_focused()
        page.keyboard.press("End")
        expect(entries.last).to_be_focused()
        page.keyboard.press("ArrowDown")
        expect(entries.first).to_be_focused()
        page.keyboard.press("Escape")
        expect(entries.first).to_be_hidden()
        expect(page.locator(GRADIENTS).get_by_role("button", name="Actions")).to_be_focused()


@pytest.mark.all
def test_another_theme_changes_the_colors_of_every_chart(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = open_layer(tab, paths, "ended")
        tick = page.locator(f"{VALUES} .ytick text").first
        before = tick.evaluate("(text) => getComputedStyle(text).fill")
        page.emulate_media(color_scheme="dark")
        expect(tick).not_to_have_css("fill", before)


def test_the_charts_of_a_live_run_continue(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = open_layer(tab, paths, "live", "&by=step")
        before = legend(page, VALUES).inner_text()
        expect(legend(page, VALUES)).not_to_have_text(before, timeout=PATIENCE_MS)
        page.keyboard.press("Space")
        expect(page.locator("#follow")).to_have_attribute("data-does", "live")
        plot = f"document.querySelector('{VALUES} .js-plotly-plot')"
        held = int(page.evaluate("new URLSearchParams(location.search).get('step')"))
        expect(page.locator("#status")).to_contain_text("new step", timeout=PATIENCE_MS)
        last = page.evaluate(f"{plot}.layout.xaxis.range")[1]
        assert last >= held
        expect(page.locator("#status")).to_contain_text(re.compile(r"[2-9] new steps|\d\d new steps"))
        assert page.evaluate(f"{plot}.layout.xaxis.range")[1] == last


def test_the_first_chart_needs_neither_plotly_nor_a_request_and_stands_where_plotly_draws_it(
    visit: Open, paths: Paths
) -> None:
    with visit() as tab:
        page = tab.page
        library: list[Route] = []
        asked: list[str] = []
        page.route("**/plotly-cartesian.min.js", lambda route: library.append(route))
        page.on("request", lambda request: asked.append(request.url) if "/scalars?" in request.url else None)
        tab.goto(paths("bad")["overview"])
        sketch = page.locator("#chart .plot-sketch")
        expect(sketch).to_be_visible()
        expect(page.locator("#chart .plot-legend")).to_contain_text("step 59")
        words = sketch.locator("g text").all_text_contents()
        line = page.evaluate(BOX, "#chart .plot-sketch svg path[fill=none]")
        tab.wait_for(lambda: library, "Plotly is requested in the end")
        for route in library:
            route.continue_()
        expect(page.locator("#chart .main-svg").first).to_be_attached()
        expect(sketch).to_have_count(0)
        assert words == [*ticks(page, "#chart"), *ticks(page, "#chart", "x")]
        assert page.evaluate(BOX, "#chart .scatterlayer path.js-line") == pytest.approx(line, abs=1.5)


@pytest.mark.parametrize("name", ["metrics", "layer"])
def test_plotly_is_not_loaded_before_the_first_chart_is_drawn(visit: Open, paths: Paths, name: str) -> None:
    with visit() as tab:
        held: list[Route] = []
        tab.page.route(re.compile(r"/api/v1/(scalars|series)\?"), lambda route: held.append(route))
        tab.goto(paths("bad")[name])
        tab.wait_for(lambda: held, "the lines are requested")
        assert tab.page.locator('script[src*="plotly"]').count() == 0
        for route in held:
            route.continue_()
        expect(tab.page.locator(".chart .main-svg").first).to_be_attached()


def test_a_chart_whose_library_does_not_load_still_shows_its_lines(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.page.route("**/plotly-cartesian.min.js", lambda route: route.abort())
        tab.forgiven = ("plotly-cartesian", "ERR_FAILED")
        tab.goto(paths("ended")["overview"])
        expect(tab.page.locator("#chart .plot-sketch")).to_be_visible()
        with tab.page.expect_event("requestfailed", lambda request: "plotly" in request.url):
            tab.goto(paths("ended")["overview"] + "?step=30")
        expect(tab.page.locator("#chart .plot-sketch")).to_be_visible()
        expect(tab.page.locator("#chart .plot-legend")).to_contain_text("step 30")

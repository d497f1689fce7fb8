"""A new user finds the best setting in a sweep of eight real trainings by clicks on the Runs page alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.processes import start
from tests.waiting import wait_for

from .browsing import Visit, choose, visiting
from .site import Site, running
from .sweep import RATES, WIDTHS

PATIENCE_S = 240


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, dict[tuple[float, int], float]]]:
    """Return a site with a finished sweep, and the loss of each setting on fresh samples."""
    folder: Path = tmp_path_factory.mktemp("sweep")
    with running(folder) as site:
        log = folder / "sweep.log"
        process = start("tests.browser.sweep", site.url, environment=site.environment(), log=log)
        process.join(PATIENCE_S)
        assert process.exitcode == 0, log.read_text()
        lines = [line.split() for line in log.read_text().splitlines() if not line.startswith("hookcore: ")]
        ended = '[run["state"] for run in runs] == 8'
        wait_for(lambda: [run["state"] for run in site.get("runs")["runs"]] == ["ended"] * 8, ended)
        yield site, {(float(rate), int(width)): float(loss) for rate, width, loss in lines}


@pytest.fixture
def tab(browser: Browser, swept: tuple[Site, dict[tuple[float, int], float]]) -> Iterator[Visit]:
    with visiting(browser, swept[0].url) as found:
        yield found


def cells_of_first_row(page: Page) -> dict[str, str]:
    """Return the first row as a reader sees it: the texts of its cells by heading."""
    script = """() => {
        const heads = [...document.querySelectorAll("thead th, thead td")].map((each) => each.innerText.trim());
        const cells = document.querySelector("tr[data-run]").children;
        return Object.fromEntries(heads.map((head, place) => [head, cells[place]?.innerText.trim() ?? ""]));
    }"""
    found: dict[str, str] = page.evaluate(script)
    return found


def best_of(losses: dict[tuple[float, int], float]) -> tuple[float, int]:
    return min(losses, key=lambda setting: losses[setting])


def test_one_click_sorts_by_the_loss_and_the_first_row_says_the_best_setting(
    tab: Visit, swept: tuple[Site, dict[tuple[float, int], float]]
) -> None:
    page, losses = tab.page, swept[1]
    assert set(losses) == {(rate, width) for rate in RATES for width in WIDTHS}
    tab.goto("")
    page.get_by_role("columnheader", name="Loss").get_by_role("link").click()
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("Loss")
    row = cells_of_first_row(page)
    assert (float(row["lr"]), int(row["width"])) == best_of(losses)
    assert "seed" not in row  # the same in all runs
    heights = page.evaluate("[...document.querySelectorAll('tr[data-run]')].map((row) => row.offsetHeight)")
    assert max(heights) < 50  # each name is one line,
    link = page.locator("tr[data-run] .name a").first
    expect(link).to_have_attribute("title", f"sweep-of-learning-rates-and-widths-lr-{row['lr']}-width-{row['width']}")


def test_groups_say_which_learning_rate_is_best_and_the_charts_have_its_mean_and_range(
    tab: Visit, swept: tuple[Site, dict[tuple[float, int], float]]
) -> None:
    page, losses = tab.page, swept[1]
    tab.goto("")
    page.locator("#grouping").select_option("lr")
    groups = page.locator("tr.group")
    expect(groups).to_have_count(len(RATES))
    titles = [text.split("\n")[0].strip() for text in groups.all_inner_texts()]
    assert [title.split()[1] for title in titles] == ["0.003", "0.03", "0.3", "30"]
    legend = page.locator("#overlay .plot-legend li")
    expect(legend.filter(has_text="sweep-of")).to_have_count(8)
    page.get_by_label("Mean and range").check()
    expect(legend.filter(has_text="lr ")).to_have_count(len(RATES))
    values = {
        float(text.split("lr ")[1].split()[0]): float(text.split("runs)")[1].split()[0])
        for text in legend.filter(has_text="lr ").all_inner_texts()
    }
    assert min(values, key=lambda rate: values[rate]) == best_of(losses)[0]
    page.evaluate("scrollTo(0, 0)")  # at the chart, a row is half above the window, and so are its targets
    assert tab.axe() == []
    page.reload()  # the address contains all of it
    expect(legend.filter(has_text="lr ")).to_have_count(len(RATES))


@pytest.mark.all
def test_settings_are_drawn_against_the_result_and_a_click_selects_a_run(
    tab: Visit, swept: tuple[Site, dict[tuple[float, int], float]]
) -> None:
    page = tab.page
    tab.goto("")
    page.locator("#parallel").scroll_into_view_if_needed()
    lines = "document.querySelectorAll('#parallel .scatterlayer .trace').length"
    page.wait_for_function(f"() => {lines} === 8")
    labels = page.locator("#parallel .xtick").all_text_contents()
    assert labels == ["lr", "width", "parameters", "recent loss"]
    results = [run["results"].get("recent_loss") for run in swept[0].get("runs")["runs"]]
    finite = sum(isinstance(result, float) for result in results)
    assert 4 <= finite <= 8  # some have diverged
    points = page.locator("#scatter .points path")
    expect(points).to_have_count(8)  # those that diverged stand on the rail
    choose(page.locator("#scatter"), "Show as table")
    rows = page.locator("#scatter tbody tr")
    expect(rows).to_have_count(8)
    choose(page.locator("#scatter"), "Show as chart")
    expect(page.locator("#config-differences tbody tr")).to_have_count(4)
    points.first.scroll_into_view_if_needed()
    points.first.hover(force=True)
    points.first.click(force=True)
    expect(page.locator("[data-do=tick]:checked")).to_have_count(1)
    expect(page.locator("#charts-about")).to_have_text("of 1 selected run")
    expect(page.locator("#overlay .plot-legend li").filter(has_text="sweep-of")).to_have_count(1)


@pytest.mark.all
def test_gradient_norms_and_a_layer_of_all_runs_are_overlaid(tab: Visit) -> None:
    page = tab.page
    tab.goto("")
    legend = page.locator("#overlay .plot-legend li").filter(has_text="sweep-of")
    for what in ("gradient norm", "(layer)"):
        page.locator("#metric").select_option(what)
        if what == "(layer)":
            expect(page.locator("#overlay .empty")).to_contain_text("Name a layer")
            page.locator("#metric-tap input").fill("2 output")
            page.locator("#metric-tap input").press("Enter")
        expect(legend).to_have_count(8)
        expect(page.locator("#overlay .js-plotly-plot")).to_be_visible()
    expect(page.locator("#overlay .xtick").last).to_have_text(re.compile(r"^\d+\s*$"))
    page.locator("#overlay select[name=by]").select_option("time")
    expect(page.locator("#overlay .xtick").last).to_contain_text(re.compile(r" s\s*$|:"))  # since each run's start
    expect(legend).to_have_count(8)
    assert "by=time" in page.url
    expect(page.locator("#overlay-axis")).to_be_hidden()


def test_a_view_is_saved_and_opened_again(tab: Visit, swept: tuple[Site, dict[tuple[float, int], float]]) -> None:
    page = tab.page
    tab.goto("?group=lr&sort=loss")
    page.locator("#views summary").click()
    page.get_by_placeholder("Name this view").fill("by rate")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("Saved this view as by rate.")
    tab.goto("?sort=loss")
    page.locator("#views summary").click()
    page.get_by_placeholder("Name this view").fill("by rate")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("Replaced the view by rate.")
    page.get_by_role("button", name="Undo").click()
    wait_for(lambda: "group=lr" in json.dumps(swept[0].get("views")), "the view is what it was")
    page.evaluate("localStorage.setItem('hookcore-columns', 'seed')")  # a browser that remembers something else
    tab.goto("")
    page.locator("#views summary").click()
    page.get_by_role("link", name="by rate").click()
    expect(page.locator("tr.group")).to_have_count(len(RATES))
    expect(page.locator("#grouping")).to_have_value("lr")
    expect(page.get_by_role("columnheader", name="width", exact=True)).to_be_visible()
    page.locator("#views summary").click()
    page.get_by_role("button", name="Delete the view by rate").click()
    expect(page.get_by_role("link", name="by rate")).to_have_count(0)
    wait_for(lambda: json.dumps(swept[0].get("views")) == '{"views": []}', "the view is deleted")


def test_the_best_run_is_crowned_by_a_result_and_a_direction_that_one_chooses(
    tab: Visit, swept: tuple[Site, dict[tuple[float, int], float]]
) -> None:
    page = tab.page
    tab.goto("?group=lr")
    page.locator("#open-group").click()
    said = page.locator("#sweep .verdict")
    expect(said).to_contain_text("is best of 8, with recent loss")
    expect(said).to_contain_text("diverge")
    expect(page.locator("#sweep tbody th").first).to_have_text("lr")
    best = page.locator("#sweep .toolbar a").first
    before = best.inner_text()
    page.get_by_label("Better is").select_option("high")
    expect(best).not_to_have_text(before)
    assert "/group?" in page.url
    assert "better=high" in page.url
    page.locator("tr.group a.group-name").first.click()
    expect(page.locator("h1")).to_contain_text("Runs with lr=")
    page.wait_for_url(re.compile(r"/group\?f=lr%3D"))
    assert tab.axe() == []

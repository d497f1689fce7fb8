"""The Model page: the picture, its steps, its drawer, and the use of all this by keyboard."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.waiting import wait_for

from .browsing import choose
from .conftest import Open, Paths
from .site import Site

COLORS = """(magenta) => {
  const canvas = document.querySelector('.model-canvas');
  if (!canvas.width) return 0;
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const found = new Set();
  let bad = 0;
  for (let at = 0; at < data.length; at += 4) {
    const [red, green, blue] = data.slice(at, at + 3);
    found.add((red << 16) | (green << 8) | blue);
    if (red > 150 && green < 40 && blue > 120) bad += 1;
  }
  return magenta ? bad : found.size;
}"""


def opened(tab: Page) -> Page:
    """Wait until the picture is drawn."""
    expect(tab.locator("#model-count")).to_have_text(re.compile(r"^\d+ modules, \d+ boxes shown$"))
    wait_for(lambda: tab.evaluate(COLORS, False) > 20, "the picture is drawn")
    return tab


def test_boxes_unfold_and_fold_by_keyboard_and_the_address_keeps_it(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["model"])
        page = opened(tab.page)
        shown = page.locator("#model-count")
        first = shown.inner_text()
        page.locator(".model-canvas").focus()
        page.keyboard.press("Home")
        page.keyboard.press("Space")
        expect(shown).to_have_text(re.compile(", 1 box shown$"))
        assert "folds=" in page.url
        page.keyboard.press("o")
        expect(shown).to_have_text(first)
        assert "folds=" not in page.url
        page.keyboard.press("u")
        expect(shown).not_to_have_text(first)
        page.reload()
        expect(shown).not_to_have_text(first)


def test_a_box_opens_the_drawer_with_the_servers_data(visit: Open, paths: Paths, site: Site) -> None:
    run = site.run("ended")["id"]
    found = site.get(f"series?run={run}&tap=encoder.layers.1.linear1%20output&stat=norm&from=30&to=30")
    with visit() as tab:
        tab.goto(paths("ended")["model"] + "?step=30&box=encoder.layers.1.linear1")
        page = opened(tab.page)
        drawer = page.locator("#drawer")
        expect(drawer.locator("h2")).to_have_text("encoder.layers.1.linear1")
        value = drawer.locator("tr", has_text="activation").first.locator("data").first
        expect(value).to_have_attribute("value", str(found["series"][0]["mean"][0]))
        expect(drawer.locator("#drawer-histogram-title")).to_have_text("Distribution of activation")
        assert tab.axe() == []
        page.locator(".model-canvas").focus()
        page.keyboard.press("Escape")
        expect(drawer).to_be_hidden()
        assert "box=" not in page.url
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        expect(drawer.locator("h2")).to_have_text("Net")
        drawer.get_by_role("link", name="Open layer").focus()
        page.keyboard.press("Escape")
        expect(page.locator(".model-canvas")).to_be_focused()
        page.locator("#boxes").get_by_role("link", name="features.1").click()  # names in the table do the same
        expect(drawer.locator("h2")).to_have_text("features.1")
        assert "box=features.1" in page.url
        page.go_back()
        expect(drawer).to_be_hidden()


def test_nan_is_drawn_from_the_box_where_it_begins(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["model"] + "?step=20")
        page = opened(tab.page)
        assert page.evaluate(COLORS, True) < 50, "the legend alone"
        page.locator(".model-onset a").click()
        expect(page.locator("#drawer h2")).to_have_text("encoder.layers.1.linear1")
        expect(page.locator("#step-words")).to_have_text("step 40")
        wait_for(lambda: page.evaluate(COLORS, True) > 500, "NaN is drawn")
        choose(page, "Show as table", "Model")
        cell = page.locator("#model .card-table tbody tr", has_text="encoder.layers.1.linear1").first
        expect(cell).to_contain_text("NaN")
        expect(page.locator("#model .card-table tbody tr", has_text="features.0").first).not_to_contain_text("NaN")


@pytest.mark.all
def test_playback_runs_to_the_end_and_holds_there(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["model"] + "?speed=100")
        page = opened(tab.page)
        page.get_by_role("button", name="Play the steps").click()
        expect(page.locator("#status-words")).to_have_text(re.compile("held at step 59"))
        expect(page.get_by_role("button", name="Play the steps")).to_be_visible()
        page.locator("#model-step").focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#step-words")).to_have_text("step 58")
        expect(page.get_by_label("Step", exact=True).first).to_have_value("58")


@pytest.mark.all
def test_a_picture_larger_than_the_window_is_moved_in_a_small_overview(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["model"])
        page = opened(tab.page)
        small = page.locator(".model-minimap")
        expect(small).to_be_hidden()
        for _ in range(4):
            page.get_by_role("button", name="Zoom in").click()
        expect(small).to_be_visible()
        picture = "document.querySelector('.model-canvas').toDataURL()"
        wait_for(lambda: page.evaluate(picture) == page.evaluate(picture), "the picture rests")
        before = page.evaluate(picture)
        small.click(position={"x": 3, "y": 3})
        wait_for(lambda: page.evaluate(picture) != before, "the window moves")


@pytest.mark.all
def test_the_find_box_counts_its_matches_and_j_goes_to_the_next(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["model"] + "?f=*.linear1")
        page = opened(tab.page)
        expect(page.locator("#found-words")).to_have_text("3 matches")
        expect(page.locator("#boxes tbody tr")).to_have_count(3)
        page.locator(".model-canvas").focus()
        page.keyboard.press("j")
        tab.wait_for(lambda: "box=encoder.layers.0.linear1" in page.url, "the first match is selected")
        page.keyboard.press("j")
        tab.wait_for(lambda: "box=encoder.layers.1.linear1" in page.url, "the second match is selected")


def test_a_live_run_changes_its_colors(visit: Open, paths: Paths) -> None:
    with visit(theme="dark") as tab:
        tab.goto(paths("live")["model"])
        page = opened(tab.page)
        step = page.locator("#step-words").inner_text()
        expect(page.locator("#step-words")).not_to_have_text(step)


@pytest.mark.all
def test_a_kind_that_is_not_captured_says_why(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["model"])
        page = opened(tab.page)
        page.locator("#model select[name=kind]").select_option("update")
        expect(page.locator("#model-why")).to_contain_text("No update was captured")
        assert "kind=update" in page.url

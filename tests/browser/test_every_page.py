"""Checks of every page: no errors, no requests to other hosts, and accessibility."""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import expect

from .conftest import Open, Paths
from .site import Site

PAGES = (
    "runs",
    "group",
    "overview",
    "model",
    "flow",
    "layers",
    "layer",
    "histograms",
    "differences",
    "precision",
    "tensors",
    "media",
    "board",
    "system",
    "metrics",
    "capture",
    "rules",
    "hooks",
    "events",
    "compare",
    "settings",
    "help",
)


@pytest.mark.rota("page", of="every page")
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_a_page_reports_no_error_fits_its_window_and_passes_axe(
    visit: Open, paths: Paths, page: str, theme: str, width: int
) -> None:
    with visit(theme=theme, size=(width, 900)) as tab:
        tab.goto(paths("bad")[page])
        tab.wait_until_started()
        # Charts are updated some frames later.
        tab.page.wait_for_function("(width) => document.documentElement.scrollWidth <= width", arg=width)
        tab.wait_until_quiet()
        assert tab.axe() == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_complete_without_javascript(visit: Open, paths: Paths, page: str) -> None:
    with visit(java_script_enabled=False) as tab:
        tab.goto(paths("bad")[page])
        assert tab.page.locator("h1").inner_text()
        assert len(tab.page.locator("main").inner_text()) > 100


@pytest.mark.rota("page", of="every page")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_a_live_run_follows_it_on_a_phone_without_an_error(visit: Open, paths: Paths, page: str) -> None:
    with visit(size=(390, 844)) as tab:
        tab.goto(paths("live")[page])
        tab.page.wait_for_timeout(1500)
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
        tab.check()


def test_an_empty_server_says_how_to_start(empty_site: Site, browser: object) -> None:
    from .browsing import visiting

    with visiting(browser, empty_site.url) as tab:  # type: ignore[arg-type]
        tab.goto("")
        assert "hookcore.watch" in tab.page.locator("main").inner_text()
        assert tab.axe() == []


def test_on_a_phone_the_header_is_one_row_and_no_format_of_precision_is_cut(visit: Open, paths: Paths) -> None:
    with visit(size=(390, 844)) as tab:
        tab.goto(paths("ended")["overview"])
        header = tab.page.locator("header.top").bounding_box()
        assert header is not None
        assert header["height"] < 60
        tab.goto(paths("ended")["precision"])
        table = tab.page.locator("#layers .wide")
        assert table.evaluate("(element) => element.scrollWidth <= element.clientWidth")


@pytest.mark.parametrize("has_script", [True, False])
def test_on_a_phone_the_current_tab_is_in_sight_also_without_a_script(
    visit: Open, paths: Paths, has_script: bool
) -> None:
    if not has_script and os.environ.get("TEST_BROWSER") == "firefox":
        pytest.skip("Firefox has no scroll-initial-target")
    with visit(size=(390, 844), java_script_enabled=has_script) as tab:
        for page in ("precision", "hooks", "tensors", "settings"):
            tab.goto(paths("ended")[page])
            for row in ("nav.side", ".tabs"):
                for current in tab.page.locator(f"{row} [aria-current]").all():
                    expect(current).to_be_in_viewport(ratio=0.95)


def test_no_page_of_a_run_without_steps_names_a_step_or_judges_its_tensors(visit: Open, site: Site) -> None:
    site.train("waiting", "--steps", "0")
    run = site.run("waiting", 0, "ended")["id"]
    with visit(size=(390, 844)) as tab:
        tab.goto(f"runs/{run}")
        expect(tab.page.locator("#course")).to_have_text("Unknown: no step has been captured.")
        tab.goto(f"runs/{run}/flow")
        tab.wait_until_started()
        tab.wait_until_quiet()
        assert tab.page.locator("#profile-step").inner_text() == ""
        tab.goto(f"runs/{run}/flow/precision")
        expect(tab.page.locator("#verdict")).to_have_text("No tensor to judge")
    site.remove(run)


def test_on_a_phone_a_long_name_of_a_tensor_wraps_and_no_words_of_the_summary_touch(visit: Open, paths: Paths) -> None:
    with visit(size=(390, 844)) as tab:
        tab.goto(paths("bad")["tensors"])
        title = tab.page.locator("#viewer-title")
        title.evaluate("(element) => { element.textContent = 'a_block_with_a_long_name_'.repeat(20) }")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
        tab.goto(paths("ended")["overview"] + "?step=10")
        expect(tab.page.locator("#findings.none")).to_contain_text("No incident touches step 10")
        claim, link = tab.page.locator("#findings .claim"), tab.page.locator("#findings header a")
        right = claim.evaluate(
            "(element) => { const range = document.createRange(); range.selectNodeContents(element);"
            " return range.getClientRects()[0].right }"
        )
        box = link.bounding_box()
        assert box is not None
        assert right + 8 <= box["x"]


def test_on_a_phone_the_title_of_a_key_figure_breaks_only_between_words(visit: Open, paths: Paths) -> None:
    with visit(size=(390, 844)) as tab:
        tab.goto(paths("ended")["overview"])
        figure = tab.page.locator("#figure-smallest")
        figure.locator(".number").evaluate("(element) => { element.textContent = '-1.108e-45' }")
        lines = figure.locator(".name").evaluate("(element) => element.getBoundingClientRect().height")
        assert lines < 50, "two lines at most"

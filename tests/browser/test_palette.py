"""The palette finds every action, page, layer, and run as you type."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from .conftest import Open, Paths
from .site import Site


def test_layers_pages_runs_and_actions_are_found_and_opened_by_keyboard(visit: Open, paths: Paths, site: Site) -> None:
    run = site.run("ended")["id"]
    every = site.get(f"runs/{run}/modules?limit=1000")["modules"]
    expected = [each["path"] for each in every if "linear1" in each["path"]]
    with visit() as tab:
        tab.goto(paths("ended")["overview"] + "?step=30")
        page = tab.page
        page.keyboard.press("Control+k")
        box = page.get_by_role("combobox", name="Find actions, pages, layers, and runs")
        expect(box).to_be_focused()
        page.keyboard.type("linear1")
        layers = page.get_by_role("group", name="Layers").get_by_role("option")
        expect(layers).to_have_text(expected)
        page.keyboard.press("ArrowDown")
        chosen = page.locator("[aria-selected=true]").inner_text()
        assert chosen == expected[1]
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text(chosen)
        tab.wait_until_started()
        assert "step=30" in page.url, "the link keeps the held step"
        page.keyboard.press("Control+k")
        page.keyboard.type("gradient fl")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Gradient flow")
        tab.wait_until_started()
        page.keyboard.press("Control+k")
        page.keyboard.type("theme")
        page.keyboard.press("Enter")
        expect(page.locator("html")).to_have_attribute("data-theme", "light")
        page.keyboard.press("Control+k")
        page.keyboard.type("bad")
        page.get_by_role("group", name="Runs").get_by_role("option", name=re.compile("^bad")).click()
        expect(page.locator(".run-name")).to_have_text("bad")


@pytest.mark.parametrize(
    ("words", "page_found", "topic"),
    [
        ("expert", "Model: layers", "Dead expert"),
        ("learning rate", "Metrics: scalars", "Learning rate too high"),
        ("rank", None, "Rank is late"),
    ],
)
def test_the_words_that_people_use_find_pages_and_what_help_explains(
    visit: Open, paths: Paths, words: str, page_found: str | None, topic: str
) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("ended")["overview"])
        page.keyboard.press("Control+k")
        page.keyboard.type(words)
        option = page.get_by_role("group", name="Help").get_by_role("option", name=re.compile(f"^{topic}"))
        expect(option).to_be_visible()
        if page_found:
            expect(page.get_by_role("group", name="Pages").get_by_role("option").first).to_contain_text(page_found)
        option.click()
        expect(page).to_have_url(re.compile("help#rule-"))


@pytest.mark.all
def test_marks_stay_when_an_answer_arrives(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["overview"])
        page = tab.page
        waiting: list[Route] = []
        page.route("**/find?*", lambda route: waiting.append(route))
        page.keyboard.press("Control+k")
        page.keyboard.type("s")
        options = page.get_by_role("group", name="Actions").get_by_role("option")
        page.keyboard.press("ArrowUp")
        expect(options.last).to_have_attribute("aria-selected", "true")
        tab.wait_for(lambda: waiting, "the layers are asked for")
        waiting[0].continue_()
        expect(page.get_by_role("group", name="Layers")).to_be_visible()
        expect(options.last).to_have_attribute("aria-selected", "true")


def test_the_palette_can_be_closed_says_if_nothing_is_found_and_passes_axe_on_a_phone(
    visit: Open, paths: Paths
) -> None:
    with visit(theme="dark", size=(390, 844)) as tab:
        tab.goto(paths("bad")["flow"])
        page = tab.page
        page.get_by_role("button", name="Find actions, pages, layers, and runs").click()
        expect(page.get_by_role("group", name="Pages")).to_be_visible()
        expect(page.get_by_role("option", name=re.compile("Copy a link"))).to_have_count(1)
        assert tab.axe() == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.keyboard.type("nothing is called so")
        expect(page.locator("dialog.palette [role=status]")).to_contain_text("No results")
        tab.forgiven = ("ERR_FAILED",)
        page.route(re.compile(r"/api/v1/runs(/[^/]+/find)?\?"), lambda route: route.abort())
        page.keyboard.type(", or the server is away")
        expect(page.locator("dialog.palette [role=status]")).to_contain_text("reach the dashboard")
        page.unroute_all()
        expect(page.locator("dialog.palette [role=status]")).to_contain_text("No results")
        page.keyboard.press("Enter")
        page.keyboard.press("Control+k")
        expect(page.locator("dialog[open]")).to_have_count(0)
        page.keyboard.press("Control+k")
        expect(page.locator("dialog[open]")).to_have_count(1)
        page.keyboard.press("Escape")
        expect(page.locator("dialog[open]")).to_have_count(0)

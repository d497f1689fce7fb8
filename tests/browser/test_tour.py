"""The tour: five steps over the pages of a run, in the address, by keyboard."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from .conftest import Open, Paths

TITLES = (
    "The whole run is always here",
    "What is wrong, and since when",
    "The model as a picture",
    "Every layer over all steps",
    "Everything else",
)
TARGETS = ("timeline", "findings", "model", "flow", "palette")


def test_each_step_of_the_tour_points_at_its_subject(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["overview"] + "?step=45&tour=1")
        page = tab.page
        for place, title in enumerate(TITLES):
            card = page.get_by_role("dialog", name=title)
            expect(card).to_contain_text(f"{place + 1} of 5")
            expect(page.locator(f"#{TARGETS[place]}")).to_be_in_viewport()
            assert (
                page.locator(f"#{TARGETS[place]}").evaluate("(each) => getComputedStyle(each).outlineStyle") == "solid"
            )
            assert "step=45" in page.url
            page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.locator("#main")).to_be_focused()
        assert page.locator("#palette").evaluate("(each) => getComputedStyle(each).outlineStyle") == "none"
        assert "tour=" not in page.url


@pytest.mark.all
def test_the_tour_can_be_started_by_key_and_ended_on_a_phone(visit: Open, paths: Paths) -> None:
    with visit(theme="dark", size=(390, 844)) as tab:
        tab.goto(paths("ended")["flow"])
        page = tab.page
        expect(page.locator("#palette")).to_be_visible()
        page.keyboard.press("y")
        expect(page.get_by_role("dialog", name=TITLES[0])).to_be_visible()
        assert re.search(r"\?tour=1$", page.url)
        assert tab.axe() == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.locator("#main")).to_be_focused()


def test_the_tour_works_without_a_script(visit: Open, paths: Paths) -> None:
    with visit(java_script_enabled=False) as tab:
        tab.goto(paths("bad")["overview"] + "?step=45&tour=1")
        for title in TITLES[1:]:
            tab.page.locator("#tour").get_by_role("link", name="Next").click()
            expect(tab.page.locator("#tour h2")).to_have_text(title)
        tab.page.get_by_role("link", name="Done").click()
        expect(tab.page.locator("#tour")).to_have_count(0)
        assert "step=45" in tab.page.url

"""The table of modules of the Capture page: filter, folding, and order."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .conftest import Open, Paths


def row(page: Page, path: str) -> Any:
    """Return the row of a module."""
    return page.locator(f'#module-rows tr[data-path="{path}"]')


def names(page: Page) -> list[str]:
    """Return the paths of the rows, from the top."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('#module-rows tr[data-path]')].map(({ dataset }) => dataset.path)"
    )
    return found


def test_groups_open_and_close_by_key_and_keep_the_focus(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["capture"])
        table = page.get_by_role("table", name="Modules")
        expect(table).to_have_attribute("aria-rowcount", "42")
        link = page.get_by_role("link", name="Collapse features", exact=True)
        expect(link).to_have_attribute("aria-expanded", "true")
        link.press("Enter")
        expect(table).to_have_attribute("aria-rowcount", "39")
        opens = page.get_by_role("link", name="Expand features", exact=True)
        expect(opens).to_be_focused()
        expect(opens).to_have_attribute("aria-expanded", "false")
        assert "features.0" not in names(page)
        assert "folds=features" in page.url
        opens.press("Enter")
        expect(row(page, "features.0")).to_be_visible()
        assert tab.axe() == []


def test_typing_filters_and_an_invalid_expression_keeps_the_last_result(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["capture"])
        page.locator("#find").fill("linear1")
        expect(page.locator("#modules-said")).to_have_text("3 of 41 modules")
        assert page.url.endswith("f=linear1")
        page.locator("#find").fill("linear1 re:(")
        expect(page.locator("#find-problem")).to_contain_text("not a regular expression")
        expect(page.locator("#module-rows")).to_have_attribute("aria-rowcount", "10")  # three, six groups, the heading
        page.locator("#find").fill("nothing at all")
        expect(page.get_by_text("41 modules are hidden")).to_be_visible()
        page.get_by_role("link", name="Clear filter").click()
        expect(page.locator("#modules-said")).to_have_text("41 modules")


@pytest.mark.all
def test_the_type_is_selected_and_part_of_the_filter(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["capture"])
        page.get_by_label("Type of module").select_option("Conv2d")
        expect(page.locator("#find")).to_have_value("type:Conv2d")
        expect(page.locator("#modules-said")).to_have_text("2 of 41 modules")


def test_equal_blocks_are_folded_to_one_row(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["capture"])
        page.get_by_label("Group equal blocks").check()
        expect(row(page, "encoder.layers.*")).to_contain_text("(3)")
        assert "fold=1" in page.url
        tab.goto(page.url.split("/", 3)[3])
        expect(page.get_by_label("Group equal blocks")).to_be_checked()


@pytest.mark.all
def test_a_click_on_a_heading_sorts_and_changes_the_url(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["capture"])
        heading = page.get_by_role("columnheader", name="Values")
        for order, part in (("descending", "sort=-values"), ("ascending", "sort=values"), ("none", "")):
            heading.get_by_role("link").click()
            expect(heading).to_have_attribute("aria-sort", order)
            assert part in page.url
            assert order == "none" or names(page).index("attention") == (0 if order == "descending" else 40)
        assert "sort" not in page.url


@pytest.mark.all
def test_a_closed_group_shows_that_it_contains_uncaptured_modules(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["capture"])
        expect(row(page, "attention")).to_contain_text("yes")
        page.get_by_role("link", name="Collapse attention", exact=True).click()
        expect(row(page, "attention")).to_contain_text("uses its weight directly")
        page.get_by_role("link", name="Expand uncaptured").click()
        expect(row(page, "attention.out_proj")).to_be_visible()
        assert "features.0" not in names(page)

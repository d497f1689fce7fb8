"""The table of modules of the Capture page: keys, filter, folding, order, and pages of rows."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from .conftest import Open, Paths


def grid(page: Page) -> Any:
    return page.get_by_role("treegrid", name="Modules")


def row(page: Page, path: str) -> Any:
    """Return the row of a module."""
    return page.locator(f'#module-rows tr[data-path="{path}"]')


def names(page: Page) -> list[str]:
    """Return the paths of the rows, from the top."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('#module-rows tr[data-path]')].map(({ dataset }) => dataset.path)"
    )
    return found


def test_the_arrows_move_open_and_close(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["capture"])
        expect(grid(page)).to_have_attribute("aria-rowcount", "42")
        grid(page).focus()
        for key, path, count in [
            ("ArrowDown", "features", 42),
            ("ArrowRight", "features.0", 42),
            ("ArrowDown", "features.1", 42),
            ("ArrowLeft", "features", 42),
            ("ArrowLeft", "features", 39),
            ("ArrowDown", "attention", 39),
            ("End", "unused", 39),
            ("Home", "", 39),
        ]:
            page.keyboard.press(key)
            expect(grid(page)).to_have_attribute("aria-rowcount", str(count))
            expect(row(page, path)).to_have_attribute("aria-selected", "true")
            active = page.evaluate("document.querySelector('[role=treegrid]').getAttribute('aria-activedescendant')")
            assert row(page, path).get_attribute("id") == active
            expect(grid(page)).to_be_focused()
        assert "features.0" not in names(page)
        assert "folds=features" in page.url


def test_enter_opens_the_layer(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["capture"])
        grid(tab.page).focus()
        tab.page.keyboard.press("ArrowDown")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_url("**/model/layers?module=features")


def test_typing_filters_and_an_invalid_expression_keeps_the_last_result(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["capture"])
        page.locator("#find").fill("linear1")
        expect(page.locator("#modules-said")).to_have_text("3 of 41 modules")
        assert page.url.endswith("f=linear1")
        page.locator("#find").fill("linear1 re:(")
        expect(page.locator("#find-problem")).to_contain_text("not a regular expression")
        expect(grid(page)).to_have_attribute("aria-rowcount", "10")  # three, their six groups, the heading
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


def two_pages(route: Route) -> None:
    """Answer with one of two pages of a table, as the server does for thousands of modules."""
    name, rel, row = ("second", "prev", 0) if "row=2" in route.request.url else ("first", "next", 2)
    line = '<tr data-path="{}.{}" aria-level="1"><th><a href="">a layer</a></th></tr>'
    rows = "".join(line.format(name, place) for place in (0, 1))
    table = f'<table role="treegrid" tabindex="0" id="module-rows" aria-label="Modules"><tbody>{rows}</tbody></table>'
    link = f'<a rel="{rel}" href="" data-set="row={row}">More</a>'
    route.fulfill(body=f'<section data-part="modules">{table}{link}</section>', content_type="text/html")


def test_the_arrows_reach_the_next_rows_of_a_long_table(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        page.route("**/capture?*part=modules*", two_pages)
        tab.goto(paths("bad")["capture"])
        page.get_by_role("link", name="Collapse all").click()
        expect(row(page, "first.1")).to_be_visible()
        grid(page).focus()
        for key, path in (("End", "first.1"), ("ArrowDown", "second.0"), ("ArrowUp", "first.1")):
            page.keyboard.press(key)
            expect(row(page, path)).to_have_attribute("aria-selected", "true")
            expect(grid(page)).to_be_focused()

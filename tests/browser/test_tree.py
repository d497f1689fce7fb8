"""The tree of modules: keys, filter, folding, order, and a small number of rows for any number of modules."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from .conftest import Open, Paths


def grid(page: Page) -> Any:
    return page.get_by_role("treegrid", name="Modules")


def active(page: Page) -> str:
    """Return the path of the focused row."""
    found: str = page.evaluate(
        "document.getElementById(document.querySelector('[role=treegrid]').getAttribute('aria-activedescendant'))"
        ".querySelector('.tree-cell').title"
    )
    return found


def names(page: Page) -> list[str]:
    """Return the paths of the rows in the document, from the top."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('.tree-body .tree-row:not([hidden])')]"
        ".sort((one, two) => one.ariaRowIndex - two.ariaRowIndex).map((row) => row.firstChild.title)"
    )
    return found


def test_the_arrows_move_open_and_close(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["hooks"])
        expect(grid(page)).to_have_attribute("aria-rowcount", "42")
        grid(page).focus()
        for key, path in [
            ("ArrowDown", "features"),
            ("ArrowRight", "features.0"),
            ("ArrowDown", "features.1"),
            ("ArrowLeft", "features"),
            ("ArrowLeft", "features"),
            ("ArrowDown", "attention"),
            ("End", "unused"),
            ("Home", "(root)"),
        ]:
            page.keyboard.press(key)
            page.wait_for_function(
                "(path) => document.getElementById(document.querySelector('[role=treegrid]')"
                ".getAttribute('aria-activedescendant'))?.firstChild.title === path",
                arg=path,
            )
            assert active(page) == path
        assert "features.0" not in names(page)
        expect(grid(page)).to_have_attribute("aria-rowcount", "39")


def test_enter_opens_the_layer(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["hooks"])
        expect(grid(tab.page)).to_have_attribute("aria-rowcount", "42")
        grid(tab.page).focus()
        tab.page.keyboard.press("ArrowDown")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_url("**/layer?module=features")


def test_typing_filters_and_an_invalid_expression_keeps_the_last_result(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["hooks"])
        page.locator("#find").fill("linear1")
        expect(page.locator(".tree-said")).to_have_text("3 of 41 modules")
        assert page.url.endswith("f=linear1")
        page.locator("#find").fill("linear1 re:(")
        expect(page.locator("#find-problem")).to_contain_text("not a regular expression")
        expect(grid(page)).to_have_attribute("aria-rowcount", "10")  # three, their six groups, the heading
        page.locator("#find").fill("nothing at all")
        expect(page.get_by_text("41 modules are hidden")).to_be_visible()
        page.get_by_role("button", name="Clear filter").click()
        expect(page.locator(".tree-said")).to_have_text("41 modules")


@pytest.mark.all
def test_the_type_is_selected_and_part_of_the_filter(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["hooks"])
        page.get_by_label("Type of module").select_option("Conv2d")
        expect(page.locator("#find")).to_have_value("type:Conv2d")
        expect(page.locator(".tree-said")).to_have_text("2 of 41 modules")


def test_equal_blocks_are_folded_to_one_row(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["hooks"])
        page.get_by_label("Group equal blocks").check()
        expect(page.get_by_role("row").filter(has=page.locator('[title="encoder.layers.*"]'))).to_contain_text("(3)")
        assert "fold=1" in page.url
        tab.goto(page.url.split("/", 3)[3])
        expect(page.get_by_label("Group equal blocks")).to_be_checked()


@pytest.mark.all
def test_a_click_on_a_heading_sorts_and_changes_the_url(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["hooks"])
        page.get_by_role("button", name="Values").click()
        expect(page.get_by_role("columnheader", name="Values")).to_have_attribute("aria-sort", "descending")
        assert "sort=-values" in page.url
        page.wait_for_function("() => document.querySelector('.tree-body .tree-row').firstChild.title === 'attention'")
        page.get_by_role("button", name="Values").click()
        expect(page.get_by_role("columnheader", name="Values")).to_have_attribute("aria-sort", "ascending")
        page.get_by_role("button", name="Values").click()
        assert "sort" not in page.url


@pytest.mark.all
def test_a_closed_group_shows_that_it_contains_uncaptured_modules(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["hooks"])
        row = page.get_by_role("row").filter(has=page.locator('.tree-cell[title="attention"]'))
        expect(row).to_contain_text("yes")
        row.locator(".tree-twist").click()
        expect(row).to_contain_text("uses its weight directly")
        page.get_by_role("button", name="Expand uncaptured").click()
        page.wait_for_function("() => document.querySelector('.tree-row [title=\"attention.out_proj\"]')")
        assert "features.0" not in names(page)


@pytest.mark.all
def test_a_click_selects_the_visible_row(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["hooks"])
        twist = page.get_by_role("row").filter(has=page.locator('.tree-cell[title="attention"]')).locator(".tree-twist")
        expect(twist).to_have_text("\u25be")
        shown = names(page)
        behind = shown[shown.index("attention.out_proj") + 1]
        twist.evaluate(  # both clicks come before the next frame
            """(twist, path) => {
              const cells = [...document.querySelectorAll(".tree-body .tree-cell")];
              const behind = cells.find(({ title }) => title === path);
              twist.click();
              behind.click();
            }""",
            behind,
        )
        page.wait_for_url(lambda url: parse_qs(urlsplit(url).query).get("module") == [behind])


def test_ten_thousand_modules_are_few_rows_and_all_are_reachable(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("bad")["hooks"])
        expect(grid(page)).to_have_attribute("aria-rowcount", "42")
        page.evaluate(
            """async () => {
              const get = (name) => import(new URL(`${document.body.dataset.static}/js/${name}.js`, document.baseURI));
              const files = ["hooks/tree", "state", "schedule"];
              const [{ Tree }, { State }, { Schedule }] = await Promise.all(files.map(get));
              const state = new State({ f: "" });
              const page = { state, schedule: new Schedule(), cursor: { move() {}, pin() {} }, events: { on() {} } };
              const columns = [{ key: "type", title: "Type", width: 90, value: ({ type }) => type }];
              const tree = new Tree(page, document.getElementById("tree"), { title: "Modules", columns });
              tree.show(Array.from({ length: 10000 }, (_, at) => ({ path: `layers.${at}`, type: "Linear" })));
            }"""
        )
        expect(grid(page)).to_have_attribute("aria-rowcount", "10001")
        assert page.locator(".tree-body .tree-row").count() < 60
        grid(page).focus()
        page.keyboard.press("End")
        expect(page.locator('.tree-row [title="layers.9999"]')).to_be_visible()
        assert page.locator(".tree-body .tree-row").count() < 60

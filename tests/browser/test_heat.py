"""The heatmap module by itself: its picture of thousands of layers, and its response to input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.waiting import wait_for

from .browsing import choose
from .conftest import Open

MAKE = (Path(__file__).parent / "heat.js").read_text("utf-8").partition("*/")[2].strip()
SMALL = {"rows": 40, "steps": 100, "nanRow": 7, "nanStep": 50}


def make(page: Page, **made: Any) -> int:
    """Make a heatmap on the page, and return how many of its pixels have the color of NaN."""
    found: int = page.evaluate(MAKE, made)
    return found


def becomes(page: Page, expression: str) -> None:
    """Wait for a condition on the page. Playwright's own way needs `eval`, which the page forbids."""
    wait_for(lambda: page.evaluate(expression), expression)


def corner(page: Page) -> tuple[float, float]:
    """Return the position of the picture in the window."""
    box = page.locator("#probe .plot").bounding_box()
    assert box is not None
    return box["x"], box["y"]


@pytest.mark.parametrize(("ratio", "row"), [(1, 0), (1, 2345), (2, 4999), (1.25, 2345)])
def test_one_nan_in_five_thousand_layers_is_visible_and_as_large_as_a_css_pixel(
    visit: Open, ratio: float, row: int
) -> None:
    with visit(device_scale_factor=ratio) as tab:
        tab.goto("help")
        seen = make(tab.page, rows=5000, steps=300, nanRow=row, nanStep=250)
        assert seen >= int(ratio) ** 2


def test_a_nan_stays_visible_while_the_picture_scrolls_until_its_step_has_left(visit: Open) -> None:
    with visit() as tab:
        tab.goto("help")
        assert make(tab.page, rows=3000, steps=60, nanRow=1500, nanStep=58) >= 1
        for _ in range(40):
            tab.page.evaluate("probe.add()")
        assert tab.page.evaluate("probe.nanPixels().length") >= 1
        for _ in range(22):
            tab.page.evaluate("probe.add()")
        assert tab.page.evaluate("probe.nanPixels().length") == 0


def test_pointing_at_a_pixel_that_many_layers_share_names_the_worst_of_them(visit: Open) -> None:
    with visit() as tab:
        tab.goto("help")
        make(tab.page, rows=5000, steps=300, nanRow=2345, nanStep=250)
        x, y = tab.page.evaluate("probe.nanPixels()[0]")
        left, top = corner(tab.page)
        tab.page.mouse.move(left + x + 0.4, top + y + 0.4)  # Firefox rounds to whole pixels
        tip = tab.page.locator(".tip:visible")
        words = tip.inner_text()
        assert "layers.146.m9 (Linear)" in words
        assert "step 250 \u00b7 norm NaN" in words
        assert "the worst of" in words
        assert tab.page.evaluate("probe.page.cursor.point") == {"module": "layers.146.m9", "tap": 2345, "step": 250}
        tab.page.mouse.move(5, 5)
        assert tip.count() == 0
        assert tab.page.evaluate("probe.page.cursor.point.module") is None


def test_a_click_selects_and_a_drag_zooms(visit: Open) -> None:
    with visit() as tab:
        tab.goto("help")
        make(tab.page, **SMALL)
        left, top = corner(tab.page)
        box = tab.page.evaluate("probe.heat.screen.scene.layout.plot")

        def at(share: float) -> float:
            return float(left + box["x"] + box["w"] * share)

        tab.page.mouse.click(at(0.505), top + box["y"] + box["h"] * 7.5 / 40)
        assert tab.page.evaluate("probe.picks") == [["layers.0.m7", 50]]
        tab.page.mouse.move(at(0.205), top + 100)
        tab.page.mouse.down()
        tab.page.mouse.move(at(0.4), top + 110)
        tab.page.mouse.move(at(0.605), top + 120)
        tab.page.mouse.up()
        assert tab.page.evaluate("probe.zooms") == [[20, 60]]
        assert len(tab.page.evaluate("probe.picks")) == 1


def test_the_wheel_scrolls_the_page_and_zooms_with_control(visit: Open) -> None:
    with visit() as tab:
        tab.goto("help")
        make(tab.page, **SMALL)
        left, top = corner(tab.page)
        tab.page.mouse.move(left + 500, top + 300)
        tab.page.mouse.wheel(0, 60)
        becomes(tab.page, "scrollY > 0")
        assert tab.page.evaluate("probe.zooms") == []
        tab.page.keyboard.down("Control")
        tab.page.mouse.wheel(0, -240)
        tab.page.keyboard.up("Control")
        becomes(tab.page, "probe.zooms.length > 0")
        first, last = tab.page.evaluate("probe.zooms[0]")
        assert 0 < first < last <= 99
        assert last - first < 99


def test_the_keyboard_reaches_every_layer_and_step_and_reads_them_out(visit: Open) -> None:
    with visit() as tab:
        tab.goto("help")
        make(tab.page, **SMALL)
        tab.page.locator("#probe [role=application]").focus()
        for key in ("ArrowDown", "ArrowDown", "Home", "ArrowRight", "PageDown"):
            tab.page.keyboard.press(key)
        becomes(tab.page, "probe.said.length > 0")
        assert tab.page.evaluate("probe.said.at(-1)").startswith("layers.0.m11, step 1, ")
        tab.page.keyboard.press("Enter")
        assert tab.page.evaluate("probe.picks") == [["layers.0.m11", 1]]
        tab.page.keyboard.press("+")
        assert len(tab.page.evaluate("probe.zooms")) == 1


def test_readable_rows_scroll_and_the_keyboard_scrolls_to_what_it_reaches(visit: Open) -> None:
    with visit() as tab:
        tab.goto("help")
        make(tab.page, rows=2000, steps=50, nanRow=1990, nanStep=25, fit="read")
        assert tab.page.evaluate("probe.heat.screen.scene.layout.shown.length") < 40
        assert tab.page.evaluate("probe.nanPixels().length") == 0
        tab.page.evaluate("probe.heat.screen.pad.scrollTop = 1e9")
        becomes(tab.page, "probe.nanPixels().length > 100")
        tab.page.evaluate("probe.heat.screen.pad.scrollTop = 0")
        becomes(tab.page, "probe.nanPixels().length === 0")
        tab.page.locator("#probe [role=application]").focus()
        tab.page.keyboard.press("ArrowDown")
        for _ in range(6):
            tab.page.keyboard.press("PageDown")
        becomes(tab.page, "probe.heat.screen.scene.layout.shown.includes(60)")


def test_pointing_at_a_layer_in_another_chart_moves_the_cursor_here(visit: Open) -> None:
    with visit() as tab:
        tab.goto("help")
        make(tab.page, **SMALL)
        drawn = """() => { const { over } = probe.heat.screen;
            const { data } = over.getContext("2d").getImageData(0, 0, over.width, over.height);
            return data.some(Boolean); }"""
        assert not tab.page.evaluate(drawn)
        tab.page.evaluate("probe.page.cursor.move({ module: 'layers.1.m3', step: 20 }, {})")
        becomes(tab.page, f"({drawn})()")
        tab.page.evaluate("probe.page.cursor.clear()")
        becomes(tab.page, f"!({drawn})()")


def test_the_export_has_the_title_the_names_and_the_legend_and_the_table_every_layer(visit: Open) -> None:
    with visit() as tab:
        tab.goto("help")
        make(tab.page, **SMALL)
        svg = tab.page.evaluate("probe.heat.card.options.svg()")
        for words in (
            "A probe",
            ">layers.1<",
            ">NaN<",
            ">Inf<",
            "blank: not captured<",
            "norm of activation gradient",
            "data:image/png",
        ):
            assert words in svg, words
        reads = "(svg) => new DOMParser().parseFromString(svg, 'image/svg+xml').querySelector('parsererror') === null"
        assert tab.page.evaluate(reads, svg)
        size = tab.page.evaluate("probe.heat.card.options.png().then((blob) => [blob.type, blob.size])")
        assert size[0] == "image/png"
        assert size[1] > 5000
        choose(tab.page, "Show as table", "A probe")
        rows = tab.page.locator("#probe table tbody tr")
        assert rows.count() == 40
        assert rows.nth(7).inner_text().split("\t")[0] == "layers.0.m7"
        assert rows.nth(7).inner_text().split("\t")[-1] == "50"


def test_the_picture_follows_the_theme_and_the_color_map(visit: Open) -> None:
    with visit() as tab:
        tab.goto("help")
        make(tab.page, **SMALL)
        before = tab.page.evaluate("probe.heat.screen.scene.painter.palette.nan")
        tab.page.emulate_media(color_scheme="dark")
        becomes(tab.page, f"probe.heat.screen.scene.painter.palette.nan !== {before}")
        assert tab.page.evaluate("probe.nanPixels().length") > 0


def test_a_row_zoom_ends_when_a_filter_hides_all_its_rows(visit: Open) -> None:
    with visit() as tab:
        tab.goto("help")
        make(tab.page, **SMALL)
        reset = tab.page.locator("#probe").get_by_role("button", name="Reset zoom")
        tab.page.evaluate("probe.heat.zoomRows([3, 4, 5])")
        tab.page.evaluate("probe.heat.setOrder([4, 5, 6])")
        assert tab.page.evaluate("[...probe.heat.visible]") == [4, 5]
        expect(reset).to_be_visible()
        tab.page.evaluate("probe.heat.setOrder([10, 11])")
        assert tab.page.evaluate("[...probe.heat.visible]") == [10, 11]
        expect(reset).to_be_hidden()

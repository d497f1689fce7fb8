"""The Ranks page and the picker of ranks in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.api_world import STEPS, TAPS, fill_ranks, make_frame
from tests.serving import Served, served

from .browsing import visiting

WORLD = 8
GAP_PX = """(it) => {
    const before = document.createRange();
    before.selectNode(it.previousSibling);
    return it.getBoundingClientRect().left - before.getBoundingClientRect().right;
}"""


@pytest.fixture
def server() -> Iterator[Served]:
    with served(lost_after_s=10_000.0) as found:
        fill_ranks(found.runs, world=WORLD, name="a_training_with_a_very_long_name_" * 4 + " rank 0")
        yield found


def test_a_selected_value_is_shown_and_the_page_follows_the_ranks(browser: Browser, server: Served) -> None:
    with visiting(browser, server.url) as tab:
        tab.goto("/runs/ranks-4f2a/performance/ranks")
        expect(tab.page.locator("#map-heading")).to_have_text("Seconds per step")
        expect(tab.page.locator("#ranks tbody tr")).to_have_count(WORLD)
        tab.page.locator("[name=value]").fill("layers.0 output")
        tab.page.locator("[name=value]").press("Enter")
        expect(tab.page.locator("#map-heading")).to_have_text("Rms of layers.0 output")
        expect(tab.page.locator("#ranks thead")).to_contain_text("rms of layers.0 output")
        expect(tab.page).to_have_url(re.compile("value=layers.0"))
        for rank in range(WORLD):
            run = server.runs.get(f"4f2a-{rank}")
            assert run is not None
            run.take_record(make_frame(STEPS, [1.0] * len(TAPS), elapsed_s=0.5))
        expect(tab.page.locator("[data-part=summary]")).to_contain_text(f"{STEPS + 1}")
        expect(tab.page.locator("#rank-7 td.number").first).to_have_text(f"{STEPS}")
        expect(tab.page.locator("#status-words")).to_contain_text(f"step {STEPS}")


def test_the_map_is_read_by_pointer_and_keyboard(browser: Browser, server: Served) -> None:
    with visiting(browser, server.url) as tab:
        tab.goto("/runs/ranks-4f2a/performance/ranks?steps=5-9")
        pad = tab.page.get_by_role("application", name=re.compile("Arrow keys move between ranks and steps"))
        expect(tab.page.locator("#rank-map .plot")).to_have_attribute("style", re.compile("--heat-height"))
        tip = tab.page.locator(".tip")
        pad.focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowLeft"):  # the first key starts at rank 0, step 9
            pad.press(key)
        expect(tip).to_have_text(re.compile(r"rank 1\s*step 8 .* 0\.5"))
        pad.press("Enter")
        expect(tab.page).to_have_url(re.compile("/runs/4f2a-1\\?.*step=8"))


def test_a_value_that_is_not_finite_is_not_called_an_infinity(browser: Browser, server: Served) -> None:
    with visiting(browser, server.url) as tab:
        tab.goto("/runs/ranks-4f2a/performance/ranks?steps=5-7&value=layers.0%20output")
        expect(tab.page.locator("#rank-map .plot")).to_have_attribute("style", re.compile("--heat-height"))
        tab.page.get_by_role("application").press("ArrowDown")
        expect(tab.page.locator(".tip")).to_have_text(re.compile(r"rank 0\s*step 7 .* NaN or Inf"))


def test_the_spread_of_the_layers_is_sorted_filtered_and_leads_to_the_map(browser: Browser, server: Served) -> None:
    with visiting(browser, server.url) as tab:
        tab.goto("/runs/ranks-4f2a/performance/ranks?step=7")
        rows = tab.page.locator("#layer-spreads tbody tr")
        expect(tab.page.locator("[data-part=layers]")).to_contain_text("Step 7")
        tab.page.get_by_role("link", name="Layer", exact=True).and_(tab.page.locator("thead a")).click()
        expect(tab.page.locator("#layer-spreads th[aria-sort=ascending]")).to_have_text("Layer")
        assert [text.split("\n")[0].strip() for text in rows.locator("th").all_inner_texts()][:2] == [
            "Net",
            "layers.0",
        ]
        tab.page.locator("#find").fill("layers.0")
        expect(rows).to_have_count(1)
        rows.locator("th a").click()
        expect(tab.page.locator("#drawer h2")).to_have_text("layers.0")
        expect(tab.page.locator("#drawer-numbers")).to_have_text("Values in step 7")
        tab.page.keyboard.press("Escape")
        expect(rows.locator("th a")).to_be_focused()
        rows.get_by_role("link", name="By rank").click()
        expect(tab.page.locator("#map-heading")).to_have_text("Rms of layers.0 output")
        tab.goto("/runs/ranks-4f2a/model/layers?module=layers.0&step=7")
        expect(tab.page.locator("#rank-spreads tbody tr")).to_have_count(1)
        tab.page.locator("[name=spread]").select_option("mean")
        expect(tab.page).to_have_url(re.compile("spread=mean"))


def test_the_picker_leads_to_one_rank_on_the_same_page_and_back(browser: Browser, server: Served) -> None:
    with visiting(browser, server.url) as tab:
        tab.goto("/runs/ranks-4f2a/flow/histograms?steps=5-9")
        tab.page.locator(".pick-rank summary").click()
        tab.page.get_by_role("navigation", name="Choose a rank").get_by_role("link", name="3", exact=True).click()
        expect(tab.page).to_have_url(re.compile(r"/runs/4f2a-3/flow/histograms\?steps=5-9"))
        expect(tab.page.locator(".pick-rank summary")).to_have_text("rank 3")
        expect(tab.page.locator("#status-words")).to_contain_text("paused · steps 5 to 9")
        expect(tab.page.locator("#banner")).to_be_hidden()
        tab.page.locator(".pick-rank summary").click()
        tab.page.get_by_role("link", name="All ranks").click()
        expect(tab.page).to_have_url(re.compile("/runs/ranks-4f2a/flow/histograms"))


@pytest.mark.rota
@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (1440, "light")])
def test_the_page_fits_and_passes_axe(browser: Browser, server: Served, width: int, theme: str) -> None:
    with visiting(browser, server.url, theme=theme, size=(width, 900)) as tab:
        tab.goto("/runs/ranks-4f2a/performance/ranks?value=layers.0%20output")
        tab.page.locator(".pick-rank summary").click()
        expect(tab.page.get_by_role("link", name="All ranks")).to_be_visible()
        status = tab.page.locator("#status-words")
        assert status.evaluate("(it) => it.scrollWidth - it.clientWidth") == 0, "the run's name is cut, not the status"
        assert tab.page.locator(".side .badge").evaluate(GAP_PX) > 3, "the number of events is separate from the word"
        tab.page.locator("#map-heading").evaluate("(it) => { it.textContent += '_a_long_name'.repeat(20) }")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.axe() == []

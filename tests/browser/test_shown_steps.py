"""The steps that a page shows: all of a finished run, the same on every page, and the held step in all its parts."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from hookcore.records import wire
from tests.build import make_info
from tests.serving import (
    BATCH,
    make_frame,
    make_taps,
)

from .browsing import choose, visiting
from .conftest import Open
from .site import running

RUN = "runs/long-run"
STEPS = 700


@pytest.fixture(scope="module")
def visit(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Return a function that opens tabs of a site with a finished run, which has more steps than a live page shows.

    At each step, its loss is 10,000 minus the step, and its means are the step.
    """
    items: list[Any] = [
        wire.frame_item(step, make_frame(step, scalars={"loss": 10_000.0 - step})) for step in range(STEPS)
    ]
    items.append(wire.EndItem(number=STEPS, step=STEPS - 1))
    batch = wire.Batch(run=make_info("long-run"), taps=make_taps(2), items=tuple(items))
    with running(tmp_path_factory.mktemp("steps")) as site:
        asked = urllib.request.Request(f"{site.url}/api/v1/ingest", wire.encode(batch), BATCH)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert answer.status == 200
        yield partial(visiting, browser, site.url)


def test_a_finished_run_opens_with_all_steps(visit: Open) -> None:
    with visit() as tab:
        tab.goto(RUN)
        expect(tab.page.locator("#figures .glance")).to_contain_text("Ended: steps 0 to 699")
        expect(tab.page.locator("#scalars header")).to_contain_text("steps 0 to 699")
        expect(tab.page.locator("#chart .main-svg").first).to_be_visible()
        choose(tab.page.locator("#chart"), "Show as table")
        expect(tab.page.locator("#chart .card-table tbody tr").last).to_contain_text("10,000")
        assert "steps=" not in tab.page.url


def test_the_links_of_the_sidebar_keep_the_range_and_the_step(visit: Open) -> None:
    with visit() as tab:
        tab.goto(f"{RUN}?steps=100-200&step=150")
        link = tab.page.locator('nav.side a[data-place="flow"]')
        assert "steps=100-200&step=150" in str(link.get_attribute("href"))
        tab.page.locator("#main").focus()
        tab.page.keyboard.press("ArrowRight")
        expect(link).to_have_attribute("href", re.compile(r"steps=100-200&step=151$"))
        link.click()
        tab.page.wait_for_url(re.compile(r"/flow\?.*step=151"))
        expect(tab.page.locator("#status-words")).to_have_text("held at step 151 · ended")


@pytest.mark.all
def test_links_keep_the_steps_without_a_script(visit: Open) -> None:
    with visit(java_script_enabled=False) as tab:
        tab.goto(f"{RUN}/hooks?step=150")
        link = tab.page.locator('nav.side a[data-place="overview"]')
        assert str(link.get_attribute("href")).endswith("long-run?step=150")


def test_a_held_page_shows_one_step_in_cards_scalars_table_and_status(visit: Open) -> None:
    with visit() as tab:
        tab.goto(f"{RUN}?step=120")
        expect(tab.page.locator("#status-words")).to_have_text("held at step 120 · ended")
        expect(tab.page.locator("#figures .glance")).to_contain_text("Values are from step 120.")
        expect(tab.page.locator("#chart .main-svg").first).to_be_visible()  # its line continues to the last step
        legend = tab.page.locator("#chart .plot-legend")
        expect(legend).to_have_text(
            re.compile(r"^step 120\s*loss\s*9,880$")
        )  # of this step, although each point has several
        expect(tab.page.locator("#scalars [id=scalar-loss] data")).to_have_text("9,880")
        expect(tab.page.locator("#scalar-loss data")).to_have_text("9,880")
        tab.page.locator("#main").focus()
        tab.page.keyboard.press("Shift+ArrowLeft")
        expect(tab.page.locator("#scalars [id=scalar-loss] data")).to_have_text("9,890")
        expect(legend).to_have_text(re.compile(r"^step 110\s*loss\s*9,890$"))
        tab.goto(f"{RUN}/model/layers?step=120")
        step = tab.page.locator("#values tbody tr").first.locator("td").nth(2)
        expect(step).to_have_text("120")
        tab.page.locator("#main").focus()
        tab.page.keyboard.press("Shift+ArrowLeft")
        # Parts out of view are updated when they become visible.
        tab.page.locator("#values h2").scroll_into_view_if_needed()
        expect(step).to_have_text("110")

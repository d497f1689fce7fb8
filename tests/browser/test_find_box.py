"""The find box finds the same before and after a page's script runs. A verdict on Compare says what it compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.api_world import fill, open_run
from tests.serving import Served, served

from .browsing import visiting


@pytest.fixture(scope="module")
def world() -> Iterator[Served]:
    """Return two runs without a trainer. The second one logged and captured values twice as large."""
    with served(lost_after_s=10_000.0) as found:
        fill(open_run(found.runs, "one", started_s=1.0))
        fill(open_run(found.runs, "two", started_s=2.0), scale=2.0)
        yield found


@pytest.mark.parametrize("text", ["is:nan", "is:captured", "is:uncaptured", "is:frozen", "is:trainable", "again.0"])
def test_gradient_flow_counts_the_same_layers_with_and_without_its_script(
    browser: Browser, world: Served, text: str
) -> None:
    found = []
    for scripted in (False, True):
        with visiting(browser, world.url, java_script_enabled=scripted) as tab:
            tab.goto(f"runs/one/flow?f={text}")
            count = tab.page.locator("#flow-count")
            if scripted:
                expect(count).to_contain_text("layers")
            found.append(count.inner_text().split(" ")[0])
    assert found[0] == found[1]


def test_the_list_of_layers_follows_the_typed_text(browser: Browser, world: Served) -> None:
    with visiting(browser, world.url) as tab:
        tab.goto("runs/one/layer")
        expect(tab.page.locator("#modules tbody tr")).to_have_count(4)
        tab.page.locator("main input[name=f]").fill("is:nan")
        expect(tab.page.locator("#modules tbody tr")).to_have_count(2)
        expect(tab.page.locator("#found")).to_have_text("2 of 4 modules")


def test_a_comparison_says_where_runs_differ_and_how_much_was_compared(browser: Browser, world: Served) -> None:
    with visiting(browser, world.url) as tab:
        tab.goto("compare")
        verdict = tab.page.locator(".verdict")
        expect(verdict).to_contain_text("The runs first differ at step 0")
        expect(verdict).to_contain_text("3 of 3 layers differ in the 20 steps that both runs captured.")
        expect(verdict).to_contain_text("loss, lr are the same in 20 steps that both runs logged.")
        expect(tab.page.locator("#differences canvas").first).to_be_visible()


def test_an_empty_comparison_is_never_called_equal(browser: Browser, world: Served) -> None:
    with visiting(browser, world.url, java_script_enabled=False) as tab:
        tab.goto("compare?a=one&b=two&kind=update")
        expect(tab.page.locator(".verdict")).to_contain_text("Nothing was compared")
        expect(tab.page.locator(".verdict")).not_to_contain_text("No difference")

"""The find box finds the same before and after a page's script runs. A verdict on Compare says what it compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Error, Route, expect

from hookcore.records import Tap
from tests.api_world import fill, make_frame, open_run
from tests.serving import Served, served

from .browsing import Visit, visiting

FLOW = ("output", "output_grad")


@pytest.fixture(scope="module")
def world() -> Iterator[Served]:
    """Return two runs without a trainer. The second one logged and captured values twice as large."""
    with served(lost_after_s=10_000.0) as found:
        fill(open_run(found.runs, "one", started_s=1.0))
        fill(open_run(found.runs, "two", started_s=2.0), scale=2.0)
        yield found


TEXTS = (
    "is:nan",
    "is:captured",
    "is:uncaptured",
    "is:frozen",
    "is:trainable",
    "again.0",
    "type:Linear !is:nan",
    "re:(",
)


def counted(tab: Visit) -> str:
    """Return the number of layers that Gradient flow shows."""
    return tab.page.locator("#flow-count").inner_text().split(" ")[0]


@pytest.mark.rota
@pytest.mark.parametrize("text", TEXTS)
def test_the_first_paint_the_live_page_and_rest_show_the_same_layers(
    browser: Browser, world: Served, text: str
) -> None:
    with visiting(browser, world.url, java_script_enabled=False) as tab:
        tab.goto(f"runs/one/flow?f={quote(text)}")
        first = counted(tab)
    with visiting(browser, world.url) as tab:
        with tab.page.expect_response(lambda answer: "/find?" in answer.url):
            tab.goto(f"runs/one/flow?f={quote(text)}")
        expect(tab.page.locator("#flow-count")).to_have_text(re.compile(rf"{first} (of 4 )?layers"))
    run = world.runs.find("one")
    assert run is not None
    fits = run.store.matcher(None if text == "re:(" else text)
    layers = {(tap.module, tap.index, tap.call, tap.phase) for tap in run.store.taps().taps if tap.kind in FLOW}
    assert first == str(sum(fits(layer[0]) for layer in layers))


def test_typing_filters_the_live_page_and_explains_what_it_cannot_read(browser: Browser, world: Served) -> None:
    with visiting(browser, world.url) as tab:
        tab.goto("runs/one/flow")
        expect(tab.page.locator("#flow-count")).to_have_text("4 layers")
        find, problem = tab.page.locator("#find"), tab.page.locator("#find-problem")
        find.fill("type:relu")
        expect(tab.page.locator("#flow-count")).to_have_text("2 of 4 layers")
        find.fill("type:relu re:(")
        expect(problem).to_contain_text("'re:(' is not a regular expression: missing )")
        expect(tab.page.locator("#flow-count")).to_have_text("2 of 4 layers")
        find.fill("")
        expect(problem).to_be_hidden()
        expect(tab.page.locator("#flow-count")).to_have_text("4 layers")


def test_a_late_answer_does_not_replace_a_newer_one(browser: Browser, world: Served) -> None:
    with visiting(browser, world.url) as tab:
        held: list[Route] = []
        tab.page.route("**/find?f=slow*", lambda route: held.append(route))
        tab.goto("runs/one/flow?f=slow")
        expect(tab.page.locator("#find-problem")).to_have_text("Searching \u2026")
        tab.page.locator("#find").fill("type:relu")
        expect(tab.page.locator("#flow-count")).to_have_text("2 of 4 layers")
        with suppress(Error):  # the page has aborted it
            held[0].fulfill(json={"problem": "", "fits": True, "paths": []})
        expect(tab.page.locator("#find-problem")).to_be_hidden()
        expect(tab.page.locator("#flow-count")).to_have_text("2 of 4 layers")


def test_a_lost_connection_keeps_the_result_and_says_so_until_it_is_back(browser: Browser, world: Served) -> None:
    with visiting(browser, world.url) as tab:
        tab.forgiven = ("net::ERR",)
        tab.goto("runs/one/flow?f=type:relu")
        expect(tab.page.locator("#flow-count")).to_have_text("2 of 4 layers")
        tab.page.route("**/find?*", lambda route: route.abort())
        tab.page.locator("#find").fill("is:root")
        expect(tab.page.locator("#find-problem")).to_contain_text("Can\u2019t reach the dashboard")
        expect(tab.page.locator("#flow-count")).to_have_text("2 of 4 layers")
        tab.page.unroute("**/find?*")
        expect(tab.page.locator("#flow-count")).to_have_text("1 of 4 layers")
        expect(tab.page.locator("#find-problem")).to_be_hidden()


def test_layers_added_later_are_found(browser: Browser, world: Served) -> None:
    run = open_run(world.runs, "growing")
    run.store.append(make_frame(0, [1.0, 1.0], new_taps=(Tap("old.a", "output"), Tap("old.b", "output"))))
    with visiting(browser, world.url) as tab:
        tab.goto("runs/growing/flow?f=.a")
        expect(tab.page.locator("#flow-count")).to_have_text("1 of 2 layers")
        run.store.append(make_frame(1, [1.0, 1.0, 1.0], new_taps=(Tap("new.a", "output"),)))
        run.changes.tell()
        expect(tab.page.locator("#flow-count")).to_have_text("2 of 3 layers")


def test_the_list_of_layers_follows_the_typed_text(browser: Browser, world: Served) -> None:
    with visiting(browser, world.url) as tab:
        tab.goto("runs/one/model/layers")
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

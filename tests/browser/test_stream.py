"""A page's connection: a server that dies and returns, a hidden tab, and several tabs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.waiting import wait_for

from .browsing import LOST, Visit, visiting
from .conftest import Open, Paths
from .site import Site

# The data of a heatmap on the page, without drawing it.
FOLLOW = """async () => {
  const at = (name) => import(new URL(`${document.body.dataset.static}/js/${name}`, document.baseURI).href);
  const [{ Stream }, { Columns }] = await Promise.all([at("live/stream.js"), at("canvas/columns.js")]);
  const stream = new Stream();
  const seen = { columns: null, frames: 0, snapshots: 0, stream };
  stream.subscribe({ view: "heatmap", kind: "output_grad", stat: "norm", from: -4000, columns: 4000, hz: 20 }, {
    rows: ({ rows: { length } }) => {
      if (length && seen.columns?.rows !== length) seen.columns = new Columns(length, 4000);
    },
    frame: (frame) => { seen.frames += 1; seen.snapshots += frame.kind === "snapshot"; seen.columns?.take(frame); },
  });
  window.seen = seen;
}"""
STEPS = """() => Array.from({ length: seen.columns?.length ?? 0 },
  (_, i) => [seen.columns.first(i), seen.columns.last(i)])"""
HIDE = """(hidden) => { Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange")); }"""


def becomes(page: Page, expression: str) -> None:
    """Wait for a condition on the page."""
    wait_for(lambda: page.evaluate(expression), expression)


def newest(page: Page) -> int:
    """Return the page's newest step."""
    found: int = page.evaluate("() => (seen.columns?.length ? seen.columns.last(seen.columns.length - 1) : -1)")
    return found


def wait_for_step(page: Page, step: int) -> None:
    """Wait until the page has a step."""
    becomes(page, f"seen.columns?.length && seen.columns.last(seen.columns.length - 1) >= {step}")


def holes(page: Page) -> list[Any]:
    """Return neighboring columns between which a step is missing or repeated."""
    spans = page.evaluate(STEPS)
    assert len(spans) > 4
    return [(before, after) for before, after in itertools.pairwise(spans) if after[0] != before[1] + 1]


@pytest.fixture
def own_tab(browser: Browser, empty_site: Site) -> Iterator[Visit]:
    """Open a tab on a separate server, with a training that continues."""
    empty_site.train("live", "--pause", "0.05")
    run = empty_site.run("live", 10)["id"]
    with visiting(browser, empty_site.url) as tab:
        tab.forgiven = (*LOST, "Failed to load resource", "Failed to fetch")
        tab.goto(f"runs/{run}/flow")
        yield tab


@pytest.mark.slow
def test_a_restart_of_a_killed_server_leaves_no_gap(own_tab: Visit, empty_site: Site) -> None:
    page = own_tab.page
    page.evaluate(FOLLOW)
    wait_for_step(page, 30)
    before = newest(page)
    empty_site.kill()
    expect(page.locator("#banner")).to_contain_text("isn't responding")
    becomes(page, "seen.stream.state === 'waiting' && seen.stream.retryAt > 0")
    empty_site.start()
    wait_for_step(page, before + 40)
    becomes(page, "seen.columns.length > 4")  # the steps that were waiting for the server arrived in few columns
    assert holes(page) == [], "the trainer sends again what was not on disk yet"
    events = empty_site.get(f"events?run={empty_site.run('live')['id']}&name=reconnected")["events"]
    assert [event["message"] for event in events] == ["the server was restarted and lost nothing"]
    assert page.evaluate(STEPS)[0][0] <= before, "what the page knew before the server died is still there"
    expect(page.locator("#banner")).to_be_hidden()


@pytest.mark.slow
def test_a_hidden_tab_receives_nothing_and_has_caught_up_when_it_is_shown(own_tab: Visit, empty_site: Site) -> None:
    page = own_tab.page
    page.evaluate(FOLLOW)
    wait_for_step(page, 20)
    page.evaluate(HIDE, True)
    page.wait_for_timeout(500)  # time for data in transit
    told = page.evaluate("seen.frames")
    hidden_at = newest(page)
    empty_site.run("live", hidden_at + 20)
    assert page.evaluate("seen.frames") == told
    page.evaluate(HIDE, False)
    wait_for_step(page, hidden_at + 25)
    assert holes(page) == []


def test_an_ended_run_keeps_one_quiet_connection(visit: Open, paths: Paths, browser: Browser) -> None:
    if browser.browser_type.name == "firefox":
        pytest.skip("Playwright doesn't report sockets of Debian's Firefox")
    with visit() as tab:
        opened: list[str] = []
        tab.page.on("websocket", lambda socket: opened.append(socket.url))
        tab.goto(paths("ended")["flow"])
        tab.page.wait_for_timeout(4000)
        assert len(opened) == 1
        expect(tab.page.locator("#status-words")).to_contain_text("ended")


@pytest.mark.all
def test_nine_tabs_at_once_are_all_live(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        pages = [tab.page, *(tab.page.context.new_page() for _ in range(8))]
        for page in pages:
            page.goto(f"http://{tab.host}/{paths('live')['flow']}")
            page.evaluate(FOLLOW)
        for page in pages:
            at = newest(page)
            wait_for_step(page, at + 3)

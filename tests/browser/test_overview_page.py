"""The Overview page: drawn early, live without disturbing the reader, and with a link from every part."""

from __future__ import annotations

import re
import urllib.request
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from hookcore.records import Tap, wire
from tests.build import frame, make_info, stats_of
from tests.serving import (
    BATCH,
    make_batch,
)

from .browsing import visiting
from .conftest import Open, Paths
from .site import Site

DRAWN = """() => {
  const canvas = document.querySelector("#model canvas");
  if (!canvas || !canvas.width) return false;
  const seen = new Set();
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < data.length; i += 4) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
  return seen.size > 20;
}"""

LATER = """before => {
  const newest = document.querySelector("#figures [data-newest-step]").innerText;
  return Number(newest.replaceAll(",", "")) > before + 3;
}"""


def _newest(page: Page) -> int:
    return int(page.locator("#figures [data-newest-step]").inner_text().replace(",", ""))


def test_the_heatmap_and_the_line_are_drawn(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["overview"])
        tab.page.wait_for_function(DRAWN)
        expect(tab.page.locator("#chart .main-svg").first).to_be_visible()
        expect(tab.page.locator("#chart h2")).to_have_text("loss")


def test_findings_link_to_their_page_and_to_the_layer_at_its_step(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["overview"])
        finding = tab.page.locator("#findings li").first
        expect(finding).to_contain_text("NaN")
        expect(finding).to_contain_text("after it")
        assert str(finding.locator("a").first.get_attribute("href")).endswith("/problems/incident?id=nonfinite-40")
        address = finding.locator("a.mono").first.get_attribute("href")
        assert address
        assert re.search(r"/model/layers\?module=encoder\.layers\.1\..*step=\d+$", address)
        expect(tab.page.locator("#figure-nonfinite .value")).not_to_have_text("0")


def test_the_name_of_a_layer_opens_the_drawer_and_escape_gives_the_focus_back(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["overview"])
        page, drawer = tab.page, tab.page.locator("#drawer")
        name = page.locator("#findings li a.mono").first
        name.focus()
        page.keyboard.press("Enter")
        expect(drawer).to_be_focused()
        expect(drawer.locator("h2")).to_have_text("encoder.layers.1.linear1")
        expect(drawer.locator("#drawer-numbers")).to_have_text("Values in step 40")
        assert drawer.locator("#drawer-layer").get_attribute("href") == name.get_attribute("href")
        assert tab.axe() == []
        page.reload()  # it is in the address
        expect(drawer.locator("h2")).to_have_text("encoder.layers.1.linear1")
        page.go_back()
        expect(drawer).to_be_hidden()
        name.click(position={"x": 5, "y": 5})  # its middle may be between two lines
        expect(drawer.locator("#drawer-numbers")).to_have_text("Values in step 40")
        page.keyboard.press("Escape")
        expect(drawer).to_be_hidden()
        expect(name).to_be_focused()
        with page.context.expect_page() as opened:
            name.click(position={"x": 5, "y": 5}, modifiers=["Control"])
        opened.value.wait_for_url("**/model/layers?module=encoder.layers.1.linear1*")
        opened.value.close()
        page.get_by_label("Step", exact=True).fill("30")
        page.keyboard.press("Enter")
        page.wait_for_function(DRAWN)
        page.locator("#model .heat-pad").click(position={"x": 20, "y": 10})
        expect(drawer.locator("h2")).to_have_text("features.0")
        with page.context.expect_page() as opened:
            page.locator("#model .heat-pad").click(position={"x": 20, "y": 10}, modifiers=["Control"])
        assert re.search(r"/model/layers\?module=features.0&.*step=30", opened.value.url)


def test_figures_follow_a_live_run_and_keep_focus_and_scroll(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("live")["overview"])
        before = _newest(tab.page)
        link = tab.page.locator("#watched")
        link.focus()
        tab.page.evaluate("scrollTo(0, 40)")
        tab.page.evaluate("window.kept = document.activeElement")
        tab.page.wait_for_function(LATER, arg=before)
        assert tab.page.evaluate("window.kept === document.activeElement && window.kept.isConnected")
        assert tab.page.evaluate("scrollY") == 40


def test_a_paused_page_does_not_change(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("live")["overview"])
        tab.page.evaluate(
            """() => document.querySelector("#figures").addEventListener("renewed", () => {
              window.held = location.search.includes("step=");
            })"""
        )
        tab.page.locator("#follow").click()
        expect(tab.page.locator("#status")).to_contain_text("paused")
        tab.page.wait_for_function("() => window.held")  # the figures of the held step, which are requested last
        before = _newest(tab.page)
        tab.page.wait_for_function(
            "() => /[3-9] new steps|\\d\\d new steps/.test(document.querySelector('#status').innerText)"
        )
        assert _newest(tab.page) == before
        tab.page.locator("#follow").click()
        tab.page.wait_for_function(f"() => !document.querySelector('#figures').innerText.includes('to {before:,}')")


@pytest.mark.all
def test_the_kind_and_the_stat_of_the_heatmap_are_in_the_url(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["overview"])
        tab.page.wait_for_function(DRAWN)
        tab.page.locator("#model select[name=kind]").select_option("output")
        tab.page.locator("#model select[name=stat]").select_option("mean")
        tab.page.wait_for_url(re.compile("kind=output&stat=mean"))
        tab.page.wait_for_function(DRAWN)
        assert "kind=output&stat=mean" in str(tab.page.locator("#model-larger").get_attribute("href"))
        tab.page.reload()
        expect(tab.page.locator("#model select[name=stat]")).to_have_value("mean")


@pytest.mark.all
def test_an_uncaptured_kind_says_why_instead_of_showing_an_empty_picture(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["overview"] + "?kind=input_grad")
        expect(tab.page.locator("#model-empty")).to_contain_text("model.eval()?")
        tab.page.locator("#model select[name=kind]").select_option("output")
        tab.page.wait_for_function(DRAWN)
        expect(tab.page.locator("#model-empty")).to_be_hidden()


@pytest.mark.all
def test_a_selected_scalar_is_drawn_large(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["overview"])
        tab.page.locator("#scalars a", has_text="lr").click()
        expect(tab.page.locator("#chart h2")).to_have_text("lr")
        expect(tab.page.locator("#scalars a[aria-current]")).to_contain_text("lr")
        assert "scalar=lr" in tab.page.url
        tab.page.go_back()
        expect(tab.page.locator("#chart h2")).to_have_text("loss")


@pytest.mark.all
def test_the_link_to_the_newest_values_leads_to_their_table_and_its_pages(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["overview"])
        tab.page.locator("#values a").click()
        first = str(tab.page.locator("#values tbody th").first.text_content())  # also if it isn't laid out yet
        tab.page.locator("#values nav a", has_text="Next").click()
        expect(tab.page.locator("#values header")).to_contain_text("rows 51 to")
        tab.page.locator("#values nav a", has_text="Previous").click()
        expect(tab.page.locator("#values tbody th").first).to_have_text(first)


def test_a_finding_is_acknowledged_and_unacknowledged(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["overview"])
        findings = tab.page.locator("#findings li")
        expect(findings.first).to_be_visible()
        many = findings.count()
        key = findings.first.get_attribute("id")
        findings.first.get_by_role("button").click()
        expect(tab.page.locator(f'[id="{key}"]')).to_have_count(0)
        tab.page.locator(".toast").get_by_role("button", name="Undo").click()
        expect(findings).to_have_count(many)


def test_following_moves_nothing_visible(visit: Open, paths: Paths) -> None:
    watch = """() => {
      window.moved = [];
      // Less than half a line: another value in the same place, set in a smaller font.
      const far = ({ previousRect: from, currentRect: to }) => Math.hypot(to.x - from.x, to.y - from.y) > 8;
      const place = ({ node, previousRect: from, currentRect: to }) =>
        `${(node?.outerHTML ?? node?.data)?.slice(0, 80)}: ${from.y} to ${to.y}, ${from.height} to ${to.height}`;
      // A finding that comes or goes moves the other ones in their list, but nothing else.
      const listed = ({ node }) => node?.parentElement?.closest("#findings ol");
      const wrong = (each) => far(each) && !listed(each);
      const note = (list) =>
        window.moved.push(...list.getEntries().flatMap((each) => each.sources.filter(wrong).map(place)));
      new PerformanceObserver(note).observe({ type: "layout-shift" });
    }"""
    with visit() as tab:
        tab.goto(paths("live")["overview"])
        tab.page.wait_for_function(DRAWN)
        expect(tab.page.locator("#chart .main-svg").first).to_be_attached()
        tab.page.wait_for_timeout(1000)
        before = _newest(tab.page)
        tab.page.evaluate(watch)
        tab.page.wait_for_function(LATER, arg=before)
        assert tab.page.evaluate("window.moved") == []


def test_a_run_without_steps_says_what_it_is_waiting_for(empty_site: Site, browser: Any) -> None:
    body = wire.encode(make_batch(make_info("waiting"), [], taps=0))
    asked = urllib.request.Request(f"{empty_site.url}/api/v1/ingest", body, BATCH)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.status == 200
    with visiting(browser, empty_site.url) as tab:
        tab.goto("runs/waiting")
        expect(tab.page.locator("#figures .empty")).to_contain_text("No step has been captured")
        expect(tab.page.locator("#model-empty")).to_contain_text("No steps yet")
        assert tab.axe() == []
        body = wire.encode(make_batch(make_info("waiting"), range(5, 9), taps=2))
        urllib.request.urlopen(urllib.request.Request(f"{empty_site.url}/api/v1/ingest", body, BATCH)).close()
        expect(tab.page.locator("#timeline-end")).to_have_text("8")  # the timeline comes with the first step
        tab.page.get_by_label("Step", exact=True).fill("3")
        tab.page.get_by_label("Step", exact=True).press("Enter")
        expect(tab.page).to_have_url(re.compile("step=3"))
        assert tab.axe() == []


def test_a_page_that_was_open_before_the_first_loss_draws_it_also_if_the_list_of_scalars_is_out_of_view(
    empty_site: Site, browser: Any
) -> None:
    def send(batch: wire.Batch) -> None:
        urllib.request.urlopen(
            urllib.request.Request(f"{empty_site.url}/api/v1/ingest", wire.encode(batch), BATCH)
        ).close()

    info = make_info("waiting")
    send(make_batch(info, [], taps=0))
    with visiting(browser, empty_site.url, size=(1180, 720)) as tab:
        tab.goto("runs/waiting")
        expect(tab.page.locator("#chart .empty")).to_contain_text("No scalars logged")
        stats = stats_of(1, 1.0, nan=0, inf=0)
        frames = [frame(step, stats, (), scalars={"loss": 1.0 / (1 + step)}) for step in range(9)]
        items = tuple(wire.frame_item(each.step, each) for each in frames)
        send(wire.Batch(run=info, items=items, taps=(Tap("layer", "output"),)))
        expect(tab.page.locator("#chart .empty")).to_be_hidden()
        expect(tab.page.locator("#chart svg").first).to_be_attached()
        assert tab.page.evaluate("scrollY") == 0


@pytest.mark.all
def test_a_filter_over_more_layers_than_a_page_holds_says_how_many_it_searches(
    empty_site: Site, browser: Browser
) -> None:
    body = wire.encode(make_batch(make_info("one"), range(2), taps=10_003))
    urllib.request.urlopen(urllib.request.Request(f"{empty_site.url}/api/v1/ingest", body, BATCH)).close()
    with visiting(browser, empty_site.url) as tab:
        tab.goto("runs/one")
        expect(tab.page.locator("#model canvas").first).to_be_visible()
        expect(tab.page.locator("#model-cut")).to_be_hidden()
        tab.page.fill("#find", "layer.10002")
        expect(tab.page.locator("#model-cut")).to_have_text(
            "The filter searches the first 10,000 of 10,003 layers here."
        )
        tab.page.fill("#find", "")
        expect(tab.page.locator("#model-cut")).to_be_hidden()


@pytest.mark.all
def test_a_held_page_says_that_its_run_has_ended(browser: Browser, empty_site: Site) -> None:
    empty_site.train("short", "--steps", "60", "--pause", "0.1")
    run = empty_site.run("short", 3)["id"]
    with visiting(browser, empty_site.url) as tab:
        tab.goto(f"runs/{run}")
        tab.wait_until_started()
        expect(tab.page.locator("#figures")).to_contain_text("Live: steps 0 to")
        tab.page.keyboard.press("Space")
        expect(tab.page.locator("#follow-words")).to_have_text("Jump to live")
        expect(tab.page.locator("#figures")).to_contain_text("Ended: steps 0 to 59")


SHOWN = """() => {
  const number = (text) => Number(text.replaceAll(",", ""));
  const places = ["#timeline-end", "[data-newest-step]"].map((each) => document.querySelector(each).textContent);
  places.push(/step ([\\d,]+)/.exec(document.getElementById("status-words").textContent)[1]);
  return places.map(number);
}"""


def test_the_pill_the_sentence_and_the_timeline_show_the_same_newest_step_at_any_moment(
    visit: Open, paths: Paths
) -> None:
    with visit() as tab:
        tab.goto(paths("live")["overview"])
        expect(tab.page.locator("#status")).to_have_class("pill live")
        seen = set()
        for _ in range(40):
            shown = tab.page.evaluate(SHOWN)
            assert len(set(shown)) == 1, shown
            seen.add(shown[0])
            tab.page.wait_for_timeout(100)
        assert len(seen) > 1

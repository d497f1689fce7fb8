"""The frame around every page, in a browser: status, follow, keys, find, theme, links, and a server that disappears."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request

import pytest
from playwright.sync_api import Browser, Page, expect

from hookcore.records import Failure
from hookcore.records.wire import Batch, EndItem, encode
from hookcore_app.pages.views.words import KEYS
from hookcore_app.serving import server_thread
from tests.build import make_info
from tests.serving import BATCH, make_batch
from tests.waiting import wait_for

from .browsing import LOST, visiting
from .conftest import Open, Paths
from .site import Site


def _status(page: Page) -> str:
    return page.locator("#status-words").inner_text()


def _connected(page: Page) -> None:
    """Wait until the page has received data from the server."""
    page.wait_for_function("() => document.body.dataset.connection === 'open'")


def test_the_status_follows_a_live_run_with_its_step_and_rate(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("live")["capture"])
        expect(tab.page.locator("#status")).to_have_class("pill live")
        expect(tab.page.locator("#status-words")).to_have_text(
            re.compile(r"^live · step [\d,]+ · [\d.]+(/s| m?s a step)")
        )
        before = _status(tab.page)
        tab.page.wait_for_function(
            "before => document.getElementById('status-words').textContent !== before", arg=before
        )


def test_the_status_of_an_ended_run_says_where_it_ended(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["capture"])
        expect(tab.page.locator("#status-words")).to_have_text("ended · step 59")
        expect(tab.page.locator("#follow")).to_be_hidden()
        expect(tab.page.locator("#banner")).to_be_hidden()


def test_a_crash_leads_to_its_traceback(browser: Browser) -> None:
    server = server_thread.start(port=0)
    info, address = make_info("one"), str(server.url).rstrip("/")

    def send(batch: Batch) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{address}/api/v1/ingest", encode(batch), BATCH)).close()

    send(make_batch(info, [0, 1]))
    with visiting(browser, address) as tab:
        tab.goto("runs/one/capture")
        expect(tab.page.locator("#status")).to_have_class("pill live")
        _connected(tab.page)
        failure = Failure("crashed", 1, "ValueError: bad batch", "Traceback of it")
        send(Batch(run=info, taps_from=2, items=(EndItem(2, 1, failure),)))
        expect(tab.page.get_by_role("alert")).to_contain_text("The training crashed at step 1.")
        tab.page.get_by_role("link", name="Show the traceback").click()
        expect(tab.page.locator("main h1")).to_have_text("one")
        expect(tab.page.locator(".failure-banner")).to_contain_text("Traceback")
    server.stop()


def test_space_holds_the_page_counts_new_steps_and_returns_to_live(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("live")["capture"])
        expect(tab.page.locator("#follow")).to_have_text("Pause")
        tab.page.locator("#main").focus()
        tab.page.keyboard.press("Space")
        expect(tab.page.locator("#status")).to_have_class("pill paused")
        expect(tab.page.locator("#status-words")).to_have_text(re.compile(r"paused · \d+ new step"))
        assert re.search(r"[?&]step=\d+", tab.page.url)
        tab.page.get_by_role("button", name="Jump to live").click()
        expect(tab.page.locator("#status")).to_have_class("pill live")
        assert "step=" not in tab.page.url


def test_arrows_move_by_steps_and_brackets_zoom(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(f"{paths('ended')['hooks']}?step=30")
        expect(tab.page.locator("#status-words")).to_have_text("held at step 30 · ended")
        tab.page.keyboard.press("ArrowRight")
        tab.page.keyboard.press("Shift+ArrowRight")
        expect(tab.page.locator("#status-words")).to_have_text("held at step 41 · ended")
        tab.page.keyboard.press("Shift+ArrowLeft")
        tab.page.keyboard.press("]")
        tab.page.wait_for_url(re.compile(r"steps=16-45$"))
        expect(tab.page.locator("#status-words")).to_have_text("held at step 31 · ended")


@pytest.mark.all
def test_a_link_shows_the_same_step_in_another_browser(visit: Open, paths: Paths) -> None:
    with visit(permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.goto(f"{paths('live')['hooks']}?f=encoder")
        expect(tab.page.locator("#status")).to_have_class("pill live")
        tab.page.get_by_role("button", name="Link").click()
        expect(tab.page.locator(".toast")).to_contain_text("held at step")
        expect(tab.page.locator(".toast")).to_contain_text("It opens only on this machine")
        report = tab.page.locator(".toast").get_by_role("link", name="Save report")
        assert "api/v1/report?run=" in (report.get_attribute("href") or "")
        link = tab.page.evaluate("navigator.clipboard.readText()")
        assert "f=encoder" in link
        assert "theme" not in link
        tab.page.goto(link)
        expect(tab.page.locator("#status")).to_have_class("pill paused")
        expect(tab.page.locator("#find")).to_have_value("encoder")


def test_a_selected_theme_applies_to_every_page_from_the_first_byte(visit: Open, paths: Paths) -> None:
    with visit(theme="light") as tab:
        tab.goto(paths("ended")["capture"])
        light = tab.page.evaluate("getComputedStyle(document.body).color")
        tab.page.get_by_role("button", name="Theme: system").click()
        tab.page.keyboard.press("t")
        expect(tab.page.locator("html")).to_have_attribute("data-theme", "dark")
        assert tab.page.evaluate("getComputedStyle(document.body).color") != light
        tab.goto("help")
        assert 'data-theme="dark"' in tab.page.request.get(tab.page.url).text()
        expect(tab.page.get_by_role("button", name="Theme: dark")).to_be_visible()
        tab.page.keyboard.press("t")
        expect(tab.page.locator("html")).to_have_attribute("data-theme", "system")
        assert 'data-theme="system"' in tab.page.request.get(tab.page.url).text()


def test_the_dialog_lists_the_keys_and_restores_the_focus(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["capture"])
        button = tab.page.get_by_role("button", name="Keyboard shortcuts")
        button.click()
        dialog = tab.page.get_by_role("dialog", name="Keyboard shortcuts")
        expect(dialog).to_contain_text("pause, or follow the newest step")
        expect(dialog).to_contain_text("Flow: gradient flow")
        assert tab.axe() == []
        tab.page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(button).to_be_focused()
        tab.page.keyboard.press("?")
        expect(dialog).to_be_visible()


def test_the_help_page_lists_the_keys_of_every_page(visit: Open, paths: Paths) -> None:
    known = {words for _, lines in KEYS for _, words in lines}
    with visit() as tab:
        tab.goto(paths("ended")["capture"])
        tab.page.keyboard.press("?")
        everywhere = tab.page.locator("dialog section", has_text="Everywhere").locator("dd").all_inner_texts()
        assert set(everywhere) - known == set()
        assert len(everywhere) >= 5


@pytest.mark.all
def test_g_and_a_letter_go_to_a_page(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["capture"])
        _connected(tab.page)
        for letter, end in (("s", paths("ended")["overview"]), ("d", paths("ended")["differences"]), ("r", "/")):
            tab.page.keyboard.press("g")
            tab.page.keyboard.press(letter)
            tab.page.wait_for_url(re.compile(re.escape(end) + "$"))
            tab.page.wait_for_load_state("load")
            expect(tab.page.locator("#keys")).to_be_visible()


def test_keys_are_text_in_input_fields(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["capture"])
        _connected(tab.page)
        tab.page.keyboard.press("/")
        find = tab.page.locator("#find")
        expect(find).to_be_focused()
        tab.page.keyboard.type("t?gr /")
        expect(find).to_have_value("t?gr /")
        expect(tab.page.locator("dialog[open]")).to_have_count(0)
        tab.page.wait_for_url(re.compile(r"f=t%3Fgr"))
        tab.page.keyboard.press("Escape")
        expect(find).to_have_value("")
        tab.page.keyboard.press("Escape")
        expect(find).not_to_be_focused()
        tab.page.keyboard.press("Control+k")
        expect(tab.page.locator("dialog.palette input")).to_be_focused()


@pytest.mark.all
def test_a_search_on_a_page_without_a_list_opens_the_flow_page(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["layer"])
        tab.page.locator("#find").fill("linear")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_url(re.compile(r"/flow\?f=linear$"))


def test_a_dead_server_is_reported_and_the_page_continues_when_it_is_back(browser: Browser, empty_site: Site) -> None:
    empty_site.train("one", "--pause", "0.05")
    run = empty_site.run("one", 3)["id"]
    with visiting(browser, empty_site.url) as tab:
        tab.forgiven = LOST
        tab.goto(f"runs/{run}")
        expect(tab.page.locator("#status")).to_have_class("pill live")
        expect(tab.page.locator("#status-words")).to_contain_text("/s")  # a rate shows that messages have arrived
        expect(tab.page.locator("#chart .plot-legend")).to_contain_text("loss")
        empty_site.kill()
        banner = tab.page.locator("#banner")
        expect(banner).to_contain_text(
            re.compile(r"isn't responding.*up to step [\d,]+, received at .*(Next attempt in \d+ s|Reconnecting)")
        )
        expect(tab.page.locator("#status")).to_have_class("pill disconnected")
        assert [fault for fault in tab.axe() if "#banner" in fault or "#status" in fault] == []
        assert tab.page.locator("h1").inner_text()
        chart = tab.page.locator("#chart")
        tab.page.locator("#scalars a", has_text="lr").click()
        expect(chart.locator("h2")).to_have_text("lr")
        expect(chart.locator(".empty")).to_contain_text(
            re.compile("isn.t responding")
        )  # instead of the line of the loss
        expect(chart.locator(".plot-legend")).to_be_hidden()
        empty_site.start()
        expect(banner).to_be_hidden()
        expect(tab.page.locator("#status")).to_have_class("pill live")
        chart.scroll_into_view_if_needed()  # the click has scrolled it out of view, where nothing is drawn
        expect(chart.locator(".plot-legend")).to_contain_text("lr")


@pytest.mark.all
def test_an_open_page_has_all_steps_after_a_restart_of_the_server(browser: Browser, empty_site: Site) -> None:
    trainer = empty_site.train("one", "--pause", "0.05")
    run = empty_site.run("one", 3)["id"]
    wait_for(lambda: [*empty_site.folder.rglob("steps/*.parquet")], "the run is on disk")
    with visiting(browser, empty_site.url) as tab:
        tab.forgiven = LOST
        tab.goto(f"runs/{run}")
        tab.page.locator("#chart .js-plotly-plot").wait_for()
        newest = empty_site.run("one")["newest_step"]
        assert trainer.pid is not None
        os.kill(trainer.pid, signal.SIGSTOP)  # so that the page comes back first
        empty_site.kill()
        expect(tab.page.locator("#status")).to_have_class("pill disconnected")
        empty_site.start()
        expect(tab.page.locator("#status")).to_have_class("pill waiting")
        expect(tab.page.locator("#banner")).to_contain_text("restarted and waits for the trainer")
        os.kill(trainer.pid, signal.SIGCONT)
        expect(tab.page.locator("#status")).to_have_class("pill live")
        plot = "document.querySelector('#chart .js-plotly-plot')"
        tab.page.wait_for_function(f"() => Math.max(...{plot}.data.flatMap(({{x}}) => [...x])) > {newest + 20}")
        steps = tab.page.evaluate(f"[...{plot}.data[0].x]")
        assert steps[:newest] == list(range(newest))


def test_the_removal_of_a_run_is_reported_on_its_open_page(browser: Browser, empty_site: Site) -> None:
    empty_site.train("one", "--steps", "3")
    run = empty_site.run("one", 3, "ended")["id"]
    with visiting(browser, empty_site.url) as tab:
        tab.goto(f"runs/{run}/capture")
        expect(tab.page.locator("#status")).to_have_class("pill ended")
        tab.forgiven = ("404",)  # parts of the page that request the run again
        tab.page.evaluate(f"fetch('api/v1/runs/{run}', {{method: 'DELETE'}})")
        expect(tab.page.locator("#banner")).to_contain_text("was removed")


def test_the_events_link_counts_unacknowledged_lines(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["capture"])
        badge = tab.page.locator("#alerts")
        expect(badge).to_be_visible()
        assert int(re.sub(r"\D", "", badge.inner_text())) >= 1
        expect(badge).to_have_class("badge error")


def test_a_notice_with_undo_waits_while_the_pointer_or_focus_is_on_it(visit: Open) -> None:
    with visit() as tab:
        tab.goto("help")
        _connected_or_loaded(tab.page)
        folder = tab.page.evaluate("document.body.dataset.static")
        done = tab.page.evaluate(
            "async folder => { const {toast} = await import(new URL(folder + '/js/popup.js', document.baseURI));"
            " window.said = []; toast('gone', {undo: () => said.push('undo'), done: () => said.push('done')});"
            " toast('other', {undo: () => said.push('undo 2'), done: () => said.push('done 2')}); return said }",
            folder,
        )
        assert done == []
        tab.page.locator(".toast", has_text="gone").get_by_role("button", name="Undo").click()
        tab.page.locator(".toast", has_text="other").get_by_role("button", name="Close").click()
        expect(tab.page.locator(".toast")).to_have_count(0)
        expect(tab.page.locator("#main")).to_be_focused()
        assert json.loads(tab.page.evaluate("JSON.stringify(said)")) == ["undo", "done 2"]


def _connected_or_loaded(page: Page) -> None:
    expect(page.locator("#keys")).to_be_visible()


def test_nothing_moves_with_reduced_motion(visit: Open, paths: Paths) -> None:
    with visit(reduced_motion="reduce") as tab:
        tab.goto(paths("live")["capture"])
        _connected(tab.page)
        moving = "[...document.getAnimations()].filter(each => each.playState === 'running').length"
        assert tab.page.evaluate(moving) == 0


@pytest.mark.all
def test_everything_in_the_header_is_large_enough_to_click(visit: Open, paths: Paths) -> None:
    with visit(size=(390, 844)) as tab:
        tab.goto(paths("live")["capture"])
        expect(tab.page.locator("#follow")).to_be_visible()
        controls = ":is(a, button, input:not([type=hidden]), select, [role=slider])"
        for each in tab.page.locator(f"header.top {controls}, #when {controls}, nav.side a").all():
            if not each.is_visible():
                continue
            box = each.bounding_box()
            assert box is not None
            assert min(box["width"], box["height"]) >= 24, each.inner_html()


@pytest.mark.parametrize("width", [761, 820, 900, 961])
def test_the_header_stays_on_one_line_whatever_the_name_and_status_of_the_run(
    visit: Open, paths: Paths, width: int
) -> None:
    long = {".run-name": "a-name-of-a-run-" * 6, "#status-words": "disconnected · step 1,234,567 · 12.3 ms a step"}
    with visit(size=(width, 700)) as tab:
        tab.goto(paths("ended")["capture"])
        expect(tab.page.locator("#keys")).to_be_visible()
        for words in ({}, long):
            for selector, text in words.items():
                tab.page.locator(selector).evaluate("(node, text) => { node.textContent = text; }", text)
            boxes = [each.bounding_box() for each in tab.page.locator("header.top :is(a, button, .pill)").all()]
            seen = [box for box in boxes if box is not None]
            assert max(box["y"] + box["height"] for box in seen) < 50
            assert max(box["x"] + box["width"] for box in seen) <= width

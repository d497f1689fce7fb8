"""The Settings, Help, and error pages in a browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.serving import served
from tests.webhook import webhook

from .browsing import visiting
from .conftest import Open
from .site import Site


def test_preferences_apply_to_every_page_of_this_browser(visit: Open) -> None:
    with visit() as tab:
        tab.goto("settings")
        tab.page.get_by_label("Theme", exact=True).select_option("dark")
        tab.page.get_by_label("Density").select_option("compact")
        tab.page.get_by_label("Color map").select_option("cividis")
        tab.goto("help")
        expect(tab.page.locator("html")).to_have_attribute("data-theme", "dark")
        expect(tab.page.locator("html")).to_have_attribute("data-density", "compact")
        tab.goto("settings")
        expect(tab.page.get_by_label("Color map")).to_have_value("cividis")
        tab.page.get_by_role("button", name="Reset").click()
        expect(tab.page.get_by_label("Color map")).to_have_value("viridis")
        tab.page.get_by_role("button", name="Undo").click()
        expect(tab.page.get_by_label("Color map")).to_have_value("cividis")


def test_a_preferred_window_is_in_the_url_so_that_a_link_shows_the_same(visit: Open, site: Site) -> None:
    with visit() as tab:
        tab.goto("settings")
        tab.page.get_by_label("Steps shown").select_option("200")
        tab.goto(f"runs/{site.run('live')['id']}/capture")
        tab.page.wait_for_url("**steps=live%3A200*")


def test_the_page_offers_the_values_that_each_preference_may_have(visit: Open) -> None:
    with visit() as tab:
        tab.goto("settings")
        offered, known = tab.page.evaluate(
            """async () => {
              const at = new URL(`${document.body.dataset.static}/js/prefs.js`, document.baseURI);
              const selects = [...document.querySelectorAll("#prefs select:not([name=theme])")];
              return [selects.map((each) => [each.name, [...each.options].map(({ value }) => value)]),
                      Object.entries((await import(at.href)).PREFERENCES)];
            }"""
        )
        assert offered == known


def test_capture_settings_are_one_click_away_on_the_hooks_page(visit: Open, site: Site) -> None:
    with visit() as tab:
        tab.goto("settings")
        tab.page.get_by_role("main").get_by_role("link", name="live").click()
        tab.page.wait_for_url(f"**/runs/{site.run('live')['id']}/capture*#switches")
        expect(tab.page.locator("#switches").get_by_role("button", name="Apply")).to_be_in_viewport()


@pytest.mark.all
def test_diagnostics_are_copied_with_the_browser(visit: Open) -> None:
    with visit(permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.goto("settings")
        tab.page.get_by_role("button", name="Copy diagnostics").click()
        expect(tab.page.locator(".toast")).to_contain_text("Copied the diagnostics")
        copied = tab.page.evaluate("navigator.clipboard.readText()")
        assert '"numpy"' in copied
        assert tab.page.evaluate("navigator.userAgent") in copied


def test_a_test_message_is_one_click_away_and_its_failure_is_reported(browser: Browser) -> None:
    with webhook() as hook, served(notify=(hook.url,)) as server, visiting(browser, server.url) as tab:
        tab.goto("settings")
        tab.page.get_by_role("button", name="Send test message").click()
        expect(tab.page.locator(".toast")).to_contain_text("The test message was delivered")
        assert [each["title"] for each in hook.messages] == ["hookcore: test"]
        hook.status = 500
        tab.page.get_by_role("button", name="Send test message").click()
        expect(tab.page.locator(".toast.error")).to_contain_text("The test message did not reach JSON")
        tab.goto("settings")
        expect(tab.page.get_by_role("region", name="Targets of notifications")).to_contain_text("failed")
        assert tab.axe() == []


@pytest.mark.all
def test_an_anchor_of_the_help_page_shows_its_section(visit: Open) -> None:
    with visit() as tab:
        tab.goto("help#stat-rms")
        expect(tab.page.locator("#stat-rms")).to_be_in_viewport()
        for shape in ("spike", "vanishing", "nan"):
            expect(tab.page.locator(f"#shape-{shape} svg")).to_be_attached()


@pytest.mark.all
def test_an_unknown_address_offers_a_way_to_continue(visit: Open) -> None:
    for theme in ("light", "dark"):
        with visit(theme=theme) as tab:
            tab.forgiven = ("404",)
            tab.goto("runs/nowhere/flow")
            expect(tab.page.locator("h1")).to_have_text("Not found")
            assert tab.axe() == []
            tab.page.get_by_role("link", name="All runs").click()
            expect(tab.page.locator("h1")).to_have_text("Runs")

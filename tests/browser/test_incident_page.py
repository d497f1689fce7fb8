"""The Incident page: the culprit, its evidence, what followed, and the replay."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from .browsing import PATIENCE_MS, choose
from .conftest import Open, Paths


def test_an_incident_is_reached_from_its_finding_and_shows_its_evidence(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["events"] + "?name=nonfinite")
        tab.page.locator("#list .what a").first.click()
        tab.page.wait_for_url(re.compile(r"/incident\?id=nonfinite-40"))
        expect(tab.page.locator("h1")).to_contain_text("NaN or infinity in encoder.layers.1")
        # The planted weight is the culprit, and weights are not captured by default.
        expect(tab.page.locator("#about .sentence")).to_contain_text("linear1.weight before the model ran, at step 40")
        expect(tab.page.locator("#tensors tbody tr").first).to_contain_text("same module")
        expect(tab.page.locator("#chain li").first).to_be_visible()
        expect(tab.page.locator("#graph rect.culprit")).to_be_visible()
        assert tab.page.locator("#graph .edge").count() >= 1
        expect(tab.page.locator("#chart .main-svg").first).to_be_attached(timeout=PATIENCE_MS)
        expect(tab.page.locator("#chart .plot-legend")).to_contain_text("step 40")
        expect(tab.page.locator(".advice")).to_contain_text("What to try")
        expect(tab.page.locator("#follow")).to_be_hidden()
        tab.page.locator("#graph a", has=tab.page.locator(".culprit")).click()
        expect(tab.page.locator("#drawer h2")).to_have_text("encoder.layers.1.linear1")
        expect(tab.page.locator("#drawer-numbers")).to_have_text("Values in step 40")


@pytest.mark.all
def test_another_stat_changes_chart_table_and_address(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["incident"])
        tab.page.locator("select[name=stat]").select_option("norm")
        tab.page.wait_for_url(re.compile("stat=norm"))
        tab.page.locator("#tensors").scroll_into_view_if_needed()  # parts out of view wait
        expect(tab.page.locator("#tensors thead >> nth=0")).to_contain_text("norm, step 39")
        tab.page.reload()
        expect(tab.page.locator("select[name=stat]")).to_have_value("norm")
        choose(tab.page.locator("#chart"), "Show as table")
        expect(tab.page.locator("#chart table tbody tr")).not_to_have_count(0)


@pytest.mark.all
def test_the_saved_step_is_explained_here_too(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["incident"])
        cause = tab.page.locator("#cause")
        expect(cause).to_contain_text("Step 40 was", timeout=90_000)  # another page may have asked for its replay
        explain = cause.get_by_role("button", name="Explain", exact=True)
        if explain.count():  # the Problems page may already have done it
            explain.click()
        expect(cause).to_contain_text("weight encoder.layers.1.linear1.weight already had", timeout=60_000)


def test_an_incident_is_acknowledged_and_unacknowledged(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["incident"])
        button = tab.page.locator("#about [data-seen]")
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        button.click()
        expect(button).to_have_attribute("aria-pressed", "false")


def test_the_incident_page_fits_a_phone_passes_axe_and_needs_no_script(visit: Open, paths: Paths) -> None:
    with visit(theme="light") as tab:
        tab.goto(paths("bad")["incident"])
        expect(tab.page.locator("#chart .main-svg").first).to_be_attached()
        tab.wait_until_quiet()
        assert tab.axe() == [], "light, on a desk"
        tab.page.emulate_media(color_scheme="dark")
        tab.page.set_viewport_size({"width": 390, "height": 844})
        # The chart is updated some frames later.
        tab.page.wait_for_function("() => document.documentElement.scrollWidth <= 390")
        tab.wait_until_quiet()
        assert tab.axe() == [], "dark, on a phone"
    with visit(java_script_enabled=False) as tab:
        tab.goto(paths("bad")["incident"])
        expect(tab.page.locator("#tensors tbody tr").first).to_be_visible()
        tab.page.locator("select[name=stat]").select_option("rms")
        tab.page.get_by_role("button", name="Show").click()
        expect(tab.page.locator("#tensors thead >> nth=0")).to_contain_text("rms, step 39")

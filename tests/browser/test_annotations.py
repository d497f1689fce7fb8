"""Notes at steps: written with the keyboard, and shown on the timeline and in the charts of every page."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.waiting import wait_for

from .conftest import Open, Paths
from .site import Site


def test_a_note_is_written_by_key_shown_everywhere_changed_and_removed(visit: Open, paths: Paths, site: Site) -> None:
    run = site.run("ended")["id"]

    def kept() -> list[str]:
        return [f"{each['step']} {each['text']}" for each in site.get(f"annotations?run={run}")["annotations"]]

    with visit() as tab:
        tab.goto(paths("ended")["overview"] + "?step=20")
        page = tab.page
        expect(page.locator("#chart .plot-legend")).to_contain_text("step 20")
        page.keyboard.press("m")
        page.keyboard.type("halved <b>the rate")
        assert tab.axe() == []
        page.keyboard.press("Control+Enter")
        wait_for(lambda: kept() == ["20 halved <b>the rate"], "the server keeps it")
        flag = page.locator("#timeline a.note")
        expect(flag).to_have_attribute("aria-label", "Note, step 20: halved <b>the rate")
        expect(page.locator("#chart .plot-legend")).to_contain_text("halved <b>the rate")
        expect(page.locator("#chart .plot-notes div")).to_have_attribute("title", "Step 20: halved <b>the rate")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#chart .plot-legend")).not_to_contain_text("halved")
        page.keyboard.press("p")
        expect(page.get_by_label("Step", exact=True)).to_have_value("20")
        tab.goto(paths("ended")["layer"] + "&step=30")
        expect(flag).to_have_count(1)
        flag.locator(".sign").click()
        expect(page.get_by_label("Step", exact=True)).to_have_value("20")
        page.get_by_role("button", name="Annotate this step").click()
        expect(page.locator("dialog textarea")).to_have_value("halved <b>the rate")
        page.get_by_role("button", name="Remove").click()
        expect(flag).to_have_count(0)
        assert kept() == []


def test_a_refused_note_stays_in_the_form(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["overview"] + "?step=21")
        page = tab.page
        expect(page.locator("#chart .plot-legend")).to_contain_text("step 21")
        refused = {"status": 503, "json": {"error": "the disk is full"}}
        page.route("**/api/v1/annotations*", lambda route: route.fulfill(**refused))
        tab.forgiven = ("503",)
        page.keyboard.press("m")
        page.keyboard.type("long thoughts")
        page.keyboard.press("Control+Enter")
        expect(page.get_by_role("alert")).to_contain_text("the disk is full")
        expect(page.locator("dialog textarea")).to_have_value("long thoughts")
        expect(page.get_by_role("button", name="Save")).to_be_enabled()
        page.keyboard.press("Escape")
        expect(page.locator("dialog.note-dialog")).to_be_hidden()

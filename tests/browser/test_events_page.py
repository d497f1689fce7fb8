"""The Problems page: filtered, acknowledged, and copied, live."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from .conftest import Open, Paths
from .site import Site


def test_a_problem_is_explained_on_its_page_and_keys_go_to_the_next_one(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["events"])
        rows = tab.page.locator("#list tr[data-key]")
        expect(rows.first).to_contain_text("encoder.layers.1")
        many = rows.count()
        rows.first.locator(".what a").click()
        about = tab.page.locator("#about")
        expect(about).to_contain_text("Phase")
        expect(about).to_contain_text(f"1 of {many}")
        expect(tab.page.locator(".about-rule")).to_contain_text("What to try")
        expect(tab.page.locator("#palette")).to_be_visible()
        if many > 1:
            tab.page.keyboard.press("n")
            expect(about).to_contain_text(f"2 of {many}")
            tab.page.keyboard.press("p")
            expect(about).to_contain_text(f"1 of {many}")
        about.get_by_role("link", name="Open layer").click()
        tab.page.wait_for_url(re.compile(r"/model/layers\?module=encoder\.layers\.1"))


def test_a_saved_step_is_explained_at_a_click(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["events"])
        tab.page.locator("#list .what a").first.click()
        cause = tab.page.locator("#cause .capsule")
        expect(cause).to_contain_text("Step 40 was")
        tab.wait_until_started()  # only then the button is there
        explain = cause.get_by_role("button", name="Explain", exact=True)
        if explain.count():  # the incident's page may already have done it
            explain.click()
        expect(cause).to_contain_text("weight encoder.layers.1.linear1.weight already had", timeout=60_000)
        expect(cause).to_contain_text("was replayed")
        tab.goto(paths("bad")["events"])
        expect(tab.page.locator("#list .cause")).to_contain_text(re.compile("^Cause: .* already had non-finite values"))
        tab.goto(paths("bad")["overview"])
        expect(tab.page.locator("#findings .cause")).to_contain_text("Cause: ")


def test_the_next_step_is_saved_at_a_click(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("live")["events"] + "?name=all")
        tab.page.get_by_role("button", name="Save next step").click()
        expect(tab.page.get_by_text("The next captured step will be saved")).to_be_visible()
        expect(tab.page.locator("#list")).to_contain_text("was saved", timeout=30_000)


@pytest.mark.all
def test_a_list_that_the_server_failed_to_send_is_requested_again(visit: Open, paths: Paths) -> None:
    failed: list[str] = []

    def fail_once(route: Route) -> None:
        if failed:
            return route.fallback()
        failed.append(route.request.url)
        route.fulfill(status=503)

    with visit() as tab:
        tab.forgiven = ("503",)
        tab.goto(paths("bad")["events"])
        tab.page.route(re.compile("part=list"), fail_once)
        tab.page.locator("input[name=text]").fill("nothing has this text")
        expect(tab.page.locator("#list .empty")).to_contain_text("Nothing matches")
        assert failed


def test_filters_are_in_the_url_and_survive_a_reload(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["events"])
        tab.page.locator("select[name=severity]").select_option("error")
        tab.page.wait_for_url(re.compile("severity=error"))
        tab.page.locator("input[name=text]").fill("nothing has this text")
        expect(tab.page.locator("#list .empty")).to_contain_text("Nothing matches")
        tab.page.reload()
        expect(tab.page.locator("#list .empty")).to_contain_text("Nothing matches")
        expect(tab.page.locator("select[name=severity]")).to_have_value("error")
        tab.page.locator("#list .empty a").click()
        expect(tab.page.locator("#list tr[data-key]").first).to_be_visible()


def test_modules_are_found_by_the_box_in_the_header(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["events"])
        tab.page.keyboard.press("/")
        tab.page.keyboard.type("no.such.module")
        expect(tab.page.locator("#list .empty")).to_contain_text("Nothing matches")
        tab.page.locator("#find").fill("encoder")
        expect(tab.page.locator("#list tr[data-key]").first).to_contain_text("encoder")


@pytest.mark.all
def test_acknowledged_lines_can_be_hidden_and_restored(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["events"])
        rows = tab.page.locator("#list tr[data-key]")
        many = rows.count()
        rows.first.locator("[data-seen]").click()
        seen = rows.locator("[data-seen][aria-pressed=true]")
        expect(seen).to_have_count(1)
        expect(rows.last.locator("[data-seen]")).to_have_attribute("aria-pressed", "true")
        tab.page.get_by_label("Hide acknowledged").check()
        expect(rows).to_have_count(many - 1)
        tab.page.get_by_label("Hide acknowledged").uncheck()
        expect(rows).to_have_count(many)
        rows.last.locator("[data-seen]").click()
        expect(seen).to_have_count(0)


def test_the_list_has_the_incidents_that_overlap_the_pages_steps(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["events"] + "?steps=2-6")
        expect(tab.page.locator("#list")).to_contain_text("No problems in steps 2 to 6.")
        tab.page.get_by_role("button", name="Show the default steps").click()
        expect(tab.page.locator("#list tr[data-key]").first).to_be_visible()
        tab.page.get_by_label("Step", exact=True).fill("45")
        tab.page.keyboard.press("Enter")
        expect(tab.page.locator("#list h2 + span")).to_contain_text("up to step 45")
        expect(tab.page.locator("#list")).to_contain_text(re.compile(r"NaN was in .* before the model ran, at step 40"))


def test_the_list_is_copied_as_markdown(visit: Open, paths: Paths) -> None:
    with visit(permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.goto(paths("bad")["events"])
        tab.page.locator("#copy").click()
        expect(tab.page.locator(".toast")).to_contain_text("Copied")
        text = tab.page.evaluate("navigator.clipboard.readText()")
        assert "| step | severity | event | module | message |" in text
        assert "`encoder.layers.1" in text


def test_a_new_event_appears_by_itself(visit: Open, paths: Paths, site: Site) -> None:
    with visit() as tab:
        tab.goto(paths("live")["events"])
        tab.page.locator("select[name=name]").select_option("all")
        tab.page.wait_for_url(re.compile("name=all"))
        run = paths("live")["events"].split("/")[1]
        changed = tab.page.request.patch(f"{site.url}/api/v1/settings?run={run}", data={"every": 2})
        assert changed.status == 202
        row = tab.page.locator("#list tr", has_text="Settings changed")
        expect(row.first).to_be_visible()
        tab.page.request.patch(f"{site.url}/api/v1/settings?run={run}", data={"every": 1})


def test_a_rule_is_muted_and_unmuted_by_hand(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["events"])
        detail, muted = tab.page.locator("#about"), tab.page.locator("#mutes")
        expect(muted).to_be_hidden()
        tab.page.locator("#list .what a").first.click()
        detail.get_by_text("Mute\u2026", exact=True).click()
        box = detail.get_by_role("textbox", name="Mute ")
        assert box.input_value().startswith("encoder.layers.1")
        box.fill("encoder.*")
        tab.page.keyboard.press("Enter")
        expect(detail).to_contain_text("No alerts from")
        tab.goto(paths("bad")["events"])
        expect(muted).to_contain_text("encoder.*")
        expect(tab.page.locator("#list")).to_contain_text("muted")
        expect(muted.get_by_role("button")).to_have_attribute("aria-label", re.compile("Unmute .* in encoder"))
        muted.get_by_role("button").click()
        expect(muted).to_be_hidden()

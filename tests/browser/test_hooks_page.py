"""The Capture page: what is captured, why other modules aren't, and changes during a training."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.waiting import wait_for

from .conftest import Open, Paths
from .site import Site


def settings(site: Site) -> dict[str, Any]:
    """Return the trainer's settings of the live run."""
    run = site.run("live")["id"]
    found: dict[str, Any] = site.get(f"settings?run={run}")["settings"]
    return found


def change(site: Site, **changes: Any) -> None:
    """Set the settings of the live run, and wait until they take effect."""
    run = site.run("live")["id"]
    asked = urllib.request.Request(
        f"{site.url}/api/v1/settings?run={run}",
        json.dumps(changes).encode(),
        {"Content-Type": "application/json"},
        method="PATCH",
    )
    with urllib.request.urlopen(asked) as answer:
        assert answer.status == 202
    wait_for(lambda: not site.get(f"settings?run={run}")["waiting"], "the trainer obeys")


def row(page: Page, path: str) -> Any:
    """Return the row of a module in the table."""
    return page.locator(f'#module-rows tr[data-path="{path}"]')


def watched(page: Page, path: str) -> Any:
    """Return the checkbox of a module."""
    return page.get_by_role("checkbox", name=f"Watch {path}", exact=True)


def test_every_module_is_listed_with_what_is_captured_or_why_not(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["capture"])
        expect(row(tab.page, "features.0")).to_contain_text("gradients of weights")
        expect(row(tab.page, "attention.out_proj")).to_contain_text("uses its weight directly")
        expect(tab.page.locator("#hook-reasons")).to_contain_text("bypass hooks")
        expect(tab.page.locator("#hook-figures")).to_contain_text("35 of 41")


def test_the_inventory_says_who_owns_each_hook_and_where_it_was_written(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["hooks"])
        inventory = tab.page.locator("#inventory")
        expect(inventory.locator(".label.ours").first).to_be_visible()
        expect(inventory).to_contain_text("hooks.py:")
        expect(inventory).to_contain_text("step pre")


def test_an_ended_run_says_why_its_controls_are_disabled(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["capture"])
        expect(tab.page.locator("#why-off")).to_contain_text("This run has ended")
        expect(tab.page.locator("#capture")).to_have_count(0)
        expect(tab.page.get_by_role("checkbox", name="Watch", exact=False)).to_have_count(0)


def test_without_a_script_there_is_a_table_that_the_url_filters(visit: Open, paths: Paths) -> None:
    with visit(java_script_enabled=False) as tab:
        tab.goto(paths("bad")["capture"] + "?f=type:Conv2d")
        expect(tab.page.locator("#module-rows tbody tr:not(.context)")).to_have_count(2)
        expect(tab.page.locator("#modules-said")).to_have_text("2 of 41 modules")
        tab.goto(paths("bad")["capture"] + "?f=is:nosuch")
        expect(tab.page.locator("#find-problem")).to_contain_text("is:frozen")
        tab.goto(paths("bad")["capture"] + "?f=nothing-at-all")
        expect(tab.page.locator("#modules")).to_contain_text("41 modules are hidden")


def test_a_module_is_switched_off_and_the_previous_state_is_restored(visit: Open, paths: Paths, site: Site) -> None:
    change(site, include=None, exclude=[])
    with visit() as tab:
        page = tab.page
        tab.goto(paths("live")["capture"])
        watched(page, "features.1").click()
        expect(page.locator("#exclude")).to_have_value("features.1")
        expect(page.locator("#dry-run")).to_have_text("Would watch 40 of 41 modules (now 41)")
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("#capture-told")).to_have_attribute("data-state", "applied")
        wait_for(lambda: settings(site)["exclude"] == ["features.1"], "the trainer leaves it out")
        expect(row(page, "features.1")).to_contain_text("excluded by")
        page.get_by_role("button", name="Restore previous settings").click()
        wait_for(lambda: settings(site)["exclude"] == [], "what was before holds again")
        expect(watched(page, "features.1")).to_be_checked()
        expect(row(page, "features.1")).to_contain_text("yes")


@pytest.mark.all
def test_a_closed_group_is_switched_as_a_whole_by_key(visit: Open, paths: Paths, site: Site) -> None:
    change(site, include=None, exclude=[])
    with visit() as tab:
        page = tab.page
        tab.goto(paths("live")["capture"])
        expect(row(page, "encoder")).to_be_visible()
        page.get_by_role("link", name="Collapse encoder", exact=True).click()
        box = page.get_by_role("checkbox", name="Watch encoder and everything below it")
        expect(box).to_be_checked()
        box.press("Space")
        expect(page.locator("#exclude")).to_have_value("encoder\nencoder.*")
        expect(box).not_to_be_checked()
        page.get_by_role("button", name="Discard").click()
        expect(page.locator("#exclude")).to_have_value("")
        expect(page.locator("#dry-run")).to_have_text("Watches 41 of 41 modules")


def test_kinds_and_cadence_take_effect_in_the_trainer_when_applied(visit: Open, paths: Paths, site: Site) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("live")["capture"])
        page.locator("#every").fill("2")
        page.get_by_label("updates", exact=True).check()
        expect(page.locator("#dry-run")).to_contain_text("; also updates")
        page.keyboard.press("Enter")
        expect(page.locator("#capture-told")).to_have_attribute("data-state", "applied")
        wait_for(lambda: settings(site)["every"] == 2 and "update" in settings(site)["kinds"], "kinds and cadence hold")
    change(site, every=1, kinds=["output", "output_grad", "param_grad"])


@pytest.mark.all
def test_invalid_settings_are_reported_before_and_refusals_after_sending(visit: Open, paths: Paths, site: Site) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("live")["capture"])
        expect(page.locator("#dry-run")).to_contain_text("41")
        page.locator("#include").fill("no.such.module")
        expect(page.locator("#dry-run")).to_contain_text("'no.such.module' matches no module")
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("#capture-told")).to_have_attribute("data-state", "failed")
        expect(page.locator("#capture-told")).to_contain_text("The trainer refused")
    assert settings(site)["include"] == []


def test_two_pages_that_change_one_setting_at_once_each_say_what_became_of_their_own(
    visit: Open, paths: Paths, site: Site
) -> None:
    change(site, include=None, exclude=[])
    with visit() as wrong, visit() as right:
        for tab, pattern in ((wrong, "no.such.module"), (right, "features*")):
            tab.goto(paths("live")["capture"])
            expect(tab.page.locator("#dry-run")).to_contain_text("41")
            tab.page.locator("#include").fill(pattern)
            expect(tab.page.locator("#dry-run")).not_to_contain_text("41 of 41")
        for tab in (wrong, right):
            tab.page.get_by_role("button", name="Apply").click()
        expect(right.page.locator("#capture-told")).to_have_attribute("data-state", "applied")
        expect(wrong.page.locator("#capture-told")).to_have_attribute("data-state", "failed")
        expect(wrong.page.locator("#capture-told")).to_contain_text("refused the change: include: 'no.such.module'")
    assert settings(site)["include"] == ["features*"]
    change(site, include=None)


def test_capturing_is_paused_and_resumed(visit: Open, paths: Paths, site: Site) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("live")["capture"])
        page.get_by_role("button", name="Pause capture").click()
        wait_for(lambda: settings(site)["paused"], "it is paused")
        page.get_by_role("button", name="Resume capture").click()
        wait_for(lambda: not settings(site)["paused"], "it goes on")
        expect(page.get_by_role("button", name="Pause capture")).to_be_visible()


@pytest.mark.all
def test_the_trainer_refreshes_the_inventory(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("live")["hooks"])
        tab.page.get_by_role("button", name="Search for hooks again").click()
        expect(tab.page.locator("#stock-told")).to_contain_text("Done")


def test_a_threshold_is_changed_and_reset_to_its_default(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("live")["rules"])
        rule = tab.page.locator("#rule-spike")
        rule.get_by_label("warning factor").fill("250")
        rule.get_by_role("button", name="Apply").click()
        expect(rule.locator("header")).to_contain_text("changed")
        expect(rule.get_by_label("warning factor")).to_have_value("250")
        rule.get_by_label("On", exact=True).uncheck()
        rule.get_by_role("button", name="Apply").click()
        expect(rule).to_contain_text("Off.")
        rule.get_by_role("button", name="Use defaults").click()
        expect(rule.locator("header .badge")).to_have_count(0)
        expect(rule.get_by_label("warning factor")).to_have_value("100")

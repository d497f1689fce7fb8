"""The Differences page in a browser: it keeps the steps of other pages, and sends a choice at once."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from .conftest import Open, Paths


def test_the_comparison_uses_the_steps_of_the_previous_page(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["overview"] + "?step=25")
        link = tab.page.get_by_role("link", name="What changed here?")
        expect(link).to_have_attribute("href", re.compile(r"/flow/changes\?step=25$"))
        tab.page.get_by_role("button", name="Clear step").click()
        expect(link).to_be_hidden()
        tab.goto(paths("ended")["overview"] + "?steps=20-29")
        link.click()
        expect(tab.page.locator("main")).to_contain_text(re.compile(r"\d+ captured steps, 20 to 29"))
        tab.page.get_by_label("Step", exact=True).fill("25")
        tab.page.keyboard.press("Enter")
        expect(tab.page.locator("main")).to_contain_text("step 25 against")
        tab.page.get_by_role("link", name="Compare before and after step 25").click()
        expect(tab.page.locator("main")).to_contain_text(re.compile(r"\d+ captured steps, 25 to \d+ against"))
        expect(tab.page.locator("main")).to_contain_text(re.compile(r"\d+ captured steps, 0 to 24"))
        expect(tab.page.get_by_label("Step", exact=True)).to_have_value("")


def test_a_choice_is_sent_and_leads_to_the_layer(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["differences"] + "?steps=40-50")
        tab.page.locator("#differences-form [name=kind]").select_option("output")
        expect(tab.page).to_have_url(re.compile("kind=output"))
        expect(tab.page.locator("#range-chip")).to_contain_text("steps 40\u201350")
        articles = tab.page.locator(".different article")
        expect(articles.first).to_contain_text("changed")
        headings = " ".join(articles.locator("h3").all_inner_texts())
        assert set(re.findall(r"\bactivation(?: gradient)?\b", headings)) == {"activation"}
        name = articles.first.get_by_role("link")
        name.click()
        expect(tab.page.locator("#drawer h2")).to_have_text(name.inner_text())
        expect(tab.page.locator("#drawer-numbers")).to_have_text("Newest values in steps 40 to 50")
        tab.page.locator("#drawer-layer").click()
        expect(tab.page).to_have_url(re.compile(r"/model/layers\?module=.*steps=40-50"))

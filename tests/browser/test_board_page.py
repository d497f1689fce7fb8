"""The Board page: charts that were pinned on other pages."""

from __future__ import annotations

from playwright.sync_api import expect

from .browsing import choose
from .conftest import Open, Paths


def test_charts_of_other_pages_are_pinned_followed_in_another_run_and_unpinned(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("ended")["overview"])
        choose(page, "Pin", "loss")
        expect(page.locator("#toasts")).to_contain_text("Pinned to the board: loss")
        tab.goto(paths("ended")["layer"])
        choose(page, "Pin", "Activation")
        expect(page.locator("#toasts")).to_contain_text("Pinned to the board: encoder.layers.1.linear1")
        tab.goto(paths("live")["board"])
        expect(page.locator("#charts figure")).to_have_count(2)
        for figure in page.locator("#charts figure").all():
            figure.scroll_into_view_if_needed()
            expect(figure.locator(".plot .main-svg").first).to_be_visible()
        assert tab.axe() == []
        for name in ("loss", "encoder.layers.1.linear1"):
            page.get_by_role("button", name=f"Unpin {name}").click()
        expect(page.locator("#board-empty")).to_be_visible()
        page.get_by_role("button", name="Undo").first.click()
        expect(page.locator("#charts figure")).to_have_count(1)
        page.get_by_role("button", name="Unpin").click()
        expect(page.locator("#board-empty")).to_be_visible()

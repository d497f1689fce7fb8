"""Following a tensor: snapshots arrive as long as the page is open, and end with it."""

from __future__ import annotations

import re
from itertools import pairwise

from playwright.sync_api import expect

from tests.waiting import wait_for

from .conftest import Open, Paths
from .site import Site

TAP = "module=encoder.layers.1.norm2&kind=output"


def test_a_followed_tensor_is_captured_every_few_steps_until_the_page_closes(
    visit: Open, paths: Paths, site: Site
) -> None:
    run = site.run("live")["id"]

    def steps() -> list[int]:
        listed = site.get(f"snapshots?run={run}&limit=10000")["snapshots"]
        asked = (each for each in listed if each["asked"])  # not those that were captured by themselves
        return sorted(each["step"] for each in asked if each["tap"]["module"] == "encoder.layers.1.norm2")

    with visit() as tab:
        tab.goto(f"{paths('live')['tensors']}?{TAP}")
        page = tab.page
        page.get_by_role("button", name="Capture next step").click()
        expect(page.locator("#viewer-title")).to_contain_text("encoder.layers.1.norm2")
        expect(page).to_have_url(re.compile("[?&]snapshot="))  # a moment later; choosing one ends following
        group = page.get_by_role("group", name="Follow this tensor")
        before = len(steps())
        group.get_by_role("spinbutton").fill("4")
        group.get_by_role("button").click()
        expect(group.get_by_role("status")).to_have_text(re.compile("^[3-9] snapshots captured, until you leave"))
        assert tab.axe() == []
        taken = steps()[before:]
        assert all(later - earlier >= 4 for earlier, later in pairwise(taken))
    after = len(steps())
    newest = site.run("live")["newest_step"]
    wait_for(lambda: site.run("live")["newest_step"] > newest + 12, "the training continues")
    assert len(steps()) <= after + 1, "one request may have been on its way"

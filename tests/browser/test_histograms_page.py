"""The Histograms page: a wall of layers that shows every NaN, in the selected order and on the selected axis."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.waiting import wait_for

from .browsing import choose
from .conftest import Open, Paths
from .site import Site

COLORS = """(place) => {
  const canvas = document.querySelectorAll('.tile canvas')[place];
  if (!canvas?.width) return [];
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const found = new Set();
  for (let at = 0; at < pixels.length; at += 4) if (pixels[at + 3] === 255) found.add(pixels.slice(at, at + 3).join());
  return [...found];
}"""


def drawn(page: Page, place: int = 0) -> set[str]:
    """Wait until a tile has many colors, and return them."""
    return set(wait_for(lambda: len(found := page.evaluate(COLORS, place)) > 12 and found, f"tile {place} is drawn"))


def nan_color(page: Page) -> str:
    """Return the color of NaN on this page."""
    script = "getComputedStyle(document.documentElement).getPropertyValue('--nan').trim().slice(1)"
    found = str(page.evaluate(script))
    return ",".join(str(int(found[at : at + 2], 16)) for at in (0, 2, 4))


@pytest.mark.rota
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_visible_layer_is_drawn_and_a_nan_has_its_own_color(visit: Open, paths: Paths, theme: str) -> None:
    with visit(theme=theme) as tab:
        tab.goto(paths("bad")["histograms"] + "?sort=bad")
        assert nan_color(tab.page) in drawn(tab.page)
        tab.goto(paths("ended")["histograms"])
        assert nan_color(tab.page) not in drawn(tab.page)
        assert tab.page.locator(".tile canvas").count() < tab.page.locator(".tile").count() + 1
        assert tab.axe() == []


def test_tiles_out_of_sight_have_no_canvas_until_they_are_visible_and_keep_their_zoom(
    visit: Open, paths: Paths
) -> None:
    with visit(size=(900, 500)) as tab:
        tab.goto(paths("ended")["histograms"] + "?size=l")
        drawn(tab.page)
        tiles, before = tab.page.locator(".tile"), tab.page.locator(".tile canvas").count()
        assert before < tiles.count()
        assert tiles.last.locator("canvas").count() == 0
        tiles.first.scroll_into_view_if_needed()
        box = tiles.first.locator("canvas").bounding_box()
        assert box is not None
        for place, act in ((0.3, "down"), (0.6, "up")):
            tab.page.mouse.move(box["x"] + 150, box["y"] + place * box["height"])
            getattr(tab.page.mouse, act)()
        expect(tiles.first.get_by_role("button", name="Reset zoom")).to_be_visible()
        tiles.last.scroll_into_view_if_needed()
        expect(tiles.last.locator("canvas")).to_have_count(1)
        expect(tiles.first.locator("canvas")).to_have_count(0)
        tiles.first.scroll_into_view_if_needed()
        expect(tiles.first.get_by_role("button", name="Reset zoom")).to_be_visible()


def test_one_request_fetches_all_visible_layers(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        asked: list[str] = []
        tab.page.on("request", lambda request: asked.append(request.url) if "/histograms?" in request.url else None)
        tab.goto(paths("ended")["histograms"])
        drawn(tab.page)
        tab.page.wait_for_timeout(500)
        numbers = [set(re.findall(r"tap=(\d+)", url)) for url in asked]
        assert numbers
        assert len(numbers) <= 3
        assert max(map(len, numbers)) > 5


def test_the_pointer_and_the_arrow_keys_read_step_bin_and_count(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["histograms"])
        drawn(tab.page)
        canvas = tab.page.locator(".tile canvas").nth(1)
        canvas.hover()
        tip = tab.page.locator(".tip:visible")
        expect(tip).to_contain_text(re.compile(r"step \d+\n.* of [\d,]+, [\d.< ]+%"))
        tab.page.mouse.move(5, 5)
        canvas.focus()
        tab.page.keyboard.press("ArrowLeft")
        expect(tab.page.locator("#announcer")).to_contain_text("step 59")  # the first key shows where the others begin
        tab.page.keyboard.press("ArrowLeft")
        expect(tab.page.locator("#announcer")).to_contain_text("step 58")
        tab.page.keyboard.press("Shift+ArrowLeft")
        expect(tab.page.locator("#announcer")).to_contain_text("step 48")
        tab.page.keyboard.press("Home")
        expect(tab.page.locator("#announcer")).to_contain_text(re.compile(r"^step 0\n"))
        expect(tip).to_contain_text("step 0")
        tab.page.keyboard.press("Escape")
        expect(tip).to_have_count(0)


def test_the_arrow_keys_read_the_values_of_one_step(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(f"{paths('ended')['histograms']}?view=bars&f=head")
        drawn(tab.page)
        canvas = tab.page.locator(".tile canvas").first
        canvas.focus()
        announcer, said = tab.page.locator("#announcer"), ""
        for _ in range(3):
            tab.page.keyboard.press("Shift+ArrowRight")
            expect(announcer).not_to_have_text(said)
            said = announcer.text_content() or ""
            expect(announcer).to_contain_text(re.compile(r"step 59\n.* of [\d,]+"))
        assert tab.axe() == []
        tab.page.get_by_label("Step", exact=True).fill("30")  # on a held page, they are those of its step
        tab.page.keyboard.press("Enter")
        expect(tab.page.locator("#status-words")).to_have_text(re.compile("held at step 30"))
        canvas.focus()
        tab.page.keyboard.press("ArrowLeft")
        expect(tab.page.locator("#announcer")).to_contain_text(re.compile(r"step 30\n.* of [\d,]+"))


def test_a_click_opens_the_layer_at_the_step_and_its_name_is_a_link(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["histograms"] + "?f=head")
        drawn(tab.page)
        link = tab.page.locator(".tile a").first
        assert "layers?module=head" in str(link.get_attribute("href"))
        tab.page.locator(".tile canvas").first.click(position={"x": 150, "y": 50})
        tab.page.wait_for_url(re.compile(r"/model/layers\?module=head&step=\d+"))


def test_the_view_is_in_the_url_and_restored_from_it(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["histograms"])
        drawn(tab.page)
        tab.page.select_option("select[name=kind]", "param_grad")
        expect(tab.page.locator("#wall-title")).to_have_text("Gradients of weights of each layer")
        for name, value in (("sort", "spread"), ("range", "shared"), ("size", "s"), ("view", "bars")):
            tab.page.select_option(f"select[name={name}]", value)
            assert f"{name}={value}" in tab.page.url
        drawn(tab.page)
        names = tab.page.locator(".tile h3").all_inner_texts()
        tab.page.reload()
        drawn(tab.page)
        assert tab.page.locator(".tile h3").all_inner_texts() == names
        assert tab.page.input_value("select[name=view]") == "bars"
        tab.page.keyboard.press("v")
        expect(tab.page.locator("select[name=view]")).to_have_value("map")
        for name, value in (("sort", "model"), ("kind", "output")):  # few gradients have few colors
            tab.page.select_option(f"select[name={name}]", value)
        drawn(tab.page)


def test_layers_are_sorted_by_their_zeros(visit: Open, paths: Paths, site: Site) -> None:
    run = site.run("ended")["id"]
    said = site.get(f"latest?run={run}&kind=output&sort=zero_fraction&limit=1")["taps"][0]
    with visit() as tab:
        tab.goto(paths("ended")["histograms"] + "?sort=zero")
        expect(tab.page.locator(".tile a").first).to_contain_text(said["module"])
        words = " ".join(tab.page.locator(".tile > p").all_text_contents())
        shares = [float(text) for text in re.findall(r"([\d.]+)% zeros", words)]
        assert len(shares) > 5
        assert shares == sorted(shares, reverse=True)


@pytest.mark.all
def test_the_find_box_filters_and_reports_an_empty_result(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["histograms"])
        drawn(tab.page)
        tab.page.fill("#find", "type:Linear")
        expect(tab.page.locator("#total")).to_have_text(re.compile(r"\d+ of \d+ layers"))
        assert {text.split()[-1] for text in tab.page.locator(".tile h3").all_inner_texts()} == {"Linear"}
        tab.page.fill("#find", "nothing.of.this.name")
        expect(tab.page.locator("#wall .empty")).to_contain_text("matches the filter")
        tab.page.get_by_role("link", name="Clear filter").click()
        expect(tab.page.locator("#wall .empty")).to_have_count(0)


@pytest.mark.all
def test_a_kind_that_is_not_captured_says_which_setting_to_change(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["histograms"] + "?kind=input_grad")
        expect(tab.page.locator("#wall .empty")).to_contain_text("this kind was not selected")
        expect(tab.page.locator("#wall .empty a")).to_have_attribute("href", re.compile("/capture$"))
        assert tab.axe() == []


def test_a_live_wall_follows_and_a_held_one_does_not_change(visit: Open, paths: Paths) -> None:
    asked: list[str] = []
    with visit() as tab:
        tab.page.on("request", lambda request: asked.append(request.url) if "/histograms?" in request.url else None)
        tab.goto(paths("live")["histograms"])
        drawn(tab.page)
        tab.wait_for(lambda: len(asked) >= 3, "it asks again as steps come")
        tab.page.click("#follow")
        tab.page.wait_for_timeout(1500)
        held = len(asked)
        tab.page.wait_for_timeout(5000)
        assert len(asked) == held


@pytest.mark.all
def test_the_wall_is_exported_as_a_picture_and_as_numbers(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.require_downloads()
        tab.goto(paths("ended")["histograms"])
        drawn(tab.page)
        for name, start in (("PNG", b"\x89PNG"), ("CSV", b'"tap"'), ("JSON", b"{")):
            with tab.page.expect_download() as coming:
                choose(tab.page.locator("#wall-card"), f"Save as {name}")
            content = coming.value.path().read_bytes()
            assert content.startswith(start)
        assert len(json.loads(content)["histograms"]) > 5


def test_without_javascript_every_layer_has_its_numbers(visit: Open, paths: Paths) -> None:
    with visit(java_script_enabled=False) as tab:
        tab.goto(paths("bad")["histograms"] + "?f=linear1&kind=output")
        tiles = tab.page.locator(".tile")
        assert tiles.count() == 3
        expect(tiles.nth(1)).to_contain_text("NaN/Inf")
        expect(tiles.first).to_contain_text("zeros")


def test_each_page_that_would_show_a_histogram_of_a_step_without_one_says_why_there_is_none(
    visit: Open, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKCORE_SKETCHES", "7")
    site.train("sparse", "--steps", "20")
    run = site.run("sparse", 20, "ended")["id"]
    why = re.compile(r"No histogram was counted in .*\. A training may count them in fewer steps than it captures")
    with visit() as tab:
        tab.goto(f"runs/{run}/flow/histograms?view=bars&step=10")
        expect(tab.page.locator("#wall-none")).to_have_text(why)
        tab.goto(f"runs/{run}/flow/histograms?view=bars&step=14")
        drawn(tab.page)
        expect(tab.page.locator("#wall-none")).to_be_hidden()
        tab.goto(f"runs/{run}/flow/precision?step=10")
        expect(tab.page.locator("#layers .empty")).to_have_text(why)
        tab.goto(f"runs/{run}/flow?step=10")
        tab.page.locator("#layers a").first.click()
        expect(tab.page.locator("#drawer-histogram")).to_contain_text(why)
        tab.goto(f"runs/{run}/flow/changes?step=10")
        expect(tab.page.locator("main")).to_contain_text("No histogram was counted in these steps.")
    site.remove(run)

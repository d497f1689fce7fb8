"""The Tensors page: a tensor is requested, arrives, and is inspected; attention across all layers."""

from __future__ import annotations

import io
import json
import re
import urllib.request
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.waiting import wait_for

from .browsing import choose, visiting
from .conftest import Open, Paths
from .site import Site


@pytest.fixture(scope="module")
def kept(site: Site) -> dict[str, int]:
    """Return the snapshots of the live run, by the label of the tap."""
    run = site.run("live")["id"]

    def post(path: str, body: Any = None) -> Any:
        data = json.dumps(body).encode() if body is not None else b""
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{site.url}/api/v1/{path}?run={run}", data, headers, method="POST")
        with urllib.request.urlopen(asked) as answer:
            return json.load(answer)

    wanted = [
        ("features.0", "output", ""),
        ("head", "param", "weight"),
        ("head", "param", "bias"),
        ("encoder", "output", ""),
    ]
    for module, kind, index in wanted:
        post("snapshots", {"module": module, "kind": kind, "index": index})
    post("attention-rollout")

    def came() -> dict[str, int]:
        found = {each["tap"]["label"]: each["number"] for each in site.get(f"snapshots?run={run}")["snapshots"]}
        expected = {"features.0 output", "head param [weight]", "head param [bias]", "encoder output"}
        return found if {"attention output [1]", *expected} <= set(found) else {}

    return dict(wait_for(came, "the snapshots come"))


def inspector(page: Page) -> str:
    """Return the text about the cell under the pointer."""
    return page.locator("#panes .inspector").first.inner_text()


def values_of(site: Site, number: int) -> Any:
    run = site.run("live")["id"]
    with urllib.request.urlopen(f"{site.url}/api/v1/snapshots/{number}?run={run}&format=npy") as answer:
        return np.load(io.BytesIO(answer.read()))


def test_a_tensor_is_requested_and_shown_as_soon_as_it_arrives(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("live")["tensors"])
        tab.page.fill("input[name=module]", "features.2")
        tab.page.keyboard.press("Tab")
        tab.page.click("#ask-button")
        expect(tab.page.locator("#asked li")).to_contain_text(
            re.compile("features.2 activation.*(Requested|Waiting|Captured)", re.S)
        )
        expect(tab.page.locator("#viewer-title")).to_have_text("features.2 Conv2d(16, 16) activation")
        expect(tab.page.locator("#kept [aria-current]")).to_contain_text("32 \u00d7 16 \u00d7 6 \u00d7 6")
        expect(tab.page.locator("#panes canvas.tiles")).to_be_visible()
        expect(tab.page).to_have_url(re.compile("snapshot="))
        assert tab.axe() == []


def test_the_value_under_the_pointer_and_the_statistics_are_those_of_the_tensor(
    visit: Open, paths: Paths, site: Site, kept: dict[str, int]
) -> None:
    number = kept["features.0 output"]
    values = values_of(site, number)
    with visit() as tab:
        tab.goto(paths("live")["tensors"] + f"?snapshot={number}&at=3")
        canvas = tab.page.locator("#panes canvas.tiles")
        canvas.hover(position={"x": 20, "y": 20})
        found = re.match(r"\[([\d, ]+)\]\s+(\S+)", wait_for(lambda: inspector(tab.page).strip(), "a value is told"))
        assert found
        indices = tuple(int(each) for each in found[1].split(", "))
        assert indices[0] == 3
        assert float(found[2].replace(",", "")) == pytest.approx(float(values[indices]), rel=1e-3)
        facts = dict(
            zip(
                tab.page.locator("#panes dt").all_inner_texts(),
                tab.page.locator("#panes dd").all_inner_texts(),
                strict=True,
            )
        )
        assert float(facts["mean"]) == pytest.approx(float(values[3].astype(float).mean()), rel=1e-3)
        assert facts["values"] == f"{values[3].size:,}"
        canvas.focus()
        tab.page.keyboard.press("ArrowRight")
        beside = (*indices[:3], indices[3] + 1)
        expect(tab.page.locator("#announcer")).to_contain_text(f"[{', '.join(map(str, beside))}]")


def test_a_failed_request_shows_no_other_picture_and_is_repeated(
    visit: Open, paths: Paths, kept: dict[str, int]
) -> None:
    with visit() as tab:
        page = tab.page
        tab.forgiven = ("503",)
        tab.goto(paths("live")["tensors"] + f"?snapshot={kept['features.0 output']}")
        expect(page.locator("#panes canvas.tiles")).to_be_visible()
        expect(page.locator("#rollout-matrix canvas")).to_be_visible()
        for asked in ("**/tiles?*", "**/attention-rollout?*"):
            page.route(asked, lambda route: route.fulfill(status=503, json={"error": "too busy"}))
        page.locator("#view").select_option(index=1)
        expect(page.locator("#panes")).to_contain_text("too busy. The chart will retry.")
        expect(page.locator("#panes .plot canvas")).to_have_count(0)
        page.locator("[name=fuse]").select_option("max")
        expect(page.locator("#rollout-problem")).to_have_text("too busy. The chart will retry.")
        expect(page.locator("#rollout-matrix")).to_be_hidden()
        page.unroute_all()
        expect(page.locator("#panes .plot canvas")).to_be_visible()
        expect(page.locator("#panes")).not_to_contain_text("too busy")
        expect(page.locator("#rollout-matrix canvas")).to_be_visible()


@pytest.mark.all
@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("features.0 output", "feature maps"),
        ("attention output [1]", "attention heads"),
        ("head param [weight]", "matrix"),
        ("encoder output", "sequence: positions by channels"),
        ("head param [bias]", "line along the last dimension"),
    ],
)
def test_the_view_is_selected_by_the_shape(
    visit: Open, paths: Paths, kept: dict[str, int], label: str, words: str
) -> None:
    with visit(theme="dark") as tab:
        tab.goto(paths("live")["tensors"] + f"?snapshot={kept[label]}")
        expect(tab.page.locator("#view option:checked")).to_have_text(words)
        expect(tab.page.locator("#panes canvas").first).to_be_visible()
        box = tab.page.locator("#panes canvas").first.bounding_box()
        assert box is not None
        tab.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.3)  # between axes and gaps
        assert wait_for(lambda: inspector(tab.page).startswith("["), "a value is told")
        assert tab.axe() == []


def test_the_view_is_in_the_url(visit: Open, paths: Paths, kept: dict[str, int]) -> None:
    with visit() as tab:
        tab.goto(paths("live")["tensors"] + f"?snapshot={kept['features.0 output']}")
        picker = tab.page.locator("#pickers input")
        picker.fill("5")
        picker.press("Enter")
        tab.page.select_option("select[name=scale]", "tile")
        tab.page.locator("[data-zoom=in]").click()
        expect(tab.page.locator("#panes .inspector")).to_be_visible()
        assert all(part in tab.page.url for part in ("at=5", "scale=tile", "zoom=2%3A6%2C2%3A6"))
        tab.page.reload()
        expect(tab.page.locator("#pickers input")).to_have_value("5")
        tab.page.locator("#panes canvas.tiles").hover(position={"x": 5, "y": 20})
        assert wait_for(lambda: inspector(tab.page).startswith("[5, 0, 2, 2]"), "the zoomed corner is told")
        tab.page.locator("[data-zoom=whole]").click()
        expect(tab.page.locator("#panes canvas.tiles")).to_be_visible()
        assert "zoom=" not in tab.page.url


@pytest.mark.all
def test_two_snapshots_are_shown_next_to_each_other_on_one_scale(
    visit: Open, paths: Paths, kept: dict[str, int]
) -> None:
    with visit() as tab:
        number = kept["head param [weight]"]
        tab.goto(f"{paths('live')['tensors']}?snapshot={number}&module=head&kind=param&index=weight")
        expect(tab.page.locator("select[name=index] option")).to_have_count(2)
        tab.page.click("#ask-button")
        # The page selects the new snapshot a moment after listing it, which would end a comparison begun before.
        expect(tab.page).not_to_have_url(re.compile(f"snapshot={number}"))
        expect(tab.page.locator("#kept .button", has_text="Compare").first).to_be_visible()
        tab.page.locator("#kept .button", has_text="Compare").first.click()
        expect(tab.page.locator("#panes .pane")).to_have_count(2)
        scales = tab.page.locator("#panes .scale-bar")
        expect(scales.nth(1)).not_to_be_empty()
        assert scales.nth(0).inner_text() == scales.nth(1).inner_text()
        assert "beside=" in tab.page.url
        assert tab.axe() == []


def test_a_tensor_is_downloaded_in_every_format(visit: Open, paths: Paths, site: Site, kept: dict[str, int]) -> None:
    number = kept["head param [weight]"]
    with visit() as tab:
        tab.require_downloads()
        tab.goto(paths("live")["tensors"] + f"?snapshot={number}")
        contents = {}
        for words in ("npy", "safetensors", "CSV", "PNG, one pixel per value"):
            with tab.page.expect_download() as coming:
                tab.page.locator("#panes").get_by_role("link", name=words, exact=True).click()
            contents[words] = coming.value.path().read_bytes()
        assert np.array_equal(np.load(io.BytesIO(contents["npy"])), values_of(site, number))
        assert b"values" in contents["safetensors"][:200]
        assert contents["CSV"].startswith(b'"0"')
        assert contents["PNG, one pixel per value"].startswith(b"\x89PNG")


def test_all_attention_maps_are_requested_and_rolled_out(
    visit: Open, paths: Paths, site: Site, kept: dict[str, int]
) -> None:
    with visit() as tab:
        tab.goto(paths("live")["tensors"])
        tab.page.click("#ask-attention")
        expect(tab.page.locator("#asked li").last).to_contain_text("possible attention map")
        expect(tab.page.locator("#rollout")).to_be_visible()
        # The maps of three layers with fused attention are there, too, if a step has measured it by now.
        expect(tab.page.locator("#rollout-about")).to_contain_text(re.compile("[28] heads, 36 positions"))
        tab.page.locator("#rollout-matrix canvas").hover(position={"x": 100, "y": 100})
        expect(tab.page.locator("#rollout-words")).to_have_text(
            re.compile(r"position \d+ \(r\d c\d\) \u2192 \d+ \(r\d c\d\): 0?\.?\d")
        )
        tab.page.locator("input[name=discard]").fill("0.5")
        expect(tab.page.locator("#discard-words")).to_have_text("50%")
        assert "discard=0.5" in tab.page.url
        oldest = str(tab.page.locator("#rollout-step option").last.get_attribute("value"))
        with tab.page.expect_request(re.compile(rf"attention-rollout\?.*\bstep={oldest}\b")):
            tab.page.select_option("#rollout-step", oldest)
        tab.page.fill("input[name=position]", "7")
        tab.page.keyboard.press("Tab")
        expect(tab.page.locator("#rollout-row")).to_contain_text("position 7 (r1 c1) attends to")
        # Of an automatic snapshot, which the oldest step may have, there are fewer samples.
        expect(tab.page.locator("#rollout-about")).to_contain_text(re.compile(r"sample 0 of (25|32) \(quarter \d\)"))
        choose(tab.page.locator("#rollout"), "Show as table")
        row = [float(text) for text in tab.page.locator("#rollout tbody tr").first.locator("td").all_inner_texts()]
        assert sum(row) == pytest.approx(1, abs=1e-2)
        assert tab.axe() == []


def test_an_ended_run_accepts_no_requests_and_a_missing_snapshot_says_so(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["tensors"] + "?snapshot=12345")
        expect(tab.page.locator("#ask-button")).to_be_disabled()
        expect(tab.page.locator("#ask-words")).to_contain_text("has ended")
        expect(tab.page.locator("#viewer-empty")).to_contain_text("Snapshot 12345 was discarded")
        assert tab.axe() == []


@pytest.mark.all
def test_a_request_to_a_dead_trainer_is_reported_as_lost(empty_site: Site, browser: Any) -> None:
    trainer = empty_site.train("dies", "--pause", "0.05")
    run = empty_site.run("dies", 3)["id"]
    with visiting(browser, empty_site.url) as tab:
        tab.goto(f"runs/{run}/model/tensors?module=head")
        expect(tab.page.locator("#ask-button")).to_be_enabled()
        trainer.kill()
        trainer.join()
        tab.page.click("#ask-button")
        expect(tab.page.locator("#asked li")).to_contain_text("Requested")
        expect(tab.page.locator("#asked li")).to_contain_text("Not captured: the run is lost", timeout=60_000)


def test_without_javascript_a_tensor_is_a_picture_with_its_statistics(
    visit: Open, paths: Paths, kept: dict[str, int]
) -> None:
    with visit(java_script_enabled=False) as tab:
        tab.goto(paths("live")["tensors"])
        tab.page.locator("#kept a", has_text="features.0 Conv2d(1, 16) activation").first.click()
        width = "document.querySelector('img.plain')?.naturalWidth"
        wait_for(lambda: tab.page.evaluate(width) == 8, "the picture is there, 8 values wide")
        expect(tab.page.locator("dl")).to_contain_text("mean")

"""The timeline under the header: by pointer, touch, and keyboard, in the address, live, and without a script."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from hookcore.records import Event, wire
from hookcore.records.vocabulary import SAMPLES_RATE, STEPS_RATE
from tests.build import frame, make_info, stats_of
from tests.serving import BATCH, make_taps
from tests.waiting import wait_for

from .browsing import visiting
from .conftest import Open
from .site import Site, running

RUN = "runs/long-run"
STEPS = 700
BAD = range(400, 410)
BATCH_ROWS = 32


def items(steps: range) -> list[Any]:
    """Return frames whose means are their steps, and whose loss is 10,000 minus the step."""
    made = []
    for step in steps:
        told = (Event(step, 1.0, "note", "a note", "warning"),) if step == 200 else ()
        scalars = {"loss": 10_000.0 - step} | (
            {STEPS_RATE: 10.0, SAMPLES_RATE: 10.0 * BATCH_ROWS} if step % 100 == 0 else {}
        )
        stats = stats_of(2, 1.0, mean=step, inf=0, nan=[0, int(step in BAD)])
        made.append(wire.frame_item(step, frame(step, stats, events=told, scalars=scalars, time_s=1.7e9 + step)))
    return made


def send(site: Site, run: str, steps: range, ends: bool = False) -> None:
    """Send frames as a trainer does."""
    more = [wire.EndItem(number=steps.stop, step=steps.stop - 1)] if ends else []
    taps: dict[str, Any] = {"taps": make_taps(2)} if steps.start == 0 else {"taps_from": 2}
    batch = wire.Batch(run=make_info(run), items=tuple(items(steps) + more), **taps)
    asked = urllib.request.Request(f"{site.url}/api/v1/ingest", wire.encode(batch), BATCH)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.status == 200


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tmp_path_factory.mktemp("timeline")) as found:
        send(found, "long-run", range(STEPS), ends=True)
        send(found, "going", range(50))
        yield found


@pytest.fixture
def visit(browser: Browser, site: Site) -> Open:
    return partial(visiting, browser, site.url)


def place(page: Page, step: float) -> tuple[float, float]:
    """Return the position of a step on the timeline."""
    box = page.locator("#track").bounding_box()
    assert box is not None
    return box["x"] + box["width"] * (step + 0.5) / STEPS, box["y"] + box["height"] * 0.7


def chosen(page: Page, name: str = "steps") -> str:
    """Return the selection in the address."""
    return str(page.evaluate("(name) => new URLSearchParams(location.search).get(name) ?? ''", name))


def ready(page: Page) -> None:
    """Wait for the script, which adds the handles."""
    expect(page.get_by_role("slider", name="To step")).to_be_attached()


def test_a_drag_selects_a_range_a_click_selects_a_step_and_both_can_be_cleared(visit: Open) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(RUN)
        ready(page)
        page.mouse.move(*place(page, 100))
        page.mouse.down()
        page.mouse.move(*place(page, 300), steps=5)
        expect(page.locator(".tip:visible")).to_contain_text("steps ")
        page.mouse.up()
        first, last = (int(each) for each in chosen(page).split("-"))
        assert abs(first - 100) <= 2
        assert abs(last - 300) <= 2
        expect(page.locator("#range-chip")).to_contain_text(f"steps {first}\u2013{last}")
        expect(page.locator("#scalars [id=scalar-loss] data")).to_have_text(f"{10_000 - last:,}")
        page.mouse.click(*place(page, 150))
        held = int(chosen(page, "step"))
        assert abs(held - 150) <= 2
        expect(page.locator("#step-box")).to_have_value(str(held))
        expect(page.locator("#scalars [id=scalar-loss] data")).to_have_text(f"{10_000 - held:,}")
        page.get_by_role("button", name="Show the default steps").click()
        expect(page.locator("#range-chip")).to_be_hidden()
        assert (chosen(page), chosen(page, "step")) == ("", str(held))
        page.get_by_role("button", name="Clear step").click()
        expect(page.locator("#scalars [id=scalar-loss] data")).to_have_text("9,301")
        assert "?" not in page.url


def test_the_knob_holds_the_page_once_on_release_and_so_does_a_click_on_a_line_chart(visit: Open) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(f"{RUN}?step=200")
        ready(page)
        box = page.get_by_role("slider", name="At step").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(*place(page, 300), steps=4)
        expect(page.locator(".tip:visible")).to_contain_text("step ")
        assert chosen(page, "step") == "200", "the page follows at the end"
        page.mouse.up()
        assert abs(int(chosen(page, "step")) - 300) <= 8
        before = chosen(page, "step")
        line = page.locator("#chart .plot-area")
        expect(line.locator(".main-svg").first).to_be_visible()
        line.click()
        wait_for(lambda: chosen(page, "step") not in ("", before), "the page is held at the step of the click")


@pytest.mark.all
def test_the_range_is_changed_by_its_handles_with_pointer_and_keys(visit: Open) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(f"{RUN}/flow?steps=200-400")
        ready(page)
        handle = page.get_by_role("slider", name="From step")
        box = handle.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 6, box["y"] + 8)
        page.mouse.down()
        page.mouse.move(*place(page, 250), steps=4)
        page.mouse.up()
        first = int(chosen(page).split("-")[0])
        assert abs(first - 250) <= 8
        handle.press("ArrowRight")
        expect(handle).to_have_attribute("aria-valuenow", str(first + 1))
        page.get_by_role("slider", name="To step").press("End")
        expect(page.locator("#range-words")).to_have_text(f"steps {first + 1}\u2013699")


def test_keys_reach_the_timeline_move_on_it_and_leave_it(visit: Open) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(RUN)
        ready(page)
        page.keyboard.press("w")
        slider = page.get_by_role("slider", name="At step")
        expect(slider).to_be_focused()
        expect(slider).to_have_attribute("aria-valuetext", "step 699, not held")
        page.keyboard.press("ArrowLeft")
        expect(slider).to_have_attribute("aria-valuetext", "step 698")
        page.keyboard.press("Home")
        expect(slider).to_have_attribute("aria-valuenow", "0")
        page.keyboard.press("Escape")
        expect(page.locator("main")).to_be_focused()
        page.keyboard.press("n")
        page.wait_for_function("() => location.search.includes('step=200')")
        page.keyboard.press("n")
        expect(page.locator("#step-box")).to_have_value("400")
        page.keyboard.press("p")
        expect(page.locator("#step-box")).to_have_value("200")
        page.keyboard.press("#")
        page.keyboard.type("123")
        page.keyboard.press("Enter")
        page.wait_for_function("() => location.search.includes('step=123')")
        page.keyboard.press("ArrowRight")  # the focus has left the box
        expect(page.locator("#step-box")).to_have_value("124")


def test_the_step_box_accepts_numbers_and_explains_errors(visit: Open) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(f"{RUN}/histograms")
        ready(page)
        box = page.get_by_label("Step", exact=True)
        box.fill("many")
        box.press("Enter")
        expect(box).to_have_attribute("aria-invalid", "true")
        expect(box).to_have_attribute("title", "Enter a step from 0 to 699")
        box.fill("1,234")
        box.press("Enter")
        expect(box).to_have_value("699")
        box.fill("")
        box.press("Enter")
        expect(page.locator("#status-words")).to_have_text("ended \u00b7 step 699")


def test_a_mark_opens_its_incident_at_its_step(visit: Open) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(f"{RUN}?steps=10-20")
        page.locator("a.mark.error .reach").click()
        page.wait_for_url("**/incident?id=*")
        expect(page.locator("#step-box")).to_have_value("400")
        expect(page.locator("#range-chip")).to_be_hidden()  # its default steps
        page.locator("nav.side a[data-place=flow]").click()
        page.wait_for_url("**/flow?steps=*&step=400")


@pytest.mark.all
def test_charts_zoom_on_both_axes_and_say_how_to_undo_it(visit: Open) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(RUN)
        figure = page.locator("#chart")
        expect(figure.locator(".plot-legend b").first).not_to_be_empty()
        box = figure.locator(".nsewdrag").bounding_box()
        assert box is not None
        reset = figure.get_by_role("button", name="Reset zoom")
        expect(reset).to_be_hidden()
        page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + box["height"] * 0.2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.6, steps=5)
        page.mouse.up()
        expect(reset).to_be_visible()
        first, last = (int(each) for each in chosen(page).split("-"))
        assert abs(first - 140) < 8
        assert abs(last - 420) < 8
        reset.click()
        expect(reset).to_be_hidden()
        assert chosen(page) == ""
        tab.goto(RUN)  # with the values of all steps, which arrive some time after the reset
        expect(figure.locator(".main-svg").first).to_be_visible()
        tab.wait_until_quiet()
        figure.locator(".plot-area").press("+")
        expect(reset).to_be_visible()
        figure.locator(".plot-area").press("-")
        expect(reset).to_be_hidden()


@pytest.mark.all
def test_the_axis_shows_samples_or_time_on_all_pages(visit: Open) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(RUN)
        ready(page)
        axis = "() => document.querySelector('#chart .js-plotly-plot')?.layout?.xaxis.range[1] ?? 0"
        expect(page.locator("#chart .main-svg").first).to_be_visible()
        page.get_by_label("Axis of charts").select_option("samples")
        page.wait_for_function(f"() => Math.abs(({axis})() - {STEPS * BATCH_ROWS}) <= {BATCH_ROWS}")
        page.locator("nav.side a[data-place=model]").click()
        page.wait_for_url("**by=samples*")
        page.get_by_label("Axis of charts").select_option("time")
        assert chosen(page, "by") == "time"
        expect(page.locator("#axis-why")).to_be_hidden()


@pytest.mark.all
def test_links_and_forms_of_a_page_keep_the_steps(visit: Open) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(f"{RUN}?steps=100-200")
        ready(page)
        page.get_by_label("Step", exact=True).fill("150")
        page.keyboard.press("Enter")
        tab.goto(f"{RUN}/model/layers?steps=100-200&step=150")
        ready(page)
        link = page.locator("#values tbody a").first
        link.hover()
        expect(link).to_have_attribute("href", re.compile(r"layers\?.*steps=100-200&step=150"))
        page.locator("#values input[name=match]").fill("layer.1")
        page.locator("#values").get_by_role("button", name="Show", exact=True).click()
        page.wait_for_url("**match=layer.1*")
        assert (chosen(page), chosen(page, "step")) == ("100-200", "150")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_touch_selects_on_a_phone_and_axe_passes(visit: Open, theme: Any) -> None:
    with visit(theme=theme, size=(390, 844), has_touch=True) as tab:
        page = tab.page
        tab.goto(f"{RUN}/hooks")
        ready(page)
        box = page.locator("#timeline").bounding_box()
        assert box is not None
        assert box["height"] <= 56
        page.touchscreen.tap(*place(page, 350))
        expect(page.locator("#step-box")).not_to_have_value("")
        fingers = page.context.new_cdp_session(page)
        path = [place(page, 100), place(page, 120), place(page, 200)]
        for kind, at in zip(("touchStart", "touchMove", "touchMove", "touchEnd"), [*path, None], strict=True):
            points = [] if at is None else [{"x": at[0], "y": at[1]}]
            fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        expect(page.locator("#range-chip")).to_be_visible()
        first, last = (int(each) for each in chosen(page).split("-"))
        assert abs(first - 100) <= 12
        assert abs(last - 200) <= 12
        assert tab.axe() == []


def test_a_live_timeline_grows_without_replacing_anything_else(visit: Open, site: Site) -> None:
    with visit() as tab:
        page = tab.page
        send(site, "going", range(50, 60))  # by now, it may be lost
        tab.goto("runs/going/capture")
        ready(page)
        expect(page.locator("#range-words")).to_have_text("newest 500 steps")
        page.evaluate("for (const each of document.querySelectorAll('#track, .handle, #when')) each.mine = true")
        box = page.get_by_label("Step", exact=True)
        box.focus()
        page.keyboard.type("1")
        before = page.locator("#timeline-line .mean").get_attribute("d")
        send(site, "going", range(60, 90))
        expect(page.locator("#timeline-end")).to_have_text("89")
        expect(page.locator("#timeline-line .mean")).not_to_have_attribute("d", str(before))
        expect(box).to_have_value("1")
        assert page.evaluate("[...document.querySelectorAll('#track, .handle, #when')].every(({ mine }) => mine)")


def test_the_timeline_works_without_scripts(visit: Open) -> None:
    with visit(java_script_enabled=False) as tab:
        tab.goto(f"{RUN}?steps=100-200")
        tab.page.get_by_label("Step", exact=True).fill("150")
        tab.page.get_by_role("button", name="Go", exact=True).click()
        tab.page.wait_for_url("**steps=100-200&step=150*")
        expect(tab.page.locator("#scalars [id=scalar-loss] data")).to_have_text("9,850")

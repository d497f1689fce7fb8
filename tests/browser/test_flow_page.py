"""The Gradient flow page: one step from input to output, every layer over the steps, and the view in the URL."""

from __future__ import annotations

import re
import urllib.request

import pytest
from playwright.sync_api import Page, expect

from tests.waiting import wait_for

from .browsing import choose
from .conftest import Open, Paths
from .site import Site

DRAWN = """() => new Promise((done) => {
  const look = () => {
    const canvas = document.querySelector('#flow .heat-picture'); // loaded when it comes near
    if (!canvas?.width || !canvas.height) return setTimeout(look, 50);
    const pixels = new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return new Set(pixels).size > 40 ? done(true) : setTimeout(look, 50);
  };
  look();
})"""


def becomes(page: Page, expression: str) -> None:
    """Wait for a condition on the page."""
    wait_for(lambda: page.evaluate(expression), expression)


def opened(tab: Page) -> Page:
    """Open the page, and wait until its numbers are drawn."""
    expect(tab.locator("#flow-count")).to_have_text(re.compile(r"\d+ layers$"))
    tab.evaluate(DRAWN)
    return tab


def test_without_javascript_the_page_has_every_layer_of_the_step_with_both_numbers(
    visit: Open, paths: Paths, site: Site
) -> None:
    with visit(java_script_enabled=False) as tab:
        tab.goto(paths("bad")["flow"] + "?step=20")
        row = tab.page.locator("#layers tbody tr", has_text="encoder.layers.1.linear1").first
        words = row.inner_text().split("\t")
        assert words[1:3] == ["Linear", "20"]
        assert 0 < float(words[4]) < 1e3
        expect(tab.page.locator("#layers h2")).to_have_text("The layers at step 20")
        tab.goto(paths("bad")["flow"])
        assert "NaN/Inf" in tab.page.locator("#layers tbody").inner_text()


def test_the_server_finds_the_same_as_the_find_box_and_reports_invalid_input(paths: Paths, site: Site) -> None:
    def page(query: str) -> str:
        with urllib.request.urlopen(f"{site.url}/{paths('ended')['flow']}?{query}") as answer:
            return str(answer.read().decode())

    assert "head</a>" not in page("f=layers.1")
    assert "encoder.layers.1.norm1" in page("f=layers.1")
    assert "encoder.layers.2.norm1" in page("f=*.norm1")
    assert "linear1" not in page("f=*.norm1").partition("<tbody>")[2]
    assert "The filter matches no layer" in page("f=nowhere")
    assert "regular expression" in page("f=re:((")
    assert "encoder.layers.0.linear1" in page("type=Linear")


def test_the_first_bad_layers_are_at_the_top_by_default_and_the_order_can_be_changed(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["flow"] + "?kind=output&stat=rms&rows=read")
        opened(tab.page)
        table = tab.page.locator("#flow .card-table tbody th")
        choose(tab.page, "Show as table", "Over steps")
        expect(table.first).to_have_text("encoder.layers.1.linear1")
        tab.page.get_by_label("Sort").select_option("model")
        expect(table.first).to_have_text("features.0")
        assert "sort=model" in tab.page.url


def test_every_control_is_in_the_url_and_the_url_sets_every_control(visit: Open, paths: Paths) -> None:
    query = "kind=output&stat=mean&act=norm&grad=rms&type=Linear&sort=value&rows=read&y=symlog&relative=1&step=30"
    with visit() as tab:
        tab.goto(f"{paths('ended')['flow']}?{query}")
        expect(tab.page.locator("#flow-count")).to_have_text(re.compile("of"))
        found = tab.page.evaluate(
            "() => Object.fromEntries([...document.querySelectorAll('main [data-state]')]"
            ".map((each) => [each.name, each.type === 'checkbox' ? Number(each.checked) + '' : each.value]))"
        )
        assert found == dict(pair.split("=") for pair in query.split("&") if not pair.startswith("step"))
        expect(tab.page.locator("#profile-step")).to_have_text("step 30")
        tab.page.get_by_label("Kind").select_option("param_grad")
        tab.page.get_by_label("relative").uncheck()
        assert "kind=param_grad" in tab.page.url
        assert "relative" not in tab.page.url


def test_a_held_page_has_the_bars_of_its_step(visit: Open, paths: Paths, site: Site) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["flow"])
        opened(tab.page)
        choose(tab.page, "Show as table", "One step, from input to output")
        cell = (
            tab.page.locator("#profile .card-table tbody tr", has_text="encoder.layers.1.linear2").locator("td").nth(2)
        )
        expect(cell).to_have_text("NaN")
        tab.page.get_by_label("Step", exact=True).fill("30")
        tab.page.keyboard.press("Enter")
        expect(tab.page.locator("#status-words")).to_have_text(re.compile("held at step 30"))
        expect(cell).not_to_have_text("NaN")
        assert "step=30" in tab.page.url
        run = paths("bad")["flow"].split("/")[1]
        said = site.get(f"series?run={run}&tap=encoder.layers.1.linear2%20output_grad&stat=norm&from=30&to=30&points=1")
        exact = said["mean"][0] if "mean" in said else said["series"][0]["mean"][0]
        assert float(cell.inner_text().replace("e-", "E-")) == pytest.approx(exact, rel=1e-3)


@pytest.mark.all
def test_the_find_box_and_the_type_filter_all_charts(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["flow"])
        opened(tab.page)
        tab.page.locator("#find").fill("type:LayerNorm layers.1")
        expect(tab.page.locator("#flow-count")).to_have_text(re.compile(r"^2 of \d+ layers"))
        tab.page.locator("#find").fill("nowhere")
        expect(tab.page.locator("#flow-empty")).to_contain_text("The filter matches nothing")
        tab.page.locator("#find").fill("re:((")
        expect(tab.page.locator("#find-problem")).to_contain_text("regular expression")
        tab.page.locator("#find").fill("")
        expect(tab.page.locator("#flow-empty")).to_be_hidden()
        tab.page.get_by_label("Type").select_option("Linear")
        expect(tab.page.locator("#flow-count")).to_have_text(re.compile(r"^\d of \d+ layers"))


def test_a_click_or_a_key_opens_the_drawer_of_a_layer_which_all_charts_mark(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["flow"])
        page = opened(tab.page)
        title = page.locator("#drawer h2")
        bars = page.locator("#profile [role=application]")
        bars.hover()
        bars.click(position={"x": 62, "y": 60})
        expect(title).to_have_text("features.0")
        page.keyboard.press("j")
        expect(title).to_have_text("features.1")
        page.keyboard.press("Escape")
        expect(page.locator("#drawer")).to_be_hidden()
        page.locator("#flow .heat-pad").click(position={"x": 20, "y": 10})  # a name
        expect(title).to_have_text("features.0")
        assert "step=" not in page.url
        page.keyboard.press("Escape")
        expect(page.locator("#flow .heat-pad")).to_be_focused()
        before = page.evaluate("document.querySelector('#flow .heat-over').toDataURL()")
        page.locator("#flow .heat-pad").click(position={"x": 300, "y": 10})  # a cell, which has a step
        expect(title).to_have_text("features.0")
        expect(page.locator("#status-words")).to_have_text(re.compile("held at step"))
        page.mouse.move(0, 0)
        becomes(page, f"document.querySelector('#flow .heat-over').toDataURL() !== {before!r}")
        tab.goto(paths("ended")["flow"] + "?drawer=module%3D")  # the root
        expect(title).to_have_text("Net")


def test_a_live_run_advances_and_stops_while_it_is_paused(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("live")["flow"])
        page = opened(tab.page)
        listen = "window.steps = []; document.addEventListener('hookcore:drawn', ({ detail }) => steps.push(detail))"
        page.evaluate(listen)
        becomes(page, "new Set(steps.filter(({ kind }) => kind === 'heat').map(({ step }) => step)).size > 3")
        becomes(page, "new Set(steps.filter(({ kind }) => kind === 'bars').map(({ step }) => step)).size > 3")
        page.get_by_role("button", name="Pause").click()
        words = page.locator("#profile-step")
        expect(page).to_have_url(re.compile(r"[?&]step=\d+"))
        held = f"step {page.evaluate('Number(new URLSearchParams(location.search).get(`step`)).toLocaleString(`en`)')}"
        expect(words).to_have_text(held)
        expect(page.locator("#status-words")).to_have_text(re.compile(r"[2-9] new steps|\d\d new steps"))
        assert words.inner_text() == held
        page.get_by_role("button", name="Jump to live").click()
        expect(words).not_to_have_text(held)


def test_the_table_of_layers_follows_the_run_and_the_controls(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("live")["flow"])
        table = tab.page.locator("#layers")
        step = table.locator("tbody tr td:nth-child(3)").first
        table.scroll_into_view_if_needed()
        before = step.inner_text()
        expect(step).not_to_have_text(before)
        tab.page.locator("select[name=type]").select_option("Conv2d")
        expect(table.locator("tbody tr")).to_have_count(2)
        tab.page.locator("select[name=act]").select_option("mean")
        expect(table.locator("thead")).to_contain_text("activation mean")
        tab.page.locator("#follow").click()
        table.scroll_into_view_if_needed()  # only parts in view are up to date
        expect(table.locator("h2")).to_have_text(re.compile(r"step \d"))


def test_an_empty_page_says_why(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["flow"] + "?kind=input")
        expect(tab.page.locator("#flow-empty")).to_contain_text("this kind was not selected")
        expect(tab.page.locator("#ratio-empty")).to_be_hidden()  # updates are measured in a few steps by default


def test_keys_change_scale_rows_and_relative(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["flow"])
        page = opened(tab.page)
        for key in "lfr":
            page.keyboard.press(key)
        assert {"y=linear", "rows=read", "relative=1"} <= set(page.url.partition("?")[2].split("&"))
        expect(page.locator("#flow [name=y]")).to_have_value("linear")

"""The Layer page: everything about one module, with and without a script."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.waiting import wait_for

from .browsing import PATIENCE_MS, choose
from .conftest import Open, Paths
from .site import PATIENCE_S, Site


def test_without_a_script_a_layer_has_its_facts_and_its_newest_values(visit: Open, paths: Paths, site: Site) -> None:
    run = site.run("ended")["id"]
    found = site.get(f"latest?run={run}&match=encoder.layers.1.linear1&kind=output")
    values = dict(zip(found["stats"], found["taps"][0]["values"], strict=True))
    with visit(java_script_enabled=False) as tab:
        tab.goto(paths("ended")["layer"])
        page = tab.page
        expect(page.locator("h1")).to_contain_text("encoder.layers.1.linear1 Linear")
        facts = page.locator("dl.facts")
        expect(facts).to_contain_text("544")
        expect(facts).to_contain_text("32 \u00d7 16")
        expect(facts).to_contain_text("32 \u00d7 36 \u00d7 32")
        row = page.locator("#values tbody tr").filter(has=page.get_by_role("rowheader", name="activation", exact=True))
        expect(row.locator("td").first).to_have_text("59")
        assert float(row.locator("data").first.get_attribute("value") or "nan") == values["mean"]
        kinds = page.locator("#values tbody th").all_inner_texts()
        assert kinds == [
            "activation",
            "activation gradient",
            "weight gradient [weight]",
            "weight gradient [bias]",
            "update [weight]",
            "update [bias]",
            "first moment [weight]",
            "first moment [bias]",
            "second moment [weight]",
            "second moment [bias]",
        ]


@pytest.mark.all
def test_another_format_of_numbers_applies_to_an_open_page(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["layer"])
        value = tab.page.locator("#values data").first
        expect(value).not_to_contain_text("e")
        settings = tab.page.context.new_page()
        settings.goto(str(tab.page.evaluate("new URL('settings', document.baseURI).href")))
        settings.get_by_label("Numbers").select_option("scientific")
        expect(value).to_contain_text("e")


def test_the_keys_move_to_the_neighbors_and_keep_the_view(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["layer"] + "&kind=output&smooth=5")
        page = tab.page
        expect(page.locator("#charts figure")).to_have_count(4)
        page.keyboard.press("j")
        expect(page.locator("h1")).to_contain_text("encoder.layers.1.dropout")
        assert "kind=output&smooth=5" in page.url
        expect(page.locator("#charts figure")).to_have_count(4)
        page.keyboard.press("k")
        expect(page.locator("h1")).to_contain_text("encoder.layers.1.linear1")
        expect(page.locator("#charts figure")).to_have_count(4)
        page.keyboard.press("u")
        expect(page.locator("h1")).to_contain_text("TransformerEncoderLayer")
        expect(page.locator(".children")).to_contain_text("linear1")


def test_the_inputs_and_consumers_of_a_layer_are_one_click_away(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["layer"] + "&kind=output")
        page = tab.page
        expect(page.locator("#feeds")).to_contain_text("encoder.layers.1.dropout")
        page.locator("#fed-by").get_by_role("link", name="encoder.layers.1.norm1", exact=True).click()
        expect(page.locator("h1")).to_contain_text("encoder.layers.1.norm1")
        assert "kind=output" in page.url
        expect(page.locator("#feeds")).to_contain_text("encoder.layers.1.linear1")
        page.goto(page.url.replace("encoder.layers.1.norm1", "encoder.layers.1"))
        expect(page.locator("#fed-by a")).to_have_count(1)
        expect(page.locator("#fed-by")).to_contain_text("encoder.layers.0.norm2")


@pytest.mark.all
def test_the_root_has_its_own_page(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["layers"] + "?module=")
        expect(tab.page.locator("h1")).to_contain_text("Net")
        expect(tab.page.locator("#chart-values .main-svg").first).to_be_attached(timeout=PATIENCE_MS)


@pytest.mark.all
def test_an_unknown_module_is_named_with_similar_ones(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.forgiven = ("404",)
        tab.goto(paths("ended")["layers"] + "?module=encoder.layers.1.linaer1")
        alert = tab.page.get_by_role("alert")
        expect(alert).to_contain_text("no module encoder.layers.1.linaer1")
        alert.get_by_role("link", name="encoder.layers.1.linear1").click()
        expect(tab.page.locator("h1")).to_contain_text("encoder.layers.1.linear1 Linear")


def test_an_uncaptured_layer_says_why(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["layers"] + "?module=unused")
        page = tab.page
        expect(page.locator(".why")).to_contain_text("not called")
        expect(page.locator("#values")).to_contain_text("not captured")
        expect(page.locator("#charts > .empty")).to_contain_text("Nothing was captured", timeout=PATIENCE_MS)
        expect(page.locator("#charts figure:visible")).to_have_count(0)
        expect(page.locator("#missing")).to_contain_text("weights")


@pytest.mark.all
def test_the_list_of_layers_is_filtered_while_typing(visit: Open, paths: Paths, site: Site) -> None:
    many = site.get(f"runs/{site.run('ended')['id']}/modules?limit=1")["total"]
    with visit() as tab:
        tab.goto(paths("ended")["layers"])
        page = tab.page
        rows = page.locator("#modules tbody tr:visible")
        expect(rows).to_have_count(many)
        expect(page.locator("#find")).to_have_count(0)  # one box only
        page.keyboard.press("/")
        page.keyboard.type("type:LayerNorm")
        expect(rows).to_have_count(6)
        expect(page.locator("#found")).to_have_text(f"6 of {many} modules")
        assert "f=type%3ALayerNorm" in page.url
        page.get_by_label("Find", exact=True).fill("/[/")
        expect(page.locator("#find-problem")).not_to_be_empty()
        expect(rows).to_have_count(6)
        page.get_by_label("Find", exact=True).fill("head")
        page.get_by_role("region", name="Modules").get_by_role("link", name="head", exact=True).click()
        expect(page.locator("h1")).to_contain_text("head Linear")


def test_the_list_of_layers_is_filtered_by_the_server_too(visit: Open, paths: Paths) -> None:
    with visit(java_script_enabled=False) as tab:
        tab.goto(paths("ended")["layers"] + "?f=type%3ALayerNorm")
        expect(tab.page.locator("#modules tbody tr")).to_have_count(6)


def test_a_tensor_is_selected_by_kind_and_place_and_the_url_says_so(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["layer"])
        page = tab.page
        expect(page.locator("#charts figure")).to_have_count(4)
        expect(page.locator("#index-label")).to_be_hidden()
        page.locator("#layer-tools [name=kind]").select_option("param_grad")
        expect(page.locator("#chart-size h2")).to_have_text("Size: rms and norm")
        expect(page.locator("#layer-tools [name=index]")).to_have_value("weight")
        page.locator("#layer-tools [name=index]").select_option("bias")
        assert "kind=param_grad&index=bias" in page.url
        page.locator("#distributions").scroll_into_view_if_needed()
        expect(page.locator("#distributions h3")).to_have_text(["bias gradient"])
        page.reload()
        expect(page.locator("#layer-tools [name=index]")).to_have_value("bias")
        expect(page.locator("#layer-tools [name=kind]")).to_have_value("param_grad")


def test_values_at_a_step_are_those_of_that_step(visit: Open, paths: Paths, site: Site) -> None:
    run = site.run("ended")["id"]
    said = site.get(f"series?run={run}&tap=encoder.layers.1.linear1%20output&stat=mean&from=20&to=20")["series"][0]
    with visit() as tab:
        tab.goto(paths("ended")["layer"])
        page = tab.page
        field = page.get_by_label("Step", exact=True)
        field.fill("20")
        field.press("Enter")
        page.locator("#values").scroll_into_view_if_needed()
        expect(page.locator("#values header")).to_contain_text("in step 20")
        first = page.locator("#values tbody tr").first
        expect(first.locator("td").first).to_have_text("20")
        assert float(first.locator("data").first.get_attribute("value") or "nan") == said["mean"][0]
        assert "step=20" in page.url
        page.keyboard.press("Escape")
        page.locator("#main").focus()
        page.keyboard.press("ArrowRight")
        page.locator("#values").scroll_into_view_if_needed()
        expect(page.locator("#values header")).to_contain_text("in step 21")
        expect(field).to_have_value("21")


def test_a_non_finite_layer_shows_its_alert_and_since_when(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("bad")["layer"])
        expect(tab.page.locator("#alerts-here li").first).to_contain_text("step 40")
        expect(tab.page.locator("#values tbody tr").first).to_contain_text("NaN/Inf")


def test_the_distributions_are_drawn_when_they_become_visible(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        canvases = page.locator("#histograms canvas")
        # The page may request it before scrolling, because parts almost in view count as visible.
        with page.expect_response(re.compile(r"api/v1/histograms"), timeout=PATIENCE_MS) as answer:
            tab.goto(paths("ended")["layer"])
            expect(canvases).to_have_count(4, timeout=PATIENCE_MS)
            page.locator("#distributions").scroll_into_view_if_needed()
        assert answer.value.ok
        colors = """(canvas) => {
            const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(pixels.buffer)).size;
        }"""
        choose(page.locator("#histograms figure").first, "Show as table")
        expect(page.locator("#histograms .card-table").first.get_by_role("row").nth(2)).to_be_attached()
        wait_for(lambda: canvases.first.evaluate(colors) > 10, "the first distribution is drawn")


def test_the_newest_values_of_a_live_run_appear_by_themselves(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("live")["layer"])
        step = tab.page.locator("#values tbody tr").first.locator("td").first
        step.scroll_into_view_if_needed()
        before = step.inner_text()
        # On a busy machine, the page requests data less often.
        expect(step).not_to_have_text(before, timeout=1000 * PATIENCE_S)


@pytest.mark.all
def test_charts_say_that_the_dashboard_is_away_and_fill_when_it_is_back(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.forgiven = ("net::ERR",)
        tab.page.route("**/api/v1/series?*", lambda route: route.abort())
        tab.goto(paths("ended")["layer"])
        expect(tab.page.locator("#charts")).to_contain_text(
            "The dashboard isn\u2019t responding. Values appear when it is back."
        )
        tab.page.unroute("**/api/v1/series?*")
        expect(tab.page.locator("#charts .plot-legend").first).to_contain_text("mean", timeout=PATIENCE_MS)
        tab.page.route("**/api/v1/series?*", lambda route: route.abort())
        with tab.page.expect_request("**/api/v1/series?*"):
            tab.page.get_by_label("Smoothing").select_option("20")
        tab.page.wait_for_timeout(200)
        expect(tab.page.locator("#charts .plot-legend").first).to_contain_text("mean")  # its data is still correct


def test_hooks_of_the_module_or_their_absence_are_shown(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(paths("ended")["layer"])
        expect(tab.page.locator("#hooks-here")).to_contain_text("process-wide hooks run for every module")


def test_channels_are_captured_on_request_and_shown_by_channel_and_step(visit: Open, paths: Paths, site: Site) -> None:
    run = site.run("live")["id"]
    module = "encoder.layers.0.linear1"  # no other test reads its charts; from now on, they include one of probes
    label = f"{module} probe [channel_rms]"
    with visit() as tab:
        tab.goto(f"{paths('live')['layers']}?module={module}")
        page = tab.page
        card = page.locator("#channels")
        card.scroll_into_view_if_needed()
        expect(page.locator("#channel-code")).to_contain_text(f'channel_rms, include="{module}"')
        expect(page.locator("#channels .plot")).to_be_hidden()
        page.get_by_role("button", name="Capture channels of this layer").click()
        expect(page.locator("#channel-told")).to_have_text("Applied.", timeout=PATIENCE_MS)
        expect(page.locator("#channels .plot")).to_be_visible(timeout=PATIENCE_MS)
        expect(page.locator("#channel-guide")).to_be_hidden()
        expect(page.locator("#channel-caption")).to_contain_text("32 channels. Channel 0 is on top.")
        page.get_by_label("Order").select_option("largest")
        order = re.compile(r"Sorted by the values of step [\d,]+, largest first\.")
        expect(page.locator("#channel-caption")).to_contain_text(order)
        page.locator("#channel-probe").select_option(label)
        assert "order=largest" in page.url
        page.get_by_role("button", name="Stop capturing channels").click()
        expect(page.get_by_role("button", name="Capture channels of this layer")).to_be_visible(timeout=PATIENCE_MS)
        page.get_by_role("button", name="Pause", exact=True).click()
        found = site.get(f"channels?run={run}&tap={quote(label)}")
        newest = [row[-1] for row in found["values"]]
        top = newest.index(max(newest))
        first, last = found["first_step"][-1], found["last_step"][-1]
        sorted_by = f"step {last:,}" if first == last else f"steps {first:,} to {last:,}"
        expect(page.locator("#channel-caption")).to_contain_text(f"Sorted by the values of {sorted_by}, largest first.")
        page.locator("#channels [role=application]").focus()
        page.keyboard.press("ArrowUp")
        expect(page.locator("#announcer")).to_contain_text(f"channel {top}, step")
        choose(page, "Show as table", "Channels")
        expect(page.locator("#channels tbody tr")).to_have_count(32)
        expect(page.locator("#channels tbody th").first).to_have_text(f"channel {top}")

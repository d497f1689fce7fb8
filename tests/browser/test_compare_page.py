"""The Compare page: where two runs differ, by how much, and their settings."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, expect

from hookcore.records import Tap
from hookcore_app.serving import server_thread
from tests.build import append, open_run

from .browsing import choose, visiting
from .conftest import Open, Paths
from .site import Site


def test_the_first_differing_step_and_layer_are_shown_with_links_to_both_runs(
    visit: Open, paths: Paths, site: Site
) -> None:
    with visit(java_script_enabled=False) as tab:
        tab.goto(paths("ended")["compare"])
        verdict = tab.page.locator(".verdict")
        expect(verdict).to_contain_text("The runs first differ at step 40")
        expect(verdict).to_contain_text("encoder.layers.1.linear1")
        links = [link.get_attribute("href") or "" for link in verdict.get_by_role("link").all()]
        for name in ("ended", "bad"):
            wanted = f"runs/{site.run(name)['id']}/model/layers?module=encoder.layers.1.linear1&step=40"
            assert wanted in links


def test_the_layers_are_sorted_by_difference_or_by_step(visit: Open, paths: Paths) -> None:
    with visit(java_script_enabled=False) as tab:
        page = tab.page
        tab.goto(paths("ended")["compare"])
        expect(page.locator("#layers tbody th").first).to_have_text("encoder.layers.1.linear1")
        expect(page.locator("#layers tbody tr").first).to_contain_text("finite in one run only")
        page.get_by_role("columnheader", name="Layer").get_by_role("link").click()
        expect(page.locator("#layers tbody th").first).to_have_text("features.0 Conv2d(1, 16)")
        assert "sort=model" in page.url


@pytest.mark.all
def test_a_run_does_not_differ_from_itself(visit: Open, paths: Paths, site: Site) -> None:
    run = site.run("ended")["id"]
    with visit() as tab:
        tab.goto(f"compare?a={run}&b={run}")
        expect(tab.page.locator(".verdict")).to_contain_text("No difference in the 60 steps that both runs captured")


def test_swapping_and_other_choices_keep_the_rest_of_the_selection(visit: Open, paths: Paths, site: Site) -> None:
    ended, bad = site.run("ended")["id"], site.run("bad")["id"]
    with visit() as tab:
        page = tab.page
        tab.goto(f"compare?a={ended}&b={bad}&tolerance=0.5")
        page.locator("[name=kind]").select_option("param_grad")
        page.wait_for_url("**kind=param_grad**")
        expect(page.locator("[name=tolerance]")).to_have_value("0.5")
        page.get_by_role("link", name="Swap").click()
        page.wait_for_url(f"**a={bad}&b={ended}**")
        expect(page.locator("[name=kind]")).to_have_value("param_grad")
        expect(page.locator("#run-a")).to_have_value(bad)


def test_the_heatmap_and_both_lines_are_drawn_and_a_layer_is_selected(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(paths("ended")["compare"])
        expect(page.locator("#differences canvas").first).to_be_visible()
        expect(page.locator("#layer-lines h2")).to_have_text("encoder.layers.1.linear1: rms of activation")
        expect(page.locator("#layer-lines svg").first).to_be_visible()
        expect(page.locator("#loss-lines svg").first).to_be_visible()
        for name in ("pagehide", "pageshow"):  # the reader leaves the page, and returns
            page.evaluate(f"dispatchEvent(new PageTransitionEvent('{name}', {{persisted: true}}))")
        expect(page.locator("#layer-lines .main-svg").first).to_be_visible()
        page.locator("select[name=by]").select_option("time")
        for figure in ("#layer-lines", "#loss-lines"):
            expect(page.locator(f"{figure} .xtick").last).to_have_text(re.compile(r" s$|:"))
        page.locator("select[name=by]").select_option("step")
        page.locator("#layers").get_by_role("link", name="head", exact=True).click()
        expect(page.locator("#layer-lines h2")).to_have_text("head: rms of activation")
        expect(page.locator("tr.picked")).to_contain_text("head")
        assert "module=head" in page.url
        choose(page, "Show as table", "Difference by layer and step")
        expect(page.locator("#differences table")).to_contain_text("encoder.layers.1.linear1")
        pictures = ("compare/heatmap?", "series?", "scalars?")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        tab.goto(paths("ended")["compare"] + "&steps=10-20")
        expect(page.locator("#differences canvas").first).to_be_visible()
        expect(page.locator("#layer-lines svg").first).to_be_visible()
        zoomed = [url for url in asked if any(each in url for each in pictures)]
        assert len(zoomed) == 5
        assert all("from=10&to=20" in url for url in zoomed)


def test_a_comparison_of_live_runs_follows_them(browser: Browser, request: pytest.FixtureRequest) -> None:
    server = server_thread.start(port=0)
    request.addfinalizer(server.stop)
    runs = [open_run(server.runs, name, name=name) for name in ("first", "second")]
    taps = (Tap("layer", "output"),)

    def train(steps: range, differs_at: int = -1) -> None:
        for run in runs:
            for step in steps:
                rms = [2.0 if step == differs_at and run is runs[1] else 1.0]
                append(run.store, step, rms, new=() if step else taps, scalars={"loss": 1.0})
            run.changes.tell()

    train(range(10))
    with visiting(browser, str(server.url).rstrip("/") + "/") as tab:
        page = tab.page
        page.clock.install()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        tab.goto("compare?a=first&b=second&f=layer")
        expect(page.locator(".verdict")).to_contain_text("No difference in the 10 steps that both runs captured")
        choose(page, "Show as table", "A layer in both runs")
        newest = page.locator("#layer-lines tbody th").first
        expect(newest).to_have_text("9")
        page.clock.fast_forward(11_000)
        page.wait_for_timeout(300)
        assert sum("compare/heatmap?" in url for url in asked) == 1  # the first message of the socket doesn't count
        train(range(10, 20), differs_at=15)

        def follows(part: str, shown: Locator, words: str) -> None:
            """Wait for the contents of a part, without the pauses, which are ten times as long as a comparison."""
            page.locator(part).evaluate("part => part.scrollIntoView()")  # only parts in view are updated
            tab.wait_for(
                lambda: page.clock.fast_forward(61_000) or words in (shown.text_content() or ""), f"{part}: {words}"
            )

        follows(".verdict", page.locator(".verdict"), "The runs first differ at step 15")
        follows("#layer-lines", newest, "19")
        follows("#settings", page.locator("#settings"), "20")
        follows("#largest", page.locator("#layers tbody tr.picked"), "20")  # steps compared


@pytest.mark.all
def test_exports_contain_each_run_and_not_the_newest_run_twice(visit: Open, paths: Paths, site: Site) -> None:
    wanted = [site.run(name)["id"] for name in ("ended", "bad")]
    exported: list[str] = []
    with visit() as tab:
        page = tab.page
        page.on("request", lambda request: exported.append(request.url) if "format=csv" in request.url else None)
        tab.goto(paths("ended")["compare"])
        expect(page.locator("#layer-lines svg").first).to_be_visible()
        for title in ("A layer in both runs", "Loss in both runs"):
            exported.clear()
            choose(page, "Save as CSV", title)
            tab.wait_for(lambda: len(exported) == 2, "both runs are exported")
            assert [parse_qs(urlsplit(url).query)["run"][0] for url in exported] == wanted


@pytest.mark.all
def test_the_find_box_filters_the_default_pair_too(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto("compare")
        expect(page.locator("#differences canvas").first).to_be_visible()
        page.locator("[name=f]").fill("type:Conv2d")
        expect(page.locator("#differences-said")).to_have_text("2 of 36 rows")
        expect(page.locator("#find-problem")).to_be_hidden()


COPIED = """() => {
  getSelection().selectAllChildren(document.querySelector("#layers tbody tr"));
  const given = { clipboardData: new DataTransfer(), bubbles: true, cancelable: true };
  const copy = new ClipboardEvent("copy", given);
  document.activeElement.dispatchEvent(copy);
  return copy.clipboardData.getData("text/plain");
}"""


def test_a_copied_row_has_the_full_path_of_its_layer(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        tab.goto(f"{paths('ended')['compare']}&sort=model")
        expect(tab.page.locator("#layers tbody th").first).to_have_text("features.0 Conv2d(1, 16)")
        expect(tab.page.locator("#layer-lines svg").first).to_be_visible()  # the page's script has begun
        assert tab.page.evaluate(COPIED).split("\t")[0].strip() == "features.0"


@pytest.mark.all
def test_the_root_module_is_drawn_alone(visit: Open, paths: Paths) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto(f"{paths('ended')['compare']}&module=")
        expect(page.locator("#layer-lines h2")).to_have_text("Net: rms of activation")
        expect(page.locator("#layer-lines svg").first).to_be_visible()
        choose(page, "Show as table", "A layer in both runs")
        expect(page.locator("#layer-lines th[scope=col]")).to_have_text(["step", "A: ended", "B: bad"])


@pytest.mark.all
def test_an_impossible_query_shows_a_message_and_breaks_nothing(visit: Open, paths: Paths, site: Site) -> None:
    ended = site.run("ended")["id"]
    with visit(java_script_enabled=False) as tab:
        for query, words in [
            ("tolerance=lots", "use a number from 0 to 2"),
            ("rename=(+->+x", "not a regular expression"),
            ("kind=outputs", "select a stat and a kind"),
            ("kind=input", "Neither run captured input"),
            ("f=re:(", "not a regular expression"),
            ("f=nothing-at-all", "none of 36 layers"),
        ]:
            tab.goto(f"{paths('ended')['compare']}&{query}")
            expect(tab.page.locator("main")).to_contain_text(words)
        tab.goto(f"compare?a={ended}&b=gone")
        expect(tab.page.locator("main")).to_contain_text("There is no run gone")


def test_settings_are_shown_next_to_each_other(visit: Open, paths: Paths, site: Site) -> None:
    site.train("other", "--steps", "5", "--rate", "0.5")
    other = site.run("other", 5, "ended")["id"]
    with visit() as tab:
        tab.goto(f"compare?a={site.run('ended')['id']}&b={other}&stat=norm")
        differing = tab.page.get_by_role("region", name="Settings that differ")
        expect(differing.locator("tr", has_text="optimizer.lr")).to_contain_text("0.5")
        expect(differing).not_to_contain_text("modules")
        tab.page.locator("#settings summary").click()
        same = tab.page.get_by_role("region", name="Settings that are the same")
        expect(same.locator("tr", has_text="modules")).to_be_visible()
        assert tab.axe() == []
        expect(tab.page.locator(".verdict")).to_contain_text("The runs first differ at step 0, in the logged value lr")
    site.remove(other)


def test_a_server_without_two_runs_says_what_to_do(empty_site: Site, browser: Browser) -> None:
    with visiting(browser, empty_site.url) as tab:
        tab.goto("compare")
        expect(tab.page.locator("main")).to_contain_text("a comparison needs two")
        assert tab.axe() == []

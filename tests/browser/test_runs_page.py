"""The Runs page in a browser."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from threading import Event

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from hookcore.records import Failure, Tap
from hookcore.records.wire import encode
from hookcore_app.runs.parts import End
from hookcore_app.serving import server_thread
from tests.build import append, make_info, open_run
from tests.serving import BATCH, make_batch, served
from tests.waiting import wait_for

from .browsing import choose, visiting
from .conftest import Open, Paths
from .site import Site, running


def test_a_live_run_is_updated_in_the_list(visit: Open) -> None:
    with visit() as tab:
        tab.goto("")
        steps = tab.page.locator("tr[data-name='live'] .steps")
        before = steps.inner_text()
        expect(steps).not_to_have_text(before)
        expect(tab.page.locator("tr[data-name='live'] .pace")).to_be_visible()
        expect(tab.page.locator("tr[data-run]")).to_have_count(3)


def test_the_page_of_a_run_that_has_not_arrived_yet_opens_by_itself(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as site, visiting(browser, site.url) as tab:
        tab.forgiven = ("404",)
        tab.goto("runs/to-come/capture")
        expect(tab.page.locator("#awaited")).to_have_text(re.compile("opens automatically"))
        batch = encode(make_batch(make_info("to-come"), [0, 1]))
        urllib.request.urlopen(urllib.request.Request(f"{site.url}/api/v1/ingest", batch, BATCH)).close()
        expect(tab.page.locator("#status")).to_be_visible()
        expect(tab.page.locator("main h1")).to_have_text("Coverage and settings")


def test_typing_filters_the_list_and_changes_the_url(visit: Open) -> None:
    with visit() as tab:
        tab.goto("")
        tab.page.keyboard.press("/")
        tab.page.keyboard.type("ended")
        expect(tab.page.locator("tr[data-run]")).to_have_count(2)  # one has that name; all that ended have that state
        tab.page.keyboard.press("Escape")
        expect(tab.page.locator("tr[data-run]")).to_have_count(3)
        tab.page.locator("#search").fill("nothing of that kind")
        expect(tab.page.locator("main")).to_contain_text("3 are hidden")
        assert "f=nothing" in tab.page.url
        tab.page.reload()
        expect(tab.page.locator("main")).to_contain_text("3 are hidden")


@pytest.mark.all
def test_an_alert_is_not_cut_where_there_is_room(visit: Open) -> None:
    with visit(size=(1920, 900)) as tab:
        tab.goto("?columns=-&f=bad")  # other tests lengthen what is said of the other runs
        message = tab.page.locator("#runs .message").first
        expect(message).to_contain_text(re.compile(r"in encoder\.layers\.\d"))
        assert message.evaluate("(each) => each.scrollHeight - each.clientHeight") <= 0
        assert tab.page.locator("[data-part=list]").evaluate("(each) => each.scrollWidth - each.clientWidth") <= 0


LIST = """() => {
  const list = document.querySelector("[data-part=list]");
  const heights = [...document.querySelectorAll("tr[data-run]")].map((row) => row.offsetHeight);
  return { wider: list.scrollWidth - list.clientWidth, tallest: Math.max(...heights) };
}"""


def test_a_sweep_fits_into_the_card_of_the_list_and_more_columns_scroll_next_to_the_names(browser: Browser) -> None:
    server = server_thread.start(port=0)
    for place in range(30):
        config = {
            "lr": 1e-3 * place,
            "width": 64 * place,
            "dropout": 0.1,
            "optimizer": ("AdamW", "Adafactor")[place % 2],
            "warmup_steps": 1000 + place,
            "model.schedule": f"linear, then cosine with {place} restarts",
        }
        name = f"resnet50-on-imagenet-with-a-long-name-attempt-{place}"
        run = open_run(server.runs, f"run-{place}", name=name, config=config, tags=("sweep", "baseline"))
        taps = (Tap("encoder.layers.1.linear1", "output"),)
        append(run.store, 0, [float("nan") if place % 3 else 1.0], taps, scalars={"loss": 1.2345})
        if place % 5 == 0:
            run.end = End(0, Failure("crashed", 0, "torch.OutOfMemoryError: CUDA out of memory. " * 9, "Traceback"))
    with visiting(browser, str(server.url).rstrip("/") + "/") as tab:
        page = tab.page
        tab.goto("")
        expect(page.locator("tr[data-run] .message").first).to_be_visible()
        expect(page.locator("thead .value")).to_have_count(6)  # the settings that differ, and the tags
        for size in ((1920, 900), (1440, 900), (390, 844)):
            page.set_viewport_size({"width": size[0], "height": size[1]})
            found = page.evaluate(LIST)
            assert found["wider"] == 0, size
            assert found["tallest"] < 50 or size[0] == 390, size
        page.set_viewport_size({"width": 1440, "height": 900})
        tab.goto(f"?columns={','.join(config)},tags,group,notes,loss,steps,state")
        assert page.evaluate(LIST)["wider"] > 0
        page.locator("[data-part=list]").evaluate("(list) => list.scrollTo(9999, 0)")
        for each in ("thead .name", "tbody .name a", "tbody .row-menu summary"):
            expect(page.locator(each).first).to_be_in_viewport(ratio=1)
    server.stop()


def test_a_click_on_a_column_header_sorts_and_back_undoes_it(visit: Open) -> None:
    with visit() as tab:
        tab.goto("")
        names = "[...document.querySelectorAll('tr[data-run]')].map(row => row.dataset.name).join()"
        first = tab.page.evaluate(names)
        tab.page.get_by_role("columnheader", name="Run").get_by_role("link").click()
        tab.page.wait_for_function(f"() => {names} === 'bad,ended,live'")
        expect(tab.page.locator("th[aria-sort='ascending']")).to_have_text("Run")
        tab.page.get_by_role("columnheader", name="Run").get_by_role("link").click()
        tab.page.wait_for_function(f"() => {names} === 'live,ended,bad'")
        tab.page.go_back()
        tab.page.go_back()
        tab.page.wait_for_function(f"() => {names} === '{first}'")


def test_two_selected_runs_are_compared_the_older_one_first(visit: Open, site: Site) -> None:
    with visit() as tab:
        tab.goto("")
        button = tab.page.locator("#compare")
        expect(button).to_be_disabled()
        for name in ("live", "ended", "bad"):
            tab.page.get_by_role("checkbox", name=f"Select {name}", exact=True).check()
        expect(tab.page.locator("[data-do=tick]:checked")).to_have_count(3)
        expect(button).to_be_disabled()
        tab.page.get_by_role("checkbox", name="Select live", exact=True).uncheck()
        button.click()
        tab.page.wait_for_url(re.compile(r"compare\?"))
        runs = sorted((site.run(name) for name in ("ended", "bad")), key=lambda run: run["started_s"])
        assert [tab.page.url.split("a=")[1].split("&")[0], tab.page.url.split("b=")[1]] == [run["id"] for run in runs]


@pytest.mark.all
def test_a_selected_run_that_the_filter_hides_is_compared_too(visit: Open, site: Site) -> None:
    with visit() as tab:
        page = tab.page
        tab.goto("")
        page.get_by_role("checkbox", name="Select bad", exact=True).check()
        page.locator("#search").fill("live")
        expect(page.locator("tr[data-run]")).to_have_count(1)
        page.get_by_role("checkbox", name="Select live", exact=True).check()
        expect(page.locator("#charts-about")).to_have_text("of 2 selected runs, 1 hidden by the filter")
        expect(page.locator("#config-differences thead th")).to_have_count(3)
        page.locator("#compare").click()
        page.wait_for_url(f"**/compare?a={site.run('bad')['id']}&b={site.run('live')['id']}*")
        with page.expect_request(lambda request: "/overlay?" in request.url and "from=5&to=9" in request.url):
            tab.goto("?steps=5-9")


@pytest.fixture
def small_site(empty_site: Site) -> Site:
    empty_site.train("first", "--steps", "3")
    empty_site.run("first", 3, "ended")
    return empty_site


def act(page: Page, what: str, run: str) -> None:
    """Choose an action from the menu of a run."""
    page.get_by_label(f"Actions of {run}", exact=True).click()
    page.get_by_role("button", name=f"{what} {run}", exact=True).click()


def test_a_run_is_renamed_and_annotated(browser: Browser, small_site: Site) -> None:
    with visiting(browser, small_site.url) as tab:
        tab.goto("")
        act(tab.page, "Edit", "first")
        name = tab.page.get_by_role("textbox", name="Name", exact=True)
        expect(name).to_be_focused()
        name.fill("<b>better</b>")
        tab.page.get_by_role("textbox", name="Notes", exact=True).fill("lr 3e-4\nsecond line")
        tab.page.get_by_role("textbox", name="Tags", exact=True).fill("best, sweep,,best")
        tab.page.get_by_role("textbox", name="Group", exact=True).fill("widths")
        assert tab.axe() == []
        tab.page.get_by_role("button", name="Save").click()
        expect(tab.page.get_by_role("link", name="<b>better</b>")).to_be_visible()
        expect(tab.page.locator(".notes .text")).to_have_text("lr 3e-4\nsecond line")
        run = small_site.get("runs")["runs"][0]
        assert (run["name"], run["tags"], run["group"]) == ("<b>better</b>", ["best", "sweep"], "widths")
        tab.page.get_by_role("link", name="sweep", exact=True).click()  # finds all runs with the tag
        expect(tab.page.locator("tr[data-run]")).to_have_count(1)
        expect(tab.page.locator("#search")).to_have_value('tag:"sweep"')
        act(tab.page, "Edit", "<b>better</b>")
        tab.page.keyboard.press("Escape")
        expect(tab.page.get_by_role("link", name="<b>better</b>")).to_be_visible()


def test_a_deleted_run_can_be_restored_and_is_otherwise_removed(browser: Browser, small_site: Site) -> None:
    with visiting(browser, small_site.url) as tab:
        tab.goto("")
        row, selected = tab.page.locator("tr[data-name='first']"), tab.page.get_by_role("button", name="Archive 1")
        tab.page.get_by_role("checkbox", name="Select first").check()
        act(tab.page, "Delete", "first")
        expect(row).to_be_hidden()
        expect(selected).to_be_hidden()
        assert small_site.get("runs")["total"] == 1
        tab.page.get_by_role("button", name="Undo").click()
        expect(row).to_be_visible()
        expect(selected).to_be_visible()
        act(tab.page, "Delete", "first")
        tab.page.locator(".toast").get_by_role("button", name="Close").click()
        expect(tab.page.locator("main")).to_contain_text("No runs yet")
        assert small_site.get("runs")["total"] == 0


def test_selected_runs_are_archived_and_deleted_together_with_undo(browser: Browser, small_site: Site) -> None:
    small_site.train("second", "--steps", "3")
    small_site.run("second", 3, "ended")
    with visiting(browser, small_site.url) as tab:
        page, rows = tab.page, tab.page.locator("tr[data-run]:not([data-gone])")
        tab.goto("")
        expect(page.locator("#bulk")).to_be_hidden()
        ticks, every = page.locator("[data-do=tick]"), page.get_by_role("checkbox", name="Select all listed runs")
        every.check()
        page.get_by_role("button", name="Clear", exact=True).click()
        expect(page.locator("[data-do=tick]:checked")).to_have_count(0)
        expect(page.locator("#bulk")).to_be_hidden()
        ticks.first.click()
        ticks.last.click(modifiers=["Shift"])
        expect(every).to_be_checked()
        page.reload()  # the selection is in the address
        expect(every).to_be_checked()
        page.get_by_role("button", name="Tag 2").click()
        page.get_by_role("textbox", name="Tags for the selected runs").fill("good")
        assert tab.axe() == []
        page.keyboard.press("Enter")
        expect(page.locator(".toast")).to_contain_text("Tagged 2 runs with good.")
        expect(page.locator("td .chip", has_text="good")).to_have_count(2)
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("td .chip")).to_have_count(0)
        page.get_by_role("button", name="Delete 2").click()
        expect(rows).to_have_count(0)
        expect(page.locator("#bulk")).to_be_hidden()
        page.get_by_role("button", name="Undo").click()
        expect(rows).to_have_count(2)
        expect(page.get_by_role("button", name="Delete 2")).to_be_visible()  # selected again
        page.get_by_role("checkbox", name="Select second").uncheck()
        page.get_by_role("button", name="Archive 1").click()
        expect(rows).to_have_count(1)
        page.get_by_role("link", name="1 archived").click()
        expect(rows).to_have_count(1)
        assert [run["archived"] for run in small_site.get("runs")["runs"]] == [False, True]
        page.get_by_role("checkbox", name="Select first").check()
        page.get_by_role("button", name="Unarchive 1").click()
        expect(page.locator("#total")).not_to_contain_text("archived")
        tab.goto("")
        expect(rows).to_have_count(2)
        every.check()
        page.get_by_role("button", name="Delete 2").click()
        page.locator(".toast").get_by_role("button", name="Close").first.click()
        expect(page.locator("main")).to_contain_text("No runs yet")


@pytest.mark.all
def test_a_selected_run_that_the_server_removes_is_no_longer_selected_and_the_chart_continues(browser: Browser) -> None:
    server = server_thread.start(port=0)
    for name in ("first", "second"):
        append(open_run(server.runs, name, name=name).store, 0, [], scalars={"loss": 1.0})
    with visiting(browser, str(server.url).rstrip("/") + "/") as tab:
        page = tab.page
        tab.goto("")
        for box in page.locator("[data-do=tick]").all():
            box.check()
        expect(page.locator("#charts-about")).to_have_text("of 2 selected runs")
        tab.wait_until_quiet()
        server.runs.remove("first")
        expect(page.locator("#charts-about")).to_have_text("of 1 selected run")
        expect(page.get_by_role("button", name="Archive 1")).to_be_visible()
        expect(page.locator("#overlay .plot svg").first).to_be_visible()
        page.get_by_role("checkbox", name="Select second").uncheck()
        expect(page.locator("#charts-about")).to_have_text("of the only listed run")
        expect(page.locator("#parallel")).to_be_hidden()  # it compares runs
    server.stop()


@pytest.mark.all
def test_many_selected_runs_are_in_one_chart(browser: Browser) -> None:
    names = [f"run-{place:02}" for place in range(70)]
    with served(token="", max_runs=len(names)) as server, visiting(browser, server.url) as tab:
        for name in names:
            append(open_run(server.runs, name, name=name).store, 0, [], scalars={"loss": 1.0})
        page = tab.page
        tab.goto("")
        expect(page.locator("#charts-about")).to_have_text(re.compile("of all 70 listed runs.*; showing the first 64$"))
        page.get_by_role("checkbox", name="Select all listed runs").check()
        expect(page.locator("#charts-about")).to_have_text("of 70 selected runs")
        choose(page, "Show as table", "Runs over steps")
        heads = page.locator("#overlay thead th")
        tab.wait_for(lambda: set(names) <= set(heads.all_inner_texts()), "each run is a line")


@pytest.mark.all
def test_columns_are_chosen_sort_the_list_and_stay_chosen(browser: Browser) -> None:
    server = server_thread.start(port=0)
    long = "a-name-that-is-much-too-long-for-its-column-and-differs-at-its-end-"
    for place, lr in enumerate((0.01, 0.5, 0.1)):
        config = {"lr": lr, "seed": 1, "model.width": 8 * place, "path": "/data/" * 30}
        run = open_run(server.runs, f"run-{place}", name=f"{long}{place}", config=config, tags=("sweep",))
        append(run.store, 0, [], scalars={"loss": 1.0, "accuracy": lr})
    headings = "[...document.querySelectorAll('thead th')].map(each => each.innerText.trim()).join()"
    order = "[...document.querySelectorAll('tr[data-run]')].map(row => row.dataset.run.at(-1)).join('')"
    with visiting(browser, str(server.url).rstrip("/") + "/") as tab:
        page = tab.page
        tab.goto("")
        assert ",lr,width," in page.evaluate(headings)  # what differs
        page.get_by_role("columnheader", name="lr").get_by_role("link").click()
        page.wait_for_function(f"() => {order} === '021'")
        page.locator("#columns summary").click()
        page.locator("#columns").get_by_role("checkbox", name="accuracy").check()
        page.locator("#columns").get_by_role("checkbox", name="path").check()
        page.locator("#columns").get_by_role("checkbox", name="model.width").uncheck()
        page.wait_for_function(f"() => {headings}.includes(',lr,accuracy,path,')")
        assert tab.axe() == []
        page.get_by_role("link", name="Move accuracy right").press("Enter")
        page.wait_for_function(f"() => {headings}.includes(',lr,path,accuracy,')")
        page.get_by_role("link", name="Move accuracy left").click()
        page.wait_for_function(f"() => {headings}.includes(',lr,accuracy,path,')")
        expect(page.get_by_role("link", name="Move accuracy left")).to_be_focused()
        page.get_by_role("link", name="Move tags right").click()
        page.wait_for_function(f"() => {headings}.includes(',lr,Tags,accuracy,path,')")
        box = "document.querySelector('{}').getBoundingClientRect()"
        below = f"{box.format('#columns form')}.top - {box.format('.runs thead')}.bottom"
        assert page.evaluate(below) >= 0, "the headings are visible while they are chosen"
        page.keyboard.press("Escape")
        expect(page.locator("#columns form")).to_be_hidden()
        heights = page.evaluate("[...document.querySelectorAll('tr[data-run]')].map(row => row.offsetHeight)")
        assert max(heights) < 50  # one line, however long names and values are
        tab.goto("")
        page.wait_for_function(f"() => {headings}.includes(',lr,Tags,accuracy,path,')")
        page.locator("#columns summary").click()
        page.get_by_role("link", name="Choose by what differs").click()
        page.wait_for_function(f"() => {headings}.includes(',lr,width,')")
    server.stop()


def test_an_invalid_query_is_reported_next_to_the_box_and_not_asked_by_the_charts(visit: Open, paths: Paths) -> None:
    paths("live")  # which trains then, so that the charts are renewed
    with visit() as tab:
        tab.goto("")
        tab.page.locator("#search").fill("state:crash")
        expect(tab.page.get_by_role("alert")).to_contain_text("Did you mean 'crashed'?")
        with tab.page.expect_request(re.compile(r"api/v1/runs\?")) as asked:
            pass
        assert "query=" not in asked.value.url
        tab.page.locator("#search").fill("state:crashed")
        expect(tab.page.get_by_role("alert")).to_be_hidden()


@pytest.mark.all
def test_a_deleted_run_is_removed_when_the_page_is_closed(browser: Browser, small_site: Site) -> None:
    with visiting(browser, small_site.url) as tab:
        tab.goto("")
        act(tab.page, "Delete", "first")
        expect(tab.page.locator("tr[data-name='first']")).to_be_hidden()
        tab.goto("help")
        tab.page.wait_for_function("async () => (await (await fetch('api/v1/runs')).json()).total === 0")


def test_the_first_run_appears_by_itself(browser: Browser, empty_site: Site) -> None:
    with visiting(browser, empty_site.url) as tab:
        tab.goto("")
        expect(tab.page.locator("main")).to_contain_text("hookcore.watch(model)")
        empty_site.train("one", "--steps", "3")
        empty_site.run("one", 3)
        expect(tab.page.get_by_role("link", name="one", exact=True)).to_be_visible()


def test_the_list_says_on_disk_uncut_and_the_chart_that_runs_are_read(browser: Browser, empty_site: Site) -> None:
    trainer = empty_site.train("saved", "--pause", "0.05", "--bad-at", "12", "--rate", "0.02")
    empty_site.run("saved", 20)
    trainer.terminate()
    empty_site.run("saved", 20, "stopped")
    empty_site.train("newer", "--steps", "20")  # which a server loads when it starts
    empty_site.run("newer", 20, "ended")
    wait_for(lambda: len([*empty_site.folder.rglob("steps/*.parquet")]) > 1, "both runs are on disk")
    empty_site.kill()
    empty_site.start()
    with visiting(browser, empty_site.url, size=(1440, 900)) as tab:
        # Looked at as the page arrives, because the charts have the server load the run.
        tab.page.add_init_script("""addEventListener("load", () => {
          const words = document.querySelector(".runs .where");
          const [inner, outer] = [words, words.parentElement].map((each) => each.getBoundingClientRect());
          globalThis.seen = [words.textContent, inner.right <= outer.right + 1 && inner.bottom <= outer.bottom + 1];
        })""")
        tab.goto("")
        tab.page.wait_for_function("() => globalThis.seen")
        assert tab.page.evaluate("() => globalThis.seen") == ["on disk", True]
    empty_site.kill()
    empty_site.start()
    with visiting(browser, empty_site.url) as tab:
        held: list[Route] = []
        pass_on = Event()
        tab.page.route(
            "**/api/v1/overlay*", lambda route: route.continue_() if pass_on.is_set() else held.append(route)
        )
        tab.goto("")
        chart = tab.page.locator("#overlay .empty")
        expect(chart).to_have_text(re.compile(r"^Reading runs from disk: 0 of [12]\.$"))
        pass_on.set()
        for route in held:
            route.continue_()
        expect(tab.page.locator("#overlay .plot-legend li").filter(has_text="saved")).to_have_count(1)
        expect(chart).to_be_hidden()


@pytest.mark.parametrize("width", [390, 900, 1440])
def test_the_menus_above_the_list_are_seen_before_the_pointer_is_there_and_open_inside_the_window(
    visit: Open, paths: Paths, width: int
) -> None:
    with visit(size=(width, 844)) as tab:
        tab.goto(paths("ended")["runs"])
        tab.wait_until_started()
        for menu in ("#columns", "#views"):
            place = tab.page.locator(f".menu-place:has({menu})")
            assert place.evaluate("(element) => getComputedStyle(element).opacity") == "1"
            tab.page.locator(f"{menu} summary").click()
            box = tab.page.locator(f"{menu} .choices").bounding_box()
            assert box is not None
            assert 0 <= box["x"] <= box["x"] + box["width"] <= width
            tab.page.keyboard.press("Escape")

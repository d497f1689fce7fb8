"""The frame of the pages, and the Runs, Settings, Help, and error pages, as rendered by the server."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import math
import re
from dataclasses import replace
from functools import partial
from html import unescape
from typing import Any

import numpy as np
import pytest
from markupsafe import escape
from starlette.testclient import TestClient

from hookcore.config import SETTINGS
from hookcore.findings import RULES
from hookcore.reading import StoreReader
from hookcore.records import KINDS, STAT_COLUMN, Event, Failure, HookRecord, ModuleRecord, Snapshot, Tap
from hookcore.records.vocabulary import KIND_TITLES
from hookcore.store import STAT_NAMES, Store
from hookcore_app import assets
from hookcore_app.analysis.figures.lines import SPARK_HEIGHT, SPARK_WIDTH, spark_of
from hookcore_app.pages import frame, settings
from hookcore_app.pages import frame as filters
from hookcore_app.pages import overview as hooks
from hookcore_app.pages.overview import usual_kind
from hookcore_app.pages.page import Page, PartsPage, RunPage
from hookcore_app.pages.views.words import KIND_WORDS, STAT_WORDS
from hookcore_app.runs.parts import End
from tests import build
from tests.api_world import COVERAGE, MODULES, fill_ranks, open_run
from tests.build import append, make_info
from tests.serving import (
    READ_TOKEN,
    TOKEN,
    World,
    make_batch,
    make_frame,
    make_world,
)

HTML = {"Accept": "text/html,application/xhtml+xml"}


def _open(world: World, run: str, losses: tuple[float, ...] = (), **info: Any) -> Any:
    opened = world.runs.open(make_info(run, **info))
    assert opened is not None
    for step, loss in enumerate(losses):
        new: dict[str, Any] = {"new_taps": (Tap("a", "output"), Tap("b", "output"))} if step == 0 else {}
        made = make_frame(step, scalars={"loss": loss, "lr": 0.1}, **new)
        made.stats[:, [STAT_COLUMN["nan"], STAT_COLUMN["inf"]]] = 0
        opened.store.append(made)
    return opened


def test_a_page_has_a_template_for_each_part_and_lists_each_part() -> None:
    for page in (*Page.__subclasses__(), *RunPage.__subclasses__(), *PartsPage.__subclasses__()):
        for part in page.parts:
            assert (
                f'data-part="{part}"' in (assets.TEMPLATES / (page.folder or page.name) / f"{part}.html").read_text()
            ), (page, part)
    with pytest.raises(TypeError, match="parts lacks part_more"):
        type("MorePage", (Page,), {"part_more": lambda self: {}})


@pytest.fixture
def world() -> World:
    world = make_world()
    _open(world, "old", (3.0, 2.0, 1.0), name="baseline", script="/home/me/train.py", host="box", started_s=10.0)
    newer = _open(world, "new", (0.5, math.nan), name="second try", started_s=20.0)
    newer.end = End(1)
    return world


@pytest.fixture
def client(world: World) -> TestClient:
    return world.client


def _names(client: TestClient, query: str = "") -> list[str]:
    return re.findall(r'data-run="\w+" data-name="([^"]+)"', client.get(f"/{query}").text)


def test_no_page_of_an_ended_run_promises_new_data(world: World) -> None:
    _open(world, "bare").end = End(0)
    for run in ("new", "bare"):
        for name, tab in frame.TABS.items():
            if not tab.key:
                continue
            text = world.client.get(f"/runs/{run}{tab.path}", headers=HTML).text
            main = re.sub(r"(?s)<script.*?</script>|<[^>]*>", " ", text[text.index("<main") : text.index("</main")])
            found = re.findall(
                r"[^.]*(?:\byet\b|will appear|future step|lets you|as soon as|on the Capture page)[^.]*", main
            )
            assert not found, (run, name, found)


@pytest.mark.parametrize("tab", [tab for tab in frame.TABS.values() if tab.was], ids=lambda tab: tab.page)
def test_an_older_address_leads_to_the_page_with_its_query(world: World, tab: frame.Tab) -> None:
    old = f"/runs/new{tab.was}?steps=0-1&module=a%20b&id=x"
    answer = world.client.get(old, headers=HTML, follow_redirects=False)
    assert answer.status_code == 307
    assert answer.headers["location"] == f"/runs/new{tab.path}?steps=0-1&module=a%20b&id=x"


def test_the_menu_of_a_run_has_seven_entries_and_marks_that_of_each_page(world: World) -> None:
    for page, tab in frame.TABS.items():
        if not tab.key:
            continue
        text = world.client.get(f"/runs/new{tab.path}", headers=HTML).text
        menu = text[text.index('<nav class="side"') : text.index("</nav>", text.index('<nav class="side"'))]
        seen = re.findall(r'<a(?! hidden)[^>]*data-title="([^":]*)', menu)
        wanted = ["Summary", "Problems", "Model", "Flow", "Metrics", "Performance", "Capture"]
        assert seen == ["Runs", *wanted, "Settings", "Help"], page
        entry = frame.entry_of(page)
        assert entry is not None
        assert re.findall(r'data-title="([^":]*)[^>]* aria-current', menu) == [entry.title]
        assert f"<title>{tab.title}" in text
        assert len(re.findall("<h1", text)) == 1, page
    assert len({tab.key for tab in frame.TABS.values() if tab.key}) == 17


def test_the_layers_of_a_model_are_a_tree_with_lines_of_their_activations_and_gradients(world: World) -> None:
    run = open_run(world.runs, "deep")
    run.store.describe(
        [ModuleRecord("", "Net", None), ModuleRecord("a", "Block", ""), ModuleRecord("a.b", "Linear", "a")]
    )
    for step in range(3):
        new = (Tap("a.b", "output"), Tap("a.b", "output_grad")) if not step else ()
        append(run.store, step, [2.0 + step, 0.5], new)
    text = world.client.get("/runs/deep/model/layers", headers=HTML).text
    row = text[text.index('title="a.b"') : text.index("</tr>", text.index('title="a.b"'))]
    assert '--level: 2"><a class="mono" href="runs/deep/model/layers?module=a.b" title="a.b">b</a>' in text
    assert re.findall(r'<data class="number" value="([\d.]+)">', row) == ["4.0", "0.5"]
    assert row.count('<svg class="spark"') == 2
    found = world.client.get("/runs/deep/model/layers?f=b", headers=HTML).text
    assert "--level" not in found, "what is searched is a list"


def _tabs(world: World, address: str) -> dict[str, str]:
    text = world.client.get(address, headers=HTML).text
    found = re.search(r'<nav class="tabs"[^>]*>(.*?)</nav>', text)
    return dict(re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)</a>', found[1])) if found else {}


def test_the_tabs_of_an_entry_keep_the_steps_the_filter_and_the_kind(world: World) -> None:
    kept = "f=a&amp;kind=output&amp;step=1"
    assert _tabs(world, "/runs/new/flow/histograms?kind=output&step=1&f=a&view=bars") == {
        f"runs/new/flow?{kept}": "Gradient flow",
        f"runs/new/flow/histograms?{kept}": "Histograms",
        f"runs/new/flow/changes?{kept}": "What changed",
        f"runs/new/flow/precision?{kept}": "Precision",
    }
    assert "runs/new/model/tensors?module=a" in _tabs(world, "/runs/new/model/layers?module=a")


def test_media_and_ranks_have_a_tab_only_if_the_run_has_any(world: World) -> None:
    assert list(_tabs(world, "/runs/new/metrics").values()) == ["Scalars", "Pinned"]
    assert _tabs(world, "/runs/new/performance") == {}
    values = np.frombuffer(b"words", np.uint8)
    world.runs.find("new").store.add_snapshot(Snapshot(Tap("x", "output"), 1, 0.0, "text/plain", (5,), values))
    assert list(_tabs(world, "/runs/new/metrics").values()) == ["Scalars", "Pinned", "Media"]


def test_links_for_agents_terminals_and_messages_are_of_pages_of_today() -> None:
    paths = {tab.path for tab in frame.TABS.values()}
    for file in ("hookcore_app/questions.py", "hookcore_app/agents.py", "hookcore/delivery/notify/notifier.py"):
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        text = inspect.getsource(module)
        linked = re.findall(r'link\([^\n"]*"(/[\w/]*)"', text) + re.findall(r"\{page\}(/[\w/]+)", text)
        assert linked, file
        assert set(linked) <= paths


def test_the_runs_page_shows_every_run_at_a_glance(client: TestClient) -> None:
    text = client.get("/").text
    assert _names(client) == ["second try", "baseline"]
    assert text.count('<svg class="spark"') == 2
    assert "train.py" in text
    assert ">box<" in text
    assert re.search(r'class="pill ended">.*?ended', text)
    assert re.search(r'class="pill live">.*?live</span> <span class="quiet small pace">1/s', text, re.DOTALL)
    assert re.search(r'<span class="number nan" title="loss">NaN</span>', text)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("?f=BASE", ["baseline"]),
        ("?f=second+try", ["second try"]),
        ("?f=train.py+box", ["baseline"]),
        ("?f=nothing", []),
        ("?sort=name", ["baseline", "second try"]),
        ("?sort=-name", ["second try", "baseline"]),
        ("?sort=-started", ["baseline", "second try"]),
        ("?sort=state", ["baseline", "second try"]),
        ("?sort=loss", ["baseline", "second try"]),
        ("?sort=steps", ["baseline", "second try"]),
        ("?sort=nonsense", ["second try", "baseline"]),
    ],
)
def test_runs_are_searched_and_sorted_by_the_url(client: TestClient, query: str, names: list[str]) -> None:
    assert _names(client, query) == names


def test_a_search_without_results_says_how_many_runs_are_hidden(client: TestClient) -> None:
    assert "2 are hidden" in client.get("/?f=nothing").text


def test_a_column_header_shows_the_sort_order_and_links_to_the_reverse(client: TestClient) -> None:
    text = client.get("/?sort=name&f=b").text
    assert re.search(r'aria-sort="ascending"[^>]*>\s*<a href="\?f=b&amp;sort=-name"', text)
    assert text.count('aria-sort="none"') == 5


def test_a_run_shows_its_worst_alert_until_it_is_acknowledged(world: World, client: TestClient) -> None:
    run = world.runs.get("old")
    assert run is not None
    run.store.add_event(Event(2, 0.0, "skipped-step", "the scaler skipped", "warning"))
    run.store.add_event(Event(2, 0.0, "hook-error", "it broke", "error", "a.b"))
    alerts = frame.alerts_of(run)
    assert alerts.worst == "error"
    assert (alerts.title, alerts.where) == ("Hook error", "a.b")
    assert '<span class="badge error" id="alerts" data-part="badge">' in client.get("/runs/old/problems").text
    for event in run.store.events():
        run.acknowledge(event.key)
    left = frame.alerts_of(run)
    assert left.count == alerts.count - 2


def test_forbidden_actions_have_no_button() -> None:
    world = make_world(token=TOKEN, read_token=READ_TOKEN)
    _open(world, "one", (1.0,))
    reader = world.client.get("/", headers={"Authorization": f"Bearer {READ_TOKEN}"}).text
    owner = world.client.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).text
    assert 'data-may-change="no"' in reader
    assert 'data-do="delete"' not in reader
    assert 'data-do="edit"' in owner
    reading = world.client.get("/runs/one/capture", headers={"Authorization": f"Bearer {READ_TOKEN}"}).text
    assert "You have read-only access" in reading
    assert "capture-save" not in reading


def test_a_server_without_runs_shows_three_lines_of_code() -> None:
    text = make_world().client.get("/").text
    assert "hookcore.watch(model)" in text
    assert "HOOKCORE_URL=http://127.0.0.1:8642" in text
    assert "appears here as soon as the script calls" in text  # before its first step


def test_a_sparkline_has_gaps_and_marks_non_finite_values() -> None:
    values = np.array([1.0, 2.0, np.nan, np.inf, np.nan, 3.0, np.nan])
    spark = spark_of(np.arange(7), values)
    assert spark is not None
    assert spark.path.count("M") == 2
    assert len(spark.bad_x) == 3  # both ends of the long gap, and the short gap
    numbers = [float(each) for each in re.findall(r"[\d.]+", spark.path.replace("h.1", ""))]
    assert max(numbers[0::2]) <= SPARK_WIDTH
    assert max(numbers[1::2]) <= SPARK_HEIGHT


@pytest.mark.parametrize("values", [[5.0, 5.0], [np.nan, np.nan], [1e308, -1e308], [7.0]])
def test_a_sparkline_of_any_values_stays_in_its_box(values: list[float]) -> None:
    spark = spark_of(np.arange(len(values)), np.array(values))
    assert spark is not None
    assert "nan" not in spark.path
    assert "inf" not in spark.path


def test_an_empty_series_has_no_sparkline() -> None:
    assert spark_of(np.empty(0, np.int64), np.empty(0)) is None


def test_the_find_box_keeps_the_rest_of_the_url(client: TestClient) -> None:
    text = client.get("/runs/old/flow?f=layers.*&kind=output&other=%22x").text
    assert 'value="layers.*"' in text
    assert '<input type="hidden" name="kind" value="output">' in text
    assert '<input type="hidden" name="other" value="&#34;x">' in text
    elsewhere = client.get("/runs/old/model/layers?kind=output").text
    assert 'action="runs/old/flow"' in elsewhere
    assert 'type="hidden"' not in elsewhere.split("</form>")[0]


def test_the_theme_cookie_applies_from_the_first_byte_of_the_page(client: TestClient) -> None:
    assert '<html lang="en" data-theme="system">' in client.get("/").text
    client.cookies.set("hookcore-theme", "dark")
    assert '<html lang="en" data-theme="dark">' in client.get("/").text
    client.cookies.set("hookcore-theme", '"><script>')
    assert '<html lang="en" data-theme="system">' in client.get("/").text


def test_the_dark_theme_has_other_colors_and_the_same_layout() -> None:
    """Therefore, what fits in the light theme fits in the dark one."""
    style, others = assets.FOLDER / "app.css", assets.FOLDER / "css"
    by_system, by_hand = re.findall(r"\{\s*color-scheme: dark;\s*(.*?)\s*\}", style.read_text(), re.DOTALL)
    assert by_system == by_hand
    for name, value in re.findall(r"([\w-]+): (.*?);", by_hand):
        assert re.fullmatch(r"#[0-9a-f]{3,6}", value) or (name, value) == ("--shadow", "none"), name
    assert not [each for each in others.glob("*.css") if re.search("color-scheme|data-theme", each.read_text())]


def test_the_header_shows_the_state_of_a_run_before_any_script(world: World, client: TestClient) -> None:
    assert "live · step 2" in client.get("/runs/old/flow").text
    assert "ended · step 1" in client.get("/runs/new/flow").text
    _open(world, "empty")
    assert "waiting for the first step" in client.get("/runs/empty/flow").text


def test_pages_show_the_settings_that_the_trainer_sent_and_hide_secrets() -> None:
    world = make_world(token=TOKEN)
    told = {"every": 7, "budget": 0.02, "include": ["blocks.*", "head"], "kinds": ["update"], "effective_cost": 0.013}
    world.client.headers["Authorization"] = f"Bearer {TOKEN}"
    world.post(make_batch(make_info("one", settings=told), [0]))
    text = world.client.get("/runs/one/capture").text
    assert 'value="7"' in text
    assert 'value="2"' in text  # percent
    assert "blocks.*\nhead</textarea>" in text
    assert re.findall(r'name="kinds" value="(\w+)" checked', text) == ["update"]
    text = world.client.get("/settings").text
    assert 'href="runs/one/capture#switches"' in text
    assert TOKEN not in text
    assert "2 GB" in text


def test_a_trainer_that_sent_no_settings_has_the_defaults(world: World) -> None:
    run = world.runs.get("old")
    assert run is not None
    known = hooks.trainer_settings(run)
    defaults = {setting.name: setting.default for setting in SETTINGS}
    assert (known["every"], known["budget"]) == (defaults["every"], defaults["budget"])
    assert known["include"] == ""


def test_pages_show_code_and_words_instead_of_backticks_and_links(world: World) -> None:
    run = world.runs.get("old")
    assert run is not None
    run.store.add_event(Event(3, 1.0, "lost", "it ended with `os.abort`", "error"))
    for path in ("/runs/old", "/runs/old/problems", "/api/v1/report?run=old"):
        text = world.client.get(path).text
        assert re.search(r"it ended with <code>os\.(<wbr>)?abort</code>", text), path
        assert "`os." not in text.split("<script")[0], path
    text = world.client.get("/settings").text
    assert "Let coding agents that have" in text
    assert ".md)" not in text


def test_settings_link_to_the_hooks_pages_of_live_runs(client: TestClient) -> None:
    text = client.get("/settings").text
    assert 'href="runs/old/capture#switches"' in text
    assert "runs/new/capture" not in text  # it has ended


def test_settings_start_with_the_run_that_the_reader_came_from(client: TestClient) -> None:
    text = client.get("/settings?run=new").text
    assert 0 < text.index('href="runs/new/capture#switches"') < text.index('href="runs/old/capture#switches"')
    assert text.count("Back to this run") == 1
    unknown = client.get("/settings?run=nothing")
    assert unknown.status_code == 200
    assert "Back to this run" not in unknown.text


def test_settings_of_the_server_are_written_as_its_flags_take_them(client: TestClient) -> None:
    rows = re.findall(r'<code>(\w+)</code></th><td class="mono">([^<]*)</td>', client.get("/settings").text)
    shown = dict(rows)
    assert [shown[name] for name in ("idle_stop_s", "lost_after_s", "max_connections", "port")] == [
        "0",
        "15",
        "1000",
        "8642",
    ]


def test_settings_show_memory_versions_and_licenses(client: TestClient) -> None:
    text = client.get("/settings").text
    assert "of 2 GB used" in text
    for each in assets.vendored():
        assert re.fullmatch(r"\d+\.\d+\.\d+", each.version)
        assert each.version in text
        assert each.text in text
        assert (assets.FOLDER / each.text).read_text().startswith("MIT License")
    packages = {package.name: package for package in settings.packages()}
    assert packages["fastapi"].license == "MIT"
    assert all(package.version and package.license for package in packages.values())


def test_diagnostics_contain_no_secret_and_no_module_name() -> None:
    world = make_world(token=TOKEN, read_token=READ_TOKEN)
    run = _open(world, "one", (1.0,), name="secret plan")
    run.store.append(make_frame(5, 1, new_taps=(Tap("secret.layer", "output"),)))
    chosen = replace(world.runs.settings, store="clickhouse://me:secret@box:8123/runs")
    told = str(settings.diagnostics_of(chosen, [settings.share_of(run)]))
    assert "clickhouse://me@box:8123/runs" in told
    for secret in (TOKEN, READ_TOKEN, "secret"):
        assert secret not in told
    assert "'numpy'" in told


@pytest.mark.parametrize(
    "path",
    ["", "/flow", "/layer?module=a", "/histograms", "/differences", "/tensors", "/model", "/hooks", "/ranks"],
)
def test_menus_name_kinds_in_words_and_keep_their_names_as_values(path: str) -> None:
    world = make_world()
    run = _open(world, "live", (1.0,))
    run.store.describe([ModuleRecord("a", "Linear", None)])
    fill_ranks(world.runs, job="many")
    run_id = "ranks-many" if path == "/ranks" else "live"
    page = world.client.get(f"/runs/{run_id}{path}", headers=HTML).text
    _expect_words(page)


@pytest.mark.parametrize("path", ["a", "", "my layer", "a[0].b*", "!a", 'say "ж"'])
def test_the_channels_of_a_layer_are_asked_for_by_a_pattern_that_matches_it_alone(path: str) -> None:
    world = make_world()
    run = _open(world, "live", (1.0,))
    others = [ModuleRecord(each, "Linear", "" if path == "" else None) for each in ("a0.b", "layer", "b")]
    run.store.describe([ModuleRecord(path, "Linear", None), *others])
    text = world.client.get("/runs/live/model/layers", params={"module": path}, headers=HTML).text
    pattern = unescape(text.split('data-pattern="')[1].split('"')[0])
    assert [each.path for each in StoreReader(run.store).modules(pattern)] == [path]
    code = unescape(text.split('id="channel-code">')[1].split("</code>")[0])
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    assert [ast.literal_eval(each.value) for call in calls for each in call.keywords if each.arg == "include"] == [
        pattern,
        pattern,
    ]


def test_the_menu_of_the_comparison_names_kinds_in_words(client: TestClient) -> None:
    _expect_words(client.get("/compare?runs=old,new", headers=HTML).text)


def _expect_words(page: str) -> None:
    options = re.findall(r"<option([^>]*)>([^<]*)</option>", page)
    options += re.findall(r'<input type="checkbox" name="kinds"([^>]*)>\s*<span[^>]*>([^<]*)', page)
    found = {kind[1]: text for given, text in options if (kind := re.search(r'value="(\w+)"', given))}
    kinds = {kind: text.partition(" (")[0] for kind, text in found.items() if kind in KINDS}
    assert kinds
    assert kinds == {kind: KIND_TITLES[kind] for kind in kinds}
    assert not {text.strip() for _, text in options} & {"output_grad", "param_grad", "input_grad"}


def test_help_explains_every_stat_kind_and_rule_with_an_anchor(client: TestClient) -> None:
    text = client.get("/help").text
    anchors = re.findall(r'\bid="([\w-]+)"', text)
    wanted = (
        {f"stat-{name}" for name in STAT_NAMES}
        | {f"kind-{name}" for name in KINDS}
        | {f"rule-{name}" for name in RULES}
    )
    assert wanted <= set(anchors)
    assert len(anchors) == len(set(anchors))
    assert {"begin", "shapes", "keys-list", "nothing", "shape-spike", "shape-vanishing", "shape-nan"} <= set(anchors)
    assert set(KIND_WORDS) == set(KINDS)
    assert set(STAT_WORDS) == set(STAT_NAMES)
    for target in re.findall(r'href="help#([\w-]+)"', text):
        assert target in anchors
    for rule in RULES.values():
        assert all(str(escape(each)) in text for each in (*rule.causes, *rule.tries, rule.known_as))


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), ("/runs/nowhere", 404), ("/runs/nowhere/flow", 404)])
def test_a_browser_gets_an_error_page_with_a_way_to_continue(client: TestClient, path: str, status: int) -> None:
    response = client.get(path, headers=HTML)
    assert response.status_code == status
    assert response.headers["content-type"].startswith("text/html")
    assert '<a class="button main" href="">All runs</a>' in response.text
    assert 'href="runs/new"' in response.text
    assert ('data-run="nowhere"' in response.text) == path.startswith("/runs/")  # such a run may still arrive


@pytest.mark.parametrize("path", ["/api/v1/runs/nowhere", "/static/x/nothing.js"])
def test_routes_for_scripts_always_answer_with_data(client: TestClient, path: str) -> None:
    response = client.get(path, headers=HTML)
    assert response.status_code == 404
    assert list(response.json()) == ["error"]


def test_a_crash_is_a_page_for_browsers_and_data_for_scripts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.runs.get("old"), "store", None)
    page = world.client.get("/runs/old/flow", headers=HTML)
    assert page.status_code == 500
    assert "Something went wrong" in page.text
    assert list(world.client.get("/runs/old/flow").json()) == ["error"]


def test_each_shortcut_leads_to_one_page(client: TestClient) -> None:
    for path in ("/runs/old/flow", "/help"):
        text = client.get(path).text
        menu = re.findall(r'data-key="([^"]+)" data-title="([^"]+)"', text)
        assert len(menu) == len({key for key, _ in menu}), menu
    listed = re.findall(r"<dt><kbd>g</kbd> <kbd>(.)</kbd> </dt><dd>([^<]+)</dd>", text)
    assert ("v", "Compare") in listed
    assert ("q", "Flow: precision") in listed
    assert len(listed) == len({key for key, _ in listed}), listed


def test_error_messages_are_escaped(client: TestClient) -> None:
    text = client.get("/runs/old?kind=<script>x", headers=HTML).text
    assert "<script>x" not in text


def test_pages_work_below_the_path_of_a_proxy(world: World) -> None:
    client = TestClient(world.app, base_url="http://127.0.0.1", root_path="/hookcore")
    for path in ("/", "/settings", "/help", "/runs/old/flow"):
        text = client.get(path).text
        assert '<base href="/hookcore/">' in text
        inside = re.findall(r'(?:href|src|action)="([^"]*)"', text.split("<base", 1)[1])
        absolute = [each for each in inside if each.startswith("/") and not each.startswith("/hookcore/")]
        assert not absolute
    assert client.get("/nowhere", headers=HTML).status_code == 404


def test_an_asset_is_cached_forever_under_the_hash_of_its_contents(client: TestClient) -> None:
    address = f"/static/{assets.version()}/app.css"
    kept = client.get(address, headers={"Accept-Encoding": "gzip"})
    assert "immutable" in kept.headers["cache-control"]
    assert kept.headers["content-encoding"] == "gzip"
    plain = client.get(address, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text == kept.text
    assert client.get("/static/other/app.css").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("name", ["../main.py", "..%2fmain.py", "nothing.css", "", "js"])
def test_only_files_of_the_folder_are_assets(client: TestClient, name: str) -> None:
    assert client.get(f"/static/x/{name}").status_code == 404


def test_every_script_is_an_asset_with_a_type_that_browsers_accept(client: TestClient) -> None:
    response = client.get(f"/static/{assets.version()}/js/page.js")
    assert response.headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a `b*` c", "a <code>b*</code> c"),
        ("<i> `<b>`", "&lt;i&gt; <code>&lt;b&gt;</code>"),
        ("`a` ` <b>", "<code>a</code> ` &lt;b&gt;"),
        ("none", "none"),
    ],
)
def test_text_between_backticks_is_code_and_is_escaped(text: str, html: str) -> None:
    assert filters.code(text) == html
    assert filters.code(filters.breakable(text)) == html


@pytest.mark.parametrize(
    ("function", "value", "words"),
    [
        (filters.pace, 18.4, "18/s"),
        (filters.pace, 0.1, "10 s a step"),
        (partial(filters.since, now_s=1.7e9), 1.7e9 + 60, "just now"),
        (partial(filters.since, now_s=1.7e9), 1.7e9 - 12, "12 s ago"),
        (partial(filters.since, now_s=1.7e9), 1.7e9 - 7300, "2 h ago"),
        (partial(filters.since, now_s=1.7e9), 1.7e9 - 29 * 86400, "29 d ago"),
        (partial(filters.since, now_s=1.7e9), 1.7e9 - 1107 * 86400, "2020-11-02"),
        (partial(filters.since, now_s=1.7e9), math.nan, ""),
        (filters.size, 12_345_678, "12.3 MB"),
        (filters.size, 5e13, "50 TB"),
        (filters.basename, "C:\\work\\train.py", "train.py"),
        (filters.moment, 0.0, "1970-01-01T00:00:00+00:00"),
        (filters.thousands, None, "-"),
    ],
)
def test_numbers_are_formatted_for_readers(function: Any, value: Any, words: str) -> None:
    assert function(value) == words


def test_a_long_path_is_shortened_to_one_that_differs_from_those_of_other_layers() -> None:
    paths = [
        f"model.decoder_with_a_long_name.layers.{each}.attention_block_with_a_long_name.query" for each in range(30)
    ]
    short = [filters.short_path(each, 40) for each in paths]
    assert short[12] == "model.dec\u2026name.layers.12.att\u2026name.query"
    assert len(set(short)) == len(paths)
    flat = [f"transformer_layers_{each}_attention_query_projection" for each in range(30)]
    assert len({filters.short_path(each, 24) for each in flat}) == len(flat)
    assert (
        filters.short_path("first: layers.3.a_long_name_of_a_layer or another", 40)
        == "first: layers.3.a_lon\u2026a_layer or another"
    )
    assert filters.short_path("a" * 50, 10) == filters.middle("a" * 50, 10)
    assert len(filters.short_path("layers." * 50, 90)) == 90
    assert filters.short_path("layers.0", 90) == "layers.0"


def test_a_constant_with_rounding_differences_is_drawn_as_a_flat_line() -> None:
    values = np.where(np.arange(50) % 3, 0.01, np.nextafter(0.01, 1))
    spark = spark_of(np.arange(50), values)
    assert spark is not None
    assert len({float(y) for y in re.findall(r" ([\d.]+)", spark.path)}) == 1


def test_the_overview_line_comes_with_the_page_and_equals_that_of_rest(world: World, client: TestClient) -> None:
    block = re.compile(r'<script type="application/json" id="first-series">(.*?)</script>', re.DOTALL)
    for query, asked in (("", {}), ("?scalar=lr", {"name": "lr"}), ("?steps=0-1&scalar=loss", {"from": 0, "to": 1})):
        found = block.search(client.get(f"/runs/old{query}", headers=HTML).text)
        assert found, query
        given = client.get("/api/v1/scalars", params={"run": "old", "name": "loss"} | asked).json()
        assert json.loads(found[1]) == given["series"]
    odd = "</script><b>"
    run = world.runs.get("new")
    assert run
    run.store.append(make_frame(2, scalars={odd: math.nan}))
    found = block.search(client.get("/runs/new", params={"scalar": odd}, headers=HTML).text)
    assert found
    assert [(each["name"], each["mean"]) for each in json.loads(found[1])] == [(odd, ["NaN"])]
    names = ["backward/loss judge", "backward/loss maker"]
    open_run(world.runs, "gan").store.append(make_frame(0, scalars=dict.fromkeys(names, 1.0)))
    page = client.get("/runs/gan", headers=HTML).text
    assert (found := block.search(page))
    assert [each["name"] for each in json.loads(found[1])] == names
    assert "<h2>loss judge, loss maker</h2>" in page
    assert not block.search(client.get("/runs/old?scalar=unknown", headers=HTML).text)


def test_the_heatmap_of_the_overview_opens_with_a_kind_that_has_values() -> None:
    store, taps = Store(2**24), (Tap("a", "output_grad"), Tap("a", "output"))
    store.append(build.frame(0, build.stats_of(1, 1.0, count=8), taps, numbers=[1]))
    assert usual_kind(StoreReader(store)) == "output"
    store.append(build.frame(1, build.stats_of(2, 1.0, count=8)))
    assert usual_kind(StoreReader(store)) == "output_grad"


@pytest.mark.parametrize(
    ("steps", "seconds", "words"),
    [
        (200, 0.5, "Show the last 10 s: steps 179 to 199"),
        (5_000, 0.5, "Show the last 10 s: steps 4,979 to 4,999"),
        (40, 60.0, "Show the last 9 min: steps 30 to 39"),
        (8, 0.5, ""),
    ],
)
def test_every_page_of_a_crashed_run_leads_to_its_last_seconds(
    world: World, steps: int, seconds: float, words: str
) -> None:
    run = _open(world, "crashed")
    for step in range(steps):
        run.store.append(make_frame(step, 0, time_s=1e9 + seconds * step))
    pages = [f"/runs/crashed{path}" for path in ("", "/hooks", "/events", "?part=figures")]
    run.end = End(steps - 1)
    assert not any("Show the last" in world.client.get(page).text for page in pages)
    run.end = End(failure=Failure("crashed", steps, "ValueError: bad batch"))
    for page in pages:
        found = re.findall(
            r'href="runs/crashed\?steps=([0-9-]+)&amp;step=">(Show the last [^<]*)<', world.client.get(page).text
        )
        assert [said for _, said in found] == [words] * bool(words), page
        for asked, said in found:
            first, last = asked.split("-")
            assert said.endswith(f"steps {int(first):,} to {int(last):,}")


def test_compare_separates_different_settings_from_equal_ones(world: World) -> None:
    for name, lr in (("one", 0.1), ("two", 0.2)):
        config = {"lr": lr, "seed": 1} | ({"warmup": 5} if name == "two" else {})
        _open(world, name, (1.0,), config=config, facts={"optimizer": "SGD", "optimizer.lr": lr})
    html = world.client.get("/compare?a=one&b=two").text
    differing, same = html[html.index('id="settings"') :].split("<details>")
    rows = [re.findall(r"<th scope=\"row\">(.*?)</th>", each) for each in (differing, same)]
    assert rows[0] == ["lr", "warmup", "optimizer.<wbr>lr"]
    assert {"seed", "optimizer", "steps", "modules"} <= set(rows[1])
    assert differing.index("Configuration") < differing.index("Recognized")
    assert "Capture" not in differing


def test_compare_takes_1_and_1_0_for_equal_and_calls_runs_of_one_name_by_their_letters(world: World) -> None:
    for run, decay in (("one", 0), ("two", 0.0)):
        _open(world, run, (1.0,), name="sweep", config={"decay": decay, "lr": 1.0 if run == "one" else 0.5})
    html = world.client.get("/compare?a=one&b=two").text
    differing, same = html[html.index('id="settings"') :].split("<details>")
    assert re.findall(r"<th scope=\"row\">(.*?)</th>", differing) == ["lr"]
    assert "decay" in same
    assert re.findall(r'<a href="runs/(\w+)">(.*?)</a></th>', differing) == [("one", "A: sweep"), ("two", "B: sweep")]


def test_the_list_of_layers_asks_for_no_script_of_charts_in_advance(world: World) -> None:
    _open(world, "one", (1.0,))
    assert "preload" not in world.client.get("/runs/one/model/layers").text


def test_compare_shows_how_alike_representations_of_the_same_batch_are_the_least_first(world: World) -> None:
    made, shared = np.random.default_rng(0), np.random.default_rng(1).normal(size=(8, 5))

    def add(name: str, layers: list[tuple[str, Any]]) -> None:
        run = _open(world, name, (1.0,))
        for path, rows in layers:
            values = ((rows - rows.mean(0)) @ (rows - rows.mean(0)).T).astype(np.float32)
            tap = Tap(path, "output", "similarity of samples ab12")
            run.store.add_snapshot(Snapshot(tap, 3, 0.0, "float32", values.shape, values))

    add("one", [("same", shared), ("apart", made.normal(size=(8, 40))), ("none", np.zeros((8, 2)))])
    add("two", [("net.apart", made.normal(size=(8, 40))), ("net.same", 3 * shared), ("net.none", shared)])
    card = re.compile(r'(?s)id="alike".*?</section>')
    rows = re.compile(r'<th scope="row" class="mono">(\w+)</th><td class="number">([\w.-]+)</td>')
    text = world.client.get("/compare", params={"a": "one", "b": "two", "rename": "^net\\. ->"}).text
    found = card.findall(text)[0]
    assert "CKA of 8 samples of a fixed batch, steps 3 and 3" in found
    (first, low), *others = rows.findall(found)
    assert (first, others) == ("apart", [("same", "1.000"), ("none", "unknown")])
    assert abs(float(low)) < 0.7
    assert "Similarity of representations" in card.findall(world.client.get("/compare?a=one&b=two").text)[0]
    assert not rows.findall(world.client.get("/compare?a=one&b=two").text)


def test_process_wide_hooks_of_optimizers_are_not_said_to_run_for_modules() -> None:
    world = make_world()
    run = world.runs.open(make_info("one"))
    assert run is not None
    hooks = [HookRecord("process", "", point, "f", "a.py:1", True) for point in ("forward pre", "step pre", "step")]
    run.store.describe(MODULES, COVERAGE, hooks)
    assert (
        "1 process-wide hook runs for every module" in world.client.get("/runs/one/model/layers?module=layers.0").text
    )
    run.store.describe(MODULES, COVERAGE, hooks[1:])
    assert "process-wide" not in world.client.get("/runs/one/model/layers?module=layers.0").text


def test_a_numbered_layer_of_a_key_figure_has_its_class_because_a_number_alone_looks_like_a_value(world: World) -> None:
    run = _open(world, "numbered")
    run.store.describe(
        [ModuleRecord("", "Sequential", None), ModuleRecord("0", "Linear", ""), ModuleRecord("1", "Linear", "")]
    )
    build.append(run.store, 0, [3.0, 4.0], (Tap("0", "param_grad", "weight"), Tap("1", "param_grad", "weight")))
    text = world.client.get("/runs/numbered").text
    details = [
        re.sub("<[^>]*>", "", each) for each in re.findall(r'<span class="quiet small detail"[^>]*>(.*?)</span>', text)
    ]
    assert {"0 Linear", "1 Linear"} <= set(details)


def test_a_size_of_gradients_is_named_as_a_norm_or_an_rms(world: World) -> None:
    run = _open(world, "sized")
    taps = Tap("a", "param_grad", "weight"), Tap("b", "param_grad", "weight")
    build.append(run.store, 0, [3.0, 4.0], taps)
    for page in ("/runs/sized", "/api/v1/report?run=sized"):
        html = world.client.get(page).text
        titles = [re.sub("<wbr>", "", each) for each in re.findall(r"<(?:dt|span)[^>]*>([^<]*(?:<wbr>[^<]*)*)</", html)]
        assert {"Gradient norm", "Smallest gradient (RMS)", "Largest gradient (RMS)"} <= set(titles), page

"""The pages, the metrics for monitoring, and the display of errors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest
from starlette.testclient import TestClient

from hookcore.records import STATS, Coverage, Event, ModuleRecord, Tap
from hookcore.records.wire import RunInfo
from hookcore.store import Store
from hookcore_app.analysis.numerals import percent, shown
from hookcore_app.pages.model import VALUE_ROWS as ROWS
from hookcore_app.runs import Run
from hookcore_app.runs.parts import End
from tests.build import frame, make_info, open_run
from tests.serving import World, make_batch, make_taps, make_world

TAPS = (
    Tap("net.0", "output"),
    Tap("net.1", "output"),
    Tap("net.1", "output_grad"),
    Tap("net.0", "output_grad"),
)


def _stats(**given: float) -> list[float]:
    known = {"count": 8.0, "nan": 0.0, "inf": 0.0, "zero": 2.0, "parts": 1.0, "sketched": 8.0, **given}
    return [known.get(name, 0.5) for name in STATS]


@pytest.fixture
def world() -> World:
    """Return a run of two layers and three steps. The last step has a gradient with a NaN and an infinity."""
    world = make_world()
    run = world.runs.open(
        RunInfo(id="one", key="key", name="first try", script="train.py", host="box", memory=4_000_000)
    )
    assert run is not None
    _fill(run.store)
    return world


@pytest.fixture
def run(world: World) -> Run:
    run = world.runs.get("one")
    assert run is not None
    return run


@pytest.fixture
def store(run: Run) -> Store:
    return run.store


def _fill(store: Store) -> None:
    store.describe(
        [ModuleRecord("net.0", "Linear", "net"), ModuleRecord("net.1", "ReLU", "net")],
        [Coverage("net.0", "Linear", True), Coverage("net.2", "Identity", False, reason="not called")],
    )
    for step in range(1, 4):
        rows = [_stats(mean=float(step + row)) for row in range(len(TAPS))]
        if step == 3:
            rows[2] = _stats(nan=7, inf=1, zero=0, **dict.fromkeys(("mean", "std", "min", "max"), math.nan))
        store.append(frame(step, rows, TAPS if step == 1 else ()))


@pytest.fixture
def client(world: World) -> TestClient:
    return world.client


def test_the_page_of_a_captured_layer_says_what_is_left_out_of_it(client: TestClient, store: Store) -> None:
    modules = [ModuleRecord("net.0", "Attention", None), ModuleRecord("net.1", "Linear", None)]
    reason = "attention isn't measured: it is compiled"
    store.describe(
        modules, [Coverage("net.0", "Attention", True, ("output",), reason), Coverage("net.1", "Linear", True)]
    )
    assert f"Left out: {reason.replace(chr(39), '&#39;')}." in client.get("/runs/one/layer?module=net.0").text
    assert "Left out" not in client.get("/runs/one/layer?module=net.1").text


def test_health_reveals_only_that_the_server_answers(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}


def test_a_server_without_runs_says_how_to_start_one() -> None:
    client = make_world().client
    assert "hookcore.watch(model)" in client.get("/").text
    assert client.get("/runs/one").status_code == 404


def test_the_first_page_lists_the_newest_runs_first(world: World, client: TestClient) -> None:
    newer = world.runs.open(RunInfo(id="two", key="key", name="", started_s=5.0))
    assert newer is not None
    newer.end = End(0)
    names = [row[1] for row in _read(client, "/").rows[1:] if len(row) > 1]  # the other table says what differs
    assert [name.split()[0] for name in names] == ["two", "first"]
    text = client.get("/").text
    assert text.index('href="runs/two"') < text.index('href="runs/one"')


def test_pages_behind_a_proxy_link_below_its_path(world: World) -> None:
    client = TestClient(world.app, base_url="http://127.0.0.1", root_path="/hookcore")
    for path in ("/", "/runs/one", "/runs/one/problems"):
        text = client.get(path).text
        assert '<base href="/hookcore/">' in text
        assert not re.findall(r'(?:href|src|action)="/(?!hookcore/)', text)


def test_a_run_without_captured_data_is_shown(world: World, client: TestClient) -> None:
    world.runs.open(RunInfo(id="empty", key="key", name=""))
    assert "No step has been captured" in client.get("/runs/empty").text


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/runs/one?kind=outptu", 400, "output"),
        ("/runs/one?match=re:(", 400, "re:("),
        ("/runs/one?match=" + "x" * 1001, 422, "match"),
        ("/runs/nowhere", 404, "removed"),
        ("/nowhere", 404, "Not Found"),
    ],
)
def test_an_invalid_query_gets_an_error_that_says_what_is_wrong(
    client: TestClient, path: str, status: int, words: str
) -> None:
    response = client.get(path)
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    assert words in response.json()["error"]


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
@pytest.mark.parametrize("path", ["/", "/healthz", "/runs/one", "/static/now/app.css"])
def test_a_read_only_page_offers_no_changes(client: TestClient, method: str, path: str) -> None:
    response = client.request(method, path)
    assert response.status_code == 405
    assert list(response.json()) == ["error"]


def test_metrics_are_those_of_the_server_in_the_format_of_prometheus(world: World, client: TestClient) -> None:
    world.take(make_batch(make_info("two", name='bad"name\\\n'), [0, 1]))
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    for line in lines:
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{(\w+="([^"\\]|\\["\\n])*",?)+\})? [-+.\deE]+', line), line
    expected = {
        'hookcore_runs{state="live"} 2.0',
        'hookcore_runs{state="lost"} 0.0',
        "hookcore_batches_total 1.0",
        "hookcore_items_total 2.0",
        'hookcore_run_newest_step{run="one"} 3.0',
        'hookcore_run_newest_step{run="two"} 1.0',
        'hookcore_run_frames_total{run="two"} 2.0',
        "hookcore_memory_limit_bytes 2e+09",
        "hookcore_live_clients 0.0",
        'hookcore_run_info{name="bad\\"name\\\\\\n",run="two",state="live"} 1.0',
    }
    assert expected <= set(lines)


@dataclass
class _Page(HTMLParser):
    rows: list[list[str]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    _in_cell: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
            self.classes.append(dict(attrs).get("class") or "")
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] = (self.rows[-1][-1] + data).strip()

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")


def _read(client: TestClient, path: str = "/runs/one/model/layers") -> _Page:
    """Return the table of newest values of a page, which is below the list of layers."""
    page = _Page()
    text = client.get(path).text
    page.feed(text.partition('id="values"')[2] or text)
    return page


def _words(client: TestClient, path: str) -> str:
    """Return the text of a page's main part."""
    main = client.get(path).text.partition("<main")[2].partition("</main>")[0]
    return " ".join(re.sub(r"<[^>]*>", " ", main.partition(">")[2].replace("<wbr>", "")).split())


def test_the_page_lists_every_layers_newest_activation_and_gradient(client: TestClient) -> None:
    page = _read(client)
    header, *rows = page.rows
    assert " ".join(header) == "module type kind step NaN Inf zero norm mean std min max"
    assert [row[:4] for row in rows] == [
        ["0 Linear", "Linear", "activation", "3"],
        ["0 Linear", "Linear", "activation gradient", "3"],
        ["1 ReLU", "ReLU", "activation", "3"],
        ["1 ReLU", "ReLU", "activation gradient", "3"],
    ]
    assert rows[0][4:] == ["0", "0", "25.0%", "0.5", "3", "0.5", "0.5", "0.5"]
    assert rows[3][4:] == ["7", "1", "0.0%", "NaN", "NaN", "NaN", "NaN", "NaN"]
    assert page.classes[1:] == ["", "", "", "nonfinite"]


def test_no_table_shows_a_measure_of_the_finite_values_of_a_tensor_with_a_nan(world: World) -> None:
    taps = Tap("net.0", "output"), Tap("net.0", "output_grad"), Tap("net.1", "output"), Tap("net.1", "output_grad")
    zeros = dict.fromkeys(("mean", "std", "min", "max", "rms", "norm"), 0.0)
    partly = open_run(world.runs, "partly").store
    partly.describe([ModuleRecord("net.0", "Linear", "net"), ModuleRecord("net.1", "ReLU", "net")], [])
    rows = [_stats(nan=1), _stats(nan=2, zero=6, ratio=math.nan, **zeros), _stats(inf=1), _stats()]
    partly.append(frame(0, rows, taps))

    def shown(path: str) -> list[list[str]]:
        return _read(world.client, f"/runs/partly{path}").rows[1:]

    flow = [row[3:5] for row in shown("/flow?part=layers")]
    assert flow == [["NaN", "NaN"], ["Infinity", "0.5"]]
    layer = {row[0]: row for row in shown("/model/layers?module=net.0&part=values")}
    (gradient,) = (row for name, row in layer.items() if name.startswith("activation gradient"))
    assert gradient[3:9] == ["NaN"] * 6
    assert gradient[-1] == "-", "only updates have a ratio"
    drawer = shown("/drawer?module=net.0&part=numbers")
    assert [row[1:5] for row in drawer] == [["NaN"] * 4] * 2
    listed = shown("/model/layers?part=numbers")
    assert [row[7] for row in listed] == ["NaN", "NaN", "Infinity", "0.5"]
    tiles = world.client.get("/runs/partly/flow/histograms?kind=output_grad").text
    assert "NaN to NaN, mean NaN, std NaN" in tiles


def test_the_page_has_no_inline_script_or_style_and_loads_both_by_versioned_urls(client: TestClient) -> None:
    page, text = _Page(), client.get("/runs/one").text
    page.feed(text)
    assert re.findall(r"<script[^>]*>([^<]*)<", text) == [""]
    assert "style" not in page.tags
    assert not re.search(r"\s(?:style|on[a-z]+)=", text)
    addresses = re.findall(r'(?:href|src)="(static/[0-9a-f]{12}/[^"]+)"', text)
    assert {address.rpartition("/")[2] for address in addresses} >= {"app.css", "overview.css", "overview.js"}
    for address in addresses:
        answer = client.get(f"/{address}")
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]


def test_the_find_box_filters_the_table_of_newest_values(world: World) -> None:
    rows = _read(world.client, "/runs/one/model/layers?f=*.1&row_kind=output").rows
    assert rows == _read(world.client, "/runs/one/model/layers?match=*.1&row_kind=output").rows != []
    assert rows == _read(world.client, "/runs/one?match=*.1&row_kind=output").rows  # the address of earlier versions
    text = world.client.get("/runs/one/model/layers?f=nothing-at-all").text
    assert "No tensor matches." in text
    assert 'href="runs/one/model/layers#values">Show all' in text


def test_the_page_can_be_filtered_by_module_and_kind(client: TestClient) -> None:
    rows = _read(client, "/runs/one?match=*.1&row_kind=output&refresh=").rows
    assert [row[:3] for row in rows[1:]] == [["1 ReLU", "ReLU", "activation"]]
    assert "No tensor matches" in client.get("/runs/one?match=nowhere").text


def test_the_page_reloads_itself_only_on_request(client: TestClient) -> None:
    assert "http-equiv" not in client.get("/runs/one").text
    assert '<meta http-equiv="refresh" content="5">' in client.get("/runs/one?refresh=5").text
    for wrong in ("soon", "-1", "0", "1e9"):
        assert "http-equiv" not in client.get("/runs/one", params={"refresh": wrong}).text


def test_the_page_shows_uncaptured_modules_and_the_contents_of_the_store(client: TestClient) -> None:
    text = client.get("/runs/one/model/layers").text
    assert "net.2 (Identity): not called" in text
    assert "of 4 MB" in text
    assert "Nothing was lost." in text


def test_the_page_shows_events_and_dropped_data(client: TestClient, store: Store) -> None:
    store.add_event(Event(3, 0.0, "hook-error", "an output could not be read", "error", "net.1", 2))
    store.append(frame(1, [_stats()]))
    text = client.get("/runs/one").text
    words = " ".join(re.sub(r"<[^>]*>", " ", text.replace("<wbr>", "")).split())
    assert "Hook error in 1 ReLU an output could not be read" in words
    assert "Hook error 2 times" in " ".join(re.sub(r"<[^>]*>", " ", client.get("/runs/one/problems").text).split())
    assert "too late: 1" in " ".join(client.get("/runs/one/model/layers").text.split())


def test_names_from_the_run_are_escaped(client: TestClient, store: Store) -> None:
    nasty = '<script>alert("x")</script>'
    store.append(frame(4, [_stats()] * 5, (Tap(nasty, "output", index=nasty),), labels={nasty: nasty}))
    text = client.get("/runs/one", params={"match": "*"}).text
    assert "&lt;script&gt;" in text
    pages = [text, client.get("/runs/one", params={"match": f'"{nasty}', "scalar": nasty}).text]
    store.add_event(Event(4, 0.0, nasty, nasty, "error", nasty))
    pages += [
        client.get("/runs/one/problems", params={"f": nasty, "text": nasty}).text,
        client.get("/runs/one/problems").text,
    ]
    for each in pages:
        assert "<script>" not in each
        assert "alert(&#34;x&#34;)" in each


def test_a_table_of_more_taps_than_fit_has_pages() -> None:
    many = ROWS + 7
    world = make_world()
    run = world.runs.open(RunInfo(id="one", key="key", name=""))
    assert run is not None
    run.store.append(frame(1, [_stats()] * many, tuple(Tap(f"layer.{number}", "output") for number in range(many))))
    first, second = _read(world.client), _read(world.client, f"/runs/one/model/layers?value_row={ROWS}")
    assert [row[0] for row in first.rows[1:]] == [f"layer.{number}" for number in range(ROWS)]
    assert [row[0] for row in second.rows[1:]] == [f"layer.{number}" for number in range(ROWS, many)]
    assert f"value_row={ROWS}#values" in world.client.get("/runs/one/model/layers").text


def test_a_part_of_the_page_comes_without_its_frame(client: TestClient) -> None:
    text = client.get("/runs/one?part=findings&part=figures").text
    assert "<html" not in text
    assert re.findall(r'data-part="(\w+)"', text) == ["findings", "figures"]


def test_the_key_figures_and_findings_are_rendered_before_any_script(client: TestClient) -> None:
    words = _words(client, "/runs/one")
    # net.1 has values, although its coverage was not reported
    assert "2 of 3 modules captured ; hookcore: cost not measured yet" in words
    assert "Layers with NaN/Inf 1 first: net.1" in words
    assert re.search(r"error: NaN or infinity in 1 ReLU .+ since step 3", words)


def test_acknowledged_findings_no_longer_alert(client: TestClient, run: Run) -> None:
    assert 'id="finding-' in client.get("/runs/one").text
    for finding in run.findings.current():
        run.acknowledge(finding.key)
    text = client.get("/runs/one").text
    assert 'id="finding-' not in text
    assert "acknowledged, nothing new." in text


def test_a_run_without_gradients_says_why(world: World) -> None:
    run = world.runs.open(RunInfo(id="two", key="key", name=""))
    assert run is not None
    run.store.append(frame(0, [_stats()], TAPS[:1]))
    assert "model.eval()?" in world.client.get("/runs/two").text


def test_scalars_are_shown_with_the_loss_first(client: TestClient, store: Store) -> None:
    store.append(frame(4, [_stats()] * 4, scalars={"alpha": 1.5, "loss": 0.25, "hookcore/cost": 0.02}))
    text = client.get("/runs/one").text
    assert re.findall(r'id="scalar-([^"]+)"', text) == ["loss", "alpha"]
    assert "2.0%" in re.search(r'id="cost".*?</p>', text, re.S)[0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234567.0, "1.235e6"),
        (-1e-300, "-1e-300"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
    ],
)
def test_numbers_are_short_and_non_finite_ones_are_named(value: float, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.0, "0.0%"), (1e-9, "< 0.1%"), (0.25, "25.0%"), (1.0, "100.0%"), (math.nan, "NaN")]
)
def test_a_small_percentage_is_not_shown_as_zero(fraction: float, text: str) -> None:
    assert percent(fraction) == text


def test_the_api_schema_contains_the_routes_of_trainers_and_monitoring(client: TestClient) -> None:
    description = client.get("/api/v1/openapi.json").json()
    assert {"/healthz", "/readyz", "/metrics", "/api/v1/ingest", "/api/v1/login-link"} <= set(description["paths"])
    assert "/login" not in description["paths"]
    refused = description["paths"]["/api/v1/ingest"]["post"]["responses"]["4XX"]
    assert refused["content"]["application/json"]["schema"]["$ref"].endswith("/Problem")


def test_a_row_beyond_the_last_one_shows_the_last_page() -> None:
    world = make_world()
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.store.append(frame(0, [_stats()] * 3, make_taps(3)))
    for page in ("/runs/one/model/layers?value_row=500", "/runs/one/flow?row=500"):
        text = world.client.get(page).text
        assert "rows 1 to 3 of 3" in text, page
        assert "No tensor matches" not in text


def test_the_kind_of_the_heatmap_does_not_filter_the_table() -> None:
    world = make_world()
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.store.append(frame(0, [_stats()] * 2, (Tap("a", "output"), Tap("a", "param", "weight"))))
    assert "rows 1 to 2 of 2" in world.client.get("/runs/one/model/layers?kind=param").text
    assert "rows 1 to 1 of 1" in world.client.get("/runs/one?row_kind=param").text


def test_the_table_says_which_tensors_have_no_value() -> None:
    world = make_world()
    run = world.runs.open(make_info("one"))
    assert run is not None
    taps = (Tap("a", "output"), Tap("a", "output_grad"), Tap("b", "output_grad"))
    run.store.append(frame(0, [_stats()], taps, numbers=[0]))
    text = world.client.get("/runs/one/model/layers").text
    assert "rows 1 to 3 of 3" in text
    assert "2 of these tensors have no value." in text
    text = world.client.get("/runs/one?match=b").text
    assert "1 of these tensors has no value." in text
    assert "No value." in text
    assert "No tensor matches" not in text


def test_the_key_figures_call_the_root_by_the_class_of_the_model() -> None:
    world = make_world()
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.store.describe([ModuleRecord("", "Net", None)])
    run.store.append(frame(0, [_stats(nan=1)] * 2, (Tap("", "output"), Tap("", "output_grad"))))
    words = _words(world.client, "/runs/one")
    assert "Layers with NaN/Inf 1 first: Net" in words
    assert "(root)" not in words

"""The server: strict JSON and one page over a store, for requests that name this machine."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.pages import MAX_ROWS, percent, shown
from app.schemas import StrictJson, number_of, numbers_of
from hookcore.records import STATS, Coverage, Event, Frame, ModuleRecord, SketchBlock, Tap
from hookcore.store import Store

TAPS = (
    Tap("net.0", "output"),
    Tap("net.1", "output"),
    Tap("net.1", "output_grad"),
    Tap("net.0", "output_grad"),
)


def _stats(**given: float) -> list[float]:
    known = {"count": 8.0, "nan": 0.0, "inf": 0.0, "zero": 2.0, "parts": 1.0, "sketched": 8.0, **given}
    return [known.get(name, 0.5) for name in STATS]


def _frame(step: int, rows: list[list[float]], new_taps: tuple[Tap, ...] = (), **others: Any) -> Frame:
    empty = SketchBlock(np.zeros(len(rows) + 1, np.uint32), np.empty(0, np.uint16), np.empty(0, np.uint32))
    return Frame(step, 0.0, np.arange(len(rows), dtype=np.uint32), np.array(rows), empty, new_taps, **others)


@pytest.fixture
def store() -> Store:
    """Two layers, three steps; in the last one a gradient holds a NaN and an infinity."""
    store = Store(4_000_000)
    store.describe(
        [ModuleRecord("net.0", "Linear", "net"), ModuleRecord("net.1", "ReLU", "net")],
        [Coverage("net.0", "Linear", True), Coverage("net.2", "Identity", False, reason="not called")],
    )
    for step in range(1, 4):
        rows = [_stats(mean=float(step + row)) for row in range(len(TAPS))]
        if step == 3:
            rows[2] = _stats(nan=7, inf=1, zero=0, **dict.fromkeys(("mean", "std", "min", "max"), math.nan))
        store.append(_frame(step, rows, TAPS if step == 1 else ()))
    return store


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(create_app(store), base_url="http://127.0.0.1:8642") as client:
        yield client


def _strict(text: str) -> Any:
    """Reads JSON as every other language does: NaN and Infinity are no numbers."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_health_tells_how_far_the_run_is(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok", "steps": 3, "newest_step": 3}


def test_an_empty_store_is_served_too() -> None:
    client = TestClient(create_app(Store(4_000_000)), base_url="http://localhost")
    assert client.get("/healthz").json() == {"status": "ok", "steps": 0, "newest_step": None}
    assert client.get("/api/v1/latest").json()["taps"] == []
    assert "No step has been captured yet" in client.get("/").text


def test_taps_can_be_asked_for_by_module_and_kind(client: TestClient) -> None:
    assert len(client.get("/api/v1/taps").json()["taps"]) == 4
    found = client.get("/api/v1/taps", params={"match": "*.1", "kind": "output_grad"}).json()
    assert found == {
        "taps": [{"number": 2, "module": "net.1", "kind": "output_grad", "index": "", "call": 0, "phase": "train"}]
    }


def test_the_latest_numbers_are_strict_json_with_nan_as_a_string(client: TestClient) -> None:
    response = client.get("/api/v1/latest")
    answer = _strict(response.text)
    assert response.headers["content-type"] == "application/json"
    assert [tap["step"] for tap in answer["taps"]] == [3, 3, 3, 3]
    column = {name: place for place, name in enumerate(answer["stats"])}
    bad = answer["taps"][2]["values"]
    assert [bad[column[name]] for name in ("mean", "nan", "inf")] == ["NaN", 7, 1]
    assert answer["taps"][0]["values"][column["mean"]] == 3.0


def test_the_latest_numbers_can_be_sorted_and_cut(client: TestClient) -> None:
    answer = client.get("/api/v1/latest", params={"stat": "mean", "sort": "mean", "limit": 2}).json()
    assert answer["stats"] == ["mean"]
    assert [(tap["number"], tap["values"]) for tap in answer["taps"]] == [(2, ["NaN"]), (3, [6.0])]


def test_a_series_holds_every_step_and_says_where_it_was_not_finite(client: TestClient) -> None:
    answer = _strict(client.get("/api/v1/series", params={"tap": 2, "stat": "mean"}).text)
    assert answer["tap"] == 2
    assert answer["first_step"] == answer["last_step"] == [1, 2, 3]
    assert answer["mean"] == [3.0, 4.0, "NaN"]
    assert answer["nonfinite"] == [0, 0, 1]


def test_a_series_can_be_bounded_in_steps_and_points(client: TestClient) -> None:
    answer = client.get("/api/v1/series", params={"tap": 0, "stat": "mean", "first": 2, "points": 1}).json()
    assert (answer["first_step"], answer["last_step"], answer["mean"]) == ([2], [3], [2.5])


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/v1/series?tap=0&stat=maen", 400, "mean"),
        ("/api/v1/series?tap=99&stat=mean", 400, "99"),
        ("/api/v1/taps?kind=outptu", 400, "output"),
        ("/api/v1/taps?match=re:(", 400, "re:("),
        ("/api/v1/latest?sort=nrm", 400, "norm"),
        ("/api/v1/series?tap=0&stat=mean&points=0", 422, "points"),
        ("/api/v1/series?tap=0&stat=mean&points=1000000", 422, "points"),
        ("/api/v1/series?tap=-1&stat=mean", 422, "tap"),
        ("/api/v1/latest?limit=-1", 422, "limit"),
        ("/?kind=outptu", 400, "output"),
    ],
)
def test_a_wrong_question_is_answered_with_what_is_wrong(
    client: TestClient, path: str, status: int, message: str
) -> None:
    response = client.get(path)
    assert response.status_code == status
    assert message in response.text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8642", ""])
def test_a_request_that_names_another_host_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
@pytest.mark.parametrize("path", ["/", "/api/v1/latest", "/healthz"])
def test_nothing_can_be_changed_over_http(client: TestClient, method: str, path: str) -> None:
    assert client.request(method, path).status_code == 405


@pytest.mark.parametrize("path", ["/", "/healthz", "/static/app.css", "/nowhere", "/api/v1/taps?kind=outptu"])
def test_every_answer_forbids_scripts_and_framing(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "script-src" not in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_files_outside_the_static_folder_are_not_served(client: TestClient) -> None:
    assert client.get("/static/%2e%2e/main.py").status_code == 404


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


def _read(client: TestClient, path: str = "/") -> _Page:
    page = _Page()
    page.feed(client.get(path).text)
    return page


def test_the_page_lists_every_layers_newest_activation_and_gradient(client: TestClient) -> None:
    page = _read(client)
    header, *rows = page.rows
    assert " ".join(header) == "module type kind step mean std min max norm zero NaN Inf"
    assert [row[:4] for row in rows] == [
        ["net.0", "Linear", "output", "3"],
        ["net.0", "Linear", "output_grad", "3"],
        ["net.1", "ReLU", "output", "3"],
        ["net.1", "ReLU", "output_grad", "3"],
    ]
    assert rows[0][4:] == ["3", "0.5", "0.5", "0.5", "0.5", "25.0%", "0", "0"]
    assert rows[3][4:] == ["NaN", "NaN", "NaN", "NaN", "0.5", "0.0%", "7", "1"]
    assert page.classes[1:] == ["", "", "", "nonfinite"]


def test_the_page_needs_no_script_and_loads_its_style_by_a_versioned_address(client: TestClient) -> None:
    page, text = _read(client), client.get("/").text
    assert "script" not in page.tags
    assert "style" not in page.tags
    address = re.search(r'href="(/static/app\.css\?v=[0-9a-f]{12})"', text)
    assert address
    style = client.get(address[1])
    assert style.headers["content-type"].startswith("text/css")
    assert "prefers-color-scheme: dark" in style.text


def test_the_page_can_be_narrowed_to_a_module_and_a_kind(client: TestClient) -> None:
    rows = _read(client, "/?match=*.1&kind=output&refresh=").rows
    assert [row[:3] for row in rows[1:]] == [["net.1", "ReLU", "output"]]
    assert "Nothing to show" in client.get("/?match=nowhere").text


def test_the_page_reloads_itself_only_when_asked_to(client: TestClient) -> None:
    assert "http-equiv" not in client.get("/").text
    assert '<meta http-equiv="refresh" content="5">' in client.get("/?refresh=5").text
    for wrong in ("soon", "-1", "0", "1e9"):
        assert "http-equiv" not in client.get("/", params={"refresh": wrong}).text


def test_the_page_says_what_was_not_captured_and_what_the_store_holds(client: TestClient) -> None:
    text = client.get("/").text
    assert "net.2 (Identity): not called" in text
    assert "of at most 4.0 MB" in text
    assert "Nothing was dropped." in text


def test_the_page_shows_events_and_what_was_dropped(client: TestClient, store: Store) -> None:
    store.add_event(Event(3, 0.0, "hook-error", "an output could not be read", "error", "net.1", 2))
    store.append(_frame(1, [_stats()]))
    text = client.get("/").text
    assert "error, step 3, 2 times: net.1: an output could not be read" in text
    assert "too late: 1" in text


def test_names_from_the_run_are_text_and_never_markup(client: TestClient, store: Store) -> None:
    nasty = '<script>alert("x")</script>'
    store.append(_frame(4, [_stats()] * 5, (Tap(nasty, "output", index=nasty),), labels={nasty: nasty}))
    text = client.get("/", params={"match": "*"}).text
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert "<script" not in client.get("/", params={"match": f'"{nasty}'}).text


def test_a_model_with_more_taps_than_a_page_holds_says_what_is_left_out() -> None:
    store, many = Store(256_000_000), MAX_ROWS + 7
    taps = tuple(Tap(f"layer.{number}", "output") for number in range(many))
    store.append(_frame(1, [_stats()] * many, taps))
    client = TestClient(create_app(store), base_url="http://127.0.0.1")
    assert "7 more rows are left out" in client.get("/").text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234567.0, "1.235e+06"),
        (-1e-300, "-1e-300"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
    ],
)
def test_numbers_are_shown_short_and_what_is_not_finite_by_its_name(value: float, text: str) -> None:
    assert shown(value) == text
    assert number_of(value) == (value if math.isfinite(value) else text)


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.0, "0.0%"), (1e-9, "< 0.1%"), (0.25, "25.0%"), (1.0, "100.0%"), (math.nan, "NaN")]
)
def test_a_small_share_does_not_look_like_none(fraction: float, text: str) -> None:
    assert percent(fraction) == text


def test_arrays_become_lists_that_json_can_say() -> None:
    assert numbers_of(np.array([1.5, np.nan, np.inf, -np.inf])) == [1.5, "NaN", "Infinity", "-Infinity"]
    assert numbers_of(np.array([2**40], np.int64)) == [2**40]
    with pytest.raises(ValueError, match="not JSON compliant"):
        StrictJson({"value": math.nan})


def test_the_description_of_the_api_names_every_route(client: TestClient) -> None:
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    assert set(paths) == {"/healthz", "/api/v1/taps", "/api/v1/latest", "/api/v1/series"}

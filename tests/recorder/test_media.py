# mypy: disable-error-code="no-untyped-call"
"""Images, texts, tables, and figures that a script logs: bounded, assigned to steps, saved, and shown."""

from __future__ import annotations

import json
import re
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import hookcore
from hookcore.delivery.archive import read_archive
from hookcore.errors import ArgumentError
from hookcore.records import Snapshot, Tap, wire
from hookcore.records.vocabulary import MAX_MEDIA_BYTES, TABLE_TYPE
from hookcore.store import Store
from tests.build import make_info
from tests.inside import class_of, module_of
from tests.serving import make_world


def pixels_of(png: bytes) -> np.ndarray[Any, Any]:
    """Decode a PNG that hookcore wrote (true color, no filters) without its code."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    place, data, size = 8, b"", (0, 0)
    while place < len(png):
        (length,), kind = struct.unpack(">I", png[place : place + 4]), png[place + 4 : place + 8]
        body = png[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
        if kind == b"IDAT":
            data += body
        place += 12 + length
    lines = np.frombuffer(zlib.decompress(data), np.uint8).reshape(size[1], 1 + 3 * size[0])
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(size[1], size[0], 3)


RAMP = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)


class Content(NamedTuple):
    """What a run has of something that was logged, and the number of its bytes before it was shortened."""

    type: str
    data: bytes
    whole: int


def log(kind: str, value: Any) -> Content:
    """Log an image, a text, a table, or a figure. Raise an error if the watcher counts one instead."""
    with hookcore.watch(nn.Linear(1, 1), server=None) as watcher:
        getattr(watcher, f"log_{kind}")("x", value)
    if watcher.errors:
        raise ArgumentError(watcher.errors[0].message)
    [(_, found)] = watcher.store.numbered_media()
    return Content(found.dtype, found.values.tobytes(), found.shape[0])


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (RAMP, RAMP),
        (torch.from_numpy(RAMP.copy()), RAMP),
        (torch.from_numpy(RAMP.copy()).permute(2, 0, 1), RAMP),
        (RAMP / 255.0, RAMP),
        (torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16, requires_grad=True), np.array([[[0] * 3, [255] * 3]])),
        (np.array([[True, False]]), np.array([[[255] * 3, [0] * 3]])),
        (np.concatenate([RAMP, np.full((2, 4, 1), 9, np.uint8)], axis=2), RAMP),  # with alpha
    ],
    ids=["uint8", "tensor", "channels first", "floats", "bfloat16", "bool", "alpha"],
)
def test_an_image_keeps_its_exact_pixels(image: Any, expected: Any) -> None:
    content = log("image", image)
    assert (pixels_of(content.data) == expected).all()
    assert content.whole == len(content.data)


def test_a_large_image_is_thinned_and_says_so() -> None:
    content = log("image", np.zeros((2049, 4), np.uint8))
    assert pixels_of(content.data).shape == (683, 2, 3)
    assert content.whole > len(content.data)
    noise = np.random.default_rng(0).integers(0, 256, (1024, 1024, 3), dtype=np.uint8)
    content = log("image", noise)
    assert len(content.data) <= MAX_MEDIA_BYTES < content.whole


@pytest.mark.parametrize("image", [np.zeros(3), np.zeros((2, 2, 2)), np.full((2, 2), np.nan), np.full((2, 2), 1.5)])
def test_anything_but_an_image_is_refused(image: Any) -> None:
    with pytest.raises(ArgumentError, match="the image"):
        log("image", image)


def test_a_text_is_cut_between_characters() -> None:
    content = log("text", "ä" * MAX_MEDIA_BYTES)
    assert content.data.decode() == "ä" * (MAX_MEDIA_BYTES // 2)
    assert content.whole == 2 * MAX_MEDIA_BYTES
    assert log("text", 3).data == b"3"


def test_tables_of_all_kinds_are_the_same() -> None:
    rows = [{"a": 1, "b": "x"}, {"a": float("nan"), "b": None}]
    expected = {"columns": ["a", "b"], "rows": [[1, "x"], ["nan", None]], "total": 2}
    assert json.loads(log("table", rows).data) == expected
    columns = {"a": [1, np.float64("nan")], "b": ["x", None]}
    assert json.loads(log("table", columns).data) == expected
    tensors = {"a": torch.tensor([1, 2]), "b": np.array([0.5, 1.5])}
    assert json.loads(log("table", tensors).data)["rows"] == [[1, 0.5], [2, 1.5]]
    long = json.loads(log("table", {"a": range(1000 + 5)}).data)
    assert (len(long["rows"]), long["total"]) == (1000, 1000 + 5)
    wide = json.loads(log("table", {f"{number}{'ä' * MAX_MEDIA_BYTES}": [] for number in range(100)}).data)
    assert [len(name) for name in wide["columns"]] == [1000] * 100
    assert wide["columns"][7].startswith("7ä")
    assert wide["columns"][7].endswith("…")
    with pytest.raises(ArgumentError, match="different lengths"):
        log("table", {"a": [1], "b": [1, 2]})
    with pytest.raises(ArgumentError, match="the table has the type int"):
        log("table", 3)


def test_figures_are_recognized_by_their_methods() -> None:
    plotly = SimpleNamespace(to_plotly_json=dict, to_json=lambda: '{"data":[],"layout":{}}')
    assert log("figure", plotly).type == "application/vnd.plotly.v1+json"
    matplotlib = SimpleNamespace(savefig=lambda buffer, format: buffer.write(b"PNG"))
    found = log("figure", matplotlib)
    assert (found.type, found.data) == ("image/png", b"PNG")
    with pytest.raises(ArgumentError, match="the figure has the type int"):
        log("figure", 3)
    large = SimpleNamespace(to_plotly_json=dict, to_json=lambda: "x" * (MAX_MEDIA_BYTES + 1))
    with pytest.raises(ArgumentError, match="fewer points"):
        log("figure", large)


def test_media_beyond_the_queue_limit_are_left_out_and_counted() -> None:
    errors = class_of("ErrorLog")(SimpleNamespace(number=7))
    queue, most = class_of("MediaQueue")(errors), module_of("MediaQueue").MAX_MEDIA
    text = np.frombuffer(b"x", np.uint8)
    for step in range(most + 3):
        queue.put(Tap("x", "output"), step, "text/plain", text, (1,))
    sent: list[Snapshot] = []
    queue.ship(sent.append)  # type: ignore[arg-type]
    assert len(sent) == most
    [event] = errors.news()
    assert (event.name, event.step, event.count) == ("media-dropped", 7, 3)
    assert event.message.startswith("3 logged items dropped")
    assert not errors.news(is_last=True)
    queue.put(Tap("x", "output"), 0, "text/plain", text, (1,))
    assert queue.waiting


def train(watcher: Any, model: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        watcher.log_text("words", f"step {step}")
        watcher.log_image("picture", torch.full((2, 2), step / 10))
        watcher.log_table("table", {"step": [step]})
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()


def test_logged_media_belong_to_their_step_and_are_read_from_memory_and_disk(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    with hookcore.watch(model, server=None, keep=tmp_path) as watcher:
        train(watcher, model)
        watcher.log_image("broken", "no image")
    assert watcher.store is not None
    reader = watcher.reader()
    found = reader.media()
    assert [(each.name, each.step) for each in found] == [
        (name, step) for step in range(3) for name in ("words", "picture", "table")
    ]
    words = reader.media("words", first=1, last=1)
    assert [reader.media_content(each.number) for each in words] == [b"step 1"]
    assert reader.snapshots() == []  # snapshots are tensors only
    assert any("no image" in error.message or "image" in error.message for error in watcher.errors)
    with pytest.raises(ArgumentError, match="there is no item 99"):
        reader.media_content(99)
    (folder,) = tmp_path.iterdir()
    store = Store(2**24)
    for snapshot in read_archive(folder).snapshots():
        store.add_snapshot(snapshot)
    again = [(number, each.tap.module, each.step, each.values.tobytes()) for number, each in store.numbered_media()]
    assert again == [(each.number, each.name, each.step, reader.media_content(each.number)) for each in found]


def test_the_oldest_media_are_dropped_and_the_others_keep_their_numbers() -> None:
    store = Store(2**21)
    for step in range(20):
        values = np.full(10_000, step, np.uint8)
        store.add_snapshot(Snapshot(Tap("x", "output"), step, 0.0, "image/png", (10_000,), values))
    kept = store.numbered_media()
    assert 0 < len(kept) < 20
    assert all(number == each.step for number, each in kept)
    assert store.usage().dropped["media_dropped"] == 20 - len(kept)


def served(*items: tuple[str, int, str, bytes]) -> Any:
    world = make_world()
    run = world.runs.open(make_info("one"))
    assert run is not None
    for name, step, kind, data in items:
        values = np.frombuffer(data, np.uint8)
        run.store.add_snapshot(Snapshot(Tap(name, "output"), step, 1.0, kind, (len(values),), values))
    return world.client


def test_the_api_lists_media_and_returns_their_content_with_its_type() -> None:
    client = served(
        ("words", 1, "text/plain", b"<b>hello</b>"),
        ("words", 2, "text/plain", b"x"),
        ("odd", 3, "text/html", b"<script>"),
    )
    listed = client.get("/api/v1/media?run=one&name=words").json()
    assert [(each["number"], each["step"], each["nbytes"]) for each in listed["media"]] == [(0, 1, 12), (1, 2, 1)]
    assert client.get("/api/v1/media?run=one&from=2&to=2").json()["total"] == 1
    answer = client.get("/api/v1/media/0?run=one")
    assert (answer.content, answer.headers["content-type"]) == (b"<b>hello</b>", "text/plain; charset=utf-8")
    assert client.get("/api/v1/media/2?run=one").headers["content-type"] == "application/octet-stream"
    assert client.get("/api/v1/media/9?run=one").status_code == 404


def test_the_page_leads_to_all_names() -> None:
    client = served(*((f"name {number:03}", number % 7, "text/plain", b"x") for number in range(120)))
    shown: set[str] = set()
    path = "/runs/one/metrics/media?steps=0-6"
    for page in ("1 to 50", "51 to 100", "101 to 120"):
        html = client.get(path, headers={"Accept": "text/html"}).text
        assert f"Names {page} of 120" in html
        shown |= set(re.findall(r'<h2 title="(name \d+)"', html))
        further = re.search(r'rel="next" href="(/?runs[^"]*)"', html)
        path = "" if further is None else "/" + further[1].replace("&amp;", "&").lstrip("/")
    assert len(shown) == 120
    assert not path


def test_the_page_is_held_at_a_step_although_none_was_captured() -> None:
    client = served(*((f"name {number:02}", step, "text/plain", b"x") for number in range(60) for step in (1, 2)))
    html = client.get("/runs/one/metrics/media?step=1&row=50", headers={"Accept": "text/html"}).text
    assert set(re.findall(r'<span class="quiet small">step (\d+)', html)) == {"1"}
    assert 'href="runs/one/metrics/media?step=2&amp;row=50"' in html
    assert (
        "Nothing was logged in step 9."
        in client.get("/runs/one/metrics/media?step=9", headers={"Accept": "text/html"}).text
    )


@pytest.mark.parametrize(
    "table",
    [
        b'{"columns": ' + b"[" * 100_000,
        b'{"columns": ["a"], "rows": [[' + b"[" * 4000 + b"]" * 4000 + b']], "total": 1}',
        b'{"columns": ["a"], "rows": 5, "total": 1}',
    ],
)
def test_an_invalid_table_is_offered_as_a_file(table: bytes) -> None:
    answer = served(("odd", 1, "application/json", table)).get(
        "/runs/one/metrics/media", headers={"Accept": "text/html"}
    )
    assert answer.status_code == 200
    assert "download>Download</a>" in answer.text


def test_the_page_shows_the_newest_of_each_name_as_text_only() -> None:
    table = json.dumps({"columns": ["a<b"], "rows": [[1], [None]], "total": 7}).encode()
    client = served(
        ("words", 1, "text/plain", b"old"),
        ("words", 2, "text/plain", b"<b>new</b>"),
        ("table", 2, "application/json", table),
        ("bad", 2, "application/json", b"[]"),
        ("picture", 2, "image/png", b"png"),
    )
    html = client.get("/runs/one/metrics/media", headers={"Accept": "text/html"}).text
    assert "&lt;b&gt;new&lt;/b&gt;" in html.replace("<wbr>", "")  # lines may wrap after a slash
    assert "<b>new</b>" not in html
    assert "a&lt;b" in html
    assert "2 of 7 rows" in html
    assert 'src="api/v1/media/4?run=one"' in html
    assert "This page can't show it" in html.replace("&#39;", "'")
    assert "Nothing was logged" in served().get("/runs/one/metrics/media", headers={"Accept": "text/html"}).text


def test_a_table_is_shown_whatever_its_trainer_says_about_its_size() -> None:
    for total in ("1" * 4000, "1e999", "NaN", '"many"', "null", "-1", "[1]"):
        table = b'{"columns": ["a"], "rows": [["cell"]], "total": %s}' % total.encode()
        shown = served(("table", 2, TABLE_TYPE, table)).get("/runs/one/metrics/media", headers={"Accept": "text/html"})
        assert shown.status_code == 200, total
        assert ">cell<" in shown.text
        assert ("The number of rows" in shown.text) == (total != "-1")


def test_a_table_that_is_larger_than_any_logged_one_is_neither_taken_nor_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = b'{"columns": [], "rows": [' + b"[]," * 350_000 + b'[]], "total": 1}'
    values = np.frombuffer(table, np.uint8)
    item = wire.snapshot_item(0, Snapshot(Tap("table", "output"), 2, 1.0, TABLE_TYPE, (len(values),), values))
    answer = make_world().post(wire.Batch(run=make_info("one"), items=(item,)))
    assert answer.status_code == 422
    assert f"table, or figure of {len(table)} bytes" in answer.json()["error"]
    small = np.zeros(3 * MAX_MEDIA_BYTES, np.uint8)  # a tensor may be larger
    item = wire.snapshot_item(0, Snapshot(Tap("tensor", "output"), 2, 1.0, "uint8", (len(small),), small))
    assert make_world().post(wire.Batch(run=make_info("one"), items=(item,))).status_code == 200
    client = served(("table", 2, TABLE_TYPE, table))  # saved by an earlier version
    monkeypatch.setattr("hookcore_app.pages.tensors.parsed", pytest.fail)
    assert "This page can't show it" in client.get("/runs/one/metrics/media", headers={"Accept": "text/html"}).text


def test_an_item_is_never_confused_with_another_of_the_same_number() -> None:
    first = served(("words", 1, "text/plain", b"old")).get("/api/v1/media/0?run=one")
    assert first.headers["cache-control"] == "private, no-cache"
    again = served(("words", 9, "text/plain", b"new"))
    known = {"If-None-Match": first.headers["etag"]}
    assert again.get("/api/v1/media/0?run=one", headers=known).content == b"new"
    same = served(("words", 1, "text/plain", b"old")).get("/api/v1/media/0?run=one", headers=known)
    assert (same.status_code, same.content) == (304, b"")

"""The loads of experts on the page Layer: of all routers of the model, on the page of each."""

from __future__ import annotations

import base64
import re
import zlib

import numpy as np
from starlette.testclient import TestClient

from hookcore.records import STATS, ModuleRecord, Snapshot, Tap
from tests.api_world import open_run
from tests.build import frame, stats_of_magnitudes
from tests.serving import make_world

HTML = {"Accept": "text/html"}
ROUTERS = [Tap(f"layers.{number}.gate", "probe", "expert_load") for number in range(2)]


def client_of() -> TestClient:
    """Return a client of a server with a run of two routers, of four and of two experts."""
    world = make_world()
    store = open_run(world.runs, "one").store
    paths = ["", *(tap.module for tap in ROUTERS)]
    store.describe([ModuleRecord(path, "Gate", "" if path else None) for path in paths], [], [])
    taps = (*ROUTERS, Tap("", "output"))
    store.append(frame(3, np.empty((0, len(STATS)))))
    store.append(frame(5, stats_of_magnitudes([0.5, 0.5, 1.0], "mean", "max"), taps))
    for tap, counts in zip(ROUTERS, ([40, 0, 30, 30], [60, 20]), strict=True):
        values = np.array(counts, np.float32)
        store.add_snapshot(Snapshot(tap, 5, 0.0, "float32", values.shape, values))
    return world.client


def card_of(text: str) -> str:
    found = re.search(r'(?s)<section class="card" id="experts".*?</section>', text)
    assert found is not None
    return found[0]


def pixels_of(card: str) -> list[list[int]]:
    """Return the gray levels of each strip."""
    found = []
    for encoded in re.findall(r'src="data:image/png;base64,([^"]*)"', card):
        data = base64.b64decode(encoded)
        start = data.index(b"IDAT") + 4
        found.append(list(zlib.decompress(data[start:])[1::3]))
    return found


def test_the_page_of_a_router_shows_the_loads_of_all_routers() -> None:
    card = card_of(client_of().get("/runs/one/layer?module=layers.0.gate", headers=HTML).text)
    assert re.findall(r"(?s)<a [^>]*>(.*?)</a>", card) == ["layers.0.gate", "layers.1.gate"]
    assert re.findall(r'<td class="number">(.*?)</td>', card) == [
        *("expert 0", "1.6", "expert 1", "0"),
        *("expert 0", "1.5", "expert 1", "0.5"),
    ]
    first, second = pixels_of(card)
    assert first[1] == 0  # black
    assert first[0] == 255
    assert first[2] == first[3]
    assert 0 < second[1] < first[2] < second[0] < 255


def test_other_layers_and_steps_without_loads_show_none() -> None:
    client = client_of()
    assert " hidden>" in card_of(client.get("/runs/one/layer?module=", headers=HTML).text)
    card = card_of(client.get("/runs/one/layer?module=layers.0.gate&steps=0-4", headers=HTML).text)
    assert " hidden>" in card

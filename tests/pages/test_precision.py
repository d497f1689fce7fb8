"""The page Precision: layers by formats, with what a cast would lose."""

from __future__ import annotations

import re

import numpy as np
from starlette.testclient import TestClient

from hookcore.records import SketchBlock, Tap
from hookcore.records.sketch import Sketch
from tests.api_world import open_run
from tests.build import frame, stats_of_magnitudes
from tests.serving import make_world

HTML = {"Accept": "text/html"}


def client_of(run: str = "one") -> TestClient:
    """Return a client of a server with a run: the values of one of its layers span a wide range."""
    world = make_world()
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=4096), np.exp(8 * rng.normal(size=4096))
    sketches = [Sketch.of(each).counts for each in drawn]
    filled = [np.flatnonzero(each) for each in sketches]
    block = SketchBlock(
        np.array([0, len(filled[0]), len(filled[0]) + len(filled[1])], np.uint32),
        np.concatenate(filled).astype(np.uint16),
        np.concatenate([each[at] for each, at in zip(sketches, filled, strict=True)]).astype(np.uint32),
    )
    largest = stats_of_magnitudes([float(np.abs(each).max()) for each in drawn], "max", "rms")
    taps = Tap("narrow", "output"), Tap("wide", "output")
    open_run(world.runs, run).store.append(frame(1, largest, sketches=block, new_taps=taps))
    return world.client


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of each row as text."""
    body = text[text.index("<tbody>") : text.index("</tbody>")]
    rows = re.findall(r"(?s)<tr>(.*?)</tr>", body)
    cells = (re.findall(r"(?s)<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows)
    return [[" ".join(re.sub("<[^>]*>", " ", each).split()) for each in row] for row in cells]


def test_the_layer_that_should_stay_in_bf16_comes_first_with_what_each_format_would_lose() -> None:
    text = client_of().get("/runs/one/flow/precision?step=1", headers=HTML).text
    assert "1 tensor should stay in bf16 rather than E4M3" in text
    wide, narrow = rows_of(text)
    assert [wide[0], narrow[0]] == ["wide", "narrow"]
    assert re.fullmatch(r"&#x25B2; \d\d\.\d% lost", wide[2])
    assert not any("lost" in each for each in narrow[:4])
    assert "lost" not in wide[6], "bf16 has the range of float32"


def test_the_format_the_scale_and_the_filter_are_in_the_address() -> None:
    client = client_of()
    text = client.get("/runs/one/flow/precision?step=1&format=e2m1&scale=p99.9&kind=output&f=narrow", headers=HTML).text
    assert "1 tensor should stay in bf16 rather than E2M1" in text
    assert [row[0] for row in rows_of(text)] == ["narrow"]
    assert '<option value="p99.9" selected>' in text
    odd = client.get("/runs/one/flow/precision?step=1&format=fp7&scale=x&kind=y", headers=HTML)
    assert odd.status_code == 200
    assert "rather than E4M3" in odd.text


def test_a_page_without_values_says_so() -> None:
    text = client_of().get("/runs/one/flow/precision?kind=update", headers=HTML).text
    assert "No captured layer with these values matches." in text

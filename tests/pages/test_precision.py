"""The page Precision: layers by formats, with what a cast would lose."""

from __future__ import annotations

import re

import numpy as np
import pytest
from starlette.testclient import TestClient

from hookcore.records import SketchBlock, Tap
from hookcore.records.sketch import Sketch
from tests.api_world import open_run
from tests.build import frame, stats_of_magnitudes
from tests.serving import make_world

HTML = {"Accept": "text/html"}


def client_of(run: str = "one") -> TestClient:
    """Return a client of a server with a run: some values of a layer are far larger, and step 2 has no histograms."""
    world = make_world()
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=4096), np.where(np.arange(4096) < 16, 1e7, 1) * rng.normal(size=4096)
    sketches = [Sketch.of(each).counts for each in drawn]
    filled = [np.flatnonzero(each) for each in sketches]
    block = SketchBlock(
        np.array([0, len(filled[0]), len(filled[0]) + len(filled[1])], np.uint32),
        np.concatenate(filled).astype(np.uint16),
        np.concatenate([each[at] for each, at in zip(sketches, filled, strict=True)]).astype(np.uint32),
    )
    largest = stats_of_magnitudes([float(np.abs(each).max()) for each in drawn], "max", "rms")
    taps = Tap("narrow", "output"), Tap("wide", "output")
    store = open_run(world.runs, run).store
    store.append(frame(1, largest, sketches=block, new_taps=taps))
    store.append(frame(2, largest))
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
    assert re.fullmatch(r"&#x25B2; (9\d\.\d|100\.0)%", wide[2])
    assert "&#x25B2;" not in "".join(narrow[:4])
    assert "&#x25B2;" not in wide[6], "bf16 has the range of float32"


def test_the_verdict_ranks_the_tensors_with_reasons_and_draws_the_worst_one_against_the_range_of_the_format() -> None:
    client = client_of()
    text = verdict_of(client.get("/runs/one/flow/precision?step=1", headers=HTML).text)
    reason = r"99\.\d% of its values become zero; without the largest 1%, which set the scale, the noise is 100\.0%"
    ranked = rf"rather than E4M3 wide activation: {reason} wide activation &#x25B2; It should stay in bf16: {reason}\."
    assert re.search(ranked, text)
    large = re.search(r"becomes zero: up to ([\d.,]+) subnormal: below ([\d.,]+) too large: above ([\d.,e]+)", text)
    assert large is not None
    zero, subnormal = (float(each.replace(",", "")) for each in large.groups()[:2])
    assert subnormal == pytest.approx(2**-6 * (1 - 2**-4) / 2**-10 * zero, rel=0.01)
    chosen = re.search(r'href="([^"]*tap=\d+#verdict)" aria-label="Histogram of narrow output"', client.get(
        "/runs/one/flow/precision?step=1", headers=HTML).text)  # fmt: skip
    assert chosen is not None
    fine = client.get("/" + chosen[1].replace("&amp;", "&"), headers=HTML).text
    assert "narrow activation It fits into E4M3: " in verdict_of(fine)
    assert '<path class="inside-area" d="M0 80V' in fine


def test_steps_without_a_histogram_have_no_verdict_and_the_page_says_why() -> None:
    text = client_of().get("/runs/one/flow/precision?step=2", headers=HTML).text
    assert "> No tensor to judge <" in verdict_of(text)
    assert "No histogram was counted in step 2. A training may count them in fewer steps" in text
    empty = make_world()
    open_run(empty.runs, "new")
    text = empty.client.get("/runs/new/flow/precision", headers=HTML).text
    assert "> No tensor to judge <" in verdict_of(text)
    assert "No values were captured." in text


def verdict_of(text: str) -> str:
    """Return the words of the first card."""
    part = text[text.index('data-part="verdict"') : text.index('data-part="layers"')]
    return " ".join(re.sub("<[^>]*>", " ", part).split()).replace(" :", ":")


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

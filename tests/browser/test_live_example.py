"""The unchanged JavaScript of docs/live.md, in a browser with a real server."""

from __future__ import annotations

import math

from playwright.sync_api import Browser

from tests.api_world import STEPS, TAPS, fill, open_run, value_at
from tests.manual import ROOT, blocks_of
from tests.serving import served

from .browsing import visiting

# Returns the first snapshot. JSON has no NaN, so values are sent as text.
FIRST_SNAPSHOT = """() => new Promise((resolve, reject) => {
  const kinds = [];
  const show = (frame) => {
    kinds.push(frame.kind);
    if (frame.kind === 1) resolve({
      kinds, k: frame.k, n: frame.n, first: [...frame.first], last: [...frame.last],
      values: [...frame.values].map(String),
    });
  };
  window.onerror = (message) => reject(new Error(message));
  %s
})"""


# Returns the step and the number of values that the example of the stream shows first.
FIRST_NEWS = """() => new Promise((resolve, reject) => {
  const show = (step, values) => resolve([step, values.length]);
  window.onerror = (message) => reject(new Error(message));
  %s
})"""


def test_the_javascript_of_the_page_reads_the_stream(browser: Browser) -> None:
    example, _ = blocks_of(ROOT / "docs" / "live.md", "js")
    with served() as server, visiting(browser, server.url) as tab:
        fill(open_run(server.runs, "one"))
        tab.goto("help")
        seen = tab.page.evaluate(FIRST_NEWS % example.text.replace("output_grad", "output"))
    assert seen == [STEPS - 1, sum(tap.kind == "output" for tap in TAPS)]


def test_the_javascript_of_the_page_reads_a_snapshot(browser: Browser) -> None:
    _, example = blocks_of(ROOT / "docs" / "live.md", "js")
    with served() as server, visiting(browser, server.url) as tab:
        fill(open_run(server.runs, "one"))
        tab.goto("help")
        seen = tab.page.evaluate(FIRST_SNAPSHOT % example.text.replace("127.0.0.1:8642", f"127.0.0.1:{server.port}"))
    rows = [row for row, tap in enumerate(TAPS) if tap.kind == "output"]
    assert (seen["kinds"], seen["k"], seen["n"]) == ([3, 1], STEPS, len(rows))
    assert seen["first"] == seen["last"] == list(range(STEPS))
    for step in range(STEPS):
        for place, row in enumerate(rows):
            shown, known = float(seen["values"][step * len(rows) + place]), value_at(step, row)
            assert (
                math.isclose(shown, known, rel_tol=1e-6) or (math.isnan(shown) and math.isnan(known)) or shown == known
            )

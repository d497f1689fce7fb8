"""Pages of many kinds of trainings at three widths and in both themes: the browser measures what looks wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page

from tests.api_world import fill_ranks
from tests.processes import start
from tests.serving import served

from .browsing import Visit, visiting
from .crowd import LONG, fill, module_of
from .site import running

WIDTHS = (1440, 768, 390)
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
HEIGHT = 3000  # nothing is out of view, so everything is drawn
SCRIPT = Path(__file__).parent / "pictures.js"
PAINTED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
SETTLE_MS, PATIENCE = 200, 8
PATIENCE_S = 240
CHARTS = (
    "", "model", "model/layers", "flow", "flow/histograms", "flow/changes", "flow/precision", "metrics", "performance",
    "problems", "capture",
)  # fmt: skip
REST = ("capture/rules", "capture/hooks", "model/tensors", "metrics/media")
INCIDENT = "problems/incident?id=nonfinite-40"
PAGES: dict[str, tuple[str, ...]] = {
    "ended": (*CHARTS, *REST, "model/layers?module=encoder.layers.1.linear1", "model/tensors?module=features.2"),
    "bad": (*CHARTS, INCIDENT, "model/layers?module=encoder.layers.1.linear1&step=45"),
    "sigmoids": (*CHARTS, "model/layers?module=0"),
    "experts": (*CHARTS, "model/layers?module=experts.1.0"),
    "gan": CHARTS,
    "long": (*CHARTS, *REST, INCIDENT, f"model/layers?module={LONG}.3.projection"),
    "many": (*CHARTS, f"model/layers?module={module_of(25)}"),
    "ranks": ("", "flow", "metrics", "performance", "performance/ranks"),
    "sweep": (
        "?f=tag%3Asweep",
        "?group=lr",
        "group?f=lr%3D0.3",
        "compare?a={ended}&b={bad}",
        "compare",
        "settings",
        "help",
    ),
}
CASES = [(kind, page) for kind, pages in PAGES.items() for page in pages]
TICKS = "<svg class='xaxislayer-above'><text y='20'>0.51</text><text x='60' y='20'>0.51</text></svg>"
CANVAS = (
    "<canvas width=200 height=40></canvas><script>const pen = document.querySelector('canvas').getContext('2d');"
    "pen.font = '14px sans-serif';{}</script>"
)
FAULTS = {
    "texts overlap": "<p>one text</p><p style='margin-top: -30px'>another one</p>",
    "texts overlap: canvas": CANVAS.format("pen.fillText('one', 20, 20); pen.fillText('two', 30, 20)"),
    "labels touch": CANVAS.format("pen.fillText('1', 20, 20); pen.fillText('2', 29, 20)"),
    "a label is cut": CANVAS.format("pen.fillText('a long label', 160, 20)"),
    "a label leaves its box": "<svg><g><rect width='40' height='30' /><text y='20'>a long label</text></g></svg>",
    "a tick repeats": TICKS,
    "mostly empty": "<div class='card' style='width: 600px; height: 400px'>a word</div>",
}
FINE = (
    "<p>one text</p><p>another one</p><svg width=200><text y='20'>0.5</text><text x='60' y='20'>0.6</text></svg>",
    CANVAS.format("pen.fillText('one', 20, 20); pen.clearRect(0, 0, 200, 40); pen.fillText('two', 22, 20)"),
    "<div class='card' style='width: 600px; height: 90px'>a word</div>",
    "<p>a text</p><b style='position: absolute; top: 12px; left: 9px; background: #fff'>another one above it</b>",
)


@pytest.fixture(scope="module")
def drawn(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Visit]]:
    """Return a function that opens a page of a kind of training, in one tab for each server."""
    folder = tmp_path_factory.mktemp("kinds")
    with running(folder) as site, served(lost_after_s=10_000.0) as ranks:
        processes = [
            start(f"tests.browser.{each}", site.url, environment=site.environment(), log=folder / f"{each}.log")
            for each in ("kinds", "sweep")
        ]
        site.train("ended", "--steps", "60")
        site.train("bad", "--steps", "60", "--bad-at", "40")
        fill(site)
        fill_ranks(ranks.runs, world=4, name="four ranks")
        for process in processes:
            process.join(PATIENCE_S)
            assert process.exitcode == 0, [each.read_text() for each in folder.glob("*.log")]
        ids = {name: site.run(name, 60, "ended")["id"] for name in ("ended", "bad", "sigmoids", "experts", "gan")}
        ids |= {"long": "long", "many": "many", "ranks": "ranks-4f2a"}
        with visiting(browser, site.url) as tab, visiting(browser, ranks.url) as other:
            for each in (tab, other):
                each.page.add_init_script(path=SCRIPT)

            def visit(kind: str, page: str) -> Visit:
                chosen = other if kind == "ranks" else tab
                chosen.goto(page.format(**ids) if kind == "sweep" else f"runs/{ids[kind]}/{page}".rstrip("/"))
                return chosen

            yield visit


@pytest.fixture
def blank(browser: Browser) -> Iterator[Page]:
    with browser.new_page() as page:
        page.add_init_script(path=SCRIPT)
        page.goto("data:text/html,")
        yield page


@pytest.mark.parametrize("what", FAULTS)
def test_the_measurement_sees_each_fault(blank: Page, what: str) -> None:
    blank.set_content(FAULTS[what])
    assert what.partition(":")[0] in " ".join(blank.evaluate("measured()"))


def test_the_measurement_sees_nothing_wrong_in_a_good_picture(blank: Page) -> None:
    for content in FINE:
        blank.set_content(content)
        assert blank.evaluate("measured()") == []


def test_a_label_that_is_moved_onto_another_one_of_a_real_page_is_seen(drawn: Callable[[str, str], Visit]) -> None:
    page = drawn("ended", "metrics").page
    page.wait_for_selector(".xtick text")
    move = "([one, two]) => ['x', 'transform'].forEach((name) => two.setAttribute(name, one.getAttribute(name)))"
    page.eval_on_selector_all(".xtick text", move)
    assert "texts overlap" in " ".join(page.evaluate("measured()"))


@pytest.mark.rota("kind")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("kind", "page"), CASES)
def test_nothing_overlaps_is_cut_or_stands_empty(
    drawn: Callable[[str, str], Visit], kind: str, page: str, width: int
) -> None:
    tab = drawn(kind, page)
    tab.page.set_viewport_size({"width": width, "height": HEIGHT})
    tab.page.reload(wait_until="load")
    tab.wait_until_quiet()
    faults = list[str]()
    for theme in THEMES:
        tab.page.emulate_media(color_scheme=theme)
        tab.page.evaluate(PAINTED)
        found = tab.page.evaluate("measured()")
        for _ in range(PATIENCE):
            if not found:
                break
            tab.page.wait_for_timeout(SETTLE_MS)
            found = tab.page.evaluate("measured()")
        faults += [f"{theme}: {each}" for each in found]
    tab.check()
    assert not faults, "\n".join([f"{kind}/{page} at {width} px", *faults])

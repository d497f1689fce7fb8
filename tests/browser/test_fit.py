"""Every page at three widths and in both themes: the browser measures what doesn't fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page

from .browsing import Visit, visiting
from .crowd import LONG, LONGEST, fill, module_of
from .site import running

WIDTHS = (1920, 1440, 390)
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
HEIGHT = 3000  # nothing is out of view, so everything is drawn
MEASURE = (Path(__file__).parent / "fit.js").read_text("utf-8").strip().rstrip(";")
PAINTED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
SETTLE_MS = 150
PATIENCE = 12  # the number of looks before misfits count
OF_A_RUN = (
    "", "model", "model/layers", "model/layers?module={module}", "model/tensors?module={module}", "flow",
    "flow/histograms", "flow/changes", "flow/precision", "metrics", "metrics/media", "metrics/pinned", "performance",
    "performance/ranks", "capture", "capture/rules", "capture/hooks", "problems",
)  # fmt: skip
OTHERS = (
    "",
    "?group=group&columns=notes,tags,lr",
    "group?f=tag%3Asweep",
    "compare",
    "compare?a=long&b=many",
    "settings",
    "help",
    "runs/nothing-of-that-name",
)
CASES = (
    *(("long", page) for page in (*OF_A_RUN, "problems/incident?id=nonfinite-40")),
    *(("many", page) for page in (*OF_A_RUN, "problems/incident?id=nonfinite-40")),
    *(("bare", page) for page in OF_A_RUN if "?" not in page),
)
OPENED: dict[str, tuple[str, Callable[[Page], None]]] = {
    "drawer": (f"runs/long/model?step=45&box={LONG}.3.projection", lambda page: page.locator("#drawer h2").hover()),
    "palette": ("runs/long/flow?steps=5-30&step=12", lambda page: page.keyboard.press("Control+k")),
    "keys": ("runs/long/flow/histograms?steps=5-30", lambda page: page.keyboard.press("?")),
    "menu": ("runs/long/model/layers?module={module}", lambda page: page.locator("[aria-haspopup=menu]").first.click()),
    "ticks": ("?runs=sweep-1,sweep-2", lambda page: page.get_by_role("button", name="Tag 2").click()),
}
FAULTS = {
    "leaves its box": "<p style='width: 40px; white-space: nowrap'>words that need more room</p>",
    "is cut off": "<p style='width: 40px; white-space: nowrap; overflow: hidden'>words that need more room</p>",
    "is cut, without a title": (
        "<p style='width: 40px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis'>words that need</p>"
    ),
    "is cut below": "<p style='width: 90px; height: 18px; overflow: hidden'>words that need more than a line</p>",
    "breaks inside a word": "<p style='width: 90px; word-break: break-all'>several wonderful words</p>",
    "overlaps": "<button>One</button><button style='margin-left: -20px'>Two</button>",
    "is outside of the page": "<button style='position: absolute; left: -20px'>Go</button>",
    "wider than the window": "<div style='width: 9000px; height: 1px'></div>",
}
FINE = (
    "<p title='words' style='width: 9px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis'>words</p>",
    "<p title='words' style='display: -webkit-box; width: 90px; overflow: hidden; overflow-wrap: anywhere;"
    " -webkit-box-orient: vertical; -webkit-line-clamp: 1'>a-first-line-that-breaks and a second one</p>",
    "<div style='width: 40px; white-space: nowrap; overflow: auto'>words that <button>scroll</button></div>",
    "<p style='width: 60px; overflow-wrap: anywhere'>averylongwordwithoutanyplacetobreak</p>",
    "<p style='width: 120px'>words on more <a href='#'>than one</a> line</p><button>One</button> <button>Two</button>",
)


@pytest.fixture(scope="module")
def crowded(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """Return one tab for all pages, with the scripts in its cache."""
    with running(tmp_path_factory.mktemp("crowd")) as site:
        fill(site)
        with visiting(browser, site.url) as tab:
            yield tab


@pytest.fixture(scope="module")
def empty(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """Return a tab of a server without a run."""
    with running(tmp_path_factory.mktemp("nothing")) as site, visiting(browser, site.url) as tab:
        yield tab


@pytest.mark.parametrize("what", FAULTS)
def test_the_measurement_finds_each_layout_fault(browser: Browser, what: str) -> None:
    with browser.new_page() as page:
        page.set_content(FAULTS[what])
        assert what in " ".join(page.evaluate(MEASURE))


def test_the_measurement_finds_no_fault_in_readable_content(browser: Browser) -> None:
    with browser.new_page() as page:
        for content in FINE:
            page.set_content(content)
            assert page.evaluate(MEASURE) == []


def misfits(page: Page) -> list[str]:
    """Wait until the page has settled, and return what doesn't fit."""
    found: list[str] = page.evaluate(MEASURE)
    for _ in range(PATIENCE):
        if not found:
            break
        page.wait_for_timeout(SETTLE_MS)
        found = page.evaluate(MEASURE)
    return found


def check(tab: Visit, path: str, width: int, opened: Callable[[Page], None] | None = None) -> None:
    """Open a page, and check it in both themes. A new theme needs no time to settle."""
    tab.faults, tab.forgiven = [], ("status of 404",)
    page, found = tab.page, list[str]()
    page.set_viewport_size({"width": width, "height": HEIGHT})
    tab.goto(path)
    tab.wait_until_quiet()
    if opened:
        opened(page)
    page.wait_for_timeout(SETTLE_MS)
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        page.evaluate(PAINTED)
        found += [f"{theme}: {each}" for each in misfits(page)]
    tab.check()
    assert not found, "\n".join([path, *found])


@pytest.mark.rota("page")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("run", "page"), CASES)
def test_everything_on_a_page_of_a_run_fits(crowded: Visit, run: str, page: str, width: int) -> None:
    module = LONGEST if run == "long" else module_of(25)
    check(crowded, f"runs/{run}/{page}".rstrip("/").format(module=module), width)


@pytest.mark.rota("what")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("what", OPENED)
def test_everything_that_is_opened_fits(crowded: Visit, what: str, width: int) -> None:
    path, opened = OPENED[what]
    check(crowded, path.format(module=LONGEST), width, opened)


@pytest.mark.rota("page")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", OTHERS)
def test_everything_on_a_page_of_all_runs_fits(crowded: Visit, page: str, width: int) -> None:
    check(crowded, page, width)


@pytest.mark.rota("page")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", ["", "compare", "settings"])
def test_everything_on_a_page_fits_without_a_run(empty: Visit, page: str, width: int) -> None:
    check(empty, page, width)

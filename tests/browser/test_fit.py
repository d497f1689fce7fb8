"""Every page at three widths and in both themes: what doesn't fit is measured in the browser.

The dark theme has other colors only, so it is measured at one width: what is drawn again must fit again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page

from .browsing import visiting
from .crowd import LONG, LONGEST, fill, module_of
from .site import Site, running

WIDTHS = (1920, 1440, 390)
THEMES: tuple[tuple[Literal["light", "dark"], tuple[int, ...]], ...] = (("light", WIDTHS), ("dark", WIDTHS[-1:]))
HEIGHT = 3000  # nothing is out of sight, so that everything is drawn
MEASURE = (Path(__file__).parent / "fit.js").read_text("utf-8").strip().rstrip(";")
SETTLE_MS = 150
PATIENCE = 12  # looks, before what is found counts
OF_A_RUN = (
    "", "model", "flow", "layer", "layer?module={module}", "histograms", "differences", "tensors?module={module}",
    "media", "board", "system", "hooks", "events", "ranks",
)  # fmt: skip
OTHERS = ("", "compare", "compare?a=long&b=many", "settings", "help", "runs/nothing-of-that-name")
CASES = (
    *(("long", page) for page in (*OF_A_RUN, "incident?id=nonfinite-40")),
    *(("many", page) for page in (*OF_A_RUN, "incident?id=nonfinite-40")),
    *(("bare", page) for page in OF_A_RUN if "?" not in page),
)
OPENED: dict[str, tuple[str, Callable[[Page], None]]] = {
    "drawer": (f"runs/long/model?step=45&box={LONG}.3.projection", lambda page: page.locator("#drawer h2").hover()),
    "palette": ("runs/long/flow?steps=5-30&step=12", lambda page: page.keyboard.press("Control+k")),
    "keys": ("runs/long/histograms?steps=5-30", lambda page: page.keyboard.press("?")),
    "menu": ("runs/long/layer?module={module}", lambda page: page.locator("[aria-haspopup=menu]").first.click()),
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
    "<div style='width: 40px; white-space: nowrap; overflow: auto'>words that <button>scroll</button></div>",
    "<p style='width: 60px; overflow-wrap: anywhere'>averylongwordwithoutanyplacetobreak</p>",
    "<p style='width: 120px'>words on more <a href='#'>than one</a> line</p><button>One</button> <button>Two</button>",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tmp_path_factory.mktemp("crowd")) as found:
        fill(found)
        yield found


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tmp_path_factory.mktemp("nothing")) as found:
        yield found


@pytest.mark.parametrize("what", FAULTS)
def test_the_measure_finds_a_fault(browser: Browser, what: str) -> None:
    with browser.new_page() as page:
        page.set_content(FAULTS[what])
        assert what in " ".join(page.evaluate(MEASURE))


def test_the_measure_finds_no_fault_in_what_can_be_read(browser: Browser) -> None:
    with browser.new_page() as page:
        for content in FINE:
            page.set_content(content)
            assert page.evaluate(MEASURE) == []


def misfits(page: Page) -> list[str]:
    """Return what doesn't fit, when the page has settled."""
    found: list[str] = []
    for _ in range(PATIENCE):
        page.wait_for_timeout(SETTLE_MS)
        found = page.evaluate(MEASURE)
        if not found:
            break
    return found


def check(browser: Browser, url: str, path: str, opened: Callable[[Page], None] | None = None) -> None:
    """Open a page once, and look at it at all widths and in both themes; with something opened, in the light one."""
    found: list[str] = []
    with visiting(browser, url, size=(WIDTHS[0], HEIGHT)) as tab:
        tab.forgiven = ("status of 404",)
        tab.goto(path)
        tab.wait_until_quiet()
        if opened:
            opened(tab.page)
        for theme, widths in THEMES[: 1 if opened else 2]:
            tab.page.emulate_media(color_scheme=theme)
            for width in widths:
                tab.page.set_viewport_size({"width": width, "height": HEIGHT})
                found += [f"{width} px, {theme}: {each}" for each in misfits(tab.page)]
    assert not found, "\n".join([path, *found])


@pytest.mark.parametrize(("run", "page"), CASES)
def test_everything_on_a_page_of_a_run_fits(browser: Browser, site: Site, run: str, page: str) -> None:
    module = LONGEST if run == "long" else module_of(25)
    check(browser, site.url, f"runs/{run}/{page}".rstrip("/").format(module=module))


@pytest.mark.parametrize("what", OPENED)
def test_everything_that_is_opened_fits(browser: Browser, site: Site, what: str) -> None:
    path, opened = OPENED[what]
    check(browser, site.url, path.format(module=LONGEST), opened)


@pytest.mark.parametrize("page", OTHERS)
def test_everything_on_a_page_of_all_runs_fits(browser: Browser, site: Site, page: str) -> None:
    check(browser, site.url, page)


@pytest.mark.parametrize("page", ["", "compare", "settings"])
def test_everything_on_a_page_fits_without_a_run(browser: Browser, nothing: Site, page: str) -> None:
    check(browser, nothing.url, page)

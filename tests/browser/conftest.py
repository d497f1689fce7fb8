"""One browser and one site for all page tests; each test has a tab of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from .browsing import Visit, chromium, visiting
from .site import Site, running

HERE = Path(__file__).parent
Open = Callable[..., AbstractContextManager[Visit]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is in this folder needs a browser, whose driver needs the process for itself: it runs by itself."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with three runs of 60 steps: `ended`, `bad` (a NaN from step 40 on), and `live`, which goes on."""
    with running(tmp_path_factory.mktemp("site")) as site:
        site.train("ended", "--steps", "60")
        site.train("bad", "--steps", "60", "--bad-at", "40")
        site.run("ended", 60, "ended")
        site.run("bad", 60, "ended")
        site.train("live", "--pause", "0.2")
        site.run("live", 5)
        yield site


@pytest.fixture
def empty_site(tmp_path: Path) -> Iterator[Site]:
    """A server of this test alone, with nothing in it: it may be killed."""
    with running(tmp_path) as site:
        yield site


@pytest.fixture
def visit(browser: Browser, site: Site) -> Open:
    """Opens a tab: `with visit(theme="dark", size=(390, 844)) as tab: tab.goto("/"); tab.page...`."""
    return partial(visiting, browser, site.url)


@pytest.fixture
def paths(site: Site) -> Callable[[str], dict[str, str]]:
    """The address of every page for the run of a name."""
    return partial(paths_of, site)


def paths_of(site: Site, name: str) -> dict[str, str]:
    """The address of every page for the run of a name."""
    run = site.run(name)["id"]
    other: Any = site.run("ended" if name != "ended" else "bad")["id"]
    return {
        "runs": "",
        "overview": f"runs/{run}",
        "flow": f"runs/{run}/flow",
        "layers": f"runs/{run}/layer",
        "layer": f"runs/{run}/layer?module=encoder.layers.1.linear1",
        "histograms": f"runs/{run}/histograms",
        "tensors": f"runs/{run}/tensors",
        "hooks": f"runs/{run}/hooks",
        "events": f"runs/{run}/events",
        "compare": f"compare?a={run}&b={other}",
        "settings": "settings",
        "help": "help",
    }

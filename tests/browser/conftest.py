"""One browser and one site for all page tests. Each test has its own tab."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from .browsing import Visit, chosen, visiting
from .site import Site, running

HERE = Path(__file__).parent
Open = Callable[..., AbstractContextManager[Visit]]
Paths = Callable[[str], dict[str, str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests in this folder separate, because the driver of the browser needs a process for itself."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chosen() as started:
        yield started


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Start a server with three runs of 60 steps: `ended`, `bad` (NaN from step 40), and `live`, which continues.

    `live` rests unless a test asks for its pages, because each step takes 40 ms of a core.
    """
    with running(tmp_path_factory.mktemp("site")) as site:
        site.train("ended", "--steps", "60")
        site.train("bad", "--steps", "60", "--bad-at", "40")
        site.run("ended", 60, "ended")
        site.run("bad", 60, "ended")
        site.train("live", "--pause", "0.2", "--rest", str(site.resting))
        site.run("live", 5)
        site.resting.touch()
        yield site


@pytest.fixture
def empty_site(tmp_path: Path) -> Iterator[Site]:
    """Return an empty server for one test, which may kill it."""
    with running(tmp_path) as site:
        yield site


@pytest.fixture
def visit(browser: Browser, site: Site) -> Open:
    """Return a function that opens a tab: `with visit(theme="dark", size=(390, 844)) as tab: tab.goto("/")`."""
    return partial(visiting, browser, site.url)


@pytest.fixture
def paths(site: Site) -> Iterator[Callable[[str], dict[str, str]]]:
    """Return a function from the name of a run to the addresses of all its pages."""
    yield partial(paths_of, site)
    site.resting.touch()


def paths_of(site: Site, name: str) -> dict[str, str]:
    """Return the addresses of all pages of a run, and wake up `live`."""
    if name == "live":
        site.resting.unlink(missing_ok=True)
    run = site.run(name)["id"]
    other: Any = site.run("ended" if name != "ended" else "bad")["id"]
    return {
        "runs": "",
        "group": "group",
        "overview": f"runs/{run}",
        "model": f"runs/{run}/model",
        "flow": f"runs/{run}/flow",
        "layers": f"runs/{run}/model/layers",
        "layer": f"runs/{run}/model/layers?module=encoder.layers.1.linear1",
        "histograms": f"runs/{run}/flow/histograms",
        "differences": f"runs/{run}/flow/changes",
        "precision": f"runs/{run}/flow/precision",
        "tensors": f"runs/{run}/model/tensors",
        "media": f"runs/{run}/metrics/media",
        "board": f"runs/{run}/metrics/pinned",
        "system": f"runs/{run}/performance",
        "capture": f"runs/{run}/capture",
        "rules": f"runs/{run}/capture/rules",
        "hooks": f"runs/{run}/capture/hooks",
        "metrics": f"runs/{run}/metrics",
        "events": f"runs/{run}/problems",
        "incident": f"runs/{run}/problems/incident?id=nonfinite-40",
        "compare": f"compare?a={run}&b={other}",
        "settings": "settings",
        "help": "help",
    }

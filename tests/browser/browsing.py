"""Pages in a headless browser, with checks that apply to all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Playwright, expect, sync_playwright

from tests.waiting import wait_for

from . import firefox

CHROMIUM = "/usr/bin/chromium-headless-shell"  # without windows, which would take a third more time
BROWSERS = ("chromium", "firefox")
UNABLE = {"has_touch", "java_script_enabled"}  # not emulated by WebDriver BiDi
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 30_000
PAUSE_MS = 10
QUIET_MS = 500
SAME_REQUESTS = """() => {
    const [before, now] = [globalThis.answered, performance.getEntriesByType("resource").length];
    globalThis.answered = now;
    return before === now;
}"""
expect.set_options(timeout=PATIENCE_MS)
# How Chromium and Firefox report a server that doesn't answer.
LOST = (
    "ERR_CONNECTION",
    "ERR_EMPTY_RESPONSE",
    "WebSocket connection",
    "establish a connection",
    "was stopped",
    "NetworkError",
)
AXE_TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def choose(where: Page | Locator, words: str, title: str = "") -> None:
    """Choose an action in a chart's menu."""
    where.get_by_role("button", name=f"Actions: {title}").first.click()
    where.get_by_role("menuitem", name=words, exact=True).click()


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@contextmanager
def chosen() -> Iterator[Browser]:
    """Return the browser for the tests: Chromium, or what TEST_BROWSER names."""
    name = os.environ.get("TEST_BROWSER", "chromium")
    assert name in BROWSERS, f"TEST_BROWSER={name} is unknown: use {' or '.join(BROWSERS)}"
    with sync_playwright() as playwright, TemporaryDirectory() as folder:
        browser = launch(playwright) if name == "chromium" else firefox.launch(playwright, Path(folder))
        yield browser
        browser.close()


def launch(playwright: Playwright) -> Browser:
    """Launch Debian's Chromium, without the features that contact its maker."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))


@dataclass
class Visit:
    """One tab, and the errors that it reported."""

    page: Page
    host: str
    faults: list[str] = field(default_factory=list)
    forgiven: tuple[str, ...] = ()  # parts of expected messages, such as those about a killed server

    def goto(self, path: str) -> None:
        """Open a page of the site."""
        answer = self.page.goto(f"http://{self.host}/{path.lstrip('/')}", wait_until="load")
        assert answer is not None

    def wait_until_started(self) -> None:
        """Wait until the page's script handles keys. The text appears earlier."""
        expect(self.page.locator("#palette")).to_be_visible()

    def wait_until_quiet(self) -> None:
        """Wait until no request has been answered for half a second.

        This isn't Playwright's idle network, which Firefox never reports for a page with an open socket.
        """
        self.page.evaluate("() => { delete globalThis.answered; }")  # what an earlier call counted
        self.page.wait_for_function(SAME_REQUESTS, polling=QUIET_MS)

    def wait_for(self, holds: Callable[[], Any], what: str) -> None:
        """Wait for something that changes with events of the browser, such as the address or a list of requests.

        Playwright handles events only while it is called.
        """
        wait_for(lambda: self.page.wait_for_timeout(PAUSE_MS) or holds(), what)

    def require_downloads(self) -> None:
        """Skip the rest of the test in Firefox, which doesn't report downloads by WebDriver BiDi."""
        browser = self.page.context.browser
        if browser is not None and browser.browser_type.name == "firefox":
            pytest.skip("Debian's Firefox doesn't report downloads to Playwright")

    def check(self) -> None:
        """Assert that there were no errors and no requests to other hosts."""
        left = [fault for fault in self.faults if not any(part in fault for part in self.forgiven)]
        assert not left, left

    def axe(self) -> list[str]:
        """Return the problems that axe-core finds, one per line."""
        source = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
        self.page.evaluate(source)
        # Describing all nodes that pass takes most of the time, and nothing reads the descriptions.
        asked = json.dumps({"runOnly": {"type": "tag", "values": AXE_TAGS}, "resultTypes": ["violations"]})
        violations: list[dict[str, Any]] = self.page.evaluate(f"axe.run(document, {asked}).then((a) => a.violations)")
        return [
            f"{each['id']} ({each['impact']}): {node['target']} {node['failureSummary']}"
            for each in violations
            for node in each["nodes"]
        ]


@contextmanager
def visiting(
    browser: Browser,
    url: str,
    *,
    theme: Literal["light", "dark"] = "light",
    size: tuple[int, int] = (1440, 900),
    **more: Any,
) -> Iterator[Visit]:
    """Open a tab in a new session, and check it at the end."""
    in_firefox = browser.browser_type.name == "firefox"
    if in_firefox and (unable := UNABLE & more.keys()):
        pytest.skip(f"Playwright can't set {' and '.join(unable)} of Debian's Firefox")
    context = browser.new_context(color_scheme=theme, viewport={"width": size[0], "height": size[1]}, **more)
    context.set_default_timeout(PATIENCE_MS)
    visit = Visit(context.new_page(), urlsplit(url).netloc)
    listen(visit, visit.page)
    if in_firefox and more.get("reduced_motion") == "reduce":
        firefox.reduce_motion(visit.page)
    try:
        yield visit
        visit.check()
    finally:
        context.close()


def listen(visit: Visit, page: Page) -> None:
    """Record the errors and requests of a page."""
    page.on("console", lambda told: visit.faults.append(f"console: {told.text}") if told.type == "error" else None)
    page.on("pageerror", lambda error: visit.faults.append(f"error: {error}"))
    page.on("request", lambda asked: _note_host(visit, asked.url))


def _note_host(visit: Visit, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("data", "blob") and parts.netloc != visit.host:
        visit.faults.append(f"another host was asked: {url}")

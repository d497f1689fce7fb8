"""Pages in a browser that reaches the server only through nginx, with a path prefix and TLS."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, expect

from tests.processes import start
from tests.proxying import Proxied, proxied
from tests.serving import BEARER

from .browsing import visiting
from .site import TRAINER


def _link(proxy: Proxied) -> str:
    asked = Request(f"{proxy.url}/api/v1/login-link", method="POST", headers=BEARER)
    with urlopen(asked, timeout=30, context=proxy.trust) as answer:
        return str(json.load(answer)["url"])


@pytest.mark.all
def test_a_browser_logs_in_through_a_proxy_and_sees_new_data(browser: Browser, tmp_path: Path) -> None:
    with proxied(tmp_path) as proxy:
        name = f"far-{uuid4().hex[:8]}"  # saved runs of other tries have other names
        arguments = (proxy.url, "--name", name, "--pause", "0.1")
        trainer = start(TRAINER, *arguments, environment=proxy.environment, log=tmp_path / "trainer.log")
        try:
            with visiting(browser, proxy.url, ignore_https_errors=True) as tab:
                tab.page.goto(_link(proxy))
                expect(tab.page).to_have_url(f"{proxy.url}/")
                row = tab.page.get_by_role("link", name=name).first
                expect(row).to_be_visible(timeout=60_000)  # without reloading, once the training has started
                row.click()
                expect(tab.page.locator("#status.live")).to_be_visible()
                newest = "() => Number(document.querySelector('[data-newest]').dataset.newest)"
                before = tab.page.evaluate(newest)
                tab.page.wait_for_function(
                    "(before) => document.querySelector('#status-words').textContent.match(/\\d+/) > before + 5",
                    arg=before,
                )
        finally:
            trainer.kill()
            trainer.join()

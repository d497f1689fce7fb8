"""A watcher's output in a notebook cell, on a page of another server such as Jupyter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import hookcore
from hookcore_app.serving import server_thread
from tests.harness import watch
from tests.serving import PATIENCE_S, foreign_page
from tests.zoo.case import mean_square, mlp

BUTTONS = "button[data-seen], form button[type=submit]"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], hookcore.Watcher]]:
    """Return a watcher that serves from this process, with some steps."""
    monkeypatch.setattr("hookcore.delivery.delivery.PORT", 0)
    open_ones: list[hookcore.Watcher] = []

    def make() -> hookcore.Watcher:
        model = mlp()
        watcher = watch(model, server="thread", name="cell")
        open_ones.append(watcher)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(30):
            mean_square(model(torch.randn(4, 6))).backward()
            watcher.log(loss=1 / (1 + step))
            optimizer.step()
            optimizer.zero_grad()
        assert watcher.flush(PATIENCE_S)
        return watcher

    yield make
    for watcher in open_ones:
        watcher.close()
    server_thread.start(port=0).stop()


@contextmanager
def notebook(browser: Browser, cell: str) -> Iterator[Page]:
    """Serve the cell on a page of another server. `localhost` is a different site than 127.0.0.1."""
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    html = f"<!doctype html><meta charset=utf-8><body style='font: 14px sans-serif'><h1>A notebook</h1>{cell}"
    try:
        with foreign_page(html) as address:
            page = context.new_page()
            page.goto(address.replace("127.0.0.1", "localhost"))
            yield page
    finally:
        context.close()


def test_the_live_page_is_in_the_cell_without_buttons_and_continues(
    browser: Browser, watched: Callable[[], hookcore.Watcher], tmp_path: Path
) -> None:
    watcher = watched()
    with notebook(browser, watcher._repr_html_()) as page:
        inside = page.frame_locator("iframe")
        expect(inside.locator("body")).to_have_attribute("data-may-change", "no")
        expect(inside.locator("h1, h2").first).to_be_visible()
        expect(inside.locator(BUTTONS)).to_have_count(0)
        expect(inside.locator("body")).to_contain_text("29")
        side, main = inside.locator("nav.side").bounding_box(), inside.locator("main").bounding_box()
        assert side is not None
        assert main is not None
        assert side["height"] < 50, "pages are one row, without a sidebar"
        assert main["width"] > 0.95 * side["width"] > 800
        tab = inside.get_by_role("link", name="Open in a new tab")
        expect(tab).to_have_attribute("target", "_blank")
        watcher.log(loss=7.5)
        watcher.step()
        expect(inside.locator("body")).to_contain_text("30")  # by the stream, on the same page
        page.locator("summary").last.click()
        expect(page.locator("img").first).to_be_visible()
        page.screenshot(path=tmp_path / "cell.png", full_page=True)


def test_a_server_that_forbids_frames_is_not_framed(
    browser: Browser, watched: Callable[[], hookcore.Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKCORE_FRAME_ANCESTORS", "none")
    watcher = watched()
    cell = watcher._repr_html_()
    assert "<iframe" not in cell
    with notebook(browser, f'{cell}<iframe src="{watcher.url}"></iframe>') as page:
        expect(page.locator("img").first).to_be_visible()
        expect(page.frame_locator("iframe").locator("[data-may-change]")).to_have_count(0)
        assert not [frame for frame in page.frames if frame.url == watcher.url and frame.locator("header").count()]

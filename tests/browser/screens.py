"""Takes pictures of every page, in both themes, wide and narrow: `python -m tests.browser.screens FOLDER`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from playwright.sync_api import Page

from .browsing import chromium, visiting
from .conftest import paths_of
from .site import Site, running

SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
SETTLED_MS = 2500


def main() -> None:
    """Train, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", default="bad", choices=("bad", "ended", "live"))
    parser.add_argument("--only", default="", help="one page")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as site:
        site.train("ended", "--steps", "200")
        site.train("bad", "--steps", "200", "--bad-at", "150")
        site.train("live", "--pause", "0.1")
        site.run("ended", 200, "ended")
        site.run("bad", 200, "ended")
        take(site, given.run, given.only, given.folder)


def take(site: Site, run: str, only: str, folder: Path) -> None:
    """Take pictures of a run's pages."""
    with chromium() as browser:
        for page, path in paths_of(site, run).items():
            if only and page != only:
                continue
            for theme in ("light", "dark"):
                for words, size in SIZES.items():
                    with visiting(browser, site.url, theme=theme, size=size) as tab:
                        tab.goto(path)
                        tab.page.wait_for_timeout(SETTLED_MS)
                        _show_all(tab.page)
                        tab.page.screenshot(path=folder / f"{page}-{theme}-{words}.png", full_page=True)


def _show_all(page: Page) -> None:
    """Scroll through the page once, because parts out of view aren't drawn."""
    height = page.evaluate("document.documentElement.scrollHeight")
    for top in range(0, height, 600):
        page.evaluate(f"scrollTo(0, {top})")
        page.wait_for_timeout(250)
    page.evaluate("scrollTo(0, 0)")


if __name__ == "__main__":
    main()

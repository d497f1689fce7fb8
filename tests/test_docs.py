"""What the documentation shows is true: its code runs, its links lead somewhere, its tables are those of the code.

The Python blocks of a page are run in one namespace, from top to bottom. A comment of `<!-- setup`, code and `-->` is
run too, for what a reader has and a test has not; `<!-- not run: reason -->` exempts the block below it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

import hookcore
from hookcore_app import embedded

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
SETUP = re.compile(r"<!-- setup\n(.+)-->", re.DOTALL)
MOST_EXEMPT = 3  # of all pages together: examples are there to be run


def _tokens(page: Path) -> list[Token]:
    tokens: list[Token] = MarkdownIt("commonmark", {"html": True}).enable("table").parse(page.read_text())
    return tokens


def _blocks(page: Path) -> list[tuple[int, str, bool]]:
    """The Python blocks of a page: their first line, their text, and whether a comment exempts them."""
    blocks, before = [], ""
    for token in _tokens(page):
        setup = SETUP.fullmatch(token.content.strip()) if token.type == "html_block" else None
        if setup or (token.type == "fence" and token.info.split()[:1] == ["python"]):
            assert token.map is not None
            text = setup[1] if setup else token.content
            blocks.append((token.map[0] + 1, text, bool(NOT_RUN.fullmatch(before.strip()))))
        before = token.content if token.type == "html_block" else ""
    return blocks


WITH_CODE = [page for page in PAGES if _blocks(page)]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A watcher that was told nothing of servers is served from this process; no page starts a dashboard."""
    monkeypatch.setenv("HOOKCORE_SERVER", "thread")
    monkeypatch.setenv("HOOKCORE_PORT", "0")
    yield
    for thread in threading.enumerate():
        if thread.name == embedded.THREAD:
            embedded.start().stop()


@pytest.mark.parametrize("page", WITH_CODE, ids=_name)
@pytest.mark.usefixtures("served")
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__example__"}
    try:
        for line, text, exempt in _blocks(page):
            if not exempt:
                # Blank lines before it, so that a traceback shows the line of the page.
                exec(compile("\n" * line + text, str(page), "exec"), names)
    finally:
        for value in names.values():
            if isinstance(value, hookcore.Watcher):
                value.close()


def test_the_readme_shows_code() -> None:
    assert ROOT / "README.md" in WITH_CODE


def test_hardly_any_code_is_exempt_from_being_run() -> None:
    assert sum(exempt for page in PAGES for _, _, exempt in _blocks(page)) <= MOST_EXEMPT


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_the_links_of_a_page_lead_to_files_that_exist(page: Path) -> None:
    children = [child for token in _tokens(page) for child in token.children or []]
    links = [str(child.attrGet("href")) for child in children if child.type == "link_open"]
    for link in links:
        if "://" not in link and not link.startswith("#"):
            assert (page.parent / link.partition("#")[0]).exists(), f"{_name(page)} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_the_commands_of_make_that_a_page_names_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)`", page.read_text()))
    assert named <= targets

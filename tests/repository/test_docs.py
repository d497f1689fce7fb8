"""The documentation is correct: its code runs, its links work, and its tables are those of the code.

The Python blocks of a page run in one namespace, from top to bottom. The code of a comment `<!-- setup ... -->` runs
too, to provide what a reader has and a test doesn't. `<!-- not run: reason -->` exempts the block below it, and
`<!-- file: examples/train.py -->` says that the block is that file, which has a test of its own.
`tests/repository/test_docs_commands.py` does the same for the shell.
"""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hookcore
from hookcore.commands.doctor import TESTED
from hookcore_app.serving import server_thread
from tests.manual import PAGES, ROOT, blocks_of, inline_code_of, name_of, tokens_of
from tests.project import PROJECT

WITH_CODE = [page for page in PAGES if any(not block.file for block in blocks_of(page, "python"))]
SHOWN = [(page, block) for page in PAGES for block in blocks_of(page) if block.file]
# The language of each fenced block, and the test that runs it; `text` isn't code.
LANGUAGES = {
    "python": "tests/repository/test_docs.py",
    "sh": "tests/repository/test_docs_commands.py",
    "js": "tests/browser/test_live_example.py",
    "nginx": "tests/serving/test_proxy.py",
    "yaml": "tests/repository/test_kubernetes.py",
    "text": "",
}
MAX_README_LINES = 120
MAX_EXEMPT = 3  # in all pages together, because examples should run
LINKS = ("link_open", "image")
FOLDERS = ("hookcore", "app", "tests", "docs", "benchmarks", "examples", "docker")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve watchers without a `server` setting from this process, so that no page starts a dashboard."""
    monkeypatch.setenv("HOOKCORE_SERVER", "thread")
    monkeypatch.setenv("HOOKCORE_PORT", "0")
    monkeypatch.setattr("hookcore.findings.ownrules.registered", [])
    yield
    for thread in threading.enumerate():
        if thread.name == server_thread.THREAD:
            server_thread.start().stop()


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
@pytest.mark.usefixtures("served")
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__example__"}
    try:
        for block in blocks_of(page, "python"):
            if not (block.exempt or block.file):
                # Blank lines before it, so that a traceback shows the line of the page.
                exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
    finally:
        for value in names.values():
            if isinstance(value, hookcore.Watcher):
                value.close()


def test_a_page_shows_files_as_they_are() -> None:
    for page, block in SHOWN:
        assert block.text == (ROOT / block.file).read_text(), f"{name_of(page)}:{block.line} is not {block.file}"


def test_the_readme_shows_code() -> None:
    assert ROOT / "README.md" in WITH_CODE


def test_the_readme_is_read_in_some_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_extras_that_a_page_installs_exist(page: Path) -> None:
    named = set(re.findall(r"\bhookcore\[([a-z]+)\]|\.\[([a-z]+)\]\"", page.read_text()))
    assert {one or other for one, other in named} <= set(PROJECT["optional-dependencies"])


def test_the_costs_in_the_readme_are_those_of_the_page_on_benchmarks() -> None:
    lines = (ROOT / "docs/benchmarks.md").read_text().splitlines()
    rows = {cells[0]: cells[1:] for line in lines if (cells := _cells(line)) and len(cells) == 5}
    measured = [rows[name] for name in ("every step", "default, `budget=0.05`", "paused")]
    readme = [cells for line in (ROOT / "README.md").read_text().splitlines() if len(cells := _cells(line)) == 4]
    shown = [cells[1:] for cells in readme if re.fullmatch(r"\d\.\d\d", cells[1])]
    assert sorted(shown) == sorted([cell.split()[0] for cell in column] for column in zip(*measured, strict=True))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []


def test_hardly_any_code_is_exempt_from_running() -> None:
    assert sum(block.exempt for page in PAGES for block in blocks_of(page, "python")) <= MAX_EXEMPT


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_a_page_is_in_a_tested_language(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{name_of(page)}:{block.line} is {block.language or 'in no language'}"
        assert (ROOT / LANGUAGES[block.language]).exists()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_and_pictures_of_a_page_exist(page: Path) -> None:
    children = [child for token in tokens_of(page) for child in token.children or []]
    links = [str(child.attrGet("href") or child.attrGet("src")) for child in children if child.type in LINKS]
    for link in links:
        if "://" not in link:
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), f"{name_of(page)} links to {link}"
            assert not anchor or anchor in _anchors_of(target), f"{name_of(page)} links to {link}"


def _anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings: lowercase, no punctuation, hyphens for spaces."""
    tokens = tokens_of(page)
    titles = [tokens[place + 1].content for place, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_files_of_this_project_that_a_page_names_exist(page: Path) -> None:
    for code in inline_code_of(page):
        # The name of a scalar may start like a folder; a file has an extension, a folder a slash.
        if re.fullmatch(rf"({'|'.join(FOLDERS)})/([\w/-]*/|[\w/-]+\.\w+)?", code):
            assert (ROOT / code).exists(), f"{name_of(page)} names {code}"


def test_every_page_has_a_place_in_the_navigation_of_the_site() -> None:
    groups = re.findall(
        r'"([\w./*-]+)"', (ROOT / ".ci/website.py").read_text().partition("GROUPS = {")[2].partition("\n}")[0]
    )
    pages = {page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in PAGES if page.parent.name == "docs"}
    assert pages <= set(groups), "add these pages to a group of `.ci/website.py`"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_make_targets_that_a_page_names_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)`", page.read_text()))
    assert named <= targets


def test_the_readme_names_the_tested_releases_and_the_oldest_supported_one() -> None:
    run = re.search(r"^torch==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert run is not None
    assert TESTED[0].torch == run[1]  # docs/versions.md has the same table
    pythons = sorted({each.python for each in TESTED}, key=lambda python: int(python.partition(".")[2]))
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    (oldest,) = (each.removeprefix("torch>=") for each in PROJECT["dependencies"] if each.startswith("torch>="))
    assert f"hookcore accepts torch {oldest} and newer" in (ROOT / "README.md").read_text()
    classified = re.findall(r"Python :: (\d\.\d+)", " ".join(PROJECT["classifiers"]))
    assert classified == pythons


def _said_by_the_code() -> Iterator[str]:
    """Return every string in the code, with a NUL for each inserted value."""
    for file in sorted(path for folder in ("hookcore", "app") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value.replace("%s", "\0")
    for file in (ROOT / "app/static/js").rglob("*.js"):
        yield re.sub(r"\$\{[^}]*\}", "\0", file.read_text())


def _quoted_messages() -> list[str]:
    """Return the headings of the page that are messages."""
    tokens = tokens_of(ROOT / "docs" / "troubleshooting.md")
    titles = [tokens[place + 1] for place, token in enumerate(tokens) if token.type == "heading_open"]
    return [title.content[1:-1] for title in titles if re.fullmatch("`[^`]+`", title.content)]


def test_messages_in_the_troubleshooting_page_appear_in_the_code() -> None:
    texts, messages = list(_said_by_the_code()), _quoted_messages()
    assert len(messages) > 20
    for message in messages:
        # Three dots stand for an inserted value. The message may contain other text before the quotation continues.
        parts = [part.strip() for part in message.split("...")]
        wanted = re.compile(r"[^\n]*?\0[^\n]*?".join(map(re.escape, parts)))
        candidates = (text for text in texts if all(part in text for part in parts))  # much faster than searching
        assert any(wanted.search(text) for text in candidates), f"nothing in the code says: {message}"

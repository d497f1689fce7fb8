"""The documentation as data: its pages, their code blocks, and the names that they mention."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
FILE = re.compile(r"<!-- file: (\S+) -->")
SETUP = re.compile(r"<!-- setup(?: (\w+))?\n(.+)-->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, or code in a comment that runs instead of one.

    It is `exempt` if a comment says why it is not run. If it shows a `file` of this project, the file has a test.
    """

    language: str
    line: int
    text: str
    exempt: bool = False
    file: str = ""


@cache
def tokens_of(page: Path) -> list[Token]:
    """Return a page as its parser sees it."""
    tokens: list[Token] = MarkdownIt("commonmark", {"html": True}).enable("table").parse(page.read_text())
    return tokens


def blocks_of(page: Path, language: str = "") -> list[Block]:
    """Return the blocks of a page in one language, or in all. An indented block has the language "indented"."""
    blocks, before = [], ""
    for token in tokens_of(page):
        line = token.map[0] + 1 if token.map else 0
        setup = SETUP.fullmatch(token.content.strip()) if token.type == "html_block" else None
        if setup:
            blocks.append(Block(setup[1] or "python", line, setup[2]))
        elif token.type == "fence":
            name = (token.info.split() or [""])[0]
            is_exempt, file = bool(NOT_RUN.fullmatch(before.strip())), FILE.fullmatch(before.strip())
            blocks.append(Block(name, line, token.content, is_exempt, file[1] if file else ""))
        elif token.type == "code_block":
            blocks.append(Block("indented", line, token.content))
        before = token.content if token.type == "html_block" else ""
    return [block for block in blocks if language in ("", block.language)]


def inline_code_of(page: Path) -> list[str]:
    """Return all text between single backticks, in paragraphs and in tables."""
    children = (child for token in tokens_of(page) for child in token.children or [])
    return [child.content for child in children if child.type == "code_inline"]


def name_of(page: Path) -> str:
    """Return a page's path in the repository."""
    return str(page.relative_to(ROOT))

"""A text in the find box means the same on the server and on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hookcore_app.analysis.find import Facts, parse

CASES = json.loads((Path(__file__).parent / "js" / "find_cases.json").read_text("utf-8"))
MODULES = (  # as in tests/js/find.test.mjs
    Facts("", "Net", (), 9, 5, True),
    Facts("layers.0", "Block", (), 5, 5, True),
    Facts("layers.0.attn", "SelfAttention", (), 3, 3, True),
    Facts("layers.0.attn.q", "Linear", (), 3, 3, True, nan=True),
    Facts("layers.0.mlp", "Linear", (), 2, 0, True, dead=True),
    Facts("layers.1", "Block", (), 0, 0, False),
    Facts("layers.1.attn", "SelfAttention", (), 0, 0, False),
    Facts("head", "Norm", ("head.again",)),
)


@pytest.mark.parametrize(("text", "wanted"), CASES)
def test_a_text_finds_what_the_page_finds(text: str, wanted: list[int]) -> None:
    found = parse(text)
    assert found.problem == ""
    assert [place for place, module in enumerate(MODULES) if found.test(module)] == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/(/", "not a regular expression"),
        ("/abc", "also ends with a slash"),
        ("is:odd", "is:frozen"),
        ("type:", "class"),
        ("depth:x", "depth:2"),
        ("x" * 2000, "longer"),
        ("!/(/", "not a regular expression"),
    ],
)
def test_an_unreadable_text_says_why_and_shows_everything(text: str, words: str) -> None:
    found = parse(text)
    assert words in found.problem
    assert all(found.test(module) for module in MODULES)

"""The page's preview of patterns equals the trainer's selection."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hookcore.names import select

CASES = json.loads((Path(__file__).parent / "js" / "pattern_cases.json").read_text("utf-8"))
TYPES = {  # as in tests/js/hooks.test.mjs
    "": "Net",
    "layers": "Sequential",
    "layers.0": "Block",
    "layers.0.attn": "Attention",
    "layers.1": "Block",
    "layers.1.attn": "Attention",
    "layers.10": "Linear",
    "head": "Linear",
}
LEAVES = {"layers.0.attn", "layers.1.attn", "layers.10", "head"}


@pytest.mark.parametrize(("include", "exclude", "wanted"), CASES)
def test_patterns_select_what_the_page_counts(include: str, exclude: str, wanted: list[str]) -> None:
    modules = {path: type(name, (), {})() for path, name in TYPES.items()}
    given = [[line.strip() for line in text.split("\n") if line.strip()] for text in (include, exclude)]
    assert list(select(modules, LEAVES, *given).chosen) == wanted

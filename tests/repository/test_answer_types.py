"""The files that are generated for the scripts."""

from __future__ import annotations

from tests.answer_types import generated


def test_scripts_have_the_same_types_words_and_limits_as_the_server() -> None:
    for path, text in generated().items():
        assert path.read_text("utf-8") == text, f"{path.name}: run python -m tests.answer_types"

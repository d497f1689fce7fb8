"""The files that are generated for the scripts."""

from __future__ import annotations

from tests.answer_types import generated


def test_the_scripts_have_the_types_the_words_and_the_limits_of_the_server() -> None:
    for path, text in generated().items():
        assert path.read_text("utf-8") == text, f"{path.name}: run python -m tests.answer_types"

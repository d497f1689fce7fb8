"""The types of the answers that the scripts are checked with."""

from __future__ import annotations

from tests.answer_types import FILE, VOCABULARY, declarations, vocabulary


def test_the_types_for_the_scripts_are_those_of_the_answers() -> None:
    assert FILE.read_text("utf-8") == declarations(), "run: python -m tests.answer_types"


def test_the_scripts_use_the_words_of_the_vocabulary() -> None:
    assert VOCABULARY.read_text("utf-8") == vocabulary(), "run: python -m tests.answer_types"

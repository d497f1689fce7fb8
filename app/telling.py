"""Answers in words: their lines, tables, and texts of a training, which are data.

What a training has chosen is quoted, on one line, and bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hookcore.findings import RULES
from hookcore.reading import answers

from .analysis.numerals import title_of_rule

MAX_TEXT: Final = 600  # characters of a quoted sentence
MAX_NAME: Final = 120  # and of a quoted name
MAX_ROWS: Final = 50  # of a table
_PLAIN: Final = re.compile(r"[\w.\-\[\]/:+()]{1,80}")  # a name in which nobody can write a sentence
_NUMERIC: Final = frozenset("-+0123456789N<I")  # what a number begins with
_NUMBERS: Final = 30  # characters: a wider column has words


@dataclass(frozen=True, slots=True)
class Told:
    """An answer in words, the answers of REST that it was made of, and a picture if one was asked for."""

    text: str
    answers: dict[str, Any] = field(default_factory=dict)
    image: bytes = b""


# Texts of a training as data.


def quoted(text: str, most: int = MAX_TEXT) -> str:
    """Return a text of a training in double quotes: on one line, bounded, and without anything that isn't printed."""
    cut = text if len(text) <= most else f"{text[:most]}\u2026"
    plain = "".join(each if each.isprintable() else each.encode("unicode_escape", "replace").decode() for each in cut)
    return json.dumps(plain, ensure_ascii=False)


def named(name: str) -> str:
    """Return a name as it is if it is a single word, and quoted otherwise."""
    return name if _PLAIN.fullmatch(name) else quoted(name, MAX_NAME)


def labeled(tap: answers.Tap) -> str:
    """Return the label of a tap, quoted unless all names in it are single words."""
    plain = all(not name or _PLAIN.fullmatch(name) for name in (tap.module, tap.index))
    return tap.label if plain else quoted(tap.label, MAX_NAME)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; columns of numbers are set to the right."""
    every = [tuple(head), *map(tuple, rows)]
    columns = list(zip(*every, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [
        width < _NUMBERS and all(not cell or cell[0] in _NUMERIC for cell in column[1:])
        for column, width in zip(columns, widths, strict=True)
    ]
    return [
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in every
    ]


def title(rule: str) -> str:
    """Return the title of a rule; that of a user's own one is quoted."""
    return title_of_rule(rule) if rule in RULES else quoted(title_of_rule(rule), MAX_NAME)


def told(lines: Iterable[str], image: bytes = b"", /, **made_of: Any) -> Told:
    """Return an answer of some lines."""
    return Told("\n".join(lines), made_of, image)

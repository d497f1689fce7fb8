"""The doctor's findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["ok", "note", "wrong"]
_WIDTH: Final = 13


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. "note": a limitation. "wrong": hookcore can't work as configured."""

    level: Level
    about: str
    text: str


def as_text(findings: Sequence[Finding]) -> str:
    """Format the findings, with a summary."""
    lines = [f"{each.level:5}  {each.about:{_WIDTH}} {each.text}" for each in findings]
    wrong, notes = (sum(each.level == level for each in findings) for level in ("wrong", "note"))
    summary = f"{wrong} wrong, {notes} to note" if wrong or notes else "no problems found"
    return "\n".join([*lines, "", summary])

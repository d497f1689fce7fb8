"""What the doctor says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["ok", "note", "wrong"]
_WIDTH: Final = 13


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. A note limits what hookcore can do; what is wrong keeps it from working as it was told to."""

    level: Level
    about: str
    text: str


def as_text(findings: Sequence[Finding]) -> str:
    """The lines, and what they come to."""
    lines = [f"{each.level:5}  {each.about:{_WIDTH}} {each.text}" for each in findings]
    wrong, notes = (sum(each.level == level for each in findings) for level in ("wrong", "note"))
    told = f"{wrong} wrong, {notes} to note" if wrong or notes else "all is well"
    return "\n".join([*lines, "", told])

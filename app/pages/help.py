"""The page Help: how to get started, findings, glossary, and keyboard shortcuts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hookcore.findings import RULES, THRESHOLDS
from hookcore.store import STAT_NAMES

from .frame import PLACES
from .page import Page
from .views.words import BEGIN, KEYS, KIND_WORDS, NOTHING, PATTERN_WORDS, STAT_WORDS, WORDS

GO: Final = (
    ("r", "Runs"),
    *((place.key, place.title) for place in PLACES if place.key),
    ("c", "Compare"),
    ("s", "Settings"),
    ("?", "Help"),
)


@dataclass(frozen=True, kw_only=True)
class HelpPage(Page):
    """Each stat, kind, rule, and word has an anchor: `help#stat-rms`, `help#rule-dead`."""

    name = "help"
    path = "/help"

    def values(self) -> dict[str, Any]:
        return {
            "keys": (*KEYS, ("Go to", tuple((f"g {key}", title) for key, title in GO))),
            "pattern_words": PATTERN_WORDS,
            "words": WORDS,
            "kind_words": KIND_WORDS,
            "stat_words": {name: STAT_WORDS[name] for name in STAT_NAMES},
            "rules": RULES.values(),
            "thresholds": THRESHOLDS,
            "begin": BEGIN,
            "nothing": NOTHING,
        }

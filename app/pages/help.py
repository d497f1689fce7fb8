"""The page Help: how to get started, findings, glossary, and keyboard shortcuts."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from hookcore.store import STAT_NAMES

from ..findings import RULES
from .frame import PLACES, render
from .views.words import BEGIN, KEYS, KIND_WORDS, NOTHING, STAT_WORDS, WORDS

GO: Final = (
    ("r", "Runs"),
    *((place.key, place.title) for place in PLACES),
    ("c", "Compare"),
    ("s", "Settings"),
    ("?", "Help"),
)

router = APIRouter(include_in_schema=False)


@router.get("/help", response_class=HTMLResponse)
def help_page(request: Request) -> HTMLResponse:
    """Show the help page. Each stat, kind, rule, and word has an anchor: `help#stat-rms`, `help#rule-dead`."""
    return render(
        request,
        "help",
        keys=(*KEYS, ("Go to", tuple((f"g {key}", title) for key, title in GO))),
        words=WORDS,
        kind_words=KIND_WORDS,
        stat_words={name: STAT_WORDS[name] for name in STAT_NAMES},
        rules=RULES.values(),
        begin=BEGIN,
        nothing=NOTHING,
    )

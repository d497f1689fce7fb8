"""The page Board: the charts that readers pinned, of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..api.board import charts_of
from .page import RunPage


@dataclass(frozen=True, kw_only=True)
class BoardPage(RunPage):
    """The pinned charts. The scripts draw them."""

    name = "board"

    def values(self) -> dict[str, Any]:
        """Return each pinned chart with the page and the query that it was pinned from."""
        return {"charts": charts_of(self.runs)}

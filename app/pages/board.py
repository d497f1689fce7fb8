"""The page Board: the charts that readers pinned, of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..api.saved import problem_of_chart
from ..api.views import charts_of
from .page import RunPage


@dataclass(frozen=True, kw_only=True)
class BoardPage(RunPage):
    """The pinned charts. The scripts draw them."""

    name = "board"

    def values(self) -> dict[str, Any]:
        """Return each pinned chart, and why it can't be shown, if an earlier version has stored it unchecked."""
        return {"charts": [(chart, problem_of_chart(chart)) for chart in charts_of(self.runs)]}

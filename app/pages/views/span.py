"""The steps that a page shows, read from its address in the same way as in `static/js/follow.js`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ...runs import Run

LIVE_STEPS: Final = 500


@dataclass(frozen=True, slots=True)
class Span:
    """The first and last step shown; `held` if the last one isn't simply the newest."""

    first: int
    last: int
    held: bool

    @property
    def words(self) -> str:
        """The steps in words."""
        return f"step {self.last:,}" if self.first == self.last else f"steps {self.first:,} to {self.last:,}"


def span_of(run: Run, steps: str = "", step: str = "") -> Span | None:
    """Return the steps in an address; None before the first step."""
    known = run.store.steps()
    if known.first is None or known.newest is None:
        return None
    held = min(int(step), known.newest) if _is_step(step) else None
    zoomed = re.fullmatch(r"(\d{1,15})-(\d{1,15})", steps)
    if zoomed and int(zoomed[1]) <= int(zoomed[2]):
        last = min(int(zoomed[2]), known.newest) if held is None else held
        return Span(min(int(zoomed[1]), last), last, True)
    last = known.newest if held is None else held
    return Span(max(known.first, last - _length(run, steps) + 1), last, held is not None)


def _length(run: Run, steps: str) -> int:
    live = re.fullmatch(r"live:(\d{1,9})", steps)
    if live:
        return max(2, int(live[1]))
    known = run.store.steps()
    return LIVE_STEPS if run.state == "live" else (known.newest or 0) - (known.first or 0) + 1


def _is_step(text: str) -> bool:
    return bool(re.fullmatch(r"\d{1,15}", text))
